"""Readers: JSONL, JSON, CSV and TSV files (also .gz and .zst), and rows that Python code made.

Invariant: every row of the source is handed on, in order, or an error names the first that cannot be. Nothing is
guessed about broken rows. Everything streams, except .json: an array has no line to stop at, so such a file is read
whole; use JSONL for large data.
"""

import contextlib
import csv
import difflib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import msgspec

from holdfast.datasets.lines import not_utf8, read_lines, read_whole
from holdfast.errors import DataError
from holdfast.records import LINE_BYTES_MAX
from holdfast.records.samples import Row

_BYTES = (bytes, bytearray, memoryview)


def as_stored(row: Row) -> Row:
    """The row as it reads after it was stored: tuples are lists, NaN and infinity are None, keys are text."""
    for column, value in row.items():
        if isinstance(value, _BYTES):  # as text it would be another value
            raise DataError("a data row", f"column {column!r} holds bytes; name it in dataset.files")
    try:
        stored: Row = msgspec.json.decode(_encoder.encode(row))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError("a data row", f"cannot be stored as JSON ({error}); use plain values only") from error
    return stored


def _plain(value: Any) -> Any:
    """numpy's scalars and arrays mean plain numbers and lists."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


Numbered = tuple[int, Row]


class Rows(Iterator[Numbered]):
    """Rows with their numbers, read as they are asked for, that can be read `again` from the start."""

    def __init__(self, read: Callable[[], Iterator[Numbered]], unit: str = "line") -> None:
        self.unit = unit
        """What a number counts: a `line` of a file, or a `row` where there are no lines."""
        self._read = read
        self._reading = read()

    def __next__(self) -> Numbered:
        return next(self._reading)

    def again(self) -> "Rows":
        return Rows(self._read, self.unit)


def open_rows(path: str, format: str = "") -> Rows:
    """The rows of a file. What can be known without reading it (missing, unknown format) is refused at once."""
    chosen = format.lower() or _format_of(path)
    if chosen not in FORMATS:
        near = difflib.get_close_matches(chosen, FORMATS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(path, f"unknown format {chosen!r}; {hint}known: {', '.join(FORMATS)}")
    _require_file(path)
    read = FORMATS[chosen]
    return Rows(lambda: read(path), "row" if chosen == "json" else "line")


def rows_in_memory(rows: Sequence[Row], where: str = "data", files: Sequence[str] = ()) -> Rows:
    """Rows that Python code made, as they will read after they were stored: tuples are lists, NaN is None. Only the
    columns of `files` may hold bytes, and keep them.
    """
    return Rows(lambda: _numbered(rows, where, files), "row")


def _jsonl(path: str) -> Iterator[Numbered]:
    decode = msgspec.json.Decoder().decode
    for number, line in read_lines(path):
        if line.isspace():
            continue
        try:
            value = decode(line)
        except UnicodeDecodeError as error:
            raise not_utf8(path, error, number) from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise _bad_json(path, line, error, number) from error
        yield number, _as_row(value, path, number, "line")


def _json(path: str) -> Iterator[Numbered]:
    content = read_whole(path)
    try:
        value = msgspec.json.decode(content) if content.strip() else []
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _bad_json(path, content, error) from error
    if isinstance(value, dict):
        value = value.get("data")
    if not isinstance(value, list):
        raise DataError(
            path, 'expected a list of objects, or {"data": [...]}; if each line is an object, name it .jsonl'
        )
    for number, row in enumerate(value, 1):
        yield number, _as_row(row, path, number, "row")


def _csv(path: str, delimiter: str = ",") -> Iterator[Numbered]:
    csv.field_size_limit(LINE_BYTES_MAX)  # of the whole process: the default, 128 KiB, is less than a long prompt
    lines = _RowLines(path)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        first = reader.line_num + 1  # a quoted field may go over several
        lines.begin_row()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                path, f"not well-formed ({error}); check quotes and line ends from here on", first
            ) from error
        if not fields:
            continue
        if header is None:
            header = _as_header(fields, path, first)
            continue
        if len(fields) != len(header):
            problem = f"{len(fields)} fields, but the header has {len(header)}"
            raise DataError(path, f"{problem}; put quotes around fields that contain {delimiter!r} or line ends", first)
        yield first, dict(zip(header, fields, strict=True))


def _tsv(path: str) -> Iterator[Numbered]:
    return _csv(path, "\t")


FORMATS: dict[str, Callable[[str], Iterator[Numbered]]] = {"jsonl": _jsonl, "json": _json, "csv": _csv, "tsv": _tsv}
"""Reader by format name."""

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv"}


def _format_of(path: str) -> str:
    stem, suffix = os.path.splitext(path.lower())
    if suffix in {".gz", ".zst"}:
        suffix = os.path.splitext(stem)[1]
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise DataError(path, f"unknown format: the name ends in none of {known} (nor these with .gz, .zst); say which")
    return _SUFFIXES[suffix]


def _require_file(path: str) -> None:
    if os.path.isdir(path):
        raise DataError(path, "is a folder; name the file in it")
    if os.path.exists(path):
        return
    folder = os.path.dirname(path) or "."
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(path, f"no such file: the folder {folder} cannot be read ({error.strerror})") from error
    near = difflib.get_close_matches(os.path.basename(path), names, n=1, cutoff=0.5)
    raise DataError(path, f"no such file; did you mean {near[0]}?" if near else f"no such file in {folder}")


def _as_row(value: Any, where: str, number: int, unit: str) -> Row:
    if not isinstance(value, dict):
        found = "null" if value is None else type(value).__name__
        raise DataError(where, f"expected an object with named columns, found {found}", number, unit)
    return value


def _bad_json(path: str, text: bytes, error: Exception, line: int = 0) -> DataError:
    """Python writes NaN and Infinity into JSON; say so, rather than "invalid character"."""

    def refuse(name: str) -> NoReturn:
        raise DataError(path, f"{name} is not JSON; write null instead", line)

    with contextlib.suppress(ValueError, RecursionError):  # known already
        try:
            json.loads(text, parse_constant=refuse)
        except DataError as better:
            return better
    return DataError(path, f"not valid JSON ({error}); mend or remove it", line)


class _RowLines(Iterator[str]):
    """The lines of a CSV file. DataError if a row, which may go over many lines, is longer than a row may be."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines = read_lines(path)
        self._bytes = 0

    def begin_row(self) -> None:
        self._bytes = 0

    def __next__(self) -> str:
        number, line = next(self._lines)
        self._bytes += len(line)
        if self._bytes > LINE_BYTES_MAX:
            raise DataError(
                self._path, f"a row of more than {LINE_BYTES_MAX >> 20} MiB ends here; check its quotes", number
            )
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise not_utf8(self._path, error, number) from error


def _as_header(fields: list[str], path: str, line: int) -> list[str]:
    header = [field.strip() for field in fields]
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice:
        raise DataError(path, f"the header names column {twice[0]!r} twice; rename one", line)
    return header


def _numbered(rows: Sequence[Row], where: str, files: Sequence[str]) -> Iterator[Numbered]:
    for number, value in enumerate(rows, 1):
        row = _as_row(value, where, number, "row")
        kept = {name: row[name] for name in files if name in row}
        try:
            stored = as_stored({**row, **dict.fromkeys(kept)}) if kept else as_stored(row)
        except DataError as error:
            raise DataError(where, error.problem, number, "row") from error
        yield number, {**stored, **kept} if kept else stored
