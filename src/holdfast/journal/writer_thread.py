"""The writer's thread: takes what is queued, makes it durable in batches, and hands the result over.

Invariants: a batch is handed over only after its sync. When the thread ends, for whatever reason, it hands over why.
Once a second, and before each commit after a pause, it checks that the run is still its own and that the run's files
are still at their paths (`lock`). A crash loses only records that were not handed over.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

from holdfast.errors import FencedError, JournalError, StoppedError, WriteFailedError
from holdfast.journal.appender import Appender
from holdfast.journal.ownership.lock import CHECK_SECONDS, Lock
from holdfast.journal.positions import Position
from holdfast.records import Draft

_BATCH_BYTES = 8 * 1024 * 1024
_BATCH_RECORDS = 4096
SLOW_SECONDS = 1.0
"""A slower commit is reported as an event: the disk, not the model, slows the run down."""
_SMALL_BATCH = 64
_BUSY_SECONDS = 0.001
_GATHER_SECONDS = 0.0005
_FLOWING = 3
_FLOWING_SECONDS = 0.0035
_FADING = 0.9
"""Group commit. One sync costs as much for fifty records as for one, so under load the thread waits a moment to collect
more of them. It waits `_GATHER_SECONDS` if the last batches had several records and the next record arrives within
`_BUSY_SECONDS` of the last commit. If at least `_FLOWING` records are queued by then, but fewer than in recent batches
(the maximum, fading by `_FADING` per batch), it waits `_FLOWING_SECONDS` once more. A single record never waits."""

Queued = tuple[Draft, "asyncio.Future[Position] | None"]
"""A record and the future that its caller awaits; None if no caller waits for the acknowledgement."""


class ThreadHooks(msgspec.Struct, frozen=True):
    """Callbacks, called in the thread. `committed`: a batch is durable; `ended`: the last call, with the error or None;
    `tell` reports an event.
    """

    committed: Callable[[Sequence[Queued], Sequence[Position]], None]
    ended: Callable[[JournalError | None], None]
    tell: Callable[[str, str], None]


class WriterThread:
    """The thread of one journal, from `start` until `close` or an error. Private methods run in the thread."""

    def __init__(self, appender: Appender, lock: Lock, folder: str, hooks: ThreadHooks) -> None:
        self.check_soon = False
        """Set from any thread: check the run's files before the next commit, however short ago that was done."""
        self._appender = appender
        self._lock = lock
        self._folder = folder
        self._hooks = hooks
        self._queue: queue.SimpleQueue[Queued | None] = queue.SimpleQueue()
        self._in_hand: list[Queued] = []
        self._checked = time.monotonic()
        self._committed = 0.0  # when the last batch was durable, on the monotonic clock
        self._recent_batch = 0.0  # records in recent batches: the maximum, fading with each batch

    def start(self) -> None:
        threading.Thread(target=self._run, name="holdfast-writer", daemon=True).start()

    def put(self, record: Draft, acknowledged: "asyncio.Future[Position] | None" = None) -> None:
        self._queue.put((record, acknowledged))

    def close(self) -> None:
        """Let the thread commit what is queued, and end. Does not wait for it."""
        self._queue.put(None)

    def unsaved(self) -> list[Queued]:
        """The records that the thread did not save, after it has failed."""
        left = list(self._in_hand)
        with contextlib.suppress(queue.Empty):
            while True:
                waiting = self._queue.get_nowait()
                if waiting is not None:
                    left.append(waiting)
        return left

    def _run(self) -> None:
        failure: JournalError | None = None
        try:
            while self._commit_next():
                pass
        except JournalError as error:
            failure = error
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread, waiting callers must raise
            kind = WriteFailedError if isinstance(error, OSError) else StoppedError
            failure = kind(f"{self._folder}: the writer failed ({error!r}); everything acknowledged is kept")
        with contextlib.suppress(OSError):  # closing syncs nothing: everything acknowledged was synced before
            self._appender.close()
        if failure is not None:
            self._hooks.tell("journal.stopped", str(failure))
        self._hooks.ended(failure)

    def _commit_next(self) -> bool:
        """Commit one batch; False when the queue has been closed."""
        last = len(self._in_hand)
        self._recent_batch = max(last, self._recent_batch * _FADING)
        self._in_hand = []
        size = 0
        waiting = self._next_waiting()
        is_busy = self._recent_batch >= 2 and last < _SMALL_BATCH
        if is_busy and waiting is not None and time.monotonic() - self._committed < _BUSY_SECONDS:
            time.sleep(_GATHER_SECONDS)  # group commit: see the constants
            if _FLOWING <= self._queue.qsize() < self._recent_batch - 1:
                time.sleep(_FLOWING_SECONDS)
        while waiting is not None:
            self._in_hand.append(waiting)
            size += waiting[0].size
            if size >= _BATCH_BYTES or len(self._in_hand) >= _BATCH_RECORDS:
                break
            try:
                waiting = self._queue.get_nowait()
            except queue.Empty:
                break
        if self._in_hand:
            # Before the write, not after it: a process that was paused may have lost the run meanwhile, and must not
            # acknowledge a record that the new owner's fence voids.
            self._check_location()
            if self._lock.lost:
                self._stop_fenced()
            began = time.monotonic()
            positions = self._appender.commit([record for record, _ in self._in_hand])
            # After `commit` the batch is synced. Nothing is acknowledged before this line.
            self._hooks.committed(self._in_hand, positions)
            self._committed = time.monotonic()
            if self._committed - began > SLOW_SECONDS:
                took = f"{self._committed - began:.1f} s for {len(self._in_hand)} records"
                self._hooks.tell("journal.commit_slow", f"{self._folder}: a commit took {took}")
        return waiting is not None

    def _next_waiting(self) -> Queued | None:
        """The next queued record; None if the queue was closed. While it waits, it checks the files once a second."""
        while True:
            try:
                return self._queue.get(timeout=CHECK_SECONDS)
            except queue.Empty:
                self._check_location()

    def _check_location(self) -> None:
        """At most once a second: FencedError if the run was taken over, WriteFailedError if its files are gone."""
        if not self.check_soon and time.monotonic() - self._checked < CHECK_SECONDS:
            return
        # The takeover is checked first: a new owner seals our segment, so a missing file alone would be misreported.
        if self._lock.look():
            self._stop_fenced()
        self._lock.location.check(self._appender.hot_file())
        self._checked = time.monotonic()

    def _stop_fenced(self) -> NoReturn:
        why = self._lock.lost_because or f"{self._folder}: another process has taken the run over"
        self._hooks.tell("lease.lost", why)
        raise fenced_error(self._lock, self._folder)


def fenced_error(lock: Lock, folder: str) -> FencedError:
    """The error of a process that has lost the run."""
    return FencedError(lock.lost_because or f"{folder} was taken over by another process: this one stops")
