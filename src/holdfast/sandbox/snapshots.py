"""Snapshots of a sandbox's files: what a call changed, and restoring them. Blocks: for threads.

Invariant: a snapshot is returned only after all its content is durable. What is restored is byte for byte what was
stored, with names, permissions and links; otherwise an error says what is missing. Times, owners, hard links and
extended attributes are not stored. Sockets, devices and the like cannot be stored, and the snapshot says so. A crash
leaves content that no record names.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import xxhash

from holdfast.errors import HoldfastError
from holdfast.records import FileChanges, KeptFile
from holdfast.sandbox.confinement import SandboxError

PIECE_BYTES = 1 << 20
_canonical = msgspec.json.Encoder(order="deterministic").encode
_MODE_OF_LINKS = 0o777

Stamp = tuple[int, int, int, int]
Entries = Mapping[str, KeptFile]


class LostFilesError(SandboxError):
    """The files of a sandbox cannot be restored, so the sample must start again."""


class Blobs(msgspec.Struct, frozen=True):
    """A content store. `keep` stores pieces and returns their SHA-256; after `sync` all of them are durable; `read`
    returns them checked, or raises HoldfastError with the file's name; `clear`, before anything else, removes what a
    dead process left half written.
    """

    keep: Callable[[Iterable[bytes]], str]
    sync: Callable[[], None]
    read: Callable[[str], Iterator[bytes]]
    clear: Callable[[], None]


class Capacity(msgspec.Struct, frozen=True):
    """How much may be stored of one sandbox."""

    bytes: int
    count: int


class FilesState(msgspec.Struct, frozen=True):
    """The files of a sandbox at one moment. `lost`: why they cannot be restored; empty if they can."""

    entries: Entries = msgspec.field(default_factory=dict)
    lost: str = ""

    def digest(self) -> str:
        return xxhash.xxh3_128_hexdigest(_canonical(dict(sorted(self.entries.items()))))

    def after(self, files: FileChanges) -> "FilesState":
        """Return the state after a call's changes. They apply only to the state that the call started from."""
        if files.before != self.digest():
            return FilesState(self.entries, "the recorded calls do not fit together: one between them is missing")
        if files.lost:
            return FilesState(self.entries, files.lost)
        gone = set(files.removed)
        left = {path: each for path, each in self.entries.items() if path not in gone}
        return FilesState({**left, **files.changed})


class FolderSnapshot(msgspec.Struct, frozen=True):
    """A folder as it was scanned: its state, and stamps that show whether a file has changed since."""

    state: FilesState
    stamps: Mapping[str, Stamp] = msgspec.field(default_factory=dict)


def take_snapshot(
    folder: str, before: FolderSnapshot, bounds: Capacity, blobs: Blobs
) -> tuple[FileChanges | None, FolderSnapshot]:
    """Store what changed since `before` and return it; None if nothing did. On files that cannot be stored, the changes
    say why, and later calls find no files to restore.
    """
    digest = before.state.digest()
    try:
        with contextlib.ExitStack() as opened:
            found = dict(_scan(folder, opened))
            _check(found, bounds)
            entries, stamps = _keep_all(folder, found, before, blobs)
    except _CannotKeepError as error:
        files = FileChanges(digest, lost=str(error))
        return files, FolderSnapshot(FilesState(before.state.entries, files.lost), before.stamps)
    old = before.state.entries
    changed = {path: each for path, each in entries.items() if old.get(path) != each}
    removed = [path for path in old if path not in entries]
    after = FolderSnapshot(FilesState(entries), stamps)
    if not changed and not removed and not before.state.lost:
        return None, after
    return FileChanges(digest, changed, removed), after


def restore(folder: str, state: FilesState, blobs: Blobs) -> FolderSnapshot:
    """Create the folder with the files of a state. LostFilesError if one is missing."""
    if state.lost:
        raise LostFilesError(f"the sandbox cannot be restored: {state.lost}")
    os.mkdir(folder, 0o755)
    links = {path: each for path, each in state.entries.items() if each.link}
    folders = [path for path, each in sorted(state.entries.items()) if not each.blob and not each.link]
    for path in folders:
        os.mkdir(_inside(folder, path), 0o700)
    for path, each in state.entries.items():
        if each.blob:
            _restore_file(_inside(folder, path), path, each, blobs)
    for path, each in links.items():  # last, so that nothing is written through a link
        os.symlink(each.link, _inside(folder, path))
    stamps = {path: _stamp(os.lstat(_inside(folder, path))) for path, each in state.entries.items() if each.blob}
    for path in reversed(folders):
        os.chmod(_inside(folder, path), state.entries[path].mode)
    return FolderSnapshot(state, stamps)


