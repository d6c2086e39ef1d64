"""Reads the lines of a data file, decompressed, with their numbers.

Invariant: the file is read to its end or an error is raised. A truncated compressed file, or one with several frames,
never reads as a shorter data set. Memory is bounded by the longest allowed line, also for a small compressed file that
unpacks to terabytes.
"""

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator

from holdfast.errors import DataError
from holdfast.records import LINE_BYTES_MAX

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
