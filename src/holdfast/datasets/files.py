"""Columns whose values are files: a path, a URL, a `data:` URI, or bytes made by Python code.

A path, a `data:` URI and bytes become a reference to their content (its digest and type). A URL stays unchanged and is
never fetched. An unreadable file is a DataError with the row and the column. Content is read in pieces.

Data may be untrusted, so a row may only name files below one folder: that of the data file, or `files_root`. The check
uses the resolved path. The file is then opened folder by folder without following links, so that a link that is swapped
in between check and open cannot lead outside.
"""

import base64
import binascii
import contextlib
import functools
import hashlib
import mimetypes
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

from holdfast.datasets.downloads import is_url
from holdfast.datasets.readers import NumberedRow, RowStream
from holdfast.errors import DataError, HoldfastError
from holdfast.records import Reference, Row, parse_reference

PIECE_BYTES = 1 << 20
_UNKNOWN = "application/octet-stream"
_CACHED_MAX = 200_000
_HEAD_BYTES = 16
_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_SYNONYMS = {
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
    "image/jpg": "image/jpeg",
}


class FileContent(msgspec.Struct, frozen=True):
    """The content of one value in a file column: a file on disk, or bytes in memory."""

    path: str = ""
    root: str = ""
    """The resolved folder that must contain the file; empty if it may be anywhere."""
    data: bytes = b""
    type: str = ""
    """The type that a `data:` URI declares; if empty, it is detected from the content or the file's name."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces."""
        if not self.path:
            yield from (self.data[at : at + PIECE_BYTES] for at in range(0, len(self.data), PIECE_BYTES))
            return
        with _reading(self.path), open(_open_below(self.root, self.path), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def type_of(self, head: bytes) -> str:
        """Detect the type from the first bytes, so that renaming a file does not change it; else from its name."""
        if self.type:
            return self.type
        found = next((name for start, name in _SIGNATURES if head.startswith(start)), "")
        if not found and head[:4] == b"RIFF":
            found = _RIFF.get(head[8:12], "")
        return found or type_of_name(self.path) or _UNKNOWN


Keep = Callable[[FileContent | Reference], Reference]
"""Turns content into a reference, and may store it on the way."""


class Fingerprint:
    """Computes the reference of content while its pieces pass through."""

    def __init__(self, content: FileContent) -> None:
        self._content = content
        self._digest = hashlib.sha256()
        self._head = b""
        self.size = 0

    def pieces(self) -> Iterator[bytes]:
        for piece in self._content.pieces():
            self._head = self._head or piece[:_HEAD_BYTES]
            self._digest.update(piece)
            self.size += len(piece)
            yield piece

    def reference(self) -> Reference:
        """Return the reference of the pieces so far."""
        return Reference(self._digest.hexdigest(), self._content.type_of(self._head))


class ReferenceCache:
    """Computes references without storing content. Caches files by size and modification time, because planning reads
    the data several times.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], Reference]] = {}
        self._sizes: dict[str, int] = {}

    def reference(self, content: FileContent | Reference) -> Reference:
        """Return the reference of content. Unchanged files are not read again."""
        if isinstance(content, Reference):
            return content
        stamp = None
        if content.path:
            with _reading(content.path):
                status = os.stat(content.path)
            stamp = status.st_size, status.st_mtime_ns
        known = self._known.get(content.path)
        if known is not None and known[0] == stamp:
            return known[1]
        fingerprint = Fingerprint(content)
        for _ in fingerprint.pieces():
            pass
        found = fingerprint.reference()
        if len(self._sizes) < _CACHED_MAX:
            self._sizes[found.digest] = fingerprint.size
            if stamp is not None:
                self._known[content.path] = (stamp, found)
        return found

    def size(self, reference: Reference) -> int | None:
        """Return the content's size in bytes, or None if this object did not read it."""
        return self._sizes.get(reference.digest)


class FileColumns(msgspec.Struct, frozen=True):
    """The file columns of a data set, and what to do with their content."""

    names: Sequence[str]
    folder: str
    """The folder that relative paths start from."""
    keep: Keep
    where: str
    root: str = ""
    """The folder that must contain all files; empty: `folder`."""
    stored: bool = False
    """The rows come from a run: their values are already references."""
    optional: bool = False
    """Rows may lack the column."""

    def apply(self, rows: RowStream) -> RowStream:
        """Return the same rows with references instead of files."""
        return RowStream(lambda: self._read(rows.again()), rows.unit) if self.names else rows

    def _read(self, rows: RowStream) -> Iterator[NumberedRow]:
        return ((number, self.replace(row, number, rows.unit)) for number, row in rows)

    def replace(self, row: Row, number: int, unit: str) -> Row:
        """Return a row with references instead of files."""
        made = dict(row)
        for name in self.names:
            if name not in row and self.optional:
                continue
            if name not in row:
                problem = f"no column {name!r}, which dataset.files names; the row has: {', '.join(row)}"
                raise DataError(self.where, problem, number, unit)
            try:
                made[name] = self._value(row[name])
            except BadFileError as error:
                raise DataError(self.where, f"column {name!r}: {error}", number, unit) from error
        return made

    def _value(self, value: Any) -> Any:
        if value is None or value == "" or value == b"":
            return None
        if isinstance(value, list | tuple):
            return [self._value(each) for each in value]
        reference = parse_reference(value) if self.stored else None
        if reference is not None:
            return str(self.keep(reference))
        if isinstance(value, str) and is_url(value):
            return value
        return str(self.keep(self._content(value)))

    def _content(self, value: Any) -> FileContent:
        if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):  # an image or a sound of a Hub data set
            value = value["bytes"]
        if isinstance(value, bytes | bytearray | memoryview):
            return FileContent(data=bytes(value))
        if not isinstance(value, str):
            raise BadFileError(
                f"expected a path, a URL, a data: URI or bytes, found {type(value).__name__}; write null for no file"
            )
        if value.startswith("data:"):
            return _decode_data_uri(value)
        if self.stored:
            raise BadFileError(f"{value[:200]!r} is not a file of the run; a stored row may only name those")
        path, root = os.path.join(self.folder, value), os.path.realpath(self.root or self.folder)
        self._check(path, root)
        return FileContent(path=path, root=root)

    def _check(self, path: str, root: str) -> None:
        anchor = f"paths are relative to {os.path.abspath(self.folder)}"
        try:
            real = os.path.realpath(path)
            if real != root and not is_below(root, real):
                led = "" if os.path.normpath(os.path.abspath(path)) == real else f", which leads to {real},"
                folder = "the folder of the data" if not self.root else "dataset.files_root"
                raise BadFileError(
                    f"{path[:200]}{led} is outside {root}, {folder}; copy the file there, or set dataset.files_root to "
                    "a folder that contains all files that rows may name"
                )
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            raise BadFileError(f"no such file: {path}; {anchor}") from None
        except (OSError, ValueError) as error:
            raise BadFileError(f"{path[:200]!r} cannot be read ({error}); {anchor}") from error
        if stat.S_ISDIR(mode):
            raise BadFileError(f"{path} is a folder; name the file in it")
        if not stat.S_ISREG(mode):
            raise BadFileError(f"{path} is not a regular file")


