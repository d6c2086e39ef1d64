"""A limit, in bytes, on the recorded data that a resume holds in memory at a time.

Samples that continue load their recorded steps, and answers without scores are loaded to be scored. Hundreds of samples
are in flight at a time, so a limit on their number does not bound memory: answers can be 20 MB each. Only large records
count (`holdfast.state.LARGE_RECORD_BYTES`): the memory for small ones is that of a live run.

Invariant: at most `limit` bytes are held, or one sample's data if that alone is more.
"""

import asyncio
import contextlib
import ctypes
import functools
import gc
from collections import deque
from collections.abc import AsyncIterator

LOADED_BYTES_MAX = 32 * 1024 * 1024
"""Of records. What is made of them (decoded text, a copy for the solver, the next record) takes about 4 times that."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE_BLOCK_BYTES = 2 * 1024 * 1024


class LoadLimit:
    """Belongs to one event loop. First come, first served."""

    def __init__(self, limit: int = LOADED_BYTES_MAX) -> None:
        self._limit = limit
        self._held = 0
        self._garbage = 0  # bytes released since the last collection
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes; waits until there is room. 0 never waits.

        A caller must not hold twice: two callers could then wait for each other.
        """
        if size:
            _return_large_blocks()
            await self._acquire(size)
        try:
            yield
        finally:
            self._release(size)

    def _release(self, size: int) -> None:
        """Free what finished samples leave behind in reference cycles, before the next one loads: the engine raises the
        threshold of the garbage collector, so it would hold dozens of large answers.
        """
        self._held -= size
        self._garbage += size
        if self._garbage > self._limit // 4:
            self._garbage = 0
            gc.collect()
        self._admit()

    async def _acquire(self, size: int) -> None:
        if not self._queue and self._fits(size):
            self._held += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._held -= size  # admitted in the same moment
            elif (size, turn) in self._queue:
                self._queue.remove((size, turn))
            self._admit()
            raise

    def _fits(self, size: int) -> bool:
        return not self._held or self._held + size <= self._limit

    def _admit(self) -> None:
        while self._queue and self._fits(self._queue[0][0]):
            size, turn = self._queue.popleft()
            if not turn.done():
                self._held += size
                turn.set_result(None)


@functools.cache
def _return_large_blocks() -> None:
    """Make glibc return every large block to the system when it is freed. By default it keeps blocks of up to 32 MiB in
    the heap of each thread for later use, which doubled the peak of a resume (368 MB instead of 197). Other C libraries
    do not have these functions.
    """
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK_BYTES)
        library.malloc_trim(0)
