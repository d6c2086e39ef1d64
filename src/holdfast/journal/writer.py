"""The journal's writer: saves records from an event loop through a bounded queue and one thread (`appender`).

The thread takes what is queued, writes it and calls sync once; then the event loop acknowledges the records in order.
Invariants:

- The event loop never waits for the disk.
- An append is acknowledged only when its record is durable (with `mirror.wait`: durable in the mirror too).
- Memory is bounded by the size of the queue.
- When the thread ends, for whatever reason, every pending append raises, and so does every later one.

A crash loses only records that were not acknowledged.
"""

import asyncio
import contextlib
import errno
import shlex
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from holdfast.errors import (
    DamagedError,
    DiskError,
    JournalError,
    StoppedError,
    UsageError,
    WriteFailedError,
)
from holdfast.journal.appender import Hooks, Queued, ThreadHooks, WriterThread, fenced_error
from holdfast.journal.disk import OS_DISK, Disk
from holdfast.journal.mirror.heartbeat import BEAT_SECONDS
from holdfast.journal.mirror.uploader import MirrorUploader, UploadSettings
from holdfast.journal.object_store import Objects
from holdfast.journal.opening import Opened, OpenRequest, open_to_write
from holdfast.journal.ownership.lease import read_lease, write_lease
from holdfast.journal.ownership.lock import WAIT_SECONDS, Lock
from holdfast.journal.paths import is_shard_folder, journal_folder, refuse_links
from holdfast.journal.positions import Damage
from holdfast.journal.sealing import Sealer, seal
from holdfast.records import Draft, Durations, Fence, Position

QUEUE_BYTES = 64 * 1024 * 1024
_SPACE_PAUSE_SECONDS = 1.0
_REPORT_AGAIN_SECONDS = 60.0

Tell = Callable[[str, str], None]


class MirrorOptions(msgspec.Struct, frozen=True):
    """The run's mirror and its settings. `wait`: acknowledge a record only when it is durable in the mirror too."""

    objects: Objects
    epoch: int | None = None
    """The epoch that was claimed in the mirror; None if the mirror is not shared (`mirror.exclusive: false`)."""
    seconds: float = 5.0
    wait: bool = False
    beat_seconds: float = BEAT_SECONDS
    last_seconds: float = 60.0
    """How long `close` waits for the last records to reach the mirror."""


class WriterOptions(msgspec.Struct, frozen=True):
    """Settings of a writer. None of them changes the bytes that are written. `tell` reports an event: it receives a
    dotted name and a sentence, from any thread.
    """

    queue_bytes: int = QUEUE_BYTES
    lock_seconds: float = WAIT_SECONDS
    tell: Tell = lambda event, detail: None
    clock: Callable[[], float] = time.time
    disk: Disk = OS_DISK
    mirror: MirrorOptions | None = None


class _FullDisk:
    """Why the writer waits for free disk space; empty if it does not. Set by the writer's thread, read by any."""

    reason = ""


class _Parts(msgspec.Struct, frozen=True):
    """Everything that `_open` creates in its thread and the writer owns from then on."""

    run: str
    uid: str
    folder: str
    lock: Lock
    opened: Opened
    sealer: Sealer
    closing: threading.Event
    full_disk: _FullDisk


async def open_writer(
    run: str, request: OpenRequest, options: WriterOptions | None = None, lock: Lock | None = None
) -> "Writer":
    """Lock, repair and open the journal in an existing run folder. HeldError if another process writes it.

    `lock`: one that the caller already holds. The writer releases it when it closes, and also if opening fails.
    """
    settings = options or WriterOptions()
    opening = asyncio.ensure_future(asyncio.to_thread(_open, run, request, settings, lock))
    try:
        parts = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_abandon)  # the thread cannot be interrupted; release everything when it is done
        raise
    return Writer(parts, settings, asyncio.get_running_loop())


