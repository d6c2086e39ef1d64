"""Derived SQLite databases in the cache, and whether the files that they were built from have changed.

A snapshot is a SQLite database followed by a trailer: what it is derived from, its version, and a checksum over both.
It never changes once it has its name. Opening reads the whole file once and compares the checksum, so no later query
returns a damaged page, a changed value, or another run's rows. Readers open it as immutable: SQLite takes no locks, so
readers never wait for each other. Changes are made in a private copy, which replaces the snapshot by a rename; readers
that have the old file open keep reading it.

A crash leaves the old snapshot, and a temporary file that `cache.make_room` removes.
"""

import contextlib
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator, Mapping
from io import FileIO
from urllib.parse import quote

import msgspec
import xxhash

from holdfast.files import open_own_file, read_own_file, replace_file
from holdfast.journal import OS_DISK, is_whole_file, list_chain, parse_segment_name, segment_path
from holdfast.state.cache import TEMPORARY_SUFFIX, Identity, entry_path, identify, make_room, mark_used, remove_entry

_MAGIC = b"holdfast-derived"
_TAIL_BYTES = 4 + len(_MAGIC)
_TRAILER_BYTES_MAX = 1 << 16
_CHUNK = 1 << 20
_MEMORY = ":memory:"


class UnusableError(Exception):
    """A snapshot that must be rebuilt. The message completes "the index of … ". Always caught inside this package."""


class Trailer(msgspec.Struct, frozen=True):
    """The end of a snapshot's file."""

    version: int
    bytes: int
    """Of the database in front of it."""
    identity: Identity
    digest: str = ""
    """xxh3-128 of the database and of this trailer without its digest."""


class Snapshot:
    """One entry of the cache, opened by one reader. Not thread-safe."""

    def __init__(self, identity: Identity | None, version: int, schema: str) -> None:
        """`identity`: None for a database in memory that is never saved."""
        self._identity = identity
        self._version = version
        self._schema = schema
        self._path = None if identity is None else entry_path(identity.kind, f"{identity.name}.db")
        self._private: str | None = None
        """The temporary file that is being written, until it is published."""

    @property
    def path(self) -> str | None:
        """None if there is no usable cache."""
        return self._path

    def open(self) -> sqlite3.Connection | None:
        """The verified database, read-only; None if there is none. UnusableError if it exists and is wrong."""
        if self._path is None:
            return None
        try:
            while (database := self._open_verified(self._path)) is None:
                pass  # another process replaced it after SQLite opened it: try again
        except FileNotFoundError:
            return None
        except (OSError, sqlite3.Error) as error:
            raise UnusableError(f"cannot be read ({error})") from error
        mark_used(self._path)
        return database

    def begin(self, base: sqlite3.Connection | None = None, *, in_memory: bool = False) -> sqlite3.Connection:
        """A private database to write to: a copy of `base`, or an empty one. In memory if no file can be written."""
        self.drop()
        if self._path is not None and not in_memory:
            try:
                return self._begin_file(self._path, base)
            except (OSError, sqlite3.Error):
                self.drop()
        database = sqlite3.connect(_MEMORY)
        self._fill(database, base)
        return database

    def publish(self) -> None:
        """Give the private database its name. The connection to it stays usable, but must not write any more."""
        if self._private is None or self._path is None or self._identity is None:
            return
        try:
            with open(self._private, "r+b", buffering=0) as file:
                seal(file, Trailer(self._version, os.fstat(file.fileno()).st_size, self._identity))
            os.replace(self._private, self._path)  # no fsync: after a power loss a torn file fails its checksum
            self._private = None
            make_room(os.path.dirname(os.path.dirname(self._path)), keep=self._path)
        except OSError:
            self.drop()

    def drop(self) -> None:
        """Remove the private file's name. An open connection to it stays usable."""
        if self._private is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._private)
            self._private = None

    def discard(self) -> None:
        """Remove a snapshot that cannot be used."""
        if self._path is not None:
            remove_entry(self._path)

    def _open_verified(self, path: str) -> sqlite3.Connection | None:
        """None if the file that SQLite opened is not the one that was verified."""
        before = os.lstat(path)
        if not stat.S_ISREG(before.st_mode):
            raise UnusableError("is not a regular file")
        database = sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode=ro&immutable=1", uri=True)
        try:
            with _opened(path) as file:
                about = os.fstat(file)
                if (about.st_dev, about.st_ino) == (before.st_dev, before.st_ino):
                    self._verify(file, about.st_size)
                    return database
        except BaseException:
            database.close()
            raise
        database.close()
        return None

    def _verify(self, file: int, size: int) -> None:
        trailer = read_trailer(file, size)
        if trailer is None:
            raise UnusableError("is damaged (it has no readable end)")
        if trailer.version != self._version:
            raise UnusableError("was written by another version")
        if trailer.identity != self._identity:
            raise UnusableError("belongs to something else")
        if _digest(file, trailer) != trailer.digest:
            raise UnusableError("is damaged (its checksum does not match)")

    def _begin_file(self, path: str, base: sqlite3.Connection | None) -> sqlite3.Connection:
        folder, name = os.path.split(path)
        handle, self._private = tempfile.mkstemp(TEMPORARY_SUFFIX, f"{name}.", folder)
        os.close(handle)
        database = sqlite3.connect(self._private)
        try:
            # No other process knows the file, and any error discards it: no locks, no rollback journal, no syncs.
            for setting in ("locking_mode = EXCLUSIVE", "journal_mode = OFF", "synchronous = OFF"):
                database.execute(f"PRAGMA {setting}")
            self._fill(database, base)
        except BaseException:
            database.close()
            raise
        return database

    def _fill(self, database: sqlite3.Connection, base: sqlite3.Connection | None) -> None:
        if base is None:
            database.executescript(f"BEGIN; {self._schema} COMMIT;")
        else:
            base.backup(database)


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
    is_canonical = msgspec.json.encode(trailer) == encoded
    return trailer if is_canonical and trailer.bytes == size - _TAIL_BYTES - length else None


