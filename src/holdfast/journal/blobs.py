"""The content of files, stored once each in a run's `blobs` folder under its SHA-256.

Invariant: a file with a final name there is whole and never changes; it is written under a temporary name, synced, and
renamed. All of them, and their names, are durable before the record that begins or extends the run. Whoever reads one
checks it: damaged or missing content is an error with the file's name, never another request.
"""

import contextlib
import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator

from holdfast import files
from holdfast.datasets import Content, Digests
from holdfast.datasets.files import Fingerprint
from holdfast.errors import HoldfastError, JournalError
from holdfast.journal.disk import OS_DISK, Disk, make_folders, remove_if_there, write_all
from holdfast.records.references import Reference, parse_reference

FOLDER = "blobs"
_TEMPORARY = ".tmp"
_PIECE_BYTES = 1 << 20


class BlobError(HoldfastError):
    """Content that a run should hold is missing or damaged. The message names the file."""


class BlobStore:
    """Stores content in a run's folder; the writer of the run is the only one who does."""

    def __init__(self, run: str, parent: str = "", disk: Disk = OS_DISK) -> None:
        """`parent`: the run that a fork takes content over from."""
        self._run = run
        self._folder = os.path.join(run, FOLDER)
        self._parent = parent
        self._disk = disk
        self._made = False
        self._sound: set[str] = set()  # what this process has written, or read and found right
        self._numbers = itertools.count(1)

    def keep(self, content: Content | Reference, digests: Digests) -> Reference:
        """Store it if it is not there. Dying here leaves content that no record names; the next start uses it."""
        if isinstance(content, Reference):
            return self._take_over(content)
        known = digests.reference(content)
        return known if self._has(known) else self._write(content)

    def keep_pieces(self, pieces: Iterable[bytes]) -> str:
        """Store content that comes in pieces, from any thread; returns its SHA-256. What lies there under its name and
        is damaged is replaced. Durable after `sync`.
        """
        every = iter(pieces)
        first = list(itertools.islice(every, 2))
        if len(first) < 2 and self._has_sound(digest := hashlib.sha256(b"".join(first)).hexdigest()):
            return digest
        with self._temporary() as temporary:
            digest = self._write_pieces(temporary, itertools.chain(first, every))
            self._disk.replace(temporary, os.path.join(self._folder, digest))
        self._sound.add(digest)
        return digest

    def remove_leftovers(self) -> None:
        """What a process was writing when it died."""
        names = self._disk.names(self._folder) if files.is_folder(self._folder) else []
        for name in names:
            if name.endswith(_TEMPORARY):
                remove_if_there(self._disk, os.path.join(self._folder, name))

    def sync(self) -> None:
        """After this line all names are durable, also those that a process left which died before it."""
        if files.is_folder(self._folder):
            self._disk.sync_folder(self._folder)

    def _write(self, content: Content) -> Reference:
        """The digest is that of the bytes that were stored, also if the file has just changed."""
        fingerprint = Fingerprint(content)
        with self._temporary() as temporary:
            self._write_pieces(temporary, fingerprint.pieces())
            stored = fingerprint.reference()
            self._disk.replace(temporary, blob_path(self._run, stored))
        return stored

    def _write_pieces(self, temporary: str, pieces: Iterable[bytes]) -> str:
        """The SHA-256 of what was written, and synced."""
        remove_if_there(self._disk, temporary)
        handle = self._disk.create(temporary)
        digest = hashlib.sha256()
        try:
            for piece in pieces:
                digest.update(piece)
                write_all(self._disk, handle, [piece])
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
        return digest.hexdigest()

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[str]:
        """A name of its own for each thread. What is not finished is removed: a full disk must not be fuller by it."""
        self._make_folder()
        path = os.path.join(self._folder, f"new-{next(self._numbers)}{_TEMPORARY}")
        try:
            yield path
        except BaseException:
            with contextlib.suppress(OSError):
                remove_if_there(self._disk, path)
            raise

    def _has_sound(self, digest: str) -> bool:
        if digest in self._sound:
            return True
        with contextlib.suppress(HoldfastError):
            for _ in read_pieces(self._run, digest):
                pass
            self._sound.add(digest)
            return True
        return False

    def _take_over(self, reference: Reference) -> Reference:
        """From the parent: a second name for the same bytes, or a copy where the file system has no such names. From
        any thread; durable after `sync`.
        """
        if self._has(reference):
            return reference
        source = blob_path(self._parent, reference) if self._parent else ""
        if not source or not files.is_file(source):
            missing = source or blob_path(self._run, reference)
            raise JournalError(f"{missing} is missing; restore it from a copy of the run")
        self._make_folder()
        try:
            files.link(source, blob_path(self._run, reference))
        except FileExistsError:
            pass  # another thread was faster
        except OSError:
            self._copy_over(reference.digest)
        return reference

    def _copy_over(self, digest: str) -> None:
        try:
            with self._temporary() as temporary:
                self._write_pieces(temporary, read_pieces(self._parent, digest))
                self._disk.replace(temporary, os.path.join(self._folder, digest))
        except BlobError as error:
            raise JournalError(str(error)) from error

    def _has(self, reference: Reference) -> bool:
        return files.is_file(blob_path(self._run, reference))

    def _make_folder(self) -> None:
        if not self._made:
            make_folders(self._disk, self._folder)
            self._made = True


def blob_path(run: str, reference: Reference) -> str:
    return os.path.join(run, FOLDER, reference.digest)


def read_blob(run: str, reference: Reference) -> bytes:
    """Its content, checked. BlobError if it is not what it was."""
    return b"".join(read_pieces(run, reference.digest))


def read_pieces(run: str, digest: str) -> Iterator[bytes]:
    """Its content, in pieces. BlobError, at the latest when the last piece has been given, if it is not what it was."""
    path = os.path.join(run, FOLDER, digest)
    found = hashlib.sha256()
    try:
        with open(files.open_file(path), "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                found.update(piece)
                yield piece
    except OSError as error:
        raise BlobError(f"{path} cannot be read ({error.strerror}); restore it from a copy of the run") from error
    if found.hexdigest() != digest:
        raise BlobError(f"{path} is damaged: its content has another digest; restore it from a copy of the run")


def check_kept(run: str, digests: Iterable[str]) -> Iterator[str]:
    """What is wrong with content that a run names."""
    for digest in sorted(set(digests)):
        try:
            for _ in read_pieces(run, digest):
                pass
        except BlobError as error:
            yield str(error)


def blob_size(run: str, text: str) -> int | None:
    """Bytes of what a reference stands for; None if it is not there."""
    reference = parse_reference(text)
    with contextlib.suppress(OSError):
        found = None if reference is None else files.status_of(blob_path(run, reference))
        return None if found is None or not stat.S_ISREG(found.st_mode) else found.st_size
    return None
