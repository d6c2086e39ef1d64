"""Where the time of a run went: durations by model and phase, and how many requests were in flight over time.

Owns `Profile`. Its size does not grow with the run: durations are counted in buckets, and the time axis has at most 60
spans. Values that older versions did not record are missing, never estimated. It is derived from the journal; after
compaction, which removes steps, the `totals` record carries it.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Annotated

import msgspec

from holdfast.records import (
    Count,
    Durations,
    EpochSeconds,
    FactDecoder,
    Line,
    RunEnded,
    ScoreGiven,
    ScoringStarted,
    Seconds,
    Timing,
    Total,
    cell_names,
    cell_of,
)
from holdfast.state.dispatch import RecordHandlers
from holdfast.state.story import BEGINNINGS, ENDS, StepGist

SPANS_MAX = 60
_WIDTH_SECONDS = 1 / 64
APART_SECONDS = 60.0
"""Scoring has no end record, and a compacted journal does not show where one process ends. So records this far apart
count as two sessions."""
_HANDLERS: RecordHandlers["Profile", Line] = RecordHandlers()
_ended = FactDecoder(RunEnded)
_score = FactDecoder(ScoreGiven)
_scoring = FactDecoder(ScoringStarted)


class _Live(msgspec.Struct, frozen=True):
    """`live`: limits were changed with `tune` while the run continued in the same process."""

    live: bool = False


_live = FactDecoder(_Live)


class _Renamed(msgspec.Struct, frozen=True):
    """New names of corrected models, by old name."""

    renamed: dict[str, str] = msgspec.field(default_factory=dict)


_renamed = FactDecoder(_Renamed)


class _Opened(msgspec.Struct, frozen=True):
    """Every process that adds to a run has an epoch of its own."""

    epoch: Count = 0


_opened = FactDecoder(_Opened)


class TimedGist(StepGist, frozen=True):
    """The fields of a step that a profile needs in addition."""

    kind: str = "generate"
    seconds: Seconds = 0.0
    timing: Timing | None = None


_timed = FactDecoder(TimedGist)


_Spans = Annotated[list[Total], msgspec.Meta(max_length=SPANS_MAX)]


class Spans(msgspec.Struct):
    """The time of a run in at most 60 equal spans. When they are full, each becomes twice as wide."""

    start: EpochSeconds = 0.0
    """Unix time; 0 before the first record."""
    width: Annotated[float, msgspec.Meta(ge=_WIDTH_SECONDS, le=1e10)] = _WIDTH_SECONDS
    busy: _Spans = msgspec.field(default_factory=list)
    """By span: seconds that requests were in flight, summed over requests."""
    open: _Spans = msgspec.field(default_factory=list)
    """By span: seconds that a process worked on the run."""

    def add_busy(self, since: float, to: float) -> None:
        if int((to - self.start) / self.width) >= len(self.busy):
            self._reach(to)
        self._spread(self.busy, since, to)

    def add_open(self, since: float, to: float) -> None:
        self._reach(to)
        self._spread(self.open, since, to)

    def _reach(self, to: float) -> None:
        """Widen the spans until they cover this time."""
        while to - self.start >= self.width * SPANS_MAX:
            self.width *= 2
            self.busy, self.open = _halved(self.busy), _halved(self.open)
        missing = int((to - self.start) / self.width) + 1 - len(self.busy)
        if missing > 0:
            self.busy += [0.0] * missing
            self.open += [0.0] * missing

    def _spread(self, over: list[float], since: float, to: float) -> None:
        """Distribute an interval over the spans that it touches. Time before the start (clock set back) is dropped."""
        width, since, to = self.width, since - self.start, to - self.start
        if since < 0.0 or to < 0.0:
            since, to = max(since, 0.0), max(to, 0.0)
        first, last = int(since / width), int(to / width)
        if first >= last:
            over[last] += to - since if to > since else 0.0
            return
        over[first] += (first + 1) * width - since
        over[last] += to - last * width
        for span in range(first + 1, last):
            over[span] += width


class ModelTimes(msgspec.Struct):
    """Requests to one model, and how long they took."""

    requests: Count = 0
    """HTTP requests sent, including retries."""
    answered: Count = 0
    failed: Count = 0
    """Requests without an answer after the last retry."""
    retries: Count = 0
    batched: Count = 0
    """Answered by a batch API. Their time says nothing about the model, so they are in no phase."""
    input_tokens: Count = 0
    output_tokens: Count = 0
    limited_seconds: Total = 0.0
    held_seconds: Total = 0.0
    """Time in the queue before sending, over all requests; `limited_seconds` of it because of rate limits."""
    sent_seconds: Total = 0.0
    """Time in flight, over all requests."""
    phases: dict[str, Durations] = msgspec.field(default_factory=dict)
    evaluations: dict[str, Count] = msgspec.field(default_factory=dict)
    """Requests as a judge, by evaluation; requests of the samples themselves have the empty key."""

    def add_duration(self, phase: str, seconds: float) -> None:
        found = self.phases.get(phase)
        if found is None:
            found = self.phases[phase] = Durations()
        found.add(seconds)


class Profile(msgspec.Struct):
    """Updated by `fold`, for any record. Callers that decode steps and scores anyway use `answered` and `scored`."""

    models: dict[str, ModelTimes] = msgspec.field(default_factory=dict)
    """Evaluated models, by name."""
    roles: dict[str, ModelTimes] = msgspec.field(default_factory=dict)
    """Models in a role, by the name of the role."""
    commits: Durations = msgspec.field(default_factory=Durations)
    processes: Count = 0
    """How many processes have worked on the run."""
    reported: Count = msgspec.field(name="told", default=0)  # the name in saved folds and condensed runs
    """How many of them recorded commit times in their end record. A killed process does not."""
    spans: Spans = msgspec.field(default_factory=Spans)
    worked_seconds: Total = 0.0
    """Of sessions that are over."""
    sitting: EpochSeconds = 0.0
    """When the open session began; 0 if none is open."""
    seen: EpochSeconds = 0.0
    """When the last record of a session was written."""
    alive: bool = False
    """The latest process has not recorded its end."""
    epoch: Count = 0
    """Of the latest writer."""
    answering_seconds: Total = 0.0
    """Of sessions that are over and in which samples sent requests: scoring again does not change a model's speed."""
    is_answering: bool = False
    """Whether samples have sent requests in the open session."""
    given: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """By evaluation: the names of roles whose models were given for it, as in bills."""

    def fold(self, line: Line) -> None:
        """Update from any record."""
        handler = _HANDLERS.get(line.t)
        if handler is not None:
            handler(self, line)

    @_HANDLERS.on("step")
    def _apply_step(self, line: Line) -> None:
        self.answered(_timed.decode(line), line)

    @_HANDLERS.on("score")
    def _apply_score(self, line: Line) -> None:
        score = _score.decode(line)
        if not score.author:
            self.scored(0.0 if score.taken else score.seconds, line)

    @_HANDLERS.on("run.replanned")
    def _apply_replanned(self, line: Line) -> None:
        renamed = _renamed.decode(line).renamed
        self.models = {renamed.get(name, name): times for name, times in self.models.items()}

    @_HANDLERS.on("score.started")
    def _apply_scoring_started(self, line: Line) -> None:
        started = _scoring.decode(line)
        if started.roles:
            self.given.setdefault(started.evaluation, {}).update(
                {role: started.bill_name(role) for role in started.roles}
            )

    @_HANDLERS.on(*BEGINNINGS)
    def _apply_beginning(self, line: Line) -> None:
        if _live.decode(line).live:
            return
        at = _seconds(line.at)
        self._end_session(self.seen)
        self._see(at, at)
        self.sitting, self.alive = at, True
        self.processes += 1

    @_HANDLERS.on(*ENDS)
    def _apply_end(self, line: Line) -> None:
        at = _seconds(line.at)
        self._see(at, at)
        self._end_session(at)
        self.alive = False
        self._count_commits(_ended.decode(line).commits)

    def _count_commits(self, commits: Durations | None) -> None:
        if commits is not None:
            self.reported += 1
            self.commits.merge(commits)

    def answered(self, step: TimedGist, line: Line) -> None:
        if step.origin:
            return  # copied by a fork: the time was spent in the parent run
        at = _seconds(line.at)
        self._see(at - step.seconds, at)
        own = self._of(line.k)
        if step.kind == "call":
            own.add_duration("tools", step.seconds)
        elif step.asked is not None:
            role = step.asked.role
            if role and self.given:
                role = self.given.get(step.evaluation, {}).get(role, role)
            self.is_answering = self.is_answering or not step.scope.startswith("score/")
            self._asked(_times_of(self.roles, role) if role else own, step, at)

    def scored(self, seconds: float, line: Line) -> None:
        at = _seconds(line.at)
        self._see(at - seconds, at)
        if seconds:
            self._of(line.k).add_duration("score", seconds)

    @_HANDLERS.on("totals")
    def _apply_totals(self, line: Line) -> None:
        """Replace everything but the epoch, which belongs to the compacted journal."""
        before = _of_totals.decode(line).profile
        for name in self.__struct_fields__:
            if name != "epoch":
                setattr(self, name, getattr(before, name))
        if not self.answering_seconds and not self.is_answering:
            self.answering_seconds = self.worked_seconds  # compacted by a version that did not count it

    def until_now(self) -> tuple[Spans, float]:
        """Spans and seconds of all sessions, including the open one up to its last record."""
        spans = msgspec.structs.replace(self.spans, busy=list(self.spans.busy), open=list(self.spans.open))
        if not self.sitting:
            return spans, self.worked_seconds
        spans.add_open(self.sitting, self.seen)
        return spans, self.worked_seconds + max(self.seen - self.sitting, 0.0)

    def with_sessions(
        self,
        worked: Sequence[tuple[float, float]],
        answering: Sequence[tuple[float, float]],
        ends: Sequence[Durations | None],
    ) -> "Profile":
        """The same requests, with other sessions: spans of Unix time without overlaps in which processes worked, and in
        which samples sent requests. `ends`: the commit times of each process; None if it recorded none.
        """
        spans = msgspec.structs.replace(self.spans, busy=list(self.spans.busy), open=[0.0] * len(self.spans.busy))
        for since, to in worked:
            spans.add_open(since, to)
        found = msgspec.structs.replace(
            self,
            spans=spans,
            worked_seconds=sum(to - since for since, to in worked),
            answering_seconds=sum(to - since for since, to in answering),
            sitting=0.0,
            is_answering=False,
            processes=len(ends),
            commits=Durations(),
        )
        for commits in ends:
            found._count_commits(commits)  # noqa: SLF001 - of the same class
        return found

    def answering_until_now(self) -> float:
        """Seconds of all sessions in which samples sent requests, including the open one."""
        is_open = self.sitting and self.is_answering
        return self.answering_seconds + (max(self.seen - self.sitting, 0.0) if is_open else 0.0)

    def _of(self, key: str | None) -> ModelTimes:
        return _times_of(self.models, _model_of(cell_of(key or "")))

    def _asked(self, model: ModelTimes, step: TimedGist, at: float) -> None:
        judges = step.evaluation
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
        model.add_duration("request", step.seconds)
        if timing is not None:
            model.add_duration("queue", timing.queue)
            if timing.first:
                model.add_duration("connect", timing.connect)
                model.add_duration("first byte", timing.first)
                model.add_duration("generate", step.seconds - timing.lost - timing.connect - timing.first)

    @_HANDLERS.on("segment")
    def _apply_segment(self, line: Line) -> None:
        """A new epoch is a new writer: the session of the one before ended with its last record."""
        epoch = _opened.decode(line).epoch
        if epoch != self.epoch:
            self._end_session(self.seen)
            self.epoch = epoch

    def _see(self, since: float, at: float) -> None:
        """Note activity. Without a live process it is scoring, which opens a session of its own."""
        if not self.spans.start:
            self.spans.start = since
        if not self.sitting:
            self.sitting = since
        elif not self.alive and since - self.seen > APART_SECONDS:
            self._end_session(self.seen)
            self.sitting = since
        if at > self.seen:
            self.seen = at

    def _end_session(self, at: float) -> None:
        if self.sitting and at >= self.sitting:
            self.worked_seconds += at - self.sitting
            self.answering_seconds += at - self.sitting if self.is_answering else 0.0
            self.spans.add_open(self.sitting, at)
        self.sitting, self.is_answering = 0.0, False


class _OfTotals(msgspec.Struct, frozen=True):
    """The profile inside a `totals` record."""

    profile: Profile = msgspec.field(default_factory=Profile)


_of_totals = FactDecoder(_OfTotals)


def _times_of(models: dict[str, ModelTimes], name: str) -> ModelTimes:
    found = models.get(name)
    if found is None:  # not `setdefault`, which would make an object for every step
        found = models[name] = ModelTimes()
    return found


def _halved(spans: list[float]) -> list[float]:
    return [sum(spans[first : first + 2]) for first in range(0, len(spans), 2)]


@lru_cache(16)
def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


@lru_cache(256)
def _model_of(cell: str) -> str:
    return cell_names(cell)[1]
