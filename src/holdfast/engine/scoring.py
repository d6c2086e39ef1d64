"""Scoring: runs all scorers of a task on an answer, or on all answers of a sample. A scorer that fails affects neither
the answer nor other scorers.

Invariant: each scorer gives each answer at least one score or a failure, and the last record of an answer is marked, so
that a resume knows which answers are fully scored. A crash leaves an answer without that mark; it is scored again, with
the recorded replies of judges.

Scores of earlier evaluations are copied into the current one (`EarlierScores`). A scorer with the same name, arguments,
code and judges as in an earlier evaluation is not called again: its scores are copied, and with them the scores that
people set by hand. Failed scores are computed again, and so are those of group scorers: their group may have new
answers. The index has the positions of the records, the journal their content. One thread looks them up answer by
answer, so that memory does not grow with the run. Nothing is written here.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from holdfast.engine.failures import failure_in, failure_of, pop_stall, redacted, undo_cancel
from holdfast.engine.in_flight import InFlightSample
from holdfast.engine.schedule import Ticket
from holdfast.errors import BadRecordError, HoldfastError, JournalError
from holdfast.journal import Entry, Journal, Position, Reader, journal_folder
from holdfast.models import Slots
from holdfast.plan import PlanLine, planned_lines
from holdfast.records import (
    Answer,
    Cell,
    Draft,
    FactDecoder,
    Failure,
    SampleFinished,
    Score,
    ScoreGiven,
    checked,
    comparable,
    draft,
)
from holdfast.score import Scorer, ScoringFailed, score_answer, score_at_once, score_group, wrong_value
from holdfast.solve import AttemptResources, Context, RecordedStep, Scope, Steps
from holdfast.spec import Counts
from holdfast.state import Fold, Index, Story, recorded_edits, recorded_scores


class ScoreSources(msgspec.Struct, frozen=True):
    """Which earlier evaluations have the scorers of one task."""

    unchanged: dict[str, list[str]]
    """By scorer: the evaluations with the same scorer, newest first."""
    named: dict[str, list[str]]
    """By evaluation: all its scorers for the task."""


class KeptScores(msgspec.Struct, frozen=True):
    """What is copied for one scorer and one answer. Without `scores` the scorer must run."""

    scores: tuple[ScoreGiven, ...] = ()
    edits: tuple[ScoreGiven, ...] = ()


NO_KEPT_SCORES = KeptScores()


def sources_of(story: Story, evaluation: str, identities: Iterable[Mapping[str, Any]]) -> dict[str, ScoreSources]:
    """Return the sources by task, for an evaluation of the scorers `identities`; empty if all scorers are new."""
    newest = [story.evaluation, *reversed(story.evaluations)]
    earlier = [story.evaluations[each] for each in dict.fromkeys(newest) if each and each != evaluation]
    known = [(each.evaluation, {comparable(scorer) for scorer in each.scorers}) for each in earlier]
    found: dict[str, ScoreSources] = {}
    for scorer in identities:
        identity = comparable(scorer)
        where = [name for name, every in known if identity in every]
        if where:
            task = str(scorer["task"])
            named = {
                each.evaluation: [str(one["name"]) for one in each.scorers if one.get("task") == task]
                for each in earlier
            }
            found.setdefault(task, ScoreSources({}, named)).unchanged[str(scorer["name"])] = where
    return found


class EarlierScores:
    """Looks up scores to copy. Call `open` before `find`."""

    def __init__(self, run: str, evaluation: str, sources: Mapping[str, ScoreSources]) -> None:
        self._run = run
        self._evaluation = evaluation
        self._sources = sources
        self._thread = ThreadPoolExecutor(1, "holdfast-earlier")
        self._index: Index | None = None
        self._reader = Reader(journal_folder(run))
        self._last_n = 0

    async def open(self) -> None:
        """Bring the index up to date, if there is anything to look for."""
        if self._sources:
            self._index = await asyncio.get_running_loop().run_in_executor(self._thread, Index, self._run)
            self._last_n = self._index.last_n

    async def find(self, task: str, answers: Sequence[tuple[int, int]]) -> list[dict[str, KeptScores]]:
        """Return, for each answer (ordinal, record number), what is copied for each unchanged scorer."""
        sources = self._sources.get(task)
        if sources is None or all(
            of > self._last_n for _, of in answers
        ):  # answers of this process have no earlier scores
            return [{} for _ in answers]
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._find, sources, answers)

    async def close(self) -> None:
        if self._index is not None:
            loop = asyncio.get_running_loop()
            for each in (self._index, self._reader):
                await loop.run_in_executor(self._thread, each.close)
        self._thread.shutdown(wait=False)

    def _find(self, sources: ScoreSources, answers: Sequence[tuple[int, int]]) -> list[dict[str, KeptScores]]:
        return [
            {name: self._kept(name, where, sources, answer) for name, where in sources.unchanged.items()}
            for answer in answers
        ]

    def _kept(self, scorer: str, where: Sequence[str], sources: ScoreSources, answer: tuple[int, int]) -> KeptScores:
        """Return the scores of the newest evaluation that has them all, and the newest ones set by hand."""
        assert self._index is not None
        edits: tuple[ScoreGiven, ...] = ()
        for evaluation in where:
            names = sources.named[evaluation]
            if not edits:
                set_by_hand = recorded_edits(self._reader, self._index, answer, evaluation)
                edits = tuple(self._copy(each, evaluation) for each in _of(scorer, names, set_by_hand))
            scores = recorded_scores(self._reader, self._index, answer, evaluation)
            mine = _of(scorer, names, scores) if any(score.last for score in scores) else []
            if mine and not any(score.failure for score in mine):
                return KeptScores(tuple(self._copy(each, evaluation) for each in mine), edits)
        return KeptScores(edits=edits)

    def _copy(self, score: ScoreGiven, taken: str) -> ScoreGiven:
        """Return the same score for the current evaluation."""
        made = ScoreGiven(score.o, score.of, self._evaluation, score.scorer, score.value, score.reason, score.metadata)
        own = {"author": score.author, "at": score.at, "unreadable": score.unreadable}
        return msgspec.structs.replace(made, taken=taken, **own)


def owner_of(score: str, scorers: Iterable[str]) -> str:
    """Return the scorer that gave a score called `name` or `name.part`; empty if none did."""
    return max((each for each in scorers if score == each or score.startswith(f"{each}.")), key=len, default="")


def _of(scorer: str, scorers: Sequence[str], scores: Iterable[ScoreGiven]) -> list[ScoreGiven]:
    return [score for score in scores if owner_of(score.scorer, scorers) == scorer]


_SHORTEST_SECONDS = 0.001
"""Shorter durations of scorers are not recorded."""
_NOTHING_KEPT: Mapping[int, Mapping[str, KeptScores]] = {}


class AnswerToScore(msgspec.Struct, frozen=True):
    """An answer that is to be scored. `of` is the number of its record."""

    ticket: Ticket
    answer: Answer
    of: int
    evaluation: str
    secrets: Sequence[str]
    """Removed from recorded failures."""
    counts: Counts = Counts()

    @property
    def mark(self) -> str:
        """The mark (such as `refused`) for which `counts` says how the answer counts; empty if it is scored as is."""
        for mark in self.answer.marks:
            if getattr(self.counts, mark) != "as_is":
                return mark
        return ""


class JudgeHistory(msgspec.Struct, frozen=True):
    """Recorded replies of judges about an answer, and the number of this attempt at scoring it."""

    attempt: int = 1
    steps: tuple[RecordedStep, ...] = ()


NO_JUDGE_HISTORY = JudgeHistory()


class ScoreRecords(msgspec.Struct, frozen=True):
    """The scores and failures of all scorers, ready to be recorded. `taken`: how many are copies of earlier scores."""

    records: Sequence[Draft] = ()
    taken: int = 0
    values: Sequence[Mapping[str, Any]] = ()
    """For each answer its values by scorer, a Failure if it failed; without those that people set by hand."""


class ScoringSetup(msgspec.Struct, frozen=True):
    """The scorers of a task and what they need."""

    scorers: Sequence[Scorer]
    evaluation: str
    places: Slots
    """Limits how many answers are scored at a time."""
    resources: Mapping[str, AttemptResources]
    """By evaluated model: the models of the roles, for scorers that use judges; not the evaluated model itself."""
    seed: int = 0
    earlier: EarlierScores | None = None
    """Only if there may be scores to copy."""
    quick: bool = False
    """All scorers are quick (`is_quick`): they run before the answer is saved, and answer and scores are one group of
    records.
    """

    @property
    def needs_judges(self) -> bool:
        """Whether a scorer calls models."""
        for scorer in self.scorers:  # noqa: SIM110 - runs for every sample, and any() takes three times as long
            if scorer.needs_ctx:
                return True
        return False

    @contextlib.asynccontextmanager
    async def context(self, first: AnswerToScore, journal: Journal, history: JudgeHistory) -> AsyncIterator[Context]:
        """Open the context through which scorers call judges: each call is a step in the evaluation's own scope."""
        name = f"score/{self.evaluation}/{history.attempt}"
        resources = self.resources[first.ticket.cell.model]
        steps = Steps(Scope(first.ticket.o, first.ticket.key, name), journal, history.steps)
        ctx = Context(first.ticket.sample, [], steps, f"{self.seed}/{first.ticket.key}/{name}", resources)
        try:
            yield ctx
        finally:
            steps.close()
            await ctx.close()


