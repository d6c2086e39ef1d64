"""Opening a journal to write, and repairing its torn tail (`_repair_torn_tail`).

This is the only path to a writable journal: first run, resume and takeover all use `open_to_write`. Its order:

1. Sync the last segment, so that what is verified next is really on disk.
2. Verify the last segment. Copy damaged bytes to `quarantine/` and make the copies durable.
3. Repair the torn tail: make the last segment end with a whole record and a newline.
4. Start a new segment under a new epoch. Its header holds the fence (where the old segment ends), and the losses that
   were found are recorded in the same write.

The cost is that of reading one segment, however long the run is. A crash at any line leaves a state from which the next
opening does the same again. A loss is recorded exactly once, because its record becomes durable together with the
header that closes the damaged segment.
"""

import os

import msgspec

from holdfast.errors import DamagedError, FencedError
from holdfast.journal.appender import SEGMENT_BYTES, Appender, Hooks
from holdfast.journal.disk import Disk, NotAFileError, write_all, write_pieces
from holdfast.journal.paths import quarantine_folder
from holdfast.journal.positions import Damage, Entry
from holdfast.journal.reader import Reader, end_of
from holdfast.journal.scan import PIECE_BYTES, Scanner, Tail, open_segment
from holdfast.journal.segments import Chain, SegmentFile, list_chain
from holdfast.journal.start_copy import read_start
from holdfast.records import ANOMALY, FORMAT, Fence, draft, seed_of


class OpenRequest(msgspec.Struct, frozen=True):
    """What the caller knows about the run. `epoch` None takes the next one.

    `acknowledged_n` is the last record that a lease, mirror or index knows to have been durable. It was written under
    `acknowledged_epoch`; if the journal was last written under another epoch, the number says nothing about it.
    """

    uid: str
    epoch: int | None = None
    acknowledged_n: int = 0
    acknowledged_epoch: int | None = None
    segment_bytes: int = SEGMENT_BYTES
    format: int = FORMAT
    """The least format of new segments. A journal that has a newer one keeps it."""


class Opened(msgspec.Struct, frozen=True):
    """A journal ready to append, the losses that opening found, and the plain segments that are not sealed yet."""

    appender: Appender
    epoch: int
    damage: tuple[Damage, ...]
    unsealed: tuple[int, ...]


class _End(msgspec.Struct, frozen=True):
    """Where the journal ends, and each loss in its last segment with the name of its quarantine file."""

    fence: Fence | None
    lost: tuple[tuple[Damage, str], ...] = ()


def open_to_write(disk: Disk, folder: str, request: OpenRequest, hooks: Hooks) -> Opened:
    """Repair the journal in `folder` and start a new segment. The caller holds the run's lock.

    FencedError if a newer epoch wrote the journal; DamagedError if a segment was replaced by a link or folder.
    """
    disk.make_folder(folder)
    disk.sync_folder(os.path.dirname(folder))  # else a power loss could remove the folder with all its segments
    chain = list_chain(disk, folder, request.uid)
    epoch = chain.epoch + 1 if request.epoch is None else request.epoch
    if epoch <= chain.epoch:
        raise FencedError(f"{folder} was already written under epoch {chain.epoch}; epoch {epoch} has lost the run")
    _require_files(disk, chain)
    _remove_leftovers(disk, folder, chain)
    number = chain.next_number()
    end = _repair_last_segment(disk, folder, chain)
    fence, lost = end.fence, list(end.lost)
    # The last number that is known to have been durable, from the request or from the records in started.jsonl.
    start = read_start(disk, os.path.dirname(folder))
    copied = [each.line.n for each in start.valid_in(chain)] if start.uid == request.uid else []
    known = request.acknowledged_epoch in (None, chain.epoch)
    acknowledged_n = max([request.acknowledged_n if known else 0, *copied])
    if acknowledged_n > (fence.n if fence else 0):
        # The journal has lost acknowledged records. A mirror or an index refers to them by number, so the fence moves
        # past them: their numbers are never used again.
        last = fence or Fence(0, 0, 0, "")
        detail = f"records up to {acknowledged_n} were acknowledged; the journal ends with {last.n}"
        segment = last.segment or number
        missing = Damage("lost", segment, last.bytes, last.bytes, last.n + 1, acknowledged_n, detail=detail)
        lost.append((missing, ""))
        fence = msgspec.structs.replace(last, n=acknowledged_n)
    appender = Appender(disk, folder, request.uid, epoch, hooks, request.segment_bytes)
    appender.format = max([request.format, *(file.header.segment.format for file in chain.segments if file.header)])
    # The anomaly records are in the same write as the header: after a crash both exist or neither does. So a loss is
    # recorded exactly once, however often the opening is interrupted.
    appender.begin(number, fence, [draft(ANOMALY, damage.anomaly(copy)) for damage, copy in lost])
    unsealed = tuple(file.number for file in chain.segments if not file.sealed and not file.misnamed)
    return Opened(appender, epoch, tuple(damage for damage, _ in lost), unsealed)


