"""Export as Parquet: typed columns, written in row groups, so that memory does not grow with the run.

Texts are unchanged. A scorer's column holds booleans, numbers or labels, like its values. With mixed values it holds
numbers if all can be read as numbers (a boolean is 1 or 0), else texts. pyarrow is imported on use; if it is missing,
the error names the package to install. Columns of the rows are typed in the same way; lists and objects are JSON.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.errors import UsageError
from holdfast.report.formats import ExportSource
from holdfast.report.formats.json_csv import ASKED, row_column, score_column
from holdfast.report.lines import ExportLine
from holdfast.report.questions import BOOL, INTEGER, NUMBER, TEXT, value_text
from holdfast.state import Index

_ROWS_MAX = 2_000
_CHARACTERS_MAX = 8_000_000
"""The limit on answers and questions in one row group: a thousand long ones must not take a gigabyte."""
_NO_COLUMNS: Mapping[str, str] = {}
_BOOL, _NUMBER, _LABEL = "bool", "number", "label"
_COLUMNS = {
    "key": "string",
    "task": "string",
    "model": "string",
    "sample_id": "string",
    "repeat": "int32",
    "status": "string",
    "output": "string",
    "marks": "strings",
    "anomalies": "texts",
    "error_kind": "string",
    "error": "string",
    "attempt": "int32",
    "finish_reason": "string",
    "input_tokens": "int64",
    "output_tokens": "int64",
    "cached_tokens": "int64",
    "reasoning_tokens": "int64",
    "cost_usd": "float64",
    "seconds": "float64",
    "score_errors": "texts",
    "reasons": "texts",
    "edited": "texts",
    **dict.fromkeys(ASKED, "string"),
}
_LAST = 3 + len(ASKED)
"""How many columns follow those of the scorers."""


def score_kinds(index: Index, evaluation: str = "") -> dict[str, str]:
    """The kind of each scorer's values, sorted by name. A scorer without values counts as numeric."""
    found: dict[str, set[str]] = {}
    for page in index.totals(index.story.cells):
        for scorer, totals in page.evaluations.get(evaluation or index.story.evaluation, {}).items():
            found.setdefault(scorer, set()).update(totals.kinds)
    return {
        name: _LABEL if _LABEL in kinds else _BOOL if kinds == {_BOOL} else _NUMBER
        for name, kinds in sorted(found.items())
    }


def export_parquet(lines: Iterable[ExportLine], path: str, source: ExportSource) -> None:
    """The writer of `export --format parquet`."""
    write_parquet(lines, path, source.score_kinds(), source.column_kinds())


def write_parquet(
    lines: Iterable[ExportLine], path: str, kinds: Mapping[str, str], columns: Mapping[str, str] = _NO_COLUMNS
) -> None:
    """`kinds`: see `score_kinds`; `columns`: see `column_kinds`. After a failure the file has no footer, so readers
    reject it as Parquet.
    """
    arrow, parquet = _package("pyarrow"), _package("pyarrow.parquet")
    schema = _schema(arrow, kinds, columns)
    try:
        writer = parquet.ParquetWriter(path, schema, compression="zstd")
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written: {error.strerror or error}") from error
    with writer:
        for group in _groups(lines):
            rows = [_row(line, kinds, columns) for line in group]
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))


def _schema(arrow: Any, kinds: Mapping[str, str], columns: Mapping[str, str]) -> Any:
    """The pyarrow schema (Any: pyarrow has no type hints)."""
    types = {
        "string": arrow.string(),
        "strings": arrow.list_(arrow.string()),
        "texts": arrow.map_(arrow.string(), arrow.string()),
        "int32": arrow.int32(),
        "int64": arrow.int64(),
        "float64": arrow.float64(),
        _BOOL: arrow.bool_(),
        _NUMBER: arrow.float64(),
        _LABEL: arrow.string(),
    }
    of_rows = {BOOL: arrow.bool_(), INTEGER: arrow.int64(), NUMBER: arrow.float64(), TEXT: arrow.string()}
    fields = [(name, types[kind]) for name, kind in _COLUMNS.items()]
    scores = [(name, types[kinds[scorer]]) for scorer, name in _score_columns(kinds, columns).items()]
    rows = [(row_column(name), of_rows[kind]) for name, kind in columns.items()]
    return arrow.schema([*fields[:-_LAST], *scores, *fields[-_LAST:], *rows])


def _score_columns(kinds: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, str]:
    """The column of each scorer."""
    taken = {*_COLUMNS, *map(row_column, columns)}
    return {scorer: score_column(scorer, taken) for scorer in kinds}


def _groups(lines: Iterable[ExportLine]) -> Iterator[list[ExportLine]]:
    group: list[ExportLine] = []
    characters = 0
    for line in lines:
        group.append(line)
        characters += sum(len(text) for text in (line.output, line.input, line.prompt) if isinstance(text, str))
        if len(group) >= _ROWS_MAX or characters >= _CHARACTERS_MAX:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _row(line: ExportLine, kinds: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(line, name, None) for name in _COLUMNS}
    row["marks"], row["anomalies"] = list(line.marks), list(line.anomalies.items())
    row["error_kind"] = line.error.kind if line.error else None
    row["error"] = line.error.message if line.error else None
    row["score_errors"], row["reasons"] = list(line.broken.items()), list(line.reasons.items())
    row["edited"] = list(line.edited.items())
    row |= {name: value_text(row[name]) for name in ASKED}
    given, asked = line.values, line.row or {}
    for name, column in _score_columns(kinds, columns).items():
        value, kind = given.get(name), kinds[name]
        if value is not None and kind != _BOOL:
            value = float(value) if kind == _NUMBER else str(value)
        row[column] = value
    for name, kind in columns.items():
        value = asked.get(name)
        row[row_column(name)] = value_text(value) if kind == TEXT else value
    return row


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError("--format parquet needs one more package: pip install 'holdfast[parquet]'") from error
