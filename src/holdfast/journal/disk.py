"""The journal's interface to the file system.

It owns every system call with which the journal touches the disk. So a simulated disk (tests/crash) can replace it and
enumerate what a power loss may leave. Nothing here retries, buffers or interprets errors: the caller decides. Paths are
absolute strings.
"""

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Protocol

from holdfast import files
from holdfast.files import NotAFileError as NotAFileError

IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024) if "SC_IOV_MAX" in os.sysconf_names else 16

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}


class Disk(Protocol):
    """The file operations that the journal needs. Data is durable after `sync`, a name after `sync_folder`."""

    def names(self, folder: str) -> list[str]: ...

    def make_folder(self, path: str, *, private: bool = False) -> None:
        """Make one folder if it is missing. `private`: only its owner can enter it. The caller syncs the parent."""

    def create(self, path: str) -> int:
        """Create a file for appending. FileExistsError if the name is taken."""

    def open(self, path: str, *, write: bool = False) -> int:
        """Open an existing file. NotAFileError for anything else: symbolic links are not followed."""

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset`; fewer only at the end of the file."""

    def size(self, handle: int) -> int: ...

    def write(self, handle: int, buffers: Sequence[bytes | memoryview]) -> int:
        """Append at most IOV_MAX buffers in one call. Returns the bytes written, which may be fewer."""

    def truncate(self, handle: int, size: int) -> None: ...

    def sync(self, handle: int) -> None: ...

    def close(self, handle: int) -> None: ...

    def publish(self, temporary: str, path: str) -> None:
        """Give a finished temporary file its name; FileExistsError if another writer has taken it."""

    def replace(self, temporary: str, path: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None: ...


class OsDisk:
    """The operating system's files."""

    def names(self, folder: str) -> list[str]:
        return files.list_names(folder)

    def make_folder(self, path: str, *, private: bool = False) -> None:
        files.make_folder(path, private=private)

    def create(self, path: str) -> int:
        return files.create_file(path)

    def open(self, path: str, *, write: bool = False) -> int:
        return files.open_file(path, write=write)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        data = os.pread(handle, size, offset)
        while data and len(data) < size:  # after a signal, or on a network file system, a read may come up short
            more = os.pread(handle, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def write(self, handle: int, buffers: Sequence[bytes | memoryview]) -> int:
        return os.writev(handle, buffers)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        if sys.platform == "darwin":
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # fsync there does not make the drive write its cache out
        else:
            os.fdatasync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def publish(self, temporary: str, path: str) -> None:
        try:
            files.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Without hard links there is no atomic create-only rename: two writers could both pass this check. Only
            # the lock or the term keeps them apart then.
            if files.status_of(path) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error
            files.rename(temporary, path)
            return
        files.remove(temporary)

    def replace(self, temporary: str, path: str) -> None:
        files.rename(temporary, path)

    def remove(self, path: str) -> None:
        files.remove(path)

    def sync_folder(self, path: str) -> None:
        files.sync_folder(path)


OS_DISK = OsDisk()


def write_all(disk: Disk, handle: int, buffers: Sequence[bytes]) -> int:
    """Append all buffers, also if single writes are short. Returns the bytes written."""
    total = 0
    for start in range(0, len(buffers), IOV_MAX):
        rest: list[bytes | memoryview] = [buffer for buffer in buffers[start : start + IOV_MAX] if buffer]
        while rest:
            wrote = disk.write(handle, rest)
            if wrote <= 0:
                raise OSError(errno.EIO, "a write of more than zero bytes wrote none")
            total += wrote
            rest = _drop_written(rest, wrote)
    return total


def write_pieces(disk: Disk, path: str, pieces: Iterable[bytes]) -> None:
    """Write and sync a file; one of that name is removed first. A crash or an error leaves a partial file, so `path` is
    a temporary name, or one that is written again after a crash. The caller syncs the folder.
    """
    remove_if_there(disk, path)
    handle = disk.create(path)
    try:
        for piece in pieces:
            write_all(disk, handle, [piece])
        disk.sync(handle)
    finally:
        disk.close(handle)


def write_file(disk: Disk, path: str, temporary: str, data: bytes) -> None:
    """Replace a small file atomically: readers of `path` see the old bytes or the new, also after a power loss."""
    write_pieces(disk, temporary, [data])  # synced before the rename: else a power loss could leave an empty file
    disk.replace(temporary, path)  # a crash before this line leaves the old file and a leftover temporary
    disk.sync_folder(os.path.dirname(path))


def make_folders(disk: Disk, path: str) -> None:
    """Make a folder and its missing parents. Each is durable before the next is made inside it."""
    missing = []
    while not files.is_folder(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        disk.make_folder(folder)
        disk.sync_folder(os.path.dirname(folder))


def make_run_folder(disk: Disk, run: str) -> None:
    """Make the folder of a run and its missing parents. It is private, unless its store is shared (`files`)."""
    make_folders(disk, os.path.dirname(run))
    if not os.path.isdir(run):
        disk.make_folder(run, private=files.is_private_run(run))
        disk.sync_folder(os.path.dirname(run))


def remove_if_there(disk: Disk, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        disk.remove(path)


def _drop_written(buffers: list[bytes | memoryview], wrote: int) -> list[bytes | memoryview]:
    for index, buffer in enumerate(buffers):
        if wrote < len(buffer):
            return [memoryview(buffer)[wrote:], *buffers[index + 1 :]]
        wrote -= len(buffer)
    return []