def _require_files(disk: Disk, chain: Chain) -> None:
    """DamagedError if a segment is a link or a folder. The original file may still exist elsewhere, and writing a fence
    behind it would make the loss of its records final.
    """
    for file in chain.segments:
        if file.header is None:
            try:
                disk.close(disk.open(file.path))
            except NotAFileError as error:
                raise DamagedError(
                    f"{file.path} is a folder, a link or a device instead of a file; put the file back, or remove that "
                    "entry to request its answers again; nothing was changed"
                ) from error


def _remove_leftovers(disk: Disk, folder: str, chain: Chain) -> None:
    """Remove what an interrupted opening or sealing left: temporary files, and second files of a segment.

    A plain second file equals the whole sealed file, which is the one that counts. A sealed second file is damaged, so
    a copy goes to quarantine first.
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


def _repair_last_segment(disk: Disk, folder: str, chain: Chain) -> _End:
    """Verify the last segment, copy damaged bytes to quarantine, repair its torn tail. Returns where it ends."""
    if not chain.segments:
        return _End(None)
    last = chain.segments[-1]
    n = last.header.line.n - 1 if last.header else _last_number_before(disk, folder, chain, last)
    scanner = Scanner(last.number, seed_of(chain.uid), n)
    if not last.sealed:
        # A record that a dead process wrote and did not sync may be only in the page cache. It reads as valid now, and
        # the fence is about to promise it, so it must be on disk first.
        handle = disk.open(last.path, write=True)
        try:
            disk.sync(handle)
        finally:
            disk.close(handle)
    content = open_segment(disk, last.path)
    try:
        found = (each for piece in content.pieces(0) for each in scanner.feed(piece))
        damage = [each for each in found if isinstance(each, Damage)]
        tail = scanner.tail()
        if tail is not None and tail.whole:
            damage += [each for each in scanner.accept_tail(tail) if isinstance(each, Damage)]
        else:
            damage += end_of(scanner, last, content)
        copies = dict.fromkeys(damage, "")
        for area in copies:
            if not last.sealed and area.last > area.first:  # a sealed file is never changed, so it needs no copy
                copies[area] = _quarantine(disk, folder, last.path, area.first, area.last)
        size = content.size()
    finally:
        content.close()
    if not last.sealed:
        # Only now: the quarantine copies of the bytes that are cut here are durable.
        size = _repair_torn_tail(disk, last.path, tail, size)
    # A torn tail is no loss, because its record was never acknowledged, unless whole records are missing before it.
    lost = tuple((area, file) for area, file in copies.items() if area.kind != "torn" or area.records_lost > 0)
    n_last = max([scanner.n, *(area.n_last for area, _ in lost)])
    return _End(Fence(last.number, size, n_last, scanner.x), lost)


def _repair_torn_tail(disk: Disk, path: str, tail: Tail | None, size: int) -> int:
    """Repair a torn tail: make a plain segment end with a whole record and a newline. Returns the new size.

    A crash during an append leaves bytes behind the last newline. If they are a whole record, only its newline is
    added. Otherwise they are cut; a copy is in quarantine. Running this twice gives the same file.
    """
    if tail is None:
        return size
    handle = disk.open(path, write=True)
    try:
        size = tail.line_end if tail.whole else tail.first
        disk.truncate(handle, size)  # removes only NULs, or bytes with a durable copy in quarantine
        # Sync before the newline is added: else a power loss could keep the newline and not the cut, and leave a line
        # of NULs between two records.
        disk.sync(handle)
        if tail.whole:
            size += write_all(disk, handle, [b"\n"])
            disk.sync(handle)  # the fence names this size, so it must be durable before the fence is
    finally:
        disk.close(handle)
    return size


def _last_number_before(disk: Disk, folder: str, chain: Chain, last: SegmentFile) -> int:
    """The number of the last record before a segment whose header is lost.

    It follows from the last record before it, plus one for each other lost header in between, because each header has a
    number too. Rare, so it may read the whole journal.
    """
    n = lost_n = segment = 0
    for found in Reader(folder, chain.uid, disk=disk).read():
        if found.segment >= last.number:
            if isinstance(found, Entry):
                break
            continue
        if isinstance(found, Entry):
            n, segment = found.line.n, found.segment
        else:
            lost_n = max(lost_n, found.n_last)
    headless = sum(each.header is None for each in chain.segments if segment < each.number < last.number)
    return max(n + headless, lost_n)


def _quarantine(disk: Disk, folder: str, path: str, first: int, last: int | None) -> str:
    """Make a durable copy of bytes [first, last) of a file, before they are cut or removed. Returns its name.

    The name depends only on the file and the range, so an opening that is repeated after a crash makes no second copy.
    """
    target_folder = quarantine_folder(folder)
    disk.make_folder(target_folder)
    disk.sync_folder(folder)
    source = disk.open(path)
    try:
        end = disk.size(source) if last is None else last
        name = f"{os.path.basename(path)}.{first}-{end}"
        target = os.path.join(target_folder, name)
        offsets = range(first, end, PIECE_BYTES)
        write_pieces(disk, target, (disk.read(source, at, min(PIECE_BYTES, end - at)) for at in offsets))
    finally:
        disk.close(source)
    disk.sync_folder(target_folder)  # the copy must not lose its name: the caller removes the original next
    return f"quarantine/{name}"
