"""Terms: ownership of a shard, or of a run on a file system without flock, by numbered files in `<run>/lease/`.

Protocol (`claims` does the same in an object store):

- A process takes the run by creating `lease/<number>`, create-only, with a random nonce. It reads the file back and
  owns the run if the nonce is its own: a network file system may report "exists" for a create that succeeded.
- The holder overwrites `lease/<number>.beat` every two seconds, from its own thread. The text `-1` means ended.
- A term has expired if its beat did not change for one expiry in which the observer watched it (`watch`). A term of a
  process of this machine that has ended has expired at once.
- A process that has claimed a term reads the last beat once more. If it has changed, the holder was only paused: the
  process waits until that one has noticed the claim.
- A holder that finds a greater number has lost the run and stops. The journal's fence voids what it writes after that.
- A holder whose beat was not confirmed for two thirds of an expiry starts no request (`is_confirmed`): the machine may
  have slept, or the file system may be unreachable, and another process may own the run by now.

A process that waits for several terms watches them all at once (`observe_term`), so that it waits for one expiry.

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
from holdfast.errors import HeldError, UsageError
from holdfast.journal.ownership.lease import Holder, is_gone, this_process
from holdfast.journal.ownership.watch import Watch

TERMS = "lease"
BEAT_SECONDS = 2.0
EXPIRY_SECONDS = 20.0
EXPIRY_VARIABLE = "HOLDFAST_EXPIRY_SECONDS"
CONFIRMED_SHARE = 2 / 3
"""Of an expiry. A holder without a confirmation for so long starts no request."""
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It also counts while the machine sleeps."""
_NUMBER = re.compile(r"^\d{6}$")
_ENDED = "-1"
_PAUSE_SECONDS = 0.1


def boot_time() -> float:
    """Seconds since the machine was started, also those in which it slept."""
    return time.clock_gettime(_BOOT_CLOCK)


class _Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    nonce: str
    holder: Holder
    expiry_seconds: float = EXPIRY_SECONDS
    """The holder beats several times in this period. A process that wants to take over waits at least so long."""


class Term:
    """One ownership, held from construction to `end` or until it is lost. HeldError if another process owns the run."""

    def __init__(
        self,
        run: str,
        beat_seconds: float | None = None,
        expiry_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = os.path.join(run, TERMS)
        self._expiry_seconds = expiry_seconds or expiry_from_environment(EXPIRY_SECONDS)
        self._beat_seconds = beat_seconds or min(BEAT_SECONDS, self._expiry_seconds / 10)
        files.make_folder(self._folder)
        last = _greatest(self._folder)
        before = _watch(self._folder, last, clock) if last else None
        if before is not None and not before.watch.wait_until_over(sleep, _PAUSE_SECONDS):
            claim, expiry = before.claim, before.watch.expiry_seconds
            holder = f" (process {claim.holder.pid} on {claim.holder.host})" if claim else ""
            raise HeldError(
                f"{run} is being written by another live process{holder}; wait for it, or stop it first (this file "
                f"system has no locks: a process that died is recognised after {expiry:g} s)"
            )
        self._number = last + 1
        self.lost = False
        self._over = threading.Event()
        self._nonce = uuid.uuid4().hex
        if not _claim(self._folder, self._number, self._nonce, self._expiry_seconds):
            raise HeldError(f"{run} was taken over by another process a moment ago; wait for it, or stop it first")
        self._confirmed = 0.0
        self._beat(0)
        self._beating = threading.Thread(target=self._keep_beating, name="holdfast-term", daemon=True)
        self._beating.start()
        if before is not None:
            try:
                before.watch.wait_until_noticed(sleep, _PAUSE_SECONDS)
            except BaseException:
                self.end()
                raise

    @property
    def is_confirmed(self) -> bool:
        """Whether a beat was written, and no greater number found, in the last two thirds of an expiry."""
        return boot_time() - self._confirmed < CONFIRMED_SHARE * self._expiry_seconds

    def end(self) -> None:
        """Mark the term as ended, so that the next writer does not have to wait for its expiry."""
        self._over.set()
        self._beating.join(5.0)  # a late beat of the thread would overwrite the end mark
        if not self.lost:
            self._beat(int(_ENDED))

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
        path, before = _beat_path(self._folder, self._number), boot_time()
        with contextlib.suppress(OSError):  # one missed beat is harmless: an expiry has ten
            files.replace_file(path, str(count).encode())
            if not self.look():  # after the beat: a process that took over before it has seen none in time
                self._confirmed = before


class _Seen(msgspec.Struct, frozen=True):
    """A term that another process holds."""

    number: int
    claim: _Claim | None
    watch: Watch[str]


_seen: dict[str, _Seen] = {}
"""By folder of terms: those that `observe_term` has looked at."""


def _watch(folder: str, number: int, clock: Callable[[], float]) -> _Seen:
    """Look at a term. Continues what `observe_term` has watched."""
    claim, seen = _read_claim(folder, number), _seen.get(folder)
    if seen is not None and (seen.number, seen.claim) == (number, claim):
        seen.watch.look()
        return seen

    def is_ended(beat: str) -> bool:
        return beat == _ENDED or (claim is not None and is_gone(claim.holder))

    def read() -> str:
        return _read_beat(folder, number)

    expiry_seconds = claim.expiry_seconds if claim is not None else EXPIRY_SECONDS
    return _Seen(number, claim, Watch(read, is_ended, expiry_seconds, clock, read()))


def observe_term(run: str, clock: Callable[[], float] = time.monotonic) -> bool:
    """Look once whether a run could be taken over now: nobody holds it, or its term has not changed for an expiry since
    this process saw it first. Does not wait, so that many runs can be watched at once.
    """
    folder = os.path.join(run, TERMS)
    last = _greatest(folder)
    if not last:
        return True
    seen = _seen[folder] = _watch(folder, last, clock)
    return seen.watch.is_over


def expiry_from_environment(default: float) -> float:
    """How long others wait for this process after its last heartbeat."""
    text = os.environ.get(EXPIRY_VARIABLE) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise UsageError(f"{EXPIRY_VARIABLE} is {text!r}; it must be a number of seconds, such as {default:g}")
    return seconds


def is_term_held(run: str) -> bool:
    """Whether a live process seems to own the run, for status displays only: one look, without waiting for an expiry.

    It compares the beat's modification time with this machine's clock, so it is never used to take a run over.
    """
    folder = os.path.join(run, TERMS)
    last = _greatest(folder)
    claim = _read_claim(folder, last)
    if not last or _read_beat(folder, last) == _ENDED or (claim is not None and is_gone(claim.holder)):
        return False
    try:
        beat = files.status_of(_beat_path(folder, last))
    except OSError:
        return False
    expiry = claim.expiry_seconds if claim is not None else EXPIRY_SECONDS
    return beat is not None and time.time() - beat.st_mtime < expiry


def _claim(folder: str, number: int, nonce: str, expiry_seconds: float) -> bool:
    """Create the claim file of this number. True if it is ours."""
    path = os.path.join(folder, f"{number:06}")
    claim = _Claim(nonce, this_process(), expiry_seconds)
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
