"""Whether the files that a writer holds open are still the ones at their paths.

An open file survives its deletion: writes and syncs succeed, and every record is lost when the handle is closed. So a
writer compares its open files with their paths once a second, and before its first write after a pause. A file or
folder is gone if its link count is 0, or if its path is missing or has another device or inode. Hard links (backups
made with `cp -al`) raise the link count and are no reason to stop.

Folders are kept open too: the kernel keeps the inode number of an open folder stable, also on file systems that invent
inode numbers (FUSE, overlayfs). An error that proves nothing (EIO, an unreachable network) is ignored here, because the
next write reports it.
"""

import contextlib
import errno
import os
import shlex
import sys
from collections.abc import Callable

import msgspec

from holdfast.errors import WriteFailedError
from holdfast.files import open_folder

CHECK_SECONDS = 1.0
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
_DELETED = " (deleted)"


class _Watched(msgspec.Struct, frozen=True):
    """An open file or folder, and the path that must still name it."""

    name: str
    path: str
    handle: int


class Location:
    """A run folder and the files in it that its writer has open. Used by one thread at a time."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._watched: list[_Watched] = []
        self._own: list[int] = []
        self.watch_folder("run folder", run)

    def watch_folder(self, name: str, path: str) -> None:
        handle = open_folder(path)
        self._own.append(handle)
        self.watch_file(name, path, handle)

    def watch_file(self, name: str, path: str, handle: int) -> None:
        """Add an open file to the checks. The caller closes `handle`."""
        self._watched.append(_Watched(name, path, handle))

    def check(self, hot: "tuple[str, int] | None" = None) -> None:
        """Raise WriteFailedError if something is gone. `hot`: path and handle of the segment that is being written."""
        watched = self._watched if hot is None else [*self._watched, _Watched("journal file", *hot)]
        for each in watched:
            if _is_gone(each):
                raise WriteFailedError(self._describe(each))

    def is_gone(self) -> bool:
        return any(map(_is_gone, self._watched))

    def close(self) -> None:
        for handle in self._own:
            with contextlib.suppress(OSError):
                os.close(handle)
        self._own, self._watched = [], []

    def _describe(self, gone: _Watched) -> str:
        """The message for the user: what happened, what is left, and the next command."""
        folder = self._watched[0]
        moved = _new_path(folder)
        if _is_gone(folder) and moved:
            return (
                f"the folder of this run was moved from {self._run} to {moved} while the run was writing to it; the "
                f"run has stopped sending requests. Every recorded answer is in the moved folder; continue there with: "
                f"holdfast resume {shlex.quote(moved)}"
            )
        again = f"holdfast resume {shlex.quote(self._run)}"
        if _is_gone(folder):
            return (
                f"the run folder {self._run} was deleted or replaced while the run was writing to it; the run has "
                f"stopped sending requests. Restore the folder from a copy or a mirror (holdfast recover), then "
                f"continue with: {again}"
            )
        left = "Every recorded answer is kept" if gone.name == "lock file" else "Recorded answers in it may be lost"
        return (
            f"the {gone.name} {gone.path} was deleted or replaced while the run was writing; the run has stopped "
            f"sending requests, because another process could write the same run now. {left}; continue with: {again}"
        )


def inode_of(handle: int) -> int:
    return os.fstat(handle).st_ino


def is_same_file(path: str, handle: int) -> bool:
    """Whether the path names the open file at this moment. True if that cannot be determined."""
    return not _is_gone(_Watched("", path, handle))


def _is_gone(watched: _Watched) -> bool:
    held = _stat(lambda: os.fstat(watched.handle))
    if held is not None and held.st_nlink > 0:
        there = _stat(lambda: os.stat(watched.path))
        return there is not None and (there.st_dev, there.st_ino, there.st_nlink > 0) != (
            held.st_dev,
            held.st_ino,
            True,
        )
    return held is not None


def _stat(look: Callable[[], os.stat_result]) -> os.stat_result | None:
    """The file's status; a result with no links if the file certainly does not exist; None if nothing is known."""
    try:
        return look()
    except OSError as error:
        return os.stat_result((0,) * 10) if error.errno in _ABSENT else None


def _new_path(folder: _Watched) -> str:
    """The current path of an open folder that was moved; empty if it was deleted or the path is unknown."""
    if sys.platform != "linux":
        return ""
    try:
        path = os.readlink(f"/proc/self/fd/{folder.handle}")
    except OSError:
        return ""
    return "" if path.endswith(_DELETED) or not is_same_file(path, folder.handle) else path
