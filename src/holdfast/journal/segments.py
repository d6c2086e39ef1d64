"""The segments of a journal folder, in order, each with its verified header.

The header, not the file name, determines which segment a file is, so swapped file names lose nothing. If several files
hold one segment, a whole sealed file with the right name is preferred, then a plain file. A file of another run, or
another copy of a segment, is a stray: it is reported and never read. Nothing here writes.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.errors import FormatError
from holdfast.files import is_folder
from holdfast.journal.disk import Disk, NotAFileError
from holdfast.journal.frames import unpack_start
from holdfast.journal.paths import SegmentName, parse_segment_name
from holdfast.journal.positions import Damage
from holdfast.journal.scan import SealedContent, read_line
from holdfast.records import FORMAT_MAX, SEGMENT, Fence, Line, Segment, parse, seed_of

_HEADER_BYTES_MAX = 64 * 1024
_PACKED_START_BYTES = 64 * 1024
_LISTINGS_MAX = 100


class Header(msgspec.Struct, frozen=True):
    """A verified segment record: the first line of a segment."""

    line: Line
    segment: Segment


class SegmentFile(msgspec.Struct, frozen=True):
    """One segment and the file that holds it. `header` is None if its first line cannot be read."""

    number: int
    name: SegmentName
    path: str
    header: Header | None

    @property
    def sealed(self) -> bool:
        return self.name.sealed

    @property
    def misnamed(self) -> bool:
        return self.name.number != self.number


class Chain(msgspec.Struct, frozen=True):
    """A journal's segments. `strays` are files that do not belong to it; `twins` are second files of a segment."""

    uid: str
    segments: tuple[SegmentFile, ...]
    strays: tuple[Damage, ...]
    twins: tuple[SegmentName, ...]
    names: frozenset[int]

    @property
    def epoch(self) -> int:
        """The greatest epoch that may have written here. Each unreadable header may have had an epoch of its own."""
        known = max((file.header.segment.epoch for file in self.segments if file.header), default=0)
        return known + sum(file.header is None for file in self.segments)

    def next_number(self) -> int:
        """The number of a new segment: greater than all others, and not the name of a stray file."""
        number = self.segments[-1].number + 1 if self.segments else 1
        while number in self.names:
            number += 1
        return number

    def from_number(self, number: int) -> Sequence[SegmentFile]:
        """The segments from `number` on."""
        return [file for file in self.segments if file.number >= number]


HeaderCache = dict[str, Header]


def list_chain(disk: Disk, folder: str, uid: str | None = None, cache: HeaderCache | None = None) -> Chain:
    """List the segments. A missing folder has none.

    If a file vanishes between listing and reading, it was sealed or quarantined: list again.
    """
    for attempt in range(_LISTINGS_MAX):
        try:
            return _list_once(disk, folder, uid, {} if cache is None else cache)
        except FileNotFoundError:
            if not is_folder(folder):
                return Chain(uid or "", (), (), (), frozenset())
            if attempt == _LISTINGS_MAX - 1:
                raise
        except NotADirectoryError:
            return Chain(uid or "", (), (), (), frozenset())
    raise AssertionError("unreachable")


def fence_between(file: SegmentFile, successor: SegmentFile) -> Fence | None:
    """Where `file` ends according to its successor's header; None if that is not known."""
    if successor.header is None or successor.header.segment.prev is None:
        return None
    prev = successor.header.segment.prev
    return prev if prev.segment == file.number else None


def _list_once(disk: Disk, folder: str, uid: str | None, cache: HeaderCache) -> Chain:
    names = sorted(filter(None, map(parse_segment_name, disk.names(folder))))
    headers = [_cached_header(disk, os.path.join(folder, str(name)), uid, cache) for name in names]
    run = uid or ""
    if not run:  # the run that most headers name, so that one foreign file cannot make the whole journal look foreign
        votes = Counter(header.segment.run for header in headers if header is not None)
        run = votes.most_common(1)[0][0] if votes else ""
    strays: list[Damage] = []
    candidates: dict[int, list[SegmentFile]] = {}
    for name, header in zip(names, headers, strict=True):
        if header is not None and header.segment.run != run:
            strays.append(_stray("foreign", name, f"{name} belongs to another run ({header.segment.run})"))
            continue
        if header is None and not _is_plausible(name, names, headers):
            strays.append(_stray("stray", name, f"{name} is no segment of this run"))
            continue
        number = name.number if header is None else header.segment.segment
        file = SegmentFile(number, name, os.path.join(folder, str(name)), header)
        candidates.setdefault(number, []).append(file)
    chosen, twins = [], []
    for number in sorted(candidates):
        best, *others = _rank(disk, candidates[number])
        chosen.append(best)
        if best.misnamed:
            strays.append(_stray("stray", best.name, f"{best.name} holds segment {number}; it is read as that"))
        for other in others:
            if other.misnamed or best.misnamed:
                strays.append(_stray("stray", other.name, f"{other.name} is another copy of segment {number}"))
            else:
                twins.append(other.name)
    return Chain(run, tuple(chosen), tuple(strays), tuple(twins), frozenset(name.number for name in names))


