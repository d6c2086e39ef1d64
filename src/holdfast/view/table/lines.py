"""Reads samples from the table as pages show them, and verifies each row that is read."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan import RowLookup
from holdfast.records import MARKS, Cell, bucket_of, parse_key
from holdfast.score import KINDS
from holdfast.view.table.file import DamagedTableError
from holdfast.view.table.filters import TableNames
from holdfast.view.table.upkeep import Across
from holdfast.view.table.writer import FACTS, FINISHED, FLAGS, LONG_EQUAL, NOTHING, STATUSES, verified


class SampleLine(msgspec.Struct, frozen=True):
    """One sample in the list. Texts are excerpts."""

    key: str
    task: str
    model: str
    sample_id: str
    repeat: int
    o: int
    n: int
    """The number of the record with its answer or failure; 0 if there is none."""
    status: str
    attempts: int
    kind: str
    message: str
    input_tokens: int | None
    output_tokens: int | None
    seconds: float | None
    cost_usd: float | None
    marks: list[str]
    anomalies: list[str]
    scores: dict[str, Any]
    """By scorer: a value, null for no score, or `{"failure": …}`."""
    input: str
    target: str
    answer: str
    edited: list[str] = []
    """Scorers whose score was set by hand."""
    row: dict[str, Any] = {}
    """The columns of the row that were chosen."""


class RunFacts(NamedTuple):
    """What a query needs of the run."""

    folder: str
    cells: Sequence[Cell]
    across: Across


class LineReader:
    """Reads lines through one connection. Every method raises DamagedTableError if a row is not what was written."""

    def __init__(self, connection: sqlite3.Connection, run: RunFacts, names: TableNames) -> None:
        self._database = connection
        self._run = run
        self._names = names
        self._data = RowLookup(run.folder)

    def close(self) -> None:
        self._data.close()

    def read(self, ordinals: Sequence[int], columns: Sequence[str]) -> Iterator[SampleLine]:
        """These samples, in this order. `columns`: of the row, to be shown."""
        facts = self._rows_of("samples", FACTS, ordinals)
        questions = self._rows_of("questions", "key, row_at, input, target", ordinals)
        answers = self._rows_of("answers", "answer, message", ordinals)
        scores = self._scores(ordinals)
        kinds = {number: name for name, number in self._names.kinds.items()}
        for o in ordinals:
            if o not in facts or o not in questions or (facts[o][0] and o not in answers):
                raise DamagedTableError(f"the row of sample {o} is missing")
            _, status, kind, _, attempts, tokens, output, seconds, dollars, flags, _, _ = facts[o]
            key, row_at, given, target = questions[o]
            answer, message = answers.get(o, ("", "")) if facts[o][0] else ("", "")
            row = self.row(o, row_at) if columns else {}
            values, edited = scores.get(o, ({}, []))
            yield SampleLine(
                key,
                *parse_key(key),
                o,
                facts[o][0],
                STATUSES[status],
                attempts,
                kinds.get(kind, ""),
                message,
                None if tokens < 0 else int(tokens - output),
                None if tokens < 0 else int(output),
                None if seconds == NOTHING else seconds,
                None if dollars == NOTHING else dollars,
                [name for name in MARKS if flags & FLAGS[name]],
                self._anomalies(o, flags, status, seconds),
                values if status == FINISHED else {},
                given,
                target,
                answer,
                edited if status == FINISHED else [],
                {name: row.get(name) for name in columns},
            )

    def _rows_of(self, table: str, columns: str, ordinals: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        marks = ", ".join("?" * len(ordinals))
        query = f"SELECT o, {columns}, x FROM {table} WHERE o IN ({marks})"
        return {row[0]: verified(row)[1:] for row in self._database.execute(query, ordinals)}

    def _scores(self, ordinals: Sequence[int]) -> dict[int, tuple[dict[str, Any], list[str]]]:
        marks = ", ".join("?" * len(ordinals))
        query = f"SELECT s, o, number, label, failure, cause, edited, x FROM scores WHERE s = ? AND o IN ({marks})"
        found: dict[int, tuple[dict[str, Any], list[str]]] = {o: ({}, []) for o in ordinals}
        for name, number in self._names.scorers.items():
            for row in self._database.execute(query, (number, *ordinals)):
                _, o, value, label, failure, cause, edited = verified(row)
                found[o][0][name] = {"failure": failure} if cause else _score_value(value, label)
                if edited:
                    found[o][1].append(name)
        return found

    def _anomalies(self, o: int, flags: int, status: int, seconds: float) -> list[str]:
        across, found = self._run.across, set()
        for name in across.kinds - {"slow", "identical"}:
            if flags & FLAGS[name]:
                found.add(name)
        for each in across.cells if status == FINISHED else ():
            if each.has(o):
                if each.slow is not None and bucket_of(seconds) > each.slow.bucket:
                    found.add("slow")
                if each.identical is not None:
                    is_equal = flags & (LONG_EQUAL if each.identical.long else FLAGS["identical"])
                    found |= {"identical"} if is_equal else set()
        return [name for name in KINDS if name in found]

    def row_offsets(self, ordinals: Sequence[int]) -> dict[int, int]:
        return {
            o: values[1] for o, values in self._rows_of("questions", "key, row_at, input, target", ordinals).items()
        }

    def row(self, o: int, offset: int) -> Mapping[str, Any]:
        """The row of a sample; empty if it cannot be read."""
        cell = next((each for each in self._run.cells if each.first <= o < each.first + each.count), None)
        if offset < 0 or cell is None:
            return {}
        try:
            return self._data.row_at(cell.rows_block, offset).row or {}
        except (HoldfastError, OSError):
            return {}


def _score_value(number: float | None, label: str) -> Any:
    if number is None:
        return label or None
    return label == "true" if label in ("true", "false") else number


def read_names(connection: sqlite3.Connection) -> TableNames:
    found: dict[str, dict[str, int]] = {"kind": {}, "scorer": {}, "column": {}}
    for number, kind, name in map(verified, connection.execute("SELECT * FROM names")):
        found[kind][name] = number
    pages = [columns.split(",") for (columns,) in connection.execute("SELECT DISTINCT columns FROM pages")]
    ready = {name: number for name, number in found["column"].items() if all(str(number) in page for page in pages)}
    has_scores = "SELECT 1 FROM scores WHERE s = ? LIMIT 1"  # scorers of earlier evaluations have none
    scorers = {
        name: number
        for name, number in sorted(found["scorer"].items())
        if connection.execute(has_scores, (number,)).fetchone()
    }
    return TableNames(found["kind"], scorers, ready)
