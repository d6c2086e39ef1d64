"""The uploader: a thread that copies a run to its mirror in an object store while the run continues.

Only acknowledged bytes are uploaded, cut at record ends, as objects that never change. Order of uploads:

- Files that records refer to (plan, data, blobs) before the records.
- spec.yaml and started.jsonl, which repeat the content of records, after them.
- A sealed segment is read back before its chunks are deleted.

There is no separate backlog: the journal on disk is the backlog. Invariant: record `mirrored` and everything before it
are durable in the store. If the store fails, the run continues and the upload is retried. Only a greater epoch in the
store, or a tombstone of the run, stops the run. A crash leaves an incomplete mirror; the next start completes it.
"""

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable

import msgspec
import xxhash

from holdfast.errors import FencedError, JournalError, StoreError, describe_error
from holdfast.files import NotAFileError, is_file, is_folder, list_names, open_file, status_of
from holdfast.journal.disk import OS_DISK
from holdfast.journal.mirror.heartbeat import BEAT_SECONDS, Heartbeat
from holdfast.journal.mirror.pieces import (
    BEHIND_RECORDS,
    PIECES,
    chunk_name,
    is_original,
    last_number,
    parse_piece,
    sealed_name,
)
from holdfast.journal.object_store import Objects
from holdfast.journal.paths import segment_path
from holdfast.journal.scan import PIECE_BYTES
from holdfast.journal.segments import HeaderCache, SegmentFile, fence_between, list_chain
from holdfast.records import Fence

CHUNK_BYTES = 8 << 20
_BACKOFF_SECONDS_MAX = 60.0
_LOOKS_MAX = 100
_WHAT_NEXT = {
    False: "the run continues, and the upload is retried",
    True: "the run waits for the mirror (mirror.wait), and the upload is retried",
}
_SILENT_SECONDS = 2.0
"""If `close` has to wait longer, it reports what it waits for."""


class UploadSettings(msgspec.Struct, frozen=True):
    """Settings of an uploader, and callbacks that its thread calls. `tip` returns the last acknowledged record."""

    tip: Callable[[], Fence]
    tell: Callable[[str, str], None] = lambda event, message: None
    lost: Callable[[], None] = lambda: None
    """A greater epoch was found: this process has lost the run."""
    confirmed: Callable[[int], None] = lambda n: None
    """Everything up to this number is durable in the mirror."""
    waits: bool = False
    """The writer acknowledges a record only when it is in the mirror."""
    seconds: float = 5.0
    beat_seconds: float = BEAT_SECONDS
    chunk_bytes: int = CHUNK_BYTES


class _Sent(msgspec.Struct):
    """What the store has of one segment: the first `bytes` bytes in chunks, or the sealed file."""

    bytes: int = 0
    chunks: set[str] = msgspec.field(default_factory=set)
    sealed: bool = False
    unread: bool = False
    """The sealed object exists, but it is not known whether it was read back."""


