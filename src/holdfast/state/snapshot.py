"""Derived files in the cache: blobs with checksums behind a directory, and whether the files that they were made from
have changed.

A snapshot is a file of blobs, then its directory, then a trailer: what it is derived from, its version, and a checksum
over directory and trailer. The directory has the checksum of each blob. Opening reads only the directory; a blob is
verified when it is read. So no reader gets a changed byte or another run's rows, and opening costs the same for any
number of blobs. A snapshot never changes once it has its name: a new one is written beside it and renamed, and readers
that have the old file open keep reading it. Nobody takes a lock.

A crash leaves the old snapshot, and a temporary file that `cache.make_room` removes.
"""

import contextlib
import os
import tempfile
import weakref
from collections.abc import Mapping

import msgspec
import xxhash

from holdfast.files import list_names, open_own_file, read_own_file, replace_file
from holdfast.journal import OS_DISK, is_whole_file, list_chain, parse_segment_name, segment_path
from holdfast.state.cache import (
    IDENTITY,
    TEMPORARY_SUFFIX,
    Identity,
    entry_path,
    identify,
    make_room,
    mark_used,
    remove_entry,
)

_MAGIC = b"holdfast-derived"
_TAIL_BYTES = 4 + len(_MAGIC)
_TRAILER_BYTES_MAX = 1 << 16
_SPILL_BYTES = 32 << 20
"""New blobs are kept in memory up to this size, then in a temporary file."""


class UnusableError(Exception):
    """A snapshot that must be rebuilt. The message completes "the index of … ". Always caught inside this package."""


class Trailer(msgspec.Struct, frozen=True):
    """The end of a snapshot's file."""

    version: int
    bytes: int
    """Of blobs and directory in front of it."""
    identity: Identity
    digest: str = ""
    """xxh3-128 of the directory and of this trailer without its digest."""
    directory: int = 0
    """Where the directory begins."""


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """Where the bytes of a blob are, and their checksum. `spilled`: in a `Spill`, not in the file."""

    offset: int
    size: int
    digest: int
    """xxh3-64. Blobs with equal digests have equal bytes, for all practical purposes."""
    spilled: bool = False


class SnapshotReader:
    """An open snapshot. It stays readable if its file is replaced or removed."""

    def __init__(self, handle: int, directory: bytes) -> None:
        self._handle = handle
        self.directory = directory
        self.close = weakref.finalize(self, os.close, handle)
        """Close the file. Also called when nobody uses the snapshot any more."""

    def read(self, blob: Blob) -> bytes:
        """UnusableError if the bytes are not those that were written."""
        return _verified(os.pread(self._handle, blob.size, blob.offset), blob)


