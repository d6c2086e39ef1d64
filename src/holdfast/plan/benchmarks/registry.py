"""The table of benchmarks: those of Holdfast, and those that other packages offer as entry points.

To add one: write it in the module of its family, and list it in that module's `BENCHMARKS`. A package offers one with
an entry point in the group `holdfast.benchmarks`, which names a `Benchmark` or a list of them.
"""

import difflib
import functools
import importlib
import importlib.metadata
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from holdfast.datasets import Conversion
from holdfast.errors import SpecError
from holdfast.plan.benchmarks.card import Benchmark

GROUP = "holdfast.benchmarks"
_FAMILIES = (
    "arithmetic",
    "commonsense",
    "competition",
    "exams",
    "factuality",
    "instructions",
    "medicine",
    "programs",
    "puzzles",
    "reading",
    "science",
)
_SUFFIXES = (".yaml", ".yml", ".json")


def is_benchmark_name(name: str) -> bool:
    """Whether a name on the command line means a benchmark: a file has a slash or a suffix."""
    return "/" not in name and "." not in name


def experiment_of(names: Sequence[str]) -> str:
    """The experiment of a run of benchmarks, if the user names none."""
    return names[0].partition(":")[0] if len(names) == 1 else "benchmarks"


def _own() -> Mapping[str, Benchmark]:
    modules = (importlib.import_module(f"holdfast.plan.benchmarks.{family}") for family in _FAMILIES)
    return {each.name: each for module in modules for each in module.BENCHMARKS}


def is_own(benchmark: Benchmark) -> bool:
    """Whether it ships with Holdfast."""
    return benchmark.name in _own()


@functools.cache
def all_benchmarks() -> Mapping[str, Benchmark]:
    """Every benchmark by its name, sorted. Without those of packages that cannot be loaded."""
    found = dict(_own())
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            offered = _load(point)
        except SpecError:
            continue  # one broken package must not take all benchmarks away; `broken_packages` names it
        found |= {each.name: each for each in offered if each.name not in found}
    return dict(sorted(found.items()))


def broken_packages() -> dict[str, str]:
    """What is wrong with packages that offer benchmarks, by the name of the entry point."""
    found = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            _load(point)
        except SpecError as error:
            found[point.name] = str(error)
    return found


def find_benchmark(name: str, place: str = "") -> Benchmark:
    """Return a benchmark. SpecError if there is none of this name. `place`: where it is named."""
    found = all_benchmarks().get(name)
    if found is None:
        where = f"{place}: " if place else ""
        if name in broken_packages():
            raise SpecError(f"{where}{broken_packages()[name]}")
        hint = _suggest(name)
        files = [f"./{name}", *(f"{name}{suffix}" for suffix in _SUFFIXES)]
        file = next((f"; to run the file, write {each}" for each in files if os.path.isfile(each)), "")
        raise SpecError(f"{where}there is no benchmark {name!r}; {hint}{file}")
    return found


def _suggest(name: str) -> str:
    """What to write instead of a name that no benchmark has. Upper case, hyphens and dots are common in other tools."""
    typed = re.sub(r"[-. ]", "_", name.lower())
    every = {each.replace(":", "_"): each for each in all_benchmarks()}
    near = difflib.get_close_matches(typed.replace(":", "_"), every, n=1)
    base, colon, _ = typed.partition(":")
    variants = [each for each in all_benchmarks() if each.partition(":")[0] == base]
    begun = [each for each in all_benchmarks() if each.startswith(f"{typed}_") and ":" not in each]
    if typed in all_benchmarks():
        return f"did you mean {typed!r}?"
    if colon and variants:
        return f"there are: {', '.join(variants)}"
    if begun:
        return f"there are: {', '.join(begun)}"
    return f"did you mean {every[near[0]]!r}?" if near else "`holdfast benchmarks` lists them"


def find_conversion(name: str) -> Conversion:
    """Return the conversion of a benchmark's rows. SpecError if it has none."""
    convert = find_benchmark(name, "dataset.convert").convert
    if convert is None:
        raise SpecError(f"dataset.convert: the benchmark {name!r} converts no rows; remove this field")
    return convert


def _load(point: importlib.metadata.EntryPoint) -> Iterable[Benchmark]:
    try:
        loaded = point.load()
    except Exception as error:
        raise SpecError(f"the benchmark {point.name!r} ({point.value}) cannot be loaded: {error}") from error
    offered = [loaded] if isinstance(loaded, Benchmark) else loaded
    if not isinstance(offered, list | tuple) or not all(isinstance(each, Benchmark) for each in offered):
        raise SpecError(f"the entry point {point.name!r} ({point.value}) is neither a Benchmark nor a list of them")
    return offered
