"""The run's lock: one writer on this host.

An empty file, flocked by the writer and never replaced or deleted: a lock on a file that is gone protects nothing.
The kernel lets go of it when the process dies, however it dies, so a stale lock cannot exist.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterable

from holdfast.errors import HeldError

WAIT_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
KERNEL_LIST = "/proc/locks"


class Lock:
    """Held from construction to `release`. Close-on-exec, so that a child program does not keep it alive."""

    def __init__(
        self,
        run: str,
        wait_seconds: float = WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        path = os.path.join(run, "lock")
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        end = clock() + wait_seconds
        while not self._try():
            if clock() >= end:
                holder = _holder(self._handle)
                os.close(self._handle)
                raise HeldError(
                    f"{run} is being written by another live process{holder}; wait for it, or stop it first"
                )
            sleep(_PAUSE_SECONDS)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _holder(handle: int) -> str:
    """Who has the lock, where the kernel tells it (Linux, a process of this host): a refusal should say whom to stop.
    Nothing if it is not known for certain.
    """
    found = os.fstat(handle)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        with open(KERNEL_LIST, encoding="ascii", errors="replace") as lines:
            process = writer_of(place, lines)
    except OSError:
        return ""
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