class _QueueSpace:
    """Counts the queued bytes, and lets callers wait in order until theirs fit. Used in the event loop only."""

    def __init__(self, bytes_max: int, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = True
        self._taken = 0
        self._bytes_max = bytes_max
        self._loop = loop
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, size: int) -> bool:
        """Take room for a record, if there is some; else `await wait()` for it. Not if others wait: a small record must
        not overtake a large one.
        """
        taken = self._taken + size
        if self._waiters or not self.is_open or (taken > self._bytes_max and self._taken):
            return False
        self._taken = taken
        return True

    async def wait(self, size: int) -> None:
        """Wait for room and take it. Also returns when the journal closes, so the caller checks `is_open`."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._taken -= size  # it was admitted, and cancelled before it ran: give its room back
            elif (size, turn) in self._waiters:
                self._waiters.remove((size, turn))
            self._loop.call_soon(self.admit)  # the ones behind it may fit now
            raise

    def add(self, size: int) -> None:
        """Count a record that does not wait for room; also beyond the limit."""
        self._taken += size

    def give_back(self, size: int) -> None:
        self._taken -= size
        self.admit()

    def admit(self) -> None:
        """Wake as many waiting callers as fit, in order. Each has its room at once, before it runs."""
        while self._waiters:
            size, turn = self._waiters[0]
            if self.is_open and not self._fits(size):
                return
            self._waiters.popleft()
            if not turn.done():
                self._taken += size
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return self._taken + size <= self._bytes_max or not self._taken  # an empty queue takes a record of any size


class Writer:
    """One run's journal, open to append. Belongs to the event loop that opened it."""

    def __init__(self, parts: _Parts, options: WriterOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._parts = parts
        self._options = options
        self._loop = loop
        self._appender = parts.opened.appender
        self._space = _QueueSpace(options.queue_bytes, loop)
        self.commits = Durations()
        """How long records took to become durable: all records of a commit count like the oldest of them."""
        self._stopped: StoppedError | None = None
        self._on_failure: list[Callable[[], None]] = []
        self._ended: asyncio.Future[None] = loop.create_future()
        self._held: deque[tuple[Queued, Position]] = deque()  # durable here, not yet in the mirror
        hooks = ThreadHooks(self._committed, lambda failure: self._in_loop(self._end, failure), options.tell)
        self._thread = WriterThread(self._appender, parts.lock, parts.folder, hooks)
        self.mirror = self._start_mirror(options.mirror)
        for number in parts.opened.unsealed:
            parts.sealer.submit(number)
        self._thread.start()

    @property
    def epoch(self) -> int:
        return self._parts.opened.epoch

    @property
    def may_send(self) -> Callable[[], bool] | None:
        """A function that tells whether this process certainly owns the run; None if it does until it ends.

        Workers of other machines may know a shard only from its mirror, and take it over there.
        """
        lock, mirror = self._parts.lock, self.mirror
        if mirror is not None and self._is_claimed_shard:
            return lambda: lock.is_confirmed and mirror.is_confirmed
        return (lambda: lock.is_confirmed) if lock.can_expire else None

    @property
    def _is_claimed_shard(self) -> bool:
        """Whether this is a shard that is claimed in a mirror."""
        settings = self._options.mirror
        return settings is not None and settings.epoch is not None and is_shard_folder(self._parts.run)

    @property
    def lost(self) -> bool:
        """Whether this process may no longer write: another one has taken the run over, or the run folder is not the
        one that was opened. Safe from any thread.
        """
        if self._parts.lock.location.is_gone():
            self._thread.check_soon = True  # the writer's thread stops and reports it before its next commit
            return True
        return self._parts.lock.look()

    @property
    def lock_inode(self) -> int:
        return self._parts.lock.inode

    @property
    def disk_wait(self) -> str:
        """Why nothing is saved at the moment, if the disk is full; else empty."""
        reason = self._parts.full_disk.reason
        return f"waits for free disk space ({reason})" if reason else ""

    def on_failure(self, call: Callable[[], None]) -> None:
        """Register a function to call in the event loop when the writer fails, also if nothing is being appended."""
        self._on_failure.append(call)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The losses that opening found and recorded."""
        return self._parts.opened.damage

    @property
    def acknowledged(self) -> Fence:
        """The last record that is durable."""
        assert self._appender.tip is not None
        return self._appender.tip

    def mirrored(self) -> tuple[int | None, float]:
        """The last record that is durable in the mirror (None without a mirror), and for how many seconds the mirror
        has been incomplete.
        """
        return (None, 0.0) if self.mirror is None else (self.mirror.mirrored, self.mirror.behind_seconds)

    def append(self, record: Draft) -> Awaitable[Position]:
        """Save a record. Await the result: it is the position, once the record is durable.

        Waits first if the queue is full. Cancelling it then saves nothing. Cancelled later, the record is still saved.
        Not `async`: usually there is room, and then the caller awaits the acknowledgement itself.
        """
        if not self._space.take(record.size):
            return self._append_later(record)
        acknowledged: asyncio.Future[Position] = asyncio.Future(loop=self._loop)
        self._thread.put((record, acknowledged, time.monotonic()))
        return acknowledged

    async def _append_later(self, record: Draft) -> Position:
        """Wait for room in the queue, then append."""
        began = time.monotonic()
        if self._space.is_open:
            await self._space.wait(record.size)
        if not self._space.is_open:
            raise self._refusal()
        acknowledged: asyncio.Future[Position] = asyncio.Future(loop=self._loop)
        self._thread.put((record, acknowledged, began))
        return await acknowledged

    def append_soon(self, record: Draft) -> None:
        """Queue a record without waiting for it to be durable. It is dropped if the writer has stopped.

        It may exceed the queue's limit, but it is counted, so the next `append` waits.
        """
        if self._space.is_open:
            self._space.add(record.size)
            self._thread.put((record, None, time.monotonic()))

    async def close(self, *, seal_last: bool = False) -> None:
        """Save what is queued, finish sealing and mirroring, release the lock.

        StoppedError if the writer had failed. FencedError if the mirror shows only now that another process owns the
        run: then the records since the takeover are void.
        """
        if not self._parts.closing.is_set():
            self._space.is_open = False
            self._parts.closing.set()
            self._thread.close()
            self._space.admit()  # callers that still wait for space wake up and raise
        await asyncio.shield(self._ended)
        await asyncio.to_thread(self._release_all, seal_last and self._stopped is None)
        self._fail_held()
        if self._stopped is None and self._parts.lock.lost:
            self._stopped = fenced_error(self._parts.lock, self._parts.folder)
        if self._stopped is not None:
            raise self._stopped

    # In the event loop: acknowledge records, raise in callers.

    def _refusal(self) -> StoppedError:
        """A new error for each caller: an exception that is raised twice collects both tracebacks."""
        if self._stopped is None:
            return StoppedError(f"{self._parts.folder}: the journal is closed")
        return type(self._stopped)(str(self._stopped))

    def _hold(self, batch: Sequence[Queued], positions: Sequence[Position]) -> None:
        """Keep a locally durable batch unacknowledged until the mirror has it too (`mirror.wait`)."""
        self._held.extend(zip(batch, positions, strict=True))
        assert self.mirror is not None
        self.mirror.nudge()
        self._release(self.mirror.mirrored)
        if self._parts.lock.lost:
            self._fail_held()

    def _release(self, n: int) -> None:
        """Acknowledge the held records up to number `n`: they are durable in the mirror."""
        mirrored: list[tuple[Queued, Position]] = []
        while self._held and self._held[0][1].n <= n:
            mirrored.append(self._held.popleft())
        if mirrored:
            self._acknowledge([waiting for waiting, _ in mirrored], [position for _, position in mirrored])

    def _fail_held(self) -> None:
        """Raise in the callers whose records will not reach the mirror any more."""
        if self.mirror is not None:
            self._release(self.mirror.mirrored)
        for (record, acknowledged, _), _ in self._held:
            self._space.give_back(record.size)
            if acknowledged is not None and not acknowledged.done():
                acknowledged.set_exception(
                    fenced_error(self._parts.lock, self._parts.folder)
                    if self._parts.lock.lost
                    else StoppedError(f"{self._parts.folder}: the last records are saved here, but not in the mirror")
                )
        self._held.clear()

    def stop_waiting(self) -> None:
        """Make `close` stop waiting for the mirror. The next start of the run sends the rest."""
        if self.mirror is not None:
            self.mirror.stop_waiting()

    def _lose(self) -> None:
        """Called by the mirror's thread when another machine owns the run, or the mirror was removed. The writer's
        thread sees it at its next commit.
        """
        self._parts.lock.lose(self.mirror.lost_because if self.mirror is not None else "")
        self._in_loop(self._fail_held)

    def _acknowledge(self, batch: Sequence[Queued], positions: Sequence[Position]) -> None:
        size = 0
        for (record, acknowledged, _), position in zip(batch, positions, strict=True):
            size += record.size
            if acknowledged is not None and not acknowledged.done():
                acknowledged.set_result(position)
        self.commits.add(time.monotonic() - batch[0][2], len(batch))
        self._space.give_back(size)

    def _end(self, failure: JournalError | None) -> None:
        self._space.is_open = False
        if failure is not None:
            self._stopped = failure if isinstance(failure, StoppedError) else StoppedError(str(failure))
            for _, acknowledged, _ in self._thread.unsaved():
                if acknowledged is not None and not acknowledged.done():
                    acknowledged.set_exception(self._refusal())
            self._fail_held()
            for call in self._on_failure:
                call()
        self._space.admit()
        self._ended.set_result(None)

    # In other threads.

    def _committed(self, batch: Sequence[Queued], positions: Sequence[Position]) -> None:
        """Called by the writer's thread when a batch is durable."""
        self._parts.full_disk.reason = ""
        waits = self._options.mirror is not None and self._options.mirror.wait
        self._in_loop(self._hold if waits else self._acknowledge, batch, positions)

    def _in_loop(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _release_all(self, seal_last: bool) -> None:
        """Finish sealing, then the mirror, then release the lock. The lock comes last: the others still write."""
        self._parts.sealer.finish()
        if seal_last:
            try:
                seal(self._options.disk, self._parts.folder, self.acknowledged.segment)
            except (OSError, JournalError) as error:
                self._options.tell("journal.seal_failed", str(error))
        self._close_mirror()
        self._parts.lock.release()

    def _close_mirror(self) -> None:
        """Wait until the mirror is complete, at most `last_seconds`, and report what is missing then."""
        settings, run = self._options.mirror, self._parts.run
        if self.mirror is None or settings is None:
            return
        done = self.mirror.close(settings.last_seconds)
        if self._parts.lock.lost:
            return
        last, lease = self.acknowledged.n, read_lease(run)
        if lease is not None:  # so that the last lease shows the final watermark
            write_lease(run, msgspec.structs.replace(lease, mirrored=self.mirror.mirrored, mirror_behind=0.0))
        if not done:
            left = f"{last - self.mirror.mirrored} of {last} records are not in {settings.objects.url} yet"
            again = f"holdfast resume {shlex.quote(run)}"
            self._options.tell("mirror.behind", f"{left}; they are safe here, and the next start sends them: {again}")

    def _start_mirror(self, settings: MirrorOptions | None) -> MirrorUploader | None:
        if settings is None:
            return None
        parts = self._parts
        keeping = UploadSettings(
            tip=lambda: self.acknowledged,
            tell=self._options.tell,
            lost=self._lose,
            confirmed=lambda n: self._in_loop(self._release, n),
            waits=settings.wait,
            seconds=settings.seconds,
            beat_seconds=settings.beat_seconds,
        )
        mirror = MirrorUploader(parts.run, parts.uid, settings.objects, settings.epoch, keeping)
        mirror.start()
        if self._is_claimed_shard:
            mirror.nudge()  # requests wait for the first beat
        return mirror


def _open(run: str, request: OpenRequest, options: WriterOptions, held: Lock | None) -> _Parts:
    """Take the lock, start the sealer, repair and open the journal. Runs in a thread, because it reads and syncs."""
    with _naming(run):
        lock = held or Lock(run, options.lock_seconds)
    folder = journal_folder(run)
    closing = threading.Event()

    full_disk = _FullDisk()
    reported_at = -_REPORT_AGAIN_SECONDS

    def wait_for_space(error: OSError) -> None:
        nonlocal reported_at
        full_disk.reason = error.strerror or str(error)
        if time.monotonic() - reported_at >= _REPORT_AGAIN_SECONDS:
            reported_at = time.monotonic()
            advice = "free some space, and the run continues by itself; nothing is lost, also if you stop it"
            options.tell("journal.disk_full", f"{folder}: {error.strerror}; {advice}")
        lock.location.check()
        if closing.wait(_SPACE_PAUSE_SECONDS):
            raise WriteFailedError(
                f"{folder}: {error.strerror}; everything acknowledged is kept: free some space and resume"
            )

    def seal_failed(number: int, error: Exception) -> None:
        options.tell("journal.seal_failed", f"{folder}: segment {number} stays uncompressed: {error}")

    def poisoned(number: int, error: OSError) -> None:
        if error.errno == errno.ENOSPC:
            return  # a full disk has its own event
        options.tell("journal.poisoned", f"{folder}: segment {number}: {error.strerror}; continuing in a new segment")

    sealer = Sealer(options.disk, folder, seal_failed)
    hooks = Hooks(options.clock, sealer.submit, poisoned, wait_for_space)
    try:
        with _naming(run):
            refuse_links(run)
            options.disk.make_folder(folder)
            lock.location.watch_folder("journal folder", folder)
            opened = open_to_write(options.disk, folder, request, hooks)
    except BaseException:
        sealer.finish()
        lock.release()
        raise
    full_disk.reason = ""
    return _Parts(run, request.uid, folder, lock, opened, sealer, closing, full_disk)


@contextlib.contextmanager
def _naming(run: str) -> Iterator[None]:
    """Turn an OSError into an error that names the run: UsageError for missing permissions, which the user can change,
    DiskError for anything else. Links inside the run are damage and have their own message.
    """
    try:
        yield
    except DamagedError:
        raise
    except OSError as error:
        message = f"{run} cannot be opened to write: {error.strerror or error}; nothing was changed"
        raise (UsageError if isinstance(error, PermissionError) else DiskError)(message) from error


def _abandon(opening: "asyncio.Future[_Parts]") -> None:
    """Release everything that a cancelled `open_writer` has opened."""
    if not opening.cancelled() and opening.exception() is None:
        parts = opening.result()
        parts.opened.appender.close()
        parts.sealer.finish()
        parts.lock.release()
