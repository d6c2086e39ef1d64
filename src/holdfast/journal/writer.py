"""Saving from an event loop: records go through a capped queue to one thread, and come back acknowledged, in order.

Invariants: the loop never waits for the disk; an append is acknowledged only when it is durable; memory is bounded by
the queue's cap. When the thread ends, for whatever reason, every pending append raises, and so does every later one.
Once a second the thread checks that its files are still at their paths, and stops if they are not (`location`).
"""

import asyncio
import contextlib
import errno
import queue
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast.errors import (
    DamagedError,
    DiskError,
    FencedError,
    JournalError,
    StoppedError,
    UsageError,
    WriteFailedError,
)
from holdfast.journal.appender import Hooks
from holdfast.journal.disk import OS_DISK, Disk
from holdfast.journal.mirror.uploader import BEAT_SECONDS, Keeping, Mirror
from holdfast.journal.object_store import Objects
from holdfast.journal.opening import Opened, Request, open_to_write
from holdfast.journal.ownership.lease import read_lease, write_lease
from holdfast.journal.ownership.location import CHECK_SECONDS
from holdfast.journal.ownership.lock import WAIT_SECONDS, Lock
from holdfast.journal.paths import journal_folder, refuse_links
from holdfast.journal.positions import Damage, Position
from holdfast.journal.sealing import Sealer, seal
from holdfast.records import Draft, Fence
from holdfast.records.durations import Durations

QUEUE_BYTES = 64 * 1024 * 1024
_BATCH_BYTES = 8 * 1024 * 1024
_BATCH_RECORDS = 4096
SLOW_SECONDS = 1.0
"""A commit that takes longer is told of: the disk, not the model, holds up the run."""
_SPACE_PAUSE_SECONDS = 1.0
_TOLD_AGAIN_SECONDS = 60.0
_SMALL_BATCH = 64
_BUSY_SECONDS = 0.001
_GATHER_SECONDS = 0.0005
_FLOWING = 3
_FLOWING_SECONDS = 0.0035
_FADING = 0.9
"""When several records came at once and the next comes at their heels, wait a moment and sync more of them together. If
they flow, and fewer are here than came together of late, wait once more: a sync and the switch between threads cost as
much for one record as for fifty. A record that comes alone does not wait, and no group waits for more than itself."""

Tell = Callable[[str, str], None]
_Waiting = tuple[Draft, "asyncio.Future[Position] | None"]  # None: nobody waits for it


class Mirroring(msgspec.Struct, frozen=True):
    """Where the run's mirror is, and how it is kept. `wait`: nothing is acknowledged that is not durable there too."""

    objects: Objects
    epoch: int | None = None
    """The one that was claimed there; None if nobody else may write the run."""
    seconds: float = 5.0
    wait: bool = False
    beat_seconds: float = BEAT_SECONDS
    last_seconds: float = 60.0
    """How long the end of a run waits for what is not there yet."""


class Options(msgspec.Struct, frozen=True):
    """How a journal is written; none of it changes what is written. `tell` gets a dotted event name and a sentence,
    from any thread.
    """

    queue_bytes: int = QUEUE_BYTES
    lock_seconds: float = WAIT_SECONDS
    tell: Tell = lambda event, detail: None
    clock: Callable[[], float] = time.time
    disk: Disk = OS_DISK
    mirror: Mirroring | None = None


class _FullDisk:
    """Why the writer waits for free disk space; empty if it does not. Set by its thread, read by any."""

    reason = ""


class _Parts(msgspec.Struct, frozen=True):
    """What a writer is made of, once the journal is open."""

    run: str
    uid: str
    folder: str
    lock: Lock
    opened: Opened
    sealer: Sealer
    closing: threading.Event
    full_disk: _FullDisk


async def open_writer(run: str, request: Request, options: Options | None = None, lock: Lock | None = None) -> "Writer":
    """Lock, repair and open the journal in a run's folder, which exists. HeldError if another process writes it.

    A lock that the caller holds already is taken over, and released with the writer or if this fails.
    """
    chosen = options or Options()
    opening = asyncio.ensure_future(asyncio.to_thread(_open, run, request, chosen, lock))
    try:
        parts = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_abandon)  # the thread cannot be stopped half-way; let go when it is through
        raise
    return Writer(parts, chosen, asyncio.get_running_loop())


