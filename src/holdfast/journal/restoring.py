"""From what is left of a run, wherever it is, to a folder that can be read and gone on with."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
import zstandard

from holdfast.errors import JournalError, StoreError
from holdfast.journal.assembling import Assembler, Choice, choose
from holdfast.journal.disk import OS_DISK, make_folders, remove_if_there, write_all
from holdfast.journal.pieces import FolderSource, SegmentPiece, Source
from holdfast.records import Line, Segment, parse, seed_of

_HEADER_BYTES = 64 * 1024
_VOTES = 9
_line = msgspec.json.Decoder(Line)
_segment = msgspec.json.Decoder(Segment)


class Restored(msgspec.Struct, frozen=True):
    """What was put together."""

    uid: str
    choice: Choice
    changed: bool


def restore(
    run: str,
    sources: Sequence[Source],
    warn: Callable[[str], None],
    *,
    blobs: bool = True,
    lossy: bool = True,
    trusting: bool = False,
) -> Restored:
    """Bring a run's folder up to what its sources hold. Nothing in it is lost; doing it again completes what was cut
    off. JournalError if the sources hold nothing, or another run than the folder; StoreError, unless `lossy`, if one of
    them cannot give what it has. `trusting`: sealed files of the folder need not be read to be believed.
    """
    here = FolderSource(run)
    every = [here, *sources]
    uids = {source.place: uid for source in every if (uid := uid_of(source))}
    if not uids:
        raise _nothing(sources)
    uid = uids.get(run) or next(iter(uids.values()))
    for place, found in uids.items():
        if found != uid:
            raise JournalError(
                f"{place} holds another run than {run if run in uids else next(iter(uids))} under the same name; "
                "recover it into another folder with --output, or mirror one of them elsewhere"
            )
    known = [source for source in every if source.place in uids]
    choice = choose(known, {epoch for source in known for epoch in _proved(source, uid)})
    assembler = Assembler(run, uid, warn, lossy=lossy, trusting=trusting)
    make_folders(OS_DISK, run)
    assembler.assemble(choice)
    changed = _bring_files(run, sources, warn if lossy else None, blobs=blobs)
    return Restored(uid, choice, assembler.changed or changed)


def uid_of(source: Source) -> str:
    """Whose journal it is, as most headers of its segments say, so that one foreign object cannot take it over; empty
    if none can be read. Only some are looked at: they are as many as the segments.
    """
    first = sorted(
        (piece for piece in source.pieces() if piece.first == 0),
        key=lambda each: (each.epoch, each.segment, each.sealed),
    )
    some = first[:: max(len(first) // _VOTES, 1)]
    votes = Counter(found.run for piece in some if (found := _header(source, piece)))
    if votes:
        return votes.most_common(1)[0][0]
    return next((found.run for piece in first if (found := _header(source, piece))), "")


def _proved(source: Source, uid: str) -> Iterator[int]:
    """Epochs that a header of the run tells of."""
    mine: dict[int, list[SegmentPiece]] = {}
    for piece in source.pieces():
        if piece.first == 0:
            mine.setdefault(piece.epoch, []).append(piece)
    for epoch, pieces in mine.items():
        if any((found := _header(source, piece)) and (found.run, found.epoch) == (uid, epoch) for piece in pieces):
            yield epoch


def _nothing(sources: Sequence[Source]) -> JournalError:
    places = ", ".join(source.place for source in sources)
    if any(source.pieces() for source in sources):
        return JournalError(
            f"{places}: no beginning of any segment can be read, so nothing tells whose records these are; "
            "recover the run from another copy"
        )
    return JournalError(f"{places}: there is no journal to recover")


def _header(source: Source, piece: SegmentPiece) -> Segment | None:
    """What the first record says, if it can be believed: its checksum is right, or, where that record is damaged, that
    of another one behind it is right for the run that it names.
    """
    data = b""
    for part in source.read(piece.name):
        data += part
        if len(data) >= _HEADER_BYTES:
            break
    try:
        if piece.sealed:
            data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        first, *others = data.splitlines()
        found = _segment.decode(_line.decode(first).d)
    except (ValueError, zstandard.ZstdError, msgspec.DecodeError):  # damaged: another segment's will do
        return None
    seed = seed_of(found.run)
    return found if any(parse(line, seed) is not None for line in (first, *others)) else None


def _bring_files(run: str, sources: Sequence[Source], warn: Callable[[str], None] | None, *, blobs: bool) -> bool:
    """Those that the folder does not have. Each appears whole, or not at all. Nobody to warn: a failure is raised."""
    changed = False
    for source in sources:
        for name in source.files():
            path = os.path.join(run, name)
            if os.path.exists(path) or (name.startswith("blobs/") and not blobs):
                continue
            make_folders(OS_DISK, os.path.dirname(path))
            temporary = f"{path}.recovering.tmp"
            remove_if_there(OS_DISK, temporary)
            handle = OS_DISK.create(temporary)
            try:
                for data in source.read(name):
                    write_all(OS_DISK, handle, [data])
                OS_DISK.sync(handle)
            except StoreError as error:
                if warn is None:
                    raise
                warn(str(error))
                continue
            finally:
                OS_DISK.close(handle)
            OS_DISK.replace(temporary, path)
            OS_DISK.sync_folder(os.path.dirname(path))
            changed = True
    return changed
