"""From rows to samples: which column is what, and that no two samples share an id.

Invariant: all rows of a data set are read alike. What the first row has decides which columns are guessed; a later row
that differs is refused, never read in another way. An id makes the key of an answer, so it is neither empty nor used
twice.
"""

import difflib
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import xxhash

from holdfast.datasets.readers import Numbered, Rows
from holdfast.errors import DataError
from holdfast.records.samples import Row, Sample

_SLOTS_AT_FIRST = 1024

Hash = Callable[[bytes], int]


class Ids:
    """The ids of one data set. `again` gives (number, id) of the source from its start, None if it cannot."""

    def __init__(
        self, again: Callable[[], Iterable[tuple[int, str]]] | None, hash: Hash = xxhash.xxh3_64_intdigest
    ) -> None:
        self._again = again
        self._hash = hash
        self._hashes = _Hashes()
        self._kept: dict[str, int] = {}

    def add(self, id: str, number: int) -> int | None:
        """Remember an id; the number where it was used before, if it was."""
        if self._again is None:
            first = self._kept.setdefault(id, number)
            return None if first == number else first
        if self._hashes.add(self._hash(id.encode("utf-8", "surrogatepass"))):
            return None
        return self._find(id, number)

    def _find(self, id: str, number: int) -> int | None:
        assert self._again is not None
        for earlier, other in self._again():
            if earlier == number:
                break
            if other == id:
                return earlier
        return None


class _Hashes:
    """A set of 64-bit numbers in one array, at most half full: 16 to 32 bytes a number, where a set of int takes 80."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * _SLOTS_AT_FIRST))  # 0 is a free slot
        self._mask = _SLOTS_AT_FIRST - 1
        self._count = 0

    def add(self, value: int) -> bool:
        """False if it is there already."""
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
    """Column names. An empty one is guessed: `id`, else the row's number; `input`, `question` or `prompt`; `target`,
    `answer` or `label`. A guess that finds nothing leaves None.
    """

    id: str = ""
    input: str = ""
    target: str = ""


def resolved(first: Row, columns: Columns) -> Columns:
    """The columns that a data set with this first row is read by; empty where there is none."""
    return Columns(
        _column(first, columns.id, _ID), _column(first, columns.input, _INPUT), _column(first, columns.target, _TARGET)
    )


def samples(rows: Iterable[Numbered], columns: Columns, where: str, *, unique: bool = True) -> Iterator[Sample]:
    """The samples of a data set, in order. `where` names it in errors. An id that is no column is the row's number
    among all rows, so limits and filters go behind this.

    A duplicate is found at its second row: what came before has been handed on by then. Whoever has read the same rows
    before need not look for one again (`unique=False`): it is half of the work.
    """
    again = _again(rows)
    unit = rows.unit if isinstance(rows, Rows) else "row"
    take: _Reading | None = None
    ids = Ids(None if again is None else lambda: _ids(again(), columns, where, unit))
    for count, (number, row) in enumerate(rows, 1):
        if take is None:
            take = _Reading(row, columns, where, unit)
        sample = take.sample(row, number, count)
        first = ids.add(sample.id, number) if unique and take.has_ids else None
        if first is not None:
            same = f"id {sample.id!r} was used in {unit} {first} already"
            raise DataError(where, f"{same}; ids must differ: change one, or name another id column", number, unit)
        yield sample
    if take is None:
        raise DataError(where, "the data set is empty; it needs at least one row")


class _Reading:
    """How one data set is read, decided by its first row."""

    def __init__(self, first: Row, columns: Columns, where: str, unit: str) -> None:
        self._where = where
        self._unit = unit
        self._columns = resolved(first, columns)
        guessed = (
            (columns.id, self._columns.id, _ID),
            (columns.input, self._columns.input, _INPUT),
            (columns.target, self._columns.target, _TARGET),
        )
        self._absent = frozenset(
            name for named, found, names in guessed if not named for name in _preferred(names, found)
        )
        self.has_ids = bool(self._columns.id)
        """Ids come from a column; else they are the rows' numbers, which differ."""

    def sample(self, row: Row, number: int, count: int) -> Sample:
        if not self._absent.isdisjoint(row):
            problem = f"has a column {min(self._absent & row.keys())!r}, which the first row has not"
            raise self._error(f"{problem}; give it to all rows, or say which columns to use", number)
        return Sample(
            id=self._sample_id(row, number, count),
            input=self._cell(row, self._columns.input, number) if self._columns.input else None,
            target=self._cell(row, self._columns.target, number) if self._columns.target else None,
            row=row,
        )

    def _sample_id(self, row: Row, number: int, count: int) -> str:
        column = self._columns.id
        if not column:
            return str(count)
        value = self._cell(row, column, number)
        if isinstance(value, str) and value.strip():
            return value
        if value is None or isinstance(value, str):
            raise self._error(f"the id (column {column!r}) is empty; give every row one", number)
        if isinstance(value, bool) or not isinstance(value, int | float):
            found = type(value).__name__
            raise self._error(f"the id (column {column!r}) is a {found}; it must be text or a number", number)
        return str(value)

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


def _preferred(names: tuple[str, ...], found: str) -> tuple[str, ...]:
    """The names that would have been taken rather than `found`."""
    return names[: names.index(found)] if found else names


def _again(rows: Iterable[Numbered]) -> Callable[[], Iterable[Numbered]] | None:
    """How to read the rows a second time; None if they can be read only once."""
    if isinstance(rows, Rows):
        return rows.again
    return None if iter(rows) is rows else lambda: rows


def _ids(rows: Iterable[Numbered], columns: Columns, where: str, unit: str) -> Iterator[tuple[int, str]]:
    take: _Reading | None = None
    for count, (number, row) in enumerate(rows, 1):
        if take is None:
            take = _Reading(row, columns, where, unit)
        yield number, take.sample(row, number, count).id
