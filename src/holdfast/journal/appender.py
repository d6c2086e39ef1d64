"""The save path. `WriterThread` takes what is queued, in batches; `Appender` numbers, frames, writes and syncs a batch.

Invariants: `tip` is the last record known to be durable, and nothing beyond it is acknowledged. A batch is handed over
only after its sync. When the thread ends, for whatever reason, it hands over why. Appending reads nothing.

A failed write or sync poisons the segment: its handle is closed and never synced again, because after a failed sync the
kernel may have dropped the dirty pages, and the next sync would report success without them. The batch is written again
to a new segment, whose fence (`prev`) is `tip`. So whatever the poisoned segment holds behind `tip` is void.

A crash leaves at most unacknowledged bytes at the end of the last segment, and temporary files. `opening` repairs both.
"""

import asyncio
import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NoReturn

import msgspec

from holdfast.errors import FencedError, JournalError, StoppedError, WriteFailedError
from holdfast.journal.disk import OS_DISK, Disk, remove_if_there, write_all
from holdfast.journal.ownership.lock import CHECK_SECONDS, Lock
from holdfast.journal.paths import parse_segment_name, segment_path
from holdfast.journal.sealing import seal
from holdfast.records import FORMAT, SEGMENT, Draft, Fence, Position, Segment, draft, frame, seed_of

SEGMENT_BYTES = 64 * 1024 * 1024
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
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


def _raise(error: OSError) -> None:
    raise error


class Hooks(msgspec.Struct, frozen=True):
    """Callbacks of the appender. `wait_for_space` returns to retry the write, or raises to give up."""

    clock: Callable[[], float]
    rotated: Callable[[int], None] = lambda number: None
    poisoned: Callable[[int, OSError], None] = lambda number, error: None
    wait_for_space: Callable[[OSError], None] = _raise


