"""The threads of sandboxes: one pool for commands, another for storing and restoring files.

So the files of a call that has ended are stored at once, however many commands wait for a thread. Invariant: a
cancelled caller gets its CancelledError only after its work in the thread has ended.
"""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

_COMMANDS_MIN = 4
_KEEPING = 4
T = TypeVar("T")


class WorkStopwatch:
    """Measures how long a call has worked. It is paused while all its commands wait for a thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting = 0
        self._working = 0
        self._since = clock()
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        self._note(0, 0)
        return self._seconds

    def wait(self) -> None:
        """A command starts to wait for a thread."""
        self._note(1, 0)

    def begin(self) -> None:
        """A waiting command got its thread."""
        self._note(-1, 1)

    def end(self) -> None:
        self._note(0, -1)

    def give_up(self) -> None:
        """A waiting command was cancelled."""
        self._note(-1, 0)

    def _note(self, waiting: int, working: int) -> None:
        now = self._clock()
        if self._working or not self._waiting:
            self._seconds += now - self._since
        self._since = now
        self._waiting += waiting
        self._working += working


class Threads:
    """The threads of one run, created on first use."""

    def __init__(self, commands: int = 0) -> None:
        """`commands`: how many run at once; by default it depends on the number of processors."""
        self._most = {"command": commands or max(_COMMANDS_MIN, 2 * (os.cpu_count() or 1)), "keeping": _KEEPING}
        self._pools: dict[str, ThreadPoolExecutor] = {}

    async def keep(self, work: Callable[[], T]) -> T:
        """Run something that ends soon by itself."""
        return await _end_of(self._pool("keeping").submit(work), lambda: None)

    async def command(self, work: Callable[[], T], stop: Callable[[], None], watch: WorkStopwatch) -> T:
        """Run something that may take long; `stop` ends it when the caller is cancelled."""
        loop = asyncio.get_running_loop()

        def begin() -> T:
            loop.call_soon_threadsafe(watch.begin)
            return work()

        watch.wait()
        job = self._pool("command").submit(begin)
        try:
            return await _end_of(job, stop)
        finally:
            if job.cancelled():
                watch.give_up()
            else:
                watch.end()

    def close(self) -> None:
        while self._pools:
            self._pools.popitem()[1].shutdown(wait=False)

    def _pool(self, name: str) -> ThreadPoolExecutor:
        if name not in self._pools:
            self._pools[name] = ThreadPoolExecutor(self._most[name], thread_name_prefix=f"sandbox-{name}")
        return self._pools[name]


async def _end_of(job: "Future[T]", stop: Callable[[], None]) -> T:
    """Return the result. On cancellation a job that has not begun is dropped; else it is stopped and awaited."""
    working = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if not job.cancel():
            stop()
            await _to_the_end(working)
        raise


async def _to_the_end(working: "asyncio.Future[Any]") -> None:
    """Wait until the thread is done, ignoring further cancellations."""
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            continue
    if not working.cancelled():
        working.exception()
