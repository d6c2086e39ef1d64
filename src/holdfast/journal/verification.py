"""Checking a whole journal: what is damaged, which records are lost, and which losses are recorded already.

Reads every byte once, in bounded memory, and changes nothing. An error is a loss or a risk that no anomaly record
mentions yet. A warning is damage that is recorded, harmless or in void bytes.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast.errors import DamagedError, FormatError
from holdfast.journal.disk import OS_DISK, Disk
from holdfast.journal.positions import Damage, Entry, is_recorded
from holdfast.journal.reader import Reader
from holdfast.journal.scan import Scanner, SealedContent, SegmentContent, open_segment
from holdfast.journal.segments import Chain, SegmentFile, fence_between, list_chain
from holdfast.journal.start_copy import START_FILE, read_start
from holdfast.records import ANOMALY, RUN_STARTED, Anomaly, Line, seed_of

Progress = Callable[[int, int], None]
"""Receives the number of bytes checked so far, and of all bytes."""
_anomaly = msgspec.json.Decoder(Anomaly)


class Verification(msgspec.Struct, frozen=True):
    """The result. `errors` is empty if and only if every loss is recorded in the journal itself."""

    uid: str
    segments: int
    records: int
    last_n: int
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    damage: tuple[Damage, ...]
    """Losses that no anomaly record mentions."""
    known: tuple[Damage, ...]
    """Losses that an anomaly record mentions already."""
    keys: tuple[str, ...]
    """Keys that are readable in damaged bytes or named by anomaly records: their samples may be affected."""

    @property
    def ok(self) -> bool:
        return not self.errors


def verify(
    folder: str,
    uid: str | None = None,
    disk: Disk = OS_DISK,
    progress: Progress | None = None,
    check: Callable[[Line], None] = lambda line: None,
) -> Verification:
    """Check every byte of a journal that is not being written. `check` raises DamagedError for a record whose data
    cannot be right.
    """
    reader = Reader(folder, uid, disk=disk)
    damage: list[Damage] = []
    anomalies: list[Anomaly] = []
    errors: list[str] = []
    records = last_n = 0
    begun = False
    try:
        before, total = _layout(disk, folder, uid) if progress is not None else ({}, 0)
        for found in reader.read():
            if isinstance(found, Damage):
                damage.append(found)
                continue
            begun = begun or found.line.t == RUN_STARTED
            if found.is_copy:
                continue
            records, last_n = records + 1, found.line.n
            if progress is not None:
                progress(before.get(found.segment, 0) + found.end, total)
            errors += _check_data(found.line, check)
            if found.line.t == ANOMALY:
                anomalies += _decode_anomaly(found.line)
        chain = list_chain(disk, folder, uid or reader.uid)
    except (DamagedError, FormatError) as error:
        errors.append(str(error))
        chain = Chain(uid or "", (), (), (), frozenset())
    if not chain.segments and not errors:
        errors.append(f"{folder} holds no journal: no segment can be found in it")
    known = [each for each in damage if is_recorded(each, anomalies)]
    torn = [each for each in damage if each.kind == "torn"]
    new = [each for each in damage if each not in known and each not in torn]
    errors += map(describe, new)
    warnings = [f"{describe(each)} (already recorded)" for each in known]
    warnings += [f"{describe(each)}; the next resume cuts it, nothing acknowledged is lost" for each in torn]
    flaw = read_start(disk, os.path.dirname(folder)).flaw if begun else ""
    if flaw:
        warnings.append(
            f"{START_FILE} {flaw}; it is a second copy of what begins the journal, a resume writes it again"
        )
    recorded = {anomaly.segment for anomaly in anomalies}
    for index, file in enumerate(chain.segments):
        _check_file(disk, file, chain.segments[index + 1 : index + 2], recorded, errors, warnings)
    keys = {key: None for each in damage for key in each.keys}
    keys.update({key: None for anomaly in anomalies for key in anomaly.keys})
    return Verification(
        uid=chain.uid,
        segments=len(chain.segments),
        records=records,
        last_n=last_n,
        errors=tuple(errors),
        warnings=tuple(warnings),
        damage=tuple(new),
        known=tuple(known),
        keys=tuple(keys),
    )


def _layout(disk: Disk, folder: str, uid: str | None) -> tuple[dict[int, int], int]:
    """The number of bytes before each segment, and in all segments."""
    before: dict[int, int] = {}
    total = 0
    for file in list_chain(disk, folder, uid).segments:
        before[file.number] = total
        with contextlib.closing(open_segment(disk, file.path)) as content:
            total += content.size()
    return before, total


def _decode_anomaly(line: Line) -> list[Anomaly]:
    """The anomaly, if it is about lost bytes. Anomaly records about a sample's answer have other fields."""
    try:
        return [_anomaly.decode(line.d)]
    except (msgspec.DecodeError, RecursionError):
        return []


