"""The bytes of a sealed segment: independent zstd frames, a digest of the file, and a seek table.

The table is the public "zstd seekable format", so `zstd -d` and other tools read our files. Before it is a skippable
frame with the xxh3-64 of the table, and of everything else in the file. So every flipped byte is found, also in bits
that no decompressor checks, and a table is used only if it is intact.

A frame holds at most FRAME_BYTES of whole lines (a longer line has a frame of its own), so a flipped byte or a cut
costs at most the records of one frame. The segment header and each record that begins or extends a run have frames of
their own, because without them no other record of the file can be understood.

Invariant: no size that was read from a file is trusted. Unpacking a frame never makes more bytes than the table lists.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator

import msgspec
import xxhash
import zstandard

from holdfast.records import LINE_BYTES_MAX

FRAME_BYTES = 64 * 1024
"""The most content of one frame, unless a line is longer. Files of older versions have frames of 1 MiB."""
FRAME_BYTES_MAX = LINE_BYTES_MAX + 1024 * 1024
_READ_BYTES = 1024 * 1024
_START_BYTES = 4096
_START_WINDOW_BYTES = 8 * 1024 * 1024
_HEADER_BYTES_MAX = 64 * 1024
_LEVEL = 3

_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
_DIGEST_HEAD = struct.pack("<II", 0x184D2A50, 16)
_DIGEST_FRAME_BYTES = len(_DIGEST_HEAD) + 16
_TABLE_MAGIC = 0x184D2A5E
_TABLE_FOOT_MAGIC = 0x8F92EAB1
_ENTRY = struct.Struct("<II")
_FOOT = struct.Struct("<IBI")

_ALONE_MARK = re.compile(rb',"t":"run\.(?:started|extended|replanned)",')
_ALONE_LINE = re.compile(rb'\{"n":\d+,"at":"[^"]*"')

ReadAt = Callable[[int, int], bytes]
"""Reads `size` bytes from `offset` of a file."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """Where a frame is in the file (`at`, `length`) and which uncompressed bytes it holds ([first, first + size))."""

    at: int
    length: int
    first: int
    size: int


def pack(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compress content into the bytes of a sealed file, one frame at a time."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
    digest = xxhash.xxh3_64()
    entries = bytearray()
    for block in _blocks(chunks):
        packed = compressor.compress(block)
        digest.update(packed)
        entries += _ENTRY.pack(len(packed), len(block))
        yield packed
    foot = _FOOT.pack(len(entries) // _ENTRY.size, 0, _TABLE_FOOT_MAGIC)
    table = struct.pack("<II", _TABLE_MAGIC, len(entries) + len(foot)) + bytes(entries) + foot
    digest.update(table)
    yield _DIGEST_HEAD + xxhash.xxh3_64_digest(table) + digest.digest() + table


def read_table(read: ReadAt, size: int) -> list[Frame] | None:
    """The frames that the seek table lists; None if the table is damaged."""
    if size < _FOOT.size:
        return None
    count, flags, magic = _FOOT.unpack(read(size - _FOOT.size, _FOOT.size))
    table_bytes = 8 + count * _ENTRY.size + _FOOT.size
    if magic != _TABLE_FOOT_MAGIC or flags != 0 or table_bytes + _DIGEST_FRAME_BYTES > size:
        return None
    tail = read(size - table_bytes - _DIGEST_FRAME_BYTES, table_bytes + _DIGEST_FRAME_BYTES)
    table = tail[_DIGEST_FRAME_BYTES:]
    if tail[:8] != _DIGEST_HEAD or tail[8:16] != xxhash.xxh3_64_digest(table):
        return None
    frames = []
    at = first = 0
    for length, unpacked in _ENTRY.iter_unpack(table[8 : -_FOOT.size]):
        if not 0 < unpacked <= FRAME_BYTES_MAX:
            return None
        frames.append(Frame(at, length, first, unpacked))
        at += length
        first += unpacked
    return frames if at == size - table_bytes - _DIGEST_FRAME_BYTES else None


def walk_frames(read: ReadAt, size: int) -> list[Frame]:
    """Find the frames of a file whose seek table is damaged or missing, by searching for them. Memory is bounded."""
    frames: list[Frame] = []
    first = 0
    at = _find_magic(read, size, 0)
    while at is not None:
        found = _measure(read, size, at)
        if found is None:
            at = _find_magic(read, size, at + 1)
            continue
        length, unpacked = found
        frames.append(Frame(at, length, first, unpacked))
        first += unpacked
        at = _find_magic(read, size, at + length)
    return frames


def is_cut(read: ReadAt, frames: list[Frame], size: int) -> bool:
    """Whether a file without a usable table has lost its end: neither the digest frame follows the last frame, nor does
    the file end with the table's magic number.
    """
    end = frames[-1].at + frames[-1].length if frames else 0
    foot = _TABLE_FOOT_MAGIC.to_bytes(4, "little")
    return read(end, len(_DIGEST_HEAD)) != _DIGEST_HEAD and read(max(0, size - 4), 4) != foot


def is_whole(read: ReadAt, size: int) -> bool:
    """Whether every byte of the file is as it was written."""
    if read_table(read, size) is None:
        return False
    count, _, _ = _FOOT.unpack(read(size - _FOOT.size, _FOOT.size))
    table_at = size - (8 + count * _ENTRY.size + _FOOT.size)
    digest_at = table_at - _DIGEST_FRAME_BYTES
    digest = xxhash.xxh3_64()
    for start, end in ((0, digest_at), (table_at, size)):
        for at in range(start, end, _READ_BYTES):
            digest.update(read(at, min(_READ_BYTES, end - at)))
    return read(table_at - 8, 8) == digest.digest()


def unpack(packed: bytes, size: int) -> bytes | None:
    """The content of one frame; None if it is damaged. Makes at most `size` bytes, whatever the frame claims."""
    try:
        declared = zstandard.get_frame_parameters(packed)
        if declared.content_size != size or size > FRAME_BYTES_MAX:
            return None
        content = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError:
        return None
    return content if len(content) == size else None


def unpack_start(packed: bytes) -> bytes:
    """The first few bytes of content in the first bytes of a sealed file; nothing if they are damaged or in a frame of
    unusual size. Not verified, like what `salvage` returns.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_START_WINDOW_BYTES)
    try:
        return decompressor.stream_reader(packed).read(_START_BYTES)
    except zstandard.ZstdError:
        return b""