class Spill:
    """Blobs that no snapshot has yet: in memory while they are few, then in a temporary file without a name."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._memory: dict[int, bytes] = {}
        self._held = 0
        self._end = 0
        self._handle: int | None = None

    def write(self, content: bytes) -> Blob:
        blob = Blob(self._end, len(content), xxhash.xxh3_64_intdigest(content), spilled=True)
        self._end += len(content)
        if self._held + len(content) > _SPILL_BYTES and self._write_to_file(content, blob.offset):
            return blob
        self._memory[blob.offset] = content
        self._held += len(content)
        return blob

    def read(self, blob: Blob) -> bytes:
        content = self._memory.get(blob.offset)
        if content is not None and len(content) == blob.size:
            return content
        if self._handle is None:
            raise UnusableError("is damaged (a part of it is missing)")
        return _verified(os.pread(self._handle, blob.size, blob.offset), blob)

    def close(self) -> None:
        self._memory.clear()
        if self._handle is not None:
            self._close()
            self._handle = None

    def _write_to_file(self, content: bytes, offset: int) -> bool:
        """False if there is no space, or no folder: then memory has to do."""
        try:
            if self._handle is None:
                self._handle, path = tempfile.mkstemp(TEMPORARY_SUFFIX, "spill.", self._folder)
                self._close = weakref.finalize(self, os.close, self._handle)
                os.unlink(path)
            return os.pwrite(self._handle, content, offset) == len(content)
        except OSError:
            return False


class Snapshot:
    """One entry of the cache. Not thread-safe."""

    def __init__(self, identity: Identity | None, version: int) -> None:
        """`identity`: None if nothing is to be kept."""
        self._identity = identity
        self._version = version
        self.path = None if identity is None else entry_path(identity.kind, f"{identity.name}.db")
        """None if there is no usable cache."""

    def open(self) -> SnapshotReader | None:
        """The snapshot with its verified directory; None if there is none. UnusableError if it exists and is wrong."""
        if self.path is None:
            return None
        try:
            handle = open_own_file(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnusableError(f"cannot be read ({error})") from error
        try:
            reader = SnapshotReader(handle, self._read_directory(handle, os.fstat(handle).st_size))
        except OSError as error:
            os.close(handle)
            raise UnusableError(f"cannot be read ({error})") from error
        except BaseException:
            os.close(handle)
            raise
        mark_used(self.path)
        return reader

    def begin(self) -> "SnapshotWriter | None":
        """A new file, to be published in place of the old one; None if there is no cache or no file can be created."""
        if self.path is None or self._identity is None:
            return None
        try:
            return SnapshotWriter(self.path, self._identity, self._version)
        except OSError:
            return None

    def discard(self) -> None:
        """Remove a snapshot that cannot be used."""
        if self.path is not None:
            remove_entry(self.path)

    def _read_directory(self, handle: int, size: int) -> bytes:
        trailer = read_trailer(handle, size)
        if trailer is None:
            raise UnusableError("is damaged (it has no readable end)")
        if trailer.version != self._version:
            raise UnusableError("was written by another version")
        if trailer.identity != self._identity:
            raise UnusableError("belongs to something else")
        directory = os.pread(handle, trailer.bytes - trailer.directory, trailer.directory)
        if _digest(directory, trailer) != trailer.digest:
            raise UnusableError("is damaged (its checksum does not match)")
        return directory


class SnapshotWriter:
    """A snapshot that is being written, in a temporary file. Every OSError leaves the old snapshot in place."""

    def __init__(self, path: str, identity: Identity, version: int) -> None:
        self._path = path
        self._identity = identity
        self._version = version
        handle, self._private = tempfile.mkstemp(TEMPORARY_SUFFIX, f"{os.path.basename(path)}.", os.path.dirname(path))
        self._file = os.fdopen(handle, "wb", buffering=1 << 20)
        self._at = 0

    def add(self, content: bytes, digest: int) -> Blob:
        self._file.write(content)
        blob = Blob(self._at, len(content), digest)
        self._at += len(content)
        return blob

    def publish(self, directory: bytes) -> None:
        """Write directory and trailer, and give the file its name. No fsync: after a power loss a torn file fails its
        checksums.
        """
        trailer = Trailer(self._version, self._at + len(directory), self._identity, "", self._at)
        self._file.write(directory)
        self._file.write(seal(directory, trailer))
        self._file.close()
        os.replace(self._private, self._path)
        make_room(os.path.dirname(os.path.dirname(self._path)), keep=self._path)

    def drop(self) -> None:
        """Remove the temporary file."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._private)


