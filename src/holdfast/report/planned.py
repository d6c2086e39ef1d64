"""Keys of the plan: what is known of one that nothing is recorded of yet, and which one was meant by a slip."""

import difflib
import itertools
from collections.abc import Sequence

import msgspec

from holdfast.plan import data_lines, planned_lines
from holdfast.records.exchange import Row
from holdfast.records.facts import Cell
from holdfast.records.keys import parse_key

_KEYS_COMPARED = 10_000
_row = msgspec.json.Decoder(Row | None)


class PlannedKey(msgspec.Struct, frozen=True):
    """A key as the plan has it. `row` is None if the run does not record its data."""

    key: str
    o: int
    row: Row | None


def find_planned(run: str, cells: Sequence[Cell], key: str) -> PlannedKey | None:
    """The key's place in the plan and its row; None if it is not planned."""
    for cell in _cells_of(cells, key):
        for line in planned_lines(run, cell):
            if line.k == key:
                return PlannedKey(line.k, line.o, _row_of(run, cell, line.r))
    return None


def nearest_key(run: str, cells: Sequence[Cell], key: str) -> str:
    """The planned key that is most like another text: of the same cell, or else of all. Empty if none is like it.

    Only the first thousands are compared: a hint must not take minutes.
    """
    lines = itertools.chain.from_iterable(planned_lines(run, cell) for cell in _cells_of(cells, key) or cells)
    keys = [line.k for line in itertools.islice(lines, _KEYS_COMPARED)]
    parts = [each for each in keys if f"/{key}/" in f"/{each}/"]
    return next(iter(parts or difflib.get_close_matches(key, keys, n=1)), "")


def _cells_of(cells: Sequence[Cell], key: str) -> list[Cell]:
    try:
        wanted = parse_key(key)
    except ValueError:  # also of bytes that are no text
        return []
    return [cell for cell in cells if (cell.task, cell.model) == (wanted.task, wanted.model)]


def _row_of(run: str, cell: Cell, number: int) -> Row | None:
    for line in data_lines(run, cell):
        if line.r == number:
            row: Row | None = _row.decode(line.row)
            return row
    return None
