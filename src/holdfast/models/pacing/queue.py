"""Whose turn it is to ask a model: a queue in front of its pace, and the one timer that wakes it.

Invariant: a request is sent only when the pace says so, in the order of arrival; those that are made again come first.
A turn that was given in the moment of a cancellation is passed on.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable

from holdfast.models.pacing.pace import Pace

_Waiter = tuple["asyncio.Future[bool]", float]


class Turns:
    """Of one model. After everything that may let a request through: `hand_out`."""

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
        """Take a turn if one is free and nobody waits; else `await wait()` for it."""
        now = self._clock()
        if not self._released and (self._waiting or not self._pace.is_free(now)):
            return False
        self._pace.sent(now, tokens)
        return True

    async def wait(self, tokens: float, *, first: bool) -> bool:
        """Wait for a turn and take it. Whether it is a probe of a server that is down."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft((turn, tokens))
        else:
            self._waiting.append((turn, tokens))
        self.hand_out()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pace.dropped(turn.result())
                self.hand_out()
            elif (turn, tokens) in self._waiting:
                self._waiting.remove((turn, tokens))
            raise

    def limited_seconds(self, now: float) -> float:
        """How long a rate limit has held back everything, in all, as far as it was seen: of use as a difference, by
        whoever waits meanwhile.
        """
        self._limited += min(now - self._looked_at, self._held)
        self._looked_at, self._held = now, self._pace.held_seconds(now)
        return self._limited

    def hand_out(self) -> None:
        """Give turns to whoever waits, as long as there are any."""
        if not self._waiting:
            return
        now = self._clock()
        self.limited_seconds(now)
        while self._waiting:
            seconds = 0.0 if self._released else self._pace.wait(now)
            if seconds > 0:
                self._held = self._pace.held_seconds(now)  # as it is behind those that were let through
                self._wake_in(now, seconds)
                return
            turn, tokens = self._waiting.popleft()
            if not turn.done():
                turn.set_result(self._pace.sent(now, tokens))

    def release(self) -> None:
        """From now on let everybody through, whatever the pace says: the line is closed, and they are to meet that."""
        self._released = True
        self.hand_out()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wake_in(self, now: float, seconds: float) -> None:
        """A timer that comes earlier is left as it is: it looks again."""
        if math.isinf(seconds) or (self._timer is not None and self._wakes_at <= now + seconds):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = now + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.hand_out()


class Places:
    """At most `limit` at a time. A smaller limit counts when places are given back."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place if one is free and nobody waits; else `await wait()` for it."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return True
        return False

    async def wait(self) -> None:
        """Wait for a place and take it. A place that was given in the moment of a cancellation is passed on."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def give_back(self) -> None:
        self._free += 1
        self._hand_out()

    def change(self, limit: int) -> None:
        """From now on so many."""
        self._free += limit - self._limit
        self._limit = limit
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
