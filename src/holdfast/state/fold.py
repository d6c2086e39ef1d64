"""The fold that a resume needs: which keys are finished, which steps unfinished keys have, which answers lack scores.

Owns `Fold` and its compact containers. A finished key costs one bit; only unfinished and unscored keys cost more.
Everything is derived: after a crash the next start folds the journal again and gets the same state.
"""

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import msgspec

from holdfast.errors import FormatError
from holdfast.journal import Damage, Entry, Position
from holdfast.records import (
    MARKS,
    ORDINALS_MAX,
    AnomaliesRechecked,
    Cell,
    Count,
    FactDecoder,
    Failure,
    Ordinal,
    SampleFailed,
    SampleFinished,
    ScoreGiven,
    ScoringStarted,
    Spent,
    cell_of,
    comparable_by_task,
    decode,
)
from holdfast.score import ANOMALIES_VERSION, CellScores, repeats_in
from holdfast.state.dispatch import RecordHandlers
from holdfast.state.story import StepGist, Story

_SPARE = 1024
_PAGE = 1024
LARGE_RECORD_BYTES = 1024 * 1024
"""Longer records are counted in `Fold.large`."""


def _whole_bytes(first: int, last: int) -> tuple[range, Iterable[int]]:
    """Split a range of bits into whole bytes, tested at once, and the single bits at both edges."""
    inner = range(-(-first // 8), max(last // 8, -(-first // 8)))
    return inner, itertools.chain(range(first, min(inner.start * 8, last)), range(max(inner.stop * 8, first), last))


class Bits:
    """A set of ordinals, one bit each."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.count = 0

    def __contains__(self, number: int) -> bool:
        index = number >> 3
        return index < len(self._bytes) and bool(self._bytes[index] & 1 << (number & 7))

    def has_any(self, first: int, count: int) -> bool:
        """Whether one of the `count` ordinals from `first` on is in the set."""
        inner, edges = _whole_bytes(first, first + count)
        return any(self._bytes[inner.start : inner.stop]) or any(number in self for number in edges)

    def has_all(self, first: int, count: int) -> bool:
        inner, edges = _whole_bytes(first, first + count)
        full = self._bytes[inner.start : inner.stop].count(0xFF)
        return full == len(inner) and all(number in self for number in edges)

    def count_in(self, first: int, count: int) -> int:
        """How many of the `count` ordinals from `first` on are in the set."""
        inner, edges = _whole_bytes(first, first + count)
        whole = int.from_bytes(self._bytes[inner.start : inner.stop], "little").bit_count()
        return whole + sum(number in self for number in edges)

    def encoded(self) -> bytes:
        """One bit for each ordinal, the lowest first."""
        return bytes(self._bytes).rstrip(b"\0")

    @classmethod
    def decoded(cls, data: bytes) -> "Bits":
        made = cls()
        made._bytes = bytearray(data)
        made.count = int.from_bytes(data, "little").bit_count()
        return made

    def add(self, number: int) -> bool:
        """True if the number is new."""
        if not 0 <= number < ORDINALS_MAX:  # a forged ordinal must not allocate gigabytes
            raise FormatError(f"a record names the key number {number}, which no plan has: Holdfast did not write it")
        index, bit = number >> 3, 1 << (number & 7)
        if index >= len(self._bytes):
            self._bytes.extend(bytes(index + 1 - len(self._bytes) + _SPARE))
        if self._bytes[index] & bit:
            return False
        self._bytes[index] |= bit
        self.count += 1
        return True

    def first_in(self, first: int, count: int) -> int:
        """The lowest of the `count` ordinals from `first` on that is in the set; -1 if none is."""
        part = int.from_bytes(self._bytes[first >> 3 : (first + count + 7) >> 3], "little") >> (first & 7)
        lowest = (part & -part).bit_length() - 1
        return first + lowest if 0 <= lowest < count else -1

    def merge(self, first: int, data: bytes) -> None:
        """Add the ordinals that are set in `data`, as `encoded` returns them. Its first bit is `first`, a multiple of
        eight.
        """
        if not data or not 0 <= first <= ORDINALS_MAX - 8 * len(data):
            return
        start, end = first >> 3, (first >> 3) + len(data)
        if end > len(self._bytes):
            self._bytes.extend(bytes(end - len(self._bytes)))
        before = int.from_bytes(self._bytes[start:end], "little")
        after = before | int.from_bytes(data, "little")
        self._bytes[start:end] = after.to_bytes(len(data), "little")
        self.count += after.bit_count() - before.bit_count()

    def discard(self, number: int) -> None:
        if number in self:
            self._bytes[number >> 3] &= ~(1 << (number & 7)) & 0xFF
            self.count -= 1


class Positions(MutableMapping[int, Position]):
    """Journal positions by ordinal, in 24 bytes each: scoring an ended run again puts all of its answers in here."""

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}
        """n, segment and offset of each ordinal; n = 0 means none. Pages keep a single large ordinal cheap."""
        self._count = 0

    def __getitem__(self, ordinal: int) -> Position:
        page, at = self._pages.get(ordinal // _PAGE), 3 * (ordinal % _PAGE)
        if page is None or not page[at]:
            raise KeyError(ordinal)
        return Position(page[at], page[at + 1], page[at + 2])

    def __setitem__(self, ordinal: int, position: Position) -> None:
        page, at = self._pages.get(ordinal // _PAGE), 3 * (ordinal % _PAGE)
        if page is None:
            page = self._pages[ordinal // _PAGE] = array("q", bytes(24 * _PAGE))
        self._count += not page[at]
        page[at], page[at + 1], page[at + 2] = position.n, position.segment, position.offset

    def __delitem__(self, ordinal: int) -> None:
        page, at = self._pages.get(ordinal // _PAGE), 3 * (ordinal % _PAGE)
        if page is None or not page[at]:
            raise KeyError(ordinal)
        page[at] = page[at + 1] = page[at + 2] = 0  # all three: equal contents have equal bytes in a snapshot
        self._count -= 1

    def record_of(self, ordinal: int) -> int:
        """The number of the record; 0 if there is none."""
        page = self._pages.get(ordinal // _PAGE)
        return 0 if page is None else page[3 * (ordinal % _PAGE)]

    def encoded(self) -> dict[int, bytes]:
        """The pages that are not empty, in this machine's byte order."""
        return {number: page.tobytes() for number, page in sorted(self._pages.items()) if any(page[::3])}

    @classmethod
    def decoded(cls, pages: Mapping[int, bytes]) -> "Positions":
        made = cls()
        for number, data in pages.items():
            if len(data) != 24 * _PAGE:
                raise ValueError(f"a page of positions has {len(data)} bytes")
            page = made._pages[number] = array("q", data)
            made._count += _PAGE - page[::3].count(0)
        return made

    def __contains__(self, ordinal: object) -> bool:
        if not isinstance(ordinal, int):
            return False
        page = self._pages.get(ordinal // _PAGE)
        return page is not None and page[3 * (ordinal % _PAGE)] != 0

    def __iter__(self) -> Iterator[int]:
        for number in sorted(self._pages):
            page = self._pages[number]
            yield from (number * _PAGE + at for at in range(_PAGE) if page[3 * at])

    def __len__(self) -> int:
        return self._count


class Trail(msgspec.Struct):
    """What an unfinished key has recorded: positions of its steps and announcements, and how its attempts failed."""

    steps: list[Position] = msgspec.field(default_factory=list)
    failures: dict[int, str] = msgspec.field(default_factory=dict)
    answered: bool = False
    """Whether it has an answered step, an announced call, or a failed attempt that used responses."""


class FinishedGist(msgspec.Struct, frozen=True, gc=False):
    """The fields of a `SampleFinished` that a fold needs. Decoding skips the answer, which may be long."""

    o: Ordinal
    attempt: Count
    spent: Spent = Spent()
    scorers: Count = 0
    looked: Count = 0


class ScoreGist(msgspec.Struct, frozen=True, gc=False):
    """The fields of a `ScoreGiven` that a fold needs."""

    o: Ordinal
    of: Count
    evaluation: str
    scorer: str = ""
    value: Any = None
    failure: Failure | None = None
    spent: Spent = Spent()
    last: bool = False
    author: str = ""


OWN_KINDS = frozenset({"scorer", "judge", "record", "too_large", "cancelled", "stalled", *MARKS})
"""Failures caused by the scorer or the answer itself: scoring again would fail again. All others come from a judge's
server or from this machine, and are retried by the next resume."""
_HANDLERS: RecordHandlers["Fold", Entry] = RecordHandlers()
step_gist = FactDecoder(StepGist)
_finished_gist = FactDecoder(FinishedGist)
_score_gist = FactDecoder(ScoreGist)
finished_data = FactDecoder(SampleFinished)
failed_data = FactDecoder(SampleFailed)
score_data = FactDecoder(ScoreGiven)
looked_data = FactDecoder(AnomaliesRechecked)


class Judged(msgspec.Struct):
    """Judge calls for an answer that is not fully scored: positions of their steps, and how often scoring failed
    because a judge could not be reached.
    """

    steps: list[Position] = msgspec.field(default_factory=list)
    failed: int = 0


class FoldState(msgspec.Struct, frozen=True):
    """Everything that a fold without damage has computed, as plain data."""

    story: bytes
    requested: str | None
    is_adopted: bool
    finished: bytes
    failed: bytes
    unlooked: bytes
    trails: dict[int, Trail]
    failure_kinds: list[str]
    unscored: dict[int, bytes]
    judged: dict[int, Judged]
    unjudged: dict[int, Position]
    large: dict[int, int]
    broken: list[int]
    first_scores: dict[int, int]
    scores: dict[str, CellScores]
    uncounted: dict[int, dict[str, Any]]


class Fold:
    """The state of a run after the records that were applied so far."""

    def __init__(self, evaluation: str | None = None, scorers: Iterable[Mapping[str, Any]] = ()) -> None:
        """`evaluation`: whose unscored answers to collect; None means the newest. `scorers`: its scorers. If the run
        has an evaluation with the same scorers under another id (0.1.0 computed ids differently), that one is used.
        """
        self.story = Story()
        self.finished = Bits()
        self.failed = Bits()
        self.trails: dict[int, Trail] = {}
        self.failure_kinds: set[str] = set()
        """Of every final failure, also of samples that were retried and answered later."""
        self.unscored = Positions()
        self.judged: dict[int, Judged] = {}
        """By ordinal: answers with judge calls that are not fully scored."""
        self.unjudged: dict[int, Position] = {}
        """Answers whose judge could not be reached. They count as scored until `judge_again`."""
        self.large: dict[int, int] = {}
        """By ordinal: bytes of the large records that a resume loads for a key (steps of an unfinished sample, or an
        answer that is not fully scored, with the steps of its judges). The engine limits how many load at once."""
        self._broken: set[int] = set()
        self.unlooked = Bits()
        """Finished answers that the current version of the anomaly checks has not seen."""
        self.damage: list[Damage] = []
        self._lost_last = 0
        """The number of the last record that was lost to damage."""
        self._first_scores: dict[int, int] = {}
        """By ordinal, for answers that are not fully scored: the record number of the first score."""
        self.scores: dict[str, CellScores] = {}
        """By cell, as in keys: the scores of the evaluation so far, for progress."""
        self._uncounted: dict[int, dict[str, Any]] = {}
        """By ordinal, for answers that are not fully scored: the scores that it has."""
        self._requested = evaluation
        self._scorers = comparable_by_task(scorers)

    @property
    def planned(self) -> int:
        return self.story.planned

    @property
    def unfinished(self) -> int:
        return self.planned - self.finished.count - self.failed.count

    def state(self) -> FoldState:
        """Everything computed so far. Only for a fold without damage: losses are not a part of it."""
        assert not self.damage
        return FoldState(
            story=msgspec.json.encode(self.story),
            requested=self._requested,
            is_adopted=not self._scorers,
            finished=self.finished.encoded(),
            failed=self.failed.encoded(),
            unlooked=self.unlooked.encoded(),
            trails=self.trails,
            failure_kinds=sorted(self.failure_kinds),
            unscored=self.unscored.encoded(),
            judged=self.judged,
            unjudged=self.unjudged,
            large=self.large,
            broken=sorted(self._broken),
            first_scores=self._first_scores,
            scores=self.scores,
            uncounted=self._uncounted,
        )

    def restore(self, state: FoldState) -> None:
        """Continue from the state of another fold with the same arguments. If this raises, nothing was changed."""
        story = msgspec.json.decode(state.story, type=Story)
        finished, failed, unlooked = map(Bits.decoded, (state.finished, state.failed, state.unlooked))
        self.unscored = Positions.decoded(state.unscored)
        self.story, self.finished, self.failed, self.unlooked = story, finished, failed, unlooked
        self._requested = state.requested
        self._scorers = {} if state.is_adopted else self._scorers
        self.trails, self.judged, self.unjudged = state.trails, state.judged, state.unjudged
        self.failure_kinds, self._broken = set(state.failure_kinds), set(state.broken)
        self.large, self._first_scores = state.large, state.first_scores
        self.scores, self._uncounted = state.scores, state.uncounted

    def read(self, entries: Iterable[Entry | Damage]) -> "Fold":
        apply = self.apply
        for each in entries:
            if isinstance(each, Entry):
                apply(each)
            else:
                self.damage.append(each)
                self._lost_last = max(self._lost_last, each.n_last if each.records_lost else 0)
        return self

    def apply(self, entry: Entry) -> None:
        """Update from one record. This runs for every record of a resume, so it is one dict lookup and one call."""
        handler = _HANDLERS.get(entry.line.t)
        if handler is None:
            self.story.apply(entry)
        else:
            handler(self, entry)
        self.story.updated = entry.line.at

    @_HANDLERS.on("run.resumed")
    def _apply_resumed(self, entry: Entry) -> None:
        self.story.apply(entry)
        self.retry_failed(self.story.resumes[-1].resumed.retried)
        self.judge_again()

    @_HANDLERS.on("run.replanned")
    def _apply_replanned(self, entry: Entry) -> None:
        self.story.apply(entry)
        self._forget_refusals(self.story.replans[-1].replanned.cells)

    @_HANDLERS.on("score.started")
    def _apply_scoring_started(self, entry: Entry) -> None:
        before = self.evaluation
        self.story.apply(entry)
        self._adopt_evaluation(decode(entry.line, ScoringStarted))
        if self.evaluation != before:  # the scores so far belong to another one
            self.scores.clear()
            self._uncounted.clear()

    def retry_failed(self, ordinals: Iterable[int] | None = None) -> None:
        """Make failed samples unfinished again, so that they get new attempts: those named, or all of them."""
        for ordinal in [*self.trails] if ordinals is None else ordinals:
            self.failed.discard(ordinal)

    def _forget_refusals(self, cells: Iterable[Cell]) -> None:
        """Drop the recorded steps of corrected cells: the old model's refusals must not be replayed to the new one."""
        for ordinal, trail in self.trails.items():
            if any(cell.first <= ordinal < cell.first + cell.count for cell in cells):
                trail.steps.clear()

    def _adopt_evaluation(self, started: ScoringStarted) -> None:
        """Use the id under which the run has recorded these scorers.

        `score.started` precedes the scores and judge calls of its evaluation, so none was missed. With several such
        evaluations the first is used, because its scores have been counted; scores that only a later one has are
        copied from it.
        """
        if self._scorers and comparable_by_task(started.scorers) == self._scorers:
            self._requested, self._scorers = started.evaluation, {}

    def judge_again(self) -> None:
        """Put answers whose judge could not be reached back on the list of unscored ones."""
        self.unscored.update(self.unjudged)
        self.unjudged.clear()

    @_HANDLERS.on("step", "step.started")
    def _apply_step(self, entry: Entry) -> None:
        found = step_gist.decode(entry.line)
        if entry.line.t == "step":
            self.story.answered(found, entry.line.k)
        position = Position(entry.line.n, entry.segment, entry.offset)
        if found.scope.startswith("score/"):
            if found.evaluation == self.evaluation and found.o in self.unscored:
                self.judged.setdefault(found.o, Judged()).steps.append(position)
                self._count_large(found.o, entry)
        elif found.o not in self.finished:
            is_answered = entry.line.t == "step.started" or not found.is_refused
            trail = self.trails.get(found.o)
            if trail is None:
                self.trails[found.o] = Trail([position], answered=is_answered)
            else:
                trail.steps.append(position)
                trail.answered = trail.answered or is_answered
            self._count_large(found.o, entry)

    def _count_large(self, ordinal: int, entry: Entry) -> None:
        if entry.end - entry.offset > LARGE_RECORD_BYTES:
            self.large[ordinal] = self.large.get(ordinal, 0) + entry.end - entry.offset

    @property
    def evaluation(self) -> str:
        """The id of the evaluation whose unscored answers are collected. Empty if the run has none."""
        return self.story.evaluation if self._requested is None else self._requested

    @_HANDLERS.on("sample.finished")
    def _apply_finished(self, entry: Entry) -> None:
        found = _finished_gist.decode(entry.line)
        if not self.finished.add(found.o):
            self.story.answered_again(found.spent, entry.line.k)
            return
        if self.failed.count:
            self.failed.discard(found.o)
        self.trails.pop(found.o, None)
        self.large.pop(found.o, None)
        if found.scorers or self._requested:
            self.unscored[found.o] = Position(entry.line.n, entry.segment, entry.offset)
            self._count_large(found.o, entry)
        self.story.ended(found.o, found.attempt, found.spent, entry.line.k)
        if found.looked != ANOMALIES_VERSION:
            self.unlooked.add(found.o)

    @_HANDLERS.on("anomaly")
    def _apply_anomaly(self, entry: Entry) -> None:
        if entry.line.k is None:  # about the journal, not about an answer
            self.story.apply(entry)
            return
        found = looked_data.decode(entry.line)
        if found.version == ANOMALIES_VERSION:
            self.unlooked.discard(found.o)

    @_HANDLERS.on("sample.failed")
    def _apply_failed(self, entry: Entry) -> None:
        found = failed_data.decode(entry.line)
        if found.o in self.finished:
            return
        trail = self.trails.setdefault(found.o, Trail())
        trail.failures[found.attempt] = found.failure.kind
        trail.answered = trail.answered or bool(found.spent.usage.requests or found.spent.saved.requests)
        if found.final:
            self.failure_kinds.add(found.failure.kind)
            self.failed.add(found.o)
        else:
            self.failed.discard(found.o)
        self.story.ended(found.o, found.attempt, found.spent, entry.line.k)

    @_HANDLERS.on("score")
    def _apply_score(self, entry: Entry) -> None:
        found = _score_gist.decode(entry.line)
        if found.author:
            return  # set by hand: it does not say whether the scorers are done
        self.story.scored(found.o, found.spent, entry.line.k, found.evaluation, last=found.last)
        if found.evaluation != self.evaluation or not found.of or self.unscored.record_of(found.o) != found.of:
            return
        first = self._first_scores.setdefault(found.o, entry.line.n)
        if found.failure is not None and found.failure.kind not in OWN_KINDS:
            self._broken.add(found.o)
        if not found.last:
            self._uncounted.setdefault(found.o, {})[found.scorer] = found.value
            return
        del self._first_scores[found.o]
        scores = self._uncounted.pop(found.o, None) or {}
        scores[found.scorer] = found.value
        if self._lost_last >= first - 1:
            # Scores of one answer are written together. A loss among them may have hit one of these, so score it again.
            self._broken.discard(found.o)
            return
        if found.o in self._broken:
            self._broken.discard(found.o)
            self.unjudged[found.o] = self.unscored.pop(found.o)
            self.judged.setdefault(found.o, Judged()).failed += 1
        else:
            del self.unscored[found.o]
            self.judged.pop(found.o, None)
            self.large.pop(found.o, None)
            self._count_scores(entry.line.k or "", scores)

    def _count_scores(self, key: str, scores: Mapping[str, Any]) -> None:
        cell = cell_of(key)
        found = self.scores.get(cell)
        if found is None:
            found = self.scores[cell] = CellScores(repeats_in(self.story.spec, cell))
        found.add(key, scores)