def read_trailer(file: int, size: int) -> Trailer | None:
    """None if the file does not end in one."""
    tail = os.pread(file, _TAIL_BYTES, max(size - _TAIL_BYTES, 0))
    length = int.from_bytes(tail[:4], "big")
    if tail[4:] != _MAGIC or length > min(_TRAILER_BYTES_MAX, size - _TAIL_BYTES):
        return None
    encoded = os.pread(file, length, size - _TAIL_BYTES - length)
    try:
        trailer = msgspec.json.decode(encoded, type=Trailer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    # An older version wrote no `directory`; its files are recognized by their version.
    fits = trailer.bytes == size - _TAIL_BYTES - length and 0 <= trailer.directory <= trailer.bytes
    return trailer if fits else None


def seal(directory: bytes, trailer: Trailer) -> bytes:
    """The encoded trailer with its checksum."""
    encoded = msgspec.json.encode(msgspec.structs.replace(trailer, digest=_digest(directory, trailer)))
    return encoded + len(encoded).to_bytes(4, "big") + _MAGIC


def identity_in(path: str) -> Identity | None:
    """The identity in a snapshot's trailer, or in a table's folder; None if the entry has none. The content is not
    verified.
    """
    if os.path.isdir(path):
        try:
            return msgspec.json.decode(read_own_file(os.path.join(path, IDENTITY)), type=Identity)
        except (OSError, ValueError, msgspec.MsgspecError):
            return None
    try:
        handle = open_own_file(path)
    except OSError:
        return None
    try:
        trailer = read_trailer(handle, os.fstat(handle).st_size)
    except OSError:
        return None
    finally:
        os.close(handle)
    return None if trailer is None else trailer.identity


def is_current(identity: Identity) -> bool:
    """Whether the folder still exists and is still the same one."""
    return identify(identity.kind, identity.folder, identity.uid) == identity


def _verified(content: bytes, blob: Blob) -> bytes:
    if len(content) != blob.size or xxhash.xxh3_64_intdigest(content) != blob.digest:
        raise UnusableError("is damaged (a checksum does not match)")
    return content


def _digest(directory: bytes, trailer: Trailer) -> str:
    state = xxhash.xxh3_128(msgspec.json.encode(msgspec.structs.replace(trailer, digest="")))
    state.update(directory)
    return state.hexdigest()


Stamps = dict[str, str]
"""By file name: the state of a file."""


def stamp_of_file(path: str) -> str:
    """A file's state; empty if there is no such file."""
    try:
        found = os.lstat(path)
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def stamp_segments(journal: str) -> Stamps:
    """The states of all segments of a journal. Take them before reading: a later append then shows as a change."""
    files = list_chain(OS_DISK, journal).segments
    return {str(file.name): stamp for file in files if (stamp := stamp_of_file(file.path))}


def are_unchanged(journal: str, before: Stamps) -> bool:
    """Whether the segments are exactly those of the stamps. It opens none of them."""
    try:
        names = [name for name in list_names(journal) if parse_segment_name(name) is not None]
    except OSError:
        return False
    return {name: stamp_of_file(os.path.join(journal, name)) for name in names} == before


def have_changed(journal: str, before: Mapping[str, str], now: Mapping[str, str], checked: "CheckedFiles") -> bool:
    """Whether a segment that was read is gone or was rewritten. A segment sealed since then is verified once."""
    return any(not _is_same(journal, name, stamp, now, checked) for name, stamp in before.items())


def _is_same(journal: str, name: str, before: str, now: Mapping[str, str], checked: "CheckedFiles") -> bool:
    if now.get(name) == before:
        return True
    segment = parse_segment_name(name)
    if segment is None or segment.sealed:
        return False
    if name in now:
        return _has_grown(before, now[name])
    path = segment_path(journal, segment.number, sealed=True)
    sealed = os.path.basename(path)
    stamp = now.get(sealed, "")
    if stamp and checked.stamps.get(sealed) != stamp and is_whole_file(OS_DISK, path):
        checked.remember({**checked.stamps, sealed: stamp})
    return bool(stamp) and checked.stamps.get(sealed) == stamp


def _has_grown(before: str, now: str) -> bool:
    """The same file with more bytes: a writer appended to it."""
    device, inode, size = before.split(":")[:3]
    return now.split(":")[:2] == [device, inode] and int(now.split(":")[2]) > int(size)


class _Stored(msgspec.Struct, frozen=True):
    identity: Identity
    stamps: Stamps
    digest: str = ""

    def sealed(self) -> "_Stored":
        content = msgspec.json.encode((self.identity, self.stamps))
        return msgspec.structs.replace(self, digest=xxhash.xxh3_128_hexdigest(content))


class CheckedFiles:
    """The files of one run that were verified, each with its state at that time. `kind`: other results of the same
    shape are kept in another folder of the cache.
    """

    def __init__(self, run: str, uid: str, kind: str = "checks") -> None:
        self._identity = identify(kind, run, uid)
        self._path = None if self._identity is None else entry_path(kind, f"{self._identity.name}.json")
        self.stamps = self._load()

    def remember(self, stamps: Stamps) -> None:
        """Save the stamps for the next reader. If saving fails, that reader verifies again, nothing else."""
        if stamps == self.stamps:
            return
        self.stamps = dict(stamps)
        if self._path is None or self._identity is None:
            return
        with contextlib.suppress(OSError):
            replace_file(self._path, msgspec.json.encode(_Stored(self._identity, self.stamps).sealed()))

    def _load(self) -> Stamps:
        if self._path is None:
            return {}
        try:
            stored = msgspec.json.decode(read_own_file(self._path), type=_Stored)
        except (OSError, ValueError, msgspec.MsgspecError):
            return {}
        return stored.stamps if stored == stored.sealed() and stored.identity == self._identity else {}