def score_quickly(ticket: Ticket, setup: ScoringSetup, answer: Answer, secrets: Sequence[str]) -> ScoreRecords | None:
    """Run quick scorers at once. Return the records of their scores for an answer that is not saved yet (`of` is 0), or
    None if one of them may take long on this answer.
    """
    given: list[ScoreGiven] = []
    values: dict[str, Any] = {}
    for scorer in setup.scorers:
        began = time.monotonic()
        try:
            scores = score_at_once(scorer, ticket.sample, answer)
        except ScoringFailed as error:
            failure = redacted(error.failure, secrets)
            given.append(ScoreGiven(ticket.o, 0, setup.evaluation, scorer.name, failure=failure))
            values[scorer.name] = failure
            continue
        except HoldfastError:
            scores = None  # `score_all` runs it again, and turns the error into a failure of the scorer
        if scores is None:
            return None
        seconds = time.monotonic() - began
        for score in _as_given(ticket.o, 0, setup.evaluation, scores):
            if seconds >= _SHORTEST_SECONDS:
                score, seconds = msgspec.structs.replace(score, seconds=round(seconds, 4)), 0.0  # with the first
            given.append(score)
            values[score.scorer] = score.value
    given[-1] = msgspec.structs.replace(given[-1], last=True)
    return ScoreRecords([_draft(each, ticket.key, trusted=True) for each in given], values=(values,))


