"""The run's lock: an empty file that its one writer holds with flock.

The kernel releases the lock when the process dies, however it dies, so a stale lock cannot exist. A forked child closes
its copy at once, so that it does not keep a dead run locked.

Holdfast never replaces or deletes the file, but people do, and a lock on a deleted file protects nothing. Two checks
cover that. The holder compares its open file with the path once a second and stops if they differ (`location`). A
process that takes the lock reads the lease: if it names another lock file than this one, a live holder may not have
noticed yet, so the process watches the heartbeat for a few seconds and refuses if it changes.

On a file system without flock, numbered terms are used instead (`terms`).
"""

import contextlib
import errno
import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterable

from holdfast.errors import HeldError
from holdfast.files import open_or_create
from holdfast.journal.ownership.lease import Lease, is_gone, is_held_by_lease, read_lease, this_process
from holdfast.journal.ownership.location import Location, inode_of, is_same_file
from holdfast.journal.ownership.terms import TERMS, Term

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
                holder = _describe_holder(self._handle)
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

    def _open(self) -> int:
        """Open the lock file without following links: locking another run's file would block that run, not this one."""
        try:
            return open_or_create(self._path)
        except PermissionError as error:
            run = os.path.dirname(self._path)
            if not is_held_by_lease(run):
                raise
            raise HeldError(
                f"{run} belongs to another user, and its lease says that a live process writes it; wait for it"
            ) from error

    def _try(self, run: str) -> bool:
        """Try once to take the lock, or a term where there is no flock. HeldError if a term is held."""
        if self._handle < 0:
            self._handle = self._open()
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in NO_FLOCK:
                self.forget()
                raise
            try:
                self._term = Term(run)
            except BaseException:
                self.forget()
                raise
        if is_same_file(self._path, self._handle):
            return True
        self.release()  # the file was deleted or replaced between open and flock: retry with the one there now
        return False

    def _refuse_live_holder(self, run: str, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Raise HeldError if a process that locked another file at this path still writes a heartbeat."""
        lease = read_lease(run)
        if self._term is not None or lease is None or not _may_be_held(lease, self.inode):
            return
        end = clock() + BEAT_WATCH_SECONDS
        while clock() < end:
            now = read_lease(run)
            if now is not None and now.beat != lease.beat and not now.released:
                raise HeldError(
                    f"{run} is being written by process {now.holder.pid} on {now.holder.host}, whose lock file was "
                    "deleted or replaced; that process stops as soon as it notices: run this command again then"
                )
            sleep(_PAUSE_SECONDS)


def _may_be_held(lease: Lease, inode: int) -> bool:
    """Whether the lease's process locked another file and may still run. Leases of older versions have lock 0: for
    them only the flock decides.
    """
    if lease.released or lease.lock in (0, inode) or lease.holder == this_process():
        return False
    return not is_gone(lease.holder)


def _forget_all() -> None:
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def owner_of(handle: int) -> int:
    """The id of the process that holds the lock, from /proc/locks; 0 if unknown (not Linux, or another host)."""
    found = os.fstat(handle)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        with open(KERNEL_LIST, encoding="ascii", errors="replace") as lines:
            return writer_of(place, lines)
    except OSError:
        return 0


def _describe_holder(handle: int) -> str:
    """The process to stop, for an error message; empty if it is not known for certain."""
    process = owner_of(handle)
    if not process or not os.path.exists(f"/proc/{process}"):  # in another container, or a child inherited the lock
        return ""
    return f" (process {process} on {os.uname().nodename})"


def writer_of(place: str, lines: Iterable[str]) -> int:
    """The process with an exclusive flock on a file, from lines such as `1: FLOCK ADVISORY WRITE 4711 fe:00:12 0 EOF`;
    0 if there is none. Waiting processes have an arrow before FLOCK, so they do not match.
    """
    for line in lines:
        match line.split():
            case [_, "FLOCK", _, "WRITE", process, at, *_] if at == place and process.isdigit():
                return int(process)
    return 0
