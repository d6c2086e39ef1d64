"""A part of a spec: fewer samples, tasks or models than it names. Pure; refuses names that the spec does not have.

What is left is a spec like any other. A run of a part becomes the whole by `holdfast extend`.
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
    """Which part. What is not set selects everything."""

    limit: int | None = None
    samples: Sequence[str] = ()
    tasks: Sequence[str] = ()
    models: Sequence[str] = ()

    def __bool__(self) -> bool:
        return self != Selection()


def select(spec: Spec, wanted: Selection) -> Spec:
    """The spec of the part. A task that is asked of none of the models left is left out."""
    if not wanted:
        return spec
    if wanted.limit is not None and wanted.limit < 1:
        raise SpecError(f"--limit {wanted.limit}: at least 1")
    models = _named("model", wanted.models, spec.models)
    left = {model.name for model in models}
    tasks = _asked_of(left, _named("task", wanted.tasks, spec.tasks))
    return msgspec.structs.replace(
        spec,
        tasks=tasks,
        models=models,
        limit=wanted.limit or spec.limit,
        samples=list(dict.fromkeys(wanted.samples)) or spec.samples,
    )


def _named(kind: str, names: Sequence[str], parts: Sequence[T]) -> list[T]:
    known = {part.name for part in parts}
    for name in names:
        if not any(_means(name, each, known) for each in known):
            raise SpecError(f"--{kind} {name}: the spec has no {kind} of that name{nearest(name, known)}")
    return [part for part in parts if not names or any(_means(name, part.name, known) for name in names)]


def _means(wanted: str, name: str, known: set[str]) -> bool:
    """A name means the part that is called so; if there is none, all variants of it."""
    return name == wanted or (wanted not in known and base_of(name, {wanted: None}) == wanted)


def _asked_of(models: set[str], tasks: Sequence[Task]) -> list[Task]:
    """Whoever goes on with the run sees only the models that it has: a task may not name others."""
    found = []
    for task in tasks:
        mine = None if task.models is None else [name for name in task.models if name in models]
        if mine is None or mine == task.models:
            found.append(task)
        elif mine:
            found.append(msgspec.structs.replace(task, models=mine))
    if not found:
        named = ", ".join(sorted(models))
        raise SpecError(f"--model {named}: none of the tasks is asked of it; see `models` of the tasks in the spec")
    return found
