"""Running several coroutines at once without losing a response that is paid for."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(parts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return their results in order. If one fails, wait for the others first: their requests are paid for, and the next
    attempt replays them.
    """
    found = await asyncio.gather(*parts, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]
