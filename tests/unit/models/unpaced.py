"""Requests without a limiter: each waits only for its own pause before a retry."""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast import models
from holdfast.models import ModelError, Provider, Request, Retries
from holdfast.models.pacing.retries import RetryDecision
from holdfast.records import Answer

Sleep = Callable[[float], Awaitable[None]]


class Unpaced:
    """Admits every try at once."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep
        self._is_first = True

    async def enter(self, seconds: float) -> None:
        if not self._is_first:
            await self._sleep(seconds)
        self._is_first = False

    def answered(self, answer: Answer) -> None: ...

    async def failed(self, error: ModelError) -> RetryDecision:
        return RetryDecision()

    def dropped(self) -> None: ...


async def ask(
    provider: Provider, request: Request, retries: Retries, sleep: Sleep = asyncio.sleep
) -> tuple[Answer, int]:
    return await models.generate_with_retries(provider, request, retries, Unpaced(sleep))
