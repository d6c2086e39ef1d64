"""The one retry layer: `ask` is the only loop that sends a request again. Providers never retry by themselves, so the
recorded number of tries is the number of requests that were sent.

Where a retry is decided: whether an error is retryable at all is in the table `POLICIES` (`holdfast.models.failures`);
how many retries there are is `request_retries` of the model; whether a try counts, and who waits, is the `Again` that
`Passage.failed` returns. In a run the passage is `PacedRequest` in `holdfast.engine.client`.

The passage does all the waiting: for its turn, and for the pause before a retry. Pauses grow exponentially with full
jitter, so that requests that failed together do not come back together. Cancellation passes straight through.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from holdfast.models.failures import ModelError
from holdfast.models.provider import Provider, Request
from holdfast.records.samples import Answer

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


class Again(msgspec.Struct, frozen=True):
    """How a try that failed is followed by the next."""

    counts: bool = True
    """It uses up one of the retries."""
    waits: bool = True
    """The request waits by itself before it queues again; else the line makes all of its requests wait."""


class Passage(Protocol):
    """What one request passes on each of its tries."""

    async def enter(self, seconds: float) -> None:
        """Return when it may be sent, not before so many seconds."""

    def answered(self, answer: Answer) -> None: ...

    async def failed(self, error: ModelError) -> Again:
        """Raises if the request is not to be made again though it could; may never return if nobody waits for it."""

    def dropped(self) -> None:
        """Neither an answer nor a failure came: a cancellation, or somebody's bug."""


async def ask(
    provider: Provider, request: Request, retries: Retries, passage: Passage | None = None
) -> tuple[Answer, int]:
    """The answer and the number of tries it took. Raises the last ModelError, with its `tries`, when none is left."""
    way = passage if passage is not None else _Open(retries)
    tries, used, wait = 1, 0, 0.0
    while True:
        await way.enter(wait)
        try:
            answer = await provider.generate(request)
        except ModelError as error:
            error.tries = tries
            again = await way.failed(error)
            used += again.counts
            if used > retries.count or not error.retryable:
                raise
            retries.told(error)
            wait = _wait_seconds(error, tries, retries) if again.waits else 0.0
        except BaseException:
            way.dropped()
            raise
        else:
            way.answered(answer)
            return answer, tries
        tries += 1


class _Open:
    """No line: each request for itself."""

    def __init__(self, retries: Retries) -> None:
        self._sleep = retries.sleep
        self._is_first = True

    async def enter(self, seconds: float) -> None:
        if not self._is_first:
            await self._sleep(seconds)
        self._is_first = False

    def answered(self, answer: Answer) -> None: ...

    async def failed(self, error: ModelError) -> Again:
        return Again()

    def dropped(self) -> None: ...


def _wait_seconds(error: ModelError, tries: int, retries: Retries) -> float:
    longest = min(retries.seconds_max, retries.seconds_base * 2.0 ** min(tries - 1, _DOUBLINGS_MAX))
    return max(retries.random() * longest, error.retry_after or 0.0)
