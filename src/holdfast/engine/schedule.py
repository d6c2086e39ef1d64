"""Which key comes next: a stream of tickets for each cell, and the limit on recorded data that is loaded at a time.

Tickets are read ahead in a thread, so that the event loop never waits for a file. Invariant: a key that is finished or
failed gets no ticket. `LoadLimit` bounds the memory of a resume whose samples have large recorded steps.
"""

import asyncio
import contextlib
import copy
import ctypes
import functools
import gc
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec

from holdfast.plan import DataLine, PreparedTask, data_lines, planned_lines
from holdfast.records import Cell, Sample
from holdfast.spec import Spec

_AHEAD = 512
IsOpen = Callable[[int], bool]


class Ticket(msgspec.Struct, frozen=True):
    """One key of the plan, with its row."""

    o: int
    key: str
    sample: Sample
    cell: Cell


class Tickets:
    """The keys of one cell that still need an answer, in plan order."""

    def __init__(self, run: str, cell: Cell, spec: Spec, work: PreparedTask, is_open: IsOpen | None = None) -> None:
        """`is_open`: whether a key still needs an answer; None if all do."""
        self.cell = cell
        self._stream = _tickets(run, cell, spec, work, is_open)
        self._ready: deque[Ticket] = deque()
        self._reading: asyncio.Future[None] | None = None
        self._empty = False

    def all(self) -> Iterator[Ticket]:
        """Iterate over the rest of them. Blocks while it reads: for threads."""
        return self._stream

    def at_hand(self) -> Ticket | None:
        """Return the next ticket if it has been read already, without waiting."""
        if len(self._ready) < _AHEAD // 2 and self._reading is None and not self._empty:
            self._reading = asyncio.ensure_future(self._read())  # before the last one is taken: no worker has to wait
        return self._ready.popleft() if self._ready else None

    async def next(self) -> Ticket | None:
        """Return the next ticket; None when none is left."""
        while (ticket := self.at_hand()) is None and self._reading is not None:
            await asyncio.shield(self._reading)  # all workers wait for it: cancelling one must not cancel it
        return ticket

    async def _read(self) -> None:
        batch = await asyncio.to_thread(lambda: list(itertools.islice(self._stream, _AHEAD)))
        self._empty = len(batch) < _AHEAD
        self._ready.extend(batch)
        self._reading = None


def _tickets(run: str, cell: Cell, spec: Spec, work: PreparedTask, is_open: IsOpen | None) -> Iterator[Ticket]:
    """Walk the plan and the data side by side. Only the rows of open keys are decoded."""
    rows: Iterator[DataLine | _DatasetRow] = (
        data_lines(run, cell) if spec.record_data else _rows_from_dataset(run, cell, spec, work)
    )
    row = next(rows, None)
    for line in planned_lines(run, cell):
        while row is not None and row.r < line.r:
            row = next(rows)
        if is_open is None or is_open(line.o):
            assert row is not None
            yield Ticket(line.o, line.k, row.sample(), cell)  # a copy for each repeat: a solver may change its row


class _DatasetRow(msgspec.Struct, frozen=True):
    """A row of the user's data, with its number in the data file of the run."""

    r: int
    given: Sample

    def sample(self) -> Sample:
        return copy.deepcopy(self.given)


def _rows_from_dataset(run: str, cell: Cell, spec: Spec, work: PreparedTask) -> Iterator[_DatasetRow]:
    """With `record_data: false` the run holds only ids: take rows from the user's data, whose digests were checked."""
    given = work.samples(spec)
    for line in data_lines(run, cell):
        sample = next((each for each in given if each.id == line.id), None)
        if sample is None:
            return
        yield _DatasetRow(line.r, sample)


LOADED_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of records. What is made of them (decoded text, a copy for the solver, the next record) takes 4 times more."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE_BLOCK_BYTES = 2 * 1024 * 1024


class LoadLimit:
    """Limits the recorded bytes that samples hold at a time, first come, first served. Belongs to one event loop."""

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
