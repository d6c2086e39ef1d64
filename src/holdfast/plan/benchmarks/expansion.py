"""Benchmarks in a spec: `tasks: [gsm8k, {benchmark: mmlu, subset: [anatomy]}]`.

They are replaced by whole tasks before `--set` values are applied, so that these can name any field of the task. Then
each task is completed: `subset` becomes a selection of rows, and restrictions of the data are kept. Everything after
this knows only tasks. The run stores the whole task with the version of the benchmark. When a newer Holdfast resumes
it, the stored task is used.
"""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.datasets import is_same_revision
from holdfast.errors import Problems, SpecError
from holdfast.plan.benchmarks.card import Benchmark, task_fields
from holdfast.plan.benchmarks.registry import all_benchmarks, find_benchmark
from holdfast.spec import ResolvedSpec, Spec, SpecFile, Task, change_spec, expand_dataset, resolve_file

_NOT_COMPARED = frozenset({"name", "benchmark", "models", "max_samples"})
"""Fields that are not the benchmark's own."""
_CONFIG = "config"
"""What `subset` selects where each subject, task or language is a configuration of the data set."""


def resolve_benchmarks(
    file: SpecFile,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = os.environ,
    problems: Problems | None = None,
) -> ResolvedSpec:
    """Return the effective spec of a file, with a whole task for each benchmark. The arguments are those of
    `resolve_file`.
    """
    whole = msgspec.structs.replace(file, raw=expand_benchmarks(file.raw, file.path))
    resolved = resolve_file(whole, sets, environ, problems, complete_benchmark)
    return msgspec.structs.replace(resolved, spec=mark_changes(resolved.spec))


def change_benchmarks(stored: Mapping[str, Any], sets: Sequence[str]) -> Spec:
    """Apply `--set` values to the stored spec of a run, also to its benchmarks."""
    return mark_changes(change_spec(stored, sets, complete_benchmark))


def expand_benchmarks(raw: object, where: str = "") -> object:
    """Return a spec that is not validated yet, with a whole task for each benchmark; `complete_benchmark` finishes
    them. `where`: the file of the spec, for errors.
    """
    tasks = raw.get("tasks") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(tasks, list):
        return raw  # the loader says what a spec looks like
    places = [f"{where}: tasks[{index}]" if where else f"tasks[{index}]" for index in range(len(tasks))]
    return {**raw, "tasks": [_expand(task, place) for task, place in zip(tasks, places, strict=True)]}


def _expand(task: Any, place: str) -> Any:
    if isinstance(task, str):
        task = {"benchmark": task}
    named = task.get("benchmark") if isinstance(task, dict) else None
    if not isinstance(named, str):
        return task
    changes = {name: value for name, value in task.items() if name != "benchmark"}
    return task_fields(find_benchmark(named, place), changes)


def complete_benchmark(task: dict[str, Any], place: str) -> None:
    """Finish a task that was made of a benchmark, or copied from one, once `--set` values are applied. Other tasks stay
    as they are. `place`: where the task is, for errors.
    """
    fewshot, subset = task.get("fewshot"), task.pop("subset", None)
    origin = task.get("benchmark")
    if isinstance(origin, str):
        raise SpecError(f"{place}.benchmark: {origin!r} would be another task; name the benchmark in `tasks` of a spec")
    benchmark = all_benchmarks().get(origin["name"]) if isinstance(origin, dict) and "name" in origin else None
    _keep_restriction(task, benchmark, place)
    if isinstance(fewshot, dict) and fewshot.get("n") == 0:
        task["fewshot"] = None
    elif benchmark is not None and isinstance(fewshot, dict):
        task["fewshot"] = {**_example_source(benchmark, fewshot), **fewshot}
    if subset is not None:
        if benchmark is None:
            raise SpecError(f"{place}.subset: only a benchmark has subsets; use dataset.where")
        _select_subset(task, benchmark, subset, place)


def _keep_restriction(task: dict[str, Any], benchmark: Benchmark | None, place: str) -> None:
    """Keep the text of restricted data private, also in copies of its benchmark."""
    dataset = task.get("dataset")
    converted = all_benchmarks().get(str(dataset.get("convert"))) if isinstance(dataset, dict) else None
    for each in filter(None, (benchmark, converted)):
        if each.share != "ok" and task.setdefault("share", each.share) == "ok":
            problem = f"the terms of the data of {each.name} forbid publishing its text; remove this field"
            raise SpecError(f"{place}.share: {problem}. Use --include-restricted for a report that stays private")


