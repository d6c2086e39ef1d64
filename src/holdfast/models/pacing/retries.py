"""The one retry layer: `ask` is the only loop that sends a request again. Providers never retry by themselves, so the
recorded number of tries is the number of requests that were sent.

Where a retry is decided: whether an error is retryable at all is in the table `POLICIES` (`holdfast.models.failures`);
how many retries there are is `request_retries` of the model; whether a try counts, and who waits, is the `Again` that
`Admission.failed` returns. In a run the admission is `PacedRequest` in `holdfast.engine.client`.

The admission does all the waiting: for its turn, and for the pause before a retry. Pauses grow exponentially with full
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

_DOUBLINGS_MAX = 60  # any sensible maximum is reached long before; more would overflow a float


class Retries(msgspec.Struct, frozen=True):
    """How often to retry, and how long to wait before each retry. `random` returns numbers in [0, 1)."""

    count: int = 5
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    seconds_base: float = 0.5
    seconds_max: float = 30.0
    told: Callable[[ModelError], None] = lambda error: None
    """Called with the error before each retry."""


class Again(msgspec.Struct, frozen=True):
    """How a failed try is retried."""

    counts: bool = True
    """It uses up one of the retries."""
    waits: bool = True
    """The request pauses by itself before it queues again; else the limiter delays all requests of the model."""


class Admission(Protocol):
    """Decides when each try of one request may be sent, and learns its outcome."""

    async def enter(self, seconds: float) -> None:
        """Return when it may be sent, after at least so many seconds."""

    def answered(self, answer: Answer) -> None: ...

    async def failed(self, error: ModelError) -> Again:
        """How to retry. Raises if the request must not be retried; may never return if its result is not needed."""

    def dropped(self) -> None:
        """The try ended without a result: a cancellation, or a bug in a provider."""


async def ask(
    provider: Provider, request: Request, retries: Retries, passage: Admission | None = None
) -> tuple[Answer, int]:
    """The answer and the number of tries. Raises the last ModelError, with its `tries`, when no retry is left."""
    gate = passage if passage is not None else _Unlimited(retries)
    tries, used, wait = 1, 0, 0.0
    while True:
        await gate.enter(wait)
        try:
            answer = await provider.generate(request)
        except ModelError as error:
            error.tries = tries
            again = await gate.failed(error)
            used += again.counts
            if used > retries.count or not error.retryable:
                raise
            retries.told(error)
            wait = _wait_seconds(error, tries, retries) if again.waits else 0.0
        except BaseException:
            gate.dropped()
            raise
        else:
            gate.answered(answer)
            return answer, tries
        tries += 1


class _Unlimited:
    """No limiter: each request waits only for its own pause."""

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
