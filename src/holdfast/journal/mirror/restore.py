"""Restoring a run folder from everything that is left of the run: the folder itself, its mirror, copies.

Invariant: nothing in the folder is lost, and each file appears whole or not at all. A crash leaves a folder that is
restored in part; restoring it again completes it.
"""

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast.errors import JournalError, StoreError
from holdfast.files import status_of
from holdfast.journal.disk import OS_DISK, make_folders, make_run_folder, write_pieces
from holdfast.journal.frames import FRAME_BYTES_MAX, salvage
from holdfast.journal.mirror.assembly import Assembler, SegmentChoice, choose
from holdfast.journal.mirror.pieces import FolderSource, SegmentPiece, Source, is_original, sealed_name
from holdfast.journal.start_copy import START_FILE, parse_start
from holdfast.records import Line, Segment, parse, seed_of

_HEADER_BYTES = 64 * 1024
_VOTES = 9
_line = msgspec.json.Decoder(Line)
_segment = msgspec.json.Decoder(Segment)


class Restored(msgspec.Struct, frozen=True):
    """The result: the run's uid, the segments that count, and whether the folder changed."""

    uid: str
    choice: SegmentChoice
    changed: bool


def restore(
    run: str,
    sources: Sequence[Source],
    warn: Callable[[str], None],
    *,
    files: Callable[[str], bool] = is_original,
    lossy: bool = True,
    trusting: bool = False,
) -> Restored:
    """Add to a run folder everything that the sources hold and it does not.

    `files` selects which of the other original files to fetch. `trusting`: do not read the folder's sealed files to
    check them. JournalError if the sources hold nothing, or another run than the folder. StoreError if an object cannot
    be read; with `lossy` it is left out with a warning.
    """
    here = FolderSource(run)
    every = [here, *sources]
    heads = _Heads(lossy=lossy)
    uids = {source.place: uid for source in every if (uid := _uid_of(source, heads))}
    if not uids:
        if heads.problem is not None:
            raise heads.problem
        places = ", ".join(source.place for source in sources)
        if any(source.pieces() for source in sources):
            raise JournalError(
                f"{places}: no beginning of any segment can be read, so nothing tells whose records these are; "
                "recover the run from another copy"
            )
        raise JournalError(f"{places}: there is no journal to recover")
    uid = uids.get(run) or next(iter(uids.values()))
    for place, found in uids.items():
        if found != uid:
            raise JournalError(
                f"{place} holds another run than {run if run in uids else next(iter(uids))} under the same name; "
                "recover it into another folder with --output, or mirror one of them elsewhere"
            )
    known = [source for source in every if source.place in uids]
    _refuse_diverged(known, uid, heads)
    choice = choose(known, {epoch for source in known for epoch in _proven_epochs(source, uid, heads)})
    assembler = Assembler(run, uid, warn, lossy=lossy, trusting=trusting)
    make_run_folder(OS_DISK, run)
    assembler.assemble(choice)
    changed = _fetch_files(run, sources, warn if lossy else None, files)
    return Restored(uid, choice, assembler.changed or changed)


def uid_of(source: Source) -> str:
    """The uid that most segment headers name, so that one foreign object cannot change it; empty if none is readable.

    A run may have many segments, so only a sample of the headers is read.
    """
    return _uid_of(source, _Heads())


def mirror_has_more(run: str, source: Source) -> bool:
    """Whether a source has more of the journal than the folder, by names and sizes only: no piece of it is read."""
    here = FolderSource(run)
    for segment in choose([here, source]).segments:
        layers = {layer.source.place: layer.pieces for layer in segment.layers}
        mine, others = layers.get(here.place, ()), layers.get(source.place, ())
        if mine and (mine[0].sealed or not others):
            continue
        if not mine or any(piece.sealed or piece.last > mine[0].last for piece in others):
            return True
    return False


def fetch_file(source: Source, name: str, path: str) -> None:
    """Write a durable copy of a source's file to `path`, replacing what is there. An error may leave a partial file."""
    write_pieces(OS_DISK, path, source.read(name))


class _Head(msgspec.Struct, frozen=True):
    """A segment's header; `line` is its line if that is intact, else None."""

    segment: Segment
    line: bytes | None


class _Heads:
    """Reads segment headers, each once. With `lossy`, a few failed reads are tolerated; more mean that the store is
    unreachable, and raise.
    """

    def __init__(self, *, lossy: bool = False) -> None:
        self.problem: StoreError | None = None
        self._read: dict[tuple[str, str], _Head | None] = {}
        self._failures_left = _VOTES if lossy else 0

    def of(self, source: Source, piece: SegmentPiece) -> _Head | None:
        key = source.place, piece.name
        if key not in self._read:
            try:
                self._read[key] = _read_head(source, piece)
            except StoreError as error:
                if not self._failures_left:
                    raise
                self._failures_left -= 1
                self.problem = error
                self._read[key] = None
        return self._read[key]