def _is_plausible(name: SegmentName, names: Sequence[SegmentName], headers: Sequence[Header | None]) -> bool:
    """Whether a file without a readable header can be a segment. Numbers grow one by one, so it must lie between other
    segments or directly behind them.
    """
    before = {other.number for other in names} | {header.segment.segment for header in headers if header}
    return name.number == 1 or name.number - 1 in before or any(number > name.number for number in before)


def _rank(disk: Disk, files: list[SegmentFile]) -> list[SegmentFile]:
    """The files of one segment, the most trustworthy first."""
    if len(files) == 1:
        return files

    def rank(file: SegmentFile) -> tuple[bool, bool, bool]:
        whole = file.sealed and file.header is not None and is_whole_file(disk, file.path)
        return (file.header is not None, not file.misnamed, whole or not file.sealed)

    ranks = {file.name: rank(file) for file in files}
    return sorted(files, key=lambda file: (ranks[file.name], file.sealed), reverse=True)


def is_whole_file(disk: Disk, path: str) -> bool:
    """Whether every byte of a sealed file is as it was written. False for something that is not a file."""
    try:
        handle = disk.open(path)
    except NotAFileError:
        return False
    with contextlib.closing(SealedContent(disk, handle)) as content:
        return content.is_whole()


def _cached_header(disk: Disk, path: str, uid: str | None, cache: HeaderCache) -> Header | None:
    """The header of a file. Headers never change, so each valid one is read once."""
    header = cache.get(path)
    if header is None:
        if path.endswith(".zst"):  # without the table of the file, which has an entry for each frame
            header = _header_in(_read_start(disk, path), uid, path)
        if header is None:
            header = _header_in(read_line(disk, path, 0, _HEADER_BYTES_MAX), uid, path)
        if header is not None:
            cache[path] = header
    return header


def _read_start(disk: Disk, path: str) -> bytes:
    """The first line of a sealed segment; nothing if it is longer than usual or cannot be read."""
    try:
        handle = disk.open(path)
    except NotAFileError:
        return b""
    try:
        start = unpack_start(disk.read(handle, 0, _PACKED_START_BYTES))
    finally:
        disk.close(handle)
    return start[: start.find(b"\n") + 1]


def _header_in(line: bytes, uid: str | None, path: str) -> Header | None:
    return parse_header(line[:-1], uid, path) if line.endswith(b"\n") else None


class _Claim(msgspec.Struct):
    """The fields that segment records of every format version have."""

    format: int
    run: str


_unverified = msgspec.json.Decoder(Line)
_claim = msgspec.json.Decoder(_Claim)
_segment = msgspec.json.Decoder(Segment)


def parse_header(raw: bytes, uid: str | None, path: str) -> Header | None:
    """The header in a line of the file at `path`; None if the line is no valid header. FormatError if its format is
    newer. Of a header of another run than `uid`, only the run is returned.
    """
    try:
        data = _unverified.decode(raw).d
        claimed = _claim.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    line = parse(raw, seed_of(claimed.run))
    if line is None or line.t != SEGMENT:
        return None
    if uid and claimed.run != uid:
        return Header(line, Segment(claimed.format, claimed.run, 0, 0, 0))  # the rest means nothing here
    if claimed.format > FORMAT_MAX:  # the record verifies, so this is a newer version and not damage
        raise FormatError(
            f"{path} has format {claimed.format}; this version reads up to {FORMAT_MAX}: use a newer Holdfast for this "
            "run"
        )
    try:
        return Header(line, _segment.decode(data))
    except msgspec.ValidationError:  # a right checksum does not prove that Holdfast wrote it
        return None


def _stray(kind: str, name: SegmentName, detail: str) -> Damage:
    return Damage(kind, name.number, 0, 0, 0, -1, detail=detail)
