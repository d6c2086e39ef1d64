"""The run's lock: one writer.

An empty file, flocked by the writer and never replaced or deleted: a lock on a file that is gone protects nothing.
The kernel lets go of it when the process dies, however it dies, so a stale lock cannot exist. A child process that was
forked lets go of it at once: it must not keep a dead run alive.

Where the file system has no flock, numbered leases and their beats take its place (`terms`).
"""

import contextlib
import errno
import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterable

from holdfast.errors import HeldError
from holdfast.journal.terms import TERMS, Term

LOCK = "lock"
LOCK_NAMES = (LOCK, TERMS)
"""What in a run's folder says who writes it."""
WAIT_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
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
        path = os.path.join(run, LOCK)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._term: Term | None = None
        self._taken = False
        end = clock() + wait_seconds
        while not self._try(run):
            if clock() >= end:
                holder = _holder(self._handle)
                os.close(self._handle)
                raise HeldError(
                    f"{run} is being written by another live process{holder}; wait for it, or stop it with: "
                    f"holdfast cancel {os.path.basename(run)}"
                )
            sleep(_PAUSE_SECONDS)
        _held.add(self)

    @property
    def lost(self) -> bool:
        """Another writer has taken the run over: where there is no flock, or in the mirror."""
        return self._taken or (self._term is not None and self._term.lost)

    def lose(self) -> None:
        """Another machine has taken the run over, as its mirror tells. From any thread."""
        self._taken = True

    def look(self) -> bool:
        """Whether it is lost, as of now."""
        return self._taken or (self._term is not None and self._term.look())

    def release(self) -> None:
        if self._term is not None:
            self._term.end()
            self._term = None
        self.forget()

    def forget(self) -> None:
        """Close our handle and nothing else: in a forked child, the parent still holds the run."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _try(self, run: str) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            try:
                self._term = Term(run)
            except BaseException:
                self.forget()
                raise
        return True


def _forget_all() -> None:
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def owner_of(handle: int) -> int:
    """The process that took the lock, where the kernel tells it (Linux, a process of this host); else 0."""
    found = os.fstat(handle)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        with open(KERNEL_LIST, encoding="ascii", errors="replace") as lines:
            return writer_of(place, lines)
    except OSError:
        return 0


def _holder(handle: int) -> str:
    """Whom to stop, for a refusal. Nothing if it is not known for certain."""
    process = owner_of(handle)
    if not process or not os.path.exists(f"/proc/{process}"):  # of another container, or a child has inherited it
        return ""
    return f" (process {process} on {os.uname().nodename})"


def writer_of(place: str, lines: Iterable[str]) -> int:
    """The process with an exclusive flock on a file, from lines such as `1: FLOCK ADVISORY WRITE 4711 fe:00:12 0 EOF`;
    0 if there is none. Those that wait have an arrow before their kind.
    """
    for line in lines:
        match line.split():
            case [_, "FLOCK", _, "WRITE", process, at, *_] if at == place and process.isdigit():
                return int(process)
    return 0
