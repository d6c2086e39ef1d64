"""Opening a journal to write: the one path, for a first run, a resume and a takeover, whatever other files exist.

Sync the last segment, verify it, put what is broken into quarantine, mend its end, and start a new segment under a
new epoch whose header says where the old one ends and which losses were found. Cost: one segment, however long the
run. Every step can be interrupted and done again: a loss is recorded exactly once because it becomes durable together
with the header that closes the segment it is in.
"""

import os
from collections.abc import Iterator

import msgspec

from holdfast.errors import DamagedError, FencedError
from holdfast.journal.appender import SEGMENT_BYTES, Appender, Hooks
from holdfast.journal.content import PIECE_BYTES, Content, open_segment
from holdfast.journal.disk import Disk, NotAFileError, remove_if_there, write_all
from holdfast.journal.paths import quarantine_folder
from holdfast.journal.positions import Damage, Entry
from holdfast.journal.reader import Reader, end_of
from holdfast.journal.scan import Scanner, Tail
from holdfast.journal.segments import Chain, SegmentFile, list_chain
from holdfast.journal.start_copy import read_start
from holdfast.records import Fence, draft, seed_of


class Request(msgspec.Struct, frozen=True):
    """Who opens. `epoch` None takes the next one; `acknowledged_n` is what a lease, mirror or index knows to have been
    durable, under `acknowledged_epoch`: if the journal was last written under another one, that was no word of it.
    """

    uid: str
    epoch: int | None = None
    acknowledged_n: int = 0
    acknowledged_epoch: int | None = None
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
    chain = list_chain(disk, folder, request.uid)
    epoch = chain.epoch + 1 if request.epoch is None else request.epoch
    if epoch <= chain.epoch:
        raise FencedError(f"{folder} was already written under epoch {chain.epoch}; epoch {epoch} has lost the run")
    _require_files(disk, chain)
    _tidy(disk, folder, chain)
    number = chain.next_number()
    end = _find_end(disk, folder, chain)
    fence, lost = end.fence, list(end.lost)
    acknowledged_n = _last_acknowledged(disk, folder, chain, request)
    if acknowledged_n > (fence.n if fence else 0):
        fence, unseen = _skip_acknowledged(fence, acknowledged_n, number)
        lost.append((unseen, ""))
    appender = Appender(disk, folder, request.uid, epoch, hooks, request.segment_bytes)
    appender.begin(number, fence, [draft("anomaly", damage.anomaly(kept)) for damage, kept in lost])
    unsealed = tuple(file.number for file in chain.segments if not file.sealed and not file.misnamed)
    return Opened(appender, epoch, tuple(damage for damage, _ in lost), unsealed)


def _last_acknowledged(disk: Disk, folder: str, chain: Chain, request: Request) -> int:
    """The last number that is known to have been durable: by the request, or because started.jsonl has its record."""
    start = read_start(disk, os.path.dirname(folder))
    copied = [each.line.n for each in start.valid_in(chain)] if start.uid == request.uid else []
    known = request.acknowledged_epoch in (None, chain.epoch)
    return max([request.acknowledged_n if known else 0, *copied])


def _require_files(disk: Disk, chain: Chain) -> None:
    """Refuse to write behind a segment that is a link or a folder: what it stands for may still exist, and closing the
    journal without it would make its loss final.
    """
    for file in chain.segments:
        if file.header is None:
            try:
                disk.close(disk.open(file.path))
            except NotAFileError as error:
                raise DamagedError(
                    f"{file.path} is a folder, a link or a device instead of a file; put the file back, or remove what "
                    "is in its place to ask for its answers again; nothing was changed"
                ) from error


def _skip_acknowledged(fence: Fence | None, acknowledged_n: int, number: int) -> tuple[Fence, Damage]:
    """Someone knows of records that the file does not have. Their numbers were told, so they are never used again."""
    end = fence or Fence(0, 0, 0, "")
    detail = f"records up to {acknowledged_n} were acknowledged; the journal ends with {end.n}"
    place = end.segment or number
    unseen = Damage("lost", place, end.bytes, end.bytes, end.n + 1, acknowledged_n, detail=detail)
    return msgspec.structs.replace(end, n=acknowledged_n), unseen


