"""Readers: JSONL, JSON, CSV and TSV files (also .gz and .zst), Parquet, and rows made by Python code.

Invariant: every row of the source is yielded, in order, or an error names the first invalid row; broken rows are never
repaired by guessing. All formats are streamed except .json, which is read whole; use JSONL for large data.

Reads the lines of a data file, decompressed, with their numbers.

Invariant: the file is read to its end or an error is raised. A truncated compressed file, or one with several frames,
never reads as a shorter data set. Memory is bounded by the longest allowed line, also for a small compressed file that
unpacks to terabytes.
"""

import contextlib
import csv
import difflib
import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

import msgspec

from holdfast.errors import DataError
from holdfast.records import LINE_BYTES_MAX, Row

_WHOLE_BYTES_MAX = 512 * 1024 * 1024
"""Largest unpacked size of a compressed file that is read whole; its size on disk limits nothing."""
_PACKED_BYTES = 256
"""Bytes read at a time from a zstd file. Each piece is unpacked at once, and 4 bytes can unpack to 128 KiB."""
_WINDOW_BYTES_MAX = 128 * 1024 * 1024
"""The limit of the `zstd` command without `--long`."""
_EMPTY_LINES_MAX = 1_000_000
_EMPTY_LINES = (b"\n", b"\r\n")
_COMPRESSED = (".gz", ".zst")
_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")


def read_lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its number, from 1. Lines keep their newline; a byte order mark at the start is dropped."""
    with _open(path) as file:
        number = empty = 0
        while True:
            line = _read_checked(path, lambda: file.readline(LINE_BYTES_MAX + 1))
            if not line:
                return
            number += 1
            if len(line) > LINE_BYTES_MAX:
                raise DataError(
                    path,
                    f"longer than {LINE_BYTES_MAX >> 20} MiB; split the row, or end each row with a newline",
                    number,
                )
            empty = empty + 1 if line in _EMPTY_LINES else 0
            if empty > _EMPTY_LINES_MAX:
                raise DataError(path, f"more than {_EMPTY_LINES_MAX} empty lines; is this the right file?", number)
            yield number, _strip_bom(path, line) if number == 1 else line


def read_whole(path: str) -> bytes:
    """Return the decompressed content of a file, without a byte order mark."""
    with _open(path) as file:
        most = _WHOLE_BYTES_MAX if _suffix(path) in _COMPRESSED else -1
        content = _read_checked(path, lambda: file.read(most))
        if most >= 0 and _read_checked(path, lambda: file.read(1)):
            raise DataError(path, f"unpacks to more than {most >> 20} MiB; convert it to .jsonl")
        return _strip_bom(path, content)


def not_utf8(path: str, error: UnicodeDecodeError, line: int = 0) -> DataError:
    """Return the error for bytes that are not UTF-8."""
    byte = error.object[error.start]
    return DataError(path, f"not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8", line)


def _open(path: str) -> io.BufferedIOBase:
    suffix = _suffix(path)
    try:
        if suffix == ".gz":
            return gzip.open(path, "rb")
        if suffix == ".zst":
            return io.BufferedReader(_ZstdFile(path))
        return open(path, "rb")
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _read_checked(path: str, read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(path, f"the compressed file is damaged or cut short ({error}); copy it again") from error
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _unreadable_error(path: str, error: OSError) -> DataError:
    return DataError(path, f"cannot be read ({error.strerror or error}); check the file and its permissions")


def _strip_bom(path: str, start: bytes) -> bytes:
    if start.startswith(_WIDE_BOMS):
        raise DataError(path, "is UTF-16; save the file as UTF-8", 1)
    return start.removeprefix(_BOM)


class _ZstdFile(io.RawIOBase):
    """Reads all frames of a zstd file. The library's own reader does not notice a truncated file."""

    def __init__(self, path: str) -> None:
        import zstandard

        self._file = open(path, "rb")  # noqa: SIM115 - closed by close()
        self._frames = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        self._error = zstandard.ZstdError
        self._frame = self._frames.decompressobj()
        self._begun = False
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]  # BufferedReader's call
        while not self._ready:
            if not self._packed:
                self._packed = self._file.read(_PACKED_BYTES)
            if not self._packed:
                if self._begun:
                    raise EOFError("the last zstd frame has no end")
                return 0
            self._begun = True
            try:
                self._ready = memoryview(self._frame.decompress(self._packed))
            except self._error as error:
                raise EOFError(str(error)) from error
            self._packed = b""
            if self._frame.eof:  # what follows is another frame
                self._packed = self._frame.unused_data
                self._frame = self._frames.decompressobj()
                self._begun = False
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


_BYTES = (bytes, bytearray, memoryview)


def as_stored(row: Row) -> Row:
    """Return the row as it will be after storing: tuples are lists, NaN and infinity are None, keys are text."""
    for column, value in row.items():
        if isinstance(value, _BYTES):  # JSON would store them as base64 text
            raise DataError("a data row", f"column {column!r} holds bytes; name it in dataset.files")
    try:
        stored: Row = msgspec.json.decode(_encoder.encode(row))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError("a data row", f"cannot be stored as JSON ({error}); use plain values only") from error
    return stored


