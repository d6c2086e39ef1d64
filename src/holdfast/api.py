"""Holdfast from Python: tasks, `run` and `recover`, each also for an event loop.

Async inside; the sync face is one thin wrapper.
"""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import SpecError
from holdfast.records.samples import Row
from holdfast.runs.execution.execute import execute, place_for
from holdfast.runs.execution.preparation import Given
from holdfast.runs.execution.progress import observer
from holdfast.runs.execution.user_modules import find_modules_beside
from holdfast.runs.mirror import recovery
from holdfast.runs.mirror.recovery import Recovered
from holdfast.runs.run import Run, open_run
from holdfast.runs.store.lookup import default_store
from holdfast.score import Scorer
from holdfast.solve import Solve
from holdfast.spec import build_spec, load_spec
from holdfast.spec.selection import Selection, select
from holdfast.spec.source.sweeps import base_of

__all__ = ["Run", "Task", "open_run", "recover", "recover_async", "run", "run_async"]

_LOOK_SECONDS = 0.25
ScorerEntry = str | dict[str, Any] | Scorer | Callable[..., Any]
"""A name, a name with its arguments, what `@scorer` makes, or a plain function."""


class Task:
    """A data set, how it is asked, and how the answers are scored.

    `data` is a list of rows or the path of a file. `solver` and `scorers` are names or functions. Several prompts make
    variants of the task. Other fields are those of a task in a spec: system, repeats, sample_retries, fewshot, …
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
        if all(_can_be_said(scorer) for scorer in self.scorers):
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
    """Run tasks on models, or the spec in a file; returns the run. With the `id` of an earlier run, go on with it.

    A part of it: `limit=5` (the first samples of each task), `samples=["s1"]`, `tasks=["sums"]`, and, of the spec in a
    file, `models=["local"]`: names of its tasks and models. `fields` are those of a spec. Shows a bar in a notebook and
    a line on a terminal, unless `quiet=True`.
    """
    given = _given(what, models, tasks, fields)
    ended = await execute(given, place_for(given, store or default_store(), id), observer(quiet))
    return Run(ended.place)


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
    """`run_async`, from code that is not async; also inside a running event loop, such as a notebook's."""

    async def work() -> Run:
        return await run_async(what, models, tasks=tasks, id=id, store=store, quiet=quiet, **fields)

    return _in_thread(work) if _is_inside_loop() else asyncio.run(work())


async def recover_async(
    where: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] = "",
    events: bool = True,
    overwrite: bool = False,
    cleanup: bool = True,
) -> Recovered:
    """`recover`, beside whatever else the event loop does."""
    return await recovery.recover_async(
        os.fspath(where), recovery.Wanted(os.fspath(output), events, overwrite, cleanup)
    )


def recover(
    where: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] = "",
    events: bool = True,
    overwrite: bool = False,
    cleanup: bool = True,
) -> Recovered:
    """Bring back a run whose machine or folder is gone; `where` is its URL in a mirror, or a copy of its folder.

    `output` is the store to put it in. `events=False` leaves out the steps of finished keys. `overwrite=True` adds to a
    run that is there, which loses nothing. `cleanup=False` keeps a folder that was recovered from. What comes back says
    what was found and what was lost; `holdfast.open_run(found.folder)` looks at the run.
    """
    return recovery.recover(os.fspath(where), recovery.Wanted(os.fspath(output), events, overwrite, cleanup))


def _is_inside_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(work: Callable[[], Coroutine[Any, Any, Run]]) -> Run:
    """A loop of its own beside the one that runs here, which waits.

    An interrupt comes to this thread: the run is stopped and saved before it goes on to the caller.
    """
    working: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []
    result: list[Run | BaseException] = []

    async def told() -> Run:
        working.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await work()

    def call() -> None:
        try:
            result.append(asyncio.run(told()))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            result.append(error)

    context = contextvars.copy_context()  # a notebook's display finds its cell in it
    thread = threading.Thread(target=context.run, args=(call,), name="holdfast-run")
    thread.start()
    try:
        _wait(thread)
    except BaseException:
        for loop, task in working:
            if task is not None and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


def _wait(thread: threading.Thread) -> None:
    """Until it ends. `asyncio.run` makes a cancellation of an interrupt, and nobody would see it while we wait."""
    task = asyncio.current_task()
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        if task is not None and task.cancelling():
            raise asyncio.CancelledError


def _can_be_said(entry: ScorerEntry) -> bool:
    """Whether a spec can hold it: no function is in it, nor a scorer made of one."""
    if not isinstance(entry, str | dict):
        return False
    try:
        msgspec.json.encode(entry)
    except TypeError:
        return False
    return True


def _given(
    what: Task | Sequence[Task] | str | None,
    models: Sequence[str | dict[str, Any]],
    tasks: Sequence[str | Task] | Task,
    fields: dict[str, Any],
) -> Given:
    if isinstance(models, str | dict):
        raise SpecError("models is a list: models=['mock'], or a list of mappings as in a spec")
    what, names = _told_apart(what, tasks)
    if isinstance(what, str):
        return _from_file(what, Selection(tasks=names, models=_names(models)), fields)
    raw = {**fields, "tasks": [task.fields for task in what], "models": list(models)}
    spec = select(build_spec(raw, "run()"), Selection(tasks=names))
    named = {task.name: task for task in what}
    made_of = {task.name: named[base_of(task.name, named)] for task in spec.tasks}
    return Given(
        spec=spec,
        rows={name: task.rows for name, task in made_of.items() if task.rows is not None},
        solvers={name: task.solver for name, task in made_of.items() if task.solver is not None},
        scorers={name: task.scorers for name, task in made_of.items()},
    )


def _told_apart(
    what: Task | Sequence[Task] | str | None, tasks: Sequence[str | Task] | Task
) -> tuple[str | list[Task], list[str]]:
    """What to run, and the names of the tasks wanted. Tasks may be passed as `tasks=[task]` too."""
    every = [tasks] if isinstance(tasks, str | Task) else list(tasks)
    names = [each for each in every if isinstance(each, str)]
    made = [each for each in every if isinstance(each, Task)]
    if what is None and not made:
        raise SpecError("say what to run: a task, a list of tasks, or the path of a spec")
    if what is not None and made:
        raise SpecError("tasks=… takes names where a spec or tasks are given first; pass tasks in one place")
    if what is None:
        return made, names
    return what if isinstance(what, str) else [what] if isinstance(what, Task) else list(what), names


def _names(models: Sequence[str | dict[str, Any]]) -> list[str]:
    names = [model for model in models if isinstance(model, str)]
    if len(names) < len(models):
        raise SpecError("a spec file has its own models: name those that you want, models=['local'], or leave it out")
    return names


def _from_file(path: str, part: Selection, fields: dict[str, Any]) -> Given:
    try:
        sets = [f"{name}={msgspec.json.encode(value).decode()}" for name, value in fields.items()]  # JSON is YAML
    except (TypeError, ValueError) as error:
        raise SpecError(f"a field of the spec cannot be stored as JSON: {error}") from error
    spec = select(load_spec(path, sets), part)
    find_modules_beside(path, spec)
    return Given(spec, where=path)
