"""Terms: ownership of a run on a file system without flock, by numbered files in `<run>/lease/`.

Protocol (`claims` does the same in an object store):

- A process takes the run by creating `lease/<number>`, create-only, with a random nonce. It reads the file back and
  owns the run if the nonce is its own: a network file system may report "exists" for a create that succeeded.
- The holder overwrites `lease/<number>.beat` every two seconds, from its own thread. The text `-1` means ended.
- A term has expired if its beat did not change for one expiry on the observer's monotonic clock. Clocks of two machines
  are never compared.
- A holder that finds a greater number has lost the run and stops. The journal's fence voids what it writes after that.

A crash leaves a term that expires.
"""

import contextlib
import os
import re
import threading
import time
import uuid
from collections.abc import Callable

import msgspec

from holdfast import files
from holdfast.errors import HeldError
from holdfast.journal.ownership.lease import Holder, is_gone, this_process

TERMS = "lease"
BEAT_SECONDS = 2.0
EXPIRY_SECONDS = 20.0
_NUMBER = re.compile(r"^\d{6}$")


class _Claim(msgspec.Struct, frozen=True):
    nonce: str
    holder: Holder


class Term:
    """One ownership, held from construction to `end` or until it is lost. HeldError if another process owns the run."""

    def __init__(
        self,
        run: str,
        beat_seconds: float = BEAT_SECONDS,
        expiry_seconds: float = EXPIRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = os.path.join(run, TERMS)
        self._beat_seconds = beat_seconds
        files.make_folder(self._folder)
        last = _greatest(self._folder)
        if last and not _is_over(self._folder, last, expiry_seconds, clock, sleep):
            claim = _read_claim(self._folder, last)
            holder = f" (process {claim.holder.pid} on {claim.holder.host})" if claim else ""
            raise HeldError(
                f"{run} is being written by another live process{holder}; wait for it, or stop it first (this file "
                f"system has no locks: a process that died is recognised after {expiry_seconds:g} s)"
            )
        self._number = last + 1
        self.lost = False
        self._over = threading.Event()
        self._nonce = uuid.uuid4().hex
        if not _claim(self._folder, self._number, self._nonce):
            raise HeldError(f"{run} was taken over by another process a moment ago; wait for it, or stop it first")
        self._beat(0)
        self._beating = threading.Thread(target=self._keep_beating, name="holdfast-term", daemon=True)
        self._beating.start()

    def end(self) -> None:
        """Mark the term as ended, so that the next writer does not have to wait for its expiry."""
        self._over.set()
        self._beating.join(5.0)  # a late beat of the thread would overwrite the end mark
        if not self.lost:
            self._beat(-1)

    def _keep_beating(self) -> None:
        count = 0
        while not self._over.wait(self._beat_seconds):
            count += 1
            if self.look():
                return
            self._beat(count)

    def look(self) -> bool:
        """Check now whether the term is lost. A paused process may have lost it long before its next beat.

        A deleted claim file counts as lost: the next process would take the same number.
        """
        self.lost = self.lost or _greatest(self._folder) > self._number or self._is_deleted()
        return self.lost

    def _is_deleted(self) -> bool:
        """Whether the claim file is missing or another process's. A file that cannot be read proves nothing."""
        try:
            if files.status_of(os.path.join(self._folder, f"{self._number:06}")) is None:
                return True
        except OSError:
            return False
        claim = _read_claim(self._folder, self._number)
        return claim is not None and claim.nonce != self._nonce

    def _beat(self, count: int) -> None:
        path = _beat_path(self._folder, self._number)
        with contextlib.suppress(OSError):  # one missed beat is harmless: an expiry has ten
            files.replace_file(path, str(count).encode())


def is_term_held(run: str) -> bool:
    """Whether a live process seems to own the run, for status displays only: one look, without waiting for an expiry.

    It compares the beat's modification time with this machine's clock, so it is never used to take a run over.
    """
    folder = os.path.join(run, TERMS)
    last = _greatest(folder)
    claim = _read_claim(folder, last)
    if not last or _read_beat(folder, last) == "-1" or (claim is not None and is_gone(claim.holder)):
        return False
    try:
        beat = files.status_of(_beat_path(folder, last))
    except OSError:
        return False
    return beat is not None and time.time() - beat.st_mtime < EXPIRY_SECONDS


def _is_over(
    folder: str, number: int, expiry: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> bool:
    """Whether the term was ended, or its beat did not change for one whole expiry. Blocks while it watches."""
    first, end = _read_beat(folder, number), clock() + expiry
    while clock() < end:
        now = _read_beat(folder, number)
        if now == "-1":
            return True
        if now != first:
            return False
        sleep(min(0.1, expiry / 10))
    return True


def _claim(folder: str, number: int, nonce: str) -> bool:
    """Create the claim file of this number. True if it is ours."""
    path = os.path.join(folder, f"{number:06}")
    claim = _Claim(nonce, this_process())
    with contextlib.suppress(FileExistsError):
        handle = files.create_file(path)
        try:
            os.write(handle, msgspec.json.encode(claim))
            os.fsync(handle)  # on a network file system, other machines see the nonce only after this
        finally:
            os.close(handle)
    found = _read_claim(folder, number)
    return found is not None and found.nonce == nonce


def _read_claim(folder: str, number: int) -> _Claim | None:
    try:
        return msgspec.json.decode(files.read_file(os.path.join(folder, f"{number:06}")), type=_Claim)
    except (OSError, msgspec.DecodeError):
        return None


def _greatest(folder: str) -> int:
    try:
        return max((int(name) for name in files.list_names(folder) if _NUMBER.match(name)), default=0)
    except OSError:
        return 0


def _beat_path(folder: str, number: int) -> str:
    return os.path.join(folder, f"{number:06}.beat")


def _read_beat(folder: str, number: int) -> str:
    try:
        return files.read_file(_beat_path(folder, number)).decode("ascii", "replace")
    except OSError:
        return ""
