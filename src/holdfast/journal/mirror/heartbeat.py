"""The heartbeat of a process that writes a mirrored run, and the check that the run is still its own.

Invariant: each beat is written before the check (see `claims`), so of two processes at least one sees the other. A
crash leaves the last beat; others see that it does not change any more.

A beat that was written, and after which no greater epoch was found, confirms the ownership as of the moment before it.
A machine that is cut off from the store, or was asleep, has no confirmation for a while, and another one may own the
run by then (`is_confirmed`).

Beats come from a thread of their own, because one upload may take longer than the expiry. The uploader beats too,
before it counts an upload as durable.
"""

import contextlib
import shlex
import threading
from collections.abc import Callable

from holdfast.errors import FencedError, StoreError
from holdfast.journal.mirror.requests import RequestRelay
from holdfast.journal.mirror.tombstones import tombstone_name
from holdfast.journal.object_store import Objects
from holdfast.journal.ownership.claims import EXPIRY_SECONDS, Beat, delete_beat, epochs_in, list_leases, write_beat
from holdfast.journal.ownership.lease import read_lease
from holdfast.journal.ownership.terms import CONFIRMED_SHARE, boot_time

BEATS = 3
"""A holder beats so often within one expiry."""
BEAT_SECONDS = EXPIRY_SECONDS / BEATS
_REPLY_SECONDS = 1.0


class Heartbeat:
    """The beats of one ownership, from `start` to `stop`. Safe from any thread."""

    def __init__(
        self,
        run: str,
        uid: str,
        objects: Objects,
        epoch: int | None,
        beat_seconds: float,
        mirrored: Callable[[], int],
    ) -> None:
        """`epoch` None: the mirror has no claims (`mirror.exclusive: false`). `mirrored`: the last durable record."""
        self._run = run
        self._uid = uid
        self._objects = objects
        self._epoch = epoch
        self._beat_seconds = beat_seconds
        self._beats = 0
        self._beat_at = -1e9
        self._confirmed_at = -1e9
        self._mirrored = mirrored
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._has_ended = False
        self._lost_because = ""
        self._requests = None if epoch is None else RequestRelay(run, objects, epoch)

    def start(self, lost: Callable[[FencedError], None]) -> None:
        """Beat in a thread. It calls `lost` if the run is not ours any more."""
        threading.Thread(target=self._work, args=(lost,), name="holdfast-beat", daemon=True).start()

    def stop(self) -> None:
        """End the thread. Does not wait for a beat that it is writing."""
        self._stopped.set()

    def _work(self, lost: Callable[[FencedError], None]) -> None:
        while not self._stopped.wait(self.due_seconds):
            try:
                self.beat()
                self.reply()
            except FencedError as error:
                lost(error)
                return
            except Exception:  # noqa: BLE001 - the uploader gets the same error, and reports it
                continue

    @property
    def is_confirmed(self) -> bool:
        """Whether a beat was written, and no greater epoch found, in the last two thirds of an expiry. Does no I/O."""
        return boot_time() - self._confirmed_at < CONFIRMED_SHARE * self._beat_seconds * BEATS

    @property
    def due_seconds(self) -> float:
        """In how many seconds the next beat, or the reply to a request of another machine, is due, at most."""
        if self._requests is not None and self._requests.is_waiting:
            return min(_REPLY_SECONDS, self._beat_seconds)
        left = self._beat_at + self._beat_seconds - boot_time()
        return left if left > 0 else self._beat_seconds

    def reply(self) -> None:
        """Send replies to requests of other machines."""
        if self._requests is not None:
            with self._lock:
                self._requests.reply()

    def beat(self, *, ended: bool = False) -> None:
        """Write a heartbeat if one is due, then check that the run is still ours. FencedError if it is not.

        This order matters: a process that takes the run over, or removes it, creates its claim or tombstone first and
        then reads the heartbeat. So at least one of the two sees the other.
        """
        with self._lock:
            if self._lost_because:
                raise FencedError(self._lost_because)
            if self._has_ended:
                return  # another beat would look like a live holder
            try:
                self._beat(ended=ended)
            except FencedError as error:
                self._lost_because = str(error)
                raise
            self._has_ended = ended

    def _beat(self, *, ended: bool) -> None:
        before = boot_time()  # this clock also counts the time in which the machine sleeps
        if before - self._beat_at < self._beat_seconds and not ended:
            return
        self._beats += 1
        lease = read_lease(self._run)
        beat = Beat(self._beats, ended, self._mirrored(), lease, self._beat_seconds * BEATS)
        write_beat(self._objects, self._epoch or 0, beat)  # 0: a run without claims, for readers only
        names = list_leases(self._objects)
        if tombstone_name(self._uid) in names:
            with contextlib.suppress(StoreError):  # a leftover heartbeat would look like that of a new run
                delete_beat(self._objects, self._epoch or 0)
            raise FencedError(
                f"the mirror {self._objects.url} was removed (holdfast gc --mirror), so this process stops; every "
                f"recorded answer is in {self._run}. To continue without the mirror: "
                f"holdfast resume {shlex.quote(self._run)} --set mirror=null"
            )
        if self._epoch is not None and max(epochs_in(names), default=0) > self._epoch:
            raise FencedError(f"{self._objects.url} was taken over by another process: this one stops")
        self._confirmed_at = before
        if self._requests is not None:
            self._requests.receive(names)
        if lease is not None and self._epoch in (None, lease.epoch):  # else beat again soon, with the first own lease
            self._beat_at = before
