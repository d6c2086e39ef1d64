"""The lines of a data file, uncompressed, with their numbers.

Invariant: the end of the lines is the end of the file. A compressed file that was cut, or that holds several frames,
never reads as a shorter data set. Memory is bounded by the longest line that a row may take, also where a small
compressed file stands for terabytes.
"""

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator

from holdfast.errors import DataError
from holdfast.records import LINE_BYTES_MAX

_WHOLE_BYTES_MAX = 512 * 1024 * 1024
"""Of a compressed file that must be read whole: its size on disk says nothing."""
_PACKED_BYTES = 256
"""Read at a time from a zstd file: four of its bytes can stand for 128 KiB, and all of a piece is unpacked at once."""
_WINDOW_BYTES_MAX = 128 * 1024 * 1024
"""What zstd's own command reads without `--long`."""
_EMPTY_LINES_MAX = 1_000_000
_EMPTY_LINES = (b"\n", b"\r\n")
_COMPRESSED = (".gz", ".zst")
_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")


def read_lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Each line with its newline, from 1; a byte order mark before the first is dropped."""
    with _open(path) as file:
        number = empty = 0
        while True:
            line = _guarded(path, lambda: file.readline(LINE_BYTES_MAX + 1))
            if not line:
                return
            number += 1
            if len(line) > LINE_BYTES_MAX:
                raise DataError(
                    path, f"longer than {LINE_BYTES_MAX >> 20} MiB; split the row, or end each with a newline", number
                )
            empty = empty + 1 if line in _EMPTY_LINES else 0
            if empty > _EMPTY_LINES_MAX:
                raise DataError(path, f"more than {_EMPTY_LINES_MAX} empty lines; is this the right file?", number)
            yield number, _without_mark(path, line) if number == 1 else line


def read_whole(path: str) -> bytes:
    with _open(path) as file:
        most = _WHOLE_BYTES_MAX if _suffix(path) in _COMPRESSED else -1
        content = _guarded(path, lambda: file.read(most))
        if most >= 0 and _guarded(path, lambda: file.read(1)):
            raise DataError(path, f"unpacks to more than {most >> 20} MiB; convert it to .jsonl")
        return _without_mark(path, content)


def not_utf8(path: str, error: UnicodeDecodeError, line: int = 0) -> DataError:
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
        raise _unreadable(path, error) from error


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _guarded(path: str, read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(path, f"the compressed file is damaged or cut short ({error}); copy it again") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> DataError:
    return DataError(path, f"cannot be read ({error.strerror or error}); check the file and its permissions")


def _without_mark(path: str, start: bytes) -> bytes:
    if start.startswith(_WIDE_BOMS):
        raise DataError(path, "is UTF-16; save the file as UTF-8", 1)
    return start.removeprefix(_BOM)


class _ZstdFile(io.RawIOBase):
    """All frames of a zstd file, one after the other. The library's own reader takes a cut file for a whole one."""

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
            self._unpack()
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()

    def _unpack(self) -> None:
        self._begun = True
        try:
            self._ready = memoryview(self._frame.decompress(self._packed))
        except self._error as error:
            raise EOFError(str(error)) from error
        self._packed = b""
        if self._frame.eof:
            self._packed = self._frame.unused_data
            self._frame = self._frames.decompressobj()
            self._begun = False
