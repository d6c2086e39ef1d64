"""What a command works on: opens the run that it names, here or in a mirror, or loads the spec."""

import os
import sys

from holdfast.cli.progress import spinner
from holdfast.datasets import hub_address
from holdfast.errors import Problems, SpecError, UsageError
from holdfast.journal import is_url
from holdfast.plan import all_benchmarks, find_benchmark_doubts
from holdfast.runs import Given, Overrides, Run, default_store, load_given
from holdfast.sandbox.box import sandbox_doubts
from holdfast.solve import sandboxes_of
from holdfast.spec import Spec, find_warnings

_DATA = (".jsonl", ".ndjson", ".csv", ".tsv")


def run_to_read(name: str, store: str | None) -> Run:
    """Open a run. If it has not begun, say so on standard error, because its tables are empty."""
    run = run_to_show(name, store)
    if not run.has_begun:
        status, reason = run.status()
        sys.stderr.write(f"{run.run_id}: {status}{f', {reason}' if reason else ', it has just been started'}\n")
    return run


def run_to_show(name: str, store: str | None) -> Run:
    """Open a run, for commands that print its status themselves."""
    where = store or default_store()
    if not is_url(name) and not is_url(where):
        return Run.find(where, name)
    with spinner("fetching from the mirror") as spin:
        return Run.find(where, name, spin.update)


def find_doubts(spec: Spec) -> list[str]:
    """Warnings about a valid spec that probably contains a mistake, or that this machine cannot confine."""
    return [*find_warnings(spec, os.environ), *find_benchmark_doubts(spec), *sandbox_doubts(sandboxes_of(spec))]


def load_named(path: str, overrides: Overrides, problems: Problems | None = None, *, is_only: bool) -> Given:
    """Load a spec. If it is not the only one, every error names it, also that of an option such as `--task`.
    `problems`: receives errors that leave a spec to check further.
    """
    if path.lower().removesuffix(".gz").removesuffix(".zst").endswith(_DATA) and os.path.isfile(path):
        raise UsageError(f"{path} is data, not a spec; without a spec: holdfast run --model mock --data {path}")
    if path.endswith(".py") and os.path.isfile(path):
        name = os.path.basename(path).removesuffix(".py")
        raise UsageError(
            f"{path} is Python, not a spec; start it with: python {path}, or name its functions in a spec, as in "
            f"`solver: {name}:FUNCTION`"
        )
    if address := hub_address(path):
        raise UsageError(f"{path} is a data set of the Hub, not a spec; write a spec with {address}")
    if not os.path.exists(path):
        _explain_benchmark(path)
    try:
        return load_given(path, overrides, problems)
    except SpecError as error:
        if is_only or str(error).startswith(path):
            raise
        raise SpecError(f"{path}: {error}") from error


def _explain_benchmark(path: str) -> None:
    """UsageError if a file that does not exist has the name of a benchmark."""
    if path in all_benchmarks():
        checked, shown = f"holdfast benchmarks check {path}", f"holdfast run {path} --model MODEL --dry-run"
        raise UsageError(f"{path} is a benchmark; to check it: {checked}; to see its requests: {shown}")
    name = os.path.splitext(path)[0]
    if name in all_benchmarks():
        copied = f"holdfast init --benchmark {name}"
        raise UsageError(f"{path}: no such file; to run the benchmark, write {name}; for an editable copy: {copied}")
