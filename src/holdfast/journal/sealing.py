"""Sealing: a finished segment becomes a compressed, immutable file.

Order: write a temporary file and sync it, read it back and compare, rename it, sync the folder, remove the plain file,
sync the folder. A crash before the rename leaves a temporary file; after it, two equal files. The plain file is removed
only after the sealed file was read back and its name is durable, so no crash loses a record. A failure leaves the plain
file, which stays fully usable.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

import xxhash

from holdfast.errors import JournalError
from holdfast.journal.disk import Disk, remove_if_there, write_all
from holdfast.journal.frames import pack
from holdfast.journal.paths import segment_path
from holdfast.journal.scan import SealedContent, open_content


def seal(disk: Disk, folder: str, number: int) -> None:
    """Seal one plain segment that no writer appends to any more. JournalError if the copy does not read back."""
    plain, sealed = segment_path(folder, number), segment_path(folder, number, sealed=True)
    temporary = f"{sealed}.tmp"
    remove_if_there(disk, temporary)
    digest = _write_packed(disk, plain, temporary)
    if _content_digest(disk, temporary) != digest:
        disk.remove(temporary)
        raise JournalError(f"{sealed}: the compressed copy reads back differently; the plain segment is kept")
    disk.replace(temporary, sealed)
    disk.sync_folder(folder)  # the sealed name must be durable before the plain file is removed
    disk.remove(plain)
    disk.sync_folder(folder)


def _write_packed(disk: Disk, plain: str, temporary: str) -> bytes:
    digest = xxhash.xxh3_128()
    content = open_content(disk, plain)

    def chunks() -> Iterator[bytes]:
        for piece in content.pieces(0):
            digest.update(piece.data)
            yield piece.data

    try:
        handle = disk.create(temporary)
        try:
            for packed in pack(chunks()):
                write_all(disk, handle, [packed])
            disk.sync(handle)
        finally:
            disk.close(handle)
    finally:
        content.close()
    return digest.digest()


def _content_digest(disk: Disk, sealed: str) -> bytes:
    digest = xxhash.xxh3_128()
    with contextlib.closing(SealedContent(disk, disk.open(sealed))) as content:
        if not content.is_whole():
            return b""
        for piece in content.pieces(0):
            digest.update(piece.data)
    return digest.digest()


class Sealer:
    """Seals in a background thread, one segment at a time. Compression releases the GIL, so the run is not slowed."""

    def __init__(self, disk: Disk, folder: str, on_failure: Callable[[int, Exception], None]) -> None:
        self._disk = disk
        self._folder = folder
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-sealer", daemon=True)
        self._thread.start()

    def submit(self, number: int) -> None:
        self._queue.put(number)

    def finish(self) -> None:
        """Seal everything that was submitted, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (number := self._queue.get()) is not None:
            try:
                seal(self._disk, self._folder, number)
            except (OSError, JournalError) as error:  # the plain segment stays; the next opening retries
                self._on_failure(number, error)
