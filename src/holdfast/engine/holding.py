"""Holding a request back: for its model's turn, for what its run may spend, for a job of a batch API.

Invariant: while a request is held back it is not under way. Its sample's clock stands still, unless something else of
the sample is under way, and none of the waiting counts as time that the model took.
"""

import time
from collections.abc import Callable

from holdfast.models.timing import Timer, under_way
from holdfast.solve.stopwatch import running


class Held:
    """While a request waits before it is sent. A class, because thousands wait at a time."""

    __slots__ = ("_began", "_clock", "_timer", "_watch")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._timer = under_way.get()
        self._watch = running.get()
        self._began = 0.0

    def __enter__(self) -> None:
        if self._watch is not None:
            self._watch.hold()
        self._began = self._clock()

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.let_go()
        if self._timer is not None:
            self._count(self._timer, self._began, self._clock())

    def _count(self, timer: Timer, began: float, now: float) -> None:
        timer.held(now - began)


class HeldByLine(Held):
    """Likewise, by its model's line, which knows for how long a rate limit has held back everything."""

    __slots__ = ("_limited", "_limited_seconds")

    def __init__(self, clock: Callable[[], float], limited_seconds: Callable[[float], float]) -> None:
        super().__init__(clock)
        self._limited_seconds = limited_seconds
        self._limited = limited_seconds(clock())

    def _count(self, timer: Timer, began: float, now: float) -> None:
        timer.held(now - began, self._limited_seconds(now) - self._limited)


class InJob(Held):
    """While it is a part of a job of a batch API, or of one that is being gathered."""

    __slots__ = ()

    def _count(self, timer: Timer, began: float, now: float) -> None:
        timer.was_in_job(now - began)
