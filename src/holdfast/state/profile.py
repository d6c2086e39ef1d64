"""Where the time of a run went, folded: for each model and phase how long it took, and how many requests were in flight
when. Small, whatever the run's size: durations are counted in buckets, and the run's life has at most 60 spans.

What older versions did not record is not guessed: a phase without a number has none.
"""

from datetime import datetime
from functools import lru_cache
from typing import Annotated

import msgspec

from holdfast.records import Line
from holdfast.records.decoder import FactDecoder
from holdfast.records.durations import Durations
from holdfast.records.facts import RunEnded, ScoreGiven, Timing
from holdfast.records.keys import cell_names, cell_of
from holdfast.records.ranges import Count, EpochSeconds, Seconds, Total
from holdfast.state.story import BEGINNINGS, ENDS, StepGist

SPANS_MAX = 60
_WIDTH_SECONDS = 1 / 64
APART_SECONDS = 60.0
"""Scoring has no record that it ends. In a condensed journal, which does not tell one process from the next, records so
far apart are of two sittings."""
_ended = FactDecoder(RunEnded)
_score = FactDecoder(ScoreGiven)


class _Live(msgspec.Struct, frozen=True):
    """A live run that was told of other limits goes on in the same process."""

    live: bool = False


_live = FactDecoder(_Live)


class _Renamed(msgspec.Struct, frozen=True):
    """Old names of corrected models, with the new ones."""

    renamed: dict[str, str] = msgspec.field(default_factory=dict)


_renamed = FactDecoder(_Renamed)


class _Opened(msgspec.Struct, frozen=True):
    """Every process that adds to a run has an epoch of its own."""

    epoch: Count = 0


_opened = FactDecoder(_Opened)


class TimedGist(StepGist, frozen=True):
    """The little of a step that a profile needs too."""

    kind: str = "generate"
    seconds: Seconds = 0.0
    timing: Timing | None = None


_timed = FactDecoder(TimedGist)


_Spans = Annotated[list[Total], msgspec.Meta(max_length=SPANS_MAX)]


class Spans(msgspec.Struct):
    """The life of a run in at most 60 equal spans, which become twice as wide whenever it outgrows them."""

    start: EpochSeconds = 0.0
    """In seconds of the epoch; 0 if nothing has happened."""
    width: Annotated[float, msgspec.Meta(ge=_WIDTH_SECONDS, le=1e10)] = _WIDTH_SECONDS
    busy: _Spans = msgspec.field(default_factory=list)
    """By span: the seconds that requests were under way, each counted."""
    open: _Spans = msgspec.field(default_factory=list)
    """By span: the seconds that a process was at work on the run."""

    def add_busy(self, since: float, to: float) -> None:
        self._reach(to)
        self._spread(self.busy, since, to)

    def add_open(self, since: float, to: float) -> None:
        self._reach(to)
        self._spread(self.open, since, to)

    def _reach(self, to: float) -> None:
        """Make room until then."""
        while to - self.start >= self.width * SPANS_MAX:
            self.width *= 2
            self.busy, self.open = _halved(self.busy), _halved(self.open)
        missing = int((to - self.start) / self.width) + 1 - len(self.busy)
        if missing > 0:
            self.busy += [0.0] * missing
            self.open += [0.0] * missing

    def _spread(self, over: list[float], since: float, to: float) -> None:
        """To the spans that an interval touches. What a clock that was set back puts before the start is nowhere."""
        width, since, to = self.width, max(since - self.start, 0.0), max(to - self.start, 0.0)
        first, last = int(since / width), int(to / width)
        if first >= last:
            over[last] += max(to - since, 0.0)
            return
        over[first] += (first + 1) * width - since
        over[last] += to - last * width
        for span in range(first + 1, last):
            over[span] += width


class ModelTimes(msgspec.Struct):
    """What one model was asked, and how long it took."""

    requests: Count = 0
    """That were sent, also those that failed and were sent again."""
    answered: Count = 0
    failed: Count = 0
    """Given up for good."""
    retries: Count = 0
    batched: Count = 0
    """Answered in jobs of a batch API. How long those take says nothing of the model: they are in no phase."""
    input_tokens: Count = 0
    output_tokens: Count = 0
    limited_seconds: Total = 0.0
    held_seconds: Total = 0.0
    """Of all requests, before they were sent; the first of the two because of rate limits."""
    sent_seconds: Total = 0.0
    """Of all requests, under way."""
    phases: dict[str, Durations] = msgspec.field(default_factory=dict)
    evaluations: dict[str, Count] = msgspec.field(default_factory=dict)
    """How often it was asked as a judge, by evaluation; by the samples themselves under the empty one."""

    def took(self, phase: str, seconds: float) -> None:
        found = self.phases.get(phase)
        if found is None:
            found = self.phases[phase] = Durations()
        found.add(seconds)


