"""Equal work is done once for all who want it at the same time: fifty open pages of a live run load the same page after
every event.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedWork(Generic[T]):
    """Work by key. Nobody gets a result of work that had begun before the request: it may be out of date. So a request
    starts the work, or waits for the one after that which is in progress, together with all others that do.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[T]] = {}
        self._next: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        running = self._running.get(key)
        if running is None:
            return await asyncio.shield(self._start(key, work))
        task = self._next.get(key) or self._follow(key, work, running)
        return await asyncio.shield(task)  # if one of those who wait goes away, the others still want it

    def _start(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> "asyncio.Task[T]":
        async def run() -> T:
            return await work()

        task = self._running[key] = asyncio.create_task(run())
        task.add_done_callback(functools.partial(self._forget, key))
        return task

    def _follow(self, key: Hashable, work: Callable[[], Awaitable[T]], running: "asyncio.Task[T]") -> "asyncio.Task[T]":
        async def run() -> T:
            await asyncio.wait([running])
            task = self._running[key] = self._next.pop(key)
            task.add_done_callback(functools.partial(self._forget, key))
            return await work()

        task = self._next[key] = asyncio.create_task(run())
        return task

    def _forget(self, key: Hashable, task: "asyncio.Task[T]") -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # if all who waited have gone away, nobody needs to know
