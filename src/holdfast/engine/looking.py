"""Looking again for anomalies in answers that are recorded: with a newer list, or because nobody looked before.

Reads the index, plan, data and journal side by side in a thread of its own; one batch of answers is in memory. What is
found is recorded beside the answers, also that nothing is, so that an answer is looked at once with each list.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import msgspec

from holdfast.engine.tickets import Tickets
from holdfast.journal import Reader
from holdfast.plan import Work
from holdfast.records import Draft, draft
from holdfast.records.facts import Cell, LookedAgain, SampleFinished
from holdfast.score.anomalies import VERSION, Expected, expected_of, look_at
from holdfast.spec import Spec, Task
from holdfast.state import Index

_BATCH = 256
_finished = msgspec.json.Decoder(SampleFinished)


class Lookout:
    """Use it in an `async with`; `next` gives the records of some more answers, none when all have been looked at."""

    def __init__(
        self, run: str, journal_folder: str, spec: Spec, works: Mapping[str, Work], cells: Sequence[Cell]
    ) -> None:
        self._run = run
        self._journal_folder = journal_folder
        self._spec = spec
        self._works = works
        self._cells = cells
        self.looked = 0
        """How many answers it has looked at, whatever list they were looked at with before."""
        self.everything = False
        """Look also at answers that the list in force was used on."""
        self._drafts: Iterator[Draft] | None = None
        self._thread = ThreadPoolExecutor(1, "holdfast-looking")  # an index belongs to the thread that opened it

    async def __aenter__(self) -> "Lookout":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    async def next(self) -> list[Draft]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._take)

    def _take(self) -> list[Draft]:
        if self._drafts is None:
            self._drafts = self._look()
        return list(itertools.islice(self._drafts, _BATCH))

    def _close(self) -> None:
        if isinstance(self._drafts, Iterator):
            self._drafts = None  # what the generator holds open is closed with it

    def _look(self) -> Iterator[Draft]:
        with (
            contextlib.closing(Index(self._run)) as index,
            contextlib.closing(Reader(self._journal_folder)) as reader,
        ):
            for cell in self._cells:
                work = self._works[cell.task]
                expected = expected_by_model(self._spec, work.task)[cell.model]
                every = Tickets(self._run, cell, self._spec, work, lambda ordinal: True).all()
                for row in index.answers("finished", cell.first, cell.count):
                    if row.looked == VERSION and not self.everything:
                        continue
                    ticket = next(each for each in every if each.o == row.o)  # both are in plan order
                    entry = reader.record_at(row.segment, row.at_byte)
                    if entry is None or entry.line.n != row.n:  # it was lost to damage since the index saw it
                        continue
                    self.looked += 1
                    found = look_at(ticket.sample, _finished.decode(entry.line.d).answer, expected)
                    if row.looked != VERSION or found != row.found():
                        yield draft("anomaly", LookedAgain(row.o, row.n, VERSION, found), row.key)


def expected_by_model(spec: Spec, task: Task) -> dict[str, Expected]:
    """How the answers to a task should look, by the model that gives them."""
    told = msgspec.to_builtins(task)
    return {model.name: expected_of(told, model.params) for model in spec.models}
