"""From what is left of a run, wherever it is, to a folder that can be read and gone on with."""

import os
from collections.abc import Callable, Sequence

import msgspec
import zstandard

from holdfast.errors import JournalError, StoreError
from holdfast.journal.assembling import Assembler, Choice, choose
from holdfast.journal.disk import OS_DISK, make_folders, remove_if_there, write_all
from holdfast.journal.pieces import FolderSource, SegmentPiece, Source
from holdfast.records import Line, Segment

_HEADER_BYTES = 64 * 1024
_line = msgspec.json.Decoder(Line)
_segment = msgspec.json.Decoder(Segment)


class Restored(msgspec.Struct, frozen=True):
    """What was put together."""

    uid: str
    choice: Choice
    changed: bool


def restore(
    run: str, sources: Sequence[Source], warn: Callable[[str], None], *, blobs: bool = True, trusting: bool = False
) -> Restored:
    """Bring a run's folder up to what its sources hold. Nothing in it is lost; doing it again completes what was cut
    off. JournalError if the sources hold nothing, or another run than the folder.
    """
    here = FolderSource(run)
    every = [here, *sources]
    uids = {source.place: uid for source in every if (uid := uid_of(source, warn))}
    if not uids:
        raise JournalError(f"{', '.join(source.place for source in sources)}: there is no journal to recover")
    uid = uids.get(run) or next(iter(uids.values()))
    for place, found in uids.items():
        if found != uid:
            raise JournalError(
                f"{place} holds another run than {run if run in uids else next(iter(uids))} under the same name; "
                "recover it into another folder with --output, or mirror one of them elsewhere"
            )
    choice = choose([source for source in every if source.place in uids])
    assembler = Assembler(run, uid, warn, trusting=trusting)
    make_folders(OS_DISK, run)
    assembler.assemble(choice)
    changed = _bring_files(run, sources, warn, blobs=blobs)
    return Restored(uid, choice, assembler.changed or changed)


def uid_of(source: Source, warn: Callable[[str], None]) -> str:
    """Whose journal it is, as the header of any of its segments says; empty if none can be read."""
    first = [piece for piece in source.pieces() if piece.first == 0]
    for piece in sorted(first, key=lambda each: (each.epoch, each.segment, each.sealed)):
        try:
            found = _header(source, piece)
        except StoreError as error:
            warn(str(error))
            continue
        if found is not None:
            return found.run
    return ""


def _header(source: Source, piece: SegmentPiece) -> Segment | None:
    data = b""
    for part in source.read(piece.name):
        data += part
        if len(data) >= _HEADER_BYTES:
            break
    try:
        if piece.sealed:
            data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        line = _line.decode(data[: data.index(b"\n") + 1])
        return _segment.decode(line.d)
    except (ValueError, zstandard.ZstdError, msgspec.DecodeError):  # damaged: another segment's will do
        return None


def _bring_files(run: str, sources: Sequence[Source], warn: Callable[[str], None], *, blobs: bool) -> bool:
    """Those that the folder does not have. Each appears whole, or not at all."""
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
                warn(str(error))
                continue
            finally:
                OS_DISK.close(handle)
            OS_DISK.replace(temporary, path)
            OS_DISK.sync_folder(os.path.dirname(path))
            changed = True
    return changed
