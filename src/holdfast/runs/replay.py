"""Replays one sample: runs its solver again on the recorded steps. Sends no request and writes nothing.

At the first request that is not recorded the replay stops; a live run would send that request.
"""

import asyncio
import bdb
import contextlib
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.engine.failures import failure_of, is_ours
from holdfast.engine.history import KeyTraces, LastAttempt
from holdfast.engine.replay import NotRecordedError, ReplayInput, prepare_replay
from holdfast.engine.schedule import Tickets
from holdfast.errors import UsageError
from holdfast.models import ModelCall
from holdfast.plan import PreparedTask, prepare
from holdfast.records import Answer, Failure, Message, TaskInputs, parse_key
from holdfast.runs.execution.preparation import Given, prefix_errors
from holdfast.runs.execution.resume import Reading
from holdfast.runs.store.lookup import RunLocation


class Replay(msgspec.Struct, frozen=True):
    """The answer, or why there is none; how many steps were replayed, and how many the code did not request."""

    answer: Answer | None
    failure: Failure | None
    replayed: int
    orphaned: int
    asked: list[Message] | None = None
    """The first request of the code that is not recorded."""


def open_replay(place: RunLocation, key: str, given: Given) -> ReplayInput:
    """Find a key's row, solver and recorded steps. Needs no API keys and no scorers."""
    fold = Reading(place).fold
    with prefix_errors(given.where):
        works = prepare(given.spec, given.rows, given.solvers, fold.story.inputs)
    try:
        parts = parse_key(key)
    except ValueError as error:
        raise UsageError(f"{key!r} is not a key: task/model/sample/repeat") from error
    cells = [cell for cell in fold.story.cells if (cell.task, cell.model) == (parts.task, parts.model)]
    for cell in cells if parts.task in works else ():
        work = works[cell.task]
        changed = _is_changed(work, fold.story.inputs.get(cell.task, TaskInputs()))
        tickets = Tickets(place.folder, cell, given.spec, work, lambda ordinal: True)
        for ticket in tickets.all():
            if ticket.key == key:
                last = _read_last_attempt(place, key)
                return ReplayInput(
                    ticket, work, given.spec, last.attempt, last.steps, changed=changed, run=place.folder
                )
    raise UsageError(f"{place.run_id} has no key {key!r}; list keys with: holdfast export {place.run_id}")


def _is_changed(work: PreparedTask, stored: TaskInputs) -> bool:
    """Whether the solver's code differs from the recorded one. That is allowed, since people replay to test changes.
    UsageError if the solver was passed as a function by a script: it cannot be imported from here.
    """
    digest = work.solver.digest()
    if stored.solver and not digest:
        raise UsageError(
            f"the task {work.task.name!r} was run with a solver that a script or a notebook passed as a function; put "
            "it into a module, name it in a spec (`solver: module:function`), and replay with that spec"
        )
    return digest != stored.solver


async def play(scene: ReplayInput) -> Replay:
    """Run the solver on the recorded steps."""
    replay, _ = await _play(scene)
    return replay


async def _play(scene: ReplayInput) -> tuple[Replay, BaseException | None]:
    """The result, and the exception of the user's code, unless it was caused by a missing step."""
    missing: list[list[Message]] = []

    async def send(call: ModelCall) -> Answer:
        missing.append(call.messages)
        raise NotRecordedError("this request is not recorded: a live run would send it now")

    stage = prepare_replay(scene, send)
    answer, raised = None, None
    try:
        answer = await scene.work.solver.solve(scene.ticket.sample, stage.ctx)
    except (KeyboardInterrupt, bdb.BdbQuit):
        raise  # from the user at the keyboard, not from the code
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
        raised = error
    finally:
        spent = stage.steps.spent()
        await stage.close()
    failure = failure_of("solver", raised) if raised is not None else None
    asked = missing[0] if missing else None
    return Replay(answer, failure, spent.replayed, spent.orphaned, asked), None if missing else raised


def _read_last_attempt(place: RunLocation, key: str) -> LastAttempt:
    traces = KeyTraces(place.journal, key)
    try:
        return traces.last_attempt(key)
    finally:
        traces.close()


def replay_in_debugger(scene: ReplayInput) -> Replay | None:
    """`play` under pdb, which stops at the first line of the solver and where it raises. None if the user quits."""
    import pdb

    function = _unwrap(scene.work.solver.function)
    debugger = pdb.Pdb()
    debugger.rcLines.extend([f"tbreak {function.__code__.co_filename}:{_first_line(function)}", "continue"])
    found: list[tuple[Replay, BaseException | None]] = []
    with contextlib.suppress(bdb.BdbQuit):
        debugger.runcall(lambda: found.append(asyncio.run(_play(scene))))
    if not found:
        return None
    replay, raised = found[0]
    if raised is not None and raised.__traceback__ is not None:
        pdb.post_mortem(_trim_traceback(raised.__traceback__))
    return replay


def _trim_traceback(trace: types.TracebackType) -> types.TracebackType:
    """A traceback that ends in the user's code: without the frames of Holdfast functions that it called."""
    frames: list[types.TracebackType] = []
    current: types.TracebackType | None = trace
    while current is not None:
        frames.append(current)
        current = current.tb_next
    while len(frames) > 1 and is_ours(frames[-1].tb_frame.f_code.co_filename):
        frames.pop()
    trimmed: types.TracebackType | None = None
    for each in reversed(frames):
        trimmed = types.TracebackType(trimmed, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trimmed or trace


def _unwrap(function: Callable[..., Any]) -> Any:
    """The user's function below partials and decorators."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function)


def _first_line(function: Any) -> int:
    """The first line of the body: a breakpoint on the `def` line would never be reached."""
    lines = sorted({line for _, _, line in function.__code__.co_lines() if line})
    first = inspect.getsourcelines(function)[1]
    return next((line for line in lines if line > first), first)
