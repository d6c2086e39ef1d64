"""Scoring an answer, or all answers of a sample: every scorer of their task has its say, and what one of them does
hurts neither answers nor other scorers.

Invariant: each scorer gives each answer at least one score or a failure, and an answer's last one is marked, so that a
resume knows which answers are fully scored.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

import msgspec

from holdfast.engine.earlier_scores import NOTHING_KEPT, Earlier, Kept
from holdfast.engine.failures import failure_in, failure_of, redacted, stalled, undo_cancel
from holdfast.engine.in_flight import Flight
from holdfast.engine.schedule import Ticket
from holdfast.errors import BadRecordError, HoldfastError, JournalError
from holdfast.journal import Entry, Position, Reader
from holdfast.journal.positions import Journal
from holdfast.models.pacing.queue import Places
from holdfast.plan import PlanLine, planned_lines
from holdfast.records import Draft, draft
from holdfast.records.decoder import FactDecoder
from holdfast.records.facts import Cell, Failure, SampleFinished, ScoreGiven, checked
from holdfast.records.samples import Answer
from holdfast.score import Scorer, ScoringFailed, judge, judge_group
from holdfast.solve import Context, Means, Recorded, Scope, Steps
from holdfast.spec import Counts
from holdfast.state import Fold

_SHORTEST_SECONDS = 0.001
"""A scorer that takes less is not worth a number."""
_NOTHING_KEPT: Mapping[int, Mapping[str, Kept]] = {}


class Judgement(msgspec.Struct, frozen=True):
    """An answer that is to be scored: the one in record `of`."""

    ticket: Ticket
    answer: Answer
    of: int
    evaluation: str
    secrets: Sequence[str]
    """What must not be in a record."""
    counts: Counts = Counts()

    @property
    def mark(self) -> str:
        """What keeps it from being scored like any other answer; empty if nothing does."""
        for mark in self.answer.marks:
            if getattr(self.counts, mark) != "as_is":
                return mark
        return ""


class Heard(msgspec.Struct, frozen=True):
    """What judges have said of an answer before, and which attempt at scoring it this is."""

    attempt: int = 1
    steps: tuple[Recorded, ...] = ()


NOTHING = Heard()


class Said(msgspec.Struct, frozen=True):
    """What is to be recorded of answers: scores, or failures, of all scorers; so many were taken over."""

    records: Sequence[Draft] = ()
    taken: int = 0


class Bench(msgspec.Struct, frozen=True):
    """What scorers of a task work with."""

    scorers: Sequence[Scorer]
    evaluation: str
    places: Places
    """How many answers are scored at a time."""
    means: Means
    """The models of the roles, for scorers that ask judges; not the evaluated one."""
    seed: int = 0
    earlier: Earlier | None = None
    """If there may be scores to take over."""

    @property
    def asks(self) -> bool:
        """Whether a scorer asks judges."""
        for scorer in self.scorers:  # noqa: SIM110 - asked for every sample, and any() takes three times as long
            if scorer.needs_ctx:
                return True
        return False

    @contextlib.asynccontextmanager
    async def context(self, first: Judgement, journal: Journal, heard: Heard) -> AsyncIterator[Context]:
        """What scorers ask judges through: each call is a step of the evaluation's own scope."""
        name = f"score/{self.evaluation}/{heard.attempt}"
        steps = Steps(Scope(first.ticket.o, first.ticket.key, name), journal, heard.steps)
        ctx = Context(first.ticket.sample, [], steps, f"{self.seed}/{first.ticket.key}/{name}", self.means)
        try:
            yield ctx
        finally:
            steps.close()
            await ctx.close()


async def score_all(
    answers: Sequence[Judgement], bench: Bench, flight: Flight, closing: Callable[[], bool], ctx: Context | None
) -> Said:
    """The scores, or failures, of all scorers, in their order. `closing`: a cancellation is the engine's own."""
    given: list[list[ScoreGiven]] = []
    kept = await _kept(answers, bench.earlier) if bench.earlier is not None else _NOTHING_KEPT
    if not bench.places.take():
        flight.doing = "waiting to be scored"
        await bench.places.wait()
    flight.doing = "scoring"
    flight.steps = None if ctx is None else ctx.steps
    clock = flight.task.get_loop().time
    try:
        for scorer in bench.scorers:
            said: list[list[ScoreGiven]] = []
            for each_time in at_once(answers, scorer):
                flight.since = clock()
                before = () if scorer.group or not kept else _before(kept, each_time[0], scorer)
                if before:
                    said += [list(before)]
                else:
                    new = await _score(each_time, scorer, flight, closing, ctx)
                    said += _timed(new, clock() - flight.since)
            given = [before + new for before, new in zip(given, said, strict=True)] if given else said
    finally:
        flight.steps = None
        bench.places.give_back()
    taken = sum(bool(score.taken) for each in given for score in each) if kept else 0
    if ctx is not None:  # it is that of all of them, and is told once
        given[0][-1] = msgspec.structs.replace(given[0][-1], spent=ctx.steps.spent())
    for what, each in zip(answers, given, strict=True):
        last = msgspec.structs.replace(each[-1], last=True)
        by_hand = [edit for of_scorer in kept[what.of].values() for edit in of_scorer.edits] if kept else []
        each[-1:] = [*by_hand, last]  # with the last the answer is through: what came behind it could be lost
    records = [_drafted(score, what.ticket.key) for what, each in zip(answers, given, strict=True) for score in each]
    return Said(records, taken)


