"""Scoring the answers that a run has, without asking for any: recorded as a new evaluation, or only tried.

Recording is restartable: an evaluation is what its scorers are, so the same scorers again go on with the answers that
they have not scored. It never changes a run's status. Trying writes nothing at all.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.engine import Engine
from holdfast.engine.anomaly_scan import Lookout
from holdfast.engine.budget import Amount
from holdfast.engine.failures import secrets_of
from holdfast.engine.schedule import Tickets
from holdfast.engine.scoring import Judgement, at_once, judged
from holdfast.errors import UsageError, storage_errors
from holdfast.journal import Reader
from holdfast.journal.ownership.lease import Lease, this_process, write_lease
from holdfast.records.facts import ScoreGiven
from holdfast.runs.execution.preparation import Given, Prepared
from holdfast.runs.execution.resume import Reading, claim, open_claimed, read_and_prepare
from holdfast.runs.execution.session import Observe, Undertaking, close_quietly, engine_for, observed
from holdfast.runs.run import Run
from holdfast.runs.store.damage import require_originals, require_started
from holdfast.runs.store.lookup import RunPlace
from holdfast.score import Scorer
from holdfast.state import Fold, Index, recorded_answer

_EXCERPT = 200


class Scored(msgspec.Struct, frozen=True):
    """What came of scoring a run: how many answers were scored now, and how many are left."""

    place: RunPlace
    evaluation: str
    scored: int = 0
    left: int = 0
    taken: int = 0
    """Scores that were taken over from earlier evaluations, without calling their scorers."""
    requests: int = 0
    """To judges; the evaluated models were asked nothing."""
    cost_usd: float | None = None
    """Of these requests; None if a judge has no price."""
    budget: str = ""
    """The limit of the run at which scoring stopped."""


class Trial(msgspec.Struct, frozen=True):
    """What the scorers say of one answer."""

    key: str
    beginning: str
    """Of the answer."""
    scores: dict[str, ScoreGiven]
    """By the scorer's name; a scorer that broke has its failure there."""


def with_scorers(given: Given, scorers: Sequence[Scorer]) -> Given:
    """The same, with these scorers for every task."""
    return msgspec.structs.replace(given, scorers={task.name: list(scorers) for task in given.spec.tasks})


async def score(given: Given, place: RunPlace, name: str = "", observe: Observe | None = None) -> Scored:
    """Record what the scorers in `given` say of every answer that they have not scored."""
    prepared, reading = await asyncio.to_thread(read_and_prepare, given, place)
    require_started(place, reading.fold)
    await asyncio.to_thread(require_originals, place, reading.fold.story)
    reading.fold.judge_again()
    story, evaluation = reading.fold.story, reading.fold.evaluation
    is_named = not name or (evaluation in story.evaluations and name == story.evaluations[evaluation].name)
    if not reading.fold.unscored and evaluation == story.evaluation and is_named:
        return Scored(place, evaluation)
    async with _at_work(prepared, reading, observe) as undertaking:
        reading.fold.judge_again()
        engine = await engine_for(undertaking, reading.fold, name, answers=False)
        before = engine.budget.spent
        async with _leased(undertaking, reading.fold):
            await observed(undertaking, engine)
    return _scored(undertaking, engine, reading.fold, engine.budget.spent - before)


def _scored(undertaking: Undertaking, engine: Engine, fold: Fold, spent: Amount) -> Scored:
    progress, roles = engine.progress, undertaking.prepared.spec.roles
    return Scored(
        place=undertaking.place,
        evaluation=fold.evaluation,
        scored=progress.scored,
        left=len(fold.unscored) - progress.scored,
        taken=progress.taken,
        requests=round(spent.requests),
        budget=engine.over_budget,
        cost_usd=spent.cost_usd if all(model.price is not None for model in roles.values()) else None,
    )


class Looked(msgspec.Struct, frozen=True):
    """What came of looking for anomalies again: at how many answers, and of how many something new was recorded."""

    place: RunPlace
    answers: int
    changed: int


async def look_again(given: Given, place: RunPlace) -> Looked:
    """Look for anomalies in every answer with the list in force, and record what is new. Asks nothing."""
    prepared, reading = await asyncio.to_thread(read_and_prepare, given, place)
    require_started(place, reading.fold)
    if not prepared.spec.anomalies:
        again = place.command("resume", "--set", "anomalies=true")
        raise UsageError(
            f"{place.run_id} does not look for anomalies; switch it on, which looks at all answers: {again}"
        )
    async with _at_work(prepared, reading) as undertaking:
        lookout = Lookout(place.folder, prepared.spec, prepared.works, reading.fold.story.cells)
        async with _leased(undertaking, reading.fold):
            await lookout.look(place.journal, undertaking.writer, everything=True)
    return Looked(place, lookout.looked, lookout.changed)


@contextlib.asynccontextmanager
async def _at_work(prepared: Prepared, reading: Reading, observe: Observe | None = None) -> AsyncIterator[Undertaking]:
    """A run that is ours to add to, and is let go at the end. The first error is the one to tell."""
    with storage_errors(reading.place.folder):
        writer, logbook = await open_claimed(reading, await claim(reading, prepared.spec.mirror))
    try:
        yield Undertaking(prepared, reading.place, reading.uid, observe, writer, logbook)
    except BaseException:
        await close_quietly(writer)
        raise
    finally:
        logbook.close()
    await writer.close()


