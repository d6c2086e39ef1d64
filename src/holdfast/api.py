"""The public Python API: `Task`, `run`, `recover` and `open_run`, with async versions of the first two calls.

The work is async. The sync functions are thin wrappers that also work inside a running event loop (notebooks). This
module stores nothing itself: after a crash, the same call with the same `id` resumes the run.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import SpecError
from holdfast.records import Row
from holdfast.runs import Given, Run, assignments, default_store, execute, new_run_location, open_run, run_blocking
from holdfast.runs.execution.preparation import find_modules_beside
from holdfast.runs.execution.progress import observer
from holdfast.runs.mirror import recovery
from holdfast.runs.mirror.recovery import Recovered
from holdfast.score import Scorer
from holdfast.solve import Solve
from holdfast.spec import Selection, base_of, build_spec, load_spec, select

__all__ = ["Run", "Task", "open_run", "recover", "recover_async", "run", "run_async"]

_POLL_SECONDS = 0.25
ScorerEntry = str | dict[str, Any] | Scorer | Callable[..., Any]
"""A name, a mapping of a name to arguments, a `@scorer`, or a plain function."""


class Task:
    """A data set, the prompt or solver that answers it, and the scorers.

    `data` is a list of rows or the path of a file. `solver` and `scorers` are names or functions. Several prompts make
    variants of the task. `fields` are the other fields of a task in a spec: system, repeats, sample_retries, fewshot, …
    """

    def __init__(
        self,
        name: str,
        data: str | os.PathLike[str] | Iterable[Row],
        prompt: str | Sequence[str] | Mapping[str, str] = "",
        *,
        solver: str | dict[str, Any] | Solve = "chat",
        scorers: Sequence[ScorerEntry] | ScorerEntry = (),
        **fields: Any,
    ) -> None:
        path = os.fspath(data) if isinstance(data, str | os.PathLike) else ""
        self.name = name
        self.rows = None if isinstance(data, str | os.PathLike) else list(data)
        self.solver = solver if callable(solver) else None
        self.scorers = [scorers] if callable(scorers) or isinstance(scorers, str | dict) else list(scorers)
        self.fields = {**fields, "name": name, "prompt": prompt}
        if path:
            self.fields["dataset"] = {**fields.get("dataset", {}), "path": path}
        if not callable(solver):
            self.fields["solver"] = solver
        if all(_is_storable(scorer) for scorer in self.scorers):
            self.fields["scorers"] = self.scorers


async def run_async(
    what: Task | Sequence[Task] | str | None = None,
    models: Sequence[str | dict[str, Any]] = (),
    *,
    tasks: "Sequence[str | Task] | Task" = (),
    id: str | None = None,
    store: str | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Run:
    """Run tasks on models, or the spec in a file, and return the run. With the `id` of an earlier run, resume it.

    To run a part: `limit=5` (the first samples of each task), `samples=["s1"]`, `tasks=["sums"]`, and, with a spec
    file, `models=["local"]` (names from the spec). `fields` are further fields of a spec. Shows a progress bar in a
    notebook and a line on a terminal, unless `quiet=True`.
    """
    given = _resolve_arguments(what, models, tasks, fields)
    ended = await execute(given, new_run_location(given, store or default_store(), id), observer(quiet))
    run = Run(ended.place)
    if not given.where:
        run.given = given
    return run


def run(
    what: Task | Sequence[Task] | str | None = None,
    models: Sequence[str | dict[str, Any]] = (),
    *,
    tasks: "Sequence[str | Task] | Task" = (),
    id: str | None = None,
    store: str | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Run:
    """`run_async` for synchronous code; it also works inside a running event loop, such as a notebook's."""

    async def work() -> Run:
        return await run_async(what, models, tasks=tasks, id=id, store=store, quiet=quiet, **fields)

    return run_blocking(work)


async def recover_async(
    where: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] = "",
    events: bool = True,
    overwrite: bool = False,
    cleanup: bool = True,
) -> Recovered:
    """`recover` without blocking the event loop."""
    return await recovery.recover_async(
        os.fspath(where), recovery.RecoveryOptions(os.fspath(output), events, overwrite, cleanup)
    )


def recover(
    where: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] = "",
    events: bool = True,
    overwrite: bool = False,
    cleanup: bool = True,
) -> Recovered:
    """Restore a run whose machine or folder is lost. `where`: its URL in a mirror, or a copy of its folder.

    `output` is the store to restore into. `events=False` leaves out the steps of finished keys. `overwrite=True` merges
    into an existing run, which loses nothing. `cleanup=False` keeps a source folder that is no longer needed. Returns
    what was restored and what was lost; open the run with `holdfast.open_run(recovered.folder)`.
    """
    return recovery.recover(os.fspath(where), recovery.RecoveryOptions(os.fspath(output), events, overwrite, cleanup))


def _is_storable(entry: ScorerEntry) -> bool:
    """Whether a spec can store it: it contains no function, and no scorer made from one."""
    if not isinstance(entry, str | dict):
        return False
    try:
        msgspec.json.encode(entry)
    except TypeError:
        return False
    return True


def _resolve_arguments(
    what: Task | Sequence[Task] | str | None,
    models: Sequence[str | dict[str, Any]],
    tasks: Sequence[str | Task] | Task,
    fields: dict[str, Any],
) -> Given:
    if isinstance(models, str | dict):
        raise SpecError("models is a list: models=['mock'], or a list of mappings as in a spec")
    what, names = _split_tasks(what, tasks)
    if isinstance(what, str):
        chosen = [model for model in models if isinstance(model, str)]
        if len(chosen) < len(models):
            raise SpecError(
                "a spec file has its own models: name those that you want, models=['local'], or leave it out"
            )
        return _load_file(what, Selection(tasks=names, models=chosen), fields)
    raw = {**fields, "tasks": [task.fields for task in what], "models": list(models)}
    spec = select(build_spec(raw, "run()"), Selection(tasks=names))
    named = {task.name: task for task in what}
    # a task with several prompts becomes one task per variant in the spec; all of them share one `Task` object
    origins = {task.name: named[base_of(task.name, named)] for task in spec.tasks}
    return Given(
        spec=spec,
        rows={name: task.rows for name, task in origins.items() if task.rows is not None},
        solvers={name: task.solver for name, task in origins.items() if task.solver is not None},
        scorers={name: task.scorers for name, task in origins.items()},
    )


def _split_tasks(
    what: Task | Sequence[Task] | str | None, tasks: Sequence[str | Task] | Task
) -> tuple[str | list[Task], list[str]]:
    """Return what to run and the names of the tasks to select. `Task` objects may also be passed as `tasks=[task]`."""
    entries = [tasks] if isinstance(tasks, str | Task) else list(tasks)
    names = [entry for entry in entries if isinstance(entry, str)]
    objects = [entry for entry in entries if isinstance(entry, Task)]
    if what is None and not objects:
        raise SpecError("nothing to run: pass a task, a list of tasks, or the path of a spec")
    if what is not None and objects:
        raise SpecError("tasks=… takes names where a spec or tasks are given first; pass tasks in one place")
    if what is None:
        return objects, names
    return what if isinstance(what, str) else [what] if isinstance(what, Task) else list(what), names


def _load_file(path: str, selection: Selection, fields: dict[str, Any]) -> Given:
    spec = select(load_spec(path, assignments(fields)), selection)
    find_modules_beside(path, spec)
    return Given(spec, where=path)