async def _kept(answers: Sequence[Judgement], earlier: Earlier) -> Mapping[int, Mapping[str, Kept]]:
    """By the number of the answer's record and by scorer: what is taken over. Empty if nothing is."""
    found = await earlier.find(answers[0].ticket.cell.task, [(each.ticket.o, each.of) for each in answers])
    return {each.of: of_each for each, of_each in zip(answers, found, strict=True)} if any(found) else _NOTHING_KEPT


def _before(kept: Mapping[int, Mapping[str, Kept]], what: Judgement, scorer: Scorer) -> Sequence[ScoreGiven]:
    """What the scorer said of an answer, if it need not be asked again."""
    return kept[what.of].get(scorer.name, NOTHING_KEPT).scores


def at_once(answers: Sequence[Judgement], scorer: Scorer) -> Sequence[Sequence[Judgement]]:
    """What a scorer is asked of, time by time: each answer by itself, or all."""
    return [answers] if scorer.group else [[each] for each in answers]


def _timed(said: list[list[ScoreGiven]], seconds: float) -> list[list[ScoreGiven]]:
    """Told once, in the first score; most scorers take next to nothing."""
    if seconds >= _SHORTEST_SECONDS:
        said[0][0] = msgspec.structs.replace(said[0][0], seconds=round(seconds, 4))
    return said


async def _score(
    answers: Sequence[Judgement], scorer: Scorer, flight: Flight, closing: Callable[[], bool], ctx: Context | None
) -> list[list[ScoreGiven]]:
    """A scorer that hangs, or that cancels the task that it runs in, has failed."""
    try:
        given = await judged(answers, scorer, ctx)
        if flight.task.cancelling():  # the scorer asked for it and did not wait for it: meet it here
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        if closing():
            raise
        undo_cancel(flight.task)
        return _failed(answers, scorer, stalled(flight) or Failure("cancelled", "the scorer cancelled itself"))
    return given


async def judged(answers: Sequence[Judgement], scorer: Scorer, ctx: Context | None = None) -> list[list[ScoreGiven]]:
    """For each answer, alone or of a group, what the scorer says of it: scores, or the failure that it came to. An
    answer that is none is not shown to the scorer: how it counts, the spec says.
    """
    marks = [each.mark for each in answers]
    if not any(marks):
        return await _judged(answers, scorer, ctx)
    shown = [each for each, mark in zip(answers, marks, strict=True) if not mark]
    said = iter(await _judged(shown, scorer, ctx) if shown else ())
    return [[_instead(each, scorer)] if mark else next(said) for each, mark in zip(answers, marks, strict=True)]


async def _judged(answers: Sequence[Judgement], scorer: Scorer, ctx: Context | None) -> list[list[ScoreGiven]]:
    first = answers[0]
    try:
        if scorer.group:
            scores = await judge_group(scorer, first.ticket.sample, [each.answer for each in answers], ctx)
        else:
            scores = [await judge(scorer, first.ticket.sample, first.answer, ctx)]
    except ScoringFailed as error:
        return _failed(answers, scorer, redacted(error.failure, first.secrets))
    except (JournalError, asyncio.CancelledError):
        raise  # the journal has stopped: so does the run
    except HoldfastError as error:  # a judge that could not be asked
        return _failed(answers, scorer, failure_in(error, first.secrets).failure)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        return _failed(answers, scorer, failure_of("scorer", error, first.secrets))
    return [
        [
            ScoreGiven(what.ticket.o, what.of, what.evaluation, name, score.value, score.reason, score.metadata)
            for name, score in said.items()
        ]
        for what, said in zip(answers, scores, strict=True)
    ]


def _instead(what: Judgement, scorer: Scorer) -> ScoreGiven:
    """Under the scorer's name: which parts a scorer would have spoken of, only it knows."""
    counts = getattr(what.counts, what.mark)
    why = f"the answer is {what.mark}, and counts.{what.mark} is {counts}"
    given = ScoreGiven(what.ticket.o, what.of, what.evaluation, scorer.name, reason=why)
    if counts == "failed":
        return msgspec.structs.replace(given, reason="", failure=Failure(what.mark, why))
    return msgspec.structs.replace(given, value=False) if counts == "wrong" else given