@contextlib.asynccontextmanager
async def _leased(undertaking: Undertaking, fold: Fold) -> AsyncIterator[None]:
    """Tell others that a run which has ended is being scored. Of a run that was cut off the last lease is kept: it is
    all that is known of how it died.
    """
    if fold.story.end is None:
        yield
        return
    now, spec, writer = time.time(), undertaking.prepared.spec, undertaking.writer
    counts = (fold.planned, fold.finished.count, fold.failed.count)
    stand = Lease(this_process(), writer.epoch, 1, now, now, spec.stall_seconds, *counts)
    lease = msgspec.structs.replace(stand, scoring=True, end=fold.story.end.kind, lock=writer.lock_inode)

    def write(lease: Lease) -> None:
        if not writer.lost:
            write_lease(undertaking.place.folder, lease)

    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "holdfast-lease")  # a scorer may fill the others
    await loop.run_in_executor(thread, write, lease)
    try:
        yield
    finally:
        await loop.run_in_executor(thread, write, msgspec.structs.replace(lease, released=True))
        thread.shutdown(wait=False)


def recorded_answers(place: RunPlace, given: Given) -> Iterator[Judgement]:
    """Every answer that counts, in plan order, read as it is asked for."""
    prepared, reading = read_and_prepare(given, place)
    secrets = secrets_of(given.spec)
    index, reader = Index(place.folder), Reader(place.journal)
    try:
        for cell in reading.fold.story.cells:
            work = prepared.works[cell.task]
            tickets = Tickets(place.folder, cell, prepared.spec, work, lambda ordinal: True)
            every = tickets.all()
            for row in index.answers("finished", cell.first, cell.count):
                ticket = next(each for each in every if each.o == row.o)  # both are in plan order
                finished = recorded_answer(reader, row)
                if finished is not None:
                    yield Judgement(ticket, finished.answer, row.n, reading.fold.evaluation, secrets, work.task.counts)
    finally:
        reader.close()
        index.close()


async def try_scorers(place: RunPlace, given: Given, scorers: Sequence[Scorer]) -> list[Trial]:
    """What the scorers say of the answers of a run, unrecorded. Reads files as it goes: for a process of its own."""
    for scorer in scorers:
        if scorer.needs_ctx:
            raise UsageError(f"{scorer.name} asks a judge, whose answers must be recorded: score without --watch")
    said: dict[str, dict[str, ScoreGiven]] = {}
    beginnings: dict[str, str] = {}
    for answers in _groups(recorded_answers(place, with_scorers(given, scorers)), scorers):
        for scorer in scorers:
            for together in at_once(answers, scorer):
                for what, scores in zip(together, await judged(together, scorer), strict=True):
                    beginnings[what.ticket.key] = what.answer.text[:_EXCERPT]
                    said.setdefault(what.ticket.key, {}).update({each.scorer: each for each in scores})
                await asyncio.sleep(0)  # whoever wants to stop is heard
    return [Trial(key, beginnings[key], scores) for key, scores in said.items()]


def _groups(answers: Iterator[Judgement], scorers: Sequence[Scorer]) -> Iterable[Sequence[Judgement]]:
    """Each answer alone, or, where a scorer asks for them, all repeats of a sample."""
    if not any(scorer.group for scorer in scorers):
        return ([each] for each in answers)
    groups: dict[str, list[Judgement]] = {}
    for each in answers:
        groups.setdefault(each.ticket.key.rpartition("/")[0], []).append(each)
    return groups.values()


_NO_SCORE = frozenset({"null", "none"})
_TRUE_FALSE = {"true": True, "false": False}


class Edit(msgspec.Struct, frozen=True):
    """What a person wants a score to be. `value` as it was typed."""

    key: str
    scorer: str
    value: str
    reason: str
    author: str
    evaluation: str = ""
    """Its name or id; empty means the newest."""


def edited(run: Run, edit: Edit) -> ScoreGiven:
    """The record that makes it so."""
    for what, text in (("reason", edit.reason), ("author", edit.author)):
        if not text.strip():
            raise UsageError(f"a score that is set by hand needs its {what}: it stays with the score for good")
    planned = run.planned(edit.key)
    found = run.scored(edit.key, edit.evaluation)
    if found is None:
        raise UsageError(f"{edit.key} has no answer in {run.run_id}: there is nothing to score")
    if edit.scorer not in found.values:
        there = ", ".join(sorted(found.values)) or "none"
        raise UsageError(
            f"{edit.key} has no score of {edit.scorer!r} in the evaluation {found.evaluation}; it has: {there}"
        )
    value = _value(edit, found.examples[edit.scorer])
    given = ScoreGiven(planned.o, found.of, found.evaluation, edit.scorer, value, edit.reason)
    return msgspec.structs.replace(given, author=edit.author, at=datetime.now(UTC).isoformat(timespec="milliseconds"))


def _value(edit: Edit, example: Any) -> bool | int | float | str | None:
    """As the scorer gives it. `example`: what it gave, here or elsewhere; None if it never gave anything."""
    text = edit.value.strip()
    if text.lower() in _NO_SCORE:
        return None
    if isinstance(example, str):
        return text
    found = _TRUE_FALSE[text.lower()] if text.lower() in _TRUE_FALSE else _number(text)
    if isinstance(found, float) and not math.isfinite(found):
        raise UsageError(f"{edit.scorer}={edit.value}: a score must be finite; write null for no score")
    if example is None and text:
        return text if found is None else found
    if isinstance(example, bool) and found in (0, 1):
        return bool(found)
    if found is None or isinstance(example, bool) or isinstance(found, bool):
        gives, wanted = ("right or wrong", "true, false") if isinstance(example, bool) else ("numbers", "a number")
        problem = f"{edit.scorer} gives {gives}; write {wanted}, or null for no score"
        raise UsageError(f"{edit.scorer}={edit.value}: {problem}")
    return found


def _number(text: str) -> int | float | None:
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return None
