"""Scoring one answer: every scorer of its task has its say, and what one of them does hurts neither answer nor others.

Invariant: each scorer gives at least one score or a failure, and the last one is marked, so that a resume knows which
answers are fully scored.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from holdfast.engine.failing import stalled, undo_cancel
from holdfast.engine.flights import Flight
from holdfast.engine.places import Places
from holdfast.engine.tickets import Ticket
from holdfast.engine.tracebacks import failure_of, redacted
from holdfast.errors import BadRecordError, JournalError
from holdfast.records import Draft, draft
from holdfast.records.exchange import Answer
from holdfast.records.facts import Failure, ScoreGiven, checked
from holdfast.score import Scorer, ScoringFailed, judge


class Judgement(msgspec.Struct, frozen=True):
    """An answer that is to be scored: the one in record `of`."""

    ticket: Ticket
    answer: Answer
    of: int
    evaluation: str
    secrets: Sequence[str]
    """What must not be in a record."""


async def score_all(
    what: Judgement, scorers: Sequence[Scorer], places: Places, flight: Flight, closing: Callable[[], bool]
) -> list[Draft]:
    """The scores, or failures, of all scorers, in their order. `closing`: a cancellation is the engine's own."""
    given: list[ScoreGiven] = []
    if not places.take():
        flight.doing = "waiting to be scored"
        await places.wait()
    flight.doing = "scoring"
    try:
        for scorer in scorers:
            flight.since = asyncio.get_running_loop().time()
            given += await _score(what, scorer, flight, closing)
    finally:
        places.give_back()
    given[-1] = msgspec.structs.replace(given[-1], last=True)
    return [_drafted(each, what.ticket.key) for each in given]


async def _score(what: Judgement, scorer: Scorer, flight: Flight, closing: Callable[[], bool]) -> list[ScoreGiven]:
    """A scorer that hangs, or that cancels the task that it runs in, has failed."""
    try:
        given = await judged(what, scorer)
        if flight.task.cancelling():  # the scorer asked for it and did not wait for it: meet it here
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        if closing():
            raise
        undo_cancel(flight.task)
        return [_failed(what, scorer, stalled(flight) or Failure("cancelled", "the scorer cancelled itself"))]
    return given


async def judged(what: Judgement, scorer: Scorer) -> list[ScoreGiven]:
    """What one scorer says of an answer: its scores, or the failure that it came to."""
    try:
        scores = await judge(scorer, what.ticket.sample, what.answer)
    except ScoringFailed as error:
        return [_failed(what, scorer, redacted(error.failure, what.secrets))]
    except (JournalError, asyncio.CancelledError):
        raise  # the journal has stopped: so does the run
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        return [_failed(what, scorer, failure_of("scorer", error, what.secrets))]
    return [
        ScoreGiven(what.ticket.o, what.of, what.evaluation, name, score.value, score.reason, score.metadata)
        for name, score in scores.items()
    ]


def _failed(what: Judgement, scorer: Scorer, failure: Failure) -> ScoreGiven:
    return ScoreGiven(what.ticket.o, what.of, what.evaluation, scorer.name, failure=failure)


def _drafted(given: ScoreGiven, key: str) -> Draft:
    """A score that cannot be saved is the scorer's failure."""
    try:
        return checked("score", given, key)[0]
    except BadRecordError as error:
        failure = Failure("record", str(error))
        return draft("score", msgspec.structs.replace(given, value=None, reason="", metadata={}, failure=failure), key)
