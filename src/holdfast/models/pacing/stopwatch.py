"""The working time of a sample: a clock that stops while every request of the sample waits in a queue.

Requests wait for a model's limiter, for the run's budget or for a batch job. So neither a time limit nor a recorded
duration depends on how busy a model is. Code that delays a request finds the sample's stopwatch in the call
(`current_call`); code outside of any sample has none.
"""

import asyncio
import functools
import time
from collections.abc import Callable


@functools.lru_cache(1)
def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock of an event loop. That of asyncio's own loops is `time.monotonic` behind a method: every sample looks
    at it several times, so the method is left out. Cached for the same reason.
    """
    return time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time


class Stopwatch:
    """The clock of one attempt. It stops only while all of its requests wait; overlapping waits count once."""

    # Class attributes are the defaults: every sample creates a stopwatch, and few of them ever stop.
    asked = 0
    """How many requests of the sample have begun and not ended. Call `update` after each change while `holding`."""
    holding = 0
    """How many of them wait."""
    _is_stopped = False
    _since = 0.0
    _held = 0.0
    _limit: asyncio.Timeout | None = None
    _left = 0.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def held_seconds(self) -> float:
        """For how long it has been stopped in total."""
        return self._held + (self._clock() - self._since if self._is_stopped else 0.0)

    def set_limit(self, limit: asyncio.Timeout | None) -> None:
        """Set the time limit that is extended while the clock is stopped; None: there is none any more."""
        self._limit = limit

    def hold(self) -> None:
        """A request of the sample waits; call `let_go` when it is sent."""
        self.holding += 1
        self.update()

    def let_go(self) -> None:
        self.holding -= 1
        self.update()

    def update(self) -> None:
        """Stop or start the clock."""
        is_stopped = 0 < self.holding >= self.asked
        if is_stopped and not self._is_stopped:
            self._since = self._clock()
            self._suspend_limit()
        elif self._is_stopped and not is_stopped:
            self._held += self._clock() - self._since
            self._resume_limit()
        self._is_stopped = is_stopped

    def _suspend_limit(self) -> None:
        limit = self._limit
        due = limit.when() if limit is not None and not limit.expired() else None
        if limit is not None and due is not None:
            self._left = due - asyncio.get_running_loop().time()
            limit.reschedule(None)

    def _resume_limit(self) -> None:
        limit = self._limit
        if limit is not None and not limit.expired() and limit.when() is None:
            limit.reschedule(asyncio.get_running_loop().time() + self._left)