class Appender:
    """The end of one journal, under one epoch."""

    def __init__(
        self, disk: Disk, folder: str, uid: str, epoch: int, hooks: Hooks, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.tip: Fence | None = None
        self._disk = disk
        self._folder = folder
        self._uid = uid
        self._seed = seed_of(uid)
        self._epoch = epoch
        self._hooks = hooks
        self.format = FORMAT
        """Of new segments."""
        self._segment_bytes = segment_bytes
        self._rotate_at = segment_bytes
        self._number = 0  # of the segment that is, or was last, written
        self._handle: int | None = None

    def begin(self, number: int, prev: Fence | None, opening: Sequence[Draft] = ()) -> None:
        """Start the first segment of this epoch. `opening` becomes durable together with the header, or not at all."""
        self.tip = prev
        self._start(number, opening)

    def commit(self, batch: Sequence[Draft]) -> list[Position]:
        """Make a batch durable and return its positions. On WriteFailedError none of it was acknowledged.

        A full disk is waited for. Any other error is retried once, in a new segment.
        """
        self._rotate_if_full()
        failed_before = False
        while True:
            try:
                if self._handle is None:
                    self._start(self._number + 1, ())
                assert self.tip is not None
                assert self._handle is not None
                buffers, positions, tip = self._frame(batch, self.tip)
                wrote = write_all(self._disk, self._handle, buffers)
                assert wrote == tip.bytes - self.tip.bytes
                self._disk.sync(self._handle)
                self.tip = tip  # only after the sync: whatever reads `tip` may acknowledge, mirror or fence up to it
                return positions
            except OSError as error:
                self._poison(error)
                if error.errno in NO_SPACE:
                    self._hooks.wait_for_space(error)
                elif failed_before:
                    raise WriteFailedError(
                        f"{self._folder}: writing failed twice ({error.strerror or error}); everything acknowledged "
                        "is kept: repair the disk, then resume the run"
                    ) from error
                else:
                    failed_before = True

    def hot_file(self) -> tuple[str, int] | None:
        """Path and handle of the segment that is being written; None after a failed write."""
        return None if self._handle is None else (segment_path(self._folder, self._number), self._handle)

    def close(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._disk.close(handle)

    def _frame(self, batch: Sequence[Draft], tip: Fence) -> tuple[list[bytes], list[Position], Fence]:
        at = datetime.fromtimestamp(self._hooks.clock(), UTC).isoformat(timespec="microseconds")[:-6].encode() + b"Z"
        return frame(batch, tip, at, self._seed)

    def _start(self, number: int, opening: Sequence[Draft]) -> None:
        """Create a segment. Its header and opening records are synced under a temporary name before it gets its own.

        FencedError if its name exists: another writer has started this segment. A crash before `publish` leaves a
        temporary file that the next opening removes; after it, an empty but valid segment.
        """
        first = self.tip.n + 1 if self.tip else 1
        header = Segment(self.format, self._uid, number, self._epoch, first, self.tip)
        start = Fence(number, 0, first - 1, "")
        buffers, _, tip = self._frame([draft(SEGMENT, header), *opening], start)
        path = segment_path(self._folder, number)
        temporary = f"{path}.e{self._epoch}.tmp"
        remove_if_there(self._disk, temporary)
        handle = self._disk.create(temporary)
        try:
            write_all(self._disk, handle, buffers)
            self._disk.sync(handle)  # the content before the name: a segment that exists has a valid header
            try:
                self._disk.publish(temporary, path)
            except FileExistsError as error:
                raise FencedError(f"{path} was made by another writer: this one has lost the run and stops") from error
            try:
                self._disk.sync_folder(self._folder)  # before any record is acknowledged in it
            except OSError:
                self._disk.remove(path)  # the name may not survive a power loss, so no record may depend on it
                raise
        except BaseException:
            with contextlib.suppress(OSError):  # report the first error, not one of the cleanup
                self._disk.close(handle)
                remove_if_there(self._disk, temporary)
            raise
        self._number, self._handle, self.tip = number, handle, tip
        self._rotate_at = self._segment_bytes

    def _rotate_if_full(self) -> None:
        """Start a new segment if this one is full, and hand the old one over for sealing.

        If no new segment can be created now, the old one is still good: keep using it for another `segment_bytes`.
        """
        if self._handle is None or self.tip is None or self.tip.bytes < self._rotate_at:
            return
        number, handle = self._number, self._handle
        try:
            self._start(number + 1, ())
        except OSError:
            self._rotate_at = self.tip.bytes + self._segment_bytes
            return
        with contextlib.suppress(OSError):  # everything in it was synced
            self._disk.close(handle)
        self._hooks.rotated(number)

    def _poison(self, error: OSError) -> None:
        """Stop using the current segment after a failed write or sync."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        with contextlib.suppress(OSError):  # the file is not used again
            self._disk.close(handle)
        self._hooks.poisoned(self._number, error)


Queued = tuple[Draft, "asyncio.Future[Position] | None", float]
"""A record, the future that its caller awaits (None if no caller waits for the acknowledgement), and when it was given
to the writer, on the monotonic clock.
"""


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
        self._queue: list[Queued] = []  # shared with the event loop: each operation on it is atomic
        self._in_hand: list[Queued] = []
        # A lock as a signal: released by `_signal`, acquired by the thread before it sleeps. `_is_signalled` saves the
        # event loop a release for every record but the first of a batch.
        self._wake_up = threading.Lock()
        self._wake_up.acquire()
        self._is_signalled = False
        self._is_closing = False
        self._checked = time.monotonic()
        self._committed = 0.0  # when the last batch was durable, on the monotonic clock
        self._recent_batch = 0.0  # records in recent batches: the maximum, fading with each batch

    def start(self) -> None:
        threading.Thread(target=self._run, name="holdfast-writer", daemon=True).start()

    def put(self, queued: Queued) -> None:
        """Queue a record. Only the event loop's thread calls this."""
        self._queue.append(queued)
        if not self._is_signalled:
            self._signal()

    def close(self) -> None:
        """Let the thread commit what is queued, and end. Does not wait for it."""
        self._is_closing = True
        if not self._is_signalled:
            self._signal()

    def unsaved(self) -> list[Queued]:
        """The records that the thread did not save, after it has failed."""
        return [*self._in_hand, *self._queue]

    def _signal(self) -> None:
        self._is_signalled = True
        self._wake_up.release()

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
        """Commit one batch; False when the queue has been closed and is empty."""
        last = len(self._in_hand)
        self._recent_batch = max(last, self._recent_batch * _FADING)
        self._in_hand = []
        self._wait_for_records()
        is_busy = self._recent_batch >= 2 and last < _SMALL_BATCH
        if is_busy and self._queue and time.monotonic() - self._committed < _BUSY_SECONDS:
            time.sleep(_GATHER_SECONDS)  # group commit: see the constants
            if _FLOWING < len(self._queue) < self._recent_batch:
                time.sleep(_FLOWING_SECONDS)
        self._in_hand = self._take_batch()
        if self._in_hand:
            # Before the write, not after it: a process that was paused may have lost the run meanwhile, and must not
            # acknowledge a record that the new owner's fence voids.
            self._check_location()
            if self._lock.lost:
                self._stop_fenced()
            began = time.monotonic()
            positions = self._appender.commit([record for record, _, _ in self._in_hand])
            # After `commit` the batch is synced. Nothing is acknowledged before this line.
            self._hooks.committed(self._in_hand, positions)
            self._committed = time.monotonic()
            if self._committed - began > SLOW_SECONDS:
                took = f"{self._committed - began:.1f} s for {len(self._in_hand)} records"
                self._hooks.tell("journal.commit_slow", f"{self._folder}: a commit took {took}")
        # In this order: nothing is queued after closing, so a queue that is empty then stays empty.
        return not self._is_closing or bool(self._queue)

    def _wait_for_records(self) -> None:
        """Sleep until a record is queued or the queue is closed. Meanwhile check the files once a second."""
        while not self._queue and not self._is_closing:
            if self._wake_up.acquire(timeout=CHECK_SECONDS):
                self._is_signalled = False  # before the look at the queue: what is queued later signals again
            else:
                self._check_location()

    def _take_batch(self) -> list[Queued]:
        """Take the next records out of the queue, as many as one commit may hold."""
        size = count = 0
        for record, _, _ in self._queue:  # the event loop may append meanwhile: this sees it, or the next batch does
            size += record.size
            count += 1
            if size >= _BATCH_BYTES or count >= _BATCH_RECORDS:
                break
        batch = self._queue[:count]
        del self._queue[:count]  # not a new list: the event loop may be about to append to this one
        return batch

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


_BUFFER_BYTES = 1 << 20


class CopyWriter:
    """The end of a journal that is made from the records of others. They keep their times and get new numbers.

    For copies that can be made again: nothing is locked or fenced, and records are synced only when a segment is full
    or `close` is called. `tip` says where the copy ends; what a crash left behind it is cut.
    """

    def __init__(self, folder: str, uid: str, tip: Fence | None = None) -> None:
        """`tip`: continue a copy that ends there; everything behind it is removed."""
        self._folder = folder
        self._uid = uid
        self._seed = seed_of(uid)
        self.tip = tip
        self._handle = -1
        self._buffer = bytearray()
        if tip is not None:
            self._reopen(tip)

    def append(self, record: Draft, at: str) -> int:
        """Write a record with this time, in a new segment if the last one is full; return its number."""
        time = at.encode()
        if self.tip is None or self.tip.bytes > SEGMENT_BYTES:
            self._begin_segment(time)
        return self._write(record, time)

    def flush(self) -> None:
        """Hand everything to the kernel, so that readers see it."""
        if self._buffer:
            write_all(OS_DISK, self._handle, [bytes(self._buffer)])
            self._buffer.clear()

    def close(self, *, sealed: bool) -> None:
        """`sealed`: nothing more will be appended."""
        if self._handle < 0 or self.tip is None:
            return
        self.flush()
        if sealed:
            OS_DISK.sync(self._handle)
        OS_DISK.close(self._handle)
        self._handle = -1
        if sealed:
            seal(OS_DISK, self._folder, self.tip.segment)

    def _begin_segment(self, at: bytes) -> None:
        number, first = (self.tip.segment + 1, self.tip.n + 1) if self.tip is not None else (1, 1)
        header = Segment(FORMAT, self._uid, number, 1, first, self.tip)
        self.close(sealed=True)
        self._handle = OS_DISK.create(segment_path(self._folder, number))
        self.tip = Fence(number, 0, first - 1, "")
        self._write(draft("segment", header), at)

    def _write(self, record: Draft, at: bytes) -> int:
        assert self.tip is not None
        buffers, _, self.tip = frame([record], self.tip, at, self._seed)
        for each in buffers:
            self._buffer += each
        if len(self._buffer) > _BUFFER_BYTES:
            self.flush()
        return self.tip.n

    def _reopen(self, tip: Fence) -> None:
        for name in os.listdir(self._folder):
            segment = parse_segment_name(name)
            if segment is not None and (
                segment.number > tip.segment or (segment.number == tip.segment and segment.sealed)
            ):
                os.unlink(os.path.join(self._folder, name))
        self._handle = OS_DISK.open(segment_path(self._folder, tip.segment), write=True)
        OS_DISK.truncate(self._handle, tip.bytes)
