"""The fold that a writer needs to go on: which keys are finished, what unfinished ones have recorded, what is not
scored.

Memory does not grow with the run: a bit for each key, and a few numbers for those that are not through. Everything
here comes from the journal and can be made again.
"""

from collections.abc import Iterable

import msgspec

from holdfast.journal.marks import Damage, Entry, Position
from holdfast.records.facts import SampleFailed, SampleFinished, ScoreGiven
from holdfast.state.story import StepGist, Story


class Bits:
    """A set of ordinals, one bit each."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.count = 0

    def __contains__(self, number: int) -> bool:
        index = number >> 3
        return index < len(self._bytes) and bool(self._bytes[index] & 1 << (number & 7))

    def add(self, number: int) -> bool:
        """True if it was not there."""
        if number in self:
            return False
        index = number >> 3
        if index >= len(self._bytes):
            self._bytes.extend(bytes(index + 1 - len(self._bytes) + 1024))
        self._bytes[index] |= 1 << (number & 7)
        self.count += 1
        return True

    def discard(self, number: int) -> None:
        if number in self:
            self._bytes[number >> 3] &= ~(1 << (number & 7)) & 0xFF
            self.count -= 1


class Trail(msgspec.Struct):
    """What an unfinished key has left: where its steps and announcements are, and how its attempts ended."""

    steps: list[Position] = msgspec.field(default_factory=list)
    failures: dict[int, str] = msgspec.field(default_factory=dict)


step_gist = msgspec.json.Decoder(StepGist)
finished_data = msgspec.json.Decoder(SampleFinished)
failed_data = msgspec.json.Decoder(SampleFailed)
score_data = msgspec.json.Decoder(ScoreGiven)


class Fold:
    """Where a run stands. Feed it a reader's entries; it can be asked at any time."""

    def __init__(self, evaluation: str | None = None) -> None:
        """`evaluation`: the one to look for unscored answers of; None is the newest."""
        self.story = Story()
        self.finished = Bits()
        self.failed = Bits()
        self.trails: dict[int, Trail] = {}
        self.unscored: dict[int, Position] = {}
        self.damage: list[Damage] = []
        self._wanted = evaluation

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
        else:
            self.story.apply(entry)
            if kind == "run.resumed":
                self.retry_failed(self.story.resumes[-1].resumed.retried)
        self.story.updated = entry.line.at

    def retry_failed(self, ordinals: Iterable[int] | None = None) -> None:
        """Failed samples that get a fresh allowance, all unless some are named: until they end again they are
        unfinished.
        """
        for ordinal in [*self.trails] if ordinals is None else ordinals:
            self.failed.discard(ordinal)

    def _step(self, entry: Entry) -> None:
        found = step_gist.decode(entry.line.d)
        if entry.line.t == "step":
            self.story.answered(found, entry.line.k)
        if found.o not in self.finished:
            trail = self.trails.setdefault(found.o, Trail())
            trail.steps.append(Position(entry.line.n, entry.segment, entry.offset))

    def _finished(self, entry: Entry) -> None:
        found = finished_data.decode(entry.line.d)
        if not self.finished.add(found.o):
            self.story.twice += 1
            return
        self.failed.discard(found.o)
        self.trails.pop(found.o, None)
        if found.scorers or self._wanted:
            self.unscored[found.o] = Position(entry.line.n, entry.segment, entry.offset)
        self.story.spent(found.spent, entry.line.k)

    def _failed(self, entry: Entry) -> None:
        found = failed_data.decode(entry.line.d)
        if found.o in self.finished:
            return
        trail = self.trails.setdefault(found.o, Trail())
        trail.failures[found.attempt] = found.failure.kind
        if found.final:
            self.failed.add(found.o)
        else:
            self.failed.discard(found.o)
        self.story.spent(found.spent, entry.line.k)

    def _score(self, entry: Entry) -> None:
        found = score_data.decode(entry.line.d)
        position = self.unscored.get(found.o)
        wanted = self.story.evaluation if self._wanted is None else self._wanted
        if found.evaluation == wanted and position is not None and position.n == found.of and found.last:
            del self.unscored[found.o]