async def score_all(
    answers: Sequence[AnswerToScore],
    setup: ScoringSetup,
    flight: InFlightSample,
    closing: Callable[[], bool],
    ctx: Context | None,
) -> ScoreRecords:
    """Run all scorers in their order. `closing` returns True once a cancellation comes from the engine."""
    given: list[list[ScoreGiven]] = []
    kept = await _find_kept(answers, setup.earlier) if setup.earlier is not None else _NOTHING_KEPT
    if not setup.places.take():
        flight.doing = "waiting to be scored"
        await setup.places.wait()
    flight.doing = "scoring"
    flight.steps = None if ctx is None else ctx.steps
    clock = flight.task.get_loop().time
    try:
        for scorer in setup.scorers:
            scores: list[list[ScoreGiven]] = []
            for each_time in batches_for(answers, scorer):
                flight.since = clock()
                before = () if scorer.group or not kept else _copied(kept, each_time[0], scorer)
                if before:
                    scores += [list(before)]
                else:
                    new = await _score(each_time, scorer, flight, closing, ctx)
                    scores += _with_duration(new, clock() - flight.since)
            given = [before + new for before, new in zip(given, scores, strict=True)] if given else scores
    finally:
        flight.steps = None
        setup.places.give_back()
    taken = sum(bool(score.taken) for each in given for score in each) if kept else 0
    if ctx is not None:  # shared by all scorers and answers, so recorded once
        given[0][-1] = msgspec.structs.replace(given[0][-1], spent=ctx.steps.spent())
    for what, each in zip(answers, given, strict=True):
        last = msgspec.structs.replace(each[-1], last=True)
        by_hand = [edit for of_scorer in kept[what.of].values() for edit in of_scorer.edits] if kept else []
        each[-1:] = [*by_hand, last]  # before the last one: after it the answer counts as scored
    records = [_draft(score, what.ticket.key) for what, each in zip(answers, given, strict=True) for score in each]
    values = [{score.scorer: score.failure or score.value for score in each if not score.author} for each in given]
    return ScoreRecords(records, taken, values)