class _CannotKeepError(Exception):
    """A file cannot be stored; the message says why."""


def _scan(folder: str, opened: contextlib.ExitStack, above: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything below, folders first. Unreadable folders are made readable until `opened` ends."""
    opened.enter_context(_allowed(os.path.join(folder, above), 0o700))
    with os.scandir(os.path.join(folder, above)) as entries:
        names = sorted(entries, key=lambda each: each.name)
    for entry in names:
        path = f"{above}/{entry.name}" if above else entry.name
        status = entry.stat(follow_symlinks=False)
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from _scan(folder, opened, path)


def _check(found: Mapping[str, os.stat_result], bounds: Capacity) -> None:
    size = sum(each.st_size for each in found.values() if stat.S_ISREG(each.st_mode))
    if size > bounds.bytes:
        raise _CannotKeepError(f"its files have {size} bytes, and sandbox.files_mb allows {bounds.bytes}")
    if len(found) > bounds.count:
        raise _CannotKeepError(f"it has {len(found)} files, and sandbox.files_max allows {bounds.count}")
    for path, status in found.items():
        if not any(kind(status.st_mode) for kind in (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)):
            raise _CannotKeepError(f"{path!r} is neither file, folder nor link")
        if not _is_text(path):
            raise _CannotKeepError(f"the name {path!r} is no UTF-8")


def _keep_all(
    folder: str, found: Mapping[str, os.stat_result], before: FolderSnapshot, blobs: Blobs
) -> tuple[dict[str, KeptFile], dict[str, Stamp]]:
    """Store new and changed files. A crash leaves content that no record names, which is harmless."""
    entries: dict[str, KeptFile] = {}
    stamps: dict[str, Stamp] = {}
    stored = False
    for path, status in found.items():
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISREG(status.st_mode):
            stamps[path] = _stamp(status)
            if before.stamps.get(path) == stamps[path]:
                entries[path] = before.state.entries[path]
                continue
            entries[path], stored = _keep(os.path.join(folder, path), mode, blobs), True
            stamps[path] = _stamp(os.lstat(os.path.join(folder, path)))
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(os.path.join(folder, path))
            if not _is_text(target):
                raise _CannotKeepError(f"what the link {path!r} leads to is no UTF-8")
            entries[path] = KeptFile(_MODE_OF_LINKS, link=target)
        else:
            entries[path] = KeptFile(mode)
    if stored:
        blobs.sync()
    return entries, stamps


def _keep(path: str, mode: int, blobs: Blobs) -> KeptFile:
    size = 0

    def pieces(handle: int) -> Iterator[bytes]:
        nonlocal size
        while piece := os.read(handle, PIECE_BYTES):
            size += len(piece)
            yield piece

    with _allowed(path, 0o400):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        digest = blobs.keep(pieces(handle))
    finally:
        os.close(handle)
    return KeptFile(mode, digest, size)


def _restore_file(target: str, path: str, kept: KeptFile, blobs: Blobs) -> None:
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(handle, "wb") as file:
        try:
            for piece in blobs.read(kept.blob):
                file.write(piece)
        except HoldfastError as error:
            raise LostFilesError(f"the sandbox's file {path!r} cannot be restored: {error}") from error
        os.fchmod(handle, kept.mode)


def _inside(folder: str, path: str) -> str:
    """Return the path of a record inside the folder. LostFilesError for a forged path that leads out of it."""
    if path.startswith("/") or ".." in path.split("/"):
        raise LostFilesError(f"the sandbox cannot be restored: {path!r} leads out of it")
    return os.path.join(folder, path)


@contextlib.contextmanager
def _allowed(path: str, bits: int) -> Iterator[None]:
    """Add permissions that we need for as long as we need them: a command may have removed its own."""
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    lacking = os.geteuid() != 0 and mode & bits != bits
    if lacking:
        os.chmod(path, mode | bits)
    try:
        yield
    finally:
        if lacking:
            os.chmod(path, mode)


def _stamp(status: Any) -> Stamp:
    """Includes ctime, which no command can set."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