def salvage(packed: bytes, size: int) -> bytes:
    """The content of a damaged frame up to the damage. It need not be right: each line has its own checksum."""
    out = bytearray()
    limit = min(size, FRAME_BYTES_MAX)
    decompressor = zstandard.ZstdDecompressor(max_window_size=FRAME_BYTES_MAX * 2).decompressobj()
    try:
        for at in range(0, len(packed), 64):
            out += decompressor.decompress(packed[at : at + 64])  # in small steps: an error loses one step's output
            if len(out) >= limit or decompressor.eof:
                break
    except zstandard.ZstdError:
        pass  # the damage is here; what came out before it is saved
    return bytes(out[:limit])


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut content at line ends: the header alone, then blocks of whole lines, so that no record is in two frames."""
    buffer = bytearray()
    header = True
    for chunk in chunks:
        buffer += chunk
        if header:
            end = buffer.find(b"\n", 0, _HEADER_BYTES_MAX) + 1
            if end == 0 and len(buffer) < _HEADER_BYTES_MAX:
                continue
            yield from _take(buffer, end)
            header = False
        yield from _full_blocks(buffer)
    while buffer:
        yield from _take(buffer, _next_cut(buffer) or len(buffer))


def _full_blocks(buffer: bytearray) -> Iterator[bytes]:
    """Take the complete blocks from the front of the buffer."""
    at = 0
    while len(buffer) - at >= FRAME_BYTES:
        end = at + _next_cut(buffer[at : at + FRAME_BYTES])
        if end == at:
            end = buffer.find(b"\n", at + FRAME_BYTES) + 1
        if end == 0 and len(buffer) - at < LINE_BYTES_MAX:
            break
        end = end or at + LINE_BYTES_MAX
        yield _cut_out(buffer, at, end)
        at = end
    del buffer[:at]  # once at the end, because it moves the remaining bytes


def _next_cut(block: bytearray) -> int:
    """Where the first frame of these bytes ends: before a line that gets a frame of its own; behind it, if it is the
    first line; else behind the last whole line. 0 if no line ends here.
    """
    for mark in _ALONE_MARK.finditer(block):
        first = block.rfind(b"\n", 0, mark.start()) + 1
        if _ALONE_LINE.fullmatch(block, first, mark.start()):
            return first or block.find(b"\n") + 1
    return block.rfind(b"\n") + 1


def _take(buffer: bytearray, end: int) -> Iterator[bytes]:
    if end:
        yield _cut_out(buffer, 0, end)
        del buffer[:end]


def _cut_out(buffer: bytearray, start: int, end: int) -> bytes:
    """A copy of a slice. `bytes(buffer[start:end])` would copy twice."""
    with memoryview(buffer) as view:
        return bytes(view[start:end])


def _find_magic(read: ReadAt, size: int, start: int) -> int | None:
    """The offset of the next frame magic number; None if there is none."""
    while start < size:
        found = read(start, _READ_BYTES + len(_FRAME_MAGIC) - 1).find(_FRAME_MAGIC)
        if found >= 0:
            return start + found
        start += _READ_BYTES
    return None


def _measure(read: ReadAt, size: int, at: int) -> tuple[int, int] | None:
    """The packed and unpacked size of the frame at `at`, from its block headers, without decompressing it; None if it
    is no valid frame.
    """
    try:
        head = zstandard.frame_header_size(read(at, 18))
        declared = zstandard.get_frame_parameters(read(at, 18))
    except zstandard.ZstdError:
        return None
    end = at + head
    last = False
    while not last:
        if end + 3 > size:
            return None
        block = int.from_bytes(read(end, 3), "little")
        last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == 3:
            return None
        end += 3 + (1 if kind == 1 else length)
    end += 4 if declared.has_checksum else 0
    if end > size or not 0 < declared.content_size <= FRAME_BYTES_MAX:
        return None
    return end - at, declared.content_size