def _plain(value: Any) -> Any:
    """Convert numpy scalars and arrays to plain numbers and lists."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


NumberedRow = tuple[int, Row]


class RowStream(Iterator[NumberedRow]):
    """An iterator of numbered rows. `again` returns a new one that starts from the first row."""

    def __init__(self, read: Callable[[], Iterator[NumberedRow]], unit: str = "line") -> None:
        self.unit = unit
        """What the numbers count: a `line` of a file, or a `row` where there are no lines."""
        self._read = read
        self._reading = read()

    def __next__(self) -> NumberedRow:
        return next(self._reading)

    def again(self) -> "RowStream":
        """Return the same rows from the start."""
        return RowStream(self._read, self.unit)


class ColumnChoice(msgspec.Struct, frozen=True):
    """What to read of the rows of a file."""

    columns: Sequence[str] = ()
    """The columns to keep; empty: all."""
    files: Sequence[str] = ()
    """The columns that may hold bytes."""


ALL_COLUMNS = ColumnChoice()


def open_rows(path: str, format: str = "", choice: ColumnChoice = ALL_COLUMNS) -> RowStream:
    """Return the rows of a file. A missing file or an unknown format raises at once, before the first row is read."""
    chosen = check_format(path, format)
    _require_file(path)
    if chosen == PARQUET:
        return RowStream(lambda: _parquet(path, choice), "row")
    read, columns = FORMATS[chosen], frozenset(choice.columns)
    unit = "row" if chosen == "json" else "line"
    if columns:
        return RowStream(lambda: _with_columns(read(path), columns), unit)
    return RowStream(lambda: read(path), unit)


def check_format(path: str, format: str = "") -> str:
    """Return the format of a file: the given one, else the one that its name shows. DataError if it is unknown."""
    chosen = format.lower() or _format_of(path)
    if chosen not in FORMATS:
        near = difflib.get_close_matches(chosen, FORMATS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(path, f"unknown format {chosen!r}; {hint}known: {', '.join(FORMATS)}")
    return chosen


def _with_columns(rows: Iterator[NumberedRow], columns: frozenset[str]) -> Iterator[NumberedRow]:
    for number, row in rows:
        yield number, {name: value for name, value in row.items() if name in columns}


def _parquet(path: str, choice: ColumnChoice = ALL_COLUMNS) -> Iterator[NumberedRow]:
    from holdfast.datasets.tables import read_parquet  # late: few data sets need it

    return read_parquet(path, choice.columns, choice.files)


def rows_in_memory(rows: Iterable[Row], where: str = "data", files: Sequence[str] = ()) -> RowStream:
    """Return rows made by Python code, as they will be after storing. Only the columns in `files` may hold bytes."""
    return RowStream(lambda: _numbered(rows, where, files), "row")


def _jsonl(path: str) -> Iterator[NumberedRow]:
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


def _json(path: str) -> Iterator[NumberedRow]:
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


def _csv(path: str, delimiter: str = ",") -> Iterator[NumberedRow]:
    csv.field_size_limit(LINE_BYTES_MAX)  # process-wide; the default of 128 KiB is too small for long prompts
    lines = _RowLines(path)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        first = reader.line_num + 1  # a quoted field may span several lines
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
            header = [field.strip() for field in fields]
            twice = sorted(name for name, count in Counter(header).items() if count > 1)
            if twice:
                raise DataError(path, f"the header names column {twice[0]!r} twice; rename one", first)
            continue
        if len(fields) != len(header):
            problem = f"{len(fields)} fields, but the header has {len(header)}"
            raise DataError(path, f"{problem}; put quotes around fields that contain {delimiter!r} or line ends", first)
        yield first, dict(zip(header, fields, strict=True))


PARQUET = "parquet"
FORMATS: dict[str, Callable[[str], Iterator[NumberedRow]]] = {
    "jsonl": _jsonl,
    "json": _json,
    "csv": _csv,
    "tsv": partial(_csv, delimiter="\t"),
    PARQUET: _parquet,
}
"""Reader by format name."""

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": PARQUET}


def _format_of(path: str) -> str:
    stem, suffix = os.path.splitext(path.lower())
    if suffix in {".gz", ".zst"}:
        suffix = os.path.splitext(stem)[1]
        if suffix == ".parquet":
            raise DataError(path, "Parquet is compressed inside; unpack the file first")
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise DataError(
            path, f"unknown format: the name ends in none of {known} (also with .gz or .zst); set dataset.format"
        )
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
    """Return the error for invalid JSON. Names NaN and Infinity, which Python's json module writes."""

    def refuse(name: str) -> NoReturn:
        raise DataError(path, f"{name} is not JSON; write null instead", line)

    with contextlib.suppress(ValueError, RecursionError):  # the caller knows that it is invalid
        try:
            json.loads(text, parse_constant=refuse)
        except DataError as better:
            return better
    return DataError(path, f"not valid JSON ({error}); fix or remove it", line)


class _RowLines(Iterator[str]):
    """The lines of a CSV file. DataError if a row, which may span many lines, exceeds the size limit."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines = read_lines(path)
        self._bytes = 0

    def begin_row(self) -> None:
        """Start counting the bytes of a new row."""
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


def _numbered(rows: Iterable[Row], where: str, files: Sequence[str]) -> Iterator[NumberedRow]:
    for number, value in enumerate(rows, 1):
        yield number, store_row(_as_row(value, where, number, "row"), where, number, files)


def store_row(row: Row, where: str, number: int, files: Sequence[str] = ()) -> Row:
    """The row as it will be after storing; values of `files` stay as they are. DataError names the row."""
    kept = {name: row[name] for name in files if name in row} if files else {}
    try:
        stored = as_stored({**row, **dict.fromkeys(kept)} if kept else row)
    except DataError as error:
        raise DataError(where, error.problem, number, "row") from error
    return {**stored, **kept} if kept else stored