async def _find_kept(
    answers: Sequence[AnswerToScore], earlier: EarlierScores
) -> Mapping[int, Mapping[str, KeptScores]]:
    """Return the scores to copy, by the answer's record and by scorer; empty if there are none."""
    found = await earlier.find(answers[0].ticket.cell.task, [(each.ticket.o, each.of) for each in answers])
    return {each.of: of_each for each, of_each in zip(answers, found, strict=True)} if any(found) else _NOTHING_KEPT


def _copied(kept: Mapping[int, Mapping[str, KeptScores]], what: AnswerToScore, scorer: Scorer) -> Sequence[ScoreGiven]:
    """Return the earlier scores of an unchanged scorer; empty if it must run."""
    return kept[what.of].get(scorer.name, NO_KEPT_SCORES).scores


def batches_for(answers: Sequence[AnswerToScore], scorer: Scorer) -> Sequence[Sequence[AnswerToScore]]:
    """Split the answers into the scorer's calls: one for each answer, or one for the whole group."""
    return [answers] if scorer.group else [[each] for each in answers]


def _with_duration(scores: list[list[ScoreGiven]], seconds: float) -> list[list[ScoreGiven]]:
    """Record the duration of one call in its first score, unless it is negligible."""
    if seconds >= _SHORTEST_SECONDS:
        scores[0][0] = msgspec.structs.replace(scores[0][0], seconds=round(seconds, 4))
    return scores


async def _score(
    answers: Sequence[AnswerToScore],
    scorer: Scorer,
    flight: InFlightSample,
    closing: Callable[[], bool],
    ctx: Context | None,
) -> list[list[ScoreGiven]]:
    """Run one scorer. One that hangs, or that cancels its own task, has failed."""
    try:
        given = await apply_scorer(answers, scorer, ctx)
        if flight.task.cancelling():  # the scorer cancelled its own task and returned: take it here
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        if closing():
            raise
        undo_cancel(flight.task)
        return _failed(answers, scorer, pop_stall(flight) or Failure("cancelled", "the scorer cancelled itself"))
    return given


async def apply_scorer(
    answers: Sequence[AnswerToScore], scorer: Scorer, ctx: Context | None = None
) -> list[list[ScoreGiven]]:
    """Return one list per answer: its scores, or the failure of the scorer. The scorer does not see answers with a mark
    (such as `refused`) whose value the spec sets in `counts`.
    """
    marks = [each.mark for each in answers]
    if not any(marks):
        return await _call_scorer(answers, scorer, ctx)
    shown = [each for each, mark in zip(answers, marks, strict=True) if not mark]
    scores = iter(await _call_scorer(shown, scorer, ctx) if shown else ())
    return [
        [_score_of_marked(each, scorer)] if mark else next(scores) for each, mark in zip(answers, marks, strict=True)
    ]


async def _call_scorer(answers: Sequence[AnswerToScore], scorer: Scorer, ctx: Context | None) -> list[list[ScoreGiven]]:
    first = answers[0]
    try:
        if scorer.group:
            scores = await score_group(scorer, first.ticket.sample, [each.answer for each in answers], ctx)
        else:
            scores = [await score_answer(scorer, first.ticket.sample, first.answer, ctx)]
    except ScoringFailed as error:
        return _failed(answers, scorer, redacted(error.failure, first.secrets))
    except (JournalError, asyncio.CancelledError):
        raise  # these stop the run, not the scorer
    except HoldfastError as error:  # such as a judge that failed
        return _failed(answers, scorer, failure_in(error, first.secrets).failure)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        return _failed(answers, scorer, failure_of("scorer", error, first.secrets))
    return [
        _as_given(what.ticket.o, what.of, what.evaluation, named) for what, named in zip(answers, scores, strict=True)
    ]


def _as_given(o: int, of: int, evaluation: str, scores: Mapping[str, Score]) -> list[ScoreGiven]:
    """Return the scores by name as the data of records."""
    return [
        ScoreGiven(o, of, evaluation, name, each.value, each.reason, metadata=each.metadata, unreadable=each.unreadable)
        for name, each in scores.items()
    ]


