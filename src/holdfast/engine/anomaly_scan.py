"""Looking again for anomalies in answers that are recorded: with a newer list, or because nobody looked before.

Reads the index, plan, data and journal side by side in a thread of its own; one batch of answers is in memory. What is
found is recorded beside the answers, also that nothing is, so that an answer is looked at once with each list.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.engine.schedule import Tickets
from holdfast.journal import Reader
from holdfast.journal.positions import Journal
from holdfast.plan import Work
from holdfast.records import Draft, draft
from holdfast.records.facts import Cell, LookedAgain
from holdfast.score.anomalies import VERSION, Expected, expected_of, look_at
from holdfast.spec import Spec, Task
from holdfast.state import Index, recorded_answer

_BATCH = 256


class Lookout:
    """The recorded answers of a run, and what the list in force finds in them."""

    def __init__(self, run: str, spec: Spec, works: Mapping[str, Work], cells: Sequence[Cell]) -> None:
        self._run = run
        self._spec = spec
        self._works = works
        self._cells = cells
        self.looked = 0
        """How many answers it has looked at."""
        self.changed = 0
        """Of how many it was recorded: they were looked at with another list, or it now finds something else."""

    async def look(self, journal_folder: str, writer: Journal, *, everything: bool = False) -> None:
        """At answers that the list in force was not used on, or at all. What is recorded when it is stopped stays."""
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
                tickets = Tickets(self._run, cell, self._spec, work, lambda ordinal: True).all()
                for row in index.answers("finished", cell.first, cell.count):
                    if row.looked == VERSION and not everything:
                        continue
                    ticket = next((each for each in tickets if each.o == row.o), None)  # both are in plan order
                    finished = recorded_answer(reader, row)
                    if ticket is None or ticket.key != row.key or finished is None:  # no such row of data, or damage
                        continue
                    self.looked += 1
                    found = look_at(ticket.sample, finished.answer, expected)
                    if row.looked != VERSION or found != row.found():
                        yield draft("anomaly", LookedAgain(row.o, row.n, VERSION, found), row.key)


def expected_by_model(spec: Spec, task: Task) -> dict[str, Expected]:
    """How the answers to a task should look, by the model that gives them."""
    told = msgspec.to_builtins(task)
    return {model.name: expected_of(told, model.params) for model in spec.models}
