"""How fast each model was, a second time, from the journal: every duration is kept, none is counted in buckets.

Used by `comparison`.
"""

import math
from array import array
from datetime import datetime

import msgspec

from holdfast.records import Line
from holdfast.records.durations import RELATIVE_ERROR, SHORTEST
from holdfast.records.facts import Step
from holdfast.records.keys import parse_key
from holdfast.state.profile import APART_SECONDS

COUNTS = ("requests", "answered", "failed", "retries", "batched", "input_tokens", "output_tokens")


class Speed(msgspec.Struct):
    """What one model was asked, and how long that took."""

    requests: int = 0
    answered: int = 0
    failed: int = 0
    retries: int = 0
    batched: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    limited: float = 0.0
    """Of what was waited for, because of rate limits."""
    waited: float = 0.0
    """From asking to the end, over all requests."""
    phases: "dict[str, array[float]]" = msgspec.field(default_factory=dict)

    @property
    def limited_share(self) -> float | None:
        return self.limited / self.waited if self.waited and "queue" in self.phases else None

    def took(self, phase: str, seconds: float) -> None:
        """What is too short to be measured is nothing."""
        self.phases.setdefault(phase, array("d")).append(seconds if seconds >= SHORTEST else 0.0)

    def add(self, step: Step) -> None:
        self.requests += step.tries
        self.retries += max(step.tries - 1, 0)
        self.batched += bool(step.batch)
        if step.answer is None:
            self.failed += 1
        else:
            self.answered += 1
            self.input_tokens += step.answer.usage.input_tokens
            self.output_tokens += step.answer.usage.output_tokens
        if not step.batch:
            self._time(step)

    def _time(self, step: Step) -> None:
        timing = step.timing
        self.waited += step.seconds + (timing.queue if timing is not None else 0.0)
        self.limited += timing.limited if timing is not None else 0.0
        if step.answer is None:
            return
        self.took("request", step.seconds)
        if timing is not None:
            self.took("queue", timing.queue)
            if timing.first:
                self.took("connect", timing.connect)
                self.took("first byte", timing.first)
                self.took("generate", step.seconds - timing.lost - timing.connect - timing.first)


class Speeds:
    """Of all models, and how long somebody was at work on the run."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, bool], Speed] = {}
        """By name; True for that of a role."""
        self._over: list[tuple[float, bool]] = []
        """Seconds of each sitting that is over, and whether samples sent requests in it."""
        self._is_asking = False
        self._since: float | None = None
        """When the sitting began that is not over."""
        self._seen = 0.0
        self._is_process = False
        """It is that of a process which has not said that it ended; else somebody scores."""
        self._epoch = 0

    @property
    def worked(self) -> float:
        return sum(seconds for seconds, _ in self._sittings())

    @property
    def asking(self) -> float:
        """Of the sittings in which samples sent requests."""
        return sum(seconds for seconds, is_asking in self._sittings() if is_asking)

    def _sittings(self) -> list[tuple[float, bool]]:
        if self._since is None:
            return self._over
        return [*self._over, (max(self._seen - self._since, 0.0), self._is_asking)]

    def opened(self, epoch: int) -> None:
        """A segment begins, perhaps that of another process."""
        if epoch != self._epoch:
            self._end(self._seen)
            self._epoch = epoch

    def began(self, line: Line) -> None:
        self._end(self._seen)
        self._since, self._is_process = _time_of(line), True
        self._seen = max(self._seen, self._since)

    def ended(self, line: Line) -> None:
        at = _time_of(line)
        self._see(at, at)
        self._end(at)
        self._is_process = False

    def step(self, step: Step, line: Line) -> None:
        if step.origin:
            return
        self._see(_time_of(line) - step.seconds, _time_of(line))
        own = self._of(line)
        if step.kind == "call":
            own.took("tools", step.seconds)
        elif step.asked is not None:
            role = step.asked.role
            if step.scope.partition("/")[0] != "score":
                self._is_asking = True
            (self.models.setdefault((role, True), Speed()) if role else own).add(step)

    def scored(self, seconds: float, line: Line) -> None:
        self._see(_time_of(line) - seconds, _time_of(line))
        if seconds:
            self._of(line).took("score", seconds)

    def _of(self, line: Line) -> Speed:
        return self.models.setdefault((parse_key(line.k or "").model, False), Speed())

    def _see(self, since: float, at: float) -> None:
        if self._since is not None and not self._is_process and since - self._seen > APART_SECONDS:
            self._end(self._seen)
        if self._since is None:
            self._since = since
        self._seen = max(self._seen, at)

    def _end(self, at: float) -> None:
        if self._since is not None:
            self._over.append((max(at - self._since, 0.0), self._is_asking))
        self._since, self._is_asking = None, False


def quantiles(durations: "array[float]") -> dict[str, tuple[float, float]]:
    """By name, what a report should say of a phase, and by how much it may be off: it counts in buckets, and rounds."""
    ordered = sorted(durations)
    found = {"count": (float(len(ordered)), 0.0)}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        seconds = ordered[max(math.ceil(share * len(ordered)), 1) - 1]
        found[name] = (seconds, SHORTEST + seconds * RELATIVE_ERROR)
    return found | {"max": (ordered[-1], 1e-6), "seconds": (math.fsum(ordered), 1e-3)}


def _time_of(line: Line) -> float:
    return datetime.fromisoformat(line.at).timestamp()
