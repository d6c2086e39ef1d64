"""Opening a journal to write: the one path, for a first run, a resume and a takeover, whatever other files exist.

Sync the last segment, verify it, put what is broken into quarantine, mend its end, and start a new segment under a
new epoch whose header says where the old one ends and which losses were found. Cost: one segment, however long the
run. Every step can be interrupted and done again: a loss is recorded exactly once because it becomes durable together
with the header that closes the segment it is in.
"""

import os
from collections.abc import Sequence

import msgspec

from holdfast.errors import FencedError
from holdfast.journal.appender import SEGMENT_BYTES, Appender, Hooks
from holdfast.journal.chain import Chain, SegmentFile, list_chain
from holdfast.journal.content import PIECE_BYTES, Content, open_content
from holdfast.journal.disk import Disk, remove_if_there, write_all
from holdfast.journal.marks import Damage, Entry
from holdfast.journal.places import parse_segment_name, quarantine_folder
from holdfast.journal.reader import Reader
from holdfast.journal.scan import Scanner, Tail
from holdfast.records import Draft, Fence, draft, seed_of


class Request(msgspec.Struct, frozen=True):
    """Who opens. `epoch` None takes the next one; `acknowledged_n` is what a lease, mirror or index knows to have been
    durable.
    """

    uid: str
    epoch: int | None = None
    acknowledged_n: int = 0
    segment_bytes: int = SEGMENT_BYTES


class Opened(msgspec.Struct, frozen=True):
    """The journal's end, ready to append, with what was found wrong and which plain segments wait to be sealed."""

    appender: Appender
    epoch: int
    damage: tuple[Damage, ...]
    unsealed: tuple[int, ...]


class _End(msgspec.Struct, frozen=True):
    """Where the journal ends, and what was lost on the way there, each with its quarantine file."""

    fence: Fence | None
    lost: tuple[tuple[Damage, str], ...] = ()


def open_to_write(disk: Disk, folder: str, request: Request, hooks: Hooks) -> Opened:
    """The caller holds the run's lock. `folder` exists or its parent does."""
    disk.make_folder(folder)
    disk.sync_folder(os.path.dirname(folder))
    chain = _tidy(disk, folder, request.uid)
    epoch = chain.epoch + 1 if request.epoch is None else request.epoch
    if epoch <= chain.epoch:
        raise FencedError(f"{folder} was already written under epoch {chain.epoch}; epoch {epoch} has lost the run")
    end = _find_end(disk, folder, chain)
    lost = list(end.lost)
    fence = end.fence
    if fence is not None and request.acknowledged_n > fence.n:
        detail = f"records up to {request.acknowledged_n} were acknowledged; the file ends with {fence.n}"
        known = Damage(
            "lost", fence.segment, fence.bytes, fence.bytes, fence.n + 1, request.acknowledged_n, detail=detail
        )
        lost.append((known, ""))
        fence = msgspec.structs.replace(fence, n=request.acknowledged_n)  # a number that was told is never used again
    appender = Appender(disk, folder, request.uid, epoch, hooks, request.segment_bytes)
    appender.begin(chain.last_number + 1, fence, [_anomaly(damage, kept) for damage, kept in lost])
    unsealed = tuple(file.number for file in chain.segments if not file.sealed)
    return Opened(appender, epoch, tuple(damage for damage, _ in lost), unsealed)


def _anomaly(damage: Damage, quarantine: str) -> Draft:
    return draft("anomaly", damage.anomaly(quarantine))


def _tidy(disk: Disk, folder: str, uid: str) -> Chain:
    """Remove what an interrupted opening or sealing left, and what holds nothing at the end of the chain."""
    names = disk.names(folder)
    for name in names:
        if name.endswith(".tmp"):
            disk.remove(os.path.join(folder, name))
    chain = list_chain(disk, folder, uid)
    _drop_second_copies(disk, folder, names, chain)
    while chain.segments and _holds_nothing(disk, chain.segments[-1], uid):
        path = chain.segments[-1].path
        _quarantine(disk, folder, path, 0, None)
        disk.remove(path)
        chain = list_chain(disk, folder, uid)
    disk.sync_folder(folder)
    return chain


def _drop_second_copies(disk: Disk, folder: str, names: Sequence[str], chain: Chain) -> None:
    """Of a plain and a sealed file of one segment, the one that does not count goes: the plain one is equal to a whole
    sealed one; a sealed one that is not whole is kept in quarantine.
    """
    counted = {os.path.basename(file.path) for file in chain.segments}
    for name in names:
        parsed = parse_segment_name(name)
        if parsed is None or name in counted:
            continue
        other = str(parsed._replace(sealed=not parsed.sealed))
        if other in counted:
            if parsed.sealed:
                _quarantine(disk, folder, os.path.join(folder, name), 0, None)
            disk.remove(os.path.join(folder, name))


