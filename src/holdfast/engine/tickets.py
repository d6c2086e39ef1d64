"""Which key comes next: streams of tickets, one for each cell, read ahead in a thread so that the event loop never
waits for a file.
"""

import asyncio
import copy
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from holdfast.plan import DATA, PLAN, DataLine, PlanLine, Work, read_lines
from holdfast.records.exchange import Sample
from holdfast.records.facts import Cell
from holdfast.spec import Spec

_AHEAD = 512
_plan_line = msgspec.json.Decoder(PlanLine)
_data_line = msgspec.json.Decoder(DataLine)


class Ticket(msgspec.Struct, frozen=True):
    """One key to be answered."""

    o: int
    key: str
    sample: Sample
    cell: Cell


class Tickets:
    """The keys of one cell that still need an answer, in plan order."""

    def __init__(self, run: str, cell: Cell, spec: Spec, work: Work, wanted: Callable[[int], bool]) -> None:
        self._stream = _tickets(run, cell, spec, work, wanted)
        self._ready: deque[Ticket] = deque()
        self._filling = asyncio.Lock()
        self._empty = False

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
    for raw in itertools.islice(read_lines(os.path.join(run, PLAN), cell.plan_at), cell.count):
        line = _plan_line.decode(raw)
        while number < line.r:
            number, make = next(rows)
        if wanted(line.o):
            assert make is not None
            yield Ticket(line.o, line.k, make(), cell)  # each its own: a solver may change its row


def _rows(run: str, cell: Cell, spec: Spec, work: Work) -> "Iterator[tuple[int, Callable[[], Sample]]]":
    """Each row's number in the data file, and how to make its sample."""
    if not spec.record_data:
        first = _data_line.decode(next(read_lines(os.path.join(run, DATA), cell.data_at))).r
        for number, sample in enumerate(work.samples(spec), first):
            yield number, lambda sample=sample: copy.deepcopy(sample)  # type: ignore[misc] # binds the loop's value
        return
    for raw in read_lines(os.path.join(run, DATA), cell.data_at):
        line = _data_line.decode(raw)
        yield line.r, line.sample
