"""Scoring the answers that a run has, without asking for any: recorded as a new evaluation, or only tried.

Recording is restartable: an evaluation is what its scorers are, so the same scorers again go on with the answers that
they have not scored. It never changes a run's status. Trying writes nothing at all.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.api.places import RunPlace
from holdfast.api.preparing import Given
from holdfast.api.resuming import read_and_prepare, untold
from holdfast.api.working import Observe, Undertaking, close_quietly, engine_for, observed, open_journal
from holdfast.engine.tickets import Tickets
from holdfast.engine.tracebacks import failure_of, secrets_of
from holdfast.errors import UsageError
from holdfast.journal import Lock, Reader
from holdfast.journal.lease import Lease, this_process, write_lease
from holdfast.records import draft
from holdfast.records.exchange import Answer, Sample, Score
from holdfast.records.facts import SampleFinished
from holdfast.score import Scorer, ScoringFailed, judge
from holdfast.state import Index

_EXCERPT = 200
_finished = msgspec.json.Decoder(SampleFinished)


class Scored(msgspec.Struct, frozen=True):
    """What came of scoring a run: how many answers were scored now, and how many are left."""

    place: RunPlace
    evaluation: str
    scored: int
    left: int


class Recorded(msgspec.Struct, frozen=True):
    """An answer of a run, and what it is the answer to."""

    key: str
    sample: Sample
    answer: Answer


class Trial(msgspec.Struct, frozen=True):
    """What the scorers say of one answer; a failure is told in the place of a score."""

    key: str
    beginning: str
    """Of the answer."""
    scores: dict[str, Score]
    failures: dict[str, str]


def with_scorers(given: Given, scorers: Sequence[Scorer]) -> Given:
    """The same, with these scorers for every task."""
    return msgspec.structs.replace(given, scorers={task.name: list(scorers) for task in given.spec.tasks})


async def score(given: Given, place: RunPlace, name: str = "", observe: Observe | None = None) -> Scored:
    """Record what the scorers in `given` say of every answer that they have not scored."""
    prepared, reading = await asyncio.to_thread(read_and_prepare, given, place)
    if reading.fold.story.started is None:
        raise UsageError(f"{place.run_id} has not begun: there is nothing to score")
    if not reading.fold.unscored and prepared.evaluation == reading.fold.story.evaluation:
        return Scored(place, prepared.evaluation, 0, 0)
    lock = await asyncio.to_thread(Lock, place.folder)
    try:
        await asyncio.to_thread(reading.catch_up)
    except BaseException:
        lock.release()
        raise
    writer, logbook = await open_journal(place, reading.uid, lock)
    undertaking = Undertaking(prepared, place, reading.uid, observe, writer, logbook)
    try:
        await asyncio.to_thread(reading.catch_up)  # opening may have recorded losses
        for damage in untold(reading.fold):
            await writer.append(draft("anomaly", damage.anomaly()))
        engine = await engine_for(undertaking, reading.fold, name, answers=False)
        with _leased(undertaking, reading.fold.story.end is not None):
            await observed(undertaking, engine)
    except BaseException:
        await close_quietly(writer)
        raise
    finally:
        logbook.close()
    await writer.close()
    left = len(reading.fold.unscored) - engine.progress.scored
    return Scored(place, prepared.evaluation, engine.progress.scored, left)


@contextlib.contextmanager
def _leased(undertaking: Undertaking, ended: bool) -> Iterator[None]:
    """Tell others that a run which has ended is being scored. Of a run that was cut off the last lease is kept: it is
    all that is known of how it died.
    """
    if not ended:
        yield
        return
    now, spec = time.time(), undertaking.prepared.spec
    lease = Lease(this_process(), undertaking.writer.epoch, 1, now, now, spec.stall_seconds, scoring=True)
    write_lease(undertaking.place.folder, lease)
    try:
        yield
    finally:
        if not undertaking.writer.lost:
            write_lease(undertaking.place.folder, msgspec.structs.replace(lease, released=True))


def recorded_answers(place: RunPlace, given: Given) -> Iterator[Recorded]:
    """Every answer that counts, in plan order, read as it is asked for."""
    prepared, reading = read_and_prepare(given, place)
    index, reader = Index(place.folder), Reader(place.journal)
    try:
        for cell in reading.fold.story.cells:
            tickets = Tickets(place.folder, cell, prepared.spec, prepared.works[cell.task], lambda ordinal: True)
            every = tickets.all()
            for row in index.answers("finished", cell.first, cell.count):
                ticket = next(each for each in every if each.o == row.o)  # both are in plan order
                entry = reader.record_at(row.segment, row.at_byte)
                if entry is not None and entry.line.n == row.n:
                    yield Recorded(ticket.key, ticket.sample, _finished.decode(entry.line.d).answer)
    finally:
        reader.close()
        index.close()


async def try_scorers(place: RunPlace, given: Given, scorers: Sequence[Scorer]) -> list[Trial]:
    """What the scorers say of the answers of a run, unrecorded. Reads files as it goes: for a process of its own."""
    secrets = secrets_of(given.spec)
    found = recorded_answers(place, with_scorers(given, scorers))
    return [await _tried(each, scorers, secrets) for each in found]


async def _tried(answer: Recorded, scorers: Sequence[Scorer], secrets: Sequence[str]) -> Trial:
    scores: dict[str, Score] = {}
    failures: dict[str, str] = {}
    for scorer in scorers:
        try:
            scores.update(await judge(scorer, answer.sample, answer.answer))
        except ScoringFailed as error:
            failures[scorer.name] = error.failure.message
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            failures[scorer.name] = failure_of("scorer", error, secrets).message
    return Trial(answer.key, answer.answer.text[:_EXCERPT], scores, failures)