class Profile(msgspec.Struct):
    """Grows by `apply`, for records about the run itself, and by `answered` and `scored` for those about keys."""

    models: dict[str, ModelTimes] = msgspec.field(default_factory=dict)
    """Those that are evaluated, by name."""
    roles: dict[str, ModelTimes] = msgspec.field(default_factory=dict)
    """Those that are asked in a role, by its name."""
    commits: Durations = msgspec.field(default_factory=Durations)
    processes: Count = 0
    """That have begun to work on the run."""
    told: Count = 0
    """Of these, whose ends say how long commits took. One that was killed says nothing."""
    spans: Spans = msgspec.field(default_factory=Spans)
    worked_seconds: Total = 0.0
    """Of sittings that are over."""
    sitting: EpochSeconds = 0.0
    """When the process began that is at work, as far as is recorded; 0 if none is."""
    seen: EpochSeconds = 0.0
    """When the last record of a sitting was written."""
    alive: bool = False
    """The last process has not said that it ended."""
    epoch: Count = 0
    """Of the process that wrote last."""

    def apply(self, line: Line) -> None:
        if line.t == "segment":
            self._opened(_opened.decode(line).epoch)
        elif line.t == "totals":
            self._restore(_of_totals.decode(line).profile)
        elif line.t == "run.replanned":
            renamed = _renamed.decode(line).renamed
            self.models = {renamed.get(name, name): times for name, times in self.models.items()}
        elif line.t in BEGINNINGS and not _live.decode(line).live:
            at = _seconds(line.at)
            self._stand_up(self.seen)
            self._see(at, at)
            self.sitting, self.alive = at, True
            self.processes += 1
        elif line.t in ENDS:
            at = _seconds(line.at)
            self._see(at, at)
            self._stand_up(at)
            self.alive = False
            commits = _ended.decode(line).commits
            if commits is not None:
                self.told += 1
                self.commits.merge(commits)

    def answered(self, step: TimedGist, line: Line) -> None:
        if step.origin:
            return  # a fork took it over: it was asked then and there
        at = _seconds(line.at)
        self._see(at - step.seconds, at)
        own = self._of(line.k)
        if step.kind == "call":
            own.took("tools", step.seconds)
        elif step.asked is not None:
            role = step.asked.role
            self._asked(self.roles.setdefault(role, ModelTimes()) if role else own, step, at)

    def scored(self, seconds: float, line: Line) -> None:
        at = _seconds(line.at)
        self._see(at - seconds, at)
        if seconds:
            self._of(line.k).took("score", seconds)

    def fold(self, line: Line) -> None:
        """Any record. The index, which has decoded them anyway, calls the methods above itself."""
        if line.t == "step":
            self.answered(_timed.decode(line), line)
        elif line.t == "score":
            score = _score.decode(line)
            if not score.author:
                self.scored(0.0 if score.taken else score.seconds, line)
        else:
            self.apply(line)

    def _restore(self, before: "Profile") -> None:
        """Replace everything but the epoch: it is that of the journal that the totals are in."""
        for name in self.__struct_fields__:
            if name != "epoch":
                setattr(self, name, getattr(before, name))

    def until_now(self) -> tuple[Spans, float]:
        """The spans, and the seconds of all sittings, with the one that is not over as far as it is recorded."""
        spans = msgspec.structs.replace(self.spans, busy=list(self.spans.busy), open=list(self.spans.open))
        if not self.sitting:
            return spans, self.worked_seconds
        spans.add_open(self.sitting, self.seen)
        return spans, self.worked_seconds + max(self.seen - self.sitting, 0.0)

    def _of(self, key: str | None) -> ModelTimes:
        return self.models.setdefault(_model_of(cell_of(key or "")), ModelTimes())

    def _asked(self, model: ModelTimes, step: TimedGist, at: float) -> None:
        judges = step.scope.split("/")[1] if step.scope.startswith("score/") else ""
        model.evaluations[judges] = model.evaluations.get(judges, 0) + 1
        model.requests += step.tries
        model.retries += max(step.tries - 1, 0)
        if step.answer is None:
            model.failed += 1
        else:
            model.answered += 1
            model.input_tokens += step.answer.usage.input_tokens
            model.output_tokens += step.answer.usage.output_tokens
        if step.batch:
            model.batched += 1
            return
        model.sent_seconds += step.seconds
        self.spans.add_busy(at - step.seconds, at)
        timing = step.timing
        if timing is not None:
            model.held_seconds += timing.queue
            model.limited_seconds += timing.limited
        if step.answer is None:
            return
        model.took("request", step.seconds)
        if timing is not None:
            model.took("queue", timing.queue)
            if timing.first:
                model.took("connect", timing.connect)
                model.took("first byte", timing.first)
                model.took("generate", step.seconds - timing.lost - timing.connect - timing.first)

    def _opened(self, epoch: int) -> None:
        """Another process adds to the run: whoever did before was at work until its last record."""
        if epoch != self.epoch:
            self._stand_up(self.seen)
            self.epoch = epoch

    def _see(self, since: float, at: float) -> None:
        """Something happened; outside of a process's work on the run somebody scores."""
        if not self.spans.start:
            self.spans.start = since
        if not self.sitting:
            self.sitting = since
        elif not self.alive and since - self.seen > APART_SECONDS:
            self._stand_up(self.seen)
            self.sitting = since
        if at > self.seen:
            self.seen = at

    def _stand_up(self, at: float) -> None:
        if self.sitting and at >= self.sitting:
            self.worked_seconds += at - self.sitting
            self.spans.add_open(self.sitting, at)
        self.sitting = 0.0


class _OfTotals(msgspec.Struct, frozen=True):
    """What a `totals` record holds of a profile."""

    profile: Profile = msgspec.field(default_factory=Profile)


_of_totals = FactDecoder(_OfTotals)


def _halved(spans: list[float]) -> list[float]:
    return [sum(spans[first : first + 2]) for first in range(0, len(spans), 2)]


@lru_cache(16)
def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


@lru_cache(256)
def _model_of(cell: str) -> str:
    return cell_names(cell)[1]
