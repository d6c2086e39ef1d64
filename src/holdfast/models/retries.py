"""The one retry layer. No provider tries again by itself, so the count that is recorded is the count that was sent.

Waits grow exponentially with full jitter, so that clients that failed together do not come back together; a server's
Retry-After counts if it is longer. A cancellation passes straight through, waiting or asking.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.models.failures import ModelError
from holdfast.models.provider import Provider, Request
from holdfast.records.exchange import Answer

_DOUBLINGS_MAX = 60  # beyond it any sensible maximum was reached long ago, and a float would overflow


class Retries(msgspec.Struct, frozen=True):
    """How often to ask again, and how long to wait before. `random` gives numbers in [0, 1)."""

    count: int = 5
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    seconds_base: float = 0.5
    seconds_max: float = 30.0
    told: Callable[[ModelError], None] = lambda error: None
    """Hears why a request is made again."""


async def ask(provider: Provider, request: Request, retries: Retries) -> tuple[Answer, int]:
    """The answer and the number of tries it took. Raises the last ModelError, with its `tries`, when none is left."""
    tries = 1
    while True:
        try:
            return await provider.generate(request), tries
        except ModelError as error:
            error.tries = tries
            if tries > retries.count or not error.retryable:
                raise
            retries.told(error)
            wait = _wait_seconds(error, tries, retries)
        await retries.sleep(wait)
        tries += 1


def _wait_seconds(error: ModelError, tries: int, retries: Retries) -> float:
    longest = min(retries.seconds_max, retries.seconds_base * 2.0 ** min(tries - 1, _DOUBLINGS_MAX))
    return max(retries.random() * longest, error.retry_after or 0.0)
