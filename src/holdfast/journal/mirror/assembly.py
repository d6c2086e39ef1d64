"""Putting a run's journal together from what is left of it: its folder, its mirror, copies.

The greatest epoch wins: of an older one only what lies before the first segment of the next counts. Inside one epoch
all sources are united, record by record: the same record has the same place in each. What none of them has is left as a
blank of its size, which reads as damage, so that everything behind it keeps its place. Nothing in a folder is changed
that is not replaced by more; what lost the run is put into quarantine.
"""

import contextlib
import heapq
import itertools
import os
import shutil
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

import msgspec

from holdfast.errors import JournalError, StoreError
from holdfast.journal.content import Content, open_content
from holdfast.journal.disk import OS_DISK, Disk, make_folders, remove_if_there, write_all
from holdfast.journal.mirror.pieces import UNKNOWN, FolderSource, SegmentPiece, Source, sealed_name
from holdfast.journal.paths import journal_folder, quarantine_folder, segment_path
from holdfast.journal.segments import fence_between, is_whole_file, list_chain
from holdfast.records import Fence, parse, seed_of

_BLANK_BYTES = 1 << 20
Warn = Callable[[str], None]


class Layer(msgspec.Struct, frozen=True):
    """What one source has of one segment."""

    source: Source
    pieces: tuple[SegmentPiece, ...]


class Chosen(msgspec.Struct, frozen=True):
    """A segment that counts, with all that is left of it."""

    epoch: int
    number: int
    layers: tuple[Layer, ...]


class Choice(msgspec.Struct, frozen=True):
    """The segments that count, in order, and the pieces of those that a greater epoch has taken the run from."""

    segments: tuple[Chosen, ...]
    void: tuple[SegmentPiece, ...]

    @property
    def epoch(self) -> int:
        return max((each.epoch for each in self.segments), default=0)


def choose(sources: Sequence[Source], proved: Container[int] | None = None) -> Choice:
    """Which segments count. An epoch's segments are followed by those of the next, so a segment of an older one with a
    number that the next has reached was written by a process that had lost the run. Only an epoch that is `proved` (one
    of its headers can be read) takes a run from another: what cannot be read is no evidence of a takeover.
    """
    held = _by_epoch(sources)
    nameless = held.pop(UNKNOWN, {})
    segments: dict[int, Chosen] = {}
    void: list[Layer] = []
    bound: int | None = None
    for epoch in sorted((each for each in held if proved is None or each in proved), reverse=True):
        for number, layers in held[epoch].items():
            if bound is None or number < bound:
                segments[number] = Chosen(epoch, number, tuple(layers))
            else:
                void += layers
        bound = min(held[epoch]) if bound is None else min(bound, *held[epoch])
    for epoch in sorted((each for each in held if proved is not None and each not in proved), reverse=True):
        for number, layers in held[epoch].items():
            if _fits(epoch, number, segments):
                segments[number] = Chosen(epoch, number, tuple(layers))
            else:
                void += layers
    for number, layers in nameless.items():
        if sum(number in each for each in held.values()) > 1:  # whose of them it is, nothing tells
            void += layers
        else:
            near = segments.get(number) or Chosen(_epoch_near(number, segments), number, ())
            segments[number] = msgspec.structs.replace(near, layers=(*layers, *near.layers))
    pieces = tuple(piece for layer in void for piece in layer.pieces)
    return Choice(tuple(segments[number] for number in sorted(segments)), pieces)


def _by_epoch(sources: Sequence[Source]) -> dict[int, dict[int, list[Layer]]]:
    """What there is of each segment of each epoch."""
    held: dict[int, dict[int, list[Layer]]] = {}
    for source in sources:
        mine: dict[tuple[int, int], list[SegmentPiece]] = {}
        for piece in source.pieces():
            mine.setdefault((piece.epoch, piece.segment), []).append(piece)
        for (epoch, number), pieces in mine.items():
            held.setdefault(epoch, {}).setdefault(number, []).append(Layer(source, tuple(pieces)))
    return held


def _epoch_near(number: int, segments: Mapping[int, Chosen]) -> int:
    """That of the segment before; of the first, that of the one behind."""
    before = [each for each in segments if each < number]
    if before:
        return segments[max(before)].epoch
    return segments[min(segments)].epoch if segments else UNKNOWN


