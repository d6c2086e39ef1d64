"""Which samples share a group: several questions about one passage, translations of one question.

What shares a group is not independent, so all that has an interval or a test takes groups from here. The group of a
sample is what its row has in the column that `dataset.group` names; without a value there (null, blank, no such column
in its row) a sample is a group of its own. Plan and rows are walked side by side: one row is in memory. Where a run
does not hold its rows no group is known, and every sample stands alone.
"""

import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import xxhash

from holdfast.plan import data_lines, planned_lines
from holdfast.records.exchange import Row
from holdfast.records.facts import Cell
from holdfast.stats import Summary

_NAME_MAX = 80
"""A column may hold a passage itself."""
_row = msgspec.json.Decoder(Row)


class Groups:
    """The groups of the keys of some cells, asked for in the order of the plan."""

    def __init__(self, run: str, spec: Mapping[str, Any], cells: Iterable[Cell]) -> None:
        columns = _columns(spec) if spec.get("record_data", True) else {}
        named = (cell for cell in cells if columns.get(cell.task))
        self._left = itertools.chain.from_iterable(_walk(run, cell, columns[cell.task]) for cell in named)
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


def unknown_groups(spec: Mapping[str, Any]) -> dict[str, str]:
    """Tasks of a stored spec whose groups nobody knows, since the run does not hold its rows, with the column."""
    if spec.get("record_data", True):
        return {}
    return {task: column for task, column in _columns(spec).items() if column}


def no_groups(column: str) -> str:
    """What a reader of numbers must know then."""
    return f"which samples share a {column} is not known (record_data is off): each counts as a group of its own"


def _columns(spec: Mapping[str, Any]) -> dict[str, str]:
    return {str(task.get("name")): task.get("dataset", {}).get("group", "") for task in spec.get("tasks", ())}


def _walk(run: str, cell: Cell, column: str) -> Iterator[tuple[int, str]]:
    rows = data_lines(run, cell)
    number, group = 0, ""
    for line in planned_lines(run, cell):
        while number < line.r:
            row = next(rows, None)
            if row is None:
                return
            number, group = row.r, ""
            if number == line.r:
                group = _name(_row.decode(row.row).get(column))
        yield line.o, group


def _name(value: Any) -> str:
    """A number and the same as a text are one group: CSV does not tell them apart."""
    text = "" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(text) > _NAME_MAX:
        return xxhash.xxh3_128_hexdigest(text.encode())
    return text if text.strip() else ""
