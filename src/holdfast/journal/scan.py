"""From bytes to verified records: finds every valid line of a segment, and describes the bytes that are none.

A scanner is fed pieces in order. It accepts a line only if its checksum is right and its number is greater than the
last one. Everything between two accepted lines becomes one `Damage`. Memory is bounded by the longest line that may
exist, whatever the file holds.

A `SegmentContent` gives the uncompressed bytes of one segment, plain or sealed, from any offset, in pieces. A piece is
bytes at an offset, or a gap: bytes that are lost because their frame cannot be unpacked. So code that scans lines need
not distinguish plain and sealed segments. Nothing here writes.
"""

import bisect
import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from typing import Protocol

import msgspec

from holdfast.errors import FormatError
from holdfast.journal.disk import OS_DISK, Disk, NotAFileError
from holdfast.journal.frames import FRAME_BYTES_MAX, Frame, is_cut, is_whole, read_table, salvage, unpack, walk_frames
from holdfast.journal.positions import Damage, Entry
from holdfast.records import LINE_BYTES_MAX, Line, is_known, parse

PIECE_BYTES = 1024 * 1024
_RECENT_BYTES = 2 * 1024 * 1024
LOOKUP_RECENT_BYTES = 2 * 1024 * 1024
"""How much unpacked content is cached while single records are looked up. The records of one key are scattered among
those of the samples that were in flight at the same time."""
LOOKUP_BYTES = 64 * 1024
"""How much of a plain segment is read at once to find one record."""
_PACKED_BYTES_MAX = FRAME_BYTES_MAX + FRAME_BYTES_MAX // 128 + 1024  # zstd's bound for content that does not compress


class Piece(msgspec.Struct, frozen=True, gc=False):
    """`data` at `offset`; or, with empty data, `gap` lost bytes.

    `broken`: the end of a damaged frame. A line that is incomplete here is not continued by the next piece.
    """

    offset: int
    data: bytes
    gap: int = 0
    broken: bool = False


class SegmentContent(Protocol):
    """An open segment. It stays readable if its file is renamed or removed. `cut`: the end of the file is missing."""

    cut: bool

    def size(self) -> int: ...

    def pieces(self, offset: int, end: int | None = None) -> Iterator[Piece]: ...

    def close(self) -> None: ...


def open_content(
    disk: Disk, path: str, piece_bytes: int = PIECE_BYTES, recent_bytes: int = _RECENT_BYTES
) -> SegmentContent:
    handle = disk.open(path)
    try:
        if path.endswith(".zst"):
            return SealedContent(disk, handle, recent_bytes)
        return PlainContent(disk, handle, piece_bytes)
    except BaseException:
        disk.close(handle)
        raise


def open_segment(
    disk: Disk, path: str, piece_bytes: int = PIECE_BYTES, recent_bytes: int = _RECENT_BYTES
) -> SegmentContent:
    """Open a segment for reading a journal. Something that is not a file reads as empty: it is reported as lost."""
    try:
        return open_content(disk, path, piece_bytes, recent_bytes)
    except NotAFileError:
        return EmptyContent()


class EmptyContent:
    """The content of a folder or link that has the name of a segment: nothing."""

    cut = True

    def size(self) -> int:
        return 0

    def pieces(self, offset: int, end: int | None = None) -> Iterator[Piece]:
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


class PlainContent:
    """A plain segment. It may grow while it is read. Nothing in it shows whether its end was cut off."""

    cut = False

    def __init__(self, disk: Disk, handle: int, piece_bytes: int = PIECE_BYTES) -> None:
        self._disk = disk
        self._handle = handle
        self._piece_bytes = piece_bytes

    def size(self) -> int:
        return self._disk.size(self._handle)

    def pieces(self, offset: int, end: int | None = None) -> Iterator[Piece]:
        stop = self.size() if end is None else min(end, self.size())
        while offset < stop:
            data = self._disk.read(self._handle, offset, min(self._piece_bytes, stop - offset))
            if not data:
                return  # the file was truncated while we read it
            yield Piece(offset, data)
            offset += len(data)

    def close(self) -> None:
        self._disk.close(self._handle)


_File = tuple[int, int, int, int]
"""Device, inode, size and time of the last change."""


