"""Which of a run's keys a person wants to see: failed, wrong, of a kind, a task or a model, or with a text in them."""

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.plan import data_lines, planned_lines
from holdfast.records.facts import Cell
from holdfast.records.keys import parse_key
from holdfast.records.samples import Row
from holdfast.report.formats.lines import ExportLine
from holdfast.score import as_number


class Wanted(msgspec.Struct, frozen=True):
    """Every condition that is set must hold."""

    failed: bool = False
    wrong: bool = False
    kinds: tuple[str, ...] = ()
    grep: str = ""
    status: str = ""
    tasks: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    anomalies: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Wanted()


def choose(lines: Iterable[ExportLine], wanted: Wanted) -> Iterator[ExportLine]:
    """ValueError if the pattern to look for is none."""
    try:
        pattern = re.compile(wanted.grep, re.IGNORECASE | re.MULTILINE) if wanted.grep else None
    except re.error as error:
        raise ValueError(f"{wanted.grep!r} is not a pattern: {error}") from error
    return _chosen(lines, wanted, pattern)


def _chosen(lines: Iterable[ExportLine], wanted: Wanted, pattern: "re.Pattern[str] | None") -> Iterator[ExportLine]:
    for line in lines:
        kind = line.error.kind if line.error else ""
        if (
            (not wanted.failed or line.status == "failed")
            and (not wanted.status or line.status == wanted.status)
            and (not wanted.kinds or kind in wanted.kinds)
            and (not wanted.wrong or is_wrong(line.scores))
            and (not wanted.tasks or line.task in wanted.tasks)
            and (not wanted.models or line.model in wanted.models)
            and (not wanted.anomalies or any(each in (*line.marks, *line.anomalies) for each in wanted.anomalies))
            and (pattern is None or pattern.search(_text(line)))
        ):
            yield line


def is_wrong(scores: dict[str, Any]) -> bool:
    """A score is false or zero. A missing score is not wrong: nobody has said so."""
    return any(as_number(value) == 0 for value in scores.values())


def _text(line: ExportLine) -> str:
    told = line.error.message if line.error else ""
    return f"{line.key}\n{line.output or ''}\n{told}"


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