def _holds_nothing(disk: Disk, file: SegmentFile, uid: str) -> bool:
    """A last segment without a single valid line: nothing in it was ever acknowledged."""
    if file.header is not None:
        return False
    content = open_content(disk, file.path)
    try:
        scanner = Scanner(file.number, seed_of(uid), 0)
        found = (found for piece in content.pieces(0) for found in scanner.feed(piece))
        if any(isinstance(each, Entry) for each in found):
            return False
        tail = scanner.tail()
        return tail is None or tail.line is None
    finally:
        content.close()


def _find_end(disk: Disk, folder: str, chain: Chain) -> _End:
    if not chain.segments:
        return _End(None)
    last = chain.segments[-1]
    n = last.header.line.n - 1 if last.header else _last_number_before(disk, folder, chain, last)
    scanner = Scanner(last.number, seed_of(chain.uid), n)
    if not last.sealed:
        _sync(disk, last.path)  # what we are about to trust must not be only in the page cache
    content = open_content(disk, last.path)
    try:
        found = (found for piece in content.pieces(0) for found in scanner.feed(piece))
        damage = [each for each in found if isinstance(each, Damage)]
        tail = scanner.tail()
        size = content.size()
        kept = {area: _keep(disk, folder, last, content, area) for area in damage}
        if tail is not None and tail.line is None:
            scanner.blame_tail("torn")
        trailing = scanner.trailing()
        if trailing is not None:
            kept[trailing] = _keep(disk, folder, last, content, trailing)
    finally:
        content.close()
    if not last.sealed:
        size = _mend(disk, last.path, tail, size)
    return _End(
        _fence(scanner, tail, trailing, size), tuple((area, file) for area, file in kept.items() if _matters(area))
    )


def _fence(scanner: Scanner, tail: Tail | None, trailing: Damage | None, size: int) -> Fence:
    if tail is not None and tail.line is not None:
        return Fence(scanner.segment, size, tail.line.n, tail.line.x)
    return Fence(scanner.segment, size, trailing.n_last if trailing else scanner.n, scanner.x)


def _matters(damage: Damage) -> bool:
    """A torn tail is no loss: nobody was told of it. It goes to quarantine without a record."""
    return damage.kind != "torn"


def _mend(disk: Disk, path: str, tail: Tail | None, size: int) -> int:
    """Make the file end with a newline: complete a whole last record, cut an unfinished one. Returns the new size."""
    if tail is None:
        return size
    handle = disk.open(path, write=True)
    try:
        size = tail.first if tail.line is None else tail.line_end
        disk.truncate(handle, size)  # what goes is NULs, or is in quarantine, durable
        disk.sync(handle)
        if tail.line is not None:
            size += write_all(disk, handle, [b"\n"])
            disk.sync(handle)
    finally:
        disk.close(handle)
    return size


def _last_number_before(disk: Disk, folder: str, chain: Chain, last: SegmentFile) -> int:
    """The header is lost, so its number follows from the records before it. Rare: reads the journal once."""
    reader = Reader(folder, chain.uid, disk=disk)
    n = 0
    for found in reader.read():
        if isinstance(found, Entry) and found.segment >= last.number:
            break
        n = found.line.n if isinstance(found, Entry) else max(n, found.n_last)
    return n


def _sync(disk: Disk, path: str) -> None:
    handle = disk.open(path, write=True)
    try:
        disk.sync(handle)
    finally:
        disk.close(handle)


def _keep(disk: Disk, folder: str, file: SegmentFile, content: Content, damage: Damage) -> str:
    """Copy the broken bytes of a plain segment to quarantine. A sealed one is immutable and keeps them itself."""
    if file.sealed or damage.last <= damage.first:
        return ""
    return _quarantine(disk, folder, file.path, damage.first, damage.last)


def _quarantine(disk: Disk, folder: str, path: str, first: int, last: int | None) -> str:
    """A durable copy of bytes [first, last) of a file, before they are cut or removed. The same bytes get the same
    name.
    """
    place = quarantine_folder(folder)
    disk.make_folder(place)
    disk.sync_folder(folder)
    source = disk.open(path)
    try:
        end = disk.size(source) if last is None else last
        name = f"{os.path.basename(path)}.{first}-{end}"
        target = os.path.join(place, name)
        remove_if_there(disk, target)
        handle = disk.create(target)
        try:
            for at in range(first, end, PIECE_BYTES):
                write_all(disk, handle, [disk.read(source, at, min(PIECE_BYTES, end - at))])
            disk.sync(handle)
        finally:
            disk.close(handle)
    finally:
        disk.close(source)
    disk.sync_folder(place)
    return f"quarantine/{name}"
