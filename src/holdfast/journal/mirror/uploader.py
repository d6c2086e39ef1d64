"""The mirror: a copy of a run in an object store, kept by a thread that nobody waits for.

Only acknowledged bytes go up, cut at record ends, as objects that never change; a sealed segment's object replaces its
chunks once it has been read back. What a record may refer to (plan, data, blobs) goes up before it; spec.yaml and
started.jsonl, which repeat what records say, go up behind them. The backlog is the journal itself, on disk. Invariant:
`mirrored` is the number of a record that is durable there with everything before it. Whatever the store does, the run
continues; only a greater epoch in it, or a tombstone of the run, ends the run.
"""

import contextlib
import os
import shlex
import stat
import threading
import time
from collections.abc import Callable, Iterable

import msgspec
import xxhash

from holdfast.errors import FencedError, JournalError, StoreError, told
from holdfast.files import NotAFileError, is_file, is_folder, list_names, open_file, status_of
from holdfast.journal.content import PIECE_BYTES
from holdfast.journal.disk import OS_DISK
from holdfast.journal.mirror.pieces import (
    BEHIND_RECORDS,
    FOLDER,
    chunk_name,
    is_original,
    last_number,
    parse_piece,
    sealed_name,
)
from holdfast.journal.mirror.tombstones import tombstone_name
from holdfast.journal.object_store import Objects
from holdfast.journal.ownership.claims import EXPIRY_SECONDS, Beat, delete_beat, epochs_in, list_leases, write_beat
from holdfast.journal.ownership.lease import read_lease
from holdfast.journal.paths import segment_path
from holdfast.journal.segments import HeaderCache, SegmentFile, fence_between, list_chain
from holdfast.records import Fence

CHUNK_BYTES = 8 << 20
BEATS = 3
"""So often a holder beats before it is taken for dead."""
BEAT_SECONDS = EXPIRY_SECONDS / BEATS
_BACKOFF_SECONDS_MAX = 60.0
_LOOKS_MAX = 100
_GOES_ON = {
    False: "the run goes on, and it is tried again",
    True: "the run waits for it (mirror.wait), and it is tried again",
}
_SILENT_SECONDS = 2.0
"""Whoever waits longer at the end is told for what."""


class Keeping(msgspec.Struct, frozen=True):
    """How a mirror is kept. `tip` is the last acknowledged record; the rest is told from the mirror's thread."""

    tip: Callable[[], Fence]
    tell: Callable[[str, str], None] = lambda event, message: None
    lost: Callable[[], None] = lambda: None
    """A greater epoch was found: this process has lost the run."""
    confirmed: Callable[[int], None] = lambda n: None
    """Everything up to this number is durable there."""
    waits: bool = False
    """Nothing is acknowledged that is not there."""
    seconds: float = 5.0
    beat_seconds: float = BEAT_SECONDS
    chunk_bytes: int = CHUNK_BYTES


class _Sent(msgspec.Struct):
    """What the store has of one segment: its first so many bytes, in chunks, or all of it."""

    bytes: int = 0
    chunks: set[str] = msgspec.field(default_factory=set)
    sealed: bool = False
    unread: bool = False
    """There is a sealed object that nobody is known to have read back."""