def _tidy(disk: Disk, folder: str, chain: Chain) -> None:
    """Remove what an interrupted opening or sealing left: temporary files, and second files of a segment.

    A plain file is equal to the whole sealed one that counts; a sealed one that is not whole is kept in quarantine.
    """
    for name in disk.names(folder):
        if name.endswith(".tmp"):
            disk.remove(os.path.join(folder, name))
    for twin in chain.twins:
        path = os.path.join(folder, str(twin))
        if twin.sealed:
            _quarantine(disk, folder, path, 0, None)
        disk.remove(path)
    disk.sync_folder(folder)


def _find_end(disk: Disk, folder: str, chain: Chain) -> _End:
    """Verify the last segment, keep copies of what is broken in it, and make it end with a whole record."""
    if not chain.segments:
        return _End(None)
    last = chain.segments[-1]
    n = last.header.line.n - 1 if last.header else _last_number_before(disk, folder, chain, last)
    scanner = Scanner(last.number, seed_of(chain.uid), n)
    if not last.sealed:
        _sync(disk, last.path)  # what we are about to trust must not be only in the page cache
    content = open_segment(disk, last.path)
    try:
        damage = [each for each in _scan(scanner, content) if isinstance(each, Damage)]
        tail = scanner.tail()
        if tail is not None and tail.whole:
            damage += [each for each in scanner.accept_tail(tail) if isinstance(each, Damage)]
        else:
            damage += end_of(scanner, last, content)
        kept = {area: _keep(disk, folder, last, area) for area in damage}
        size = content.size()
    finally:
        content.close()
    if not last.sealed:
        size = _mend(disk, last.path, tail, size)
    lost = tuple((area, file) for area, file in kept.items() if _matters(area))
    n_last = max([scanner.n, *(area.n_last for area, _ in lost)])
    return _End(Fence(last.number, size, n_last, scanner.x), lost)


def _scan(scanner: Scanner, content: Content) -> Iterator[Entry | Damage]:
    for piece in content.pieces(0):
        yield from scanner.feed(piece)


def _matters(damage: Damage) -> bool:
    """A torn tail is no loss: nobody was told of it. It goes to quarantine without a record."""
    return damage.kind != "torn" or damage.records_lost > 0


def _mend(disk: Disk, path: str, tail: Tail | None, size: int) -> int:
    """Make the file end with a newline: complete a whole last record, cut an unfinished one. Returns the new size."""
    if tail is None:
        return size
    handle = disk.open(path, write=True)
    try:
        size = tail.line_end if tail.whole else tail.first
        disk.truncate(handle, size)  # what goes is NULs, or is in quarantine, durable
        disk.sync(handle)
        if tail.whole:
            size += write_all(disk, handle, [b"\n"])
            disk.sync(handle)
    finally:
        disk.close(handle)
    return size


def _last_number_before(disk: Disk, folder: str, chain: Chain, last: SegmentFile) -> int:
    """The header is lost, so its number follows from the records before it, and from the headers of other segments that
    are lost as well: each had a number. Rare: reads the journal once.
    """
    n = told = segment = 0
    for found in Reader(folder, chain.uid, disk=disk).read():
        if found.segment >= last.number:
            if isinstance(found, Entry):
                break
            continue
        if isinstance(found, Entry):
            n, segment = found.line.n, found.segment
        else:
            told = max(told, found.n_last)
    headless = sum(each.header is None for each in chain.segments if segment < each.number < last.number)
    return max(n + headless, told)


def _sync(disk: Disk, path: str) -> None:
    handle = disk.open(path, write=True)
    try:
        disk.sync(handle)
    finally:
        disk.close(handle)


def _keep(disk: Disk, folder: str, file: SegmentFile, damage: Damage) -> str:
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
