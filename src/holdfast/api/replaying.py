"""One sample's code, run again on its recorded steps. Not a single request is sent, and nothing is written.

Where the code asks for what is not recorded, it stops there: that is where the live run would have gone on.
"""

import asyncio
import contextlib
from typing import Any

import msgspec

from holdfast.api.places import RunPlace
from holdfast.api.preparing import Given, find_scorers, naming, prepare_given
from holdfast.api.resuming import Reading
from holdfast.engine.attempts import Past
from holdfast.engine.failing import failure_of
from holdfast.engine.recollecting import Traces
from holdfast.engine.rehearsing import NotRecordedError, Scene, set_stage
from holdfast.engine.tickets import Tickets
from holdfast.errors import UsageError
from holdfast.records.exchange import Answer, Message
from holdfast.records.facts import Failure
from holdfast.records.keys import parse_key
from holdfast.solve import Recorded


class Replay(msgspec.Struct, frozen=True):
    """How it went: the answer, or why there is none; how many steps were replayed, how many were never asked for."""

    answer: Answer | None
    failure: Failure | None
    replayed: int
    orphaned: int
    asked: list[Message] | None = None
    """What the code asked for that is not recorded."""


def set_scene(place: RunPlace, key: str, given: Given) -> Scene:
    """Find a key's row, its solver and its recorded steps."""
    fold = Reading(place).fold
    with naming(given.where):
        prepared = prepare_given(given, find_scorers(given), fold.story.inputs)
    try:
        wanted = parse_key(key)
    except ValueError as error:
        raise UsageError(f"{key!r} is not a key: task/model/sample/repeat") from error
    cells = [cell for cell in fold.story.cells if (cell.task, cell.model) == (wanted.task, wanted.model)]
    for cell in cells:
        work = prepared.works[cell.task]
        tickets = Tickets(place.folder, cell, prepared.spec, work, lambda ordinal: True)
        for ticket in tickets.all():
            if ticket.key == key:
                attempt, steps = _recorded(place, key)
                return Scene(ticket, work, prepared.spec, attempt, steps, place.folder)
    raise UsageError(f"{place.run_id} has no key {key!r}; list keys with: holdfast export {place.run_id}")


async def play(scene: Scene) -> Replay:
    """Run the solver."""
    missing: list[list[Message]] = []

    async def ask(messages: list[Message], params: dict[str, Any], tools: list[dict[str, Any]]) -> tuple[Answer, int]:
        missing.append(messages)
        raise NotRecordedError("this request is not recorded: a live run would send it now")

    steps, ctx = set_stage(scene, ask)
    answer, failure = None, None
    try:
        answer = await scene.work.solver.solve(scene.ticket.sample, ctx)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the user's code may raise anything
        failure = failure_of("solver", error)
    spent = steps.spent()
    steps.close()
    asked = missing[0] if missing else None
    return Replay(answer, failure, spent.replayed, spent.orphaned, asked)


def _recorded(place: RunPlace, key: str) -> tuple[int, list[Recorded]]:
    """The attempt that counts, or the last one, and the steps that it replays."""
    traces = Traces(place.journal, key)
    past = traces.past(key)
    traces.close()
    attempt = traces.finished(key) or max(past.failures, default=0) or past.attempt()
    earlier = {number: kind for number, kind in past.failures.items() if number < attempt}
    return attempt, Past(past.steps, earlier).recorded(attempt)


def in_debugger(scene: Scene) -> Replay:
    """`play` under pdb, stopped at the first line of the solver."""
    import inspect
    import pdb

    function = inspect.unwrap(scene.work.solver.function)
    code = function.__code__
    debugger = pdb.Pdb()
    debugger.rcLines.extend([f"tbreak {code.co_filename}:{_first_line(function)}", "continue"])
    found: list[Replay] = []

    def run() -> None:
        found.append(asyncio.run(play(scene)))

    with contextlib.suppress(SystemExit):
        debugger.runcall(run)
    if not found:
        raise UsageError("the debugger was left before the sample had ended")
    return found[0]


def _first_line(function: Any) -> int:
    import inspect

    lines = sorted({line for _, _, line in function.__code__.co_lines() if line})
    first = inspect.getsourcelines(function)[1]
    return next((line for line in lines if line > first), first)