def _check_data(line: Line, check: Callable[[Line], None]) -> list[str]:
    try:
        check(line)
    except DamagedError as error:
        return [str(error)]
    return []


def describe(damage: Damage) -> str:
    """One line for people: the kind of damage, where it is, and which records are lost."""
    lost = damage.records_lost
    what = {0: "no record lost", 1: f"record {damage.n_first} lost"}.get(
        lost, f"records {damage.n_first} to {damage.n_last} lost"
    )
    if damage.open_end:
        what = f"at least {what}"
    where = f"segment {damage.segment}"
    if damage.last > damage.first:
        where += f", bytes {damage.first} to {damage.last} uncompressed"
    return f"{damage.kind} in {where}: {what}" + (f" ({damage.detail})" if damage.detail else "")


def _check_file(
    disk: Disk,
    file: SegmentFile,
    successors: Sequence[SegmentFile],
    recorded: set[int],
    errors: list[str],
    warnings: list[str],
) -> None:
    """Check what reading records cannot show: changed bytes that hold no record, and void bytes. `recorded`: segments
    whose losses are recorded.
    """
    with contextlib.closing(open_segment(disk, file.path)) as content:
        if isinstance(content, SealedContent) and not content.is_whole():
            messages = errors if file.number not in recorded else warnings
            messages.append(f"{file.path}: the sealed file has changed since it was written")
        warnings += _describe_void(content, file, successors)


def describe_voids(folder: str, uid: str | None = None, disk: Disk = OS_DISK) -> list[str]:
    """Void bytes behind the fences, one line of text per segment. Cheap: no record is read."""
    segments = list_chain(disk, folder, uid).segments
    found: list[str] = []
    for index, file in enumerate(segments):
        with contextlib.closing(open_segment(disk, file.path)) as content:
            found += _describe_void(content, file, segments[index + 1 : index + 2])
    return found


def void_entries(folder: str, disk: Disk = OS_DISK) -> Iterator[Entry]:
    """The records behind the fences of other epochs: written by processes that had lost the run."""
    chain = list_chain(disk, folder)
    for file, successor in itertools.pairwise(chain.segments):
        fence = fence_between(file, successor)
        headers = (file.header, successor.header)
        # A process that continues in a new segment after a failed write repeats its own records there.
        if fence is None or None in headers or len({each.segment.epoch for each in headers if each}) == 1:
            continue
        with contextlib.closing(open_segment(disk, file.path)) as content:
            scanner = Scanner(file.number, seed_of(chain.uid), fence.n, fence.x, fence.bytes)
            for piece in content.pieces(fence.bytes) if content.size() > fence.bytes else ():
                yield from (each for each in scanner.feed(piece) if isinstance(each, Entry))


def _describe_void(content: SegmentContent, file: SegmentFile, successors: Sequence[SegmentFile]) -> list[str]:
    fence = fence_between(file, successors[0]) if successors else None
    if fence is None or content.size() <= fence.bytes:
        return []
    void = content.size() - fence.bytes
    return [f"segment {file.number}: {void} bytes beyond byte {fence.bytes} are void and not counted"]