class BadFileError(HoldfastError):
    """A file, or a value that should name one, cannot be used. The caller adds the row to the message."""


def is_below(root: str, path: str) -> bool:
    """Whether a path is inside a folder. Both must be resolved."""
    return path.startswith(root.rstrip(os.sep) + os.sep)


def _open_below(root: str, path: str) -> int:
    """Open a file for reading. With a root, open it folder by folder from there without following links: the path is
    already resolved, so a link on the way was put there since, by somebody else.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a named pipe must not block
    if not root:
        return os.open(path, flags)
    real = os.path.realpath(path)
    if not is_below(root, real):
        raise BadFileError(f"{path} now leads outside {root}; it changed while it was being read")
    *folders, name = os.path.relpath(real, root).split(os.sep)
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            above, here = here, os.open(folder, flags | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(above)
        handle = os.open(name, flags | os.O_NOFOLLOW, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadFileError(f"{path} is not a regular file")
    return handle


def type_of_name(name: str) -> str:
    """Guess the type from a file name or URL; empty if unknown.

    Uses Python's own table, not the machine's, because a resume on another machine must find the same type.
    """
    path = urlsplit(name).path if is_url(name) else name
    found = _types().guess_type(os.path.basename(path), strict=False)[0] or ""
    return _SYNONYMS.get(found, found)


def ending_of(type: str) -> str:
    """Return the file name suffix of a type, such as `.pdf`; empty if unknown."""
    return _types().guess_extension(type, strict=False) or ""


@functools.cache
def _types() -> mimetypes.MimeTypes:
    """Built when the first file is met: most data sets have none."""
    return mimetypes.MimeTypes()


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn OSError into BadFileError: the source file failed, not the run's storage."""
    try:
        yield
    except OSError as error:
        raise BadFileError(f"{path} cannot be read ({error.strerror}); check the file and its permissions") from error


def _decode_data_uri(uri: str) -> FileContent:
    head, comma, body = uri[5:].partition(",")
    if not comma:
        raise BadFileError(f"{uri[:40]!r}… is not a data: URI; expected data:<type>;base64,<content>")
    declared = head.split(";")[0].strip().lower()
    try:
        data = base64.b64decode(body, validate=True) if head.endswith(";base64") else unquote_to_bytes(body)
    except (binascii.Error, ValueError) as error:
        raise BadFileError(f"{uri[:40]!r}…: its content is not base64 ({error})") from error
    known = parse_reference(str(Reference("0" * 64, declared)))  # None if the type cannot be part of a reference
    return FileContent(data=data, type=_SYNONYMS.get(declared, declared) if known is not None else "text/plain")
