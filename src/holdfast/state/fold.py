"""The fold that a writer needs to go on: which keys are finished, what unfinished ones have recorded, what is not
scored.

Memory does not grow with the run: a bit for each key, and a few numbers for those that are not through. Everything
here comes from the journal and can be made again.
"""

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import msgspec

from holdfast.errors import FormatError
from holdfast.journal.positions import Damage, Entry, Position
from holdfast.records.built_in import comparable_by_task
from holdfast.records.decoder import FactDecoder
from holdfast.records.facts import Cell, LookedAgain, SampleFailed, SampleFinished, ScoreGiven
from holdfast.records.ranges import ORDINALS_MAX
from holdfast.records.samples import MARKS
from holdfast.score.anomalies import VERSION
from holdfast.state.story import StepGist, Story

_SPARE = 1024
_PAGE = 1024
LARGE_RECORD_BYTES = 1024 * 1024
"""Longer records are counted in `Fold.large`."""


def _whole_bytes(first: int, last: int) -> tuple[range, Iterable[int]]:
    """Of the bits from one to before another: the bytes that are all of these, and the bits beside them."""
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
        """Of so many from one on."""
        inner, edges = _whole_bytes(first, first + count)
        return any(self._bytes[inner.start : inner.stop]) or any(number in self for number in edges)

    def has_all(self, first: int, count: int) -> bool:
        inner, edges = _whole_bytes(first, first + count)
        full = self._bytes[inner.start : inner.stop].count(0xFF)
        return full == len(inner) and all(number in self for number in edges)

    def add(self, number: int) -> bool:
        """True if it was not there."""
        if number in self:
            return False
        if not 0 <= number < ORDINALS_MAX:
            raise FormatError(f"a record names the key number {number}, which no plan has: Holdfast did not write it")
        index = number >> 3
        if index >= len(self._bytes):
            self._bytes.extend(bytes(index + 1 - len(self._bytes) + _SPARE))
        self._bytes[index] |= 1 << (number & 7)
        self.count += 1
        return True

    def discard(self, number: int) -> None:
        if number in self:
            self._bytes[number >> 3] &= ~(1 << (number & 7)) & 0xFF
            self.count -= 1