class Writer:
    """One run's journal, open to append. Belongs to the event loop that opened it."""

    def __init__(self, parts: _Parts, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self._parts = parts
        self._options = options
        self._loop = loop
        self._appender = parts.opened.appender
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._promised_bytes = 0
        self._waiting_room: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.commits = Durations()
        """How long whoever waited for a record to be durable has waited."""
        self._open = True
        self._stopped: StoppedError | None = None
        self._on_failure: list[Callable[[], None]] = []
        self._in_hand: list[_Waiting] = []
        self._checked = time.monotonic()
        self._check_soon = False
        self._committed = 0.0  # when the last batch was durable, on the monotonic clock
        self._together = 0.0  # how many records came together of late: the largest batch, fading
        self._ended: asyncio.Future[None] = loop.create_future()
        self._held: deque[tuple[_Waiting, Position]] = deque()  # durable here, and somebody waits for there too
        self.mirror = self._mirror_of(options.mirror)
        for number in parts.opened.unsealed:
            parts.sealer.submit(number)
        threading.Thread(target=self._work, name="holdfast-writer", daemon=True).start()

    @property
    def epoch(self) -> int:
        return self._parts.opened.epoch

    @property
    def lost(self) -> bool:
        """Whether this process may no longer write to the run's folder: another one has taken the run over, or the
        folder is not the one that was opened. From any thread.
        """
        if self._parts.lock.location.is_gone():
            self._check_soon = True  # the writer's thread reports it, before it commits anything
            return True
        return self._parts.lock.look()

    @property
    def lock_inode(self) -> int:
        return self._parts.lock.inode

    @property
    def disk_wait(self) -> str:
        """Why nothing is recorded at the moment, if the disk is full; else empty."""
        reason = self._parts.full_disk.reason
        return f"waits for free disk space ({reason})" if reason else ""

    def on_failure(self, call: Callable[[], None]) -> None:
        """Call it in the event loop when the writer stops by itself, also if nothing is being appended."""
        self._on_failure.append(call)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What opening found lost, and recorded."""
        return self._parts.opened.damage

    @property
    def acknowledged(self) -> Fence:
        """The last record that is durable."""
        assert self._appender.tip is not None
        return self._appender.tip

    def mirrored(self) -> tuple[int | None, float]:
        """The last record that is durable in the mirror, and for how many seconds there has been more; None without a
        mirror.
        """
        return (None, 0.0) if self.mirror is None else (self.mirror.mirrored, self.mirror.behind_seconds)

    async def append(self, record: Draft) -> Position:
        """Save a record; returns when it is durable. Waits first if too much is queued.

        Cancelling while it waits for room saves nothing; cancelling later saves the record without telling anyone.
        """
        size = record.size
        if not self._open:
            raise self._refusal()
        began = time.monotonic()
        if self._waiting_room or not self._fits(size):
            await self._room_for(size)
            if not self._open:
                raise self._refusal()
        acknowledged: asyncio.Future[Position] = self._loop.create_future()
        self._queued_bytes += size
        self._queue.put((record, acknowledged))
        position = await acknowledged
        self.commits.add(time.monotonic() - began)
        return position

    def append_soon(self, record: Draft) -> None:
        """Save a record without waiting, behind everything queued so far; lost if the writer has stopped.

        It counts as queued, so that whoever appends next waits for room.
        """
        if self._open:
            self._queued_bytes += record.size
            self._queue.put((record, None))

    async def close(self, *, seal_last: bool = False) -> None:
        """Save what is queued, let sealing finish, let go of the lock. StoppedError if the writer had failed, or if the
        mirror tells only now that the run is another's: what was saved since then does not count.
        """
        if not self._parts.closing.is_set():
            self._open = False
            self._parts.closing.set()
            self._queue.put(None)
            self._admit()  # those who still wait for room are told that it is closed
        await asyncio.shield(self._ended)
        await asyncio.to_thread(self._let_go, seal_last and self._stopped is None)
        self._give_up_held()
        if self._stopped is None and self._parts.lock.lost:
            self._stopped = self._fenced()
        if self._stopped is not None:
            raise self._stopped

    # The event loop's side: counts bytes, wakes those who wait.

    def _fits(self, size: int) -> bool:
        taken = self._queued_bytes + self._promised_bytes
        return taken == 0 or taken + size <= self._options.queue_bytes

    def _refusal(self) -> StoppedError:
        """A new one for each who is told: an exception that is raised twice gathers both tracebacks."""
        if self._stopped is None:
            return StoppedError(f"{self._parts.folder}: the journal is closed")
        return type(self._stopped)(str(self._stopped))

    async def _room_for(self, size: int) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting_room.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if (size, turn) in self._waiting_room:
                self._waiting_room.remove((size, turn))
            self._loop.call_soon(self._admit)
            raise
        self._promised_bytes -= size

    def _admit(self) -> None:
        """Wake as many as there is room for, in order; what they will queue is counted from now on."""
        while self._waiting_room:
            size, turn = self._waiting_room[0]
            if self._open and not self._fits(size):
                return
            self._waiting_room.popleft()
            if not turn.done():
                self._promised_bytes += size
                turn.set_result(None)

    def _hold(self, batch: Sequence[_Waiting], positions: Sequence[Position]) -> None:
        self._held.extend(zip(batch, positions, strict=True))
        assert self.mirror is not None
        self.mirror.nudge()
        self._release(self.mirror.mirrored)
        if self._parts.lock.lost:
            self._give_up_held()

    def _release(self, n: int) -> None:
        """What is durable in the mirror too."""
        there: list[tuple[_Waiting, Position]] = []
        while self._held and self._held[0][1].n <= n:
            there.append(self._held.popleft())
        if there:
            self._acknowledge([waiting for waiting, _ in there], [position for _, position in there])

    def _give_up_held(self) -> None:
        """What the mirror does not have is not acknowledged to those who wait for it to be there."""
        if self.mirror is not None:
            self._release(self.mirror.mirrored)
        for (record, acknowledged), _ in self._held:
            self._queued_bytes -= record.size
            if acknowledged is not None and not acknowledged.done():
                acknowledged.set_exception(
                    self._fenced()
                    if self._parts.lock.lost
                    else StoppedError(f"{self._parts.folder}: the last records are saved here, but not in the mirror")
                )
        self._held.clear()

    def _fenced(self) -> FencedError:
        because = self._parts.lock.lost_because
        return FencedError(because or f"{self._parts.folder} was taken over by another process: this one stops")

    def _tell_lost(self) -> None:
        because = self._parts.lock.lost_because
        self._options.tell("lease.lost", because or f"{self._parts.folder}: another process has taken the run over")

    def hurry(self) -> None:
        """Whoever closes the journal does not wait for the mirror any longer: the next start sends the rest."""
        if self.mirror is not None:
            self.mirror.hurry()

    def _lose(self) -> None:
        """The mirror's thread calls this when another machine has the run, or its mirror was removed. The writer's
        thread sees it at its next commit.
        """
        self._parts.lock.lose(self.mirror.lost_because if self.mirror is not None else "")
        self._in_loop(self._give_up_held)

    def _acknowledge(self, batch: Sequence[_Waiting], positions: Sequence[Position]) -> None:
        for (record, acknowledged), position in zip(batch, positions, strict=True):
            self._queued_bytes -= record.size
            if acknowledged is not None and not acknowledged.done():
                acknowledged.set_result(position)
        self._admit()

    def _end(self, failure: JournalError | None) -> None:
        self._open = False
        if failure is not None:
            self._stopped = failure if isinstance(failure, StoppedError) else StoppedError(str(failure))
            for _, acknowledged in self._in_hand + self._drain():
                if acknowledged is not None and not acknowledged.done():
                    acknowledged.set_exception(self._refusal())
            self._give_up_held()
            for call in self._on_failure:
                call()
        self._admit()
        self._ended.set_result(None)

    def _drain(self) -> list[_Waiting]:
        left = []
        with contextlib.suppress(queue.Empty):
            while True:
                waiting = self._queue.get_nowait()
                if waiting is not None:
                    left.append(waiting)
        return left

    # The thread's side: takes what is queued, makes it durable, tells the loop.

    def _work(self) -> None:
        failure: JournalError | None = None
        try:
            while self._commit_next():
                pass
        except JournalError as error:
            failure = error
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread, those who wait must hear of it
            kind = WriteFailedError if isinstance(error, OSError) else StoppedError
            failure = kind(f"{self._parts.folder}: the writer failed ({error!r}); everything acknowledged is kept")
        with contextlib.suppress(OSError):  # everything acknowledged was synced
            self._appender.close()
        if failure is not None:
            self._options.tell("journal.stopped", str(failure))
        self._in_loop(self._end, failure)

    def _commit_next(self) -> bool:
        """Commit one batch; False when the queue has been closed."""
        last = len(self._in_hand)
        self._together = max(last, self._together * _FADING)
        self._in_hand = []
        size = 0
        waiting = self._next_waiting()
        flows = self._together >= 2 and last < _SMALL_BATCH
        if flows and waiting is not None and time.monotonic() - self._committed < _BUSY_SECONDS:
            time.sleep(_GATHER_SECONDS)
            if _FLOWING <= self._queue.qsize() < self._together - 1:
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
            self._check_location()  # a process that was stopped for a while must check before it writes
            if self._parts.lock.lost:
                self._tell_lost()
                raise self._fenced()
            began = time.monotonic()
            positions = self._appender.commit([record for record, _ in self._in_hand])
            self._parts.full_disk.reason = ""
            waits = self._options.mirror is not None and self._options.mirror.wait
            self._in_loop(self._hold if waits else self._acknowledge, self._in_hand, positions)
            self._committed = time.monotonic()
            if self._committed - began > SLOW_SECONDS:
                took = f"{self._committed - began:.1f} s for {len(self._in_hand)} records"
                self._options.tell("journal.commit_slow", f"{self._parts.folder}: a commit took {took}")
        return waiting is not None

    def _next_waiting(self) -> _Waiting | None:
        """The next record; until one comes, check the files once a second."""
        while True:
            try:
                return self._queue.get(timeout=CHECK_SECONDS)
            except queue.Empty:
                self._check_location()

    def _check_location(self) -> None:
        """Whether the run was taken over comes first: the new writer seals, and so removes, our segment."""
        if not self._check_soon and time.monotonic() - self._checked < CHECK_SECONDS:
            return
        if self._parts.lock.look():
            self._tell_lost()
            raise self._fenced()
        self._parts.lock.location.check(self._appender.hot_file())
        self._checked = time.monotonic()

    def _in_loop(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _let_go(self, seal_last: bool) -> None:
        self._parts.sealer.finish()
        if seal_last:
            try:
                seal(self._options.disk, self._parts.folder, self.acknowledged.segment)
            except (OSError, JournalError) as error:
                self._options.tell("journal.seal_failed", str(error))
        self._let_mirror_go()
        self._parts.lock.release()

    def _let_mirror_go(self) -> None:
        wanted, run = self._options.mirror, self._parts.run
        if self.mirror is None or wanted is None:
            return
        done = self.mirror.close(wanted.last_seconds)
        if self._parts.lock.lost:
            return
        last, lease = self.acknowledged.n, read_lease(run)
        if lease is not None:  # the watermark, as it is at the end
            write_lease(run, msgspec.structs.replace(lease, mirrored=self.mirror.mirrored, mirror_behind=0.0))
        if not done:
            left = f"{last - self.mirror.mirrored} of {last} records are not in {wanted.objects.url} yet"
            again = f"holdfast resume {shlex.quote(run)}"
            self._options.tell("mirror.behind", f"{left}; they are safe here, and the next start sends them: {again}")

    def _mirror_of(self, wanted: Mirroring | None) -> Mirror | None:
        if wanted is None:
            return None
        parts = self._parts
        keeping = Keeping(
            tip=lambda: self.acknowledged,
            tell=self._options.tell,
            lost=self._lose,
            confirmed=lambda n: self._in_loop(self._release, n),
            waits=wanted.wait,
            seconds=wanted.seconds,
            beat_seconds=wanted.beat_seconds,
        )
        mirror = Mirror(parts.run, parts.uid, wanted.objects, wanted.epoch, keeping)
        mirror.start()
        return mirror


def _open(run: str, request: Request, options: Options, held: Lock | None) -> _Parts:
    with _naming(run):
        lock = held or Lock(run, options.lock_seconds)
    folder = journal_folder(run)
    closing = threading.Event()

    full_disk = _FullDisk()
    told_at = -_TOLD_AGAIN_SECONDS

    def wait_for_space(error: OSError) -> None:
        nonlocal told_at
        full_disk.reason = error.strerror or str(error)
        if time.monotonic() - told_at >= _TOLD_AGAIN_SECONDS:
            told_at = time.monotonic()
            advice = "free some space, and it goes on by itself; nothing is lost meanwhile, nor by stopping it"
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
            return  # that the disk is full is told by itself
        options.tell("journal.poisoned", f"{folder}: segment {number}: {error.strerror}; going on in a new segment")

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
    """Turn what the operating system says into an error that names the run. Permissions are the user's to change, links
    in the run are damage (and name themselves); anything else that keeps a journal from being opened is the storage's.
    """
    try:
        yield
    except DamagedError:
        raise
    except OSError as error:
        message = f"{run} cannot be opened to write: {error.strerror or error}; nothing was changed"
        raise (UsageError if isinstance(error, PermissionError) else DiskError)(message) from error


def _abandon(opening: "asyncio.Future[_Parts]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        parts = opening.result()
        parts.opened.appender.close()
        parts.sealer.finish()
        parts.lock.release()
