"""The segments of a journal folder, in order, each with its verified header.

The header, not the file name, says which segment a file is: swapped names lose nothing. A file whose header belongs
to another run, or that repeats a segment, is a stray: it is reported and never read. Of a plain and a sealed file of
one segment the sealed one counts if it is whole.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.errors import FormatError
from holdfast.journal.content import SealedContent, read_line
from holdfast.journal.disk import Disk
from holdfast.journal.marks import Damage
from holdfast.journal.places import SegmentName, parse_segment_name
from holdfast.records import FORMAT, Fence, Line, Segment, parse, seed_of

_HEADER_BYTES_MAX = 64 * 1024
_LISTINGS_MAX = 100
_unverified = msgspec.json.Decoder(Line)


class _Claim(msgspec.Struct):
    """What a segment record of any format says of itself."""

    format: int
    run: str


_claim = msgspec.json.Decoder(_Claim)
_segment = msgspec.json.Decoder(Segment)


class Header(msgspec.Struct, frozen=True):
    """A segment record that was verified."""

    line: Line
    segment: Segment


class SegmentFile(msgspec.Struct, frozen=True):
    """One segment and the file that holds it. `header` is None if its first line cannot be read."""

    number: int
    path: str
    sealed: bool
    header: Header | None


class Chain(msgspec.Struct, frozen=True):
    uid: str
    segments: tuple[SegmentFile, ...]
    strays: tuple[Damage, ...]
    last_number: int
    """The greatest number in any file name, strays included: a new segment gets a greater one."""

    @property
    def epoch(self) -> int:
        return max((file.header.segment.epoch for file in self.segments if file.header), default=0)

    def from_number(self, number: int) -> Sequence[SegmentFile]:
        """The segments from `number` on."""
        return [file for file in self.segments if file.number >= number]


HeaderCache = dict[str, Header]


def list_chain(disk: Disk, folder: str, uid: str | None = None, cache: HeaderCache | None = None) -> Chain:
    """Look at the folder. A file that vanishes meanwhile was sealed or quarantined: look again."""
    for attempt in range(_LISTINGS_MAX):
        try:
            return _list_once(disk, folder, uid, {} if cache is None else cache)
        except FileNotFoundError:
            if attempt == _LISTINGS_MAX - 1:
                raise
    raise AssertionError("unreachable")


def fence_between(file: SegmentFile, successor: SegmentFile) -> Fence | None:
    """Where `file` ends, as its successor's header says; None if that cannot be known."""
    if successor.header is None or successor.header.segment.prev is None:
        return None
    prev = successor.header.segment.prev
    return prev if prev.segment == file.number else None


def _list_once(disk: Disk, folder: str, uid: str | None, cache: HeaderCache) -> Chain:
    found = _choose(disk, folder, disk.names(folder))
    files = [(name, _cached_header(disk, os.path.join(folder, str(name)), cache)) for name in found]
    run = uid or _majority(header for _, header in files)
    segments: dict[int, SegmentFile] = {}
    strays: list[Damage] = []
    misnamed: list[tuple[SegmentName, Header]] = []
    for name, header in files:
        if header is not None and header.segment.run != run:
            strays.append(_stray("foreign", name, f"{name} belongs to another run ({header.segment.run})"))
        elif header is not None and header.segment.segment != name.number:
            misnamed.append((name, header))
        else:
            segments[name.number] = SegmentFile(name.number, os.path.join(folder, str(name)), name.sealed, header)
    for name, header in misnamed:
        number = header.segment.segment
        if number in segments:
            strays.append(_stray("stray", name, f"{name} is another copy of segment {number}"))
        else:
            segments[number] = SegmentFile(number, os.path.join(folder, str(name)), name.sealed, header)
            strays.append(_stray("stray", name, f"{name} holds segment {number}; it is read as that"))
    ordered = tuple(segments[number] for number in sorted(segments))
    return Chain(run, ordered, tuple(strays), max((name.number for name in found), default=0))


def _choose(disk: Disk, folder: str, names: Iterable[str]) -> list[SegmentName]:
    """One file a segment: a whole sealed file wins over a plain one."""
    chosen: dict[int, SegmentName] = {}
    for name in sorted(filter(None, map(parse_segment_name, names))):
        if name.sealed and name.number in chosen and not is_whole_file(disk, os.path.join(folder, str(name))):
            continue
        chosen[name.number] = name
    return list(chosen.values())


def is_whole_file(disk: Disk, path: str) -> bool:
    content = SealedContent(disk, disk.open(path))
    try:
        return content.is_whole()
    finally:
        content.close()


def _cached_header(disk: Disk, path: str, cache: HeaderCache) -> Header | None:
    """A header never changes, so a valid one is read once."""
    header = cache.get(path)
    if header is None:
        header = _read_header(disk, path)
        if header is not None:
            cache[path] = header
    return header


def _read_header(disk: Disk, path: str) -> Header | None:
    raw = read_line(disk, path, 0, _HEADER_BYTES_MAX)
    if not raw.endswith(b"\n"):
        return None
    try:
        data = _unverified.decode(raw).d
        claimed = _claim.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    line = parse(raw[:-1], seed_of(claimed.run))
    if line is None or line.t != "segment":
        return None
    if claimed.format > FORMAT:  # its own record says so, and is whole: not damage
        raise FormatError(
            f"{path} has format {claimed.format}; this version reads up to {FORMAT}: use a newer Holdfast for this run"
        )
    return Header(line, _segment.decode(data))


def _majority(headers: Iterable[Header | None]) -> str:
    """Whose journal this is when nobody says: what most segments say, so that one foreign file cannot take it over."""
    votes = Counter(header.segment.run for header in headers if header is not None)
    return votes.most_common(1)[0][0] if votes else ""


def _stray(kind: str, name: SegmentName, detail: str) -> Damage:
    return Damage(kind, name.number, 0, 0, 0, -1, detail=detail)