def _failed(answers: Sequence[Judgement], scorer: Scorer, failure: Failure) -> list[list[ScoreGiven]]:
    return [[ScoreGiven(what.ticket.o, what.of, what.evaluation, scorer.name, failure=failure)] for what in answers]


def _drafted(given: ScoreGiven, key: str) -> Draft:
    """A score that cannot be saved is the scorer's failure."""
    try:
        return checked("score", given, key)[0]
    except BadRecordError as error:
        failure = Failure(error.kind, str(error))
        return draft("score", msgspec.structs.replace(given, value=None, reason="", metadata={}, failure=failure), key)


_finished = FactDecoder(SampleFinished)


class Member(msgspec.Struct, frozen=True):
    """An answer of a group: itself, or where an earlier process recorded it."""

    o: int
    key: str
    n: int
    answer: Answer | None = None
    position: Position | None = None


class _Group(msgspec.Struct):
    """The repeats of one sample that have ended, and the answers among them."""

    ended: int = 0
    members: list[Member] = msgspec.field(default_factory=list)


class Groups:
    """The groups of all tasks that have a scorer for groups."""

    def __init__(self, repeats: Mapping[str, int]) -> None:
        """`repeats`: by task, how many a sample has."""
        self._repeats = repeats
        self._open: dict[str, _Group] = {}
        self._left: dict[str, list[Member]] = {}

    def ended(self, ticket: Ticket, answer: Answer | None = None, n: int = 0) -> list[Member]:
        """A repeat has an answer, or will get none. The members of its group if it was the last; else nothing."""
        name = _sample_of(ticket.key)
        group = self._open.setdefault(name, _Group())
        group.ended += 1
        if answer is not None:
            group.members.append(Member(ticket.o, ticket.key, n, answer))
        if group.ended < self._repeats[ticket.cell.task]:
            return []
        del self._open[name]
        return _in_order(group)

    def take_left(self, ticket: Ticket) -> list[Member]:
        """The group of an answer that an earlier process left unscored; nothing if it is not complete, or taken."""
        return self._left.pop(_sample_of(ticket.key), [])

    def recollect(self, run: str, cells: Sequence[Cell], fold: Fold, reader: Reader) -> None:
        """What earlier processes have ended. Reads the plan, and the journal where a group that was scored already is
        to be scored again: not for the event loop.
        """
        of_each: dict[tuple[str, str], list[Cell]] = {}
        for cell in cells:
            if cell.task in self._repeats:
                of_each.setdefault((cell.task, cell.model), []).append(cell)
        for (task, _), blocks in of_each.items() if fold.finished.count or fold.failed.count else ():
            repeats = self._repeats[task]
            begun = _begun(run, blocks, fold, repeats)
            _find(begun.values(), reader)
            for name, group in begun.items():
                if group.ended == repeats:
                    self._left[name] = _in_order(group)
                else:
                    self._open[name] = group


def _begun(run: str, cells: Sequence[Cell], fold: Fold, repeats: int) -> dict[str, _Group]:
    """The groups of one task and model that are not complete, or not scored. An extension has more repeats of a sample
    in a block of its own.
    """
    groups: dict[str, _Group] = {}
    for cell in cells:
        for name, lines in itertools.groupby(planned_lines(run, cell), lambda line: _sample_of(line.k)):
            group = groups.setdefault(name, _Group())
            for line in lines:
                _add(group, line, fold)
            scored = not any(each.o in fold.unscored for each in group.members)
            if not group.ended or (group.ended == repeats and scored):
                del groups[name]
    return groups


def _add(group: _Group, line: PlanLine, fold: Fold) -> None:
    if line.o in fold.finished:
        group.members.append(Member(line.o, line.k, 0, position=fold.unscored.get(line.o)))
    group.ended += line.o in fold.finished or line.o in fold.failed


def _find(groups: Collection[_Group], reader: Reader) -> None:
    """Where the answers are that were scored before, and will be again with a new one of their group."""
    wanted = {each.o for group in groups for each in group.members if each.position is None}
    found: dict[int, Position] = {}
    for entry in reader.read(live=True) if wanted else ():
        if isinstance(entry, Entry) and entry.line.t == "sample.finished":
            o = _finished.decode(entry.line).o
            if o in wanted:
                found.setdefault(o, Position(entry.line.n, entry.segment, entry.offset))
    for group in groups:
        group.members = [
            msgspec.structs.replace(each, n=position.n, position=position)
            for each in group.members
            if (position := each.position or found.get(each.o)) is not None
        ]


def _in_order(group: _Group) -> list[Member]:
    return sorted(group.members, key=lambda each: int(each.key.rpartition("/")[2]))


def _sample_of(key: str) -> str:
    return key.rpartition("/")[0]