class Mirror:
    """Keeps one run's mirror, from `start` to `close`. `epoch` None: no other process may write it."""

    def __init__(self, run: str, uid: str, objects: Objects, epoch: int | None, keeping: Keeping) -> None:
        self.mirrored = 0
        self._run = run
        self._journal = os.path.join(run, FOLDER)
        self._uid = uid
        self._objects = objects
        self._epoch = epoch
        self._keeping = keeping
        self._headers: HeaderCache = {}
        self._segments: dict[tuple[int, int], _Sent] = {}
        self._files: dict[str, tuple[int, int] | None] | None = None  # what is there; None: not looked yet
        self._put: dict[str, tuple[int, int]] = {}  # what we have put there ourselves, and were told so
        self._blobs_seen: tuple[int, int] = (0, 0)
        self._beats = 0
        self._beat_at = -1e9
        self._caught_up_at = time.monotonic()
        self.trouble = ""
        """What the store last answered instead of taking what it was given; empty if it takes it."""
        self.lost_because = ""
        """Why this process must not write the run any longer; empty as long as it may."""
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._hurried = False
        self._gone = False
        self._thread = threading.Thread(target=self._work, name="holdfast-mirror", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        """There is something new, and somebody waits for it."""
        self._wake.set()

    @property
    def behind_seconds(self) -> float:
        """For how long there has been something that is durable here and not there."""
        return 0.0 if self.mirrored >= self._keeping.tip().n else time.monotonic() - self._caught_up_at

    def close(self, seconds: float) -> bool:
        """Send what is left, for at most so long, and let the run go. False if not all of it is there."""
        self._closing.set()
        self._wake.set()
        if not self._ended.wait(min(seconds, _SILENT_SECONDS)) and seconds > _SILENT_SECONDS:
            left = f"{self._objects.url} does not have {self._keeping.tip().n - self.mirrored} records yet"
            self._keeping.tell("mirror.waiting", f"{left}; waiting for at most {seconds:g} s, they are safe here")
            self._ended.wait(seconds - _SILENT_SECONDS)
        through = self._ended.is_set() and not self._hurried
        done = through and not self.trouble and self.mirrored >= self._keeping.tip().n
        self._gone = True
        return done

    def hurry(self) -> None:
        """Whoever waits in `close` waits no longer."""
        self._hurried = True
        self._ended.set()

    def _work(self) -> None:
        try:
            self._keep()
        finally:
            self._ended.set()

    def _keep(self) -> None:
        failures = 0
        while not self._gone:
            if failures:
                self._closing.wait(min(self._keeping.seconds * 2 ** min(failures, 10), _BACKOFF_SECONDS_MAX))
            else:
                self._wake.wait(self._keeping.seconds)
            self._wake.clear()
            last = self._closing.is_set()
            try:
                self._beat()  # a process that was stopped for long learns first whether the run is still its own
                self._send()
                self._beat(ended=last)
                failures = 0
                self._tell_of_trouble("")
            except FencedError as error:
                self.lost_because = str(error)
                self._keeping.tell("lease.lost", str(error))
                self._keeping.lost()
                return
            except Exception as error:  # noqa: BLE001 - a thread that ended in silence would let everyone wait for ever
                failures += 1
                self._files = None  # nobody knows what of it landed: look again
                known = isinstance(error, StoreError | JournalError | OSError)
                self._tell_of_trouble(str(error) if known else told(error))
                if last:
                    time.sleep(min(1.0, self._keeping.seconds))
                    continue
            if last:
                return

    def _tell_of_trouble(self, error: str) -> None:
        before, self.trouble = self.trouble, error
        if error and not before:
            self._keeping.tell("mirror.failed", f"{error}; {_GOES_ON[self._keeping.waits]}")
        elif before and not error:
            self._keeping.tell("mirror.restored", f"{self._objects.url} takes records again")

    def _send(self) -> None:
        """Everything that is not there. A segment that vanishes meanwhile has just been sealed: look again."""
        for attempt in range(_LOOKS_MAX):
            try:
                return self._send_once()
            except FileNotFoundError:
                if attempt == _LOOKS_MAX - 1:
                    raise
        raise AssertionError("unreachable")

    def _send_once(self) -> None:
        files = self._look()
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
            end = self._end_of(file, successor, tip)
            if not sent.sealed:
                self._send_segment(file, epoch, sent, end)
            self._confirm(end.n)
        for name, (state, data) in behind:
            self._objects.put(name, data)
            files[name] = self._put[name] = state
        self._caught_up_at = time.monotonic()

    def _end_of(self, file: SegmentFile, successor: SegmentFile | None, tip: Fence) -> Fence:
        """How far a segment's bytes count."""
        fence = None if successor is None else fence_between(file, successor)
        if fence is not None:
            return fence
        if file.number == tip.segment:
            return tip
        return Fence(file.number, _size_of(file.path) if not file.sealed else 0, 0, "")  # its fence is damaged

    def _send_segment(self, file: SegmentFile, epoch: int, sent: _Sent, end: Fence) -> None:
        if file.sealed:
            name = sealed_name(epoch, file.number)
            if not (sent.unread and self._reads_back(name, file.path)):
                self._objects.put_file(name, file.path)
                if not self._reads_back(name, file.path):
                    raise StoreError(f"{self._objects.url}: {name!r} reads back differently than it was written")
            sent.sealed = True
            for chunk in sorted(sent.chunks):  # dying here leaves some: the next look finds them
                self._objects.delete(chunk)
            sent.chunks.clear()
            return
        with open(open_file(file.path), "rb") as plain:
            while sent.bytes < end.bytes:
                plain.seek(sent.bytes)
                data = plain.read(min(self._keeping.chunk_bytes, end.bytes - sent.bytes))
                if sent.bytes + len(data) < end.bytes:
                    data = data[: data.rfind(b"\n") + 1] or data + plain.readline()  # one record, longer than a chunk
                if not data:
                    raise JournalError(f"{file.path} is shorter than what was acknowledged of it")
                name = chunk_name(epoch, file.number, sent.bytes, sent.bytes + len(data))
                self._objects.put(name, data)
                sent.chunks.add(name)
                sent.bytes += len(data)
                self._confirm(last_number(data))

    def _reads_back(self, name: str, path: str) -> bool:
        """Only what was seen to be there may take the place of its chunks."""
        there, here = xxhash.xxh3_128(), xxhash.xxh3_128()
        for piece in self._objects.pieces(name):
            there.update(piece)
        with open(open_file(path), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                here.update(piece)
        return there.digest() == here.digest()

    def _confirm(self, n: int) -> None:
        """What a process that has lost the run puts there counts for nothing, so the beat comes first."""
        if n > self.mirrored:
            self._beat()
            self.mirrored = n
            self._keeping.confirmed(n)

    # Spec, plan, data and blobs.

    def _look(self) -> dict[str, tuple[int, int] | None]:
        """What the store has: once at the start, and again after trouble."""
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
                    self._objects.delete(each.name)  # damaged; what it should hold is here, and goes up again
            elif is_original(each.name):
                mine = self._put.get(each.name)
                self._files[each.name] = mine if mine and mine[1] == each.size else None
        for key, sent in self._segments.items():
            sent.bytes = _sent_bytes(sent.chunks)
            path = segment_path(self._journal, key[1], sealed=True)
            same = key in sealed and is_file(path) and _size_of(path) == sealed[key]
            sent.unread = same and bool(sent.chunks)  # whoever sent it did not come to removing them
            sent.sealed = same and not sent.chunks
        self._blobs_seen = (0, 0)
        return self._files

    def _new_version(self, name: str, there: dict[str, tuple[int, int] | None]) -> tuple[tuple[int, int], bytes] | None:
        """A file that repeats what records say, as it was before we looked how far they go. If it got ahead of its
        journal, spec.yaml would look edited, and started.jsonl would show records as lost.
        """
        try:
            with open(open_file(os.path.join(self._run, name)), "rb") as file:
                state = _state(os.fstat(file.fileno()))
                return None if there.get(name) == state else (state, file.read())
        except (FileNotFoundError, NotAFileError):
            return None

    def _send_files(self, there: dict[str, tuple[int, int] | None]) -> None:
        """Those that are new or have changed; blobs never change."""
        names = sorted(name for name in list_names(self._run) if is_original(name) and name not in BEHIND_RECORDS)
        for name in names:
            found = status_of(os.path.join(self._run, name))
            if found is None or not stat.S_ISREG(found.st_mode):
                continue  # a link is not followed into somebody else's file
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
                self._beat()
        self._blobs_seen = (seen, len(held))

    def _beat(self, *, ended: bool = False) -> None:
        """Write a heartbeat, then check that the run is still ours; a process that takes it over, or removes it, does
        these two in the other order.
        """
        now = time.monotonic()
        if now - self._beat_at < self._keeping.beat_seconds and not ended:
            return
        self._beats += 1
        expiry = self._keeping.beat_seconds * BEATS
        lease = read_lease(self._run)
        beat = Beat(self._beats, ended, self.mirrored, lease, expiry)
        write_beat(self._objects, self._epoch or 0, beat)  # 0: of a run that nobody claims, for those who look
        self._check_ownership()
        if lease is not None and self._epoch in (None, lease.epoch):  # else its first lease is about to come
            self._beat_at = now

    def _check_ownership(self) -> None:
        names = list_leases(self._objects)
        if tombstone_name(self._uid) in names:
            with contextlib.suppress(StoreError):  # a heartbeat that stays would look like that of a new run
                delete_beat(self._objects, self._epoch or 0)
            raise FencedError(
                f"the mirror {self._objects.url} was removed (holdfast gc --mirror), so this process stops; every "
                f"recorded answer is in {self._run}. To continue without the mirror: "
                f"holdfast resume {shlex.quote(self._run)} --set mirror=null"
            )
        if self._epoch is not None and max(epochs_in(names), default=0) > self._epoch:
            raise FencedError(f"{self._objects.url} was taken over by another process: this one stops")


def _size_of(path: str) -> int:
    found = status_of(path)
    return 0 if found is None else found.st_size


def _state(found: os.stat_result) -> tuple[int, int]:
    """As long as it is the same, the file is."""
    return found.st_mtime_ns, found.st_size


def _sent_bytes(chunks: Iterable[str]) -> int:
    """How far chunks go without a gap."""
    end = 0
    for piece in sorted(filter(None, (parse_piece(name, 0) for name in chunks)), key=lambda each: each.first):
        if piece.first <= end:
            end = max(end, piece.last)
    return end