def _uid_of(source: Source, heads: _Heads) -> str:
    first = sorted(
        (piece for piece in source.pieces() if piece.first == 0),
        key=lambda each: (each.epoch, each.segment, each.sealed),
    )
    some = first[:: max(len(first) // _VOTES, 1)]
    votes = Counter(found.segment.run for piece in some if (found := heads.of(source, piece)))
    if votes:
        return votes.most_common(1)[0][0]
    found_uid = next((found.segment.run for piece in first if (found := heads.of(source, piece))), "")
    if found_uid or not source.pieces() or START_FILE not in source.files():
        return found_uid
    return parse_start(b"".join(source.read(START_FILE))).uid  # all headers are lost


def _refuse_diverged(sources: Sequence[Source], uid: str, heads: _Heads) -> None:
    """JournalError if two sources were continued independently under the same epoch.

    An epoch has one writer, so a segment of it starts with the same header everywhere. Two different headers mean that
    one process continued the run without a claim. Merged, their records would belong to neither history.
    """
    begun: dict[tuple[int, int], list[tuple[Source, SegmentPiece]]] = {}
    for source in sources:
        for piece in source.pieces():
            if piece.first == 0:
                begun.setdefault((piece.epoch, piece.segment), []).append((source, piece))
    equal_epochs: set[int] = set()
    for (epoch, _), every in sorted(begun.items(), key=lambda each: each[0]):
        if epoch in equal_epochs or len({source.place for source, _ in every}) < 2:
            continue
        found = ((source.place, heads.of(source, piece)) for source, piece in every)
        lines = {place: head.line for place, head in found if head and head.line and _is_of(head, uid, epoch)}
        if len({*lines.values()}) > 1:
            raise JournalError(
                f"{' and '.join(lines)} were both continued under epoch {epoch}, each without the other; nothing "
                "was changed: continue one of them, in another store (--store DIR) or with another mirror "
                "(--set mirror.url=URL)"
            )
        if len(lines) > 1:
            equal_epochs.add(epoch)


def _is_of(head: _Head, uid: str, epoch: int) -> bool:
    return (head.segment.run, head.segment.epoch) == (uid, epoch)


def _proven_epochs(source: Source, uid: str, heads: _Heads) -> Iterator[int]:
    """The epochs for which this source has a readable header of the run."""
    mine: dict[int, list[SegmentPiece]] = {}
    for piece in source.pieces():
        if piece.first == 0:
            mine.setdefault(piece.epoch, []).append(piece)
    for epoch, pieces in mine.items():
        if any((found := heads.of(source, piece)) and _is_of(found, uid, epoch) for piece in pieces):
            yield epoch


def _read_head(source: Source, piece: SegmentPiece) -> _Head | None:
    """The header of a segment; None if it cannot be trusted.

    It is trusted if its checksum is right, or, if its line is damaged, if a later record's checksum is right for the
    run that it names.
    """
    sealed = piece.sealed
    try:
        data = _first_bytes(source, piece.name)
    except StoreError as error:
        if sealed:
            raise
        # A live writer may have sealed the segment since it was listed, and then deleted its chunks.
        try:
            data, sealed = _first_bytes(source, sealed_name(piece.epoch, piece.segment)), True
        except StoreError:
            raise error from None
    try:
        if sealed:
            data = salvage(data, FRAME_BYTES_MAX)
        first, *others = data.splitlines()
        found = _segment.decode(_line.decode(first).d)
    except (ValueError, RecursionError, msgspec.DecodeError):  # damaged; another header names the run too
        return None
    seed = seed_of(found.run)
    if parse(first, seed) is not None:
        return _Head(found, first)
    return _Head(found, None) if any(parse(line, seed) is not None for line in others) else None


def _first_bytes(source: Source, name: str) -> bytes:
    data = b""
    for part in source.read(name):
        data += part
        if len(data) >= _HEADER_BYTES:
            break
    return data


def _fetch_files(
    run: str, sources: Sequence[Source], warn: Callable[[str], None] | None, is_selected: Callable[[str], bool]
) -> bool:
    """Fetch the files that the folder does not have; returns whether any was added. Without `warn`, failures raise."""
    changed = False
    for source in sources:
        for name in filter(is_selected, source.files()):
            path = os.path.join(run, name)
            found = status_of(path)
            is_there = found is not None and not stat.S_ISLNK(found.st_mode)  # a link is replaced, never followed
            if is_there:
                continue
            make_folders(OS_DISK, os.path.dirname(path))
            temporary = f"{path}.recovering.tmp"
            try:
                fetch_file(source, name, temporary)
            except StoreError as error:
                if warn is None:
                    raise
                warn(str(error))
                continue
            OS_DISK.replace(temporary, path)  # the content is synced already, so the name never shows a partial file
            OS_DISK.sync_folder(os.path.dirname(path))
            changed = True
    return changed