def _example_source(benchmark: Benchmark, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where examples come from if the user names only their number: as in the variant that shows some."""
    variant = example_variant(benchmark)
    if variant is None or given.get("path") or given.get("split"):
        return {}
    return dict(variant.task["fewshot"])


def example_variant(benchmark: Benchmark) -> Benchmark | None:
    """The variant of a benchmark without examples that shows some: `mmlu:5shot` of `mmlu`. None if there is none."""
    if benchmark.task.get("fewshot"):
        return None
    base, solver = benchmark.name.partition(":")[0], benchmark.task.get("solver")
    for name, each in all_benchmarks().items():
        if name.partition(":")[0] == base and each.task.get("fewshot") and each.task.get("solver") == solver:
            return each
    return None


def find_benchmark_doubts(spec: Spec) -> Iterator[str]:
    """Warnings about tasks that resemble another benchmark more than the one that was named."""
    for index, task in enumerate(spec.tasks):
        origin = task.benchmark
        benchmark = None if origin is None else all_benchmarks().get(origin.name)
        variant = None if benchmark is None or task.fewshot is None else example_variant(benchmark)
        if benchmark is not None and variant is not None:
            doubt = f"{benchmark.name} has no examples of its own; {variant.name} has, with a prompt for them"
            yield f"tasks[{index}].fewshot: {doubt}. To run that: holdfast run {variant.name}"


def _select_subset(task: dict[str, Any], benchmark: Benchmark, subset: Any, place: str) -> None:
    names = [subset] if isinstance(subset, str) else subset
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise SpecError(f"{place}.subset: expected a name or a list of names")
    if not benchmark.subset:
        raise SpecError(f"{place}.subset: the benchmark {benchmark.name!r} has no subsets; use dataset.where")
    dataset, origin = task["dataset"], task["benchmark"]
    if benchmark.subset == _CONFIG:
        known = benchmark.task["dataset"]["config"]
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
                raise SpecError(f"{place}.subset: there is no {name!r}; {hint}")
        dataset["config"] = names
        return
    where = dataset.get("where") or ""
    if origin.get("subset"):  # that of a stored spec, which the new one replaces
        before = _condition(benchmark, origin["subset"])
        where = "" if where == before else where.removeprefix("(").removesuffix(f") and {before}")
    condition = _condition(benchmark, names)
    dataset["where"] = f"({where}) and {condition}" if where else condition
    task["benchmark"] = {**origin, "subset": names, "by": benchmark.subset}


def _condition(benchmark: Benchmark, names: list[str]) -> str:
    return f"{benchmark.subset} in {names!r}"


def mark_changes(spec: Spec) -> Spec:
    """Return the spec with the names of the fields in which each task differs from its benchmark."""
    tasks = [_marked(task) for task in spec.tasks]
    return spec if tasks == spec.tasks else msgspec.structs.replace(spec, tasks=tasks)


def _marked(task: Task) -> Task:
    origin = task.benchmark
    benchmark = None if origin is None else all_benchmarks().get(origin.name)
    if origin is None or benchmark is None or benchmark.version != origin.version:
        return task
    changed = changed_fields(task, benchmark)
    return msgspec.structs.replace(task, benchmark=msgspec.structs.replace(origin, changed=changed))


def changed_fields(task: Task, benchmark: Benchmark) -> list[str]:
    """Return the fields of a task that differ from its benchmark."""
    fields = task_fields(benchmark, {})
    expand_dataset(fields)
    original = msgspec.convert(fields, Task, strict=False)
    own, given = (_leaves(msgspec.to_builtins(each)) for each in (original, task))
    if is_same_revision(original.dataset.revision, task.dataset.revision):  # a run stores the commit of a branch
        given["dataset.revision"] = own["dataset.revision"]
    names = {**own, **given}
    return [name for name in names if name.partition(".")[0] not in _NOT_COMPARED and own.get(name) != given.get(name)]


def _leaves(fields: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The values of nested mappings by their dotted names. A list is one value, and so is a solver."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and name != "solver":
            found |= _leaves(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found


def adopt_benchmarks(given: Spec, stored: Spec) -> Spec:
    """Return the given spec with the stored task of each benchmark whose version has changed since the run began. The
    user's own changes, then and now, stay as they are now, so that they are compared with the stored ones.
    """
    before = {task.name: task for task in stored.tasks}
    tasks = [_adopted(task, before.get(task.name)) for task in given.tasks]
    return given if tasks == given.tasks else msgspec.structs.replace(given, tasks=tasks)


def _adopted(given: Task, stored: Task | None) -> Task:
    new, old = given.benchmark, None if stored is None else stored.benchmark
    if stored is None or new is None or old is None or new.name != old.name or new.version == old.version:
        return given
    if new.copy:  # it is the user's own task, whatever version it came from
        return given
    fields, own = msgspec.to_builtins(stored), msgspec.to_builtins(given)
    for name in (*old.changed, *new.changed, *(_NOT_COMPARED - {"benchmark"})):
        _copy(own, fields, name.split("."))
    return msgspec.convert(fields, Task)


def _copy(source: dict[str, Any], target: dict[str, Any], path: list[str]) -> None:
    *above, last = path
    for name in above:
        if not isinstance(source.get(name), dict):
            return
        source = source[name]
        if not isinstance(target.get(name), dict):
            target[name] = {}
        target = target[name]
    if last in source:
        target[last] = source[last]
