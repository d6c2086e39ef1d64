"""Where the bytes of a journal lie outside of its folder: pieces of segments, by epoch, in a mirror or another folder.

A piece is a whole sealed segment, or bytes [first, last) of a plain one, cut at record ends. Pieces never change: two
of the same name have the same bytes. One interface, two sources; whoever puts a run together again knows no other.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from typing import Protocol

import msgspec

from holdfast import files
from holdfast.journal.content import PIECE_BYTES
from holdfast.journal.disk import OS_DISK, Disk
from holdfast.journal.mirror.tombstones import read_tombstones
from holdfast.journal.object_store import Objects
from holdfast.journal.segments import list_chain
from holdfast.journal.start_copy import START_FILE

FOLDER = "journal"
SPEC = "spec.yaml"
BEHIND_RECORDS = (SPEC, START_FILE)
"""Files that repeat what records say. In a mirror they never are ahead of the records."""
UNKNOWN = 0
"""The epoch of a segment whose header cannot be read."""
_BYTES_MAX = 1 << 32
"""No segment is so long; what claims to lie behind it would be put there behind as many blanks."""
_CHUNK = re.compile(rf"{FOLDER}/(\d{{6,12}})/(\d{{6,12}})/(\d{{12,}})-(\d{{12,}})")
_ORIGINAL = re.compile(r"[^/.][^/]*\.jsonl\.zst|blobs/[^/.][^/]*")
_SEALED = re.compile(rf"{FOLDER}/(\d{{6,12}})/(\d{{6,12}})\.jsonl\.zst")


class SegmentPiece(msgspec.Struct, frozen=True):
    """Bytes [first, last) of a segment; of a sealed one all, compressed. `size`: how many bytes it really has."""

    epoch: int
    segment: int
    first: int
    last: int
    sealed: bool
    name: str
    size: int


class Source(Protocol):
    """Something that a run's journal and files can be read from."""

    @property
    def kind(self) -> str:
        """`mirror` or `local`."""

    @property
    def place(self) -> str: ...

    def pieces(self) -> list[SegmentPiece]: ...

    def files(self) -> list[str]:
        """The names of the run's other originals, and of its blobs."""

    def read(self, name: str) -> Iterator[bytes]:
        """A piece's bytes, or a file's."""


def chunk_name(epoch: int, segment: int, first: int, last: int) -> str:
    return f"{FOLDER}/{epoch:06d}/{segment:06d}/{first:012d}-{last:012d}"


def sealed_name(epoch: int, segment: int) -> str:
    return f"{FOLDER}/{epoch:06d}/{segment:06d}.jsonl.zst"


def parse_piece(name: str, size: int) -> SegmentPiece | None:
    chunk = _CHUNK.fullmatch(name)
    if chunk is not None:
        epoch, segment, first, last = map(int, chunk.groups())
        if not first < last <= _BYTES_MAX:
            return None
        return SegmentPiece(epoch, segment, first, last, False, name, size)
    sealed = _SEALED.fullmatch(name)
    if sealed is not None:
        return SegmentPiece(int(sealed[1]), int(sealed[2]), 0, size, True, name, size)
    return None


def is_original(name: str) -> bool:
    """Whether a file of a run's folder belongs into a copy of the run: spec, start records, plan, data, blobs. No other
    name is ever made a path, whoever put it there.
    """
    return name in BEHIND_RECORDS or _ORIGINAL.fullmatch(name) is not None


def is_no_blob(name: str) -> bool:
    """An original that a report reads: blobs are only needed to ask."""
    return is_original(name) and not name.startswith("blobs/")


def is_behind_records(name: str) -> bool:
    """One of the small files that repeat what records say."""
    return name in BEHIND_RECORDS


class _Numbered(msgspec.Struct):
    n: int


_numbered = msgspec.json.Decoder(_Numbered)


def last_number(data: bytes) -> int:
    """The number of the last record in a chunk; 0 if that is damaged."""
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    try:
        return _numbered.decode(data[start:]).n
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0


class MirrorSource:
    """A run's mirror. It is listed once."""

    kind = "mirror"

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.place = objects.url
        self._listed = list(objects.listed(""))
        self.tombstones = read_tombstones(objects, self.names())
        """Of runs that were removed from this place, the newest first."""

    def pieces(self) -> list[SegmentPiece]:
        """Where a new run has taken the place of a removed one, what the old one sent late does not count."""
        found = list(filter(None, (parse_piece(each.name, each.size) for each in self._listed)))
        removed = max((each.epoch for each in self.tombstones), default=0)
        return [piece for piece in found if piece.epoch > removed] or found

    def files(self) -> list[str]:
        return [each.name for each in self._listed if is_original(each.name)]

    def names(self) -> list[str]:
        """Of every object there."""
        return [each.name for each in self._listed]

    def strangers(self) -> list[str]:
        """Objects that no mirror has put there."""
        known = (is_original(each.name) or each.name.startswith("lease/") for each in self._listed)
        names = [each.name for each, known in zip(self._listed, known, strict=True) if not known]
        return [name for name in names if parse_piece(name, 0) is None]

    def read(self, name: str) -> Iterator[bytes]:
        return self.objects.pieces(name)


class FolderSource:
    """A run's folder, as it is or as it was copied from somewhere."""

    kind = "local"

    def __init__(self, run: str, disk: Disk = OS_DISK) -> None:
        self.place = run
        self._disk = disk

    def pieces(self) -> list[SegmentPiece]:
        folder = os.path.join(self.place, FOLDER)
        if not files.is_folder(folder):
            return []
        found = []
        for file in list_chain(self._disk, folder).segments:
            epoch = file.header.segment.epoch if file.header else UNKNOWN
            about = files.status_of(file.path)
            if about is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file.path)
            if not stat.S_ISREG(about.st_mode):
                continue  # a link or folder in the place of a segment holds nothing of the run
            size = about.st_size
            name = f"{FOLDER}/{file.name}"
            found.append(SegmentPiece(epoch, file.number, 0, size, file.sealed, name, size))
        return found

    def files(self) -> list[str]:
        blobs = os.path.join(self.place, "blobs")
        names = files.list_names(self.place) if files.is_folder(self.place) else []
        held = [f"blobs/{name}" for name in files.list_names(blobs)] if files.is_folder(blobs) else []
        wanted = [name for name in (*names, *held) if is_original(name) and not name.endswith(".tmp")]
        return [name for name in wanted if files.is_file(os.path.join(self.place, name))]

    def read(self, name: str) -> Iterator[bytes]:
        with open(files.open_file(os.path.join(self.place, name)), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