class SharedFrames:
    """Unpacked frames of all sealed files that are opened while `cache_frames` is active: code that goes through a run
    sample by sample opens the same files for each of them. The oldest frames are dropped first.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._frames: dict[tuple[_File, int], bytes] = {}
        self.tables: dict[_File, list[Frame]] = {}
        """The frames of files that are not damaged."""

    def get(self, file: "_File", at: int) -> bytes | None:
        return self._frames.get((file, at))

    def put(self, file: "_File", at: int, data: bytes) -> None:
        self._frames[file, at] = data
        self._held += len(data)
        while self._held > self._bytes_max:
            self._held -= len(self._frames.pop(next(iter(self._frames))))


_shared: SharedFrames | None = None


@contextlib.contextmanager
def cache_frames(bytes_max: int = 16 << 20) -> Iterator[None]:
    """Keep unpacked frames from one opening of a file to the next. For one thread that reads a run that does not
    change; damage that happens meanwhile may be noticed late.
    """
    global _shared
    before, _shared = _shared, SharedFrames(bytes_max)
    try:
        yield
    finally:
        _shared = before


def _identify(handle: int) -> _File:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class SealedContent:
    """A sealed segment. If its seek table is damaged, the frames are found by searching the file."""

    def __init__(self, disk: Disk, handle: int, recent_bytes: int = _RECENT_BYTES) -> None:
        self._disk = disk
        self._handle = handle
        self._recent_bytes = recent_bytes
        self._bytes = disk.size(handle)
        self._recent: dict[int, bytes] = {}
        self._recent_held = 0
        self._shared = _shared if disk is OS_DISK else None
        self._file = _identify(handle) if self._shared is not None else None
        table = self._read_table()
        self._frames: list[Frame] = walk_frames(self._read, self._bytes) if table is None else table
        self._ends = [frame.first + frame.size for frame in self._frames]
        self.cut = table is None and is_cut(self._read, self._frames, self._bytes)

    def _read_table(self) -> list[Frame] | None:
        if self._shared is None or self._file is None:
            return read_table(self._read, self._bytes)
        table = self._shared.tables.get(self._file) or read_table(self._read, self._bytes)
        if table is not None:
            self._shared.tables[self._file] = table
        return table

    def size(self) -> int:
        return self._frames[-1].first + self._frames[-1].size if self._frames else 0

    def is_whole(self) -> bool:
        return is_whole(self._read, self._bytes)

    def pieces(self, offset: int, end: int | None = None) -> Iterator[Piece]:
        stop = self.size() if end is None else min(end, self.size())
        start = bisect.bisect_right(self._ends, offset)
        for frame in itertools.islice(self._frames, start, None):
            if frame.first >= stop:
                return
            for piece in self._unpacked(frame):
                first = max(offset, piece.offset)
                last = min(stop, piece.offset + (piece.gap or len(piece.data)))
                if piece.broken:  # yielded even if it is empty: it ends an incomplete line
                    yield Piece(first, b"", max(0, last - first), broken=True)
                elif first < last:
                    yield Piece(first, piece.data[first - piece.offset : last - piece.offset])

    def line_in_frame(self, offset: int) -> bytes:
        """The line at `offset` with its newline, if one frame that was unpacked before holds it; else nothing.

        `pieces` would copy the rest of the frame for each of millions of lookups.
        """
        at = bisect.bisect_right(self._ends, offset)
        data = self._recent.get(self._frames[at].at) if at < len(self._frames) else None
        if data is None:
            return b""
        start = offset - self._frames[at].first
        return data[start : data.find(b"\n", start) + 1]

    def close(self) -> None:
        self._disk.close(self._handle)

    def _read(self, offset: int, size: int) -> bytes:
        return self._disk.read(self._handle, offset, size)

    def _remember(self, at: int, data: bytes) -> None:
        """Cache an unpacked frame, because lookups are often near each other. The oldest frames are dropped first."""
        if len(data) > self._recent_bytes:
            return
        self._recent[at] = data
        self._recent_held += len(data)
        while self._recent_held > self._recent_bytes:
            self._recent_held -= len(self._recent.pop(next(iter(self._recent))))

    def _unpacked(self, frame: Frame) -> Iterator[Piece]:
        data = self._recent.get(frame.at)
        if data is None and self._shared is not None and self._file is not None:
            data = self._shared.get(self._file, frame.at)
            if data is not None:
                self._remember(frame.at, data)
        if data is not None:
            yield Piece(frame.first, data)
            return
        packed = self._read(frame.at, min(frame.length, _PACKED_BYTES_MAX))
        data = unpack(packed, frame.size)
        if data is not None:
            self._remember(frame.at, data)
            if self._shared is not None and self._file is not None:
                self._shared.put(self._file, frame.at, data)
            yield Piece(frame.first, data)
            return
        saved = salvage(packed, frame.size)
        if saved:
            yield Piece(frame.first, saved)
        end = frame.first + len(saved)
        yield Piece(end, b"", frame.size - len(saved), broken=True)


def read_line(disk: Disk, path: str, offset: int, limit: int) -> bytes:
    """The line at `offset` with its newline, at most `limit` bytes. Unpacks only the frames that hold it."""
    with contextlib.closing(open_segment(disk, path, piece_bytes=LOOKUP_BYTES)) as content:
        return line_at(content, offset, limit)


def line_at(content: SegmentContent, offset: int, limit: int) -> bytes:
    if isinstance(content, SealedContent) and (line := content.line_in_frame(offset)):
        return line
    parts: list[bytes] = []
    size = 0
    for piece in content.pieces(offset):
        if piece.gap:
            break
        end = piece.data.find(b"\n") + 1
        parts.append(piece.data[:end] if end else piece.data)
        size += len(parts[-1])
        if end:
            return b"".join(parts)  # with one part this copies nothing
        if size > limit:
            break
    return b"".join(parts)[:limit]


def is_record_end(content: SegmentContent, offset: int, x: str) -> bool:
    """Whether a record with the checksum `x` ends at `offset`. Reads only the last bytes of the record."""
    tail = b',"x":"%b"}\n' % x.encode()
    return b"".join(piece.data for piece in content.pieces(max(offset - len(tail), 0), offset)) == tail


_KEY = re.compile(rb'"k":("(?:[^"\\]|\\.)*")')
RECORD_START = re.compile(rb'{"n":(\d{1,15}),"at":"')
_RECORD_BYTES_MIN = 80  # no record is shorter
_PIECES = {"frame", "cut"}
_KEY_SEARCH_BYTES = 64 * 1024
_KEYS_MAX = 100


class Tail(msgspec.Struct, frozen=True):
    """The bytes behind the last newline. `whole`: they are a record that only lacks its newline; it ends at `line_end`.

    After a power loss a file system may show NULs instead of bytes that were written last. So trailing NULs are
    ignored: a record with a NUL instead of its newline is whole.
    """

    first: int
    line_end: int
    whole: bool


class Scanner:
    """The state of a scan: the last accepted record (`n`, `x`, `end`), and the damage since then."""

    def __init__(self, segment: int, seed: int, n: int, x: str = "", offset: int = 0) -> None:
        self.segment = segment
        self.n = n
        self.x = x
        self.end = offset
        self._seed = seed
        self._read_to = offset
        self._line_at = offset  # where the current, still incomplete line begins
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._bad: _Area | None = None

    def feed(self, piece: Piece) -> Iterator[Entry | Damage]:
        if piece.broken:
            self._read_to = piece.offset + piece.gap
            if self._read_to > self._line_at:
                self._count_damage("frame", b"".join(self._parts))
            return
        *lines, rest = piece.data.split(b"\n")
        at = piece.offset
        for part in lines:
            at += len(part) + 1
            if not self._parts and self._bad is None and len(part) <= LINE_BYTES_MAX:
                line = parse(part, self._seed)
                if line is not None and line.n == self.n + 1 and is_known(line.t):  # fast path: nearly all lines
                    entry = Entry(line, self.segment, self._line_at, at)
                    self.n, self.x = line.n, line.x
                    self.end = self._line_at = self._read_to = at
                    yield entry
                    continue
            self._keep(part)
            self._read_to = at
            yield from self._judge()
        self._keep(rest)
        self._read_to = piece.offset + len(piece.data)

    def tail(self) -> Tail | None:
        """The bytes behind the last newline; None if there are none."""
        if self._read_to == self._line_at:
            return None
        raw = b"".join(self._parts).rstrip(b"\0")
        line = parse(raw, self._seed) if self._parts_bytes <= LINE_BYTES_MAX else None
        return Tail(self._line_at, self._line_at + len(raw), line is not None and line.n > self.n)

    def accept_tail(self, tail: Tail) -> Iterator[Entry | Damage]:
        """Accept a whole last record as if it had its newline."""
        self._parts = [b"".join(self._parts).rstrip(b"\0")]
        self._read_to = tail.line_end
        yield from self._judge()

    def blame_tail(self, kind: str) -> None:
        """Count the unfinished last line as damage, because nothing will complete it."""
        if self._read_to > self._line_at:
            self._count_damage(kind, b"".join(self._parts))

    def blame_missing_bytes(self, last: int) -> None:
        """Count the bytes up to `last` as damage if the segment ends before it."""
        if last > self._read_to:
            self._read_to = last
            self._count_damage("cut", b"".join(self._parts))

    def blame_missing_end(self, detail: str) -> None:
        """Count at least one record as lost behind the bytes that were read."""
        self._count_damage("cut", b"")
        assert self._bad is not None
        self._bad.pieces = max(self._bad.lines, 1)
        self._bad.detail = detail

    def trailing(self, n_last: int | None = None) -> Damage | None:
        """The damage behind the last accepted record, when the scan has ended.

        With a successor, its fence gives the last lost number (`n_last`). Without one it is estimated: each damaged
        line counts as one record, each number that is readable in them too, and a lost piece as at least one.
        """
        area, self._bad = self._bad, None
        if area is not None:
            if n_last is None:
                return area.damage(self.segment, self.n + 1, area.n_last(self.n), open_end=area.pieces > 0)
            return area.damage(self.segment, self.n + 1, n_last)
        if n_last is None or n_last <= self.n:
            return None
        return Damage("hole", self.segment, self.end, self.end, self.n + 1, n_last)

    def _keep(self, part: bytes) -> None:
        """Collect an incomplete line. One that is too long to be a record is dropped, to bound memory."""
        self._parts_bytes += len(part)
        if self._parts_bytes <= LINE_BYTES_MAX:
            self._parts.append(part)
        else:
            del self._parts[1:]

    def _judge(self) -> Iterator[Entry | Damage]:
        """Decide about the current line: yield it as an entry, with the damage before it, or count it as damage."""
        line: Line | None = None
        if self._parts_bytes <= LINE_BYTES_MAX:
            if len(self._parts) > 1:
                self._parts = [b"".join(self._parts)]  # drop the parts, so that a large line is in memory only once
            line = parse(self._parts[0], self._seed)
        if line is None:
            self._count_damage("line", b"".join(self._parts), lines=1)
            return
        if not is_known(line.t):
            raise FormatError(
                f"record {line.n} in segment {self.segment} has the type {line.t!r}, which this version does not know; "
                "read this run with a newer Holdfast"
            )
        if line.n <= self.n:
            self._count_damage("repeat", b"")
            return
        if self._bad is not None or line.n > self.n + 1:
            area = self._bad or _Area("hole", self._line_at, self._line_at)
            self._bad = None
            yield area.damage(self.segment, self.n + 1, line.n - 1)
        entry = Entry(line, self.segment, self._line_at, self._read_to)
        self.n, self.x, self.end = line.n, line.x, self._read_to
        self._begin_line()
        yield entry

    def _count_damage(self, kind: str, raw: bytes, lines: int = 0) -> None:
        """Count the bytes since the last line end as damage."""
        if self._bad is None:
            self._bad = _Area(kind, self._line_at, self._read_to)
        self._bad.last = self._read_to
        self._bad.lines += lines
        for found in _KEY.findall(raw[:_KEY_SEARCH_BYTES]):
            self._bad.add_key(found)
        if kind in _PIECES:
            self._bad.pieces = 1
        if lines:
            self._bad.add_numbers(raw)
        self._begin_line()

    def _begin_line(self) -> None:
        self._line_at = self._read_to
        self._parts = []
        self._parts_bytes = 0


class _Area:
    """Damaged bytes between two accepted records."""

    def __init__(self, kind: str, first: int, last: int) -> None:
        self.kind = kind
        self.first = first
        self.last = last
        self.lines = 0
        self.pieces = 0
        self.detail = ""
        self._numbers = 0
        self._keys: dict[str, None] = {}

    def n_last(self, n: int) -> int:
        """The last number that this area may have held, after record `n`."""
        counted = n + max(self.lines, self.pieces)
        return max(counted, min(self._numbers, n + (self.last - self.first) // _RECORD_BYTES_MIN))

    def add_numbers(self, raw: bytes) -> None:
        self._numbers = max([self._numbers, *(int(found) for found in RECORD_START.findall(raw))])

    def add_key(self, quoted: bytes) -> None:
        """Remember a key that is readable in a damaged line: it shows the user which sample is affected."""
        if len(self._keys) < _KEYS_MAX:
            try:
                self._keys[msgspec.json.decode(quoted, type=str)] = None
            except (msgspec.DecodeError, UnicodeDecodeError):
                return  # the damage is in the key itself

    def damage(self, segment: int, n_first: int, n_last: int, *, open_end: bool = False) -> Damage:
        keys = tuple(self._keys)
        return Damage(self.kind, segment, self.first, self.last, n_first, n_last, keys, self.detail, open_end)
