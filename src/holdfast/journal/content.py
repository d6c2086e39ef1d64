"""The uncompressed bytes of one segment, plain or sealed, from any offset.

Content comes in pieces. A piece is bytes at an offset, or a gap: bytes that are lost because their frame cannot be
unpacked. So code that scans lines need not distinguish plain and sealed segments. Nothing here writes.
"""

import bisect
import itertools
from collections.abc import Iterator
from typing import Protocol

import msgspec

from holdfast.journal.disk import Disk, NotAFileError
from holdfast.journal.frames import FRAME_BYTES_MAX, Frame, is_cut, is_whole, read_table, salvage, unpack, walk_frames

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


class SealedContent:
    """A sealed segment. If its seek table is damaged, the frames are found by searching the file."""

    def __init__(self, disk: Disk, handle: int, recent_bytes: int = _RECENT_BYTES) -> None:
        self._disk = disk
        self._handle = handle
        self._recent_bytes = recent_bytes
        self._bytes = disk.size(handle)
        self._recent: dict[int, bytes] = {}
        self._recent_held = 0
        table = read_table(self._read, self._bytes)
        self._frames: list[Frame] = walk_frames(self._read, self._bytes) if table is None else table
        self.cut = table is None and is_cut(self._read, self._frames, self._bytes)

    def size(self) -> int:
        return self._frames[-1].first + self._frames[-1].size if self._frames else 0

    def is_whole(self) -> bool:
        return is_whole(self._read, self._bytes)

    def pieces(self, offset: int, end: int | None = None) -> Iterator[Piece]:
        stop = self.size() if end is None else min(end, self.size())
        start = bisect.bisect_right(self._frames, offset, key=lambda frame: frame.first + frame.size)
        for frame in itertools.islice(self._frames, start, None):
            if frame.first >= stop:
                return
            for piece in self._unpacked(frame):
                yield from _within(piece, offset, stop)

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
        if data is not None:
            yield Piece(frame.first, data)
            return
        packed = self._read(frame.at, min(frame.length, _PACKED_BYTES_MAX))
        data = unpack(packed, frame.size)
        if data is not None:
            self._remember(frame.at, data)
            yield Piece(frame.first, data)
            return
        saved = salvage(packed, frame.size)
        if saved:
            yield Piece(frame.first, saved)
        end = frame.first + len(saved)
        yield Piece(end, b"", frame.size - len(saved), broken=True)


def read_line(disk: Disk, path: str, offset: int, limit: int) -> bytes:
    """The line at `offset` with its newline, at most `limit` bytes. Unpacks only the frames that hold it."""
    content = open_segment(disk, path, piece_bytes=LOOKUP_BYTES)
    try:
        return line_at(content, offset, limit)
    finally:
        content.close()


def line_at(content: SegmentContent, offset: int, limit: int) -> bytes:
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


def _within(piece: Piece, start: int, stop: int) -> Iterator[Piece]:
    length = piece.gap or len(piece.data)
    first, last = max(start, piece.offset), min(stop, piece.offset + length)
    if piece.broken:
        yield Piece(first, b"", max(0, last - first), broken=True)
    elif first >= last:
        return
    else:
        yield Piece(first, piece.data[first - piece.offset : last - piece.offset])
