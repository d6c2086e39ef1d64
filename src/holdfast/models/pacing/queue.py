"""The queue of one model's requests in front of its limiter, and slots that bound what runs at a time.

Invariants: a request is sent only when the limiter (`Pace`) allows it, in the order of arrival, retries first. A turn
or a slot that was granted at the moment of a cancellation is passed on, so none is ever lost.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable

from holdfast.models.pacing.pace import Pace

_Waiter = tuple["asyncio.Future[bool]", float]


class RequestQueue:
    """The queue of one model. Call `hand_out` after every event that may let a request through."""

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        self._pace = pace
        self._clock = clock
        self._waiting: deque[_Waiter] = deque()
        self._released = False
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        self._limited = 0.0
        self._looked_at = 0.0
        self._held = 0.0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, tokens: float) -> bool:
        """Take a turn if one is free and no request waits; else `await wait()` for one."""
        now = self._clock()
        if not self._released and (self._waiting or not self._pace.is_free(now)):
            return False
        self._pace.sent(now, tokens)
        return True

    async def wait(self, tokens: float, *, first: bool) -> bool:
        """Wait for a turn and take it. True if the request is a probe of a server that is down."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft((turn, tokens))
        else:
            self._waiting.append((turn, tokens))
        self.hand_out()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # granted at the moment of the cancellation: pass it on
                self._pace.dropped(turn.result())
                self.hand_out()
            elif (turn, tokens) in self._waiting:
                self._waiting.remove((turn, tokens))
            raise

    def limited_seconds(self, now: float) -> float:
        """How long a rate limit has delayed the whole queue so far. A request takes the difference of two readings."""
        self._limited += min(now - self._looked_at, self._held)
        self._looked_at, self._held = now, self._pace.held_seconds(now)
        return self._limited

    def hand_out(self) -> None:
        """Grant turns to waiting requests, as many as the limiter allows, and set the timer for the next."""
        if not self._waiting:
            return
        now = self._clock()
        self.limited_seconds(now)
        while self._waiting:
            seconds = 0.0 if self._released else self._pace.wait(now)
            if seconds > 0:
                self._held = self._pace.held_seconds(now)  # the delay behind those that were just let through
                self._wake_in(now, seconds)
                return
            turn, tokens = self._waiting.popleft()
            if not turn.done():
                turn.set_result(self._pace.sent(now, tokens))

    def release(self) -> None:
        """From now on let every request through at once: the model is closed, and each request must find that out."""
        self._released = True
        self.hand_out()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wake_in(self, now: float, seconds: float) -> None:
        """Set the timer. One that fires earlier is kept: it checks again."""
        if math.isinf(seconds) or (self._timer is not None and self._wakes_at <= now + seconds):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = now + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.hand_out()


class Slots:
    """A semaphore of `limit` slots whose limit can change. A smaller limit takes effect as slots are given back."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot if one is free and nobody waits; else `await wait()` for one."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return True
        return False

    async def wait(self) -> None:
        """Wait for a slot and take it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # granted at the moment of the cancellation: pass it on
                self.give_back()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def give_back(self) -> None:
        self._free += 1
        if self._waiting:
            self._hand_out()

    def change(self, limit: int) -> None:
        """Change the limit."""
        self._free += limit - self._limit
        self._limit = limit
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
