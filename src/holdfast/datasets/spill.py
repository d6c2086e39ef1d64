"""Rows in a temporary file without a name, read back in any order: for rows that do not fit in memory.

Only the offsets are in memory, 8 bytes a row. The file vanishes with the process.
"""

import contextlib
import marshal
import os
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from holdfast.errors import DataError
from holdfast.records import Row

_BUFFER_BYTES = 1 << 20


class RowSpill:
    """A list of plain values on disk. Append first, then read; both may alternate."""

    def __init__(self) -> None:
        self._file = _temporary_file()
        weakref.finalize(self, os.close, self._file)
        self._ends = array("Q", [0])
        self._buffer = bytearray()
        self._written = 0

    def __len__(self) -> int:
        return len(self._ends) - 1

    def append(self, value: Any) -> None:
        self._buffer += marshal.dumps(value)  # keeps bytes and long integers, which JSON and msgpack do not
        self._ends.append(self._written + len(self._buffer))
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def read(self, index: int) -> Any:
        start, end = self._ends[index], self._ends[index + 1]
        if end > self._written:
            self._flush()
        return marshal.loads(os.pread(self._file, end - start, start))

    def _flush(self) -> None:
        with _spilling():
            while self._buffer:
                count = os.write(self._file, self._buffer)
                self._written += count
                del self._buffer[:count]


class SpooledRows(Iterable[Row]):
    """The rows of any iterable, each taken from it once. Iterating again reads those that were taken from disk, so a
    generator can be planned from, and one that gives other rows each time does no harm.
    """

    def __init__(self, rows: Iterable[Row], plain: Callable[[Any, int], Row]) -> None:
        """`plain`: makes a row of plain values; its second argument is the row's number."""
        self._source = iter(rows)
        self._plain = plain
        self._spill = RowSpill()

    def __iter__(self) -> Iterator[Row]:
        at = 0
        while True:
            if at < len(self._spill):
                yield self._spill.read(at)
            else:
                try:
                    row = self._plain(next(self._source), at + 1)
                except StopIteration:
                    return
                self._spill.append(row)
                yield row
            at += 1


def _temporary_file() -> int:
    """A file descriptor. The file has no name any more: it vanishes when it is closed."""
    with _spilling():
        handle, path = tempfile.mkstemp(prefix="holdfast-")
        os.unlink(path)
        return handle


@contextlib.contextmanager
def _spilling() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = tempfile.gettempdir()
        raise DataError(folder, f"rows cannot be kept there ({error.strerror}); set TMPDIR to a larger disk") from error
