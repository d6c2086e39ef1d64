"""A number of places that many want: who finds one free takes it at once, the others wait in order.

Every sample passes several of these, so taking a free place costs no coroutine. Invariant: as many places are taken as
were taken and not given back; one that is given back goes to whoever waits longest.
"""

import asyncio
from collections import deque


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