class MirrorUploader:
    """Uploads one run, from `start` to `close`. `epoch` None: the mirror has no claims (`mirror.exclusive: false`)."""

    def __init__(self, run: str, uid: str, objects: Objects, epoch: int | None, keeping: UploadSettings) -> None:
        self.mirrored = 0
        self._run = run
        self._journal = os.path.join(run, PIECES)
        self._uid = uid
        self._objects = objects
        self._heartbeat = Heartbeat(run, uid, objects, epoch, keeping.beat_seconds, lambda: self.mirrored)
        # An owner that pauses for longer would look dead, and would find out late that it has lost the run.
        self._pause_seconds_max = _BACKOFF_SECONDS_MAX if epoch is None else keeping.beat_seconds
        self._keeping = keeping
        self._headers: HeaderCache = {}
        self._segments: dict[tuple[int, int], _Sent] = {}
        self._files: dict[str, tuple[int, int] | None] | None = None  # files in the store; None: not listed yet
        self._put: dict[str, tuple[int, int]] = {}  # files that this process has uploaded successfully
        self._blobs_seen: tuple[int, int] = (0, 0)
        self._caught_up_at = time.monotonic()
        self.trouble = ""
        """The last error of the store; empty if the last upload succeeded."""
        self.lost_because = ""
        """Why this process must not write the run any longer; empty while it may."""
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._hurried = False
        self._gone = False
        self._losing = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="holdfast-mirror", daemon=True)

    def start(self) -> None:
        self._heartbeat.start(self._lose)
        self._thread.start()

    @property
    def is_confirmed(self) -> bool:
        """Whether it is certain that no other process may have taken the run over. Does no I/O."""
        return self._heartbeat.is_confirmed

    def nudge(self) -> None:
        """Upload at once: there is a new record, and a caller waits for it."""
        self._wake.set()

    @property
    def behind_seconds(self) -> float:
        """For how many seconds the mirror has been incomplete."""
        return 0.0 if self.mirrored >= self._keeping.tip().n else time.monotonic() - self._caught_up_at

    def close(self, seconds: float) -> bool:
        """Upload the rest, for at most `seconds`, and end the claim. False if the mirror is incomplete."""
        self._closing.set()
        self._wake.set()
        if not self._ended.wait(min(seconds, _SILENT_SECONDS)) and seconds > _SILENT_SECONDS:
            missing = self._keeping.tip().n - self.mirrored
            if missing > 0:
                what = f"{self._objects.url} does not have {missing} records yet"
                self._keeping.tell("mirror.waiting", f"{what}; waiting for at most {seconds:g} s, they are safe here")
            self._ended.wait(seconds - _SILENT_SECONDS)
        through = self._ended.is_set() and not self._hurried
        done = through and not self.trouble and self.mirrored >= self._keeping.tip().n
        self._gone = True
        self._heartbeat.stop()
        return done

    def stop_waiting(self) -> None:
        """Make `close` return at once."""
        self._hurried = True
        self._ended.set()

    def _work(self) -> None:
        try:
            self._run_loop()
        finally:
            self._heartbeat.stop()
            self._ended.set()

    def _run_loop(self) -> None:
        failures = 0
        while not self._gone:
            if failures:
                self._closing.wait(min(self._keeping.seconds * 2 ** min(failures, 10), self._pause_seconds_max))
            else:
                self._wake.wait(min(self._keeping.seconds, self._heartbeat.due_seconds))
            self._wake.clear()
            last = self._closing.is_set()
            try:
                # Beat first: a process that was paused must learn whether it still owns the run.
                self._heartbeat.beat()
                self._send()
                self._heartbeat.reply()
                self._heartbeat.beat(ended=last)
                failures = 0
                self._report_trouble("")
            except FencedError as error:
                self._lose(error)
                return
            except Exception as error:  # noqa: BLE001 - if this thread ended silently, callers would wait for ever
                failures += 1
                self._files = None  # some of the uploads may have succeeded: list the store again
                known = isinstance(error, StoreError | JournalError | OSError)
                self._report_trouble(str(error) if known else describe_error(error))
                if last:
                    time.sleep(min(1.0, self._keeping.seconds))
                    continue
            if last:
                return

    def _lose(self, error: FencedError) -> None:
        """Report once that the run is not ours any more: this thread and that of the heartbeat may both find it out."""
        with self._losing:
            if self.lost_because:
                return
            self.lost_because = str(error)
        self._keeping.tell("lease.lost", str(error))
        self._keeping.lost()

    def _report_trouble(self, error: str) -> None:
        """Report when the store begins to fail, and when it works again (`error` is empty)."""
        before, self.trouble = self.trouble, error
        if error and not before:
            self._keeping.tell("mirror.failed", f"{error}; {_WHAT_NEXT[self._keeping.waits]}")
        elif before and not error:
            self._keeping.tell("mirror.restored", f"{self._objects.url} takes records again")

    def _send(self) -> None:
        """Upload everything that is missing. If a segment vanishes meanwhile, it has just been sealed: list again."""
        for attempt in range(_LOOKS_MAX):
            try:
                return self._send_once()
            except FileNotFoundError:
                if attempt == _LOOKS_MAX - 1:
                    raise
        raise AssertionError("unreachable")

    def _send_once(self) -> None:
        files = self._list_store()
        # The order of these three lines matters. Files that repeat records are read before the tip, so that all records
        # they repeat are below it, and uploaded after the records. Files that records refer to are uploaded after
        # reading the tip and before the records, so that every record finds its files in the mirror.
        behind = [(name, new) for name in BEHIND_RECORDS if (new := self._new_version(name, files)) is not None]
        tip = self._keeping.tip()
        self._send_files(files)
        files_of_journal = list_chain(OS_DISK, self._journal, self._uid, self._headers).segments
        epoch = 0
        for file, successor in zip(files_of_journal, (*files_of_journal[1:], None), strict=True):
            epoch = file.header.segment.epoch if file.header else epoch
            if file.number > tip.segment:
                break
            sent = self._segments.setdefault((epoch, file.number), _Sent())
            # How far its bytes count: to its fence, or to the last acknowledged record.
            end = None if successor is None else fence_between(file, successor)
            if end is None and file.number == tip.segment:
                end = tip
            elif end is None:  # its fence is damaged
                end = Fence(file.number, _size_of(file.path) if not file.sealed else 0, 0, "")
            if not sent.sealed:
                self._send_segment(file, epoch, sent, end)
            self._confirm(end.n)
        for name, (state, data) in behind:
            self._objects.put(name, data)
            files[name] = self._put[name] = state
        self._caught_up_at = time.monotonic()

    def _send_segment(self, file: SegmentFile, epoch: int, sent: _Sent, end: Fence) -> None:
        if file.sealed:
            name = sealed_name(epoch, file.number)
            if not (sent.unread and self._reads_back(name, file.path)):
                self._objects.put_file(name, file.path)
                if not self._reads_back(name, file.path):
                    raise StoreError(f"{self._objects.url}: {name!r} reads back differently than it was written")
            sent.sealed = True
            for chunk in sorted(sent.chunks):  # a crash here leaves some; the next listing finds and deletes them
                self._objects.delete(chunk)
            sent.chunks.clear()
            return
        with open(open_file(file.path), "rb") as plain:
            while sent.bytes < end.bytes:
                plain.seek(sent.bytes)
                data = plain.read(min(self._keeping.chunk_bytes, end.bytes - sent.bytes))
                if sent.bytes + len(data) < end.bytes:
                    # Cut at a record end; if one record is longer than a chunk, read all of it.
                    data = data[: data.rfind(b"\n") + 1] or data + plain.readline()
                if not data:
                    raise JournalError(f"{file.path} is shorter than what was acknowledged of it")
                name = chunk_name(epoch, file.number, sent.bytes, sent.bytes + len(data))
                self._objects.put(name, data)
                sent.chunks.add(name)
                sent.bytes += len(data)
                self._confirm(last_number(data))

    def _reads_back(self, name: str, path: str) -> bool:
        """Whether an uploaded object equals the local file. Only then may its chunks be deleted."""
        remote, local = xxhash.xxh3_128(), xxhash.xxh3_128()
        for piece in self._objects.pieces(name):
            remote.update(piece)
        with open(open_file(path), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                local.update(piece)
        return remote.digest() == local.digest()

    def _confirm(self, n: int) -> None:
        """Count the records up to `n` as durable in the mirror."""
        if n > self.mirrored:
            # Beat and check the ownership first: uploads of a process that has lost the run do not count, so they must
            # not be confirmed (see `claims`).
            self._heartbeat.beat()
            self.mirrored = n
            self._keeping.confirmed(n)

    # Spec, plan, data and blobs.

    def _list_store(self) -> dict[str, tuple[int, int] | None]:
        """The files in the store. It is listed once at the start, and again after an error."""
        if self._files is not None:
            return self._files
        self._files = {}
        self._segments = {}
        sealed: dict[tuple[int, int], int] = {}
        for each in self._objects.listed(""):
            piece = parse_piece(each.name, each.size)
            if piece is not None:
                sent = self._segments.setdefault((piece.epoch, piece.segment), _Sent())
                if piece.sealed:
                    sealed[piece.epoch, piece.segment] = each.size
                elif piece.last - piece.first == each.size:
                    sent.chunks.add(each.name)
                else:
                    self._objects.delete(each.name)  # damaged: the bytes are here, and are uploaded again
            elif is_original(each.name):
                mine = self._put.get(each.name)
                self._files[each.name] = mine if mine and mine[1] == each.size else None
        for key, sent in self._segments.items():
            sent.bytes = _sent_bytes(sent.chunks)
            path = segment_path(self._journal, key[1], sealed=True)
            same = key in sealed and is_file(path) and _size_of(path) == sealed[key]
            sent.unread = same and bool(sent.chunks)  # its uploader died before it deleted them
            sent.sealed = same and not sent.chunks
        self._blobs_seen = (0, 0)
        return self._files

    def _new_version(self, name: str, there: dict[str, tuple[int, int] | None]) -> tuple[tuple[int, int], bytes] | None:
        """The state and bytes of a file that repeats records, if it has changed since its upload; else None.

        In a mirror such a file must never be ahead of the records: spec.yaml would look edited, and started.jsonl would
        make records look lost.
        """
        try:
            with open(open_file(os.path.join(self._run, name)), "rb") as file:
                state = _state(os.fstat(file.fileno()))
                return None if there.get(name) == state else (state, file.read())
        except (FileNotFoundError, NotAFileError):
            return None

    def _send_files(self, there: dict[str, tuple[int, int] | None]) -> None:
        """Upload plan and data files that are new or have changed, and new blobs. Blobs never change."""
        names = sorted(name for name in list_names(self._run) if is_original(name) and name not in BEHIND_RECORDS)
        for name in names:
            found = status_of(os.path.join(self._run, name))
            if found is None or not stat.S_ISREG(found.st_mode):
                continue  # a link could name any file of the user: never upload through it
            state = _state(found)
            if there.get(name) != state:
                self._objects.put_file(name, os.path.join(self._run, name))
                there[name] = self._put[name] = state
        folder = os.path.join(self._run, "blobs")
        if not is_folder(folder):
            return
        seen = os.stat(folder).st_mtime_ns
        held = [name for name in list_names(folder) if not name.endswith(".tmp")]
        if (seen, len(held)) == self._blobs_seen:
            return
        for name in held:
            if f"blobs/{name}" not in there and is_file(os.path.join(folder, name)):
                self._objects.put_file(f"blobs/{name}", os.path.join(folder, name))
                there[f"blobs/{name}"] = None
                self._heartbeat.beat()
        self._blobs_seen = (seen, len(held))


def _size_of(path: str) -> int:
    found = status_of(path)
    return 0 if found is None else found.st_size


def _state(found: os.stat_result) -> tuple[int, int]:
    """Modification time and size. While they are equal, the file counts as unchanged."""
    return found.st_mtime_ns, found.st_size


def _sent_bytes(chunks: Iterable[str]) -> int:
    """How many bytes from the start the chunks cover without a gap."""
    end = 0
    for piece in sorted(filter(None, (parse_piece(name, 0) for name in chunks)), key=lambda each: each.first):
        if piece.first <= end:
            end = max(end, piece.last)
    return end
