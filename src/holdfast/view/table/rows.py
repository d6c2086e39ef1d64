"""Reads what the list shows of each sample: its key and row from the plan and the data, its answer from the journal.

Pages are mostly read in plan order, so plan and data are read forward, side by side, and stay open. A page elsewhere is
found by the offsets that were noted when its cell was read for the first time.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import DamagedError, HoldfastError, JournalError
from holdfast.journal import Reader, journal_folder
from holdfast.plan import RESTORE, DataRow, PlanLine, data_path, plan_path, read_lines
from holdfast.records import Cell, FactDecoder
from holdfast.report import UNKNOWN, MakeQuestion, QuestionReader, readable_input, value_text
from holdfast.state import AnswerRow, PlannedPage
from holdfast.view.table.words import SEARCHED, column_rank, column_text

_UNREADABLE = (OSError, JournalError, ValueError, RecursionError)
"""Errors of a data file that is damaged, or that Holdfast did not write."""
_plan_line = msgspec.json.Decoder(PlanLine)
_data_row = msgspec.json.Decoder(DataRow)


class PageStart(NamedTuple):
    """Where the lines of a page begin: the ordinal of its first key, and offsets in the plan and in the data."""

    first: int
    plan_at: int
    data_at: int


class _Asked(NamedTuple):
    """The beginning of what a sample was asked: a page of a thousand long rows must not fill the memory."""

    input: str = ""
    target: str = ""
    values: Mapping[str, tuple[str, float | str]] = {}
    """Of the wanted columns of the row, each with what it is sorted by; without null."""


class PlannedSample(NamedTuple):
    """A key of the plan. `row_at`: the offset of its row in the data; -1 if the row cannot be read."""

    o: int
    key: str
    row_at: int = -1
    asked: _Asked = _Asked()


class _Said(msgspec.Struct, frozen=True, gc=False):
    text: str = ""


class _FinishedText(msgspec.Struct, frozen=True, gc=False):
    """The answer's text: decoding skips the rest."""

    answer: _Said


_finished = FactDecoder(_FinishedText)


class SampleReader:
    """Reads the samples of one run."""

    def __init__(self, run: str, spec: Mapping[str, Any]) -> None:
        self._run = run
        self._has_rows = bool(spec.get("record_data", True))
        self._questions = QuestionReader(run, spec)
        self._journal = Reader(journal_folder(run))
        self._cell: Cell | None = None
        self._make: MakeQuestion = lambda row: UNKNOWN
        self._plan: Iterator[bytes] = iter(())
        self._next = PageStart(0, 0, 0)
        """Where reading continues."""
        self._data: Iterator[bytes] | None = None
        self._row: DataRow | None = None
        self._row_at = 0
        self._row_size = 0
        """Where the line of `_row` is, and its bytes."""
        self._asked = _Asked()
        self.columns: Collection[str] = ()
        """Columns of the row whose values are wanted."""

    def close(self) -> None:
        self._journal.close()
        self._plan, self._data = iter(()), None

    def answer_text(self, row: AnswerRow) -> str | None:
        """The beginning of a finished answer's text; None if its record was lost to damage after it was indexed."""
        entry = self._journal.record_at(row.segment, row.at_byte)
        if entry is None or entry.line.n != row.n:
            return None
        with contextlib.suppress(HoldfastError):
            return _finished.decode(entry.line).answer.text[:SEARCHED]
        return None

    def samples(self, page: PlannedPage, known: PageStart | None) -> tuple[PageStart, list[PlannedSample]]:
        """The keys of a page, and where it begins. `known`: the last known start at or before it, in the same cell.
        DamagedError if the plan has fewer keys than the journal records.
        """
        if self._cell != page.cell or self._next.first != page.first:
            cell = page.cell
            start = known or PageStart(cell.first, cell.plan_at, cell.data_at)
            self._open(cell, start)
            for _ in range(start.first, page.first):
                self._read_key()
        start = self._next
        return start, [self._read_sample() for _ in range(page.first, page.end)]

    def _open(self, cell: Cell, start: PageStart) -> None:
        if self._cell is None or self._cell.task != cell.task:
            self._make = self._questions.maker(cell.task)
        self._cell, self._next = cell, start
        self._plan = read_lines(plan_path(self._run, cell.block), start.plan_at)
        self._data = read_lines(data_path(self._run, cell.rows_block), start.data_at) if self._has_rows else None
        self._row, self._row_at, self._row_size, self._asked = None, start.data_at, 0, _Asked()

    def _read_key(self) -> PlanLine:
        line = next(self._plan, None)
        if line is None:
            assert self._cell is not None
            path = plan_path(self._run, self._cell.block)
            raise DamagedError(f"{path} is damaged: keys of {self._cell.task} are missing; {RESTORE}")
        found = _plan_line.decode(line)
        at = self._next
        self._next = PageStart(at.first + 1, at.plan_at + len(line) + 1, self._row_at)
        return found

    def _read_sample(self) -> PlannedSample:
        key = self._read_key()
        if self._data is None:
            return PlannedSample(key.o, key.k)
        if self._row is None or self._row.r != key.r:  # repeats share a row
            try:
                row = self._seek(key.r)
            except _UNREADABLE:  # the rest of the cell cannot be read either
                self._data = None
                return PlannedSample(key.o, key.k)
            if row.r != key.r:
                return PlannedSample(key.o, key.k)
            self._asked = self._ask(row)
        self._next = self._next._replace(data_at=self._row_at)
        return PlannedSample(key.o, key.k, self._row_at, self._asked)

    def _ask(self, row: DataRow) -> _Asked:
        question, held = self._make(row), row.row or {}
        found = {name: held[name] for name in self.columns if held.get(name) is not None}
        values = {name: (column_text(value), column_rank(value)) for name, value in found.items()}
        target = value_text(question.target) or ""
        return _Asked(readable_input(question)[:SEARCHED], target[:SEARCHED], values)

    def _seek(self, number: int) -> DataRow:
        """Read forward to the row with this number, or to the next one if there is none."""
        assert self._data is not None
        row = self._row
        while row is None or row.r < number:
            line = next(self._data, None)
            if line is None:
                raise ValueError("the data ends before the plan does")
            self._row_at, self._row_size = self._row_at + self._row_size, len(line) + 1
            row = self._row = _data_row.decode(line)
        return row
