"""Selecting a part of a spec: fewer samples, tasks or models. Pure; SpecError for names that the spec does not have.

The result is an ordinary spec. `holdfast extend` turns a run of a part into a run of the whole.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from holdfast.errors import SpecError
from holdfast.spec.source.messages import nearest
from holdfast.spec.source.sweeps import base_of
from holdfast.spec.types import Model, Spec, Task

T = TypeVar("T", Task, Model)


class Selection(msgspec.Struct, frozen=True):
    """What to select. A field that is not set selects everything."""

    limit: int | None = None
    samples: Sequence[str] = ()
    tasks: Sequence[str] = ()
    models: Sequence[str] = ()

    def __bool__(self) -> bool:
        return self != Selection()


def select(spec: Spec, selection: Selection) -> Spec:
    """Return the selected part of a spec. A task that none of the selected models runs is dropped."""
    if not selection:
        return spec
    if selection.limit is not None and selection.limit < 1:
        raise SpecError(f"--limit {selection.limit}: at least 1")
    models = _select_named("model", selection.models, spec.models)
    left = {model.name for model in models}
    tasks = []
    for task in _select_named("task", selection.tasks, spec.tasks):
        # Remove the other models from the tasks: the spec of a run may only name models that it has.
        mine = None if task.models is None else [name for name in task.models if name in left]
        if mine is None or mine:
            tasks.append(task if mine == task.models else msgspec.structs.replace(task, models=mine))
    if not tasks:
        named = ", ".join(sorted(left))
        raise SpecError(f"--model {named}: no task runs with it; see `models` of the tasks in the spec")
    return msgspec.structs.replace(
        spec,
        tasks=tasks,
        models=models,
        limit=selection.limit or spec.limit,
        samples=list(dict.fromkeys(selection.samples)) or spec.samples,
    )


def _select_named(kind: str, names: Sequence[str], parts: Sequence[T]) -> list[T]:
    known = {part.name for part in parts}
    for name in names:
        if not any(_matches(name, each, known) for each in known):
            raise SpecError(f"--{kind} {name}: the spec has no {kind} of that name{nearest(name, known)}")
    return [part for part in parts if not names or any(_matches(name, part.name, known) for name in names)]


def _matches(pattern: str, name: str, known: set[str]) -> bool:
    """A name matches the part with that name; if there is none, all sweep variants of it."""
    return name == pattern or (pattern not in known and base_of(name, {pattern: None}) == pattern)