def _score_of_marked(what: AnswerToScore, scorer: Scorer) -> ScoreGiven:
    """Return the score that `counts` gives a marked answer. One score, named like the scorer: its parts are unknown."""
    counts = getattr(what.counts, what.mark)
    why = f"the answer is {what.mark}, and counts.{what.mark} is {counts}"
    given = ScoreGiven(what.ticket.o, what.of, what.evaluation, scorer.name, reason=why)
    if counts == "failed":
        return msgspec.structs.replace(given, reason="", failure=Failure(what.mark, why))
    return msgspec.structs.replace(given, value=wrong_value(scorer)) if counts == "wrong" else given


def _failed(answers: Sequence[AnswerToScore], scorer: Scorer, failure: Failure) -> list[list[ScoreGiven]]:
    return [[ScoreGiven(what.ticket.o, what.of, what.evaluation, scorer.name, failure=failure)] for what in answers]


def _draft(given: ScoreGiven, key: str, *, trusted: bool = False) -> Draft:
    """Turn a score that cannot be saved into a failure of the scorer. `trusted`: a built-in scorer gave it, so it need
    not be read back.
    """
    try:
        return draft("score", given, key) if trusted else checked("score", given, key)[0]
    except BadRecordError as error:
        failure = Failure(error.kind, str(error))
        return draft("score", msgspec.structs.replace(given, value=None, reason="", metadata={}, failure=failure), key)


_finished = FactDecoder(SampleFinished)


class Member(msgspec.Struct, frozen=True):
    """An answer of a group: the answer itself, or where an earlier process recorded it."""

    o: int
    key: str
    n: int
    answer: Answer | None = None
    position: Position | None = None


class _Group(msgspec.Struct):
    """The repeats of one sample that have ended, and the answers among them."""

    ended: int = 0
    members: list[Member] = msgspec.field(default_factory=list)


class RepeatGroups:
    """Collects the repeats of each sample, for tasks with a scorer that needs all of them at once."""

    def __init__(self, repeats: Mapping[str, int]) -> None:
        """`repeats`: by task, how many a sample has."""
        self._repeats = repeats
        self._open: dict[str, _Group] = {}
        self._left: dict[str, list[Member]] = {}

    def ended(self, ticket: Ticket, answer: Answer | None = None, n: int = 0) -> list[Member]:
        """Note that a repeat ended, with or without an answer. Return the group if it was the last, else nothing."""
        name = _sample_of(ticket.key)
        group = self._open.setdefault(name, _Group())
        group.ended += 1
        if answer is not None:
            group.members.append(Member(ticket.o, ticket.key, n, answer))
        if group.ended < self._repeats[ticket.cell.task]:
            return []
        del self._open[name]
        return _in_order(group)

    def pop_unscored_group(self, ticket: Ticket) -> list[Member]:
        """Return the group of an answer that an earlier process left unscored; empty if incomplete or already taken."""
        return self._left.pop(_sample_of(ticket.key), [])

    def restore_groups(self, run: str, cells: Sequence[Cell], fold: Fold, reader: Reader) -> None:
        """Restore the groups from earlier processes. Blocks: it reads the plan, and the journal for groups that were
        scored and get a new member.
        """
        by_cell: dict[tuple[str, str], list[Cell]] = {}
        for cell in cells:
            if cell.task in self._repeats:
                by_cell.setdefault((cell.task, cell.model), []).append(cell)
        for (task, _), blocks in by_cell.items() if fold.finished.count or fold.failed.count else ():
            repeats = self._repeats[task]
            begun = _begun(run, blocks, fold, repeats)
            _find(begun.values(), reader)
            for name, group in begun.items():
                if group.ended == repeats:
                    self._left[name] = _in_order(group)
                else:
                    self._open[name] = group


def _begun(run: str, cells: Sequence[Cell], fold: Fold, repeats: int) -> dict[str, _Group]:
    """Return the groups of one task and model that are incomplete or unscored. The repeats of one sample may be in
    several cells: `extend` adds a cell.
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
    """Fill in the positions of answers that were scored before and will be scored again with a new member."""
    missing = {each.o for group in groups for each in group.members if each.position is None}
    found: dict[int, Position] = {}
    for entry in reader.read(live=True) if missing else ():
        if isinstance(entry, Entry) and entry.line.t == "sample.finished":
            o = _finished.decode(entry.line).o
            if o in missing:
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
