"""Scans recorded answers for anomalies again: with a newer list, or because they were not scanned before.

Reads the index, plan, data and journal side by side in a thread of its own; one batch of answers is in memory.
Each result is recorded, even if nothing is found, so that an answer is scanned once with each list. A crash loses only
results that were not yet recorded: those answers are scanned again.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.engine.schedule import Tickets
from holdfast.journal import Journal, Reader
from holdfast.plan import PreparedTask
from holdfast.records import AnomaliesRechecked, Cell, Draft, draft
from holdfast.score import ANOMALIES_VERSION, AnswerExpectations, expect_answers, find_anomalies
from holdfast.spec import Spec, Task
from holdfast.state import Index, recorded_answer

_BATCH = 256


class AnomalyScan:
    """Scans the recorded answers of a run with the current list of anomalies."""

    def __init__(self, run: str, spec: Spec, works: Mapping[str, PreparedTask], cells: Sequence[Cell]) -> None:
        self._run = run
        self._spec = spec
        self._works = works
        self._cells = cells
        self.looked = 0
        """How many answers were scanned."""
        self.changed = 0
        """How many results were recorded: of answers scanned with another list, or with a different result."""

    async def look(self, journal_folder: str, writer: Journal, *, everything: bool = False) -> None:
        """Scan the answers that were not scanned with the current list; with `everything`, all of them."""
        loop = asyncio.get_running_loop()
        found = self._found(journal_folder, everything=everything)
        thread = ThreadPoolExecutor(1, "holdfast-looking")  # an index belongs to the thread that opened it
        try:
            while some := await loop.run_in_executor(thread, lambda: list(itertools.islice(found, _BATCH))):
                for each in some:
                    await writer.append(each)
                    self.changed += 1
        finally:
            thread.submit(found.close)
            thread.shutdown(wait=False)

    def _found(self, journal_folder: str, *, everything: bool) -> Generator[Draft]:
        with (
            contextlib.closing(Index(self._run)) as index,
            contextlib.closing(Reader(journal_folder)) as reader,
        ):
            for cell in self._cells:
                work = self._works[cell.task]
                expected = expected_by_model(self._spec, work.task)[cell.model]
                tickets = Tickets(self._run, cell, self._spec, work).all()
                for row in index.answers("finished", cell.first, cell.count):
                    if row.looked == ANOMALIES_VERSION and not everything:
                        continue
                    ticket = next((each for each in tickets if each.o == row.o), None)  # both are in plan order
                    finished = recorded_answer(reader, row)
                    if (
                        ticket is None or ticket.key != row.key or finished is None
                    ):  # the row is gone, or the record is damaged
                        continue
                    self.looked += 1
                    found = find_anomalies(ticket.sample, finished.answer, expected)
                    if row.looked != ANOMALIES_VERSION or found != row.found():
                        yield draft("anomaly", AnomaliesRechecked(row.o, row.n, ANOMALIES_VERSION, found), row.key)


def expected_by_model(spec: Spec, task: Task) -> dict[str, AnswerExpectations]:
    """Return what the answers to a task should look like, by model."""
    fields = msgspec.to_builtins(task)
    return {model.name: expect_answers(fields, model.params) for model in spec.models}
