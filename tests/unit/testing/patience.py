"""Waiting for something that another task brings about, without a fixed time."""

import asyncio
from collections.abc import Callable

_PAUSE_SECONDS = 0.001
_PAUSES_MAX = 30_000


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(_PAUSES_MAX):
        if condition():
            return
        await asyncio.sleep(_PAUSE_SECONDS)
    raise AssertionError("it never happened")
