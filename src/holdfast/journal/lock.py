"""The run's lock: one writer on this host.

An empty file, flocked by the writer and never replaced or deleted: a lock on a file that is gone protects nothing.
The kernel lets go of it when the process dies, however it dies, so a stale lock cannot exist.
"""

import fcntl
import os
import time
from collections.abc import Callable

from holdfast.errors import HeldError

WAIT_SECONDS = 2.0
_PAUSE_SECONDS = 0.05


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
                os.close(self._handle)
                raise HeldError(f"{run} is being written by another live process; wait for it, or stop it first")
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