class Positions(MutableMapping[int, Position]):
    """Where the records of many ordinals are, 24 bytes each: an ended run that is scored again has all of its answers
    in here.
    """

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}
        """n, segment and offset of each ordinal; an n of 0 is none. In pages, so that a large ordinal takes little."""
        self._count = 0

    def __getitem__(self, ordinal: int) -> Position:
        page, at = self._pages.get(ordinal // _PAGE), 3 * (ordinal % _PAGE)
        if page is None or not page[at]:
            raise KeyError(ordinal)
        return Position(*page[at : at + 3])

    def __setitem__(self, ordinal: int, position: Position) -> None:
        page, at = self._pages.get(ordinal // _PAGE), 3 * (ordinal % _PAGE)
        if page is None:
            page = self._pages[ordinal // _PAGE] = array("q", bytes(24 * _PAGE))
        self._count += not page[at]
        page[at : at + 3] = array("q", (position.n, position.segment, position.offset))

    def __delitem__(self, ordinal: int) -> None:
        if ordinal not in self:
            raise KeyError(ordinal)
        self._pages[ordinal // _PAGE][3 * (ordinal % _PAGE)] = 0
        self._count -= 1

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
    """What an unfinished key has left: where its steps and announcements are, and how its attempts ended."""

    steps: list[Position] = msgspec.field(default_factory=list)
    failures: dict[int, str] = msgspec.field(default_factory=dict)
    answered: bool = False
    """It has an answered step, an announced call, or a failed attempt that used responses."""


OWN_KINDS = frozenset({"scorer", "judge", "record", "too_large", "cancelled", "stalled", *MARKS})
"""Failures of a scorer's or an answer's own making: asking again would come to the same. Any other is one of a judge's
server, or of this machine."""
step_gist = FactDecoder(StepGist)
finished_data = FactDecoder(SampleFinished)
failed_data = FactDecoder(SampleFailed)
score_data = FactDecoder(ScoreGiven)
looked_data = FactDecoder(LookedAgain)


class Judged(msgspec.Struct):
    """What judges have said of an answer that is not fully scored: where their steps are, and how often its scoring
    failed because a judge could not be asked.
    """

    steps: list[Position] = msgspec.field(default_factory=list)
    failed: int = 0


class Fold:
    """Where a run stands. Feed it a reader's entries; it can be asked at any time."""

    def __init__(self, evaluation: str | None = None, scorers: Iterable[Mapping[str, Any]] = ()) -> None:
        """`evaluation`: the one to look for unscored answers of; None is the newest. `scorers`: what it is made of. If
        the run has an evaluation of the same scorers under another id, as version 0.1.0 computed it, that one is meant.
        """
        self.story = Story()
        self.finished = Bits()
        self.failed = Bits()
        self.trails: dict[int, Trail] = {}
        self.failure_kinds: set[str] = set()
        """Of every sample that failed for good, also of those that were retried and answered later."""
        self.unscored = Positions()
        self.judged: dict[int, Judged] = {}
        """By ordinal, of answers that judges were asked about and that are not fully scored."""
        self.unjudged: dict[int, Position] = {}
        """Answers of which a judge could not be asked. They count as scored until somebody asks again."""
        self.large: dict[int, int] = {}
        """By ordinal: the bytes of the large records that a resume loads for a key: the steps of an unfinished sample,
        or an answer that is not fully scored and the steps of its judges."""
        self._broken: set[int] = set()
        self.unlooked = Bits()
        """Answers that were not looked at with the list of anomalies that is in force."""
        self.damage: list[Damage] = []
        self._lost_last = 0
        """The number of the last record that was lost."""
        self._first_scores: dict[int, int] = {}
        """By ordinal, of answers that are not fully scored: the number of their first score."""
        self._wanted = evaluation
        self._scorers = comparable_by_task(scorers)

    @property
    def planned(self) -> int:
        return self.story.planned

    @property
    def unfinished(self) -> int:
        return self.planned - self.finished.count - self.failed.count

    def read(self, entries: Iterable[Entry | Damage]) -> "Fold":
        for each in entries:
            if isinstance(each, Damage):
                self.damage.append(each)
                self._lost_last = max(self._lost_last, each.n_last if each.records_lost else 0)
            else:
                self.apply(each)
        return self

    def apply(self, entry: Entry) -> None:
        kind = entry.line.t
        if kind in ("step", "step.started"):
            self._step(entry)
        elif kind == "sample.finished":
            self._finished(entry)
        elif kind == "score":
            self._score(entry)
        elif kind == "sample.failed":
            self._failed(entry)
        elif kind == "anomaly" and entry.line.k is not None:
            self._looked(entry)
        else:
            self.story.apply(entry)
            if kind == "run.resumed":
                self.retry_failed(self.story.resumes[-1].resumed.retried)
                self.judge_again()
            elif kind == "run.replanned":
                self._forget_refusals(self.story.replans[-1].replanned.cells)
            elif kind == "score.started":
                self._adopt_evaluation()
        self.story.updated = entry.line.at

    def retry_failed(self, ordinals: Iterable[int] | None = None) -> None:
        """Failed samples that get a fresh allowance, all unless some are named: until they end again they are
        unfinished.
        """
        for ordinal in [*self.trails] if ordinals is None else ordinals:
            self.failed.discard(ordinal)

    def _forget_refusals(self, cells: Iterable[Cell]) -> None:
        """What a model refused before it was corrected must not be replayed."""
        for ordinal, trail in self.trails.items():
            if any(cell.first <= ordinal < cell.first + cell.count for cell in cells):
                trail.steps.clear()

    def _adopt_evaluation(self) -> None:
        """Its scores and judge calls come later in the journal, so that none was missed. The first one is kept, because
        scores were counted for it; what only a later one has is taken over from there.
        """
        started = self.story.evaluations[self.story.evaluation]
        if self._scorers and comparable_by_task(started.scorers) == self._scorers:
            self._wanted, self._scorers = started.evaluation, {}

    def judge_again(self) -> None:
        """Answers whose judge could not be asked are to be scored again."""
        self.unscored.update(self.unjudged)
        self.unjudged.clear()

    def _step(self, entry: Entry) -> None:
        found = step_gist.decode(entry.line)
        if entry.line.t == "step":
            self.story.answered(found, entry.line.k)
        position = Position(entry.line.n, entry.segment, entry.offset)
        if found.scope.startswith("score/"):
            if found.scope.split("/")[1] == self.evaluation and found.o in self.unscored:
                self.judged.setdefault(found.o, Judged()).steps.append(position)
                self._count_large(found.o, entry)
        elif found.o not in self.finished:
            trail = self.trails.setdefault(found.o, Trail())
            trail.steps.append(position)
            trail.answered = trail.answered or entry.line.t == "step.started" or not found.is_refused
            self._count_large(found.o, entry)

    def _count_large(self, ordinal: int, entry: Entry) -> None:
        if entry.end - entry.offset > LARGE_RECORD_BYTES:
            self.large[ordinal] = self.large.get(ordinal, 0) + entry.end - entry.offset

    @property
    def evaluation(self) -> str:
        """The id of the evaluation that unscored answers are looked for of. Empty if there is none."""
        return self.story.evaluation if self._wanted is None else self._wanted

    def _finished(self, entry: Entry) -> None:
        found = finished_data.decode(entry.line)
        if not self.finished.add(found.o):
            self.story.twice += 1
            return
        self.failed.discard(found.o)
        self.trails.pop(found.o, None)
        self.large.pop(found.o, None)
        if found.scorers or self._wanted:
            self.unscored[found.o] = Position(entry.line.n, entry.segment, entry.offset)
            self._count_large(found.o, entry)
        self.story.ended(found, entry.line.k)
        if found.looked != VERSION:
            self.unlooked.add(found.o)

    def _looked(self, entry: Entry) -> None:
        found = looked_data.decode(entry.line)
        if found.version == VERSION:
            self.unlooked.discard(found.o)

    def _failed(self, entry: Entry) -> None:
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
        self.story.ended(found, entry.line.k)

    def _score(self, entry: Entry) -> None:
        found = score_data.decode(entry.line)
        if found.author:
            return  # by hand: whether the scorers have had their say does not depend on it
        position = self.unscored.get(found.o)
        self.story.scored(found, entry.line.k)
        if found.evaluation != self.evaluation or position is None or position.n != found.of:
            return
        first = self._first_scores.setdefault(found.o, entry.line.n)
        if found.failure is not None and found.failure.kind not in OWN_KINDS:
            self._broken.add(found.o)
        if not found.last:
            return
        del self._first_scores[found.o]
        if self._lost_last >= first - 1:
            self._broken.discard(found.o)  # the scores of an answer lie together: one of them may be lost with these
            return
        del self.unscored[found.o]
        if found.o in self._broken:
            self._broken.discard(found.o)
            self.unjudged[found.o] = position
            self.judged.setdefault(found.o, Judged()).failed += 1
        else:
            self.judged.pop(found.o, None)
            self.large.pop(found.o, None)