def _fits(epoch: int, number: int, segments: Mapping[int, Chosen]) -> bool:
    """Whether a segment can stand among others: epochs and numbers grow together."""
    return number not in segments and all(
        each.epoch <= epoch if each.number < number else each.epoch >= epoch for each in segments.values()
    )


class Assembler:
    """Brings the journal of one run folder up to what is left of the run anywhere. The caller holds the run's lock, or
    is the only one who knows of the folder.
    """

    def __init__(
        self, run: str, uid: str, warn: Warn, disk: Disk = OS_DISK, *, lossy: bool = True, trusting: bool = False
    ) -> None:
        """`lossy`: what a source cannot give now is told, and left blank. Else it is an error: it may come back.
        `trusting`: sealed files of the folder need not be read to be believed: somebody has just read them, or the
        folder is a copy of our own making.
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

    def assemble(self, choice: Choice) -> None:
        """Dying on the way leaves a journal that is older in parts; doing it again completes it."""
        make_folders(self._disk, self._folder)
        shutil.rmtree(self._incoming, ignore_errors=True)  # of one that was cut off
        self._set_lost_aside(choice)
        for segment in choice.segments:
            others = [layer for layer in segment.layers if layer.source.place != self._run]
            mine = [layer for layer in segment.layers if layer.source.place == self._run]
            here = os.path.join(self._run, mine[0].pieces[0].name) if mine else ""
            if others and not self._is_settled(here, others):
                self._bring(segment, here, others)
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._set_strangers_aside()

    def _set_strangers_aside(self) -> None:
        """Where an epoch's first segments are lost, what an older epoch wrote under their numbers has come in between.
        The fence of the next segment that is left does not know it.
        """
        segments = list_chain(self._disk, self._folder, self._uid).segments
        for file, successor in itertools.pairwise(segments):
            fence = fence_between(file, successor)
            if fence is None or file.header is None or successor.header is None:
                continue
            older = file.header.segment.epoch < successor.header.segment.epoch
            if older and not self._has(file.path, fence):
                self._set_aside(file.path, f"epoch{file.header.segment.epoch}")
                self._warn(f"{file.name} is not what the segment after it follows; it does not count")

    def _set_lost_aside(self, choice: Choice) -> None:
        """Segments of ours that were written after a greater epoch had taken the run."""
        for piece in FolderSource(self._run, self._disk).pieces():
            if piece not in choice.void:
                continue
            self._set_aside(os.path.join(self._run, piece.name), f"epoch{piece.epoch}")
            what = f"was written under epoch {piece.epoch} after another process had taken the run over"
            if piece.epoch == UNKNOWN:
                what = "has no beginning that can be read, and two processes have written a segment of that number"
            self._warn(f"{piece.name} {what}; it does not count, and is kept in quarantine")

    def _set_aside(self, path: str, why: str) -> None:
        place = quarantine_folder(self._folder)
        make_folders(self._disk, place)
        self._disk.replace(path, os.path.join(place, f"{os.path.basename(path)}.{why}"))
        self._disk.sync_folder(place)
        self._disk.sync_folder(self._folder)
        self.changed = True

    def _is_settled(self, here: str, others: Sequence[Layer]) -> bool:
        """Whether nothing elsewhere can add to what we have."""
        if here.endswith(".zst"):
            return self._trusting or is_whole_file(self._disk, here)
        if not here or any(piece.sealed for layer in others for piece in layer.pieces):
            return False
        return self._whole_to(here) >= max(piece.last for layer in others for piece in layer.pieces)

    def _whole_to(self, path: str) -> int:
        """How far a plain segment is records without a gap."""
        first, last = next(self._spans(path), (0, 0))
        return 0 if first else last

    def _bring(self, segment: Chosen, here: str, others: Sequence[Layer]) -> None:
        """Make the best of a segment, under its name."""
        make_folders(self._disk, self._incoming)
        found = [here] if here else []
        have = self._whole_to(here) if here.endswith(".jsonl") else 0
        fetched: list[str] = []
        try:
            for index, layer in enumerate(others):
                fetched += self._fetch(layer, os.path.join(self._incoming, f"{segment.number}-{index}"), have)
            self._settle(segment, here, [*found, *fetched])
        finally:
            for path in fetched:
                remove_if_there(self._disk, path)

    def _settle(self, segment: Chosen, here: str, candidates: Sequence[str]) -> None:
        """Each line of it leaves at least what was there before."""
        plain, sealed = (segment_path(self._folder, segment.number, sealed=each) for each in (False, True))
        whole = next((path for path in candidates if path.endswith(".zst") and is_whole_file(self._disk, path)), None)
        if whole is not None:
            self._disk.replace(whole, sealed)
            self._disk.sync_folder(self._folder)
            remove_if_there(self._disk, plain)
        else:
            united = os.path.join(self._incoming, f"{segment.number}.united.jsonl")
            pieces = (piece for layer in segment.layers for piece in layer.pieces if layer.source.place != self._run)
            self._unite(candidates, united, max((piece.last for piece in pieces if not piece.sealed), default=0))
            self._disk.replace(united, plain)
            if here.endswith(".zst"):  # beside a plain one, a sealed one that is damaged does not count
                self._disk.sync_folder(self._folder)
                self._set_aside(here, "damaged")
        self._disk.sync_folder(self._folder)
        self.changed = True

    def _fetch(self, layer: Layer, name: str, have: int) -> list[str]:
        """Copies of what a source has: a sealed file as it is, chunks at their places in one file. Those of the first
        `have` bytes are not needed. Chunks that are gone since they were listed have been sealed meanwhile.
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
                self._copy(packed, lambda: source.read(sealed_name(chunks[0].epoch, chunks[0].segment)))
                made.append(packed)
                if is_whole_file(self._disk, packed):
                    return made
        for error in gone:
            self._put_up_with(error)
        return made

    def _write(self, path: str, content: Callable[[], Iterator[bytes]]) -> bool:
        """Durable, or told why not: what one source has lost another may have."""
        try:
            self._copy(path, content)
        except StoreError as error:
            self._put_up_with(error)
            return False
        return True

    def _copy(self, path: str, content: Callable[[], Iterator[bytes]]) -> None:
        remove_if_there(self._disk, path)
        handle = self._disk.create(path)
        try:
            for data in content():
                write_all(self._disk, handle, [data])
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)

    def _put_up_with(self, error: StoreError) -> None:
        if not self._lossy:
            raise error
        self._warn(str(error))

    def _laid_out(
        self, source: Source, chunks: Sequence[SegmentPiece], have: int, gone: list[StoreError]
    ) -> Iterator[bytes]:
        """Chunks one after the other, each at its place; what is missing or short is left blank."""
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

    def _unite(self, candidates: Sequence[str], target: str, size: int) -> None:
        """Every record that any of them has, at its place, up to where the longest of them is known to have gone."""
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
            yield from _blank(max(end - at, int(cut)))  # how long a file was that is cut, nobody knows

        try:
            if not self._write(target, records):
                raise AssertionError("unreachable: nothing is read from a store")
            if sum(last - first for first, last in self._spans(target)) != whole:
                raise JournalError(f"{target} does not read back as it was put together; what was there is unchanged")
        finally:
            for content in contents:
                content.close()

    def _has(self, path: str, fence: Fence) -> bool:
        """Whether the record that a fence names ends where it says."""
        tail = b',"x":"%b"}\n' % fence.x.encode()
        content = open_content(self._disk, path)
        try:
            pieces = content.pieces(max(fence.bytes - len(tail), 0), fence.bytes)
            return b"".join(piece.data for piece in pieces) == tail
        finally:
            content.close()

    def _spans(self, path: str) -> Iterator[tuple[int, int]]:
        """Bytes that are whole records, one after the other without a gap."""
        content = open_content(self._disk, path)
        try:
            first = end = 0
            for start, stop in _records(content, self._seed):
                if start != end:
                    if end > first:
                        yield first, end
                    first = start
                end = stop
            if end > first:
                yield first, end
        finally:
            content.close()


def _records(content: Content, seed: int) -> Iterator[tuple[int, int]]:
    """Where the whole records of a segment are."""
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
    """A line that is no record, in the place of what is lost."""
    while size > _BLANK_BYTES:
        yield b" " * _BLANK_BYTES
        size -= _BLANK_BYTES
    if size > 0:
        yield b" " * (size - 1) + b"\n"
