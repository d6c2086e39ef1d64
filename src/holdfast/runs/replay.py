"""Replays one sample: runs its solver again on the recorded steps. Sends no request and writes nothing.

At the first request that is not recorded the replay stops; a live run would send that request.
"""

import asyncio
import bdb
import contextlib
import functools
import inspect
import types
from typing import Any

import msgspec

from holdfast.engine import KeyTraces, Tickets, failure_of, is_ours
from holdfast.engine.replay import NotRecordedError, ReplayInput, prepare_replay
from holdfast.errors import UsageError
from holdfast.models import ModelCall
from holdfast.plan import prepare
from holdfast.records import Answer, Failure, Message, TaskInputs, parse_key
from holdfast.runs.execution.preparation import Given, prefix_errors
from holdfast.runs.execution.resume import Reading
from holdfast.runs.shards.copy import readable
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
    place = readable(place)
    fold = Reading(place).fold
    with prefix_errors(given):
        works = prepare(given.spec, given.rows, given.solvers, fold.story.inputs)
    try:
        parts = parse_key(key)
    except ValueError as error:
        raise UsageError(f"{key!r} is not a key: task/model/sample/repeat") from error
    cells = [cell for cell in fold.story.cells if (cell.task, cell.model) == (parts.task, parts.model)]
    for cell in cells if parts.task in works else ():
        work = works[cell.task]
        # Changed code is allowed: people replay to test changes. A function that a script passed cannot be imported
        # from here.
        stored = fold.story.inputs.get(cell.task, TaskInputs())
        digest = work.solver.digest()
        if stored.solver and not digest:
            raise UsageError(
                f"the task {work.task.name!r} was run with a solver that a script or a notebook passed as a function; "
                "put it into a module, name it in a spec (`solver: module:function`), and replay with that spec"
            )
        changed = digest != stored.solver
        tickets = Tickets(place.folder, cell, given.spec, work)
        for ticket in tickets.all():
            if ticket.key == key:
                with contextlib.closing(KeyTraces(place.journal, key)) as traces:
                    last = traces.last_attempt(key)
                return ReplayInput(
                    ticket, work, given.spec, last.attempt, last.steps, changed=changed, run=place.folder
                )
    raise UsageError(f"{place.run_id} has no key {key!r}; list keys with: holdfast export {place.run_id}")


async def play(scene: ReplayInput) -> Replay:
    """Run the solver on the recorded steps."""
    return (await _play(scene))[0]


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


def replay_in_debugger(scene: ReplayInput) -> Replay | None:
    """`play` under pdb, which stops at the first line of the solver and where it raises. None if the user quits."""
    import pdb

    function: Any = scene.work.solver.function  # the user's function is below partials and decorators
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    # The first line of the body: a breakpoint on the `def` line would never be reached.
    start = inspect.getsourcelines(function)[1]
    lines = sorted({line for _, _, line in function.__code__.co_lines() if line})
    first = next((line for line in lines if line > start), start)
    debugger = pdb.Pdb()
    debugger.rcLines.extend([f"tbreak {function.__code__.co_filename}:{first}", "continue"])
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
