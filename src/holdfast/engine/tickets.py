"""Which key comes next: streams of tickets, one for each cell, read ahead in a thread so that the event loop never
waits for a file.
"""

import asyncio
import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from holdfast.plan import Work, data_lines, planned_lines
from holdfast.records.exchange import Sample
from holdfast.records.facts import Cell
from holdfast.spec import Spec

_AHEAD = 512


class Ticket(msgspec.Struct, frozen=True):
    """One key to be answered."""

    o: int
    key: str
    sample: Sample
    cell: Cell


class Tickets:
    """The keys of one cell that still need an answer, in plan order."""

    def __init__(self, run: str, cell: Cell, spec: Spec, work: Work, wanted: Callable[[int], bool]) -> None:
        self.cell = cell
        self._stream = _tickets(run, cell, spec, work, wanted)
        self._ready: deque[Ticket] = deque()
        self._filling = asyncio.Lock()
        self._empty = False

    def all(self) -> Iterator[Ticket]:
        """The rest of them, read as they are asked for; for who does not mind waiting for a file."""
        return self._stream

    def at_hand(self) -> Ticket | None:
        """The next ticket, if it has been read already."""
        return self._ready.popleft() if self._ready else None

    async def next(self) -> Ticket | None:
        """The next ticket; None when there is none left."""
        while not self._ready:
            async with self._filling:
                if self._ready:
                    break
                if self._empty:
                    return None
                batch = await asyncio.to_thread(lambda: list(itertools.islice(self._stream, _AHEAD)))
                self._empty = len(batch) < _AHEAD
                self._ready.extend(batch)
                if not batch:
                    return None
        return self._ready.popleft()


def _tickets(run: str, cell: Cell, spec: Spec, work: Work, wanted: Callable[[int], bool]) -> Iterator[Ticket]:
    """Walk the plan and the data side by side; rows of keys that are not wanted are not even decoded."""
    rows = _rows(run, cell, spec, work)
    number, make = next(rows, (0, None))
    for line in planned_lines(run, cell):
        while number < line.r:
            number, make = next(rows)
        if wanted(line.o):
            assert make is not None
            yield Ticket(line.o, line.k, make(), cell)  # each its own: a solver may change its row


def _rows(run: str, cell: Cell, spec: Spec, work: Work) -> "Iterator[tuple[int, Callable[[], Sample]]]":
    """Each row's number in the data file, and how to make its sample."""
    if not spec.record_data:
        yield from _rows_elsewhere(run, cell, spec, work)
        return
    for line in data_lines(run, cell):
        yield line.r, line.sample


def _rows_elsewhere(run: str, cell: Cell, spec: Spec, work: Work) -> "Iterator[tuple[int, Callable[[], Sample]]]":
    """The run holds only the ids of its rows: find each in the user's own data, which was compared with the plan."""
    given = work.samples(spec)
    for line in data_lines(run, cell):
        sample = next((each for each in given if each.id == line.id), None)
        if sample is None:
            return
        yield line.r, lambda sample=sample: copy.deepcopy(sample)  # type: ignore[misc] # binds the loop's value
