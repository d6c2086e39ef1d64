"""Benchmarks in a spec: `tasks: [gsm8k, {benchmark: mmlu, subset: [anatomy]}]`.

They are replaced by whole tasks before the spec is validated, so everything after this knows only tasks. The run
stores the whole task with the version of the benchmark. When a newer Holdfast resumes it, the stored task is used.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.datasets import is_same_revision
from holdfast.errors import SpecError
from holdfast.plan.benchmarks.card import Benchmark, task_fields
from holdfast.plan.benchmarks.registry import all_benchmarks, find_benchmark
from holdfast.spec import Spec, Task, expand_dataset

_NOT_COMPARED = frozenset({"name", "benchmark", "models", "max_samples"})
"""Fields that are not the benchmark's own."""


def expand_benchmarks(raw: object, where: str = "") -> object:
    """Return a spec that is not validated yet, with a whole task for each benchmark. `where`: its file, for errors."""
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
    benchmark = find_benchmark(named, place)
    changes = {name: value for name, value in task.items() if name not in ("benchmark", "subset")}
    fields = task_fields(benchmark, changes)
    if "subset" in task:
        _select_subset(fields, benchmark, task["subset"], place)
    return fields


def _select_subset(fields: dict[str, Any], benchmark: Benchmark, subset: Any, place: str) -> None:
    names = [subset] if isinstance(subset, str) else subset
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise SpecError(f"{place}.subset: expected a name or a list of names")
    if not benchmark.subset:
        raise SpecError(f"{place}.subset: the benchmark {benchmark.name!r} has no subsets; use dataset.where")
    dataset = fields["dataset"]
    if benchmark.subset == "config":
        known = dataset["config"]
        for name in names:
            if name not in known:
                raise SpecError(f"{place}.subset: there is no {name!r}; there are: {', '.join(known)}")
        dataset["config"] = names
        return
    fields["benchmark"] |= {"subset": names, "by": benchmark.subset}
    condition = f"{benchmark.subset} in {names!r}"
    dataset["where"] = f"({dataset['where']}) and {condition}" if dataset.get("where") else condition


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
