"""How much a test server bears: so many requests at a time, so many a second, so many lanes behind a queue."""

import asyncio
from collections import deque

import msgspec


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is too much. Nothing stated: nothing is.

    `in_flight`: with more than so many under way the rest is refused · `per_second`: a bucket of so many that fills so
    fast; what it does not hold is refused · `lanes`: so many are answered at a time, the others wait in order, and are
    not refused. A refusal has `status`, and `Retry-After` if that is said; with `tells`, all answers have the headers
    `x-ratelimit-*-requests` of the bucket.
    """

    in_flight: int | None = None
    per_second: float | None = None
    lanes: int | None = None
    status: int = 429
    retry_after: str = ""
    tells: bool = False


class Bearing:
    """How much a server bears at the moment."""

    def __init__(self) -> None:
        self._bucket = 0.0
        self._filled_at: float | None = None
        self._busy = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    def takes(self, load: Load, in_flight: int, now: float) -> bool:
        """Whether a request is taken; `in_flight`: with itself."""
        if load.in_flight is not None and in_flight > load.in_flight:
            return False
        if load.per_second is None:
            return True
        before = self._filled_at if self._filled_at is not None else now - 1.0
        self._bucket = min(max(load.per_second, 1.0), self._bucket + (now - before) * load.per_second)
        self._filled_at = now
        if self._bucket < 1.0:
            return False
        self._bucket -= 1.0
        return True

    def headers(self, load: Load) -> dict[str, str]:
        if not load.tells or load.per_second is None:
            return {}
        size = max(load.per_second, 1.0)
        return {
            "x-ratelimit-limit-requests": f"{size:.0f}",
            "x-ratelimit-remaining-requests": f"{int(self._bucket)}",
            "x-ratelimit-reset-requests": f"{1000 * (size - self._bucket) / load.per_second:.0f}ms",
        }

    async def enter(self, load: Load) -> None:
        """Wait for a lane."""
        if load.lanes is not None and self._busy >= load.lanes:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            await turn
        self._busy += 1

    def leave(self, load: Load) -> None:
        self._busy -= 1
        while self._queue and (load.lanes is None or self._busy < load.lanes):
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
