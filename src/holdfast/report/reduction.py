"""Summaries of reduced scores, one value per sample, and the groups of samples.

A sample without a reduced value is left out of the summary and counted.

Which samples share a group: several questions about one passage, translations of one question.

Samples in one group are not independent, so every interval and test takes its groups from here. A sample's group is the
value of its row in the column `dataset.group`; without a value (null, blank, missing column) the sample is its own
group. Plan and rows are read side by side, and each name is kept once. If rows are not recorded or cannot be read,
every sample of the task is its own group, and reports say so: losing the rows must not lose the results.
"""

import itertools
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast import stats
from holdfast.errors import JournalError
from holdfast.plan import data_lines, planned_lines
from holdfast.records import Cell, Row
from holdfast.spec import Reduction
from holdfast.stats import Summary
from holdfast.stats.intervals import LEVEL

_NAME_MAX = 80
"""Longer values are replaced by a digest: a column may hold the passage itself."""
_row = msgspec.json.Decoder(Row)


class SampleGroups:
    """The groups of the keys of some cells. Query them in plan order: it reads forward only."""

    def __init__(self, run: str, spec: Mapping[str, Any], cells: Sequence[Cell]) -> None:
        self.unknown: dict[str, str] = {}
        """A sentence for each task whose groups are unknown."""
        columns = {str(task.get("name")): task.get("dataset", {}).get("group") for task in spec.get("tasks", ())}
        known: dict[str, str] = {}
        found: list[tuple[Cell, list[str]]] = []
        for cell in cells:
            column = columns.get(cell.task)
            if column and not spec.get("record_data", True):
                self.unknown[cell.task] = _explain_unknown(column, "record_data is off")
            elif column and cell.task not in self.unknown:
                try:
                    found.append((cell, [known.setdefault(name, name) for name in _names(run, cell, column)]))
                except (OSError, JournalError):
                    self.unknown[cell.task] = _explain_unknown(column, "the rows cannot be read: see `holdfast verify`")
        self.any = any(name for cell, names in found if cell.task not in self.unknown for name in names)
        """Whether a sample has a group."""
        pairs = (zip(itertools.count(cell.first), names) for cell, names in found if cell.task not in self.unknown)
        self._left = itertools.chain.from_iterable(pairs)
        self._next = next(self._left, None)

    def at(self, o: int) -> str:
        """The group of a key; empty if its sample is its own group."""
        while self._next is not None and self._next[0] < o:
            self._next = next(self._left, None)
        return self._next[1] if self._next is not None and self._next[0] == o else ""


def member_of(sample_id: str, group: str) -> Hashable:
    """The independent unit: a group as a tuple, else the sample id, so that the two never collide."""
    return (group,) if group else sample_id


def with_groups(summary: Summary, samples: Collection[Hashable], members: Collection[Hashable]) -> Summary:
    """The summary with the number of groups, if samples share groups."""
    return with_group_count(summary, len(set(members)), len(set(samples)))


def with_group_count(summary: Summary, groups: int, samples: int) -> Summary:
    return msgspec.structs.replace(summary, groups=groups) if groups < samples else summary


def _explain_unknown(column: str, why: str) -> str:
    return f"which samples share a {column} is not known ({why}): each counts as a group of its own"


def _names(run: str, cell: Cell, column: str) -> Iterator[str]:
    """The group of each key of a cell, in plan order."""
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
    """A group's name. 1 and "1" are one group, because CSV does not distinguish them."""
    text = "" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(text) > _NAME_MAX:
        return xxhash.xxh3_128_hexdigest(text.encode())
    return text if text.strip() else ""


_CHANCES = ("pass_at_k", "pass_power_k", "cons_at_k")


class Reduced(msgspec.Struct, frozen=True):
    """One reducer on one scorer over one cell: one value per sample, summarised over samples."""

    reducer: str
    summary: stats.Summary
    no_value: int
    """Samples with answers but without a reduced value: too few scores, or a tie between labels."""
    labels: dict[str, int] = msgspec.field(default_factory=dict)


def summarise_values(
    how: Reduction, values: Mapping[str, float], members: Mapping[str, Hashable], confidence: float = LEVEL
) -> stats.Summary:
    """The summary of one value per sample."""
    groups = [members.get(sample, sample) for sample in values]
    return bounded(how, with_groups(stats.summarise(list(values.values()), groups, confidence), values, groups))


def bounded(how: Reduction, summary: Summary) -> Summary:
    """Cut the interval of a probability at 0 and 1."""
    if how.name in _CHANCES and summary.low is not None and summary.high is not None:
        return msgspec.structs.replace(summary, low=max(summary.low, 0.0), high=min(summary.high, 1.0))
    return summary
