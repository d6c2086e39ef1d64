"""What a progress display shows: one row for each model and one for all, and lines about waits and failures.

Pure: made from the engine's counters and a time. `lines` and `page` turn it into text and HTML, so that a terminal, a
log and a notebook show the same numbers. A time is in seconds of any monotonic clock.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.report.tables import duration, short
from holdfast.report.text import counted, first_line

if TYPE_CHECKING:
    from holdfast.engine import ModelProgress, Progress

_REASON_WIDTH = 200
_WINDOW_SECONDS = 60.0
_WINDOW_SAMPLES = 20
_RATE_AFTER_SECONDS = 0.5
_LEFT_AFTER_SECONDS = 2.0
_LEFT_AFTER_SAMPLES = 3
_IDLE_SECONDS = 60.0


class RateWindow:
    """How fast the samples of one model, or of a whole run, finish, and how long the rest takes.

    The rate is that of the last minute, or of the last 20 samples if these took longer, so that it follows a server
    that becomes slower and does not jump with every answer. Only samples of this process count. The time left is
    unknown (None) while it could only be guessed: before three samples have finished, and when none has finished for
    long.
    """

    def __init__(self, started: float, before: int) -> None:
        """`before`: samples that were done when this process began."""
        self._first = (started, before)
        self._points = deque([self._first])
        """Times at which the number of samples that are done had changed, and the number."""

    def note(self, now: float, done: int) -> None:
        """Note how many are done. Call it a few times a second."""
        points = self._points
        if done != points[-1][1]:
            points.append((now, done))
        while len(points) > 1 and now - points[1][0] >= _WINDOW_SECONDS and done - points[1][1] >= _WINDOW_SAMPLES:
            points.popleft()

    def rate(self, now: float) -> float | None:
        """Samples a second; None if nothing is known yet."""
        began, before = self._points[0]
        done = self._points[-1][1] - before
        return done / (now - began) if done and now - began >= _RATE_AFTER_SECONDS else None

    def average(self) -> float | None:
        """Samples a second from the start to the last one that finished."""
        (began, before), (ended, done) = self._first, self._points[-1]
        return (done - before) / (ended - began) if done > before and ended - began >= _RATE_AFTER_SECONDS else None

    def seconds_left(self, left: int, now: float) -> float | None:
        """How long `left` more samples take; None if that is unknown."""
        (began, before), (changed, done) = self._first, self._points[-1]
        rate, idle = self.rate(now), now - changed
        if rate is None or done - before < _LEFT_AFTER_SAMPLES or now - began < _LEFT_AFTER_SECONDS:
            return None
        if idle > _IDLE_SECONDS and 2 * idle > now - self._points[0][0]:  # a server that is down, or a batch job
            return None
        return left / rate


class ProgressRow(msgspec.Struct, frozen=True):
    """One model, or the whole run."""

    name: str
    done: int
    """Finished or failed, by any process of the run. While saved answers are scored: those that have scores."""
    planned: int
    failed: int
    """Samples; while saved answers are scored: how often a scorer failed."""
    state: Literal["running", "done", "stopped"]
    rate: float | None = None
    """Samples a second; None if unknown."""
    left: float | None = None
    """Seconds until all are done; None if unknown."""
    dollars: float | None = None
    has_unpriced: bool = False
    """The dollars are not all: a model without a price was used."""
    scores: tuple[float | None, ...] = ()
    """The mean so far of each of `ProgressView.scorers`."""


class ProgressView(msgspec.Struct, frozen=True):
    """The state of a run at one moment."""

    total: ProgressRow
    models: tuple[ProgressRow, ...] = ()
    """Empty unless there are several."""
    scorers: tuple[str, ...] = ()
    activity: tuple[str, ...] = ()
    """What the run is doing: samples in flight, tokens."""
    waits: tuple[str, ...] = ()
    """What it waits for, and its retries."""
    is_waiting: bool = False
    """Requests are held back now."""
    last_failure: str = ""
    seconds: float = 0.0
    """Since this process began."""
    ended: bool = False


class ProgressTracker:
    """Makes views of one run. Keeps what a rate needs: how many samples were done when."""

    def __init__(self) -> None:
        self._windows: dict[str, RateWindow] = {}

    def view(self, progress: "Progress", now: float, *, ended: bool = False) -> ProgressView:
        scorers = tuple(progress.scorers)
        rows = tuple(
            self._row(name, model, (progress.started, now), scorers) for name, model in progress.models.items()
        )
        if progress.scoring:
            rows = tuple(
                msgspec.structs.replace(row, failed=model.scorer_failures)
                for row, model in zip(rows, progress.models.values(), strict=True)
            )
        return ProgressView(
            total=self._total(progress, now, rows, ended),
            models=rows if len(rows) > 1 else (),
            scorers=scorers,
            activity=() if ended else tuple(_activity(progress)),
            waits=tuple(_waits(progress, now, ended)),
            is_waiting=bool(progress.held) and not ended,
            last_failure=first_line(progress.last_failure, _REASON_WIDTH),
            seconds=now - progress.started,
            ended=ended,
        )

    def _row(self, name: str, model: "ModelProgress", span: tuple[float, float], scorers: Sequence[str]) -> ProgressRow:
        (started, now), done = span, model.finished + model.failed
        window = self._window(name, started, model.before)
        window.note(now, done)
        left = model.planned - done - model.stopped
        state: Literal["running", "done", "stopped"] = "running" if left > 0 else "stopped" if model.stopped else "done"
        means = [model.scores.get(scorer) for scorer in scorers]
        return ProgressRow(
            name=name,
            done=done,
            planned=model.planned,
            failed=model.failed,
            state=state,
            rate=window.rate(now) if left > 0 else window.average(),
            left=window.seconds_left(left, now) if left > 0 else None,
            dollars=model.dollars,
            has_unpriced=model.has_unpriced,
            scores=tuple(None if mean is None else mean.value for mean in means),
        )

    def _total(self, progress: "Progress", now: float, rows: Sequence[ProgressRow], ended: bool) -> ProgressRow:
        """The models work side by side, so the slowest decides how long it takes."""
        done = progress.finished + progress.failed
        window = self._window("", progress.started, progress.before)
        window.note(now, done)
        running = [row for row in rows if row.state == "running"]
        lefts = [row.left for row in running]
        if not rows:
            lefts = [window.seconds_left(progress.planned - done, now)]
        known = [left for left in lefts if left is not None]
        prices = [row.dollars for row in rows if row.dollars is not None]
        is_over = ended or done >= progress.planned
        return ProgressRow(
            name="total",
            done=done,
            planned=progress.planned,
            failed=progress.scorer_failures if progress.scoring else progress.failed,
            state="done" if done >= progress.planned else "running" if running or not rows else "stopped",
            rate=window.average() if is_over else window.rate(now),
            left=max(known) if known and len(known) == len(lefts) else None,
            dollars=sum(prices) if prices else None,
            has_unpriced=any(row.has_unpriced for row in rows),
            scores=rows[0].scores if len(rows) == 1 else (),
        )

    def _window(self, name: str, started: float, before: int) -> RateWindow:
        return self._windows.setdefault(name, RateWindow(started, before))


def _activity(progress: "Progress") -> Iterator[str]:
    if progress.shards:  # counted from leases, which know neither requests nor tokens
        yield f"{counted(progress.workers, 'worker')}, {progress.shards_done} of {progress.shards} shards done"
        yield f"{counted(progress.in_flight, 'sample')} in flight"
        return
    yield f"{counted(progress.in_flight, 'sample')} in flight"
    if progress.at_once:
        yield f"{progress.sending} of at most {counted(progress.at_once, 'request')}"
    if not progress.scoring:
        yield f"{short(progress.usage.input_tokens + progress.usage.output_tokens)} tokens"
    if progress.replayed:
        yield f"{counted(progress.replayed, 'step')} replayed"
    if 0 < progress.scored < progress.to_score:
        yield f"{progress.scored:,} of {progress.to_score:,} saved answers scored"
    if progress.scorer_failures and not progress.scoring:
        yield counted(progress.scorer_failures, "scorer failure")
    if progress.anomalies:
        yield counted(progress.anomalies, "anomaly", "anomalies")


def _waits(progress: "Progress", now: float, ended: bool) -> Iterator[str]:
    """The reason of the last retry comes last: it may be long."""
    if progress.retried:
        yield counted(progress.retried, "retry", "retries")
    if not ended:
        if progress.held:
            yield first_line(progress.held, _REASON_WIDTH)
        if progress.batch_jobs:
            yield jobs_text(progress.batch_jobs, progress.batch_requests, now - progress.batch_since)
        if progress.mirror_behind:
            yield f"mirror {duration(progress.mirror_behind)} behind"
    # A run that stops asking a server ends with the cause in its report.
    if progress.last_retry and not (ended and any(model.stopped for model in progress.models.values())):
        yield f"last retry: {first_line(progress.last_retry, _REASON_WIDTH)}"


def jobs_text(jobs: int, requests: int, oldest_seconds: float) -> str:
    """Batch jobs that wait for their servers."""
    noun = "request" if requests == 1 else "requests"
    return f"{counted(jobs, 'job')}, {requests:,} {noun} waiting, oldest {duration(max(oldest_seconds, 0.0))}"
