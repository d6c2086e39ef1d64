"""Assembling a run's journal from everything that is left of it: its folder, its mirror, copies.

The greatest epoch wins: of an older epoch, only the segments before the first segment of the next one count. Within one
epoch all sources are merged, record by record, because the same record has the same offset in each of them. Records
that no source has are replaced by blanks of the same size, so that later records keep their offsets; readers report the
blanks as damage.

Invariant: a file of the folder is only ever replaced by one with at least the same records. Segments that were written
by a process after it had lost the run go to quarantine. A crash leaves a journal in which some segments are still old;
assembling again completes it.
"""

import contextlib
import heapq
import itertools
import os
import shutil
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

import msgspec

from holdfast.errors import JournalError, StoreError
from holdfast.journal.disk import OS_DISK, Disk, make_folders, remove_if_there, write_pieces
from holdfast.journal.mirror.pieces import UNKNOWN, FolderSource, SegmentPiece, Source, sealed_name
from holdfast.journal.paths import journal_folder, quarantine_folder, segment_path
from holdfast.journal.scan import SegmentContent, is_record_end, open_content
from holdfast.journal.segments import fence_between, is_whole_file, list_chain
from holdfast.records import parse, seed_of

_BLANK_BYTES = 1 << 20
Warn = Callable[[str], None]


class Layer(msgspec.Struct, frozen=True):
    """The pieces that one source has of one segment."""

    source: Source
    pieces: tuple[SegmentPiece, ...]


class ChosenSegment(msgspec.Struct, frozen=True):
    """A segment that counts, with all its pieces."""

    epoch: int
    number: int
    layers: tuple[Layer, ...]


class SegmentChoice(msgspec.Struct, frozen=True):
    """The segments that count, in order, and the void pieces: those written after a greater epoch took the run over."""

    segments: tuple[ChosenSegment, ...]
    void: tuple[SegmentPiece, ...]

    @property
    def epoch(self) -> int:
        return max((each.epoch for each in self.segments), default=0)


def choose(sources: Sequence[Source], proved: Container[int] | None = None) -> SegmentChoice:
    """Choose the segments that count.

    The segments of an epoch are followed by those of the next. So a segment of an older epoch is void if the next epoch
    has a segment with the same or a smaller number: its writer had lost the run. Only an epoch in `proved` (one of its
    headers is readable) can void others, because unreadable data is no evidence of a takeover.
    """
    held = _by_epoch(sources)
    headerless = held.pop(UNKNOWN, {})
    segments: dict[int, ChosenSegment] = {}
    void: list[Layer] = []
    bound: int | None = None
    for epoch in sorted((each for each in held if proved is None or each in proved), reverse=True):
        for number, layers in held[epoch].items():
            if bound is None or number < bound:
                segments[number] = ChosenSegment(epoch, number, tuple(layers))
            else:
                void += layers
        bound = min(held[epoch]) if bound is None else min(bound, *held[epoch])
    for epoch in sorted((each for each in held if proved is not None and each not in proved), reverse=True):
        for number, layers in held[epoch].items():
            if _fits(epoch, number, segments):
                segments[number] = ChosenSegment(epoch, number, tuple(layers))
            else:
                void += layers
    for number, layers in headerless.items():
        if sum(number in each for each in held.values()) > 1:  # it may belong to any of these epochs
            void += layers
        else:
            # Its epoch is that of the segment before it or, for the first segment, of the one after it.
            at = max((each for each in segments if each < number), default=min(segments, default=None))
            epoch = UNKNOWN if at is None else segments[at].epoch
            near = segments.get(number) or ChosenSegment(epoch, number, ())
            segments[number] = msgspec.structs.replace(near, layers=(*layers, *near.layers))
    pieces = tuple(piece for layer in void for piece in layer.pieces)
    return SegmentChoice(tuple(segments[number] for number in sorted(segments)), pieces)


