"""Which rows of a data set are samples, and in which order: `where`, `shuffle`, `sample` and `limit`, in this order.

The order of a shuffle is part of what a run promises, so its rule never changes: rows are sorted by the 64-bit xxh3 of
the UTF-8 text `SEED:ID`, and then by their position. With a column to balance, the rows of each of its values are
sorted in this way; row number r (from 0) of a value with n rows gets the position (r + u) / n, where u is the 64-bit
xxh3 of `SEED:by:VALUE` divided by 2**64 (VALUE: as JSON); then all rows are sorted by this position. So every prefix
holds each value in proportion, give or take one row. Neither rule depends on `limit`: a larger one continues the order.

Memory: a few numbers in arrays for each row. Rows whose order changes are kept in a temporary file.
"""

import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from holdfast.datasets.filters import FilterError, RowFilter
from holdfast.datasets.spill import RowSpill
from holdfast.errors import DataError
from holdfast.records import Row

if TYPE_CHECKING:
    import numpy as np

_encode = msgspec.json.Encoder(order="deterministic").encode


class RowSelection(msgspec.Struct, frozen=True):
    """The selection of a data set. The default selects every row in the order of the data."""

    where: str = ""
    seed: int | None = None
    """Of the shuffle; None: the order of the data."""
    balance: str = ""
    """The column whose values a shuffle interleaves."""
    count: int = 0
    """How many rows a stratified sample has; 0: all."""
    strata: str = ""
    """The column of the stratified sample."""
    limit: int | None = None

    def __bool__(self) -> bool:
        return self != RowSelection()

    @property
    def columns(self) -> list[str]:
        """The columns that the selection reads."""
        named = RowFilter(self.where).names if self.where else []
        return [*named, *filter(None, (self.balance, self.strata))]


class IdentifiedRow(msgspec.Struct, frozen=True, gc=False):
    """A row with its id, and its number for errors."""

    number: int
    id: str
    row: Row


def select_rows(
    rows: Iterable[IdentifiedRow], selection: RowSelection, where: str, unit: str = "row"
) -> Iterator[IdentifiedRow]:
    """Yield the selected rows in their order. `where` names the data in errors, `unit` what row numbers count."""
    if selection.where:
        rows = _filtered(rows, selection.where, where, unit)
    if selection.seed is None and not selection.count:
        return itertools.islice(rows, selection.limit)
    return itertools.islice(_arranged(rows, selection, where, unit), selection.limit)


def _filtered(rows: Iterable[IdentifiedRow], text: str, where: str, unit: str) -> Iterator[IdentifiedRow]:
    try:
        condition = RowFilter(text)
    except FilterError as error:
        raise DataError(where, f"where: {error}") from error
    for each in rows:
        try:
            kept = condition.keeps(each.row)
        except FilterError as error:
            raise DataError(where, f"where: {error}", each.number, unit) from error
        if kept:
            yield each
    condition.check_names(where)


def _arranged(rows: Iterable[IdentifiedRow], selection: RowSelection, where: str, unit: str) -> Iterator[IdentifiedRow]:
    """Shuffle and sample. All rows are read before the first one is yielded."""
    spill, hashes = RowSpill(), array("Q")
    balance, strata = (_Labels(name, where, unit) for name in (selection.balance, selection.strata))
    for each in rows:
        spill.append((each.number, each.id, each.row))
        if selection.seed is not None:
            hashes.append(_hash(f"{selection.seed}:{each.id}"))
        balance.add(each)
        strata.add(each)
    order: Iterable[Any] = range(len(spill))
    if selection.seed is not None and len(spill):
        order = _shuffled(hashes, balance, selection.seed)
    if selection.count:
        order = _sampled(order, strata, selection.count, where)
    for index in order:
        yield IdentifiedRow(*spill.read(int(index)))


class _Labels:
    """The values of one column as numbers: rows with equal values have equal numbers."""

    def __init__(self, column: str, where: str, unit: str) -> None:
        self._column = column
        self._where = where
        self._unit = unit
        self._numbers: dict[bytes, int] = {}
        self.rows = array("L")

    def __bool__(self) -> bool:
        return bool(self._column)

    def add(self, each: IdentifiedRow) -> None:
        if not self._column:
            return
        if self._column not in each.row:
            problem = f"no column {self._column!r}, which `by` names; the row has: {', '.join(map(str, each.row))}"
            raise DataError(self._where, problem, each.number, self._unit)
        value = _encode(each.row[self._column])
        self.rows.append(self._numbers.setdefault(value, len(self._numbers)))

    def shares(self, seed: int) -> list[float]:
        """By number: where between 0 and 1 the first row of a value is."""
        return [_hash(f"{seed}:by:{value.decode()}") / 2**64 for value in self._numbers]


def _shuffled(hashes: "array[int]", balance: _Labels, seed: int) -> "np.ndarray":
    import numpy as np

    by_hash = np.argsort(np.frombuffer(hashes, dtype=np.uint64), kind="stable")
    if not balance:
        return by_hash
    labels = np.frombuffer(balance.rows, dtype=np.dtype("L"))[by_hash].astype(np.int64)
    sizes = np.bincount(labels)
    grouped = np.argsort(labels, kind="stable")  # the rows of each value, in the order of their hashes
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[grouped] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    positions = (ranks + np.array(balance.shares(seed))[labels]) / sizes[labels]
    return by_hash[np.argsort(positions, kind="stable")]


def _sampled(order: Any, strata: _Labels, count: int, where: str) -> Iterator[int]:
    """The first rows of each stratum, as many as its share; in the given order."""
    sizes = Counter(strata.rows)
    total = sum(sizes.values())
    if count > total:
        raise DataError(where, f"sample.n is {count}, but only {total} rows are left to sample from; lower n")
    left = apportion([sizes[label] for label in range(len(sizes))], count)
    for index in order:
        label = strata.rows[int(index)]
        if left[label]:
            left[label] -= 1
            yield index


def apportion(sizes: Sequence[int], count: int) -> list[int]:
    """Divide `count` in proportion to the sizes, by largest remainders; equal remainders: the earlier one first."""
    total = sum(sizes)
    parts = [count * size // total for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda label: (-(count * sizes[label] % total), label))
    for label in by_remainder[: count - sum(parts)]:
        parts[label] += 1
    return parts


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
