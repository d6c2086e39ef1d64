"""Doing several things at once, and losing none of them."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(parts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each of them comes to, in their order. If one fails, the others end first: what they have asked is paid for,
    and the next attempt gets it.
    """
    found = await asyncio.gather(*parts, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]
