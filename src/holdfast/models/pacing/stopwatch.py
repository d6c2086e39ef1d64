"""A sample's time of work: it stands still while all that the sample has asked for is held back: by a model's line, by
its run's budget, in a job.

So neither a time limit nor a recorded duration depends on how busy the line is. Whoever holds a request back finds the
sample's stopwatch in `running`; code outside of any sample has none.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar

from holdfast.models.timing import Timer, under_way


class Stopwatch:
    """Of one attempt. What is held back at the same time counts once, and not while something else is under way."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked = 0
        self._holding = 0
        self._is_still = False
        self._since = 0.0
        self._held = 0.0
        self._limit: asyncio.Timeout | None = None
        self._left = 0.0

    def held_seconds(self) -> float:
        """For how long it has stood still."""
        return self._held + (self._clock() - self._since if self._is_still else 0.0)

    def obey(self, limit: asyncio.Timeout | None) -> None:
        """A time limit that is put off by as long as it stands still; None when it is over."""
        self._limit = limit

    def begin(self) -> None:
        """Something is asked for; `end` when it is there."""
        self._asked += 1
        if self._holding:
            self._look()

    def end(self) -> None:
        self._asked -= 1
        if self._holding:
            self._look()

    def hold(self) -> None:
        """Something that was asked for is held back; `let_go` when it no longer is."""
        self._holding += 1
        self._look()

    def let_go(self) -> None:
        self._holding -= 1
        self._look()

    def _look(self) -> None:
        is_still = 0 < self._holding >= self._asked
        if is_still and not self._is_still:
            self._since = self._clock()
            self._put_off()
        elif self._is_still and not is_still:
            self._held += self._clock() - self._since
            self._put_back()
        self._is_still = is_still

    def _put_off(self) -> None:
        limit = self._limit
        due = limit.when() if limit is not None and not limit.expired() else None
        if limit is not None and due is not None:
            self._left = due - asyncio.get_running_loop().time()
            limit.reschedule(None)

    def _put_back(self) -> None:
        limit = self._limit
        if limit is not None and not limit.expired() and limit.when() is None:
            limit.reschedule(asyncio.get_running_loop().time() + self._left)


running: ContextVar[Stopwatch | None] = ContextVar("running", default=None)


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
