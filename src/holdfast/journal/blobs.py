"""File contents (blobs) of a run, each stored once in its `blobs` folder under its SHA-256.

Invariant: a file with a final name is whole and never changes. It is written under a temporary name, synced, and
renamed. Contents and names are durable before the record that refers to them. Every read checks the digest: damaged or
missing content is an error that names the file. A crash leaves temporary files, or blobs that no record names; the next
start removes the former and reuses the latter.
"""

import contextlib
import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator

from holdfast import files
from holdfast.datasets import FileContent, Fingerprint, ReferenceCache
from holdfast.errors import HoldfastError, JournalError
from holdfast.journal.disk import OS_DISK, Disk, make_folders, remove_if_there, write_pieces
from holdfast.records import Reference, parse_reference

FOLDER = "blobs"
_TEMPORARY = ".tmp"
_PIECE_BYTES = 1 << 20


class BlobError(HoldfastError):
    """A blob is missing or damaged. The message names the file."""


class BlobStore:
    """Stores blobs in a run's folder. Only the run's writer uses it."""

    def __init__(self, run: str, parent: str = "", disk: Disk = OS_DISK) -> None:
        """`parent`: the folder of the run that a fork copies blobs from."""
        self._run = run
        self._folder = os.path.join(run, FOLDER)
        self._parent = parent
        self._disk = disk
        self._made = False
        self._verified: set[str] = set()  # digests that this process has written or checked
        self._numbers = itertools.count(1)

    def keep(self, content: FileContent | Reference, digests: ReferenceCache) -> Reference:
        """Store content if it is missing, and return its reference. Durable after `sync`."""
        if isinstance(content, Reference):
            return self._take_over(content)
        known = digests.reference(content)
        if self._has(known):
            return known
        # Hash again while writing: if the file is changing, the digest must be that of the stored bytes.
        fingerprint = Fingerprint(content)
        with self._temporary() as temporary:
            self._write_pieces(temporary, fingerprint.pieces())
            stored = fingerprint.reference()
            self._disk.replace(temporary, blob_path(self._run, stored))
        return stored

    def keep_pieces(self, pieces: Iterable[bytes]) -> str:
        """Store content that comes in pieces, and return its SHA-256. Replaces a damaged blob of that name. Durable
        after `sync`. Safe from any thread.
        """
        rest = iter(pieces)
        first = list(itertools.islice(rest, 2))
        # Content of one piece is hashed before it is written, so that a blob that exists is not written again.
        if len(first) < 2 and self._has_verified(digest := hashlib.sha256(b"".join(first)).hexdigest()):
            return digest
        with self._temporary() as temporary:
            digest = self._write_pieces(temporary, itertools.chain(first, rest))
            self._disk.replace(temporary, os.path.join(self._folder, digest))
        self._verified.add(digest)
        return digest

    def remove_leftovers(self) -> None:
        """Remove temporary files of a process that died."""
        names = self._disk.names(self._folder) if files.is_folder(self._folder) else []
        for name in names:
            if name.endswith(_TEMPORARY):
                remove_if_there(self._disk, os.path.join(self._folder, name))

    def sync(self) -> None:
        """Make the names of all blobs durable, also those of an earlier process that died before its `sync`."""
        if files.is_folder(self._folder):
            self._disk.sync_folder(self._folder)

    def _write_pieces(self, temporary: str, pieces: Iterable[bytes]) -> str:
        """Write and sync a file; returns its SHA-256."""
        digest = hashlib.sha256()

        def hashed() -> Iterator[bytes]:
            for piece in pieces:
                digest.update(piece)
                yield piece

        write_pieces(self._disk, temporary, hashed())  # synced before the caller's rename: a final name is whole
        return digest.hexdigest()

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[str]:
        """A unique temporary path. On failure the file is removed, so that it does not fill a full disk further."""
        self._make_folder()
        path = os.path.join(self._folder, f"new-{next(self._numbers)}{_TEMPORARY}")
        try:
            yield path
        except BaseException:
            with contextlib.suppress(OSError):
                remove_if_there(self._disk, path)
            raise

    def _has_verified(self, digest: str) -> bool:
        """Whether the blob exists and its content has been checked by this process."""
        if digest in self._verified:
            return True
        with contextlib.suppress(HoldfastError):
            for _ in read_pieces(self._run, digest):
                pass
            self._verified.add(digest)
            return True
        return False

    def _take_over(self, reference: Reference) -> Reference:
        """Link a blob of the parent into this run, or copy it where hard links are not possible. Durable after `sync`.
        Safe from any thread.
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
            try:
                with self._temporary() as temporary:
                    self._write_pieces(temporary, read_pieces(self._parent, reference.digest))
                    self._disk.replace(temporary, blob_path(self._run, reference))
            except BlobError as error:
                raise JournalError(str(error)) from error
        return reference

    def _has(self, reference: Reference) -> bool:
        return files.is_file(blob_path(self._run, reference))

    def _make_folder(self) -> None:
        if not self._made:
            make_folders(self._disk, self._folder)
            self._made = True


def blob_path(run: str, reference: Reference) -> str:
    return os.path.join(run, FOLDER, reference.digest)


def read_blob(run: str, reference: Reference) -> bytes:
    """The content of a blob. BlobError if it is missing or damaged."""
    return b"".join(read_pieces(run, reference.digest))


def read_pieces(run: str, digest: str) -> Iterator[bytes]:
    """The content of a blob, in pieces. BlobError if it is missing or damaged; damage is found after the last piece."""
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


def check_blob_files(run: str, digests: Iterable[str]) -> Iterator[str]:
    """One message for each of these blobs that is missing or damaged."""
    for digest in sorted(set(digests)):
        try:
            for _ in read_pieces(run, digest):
                pass
        except BlobError as error:
            yield str(error)


def blob_size(run: str, text: str) -> int | None:
    """The size in bytes of the blob that a reference names; None if it is missing."""
    reference = parse_reference(text)
    with contextlib.suppress(OSError):
        found = None if reference is None else files.status_of(blob_path(run, reference))
        return None if found is None or not stat.S_ISREG(found.st_mode) else found.st_size
    return None
