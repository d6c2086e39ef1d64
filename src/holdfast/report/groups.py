"""Which samples share a group: several questions about one passage, translations of one question.

What shares a group is not independent, so all that has an interval or a test takes groups from here. The group of a
sample is what its row has in the column that `dataset.group` names; without a value there (null, blank, no such column
in its row) a sample is a group of its own. Plan and rows are walked side by side, and only names are kept, each once.
Where rows are not recorded, or cannot be read, no group of the task is known, every sample stands alone, and that is
told: results do not get lost with the rows.
"""

import itertools
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.errors import JournalError
from holdfast.plan import data_lines, planned_lines
from holdfast.records.facts import Cell
from holdfast.records.samples import Row
from holdfast.stats import Summary

_NAME_MAX = 80
"""A column may hold a passage itself."""
_row = msgspec.json.Decoder(Row)


class Groups:
    """The groups of the keys of some cells, asked for in the order of the plan."""

    def __init__(self, run: str, spec: Mapping[str, Any], cells: Sequence[Cell]) -> None:
        self.unknown: dict[str, str] = {}
        """A sentence for each task whose groups are not known."""
        columns = {str(task.get("name")): task.get("dataset", {}).get("group") for task in spec.get("tasks", ())}
        known: dict[str, str] = {}
        found: list[tuple[Cell, list[str]]] = []
        for cell in cells:
            column = columns.get(cell.task)
            if column and not spec.get("record_data", True):
                self.unknown[cell.task] = _not_known(column, "record_data is off")
            elif column and cell.task not in self.unknown:
                try:
                    found.append((cell, [known.setdefault(name, name) for name in _names(run, cell, column)]))
                except (OSError, JournalError):
                    self.unknown[cell.task] = _not_known(column, "the rows cannot be read: see `holdfast verify`")
        pairs = (zip(itertools.count(cell.first), names) for cell, names in found if cell.task not in self.unknown)
        self._left = itertools.chain.from_iterable(pairs)
        self._next = next(self._left, None)

    def at(self, o: int) -> str:
        """The name of a key's group; empty if its sample is one of its own."""
        while self._next is not None and self._next[0] < o:
            self._next = next(self._left, None)
        return self._next[1] if self._next is not None and self._next[0] == o else ""


def member_of(sample_id: str, group: str) -> Hashable:
    """What is independent: a group, else a sample; one never has the name of the other."""
    return (group,) if group else sample_id


def with_groups(summary: Summary, samples: Collection[Hashable], members: Collection[Hashable]) -> Summary:
    """With how many groups there are, if samples share some."""
    groups = len(set(members))
    return msgspec.structs.replace(summary, groups=groups) if groups < len(set(samples)) else summary


def _not_known(column: str, why: str) -> str:
    return f"which samples share a {column} is not known ({why}): each counts as a group of its own"


def _names(run: str, cell: Cell, column: str) -> Iterator[str]:
    """One for each key of a cell."""
    rows = data_lines(run, cell)
    number, group = 0, ""
    for line in planned_lines(run, cell):
        while number < line.r:
            row = next(rows, None)
            if row is None:
                raise JournalError(f"{line.k} has no row")
            number, group = row.r, ""
            if number == line.r:
                group = _name(_row.decode(row.row).get(column))
        yield group


def _name(value: Any) -> str:
    """A number and the same as a text are one group: CSV does not tell them apart."""
    text = "" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(text) > _NAME_MAX:
        return xxhash.xxh3_128_hexdigest(text.encode())
    return text if text.strip() else ""