def _by_epoch(sources: Sequence[Source]) -> dict[int, dict[int, list[Layer]]]:
    """All pieces, by epoch and segment number, one layer per source."""
    held: dict[int, dict[int, list[Layer]]] = {}
    for source in sources:
        mine: dict[tuple[int, int], list[SegmentPiece]] = {}
        for piece in source.pieces():
            mine.setdefault((piece.epoch, piece.segment), []).append(piece)
        for (epoch, number), pieces in mine.items():
            held.setdefault(epoch, {}).setdefault(number, []).append(Layer(source, tuple(pieces)))
    return held


def _fits(epoch: int, number: int, segments: Mapping[int, ChosenSegment]) -> bool:
    """Whether a segment fits between the others: epochs and numbers grow together."""
    return number not in segments and all(
        each.epoch <= epoch if each.number < number else each.epoch >= epoch for each in segments.values()
    )


class Assembler:
    """Adds to the journal of one run folder what other sources have. The caller holds the run's lock, or the folder is
    private to it.
    """

    def __init__(
        self, run: str, uid: str, warn: Warn, disk: Disk = OS_DISK, *, lossy: bool = True, trusting: bool = False
    ) -> None:
        """`lossy`: warn about what a source cannot deliver and leave it blank. Without it that is an error, because the
        source may be reachable again later. `trusting`: do not read the folder's sealed files to check them, because
        they have just been read, or the folder is our own copy.
        """
        self.changed = False
        self._trusting = trusting
        self._lossy = lossy
        self._run = run
        self._folder = journal_folder(run)
        self._incoming = os.path.join(self._folder, "incoming")
        self._uid = uid
        self._seed = seed_of(uid)
        self._warn = warn
        self._disk = disk

    def assemble(self, choice: SegmentChoice) -> None:
        """Bring every chosen segment up to date. After a crash, calling it again completes the work."""
        make_folders(self._disk, self._folder)
        shutil.rmtree(self._incoming, ignore_errors=True)  # left by an assembly that was interrupted
        self._quarantine_void(choice)
        for segment in choice.segments:
            others = [layer for layer in segment.layers if layer.source.place != self._run]
            mine = [layer for layer in segment.layers if layer.source.place == self._run]
            here = os.path.join(self._run, mine[0].pieces[0].name) if mine else ""
            if others and not self._is_complete(here, others):
                self._fetch_segment(segment, here, others)
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._quarantine_unfenced()

    def _quarantine_unfenced(self) -> None:
        """Quarantine segments of an older epoch that the next segment's fence does not name.

        If the first segments of an epoch are lost, void segments of an older epoch with the same numbers were chosen.
        """
        segments = list_chain(self._disk, self._folder, self._uid).segments
        for file, successor in itertools.pairwise(segments):
            fence = fence_between(file, successor)
            if fence is None or file.header is None or successor.header is None:
                continue
            if file.header.segment.epoch >= successor.header.segment.epoch:
                continue
            with contextlib.closing(open_content(self._disk, file.path)) as content:
                is_followed = is_record_end(content, fence.bytes, fence.x)
            if not is_followed:
                self._quarantine(file.path, f"epoch{file.header.segment.epoch}")
                self._warn(f"{file.name} is not the segment that the next one follows; it does not count")

    def _quarantine_void(self, choice: SegmentChoice) -> None:
        """Quarantine segments of this folder that were written after a greater epoch had taken the run over."""
        for piece in FolderSource(self._run, self._disk).pieces():
            if piece not in choice.void:
                continue
            self._quarantine(os.path.join(self._run, piece.name), f"epoch{piece.epoch}")
            what = f"was written under epoch {piece.epoch} after another process had taken the run over"
            if piece.epoch == UNKNOWN:
                what = "has no readable header, and two processes have written a segment of that number"
            self._warn(f"{piece.name} {what}; it does not count, and is kept in quarantine")

    def _quarantine(self, path: str, suffix: str) -> None:
        target_folder = quarantine_folder(self._folder)
        make_folders(self._disk, target_folder)
        self._disk.replace(path, os.path.join(target_folder, f"{os.path.basename(path)}.{suffix}"))
        self._disk.sync_folder(target_folder)  # the new name first: a power loss may leave both names, never neither
        self._disk.sync_folder(self._folder)
        self.changed = True

    def _is_complete(self, here: str, others: Sequence[Layer]) -> bool:
        """Whether no other source can add to our file `here`."""
        if here.endswith(".zst"):
            return self._trusting or is_whole_file(self._disk, here)
        if not here or any(piece.sealed for layer in others for piece in layer.pieces):
            return False
        return self._intact_bytes(here) >= max(piece.last for layer in others for piece in layer.pieces)

    def _intact_bytes(self, path: str) -> int:
        """How many bytes from the start of a plain segment are records without a gap."""
        first, last = next(self._spans(path), (0, 0))
        return 0 if first else last

    def _fetch_segment(self, segment: ChosenSegment, here: str, others: Sequence[Layer]) -> None:
        """Fetch what other sources have of a segment, and merge it with our file `here`."""
        make_folders(self._disk, self._incoming)
        found = [here] if here else []
        have = self._intact_bytes(here) if here.endswith(".jsonl") else 0
        fetched: list[str] = []
        try:
            for index, layer in enumerate(others):
                fetched += self._fetch(layer, os.path.join(self._incoming, f"{segment.number}-{index}"), have)
            self._install(segment, here, [*found, *fetched])
        finally:
            for path in fetched:
                remove_if_there(self._disk, path)

    def _install(self, segment: ChosenSegment, here: str, candidates: Sequence[str]) -> None:
        """Give a segment its best content: a whole sealed file, else all records of all candidates, merged.

        A crash at any line leaves at least the records that were there before.
        """
        plain, sealed = (segment_path(self._folder, segment.number, sealed=each) for each in (False, True))
        whole = next((path for path in candidates if path.endswith(".zst") and is_whole_file(self._disk, path)), None)
        if whole is not None:
            self._disk.replace(whole, sealed)
            self._disk.sync_folder(self._folder)  # the sealed name is durable before the plain file is removed
            remove_if_there(self._disk, plain)
        else:
            merged = os.path.join(self._incoming, f"{segment.number}.united.jsonl")
            pieces = (piece for layer in segment.layers for piece in layer.pieces if layer.source.place != self._run)
            self._merge(candidates, merged, max((piece.last for piece in pieces if not piece.sealed), default=0))
            self._disk.replace(merged, plain)
            if here.endswith(".zst"):  # it is damaged, and its records are in the plain file, which is durable first
                self._disk.sync_folder(self._folder)
                self._quarantine(here, "damaged")
        self._disk.sync_folder(self._folder)
        self.changed = True

    def _fetch(self, layer: Layer, name: str, have: int) -> list[str]:
        """Copy what a source has to files, and return their paths: a sealed file as it is, chunks at their offsets in
        one file. Chunks of the first `have` bytes are skipped. If chunks have vanished since they were listed, the
        segment has been sealed in the meantime, so the sealed object is fetched.
        """
        made: list[str] = []
        source, packed = layer.source, f"{name}.jsonl.zst"
        sealed = [piece for piece in layer.pieces if piece.sealed]
        if sealed and self._write(packed, lambda: source.read(sealed[0].name)):
            made.append(packed)
            if is_whole_file(self._disk, packed):
                return made
        chunks = [piece for piece in layer.pieces if not piece.sealed and piece.last > have]
        gone: list[StoreError] = []
        if chunks and self._write(f"{name}.jsonl", lambda: self._laid_out(source, chunks, have, gone)):
            made.append(f"{name}.jsonl")
        if gone and not sealed:
            with contextlib.suppress(StoreError):
                write_pieces(self._disk, packed, source.read(sealed_name(chunks[0].epoch, chunks[0].segment)))
                made.append(packed)
                if is_whole_file(self._disk, packed):
                    return made
        for error in gone:
            self._warn_or_raise(error)
        return made

    def _write(self, path: str, content: Callable[[], Iterator[bytes]]) -> bool:
        """Write a durable file. False, with a warning, if the source fails: another source may have the content."""
        try:
            write_pieces(self._disk, path, content())
        except StoreError as error:
            self._warn_or_raise(error)
            return False
        return True

    def _warn_or_raise(self, error: StoreError) -> None:
        if not self._lossy:
            raise error
        self._warn(str(error))

    def _laid_out(
        self, source: Source, chunks: Sequence[SegmentPiece], have: int, gone: list[StoreError]
    ) -> Iterator[bytes]:
        """The bytes of chunks, each at its offset. Missing or short chunks are filled with blanks."""
        at = min(have, min(piece.first for piece in chunks))
        yield from _blank(at)
        for piece in sorted(chunks, key=lambda each: (each.first, -each.last)):
            if piece.last <= at:
                continue
            if piece.first > at:
                yield from _blank(piece.first - at)
                at = piece.first
            try:
                data = b"".join(source.read(piece.name))
            except StoreError as error:
                gone.append(error)
                data = b""
            if len(data) != piece.last - piece.first:
                data = data[: piece.last - piece.first]
                data = data[: data.rfind(b"\n") + 1]
            yield data[at - piece.first :]
            yield from _blank(piece.last - max(at, piece.first + len(data)))
            at = piece.last

    def _merge(self, candidates: Sequence[str], target: str, size: int) -> None:
        """Write every record that any candidate has, at its offset, filled with blanks to the greatest known length.

        JournalError if the result does not read back with all of these records.
        """
        streams = [zip(self._spans(path), itertools.repeat(index)) for index, path in enumerate(candidates)]
        contents = [open_content(self._disk, path) for path in candidates]
        sealed = (content.size() for content, path in zip(contents, candidates, strict=True) if path.endswith(".zst"))
        end = max(size, *sealed, 0)
        cut = any(content.cut for content in contents)
        whole = 0

        def records() -> Iterator[bytes]:
            nonlocal whole
            at = 0
            for (first, last), index in heapq.merge(*streams):
                if last <= at:
                    continue
                yield from _blank(first - at)
                whole += last - max(first, at)
                for piece in contents[index].pieces(max(first, at), last):
                    yield piece.data
                at = last
            yield from _blank(max(end - at, int(cut)))  # the length of a cut file is unknown: one blank shows it

        try:
            write_pieces(self._disk, target, records())
            if sum(last - first for first, last in self._spans(target)) != whole:
                raise JournalError(f"{target} does not read back as it was put together; what was there is unchanged")
        finally:
            for content in contents:
                content.close()

    def _spans(self, path: str) -> Iterator[tuple[int, int]]:
        """The byte ranges of a file that consist of valid records without a gap."""
        with contextlib.closing(open_content(self._disk, path)) as content:
            first = end = 0
            for start, stop in _records(content, self._seed):
                if start != end:
                    if end > first:
                        yield first, end
                    first = start
                end = stop
            if end > first:
                yield first, end


def _records(content: SegmentContent, seed: int) -> Iterator[tuple[int, int]]:
    """The byte ranges of the valid records of a segment."""
    rest, at = b"", 0
    for piece in content.pieces(0):
        if piece.offset != at + len(rest) or piece.gap:
            rest, at = b"", piece.offset + piece.gap
        *lines, rest = (rest + piece.data).split(b"\n")
        for line in lines:
            end = at + len(line) + 1
            if parse(line, seed) is not None:
                yield at, end
            at = end
        if piece.broken:
            at += len(rest)
            rest = b""


def _blank(size: int) -> Iterator[bytes]:
    """A line of spaces that replaces `size` lost bytes. It is no valid record, so readers report it as damage."""
    while size > _BLANK_BYTES:
        yield b" " * _BLANK_BYTES
        size -= _BLANK_BYTES
    if size > 0:
        yield b" " * (size - 1) + b"\n"
