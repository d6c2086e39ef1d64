"""The run's lock: an empty file that its one writer holds with flock.

The kernel releases the lock when the process dies, however it dies, so a stale lock cannot exist. A forked child closes
its copy at once, so that it does not keep a dead run locked.

Holdfast never replaces or deletes the file, but people do, and a lock on a deleted file protects nothing. Two checks
cover that. The holder compares its open file with the path once a second and stops if they differ. A process that takes
the lock reads the lease: if it names another lock file than this one, a live holder may not have noticed yet, so the
process watches the heartbeat for a few seconds and refuses if it changes.

On a file system without flock, and for shards, numbered terms are used instead (`terms`).

`Location` notices that a run's files were moved or deleted. An open file survives its deletion: writes and syncs
succeed, and every record is lost when the handle is closed. So a writer compares its open files with their paths once a
second, and before its first write after a pause. A file or folder is gone if its link count is 0, or if its path is
missing or has another device or inode. Hard links (backups made with `cp -al`) raise the link count and are no reason
to stop.

Folders are kept open too: the kernel keeps the inode number of an open folder stable, also on file systems that invent
inode numbers (FUSE, overlayfs). An error that proves nothing (EIO, an unreachable network) is ignored here, because the
next write reports it.
"""

import contextlib
import errno
import fcntl
import os
import shlex
import sys
import time
import weakref
from collections.abc import Callable, Iterable

import msgspec

from holdfast.errors import HeldError, WriteFailedError
from holdfast.files import open_folder, open_or_create
from holdfast.journal.ownership.lease import is_gone, is_held_by_lease, read_lease, this_process
from holdfast.journal.ownership.terms import TERMS, Term
from holdfast.journal.paths import is_shard_folder

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


LOCK = "lock"
LOCK_NAMES = (LOCK, TERMS)
"""Entries of a run folder that record its owner."""
WAIT_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
BEAT_WATCH_SECONDS = 3.0
"""How long to watch the heartbeat of a holder with another lock file. Holders beat once a second."""
KERNEL_LIST = "/proc/locks"
NO_FLOCK = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_held: "weakref.WeakSet[Lock]" = weakref.WeakSet()


class Lock:
    """Held from construction to `release`. Close-on-exec, so that a child program does not keep it alive."""

    def __init__(
        self,
        run: str,
        wait_seconds: float = WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = os.path.join(run, LOCK)
        self._handle = -1
        self._term: Term | None = None
        self._location: Location | None = None
        self._taken = False
        self._active = False
        self.lost_because = ""
        end = clock() + wait_seconds
        while not self._try(run):
            if clock() >= end:
                process = lock_owner(self._handle)
                # Name it only if it is certain: it may be in another container, or a child inherited the lock.
                is_known = process and os.path.exists(f"/proc/{process}")
                holder = f" (process {process} on {os.uname().nodename})" if is_known else ""
                self.forget()
                raise HeldError(
                    f"{run} is being written by another live process{holder}; wait for it, or stop it with: "
                    f"holdfast cancel {os.path.basename(run)}"
                )
            sleep(_PAUSE_SECONDS)
        try:
            self._refuse_live_holder(run, clock, sleep)
            self._location = Location(run)
            self._location.watch_file("lock file", self._path, self._handle)
        except BaseException:
            self.release()
            raise
        self._active = True
        _held.add(self)

    @property
    def location(self) -> Location:
        """The run's folder and lock file, to be checked while they are in use."""
        assert self._location is not None
        return self._location

    @property
    def inode(self) -> int:
        return inode_of(self._handle)

    @property
    def lost(self) -> bool:
        """Whether another writer is known to have taken the run over, by a term or a claim. Does no I/O."""
        return self._taken or (self._term is not None and self._term.lost)

    @property
    def can_expire(self) -> bool:
        """Whether another process may take the run over from a live one that gives no sign of life."""
        return self._term is not None

    @property
    def is_confirmed(self) -> bool:
        """Whether it is certain that no other process may have taken the run over. Does no I/O."""
        return self._term is None or self._term.is_confirmed

    def lose(self, because: str = "") -> None:
        """Mark the run as lost; called by the mirror's thread. Safe from any thread."""
        self.lost_because = because
        self._taken = True

    def look(self) -> bool:
        """Check now whether the run is lost. A released lock counts as lost: a thread that ends late must not write."""
        return not self._active or self._taken or (self._term is not None and self._term.look())

    def release(self) -> None:
        self._active = False
        if self._term is not None:
            self._term.end()
            self._term = None
        self.forget()

    def forget(self) -> None:
        """Close this process's handles without ending the ownership: after a fork, the parent still owns the run."""
        if self._location is not None:
            self._location.close()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _try(self, run: str) -> bool:
        """Try once to take the lock, or a term where there is no flock. HeldError if a term is held."""
        if self._handle < 0:
            try:  # without following links: locking another run's file would block that run, not this one
                self._handle = open_or_create(self._path)
            except PermissionError as error:
                if not is_held_by_lease(run):
                    raise
                raise HeldError(
                    f"{run} belongs to another user, and its lease says that a live process writes it; wait for it"
                ) from error
        try:
            # A stopped process keeps its flock, so a shard could not be taken over from it: shards have terms.
            if is_shard_folder(run) or not self._flock():
                self._term = Term(run)
        except BlockingIOError:
            return False
        except BaseException:
            self.forget()
            raise
        if is_same_file(self._path, self._handle):
            return True
        self.release()  # the file was deleted or replaced between open and flock: retry with the one there now
        return False

    def _flock(self) -> bool:
        """False if the file system has no locks. BlockingIOError if another process holds the lock."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_FLOCK:
                return False
            raise
        return True

    def _refuse_live_holder(self, run: str, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Raise HeldError if a process that locked another file at this path still writes a heartbeat."""
        lease = read_lease(run)
        if self._term is not None or lease is None or lease.released or lease.holder == this_process():
            return
        # Leases of older versions have lock 0: for them only the flock decides.
        if lease.lock in (0, self.inode) or is_gone(lease.holder):
            return
        end, is_last = clock() + BEAT_WATCH_SECONDS, False
        while not is_last:
            is_last = clock() >= end  # one more look after the time is up: this process may have been stopped
            now = read_lease(run)
            if now is not None and now.beat != lease.beat and not now.released:
                raise HeldError(
                    f"{run} is being written by process {now.holder.pid} on {now.holder.host}, whose lock file was "
                    "deleted or replaced; that process stops as soon as it notices: run this command again then"
                )
            sleep(_PAUSE_SECONDS)


def _forget_all() -> None:
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def lock_owner(handle: int) -> int:
    """The id of the process that holds the lock, from /proc/locks; 0 if unknown (not Linux, or another host)."""
    found = os.fstat(handle)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        with open(KERNEL_LIST, encoding="ascii", errors="replace") as lines:
            return writer_of(place, lines)
    except OSError:
        return 0


def writer_of(place: str, lines: Iterable[str]) -> int:
    """The process with an exclusive flock on a file, from lines such as `1: FLOCK ADVISORY WRITE 4711 fe:00:12 0 EOF`;
    0 if there is none. Waiting processes have an arrow before FLOCK, so they do not match.
    """
    for line in lines:
        match line.split():
            case [_, "FLOCK", _, "WRITE", process, at, *_] if at == place and process.isdigit():
                return int(process)
    return 0