def seal(file: FileIO, trailer: Trailer) -> None:
    """Write the trailer, with the checksum, behind the database."""
    encoded = msgspec.json.encode(msgspec.structs.replace(trailer, digest=_digest(file.fileno(), trailer)))
    file.seek(trailer.bytes)
    file.write(encoded + len(encoded).to_bytes(4, "big") + _MAGIC)


def identity_in(path: str) -> Identity | None:
    """The identity in a snapshot's trailer; None if the file is not a snapshot. The content is not verified."""
    try:
        with _opened(path) as file:
            trailer = read_trailer(file, os.fstat(file).st_size)
    except OSError:
        return None
    return None if trailer is None else trailer.identity


def is_current(identity: Identity) -> bool:
    """Whether the folder still exists and is still the same one."""
    return identify(identity.kind, identity.folder, identity.uid) == identity


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    handle = open_own_file(path)
    try:
        yield handle
    finally:
        os.close(handle)


def _digest(file: int, trailer: Trailer) -> str:
    """Of the first `trailer.bytes` bytes of a file and the trailer itself."""
    state = xxhash.xxh3_128(msgspec.json.encode(msgspec.structs.replace(trailer, digest="")))
    at = 0
    while at < trailer.bytes and (piece := os.pread(file, min(_CHUNK, trailer.bytes - at), at)):
        state.update(piece)
        at += len(piece)
    return state.hexdigest() if at == trailer.bytes else ""


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
    """The files of one run that were verified, each with its state at that time."""

    def __init__(self, run: str, uid: str) -> None:
        self._identity = identify("checks", run, uid)
        self._path = None if self._identity is None else entry_path("checks", f"{self._identity.name}.json")
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
