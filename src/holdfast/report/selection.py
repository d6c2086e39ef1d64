"""Selects keys of a run: by status, failure, score, task, model, anomaly or text. Finds one key in the plan."""

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.plan import DataLine, find_data_line, find_planned_line, planned_line_at, planned_lines
from holdfast.records import Cell, Row, parse_key
from holdfast.report.lines import ExportLine
from holdfast.score import as_number


class KeyFilter(msgspec.Struct, frozen=True):
    """Conditions on a key. Every condition that is set must hold."""

    failed: bool = False
    wrong: bool = False
    kinds: tuple[str, ...] = ()
    grep: str = ""
    status: str = ""
    tasks: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    anomalies: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != KeyFilter()


def choose(lines: Iterable[ExportLine], selected: KeyFilter) -> Iterator[ExportLine]:
    """The lines that pass the filter. ValueError if `grep` is not a regular expression."""
    try:
        pattern = re.compile(selected.grep, re.IGNORECASE | re.MULTILINE) if selected.grep else None
    except re.error as error:
        raise ValueError(f"{selected.grep!r} is not a pattern: {error}") from error
    return _filter(lines, selected, pattern)


def _filter(
    lines: Iterable[ExportLine], selected: KeyFilter, pattern: "re.Pattern[str] | None"
) -> Iterator[ExportLine]:
    for line in lines:
        kind, message = (line.error.kind, line.error.message) if line.error else ("", "")
        if (
            (not selected.failed or line.status == "failed")
            and (not selected.status or line.status == selected.status)
            and (not selected.kinds or kind in selected.kinds)
            and (not selected.wrong or is_wrong(line.scores))
            and (not selected.tasks or line.task in selected.tasks)
            and (not selected.models or line.model in selected.models)
            and (not selected.anomalies or any(each in (*line.marks, *line.anomalies) for each in selected.anomalies))
            and (pattern is None or pattern.search(f"{line.key}\n{line.output or ''}\n{message}"))
        ):
            yield line


def is_wrong(scores: dict[str, Any]) -> bool:
    """Whether a score is false or zero. A missing score is not wrong."""
    return any(as_number(value) == 0 for value in scores.values())


_KEYS_COMPARED = 10_000
_row = msgspec.json.Decoder(Row | None)


class PlannedKey(msgspec.Struct, frozen=True):
    """A planned key with its row. `row` is None if the run does not record its data."""

    key: str
    o: int
    row: Row | None
    data: DataLine | None = None
    """The row as it is stored."""


def find_planned(run: str, cells: Sequence[Cell], key: str, o: int | None = None) -> PlannedKey | None:
    """The key's place in the plan and its row; None if it is not planned. `o`: its likely ordinal; without it all lines
    before the key are searched.
    """
    for cell in _cells_of(cells, key):
        line = planned_line_at(run, cell, o) if o is not None and cell.first <= o < cell.first + cell.count else None
        if line is None or line.k != key:
            line = find_planned_line(run, cell, key)
        if line is not None and line.k == key:
            data = find_data_line(run, cell, line.r)
            return PlannedKey(line.k, line.o, None if data is None else _row.decode(data.row), data)
    return None


def key_at(run: str, cells: Sequence[Cell], o: int) -> str:
    """The key of an ordinal; empty if the plan has none."""
    cell = next((cell for cell in cells if cell.first <= o < cell.first + cell.count), None)
    line = None if cell is None else planned_line_at(run, cell, o)
    return "" if line is None else line.k


def nearest_key(run: str, cells: Sequence[Cell], key: str) -> str:
    """The planned key that is most similar to a text, for a did-you-mean hint; empty if none is similar.

    Searches the same cell if there is one. Only the first keys are compared: a hint must not take minutes.
    """
    lines = itertools.chain.from_iterable(planned_lines(run, cell) for cell in _cells_of(cells, key) or cells)
    keys = [line.k for line in itertools.islice(lines, _KEYS_COMPARED)]
    parts = [each for each in keys if f"/{key}/" in f"/{each}/"]
    return next(iter(parts or difflib.get_close_matches(key, keys, n=1)), "")


def _cells_of(cells: Sequence[Cell], key: str) -> list[Cell]:
    try:
        parsed = parse_key(key)
    except ValueError:  # not a key, or not Unicode
        return []
    return [cell for cell in cells if (cell.task, cell.model) == (parsed.task, parsed.model)]
