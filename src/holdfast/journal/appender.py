"""The save path: numbers, frames, writes and syncs records, one batch at a time, in the writer's thread.

Invariant: `tip` is the last record known to be durable, and nothing beyond it is acknowledged. Appending reads nothing.

A failed write or sync poisons the segment: its handle is closed and never synced again, because after a failed sync the
kernel may have dropped the dirty pages, and the next sync would report success without them. The batch is written again
to a new segment, whose fence (`prev`) is `tip`. So whatever the poisoned segment holds behind `tip` is void.

A crash leaves at most unacknowledged bytes at the end of the last segment, and temporary files. `opening` repairs both.
"""

import contextlib
import errno
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.errors import FencedError, WriteFailedError
from holdfast.journal.disk import Disk, remove_if_there, write_all
from holdfast.journal.paths import segment_path
from holdfast.journal.positions import Position
from holdfast.records import FORMAT, SEGMENT, Draft, Fence, Segment, draft, frame, seed_of

SEGMENT_BYTES = 64 * 1024 * 1024
_COPY_BYTES_MAX = 4 * 1024  # below this, joining buffers is cheaper than handing them to the kernel one by one
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


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
        number, offset, n, check = tip.segment, tip.bytes, tip.n, tip.x
        buffers: list[bytes] = []
        small: list[bytes] = []
        positions = []
        for record in batch:
            n += 1
            head, tail, check = frame(record, n, at, self._seed)
            positions.append(Position(n, number, offset))
            offset += len(head) + len(record.d) + len(tail)
            if len(record.d) <= _COPY_BYTES_MAX:
                small += (head, record.d, tail)
                continue
            small.append(head)
            buffers += (b"".join(small), record.d)
            small = [tail]
        buffers.append(b"".join(small))
        return buffers, positions, Fence(number, offset, n, check)

    def _start(self, number: int, opening: Sequence[Draft]) -> None:
        """Create a segment. Its header and opening records are synced under a temporary name before it gets its own.

        FencedError if its name exists: another writer has started this segment. A crash before `publish` leaves a
        temporary file that the next opening removes; after it, an empty but valid segment.
        """
        first = self.tip.n + 1 if self.tip else 1
        header = Segment(FORMAT, self._uid, number, self._epoch, first, self.tip)
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
