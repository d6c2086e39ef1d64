"""Pieces of journal segments, and the sources that hold them: a mirror or a run folder.

A piece is a whole sealed segment, or bytes [first, last) of a plain one, cut at record ends. Invariant: pieces never
change, so two pieces with the same name have the same bytes. Both kinds of source have the same interface (`Source`),
and `assembly` and `restore` use only that.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from typing import Protocol

import msgspec

from holdfast import files
from holdfast.journal.disk import OS_DISK, Disk
from holdfast.journal.mirror.tombstones import read_tombstones
from holdfast.journal.object_store import Objects
from holdfast.journal.paths import GRANTS, SHARDS
from holdfast.journal.scan import PIECE_BYTES
from holdfast.journal.segments import list_chain
from holdfast.journal.start_copy import START_FILE

PIECES = "journal"
SPEC = "spec.yaml"
BEHIND_RECORDS = (SPEC, START_FILE)
"""Files that repeat the content of records. They are uploaded after those records, so they are never ahead of them."""
UNKNOWN = 0
"""The epoch of a segment whose header cannot be read."""
_BYTES_MAX = 1 << 32
"""No segment is so long. A piece that claims a greater offset is ignored: it would create a file full of blanks."""
_CHUNK = re.compile(rf"{PIECES}/(\d{{6,12}})/(\d{{6,12}})/(\d{{12,}})-(\d{{12,}})")
_ORIGINAL = re.compile(r"[^/.][^/]*\.jsonl\.zst|blobs/[^/.][^/]*")
_SEALED = re.compile(rf"{PIECES}/(\d{{6,12}})/(\d{{6,12}})\.jsonl\.zst")


class SegmentPiece(msgspec.Struct, frozen=True):
    """Bytes [first, last) of a plain segment, or a whole sealed one. `size`: the bytes that the object really has."""

    epoch: int
    segment: int
    first: int
    last: int
    sealed: bool
    name: str
    size: int


class Source(Protocol):
    """A place from which a run's journal and files can be read."""

    @property
    def kind(self) -> str:
        """`mirror` or `local`."""

    @property
    def place(self) -> str: ...

    def pieces(self) -> list[SegmentPiece]: ...

    def files(self) -> list[str]:
        """The names of the run's other original files and blobs."""

    def read(self, name: str) -> Iterator[bytes]:
        """The bytes of a piece or file."""


def chunk_name(epoch: int, segment: int, first: int, last: int) -> str:
    return f"{PIECES}/{epoch:06d}/{segment:06d}/{first:012d}-{last:012d}"


def sealed_name(epoch: int, segment: int) -> str:
    return f"{PIECES}/{epoch:06d}/{segment:06d}.jsonl.zst"


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
    """Whether a file belongs to a copy of a run: spec, start records, plan, data, blobs.

    Only these names are ever used as paths, so an object that somebody else put into a mirror cannot write elsewhere.
    """
    return name in BEHIND_RECORDS or _ORIGINAL.fullmatch(name) is not None


def is_report_original(name: str) -> bool:
    """Whether it is an original that reports read. Blobs are needed only to send requests."""
    return is_original(name) and not name.startswith("blobs/")


def is_copy_of_records(name: str) -> bool:
    """Whether it is one of the small files that repeat the content of records."""
    return name in BEHIND_RECORDS


class _Numbered(msgspec.Struct):
    n: int


_numbered = msgspec.json.Decoder(_Numbered)


def last_number(data: bytes) -> int:
    """The number of the last record in a chunk; 0 if that record is damaged."""
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    try:
        return _numbered.decode(data[start:]).n
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0


class MirrorSource:
    """A run's mirror, as it was when it was listed: once, at construction."""

    kind = "mirror"

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.place = objects.url
        self._listed = list(objects.listed(""))
        self.tombstones = read_tombstones(objects, self.names())
        """The tombstones of runs that were removed from here, the newest first."""

    def pieces(self) -> list[SegmentPiece]:
        """The run's pieces. If a new run has replaced a removed one, late uploads of the removed run are left out."""
        found = list(filter(None, (parse_piece(each.name, each.size) for each in self._listed)))
        removed = max((each.epoch for each in self.tombstones), default=0)
        return [piece for piece in found if piece.epoch > removed] or found

    def files(self) -> list[str]:
        return [each.name for each in self._listed if is_original(each.name)]

    def names(self) -> list[str]:
        """The names of all objects."""
        return [each.name for each in self._listed]

    def foreign_objects(self) -> list[str]:
        """The names of objects that Holdfast did not write."""
        own = ("lease/", f"{GRANTS}/", f"{SHARDS}/")  # shards are runs
        others = (name for name in self.names() if not is_original(name) and not name.startswith(own))
        return [name for name in others if parse_piece(name, 0) is None]

    def read(self, name: str) -> Iterator[bytes]:
        return self.objects.pieces(name)


class FolderSource:
    """A run folder: the run's own, or a copy of it."""

    kind = "local"

    def __init__(self, run: str, disk: Disk = OS_DISK) -> None:
        self.place = run
        self._disk = disk

    def pieces(self) -> list[SegmentPiece]:
        folder = os.path.join(self.place, PIECES)
        if not files.is_folder(folder):
            return []
        found = []
        for file in list_chain(self._disk, folder).segments:
            epoch = file.header.segment.epoch if file.header else UNKNOWN
            about = files.status_of(file.path)
            if about is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file.path)
            if not stat.S_ISREG(about.st_mode):
                continue  # a link or folder with the name of a segment holds no records
            size = about.st_size
            name = f"{PIECES}/{file.name}"
            found.append(SegmentPiece(epoch, file.number, 0, size, file.sealed, name, size))
        return found

    def files(self) -> list[str]:
        blobs = os.path.join(self.place, "blobs")
        names = files.list_names(self.place) if files.is_folder(self.place) else []
        held = [f"blobs/{name}" for name in files.list_names(blobs)] if files.is_folder(blobs) else []
        originals = [name for name in (*names, *held) if is_original(name) and not name.endswith(".tmp")]
        return [name for name in originals if files.is_file(os.path.join(self.place, name))]

    def read(self, name: str) -> Iterator[bytes]:
        with open(files.open_file(os.path.join(self.place, name)), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
