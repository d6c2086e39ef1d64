"""Turns rows into samples: finds the id, input and target columns, and refuses duplicate ids.

Invariant: all rows of a data set are read the same way. The first row decides which columns are used; a later row that
would change the decision is an error. The id is part of an answer's key, so it is never empty and never used twice.
"""

import difflib
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import xxhash

from holdfast.datasets.readers import NumberedRow, RowStream
from holdfast.errors import DataError
from holdfast.records import Row, Sample

_SLOTS_AT_FIRST = 1024

Hash = Callable[[bytes], int]


class DuplicateFinder:
    """Detects duplicate ids in one data set.

    `again` reads (number, id) from the start of the source once more, so that only hashes are kept in memory and a hash
    collision is no false duplicate. None if the source can be read only once; then the ids themselves are kept.
    """

    def __init__(
        self, again: Callable[[], Iterable[tuple[int, str]]] | None, hash: Hash = xxhash.xxh3_64_intdigest
    ) -> None:
        self._again = again
        self._hash = hash
        self._hashes = _Hashes()
        self._kept: dict[str, int] = {}

    def add(self, id: str, number: int) -> int | None:
        """Remember an id. Returns the row number of its first use, or None if it is new."""
        if self._again is None:
            first = self._kept.setdefault(id, number)
            return None if first == number else first
        if self._hashes.add(self._hash(id.encode("utf-8", "surrogatepass"))):
            return None
        for earlier, other in self._again():  # the same id, or another one with the same hash
            if earlier == number:
                break
            if other == id:
                return earlier
        return None


class _Hashes:
    """A set of 64-bit numbers in one array, at most half full: 16 to 32 bytes per number; a Python set takes 80."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * _SLOTS_AT_FIRST))  # 0 marks a free slot, so the value 0 is stored as 1
        self._mask = _SLOTS_AT_FIRST - 1
        self._count = 0

    def add(self, value: int) -> bool:
        """Add a number. Returns False if it was there already."""
        slots, mask = self._slots, self._mask
        value = value or 1
        at = value & mask
        while slots[at]:
            if slots[at] == value:
                return False
            at = (at + 1) & mask
        slots[at] = value
        self._count += 1
        if self._count * 2 > mask:
            self._grow()
        return True

    def _grow(self) -> None:
        old = self._slots
        self._slots = array("Q", bytes(16)) * len(old)
        self._mask = len(self._slots) - 1
        self._count = 0
        for value in old:
            if value:
                self.add(value)


_ID = ("id",)
_INPUT = ("input", "question", "prompt")
_TARGET = ("target", "answer", "label")


class Columns(msgspec.Struct, frozen=True):
    """Column names. An empty name is guessed: `id`, else the row's number; `input`, `question` or `prompt`; `target`,
    `answer` or `label`. Without a match the sample's value is None.
    """

    id: str = ""
    input: str = ""
    target: str = ""


def resolve_columns(first: Row, columns: Columns) -> Columns:
    """Return the columns to use for a data set with this first row; empty where there is none."""
    return Columns(
        _column(first, columns.id, _ID), _column(first, columns.input, _INPUT), _column(first, columns.target, _TARGET)
    )


class RowPosition:
    """The row that is being read: which number errors name."""

    number = 0


def samples(
    rows: Iterable[NumberedRow],
    columns: Columns,
    where: str,
    *,
    unique: bool = True,
    ids: Iterable[str] | None = None,
    position: RowPosition | None = None,
) -> Iterator[Sample]:
    """Yield the samples of a data set, in order. `where` names it in errors. Without an id column the id is the row's
    number among all rows, so apply limits and filters to the result, not to the rows; or the next one of `ids`.

    A duplicate id raises DataError at its second row, after earlier samples were yielded. `unique=False` skips this
    check, for rows that were checked before; it takes half of the time. `position` is set before each sample.
    """
    unit = "row"
    again: Callable[[], Iterable[NumberedRow]] | None = None if iter(rows) is rows else lambda: rows
    if isinstance(rows, RowStream):
        unit, again = rows.unit, rows.again
    reader: _RowReader | None = None

    def read_ids() -> Iterator[tuple[int, str]]:
        assert again is not None
        assert reader is not None  # this is called only for an id that was met before
        for number, row in again():
            yield number, reader.sample(row, number, "").id

    finder = DuplicateFinder(None if again is None else read_ids)
    names = map(str, itertools.count(1)) if ids is None else ids
    for (number, row), name in zip(rows, names, strict=False):
        if reader is None:
            reader = _RowReader(row, columns, where, unit)
        sample = reader.sample(row, number, name)
        first = finder.add(sample.id, number) if unique and reader.has_ids else None
        if first is not None:
            same = f"id {sample.id!r} is already used in {unit} {first}"
            raise DataError(where, f"{same}; ids must be unique: change one, or name another id column", number, unit)
        if position is not None:
            position.number = number
        yield sample
    if reader is None:
        raise DataError(where, "the data set is empty; it needs at least one row")


class _RowReader:
    """Reads the rows of one data set as its first row decides."""

    def __init__(self, first: Row, columns: Columns, where: str, unit: str) -> None:
        self._where = where
        self._unit = unit
        self._columns = resolve_columns(first, columns)
        guessed = (
            (columns.id, self._columns.id, _ID),
            (columns.input, self._columns.input, _INPUT),
            (columns.target, self._columns.target, _TARGET),
        )
        # A later row with a name that takes precedence over the one found would be read differently.
        self._absent = frozenset(
            name
            for named, found, names in guessed
            if not named
            for name in (names[: names.index(found)] if found else names)
        )
        self.has_ids = bool(self._columns.id)
        """Whether ids come from a column. Otherwise they are row numbers, which are unique."""

    def sample(self, row: Row, number: int, name: str) -> Sample:
        """`name`: the id if there is no id column."""
        if not self._absent.isdisjoint(row):
            problem = f"has a column {min(self._absent & row.keys())!r}, which the first row does not have"
            raise self._error(f"{problem}; add it to all rows, or set dataset.id, input and target", number)
        id = name
        if self.has_ids:
            value = self._cell(row, self._columns.id, number)
            named = f"the id (column {self._columns.id!r})"
            if value is None or (isinstance(value, str) and not value.strip()):
                raise self._error(f"{named} is empty; every row needs an id", number)
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise self._error(f"{named} is a {type(value).__name__}; it must be text or a number", number)
            id = str(value)
        return Sample(
            id=id,
            input=self._cell(row, self._columns.input, number) if self._columns.input else None,
            target=self._cell(row, self._columns.target, number) if self._columns.target else None,
            row=row,
        )

    def _cell(self, row: Row, column: str, number: int) -> Any:
        if column in row:
            return row[column]
        near = difflib.get_close_matches(column, map(str, row), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"the row has: {', '.join(map(str, row)) or 'none'}"
        raise self._error(f"no column {column!r}; {hint}", number)

    def _error(self, problem: str, number: int) -> DataError:
        return DataError(self._where, problem, number, self._unit)


def _column(row: Row, named: str, guesses: tuple[str, ...]) -> str:
    return named or next((name for name in guesses if name in row), "")
