"""Saved folds in the user's cache: a resume of a long run folds only the records that were appended since.

A saved fold is one file: a checksum, then everything that `Fold` has computed, the start records, the cursor behind the
last record, and the stamp of every segment that was read. It is derived: without it the journal is folded from the
beginning, which gives the same state.

The writer decides with this state what to request, so a wrong one could lose an answer (a key counts as finished that
is not) or pay twice (the other way round). Why that does not happen:

- The content is what this version of the code computed from this run's journal. The file names the version, the run
  (path, device, inode, uid) and the evaluation, and its checksum covers all of it. Anything else is not used.
- It is saved only if the journal had no damage of any kind and every record before the cursor was read once, in order.
  It is decoded and compared before it is saved.
- It is used only if each segment that was read has the same device, inode, size, mtime and ctime, has only grown, or
  was sealed since and is whole. Of the last segment, which grows, the bytes that were read must have the same digest.
  Records that became void (a failed sync, another epoch) are behind a fence, which the reader finds, and the record at
  the cursor must still end there. In any doubt nothing is used.
- Every record behind the cursor is read and verified as always. The lock, the lease and the mirror are checked as
  always: they do not depend on this file.
- Somebody who can write this file can write the user's journals too.

What is not noticed: bytes of a segment that rot on the disk without a change of its times. Their records were read when
they were right, so they count; `verify` reads every byte and finds them.

A crash while saving leaves the old file and a temporary one, which `cache.make_room` removes.
"""

import contextlib
import glob
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import xxhash

from holdfast.errors import FormatError
from holdfast.files import SMALL_BYTES_MAX, read_own_file, replace_file
from holdfast.journal import OS_DISK, Cursor, Reader, StartLines, journal_folder, open_content, segment_path
from holdfast.records import Line, comparable_by_task
from holdfast.score import ANOMALIES_VERSION
from holdfast.state.cache import Identity, entry_path, identify, make_room, mark_used, remove_entry
from holdfast.state.fold import Fold, FoldState
from holdfast.state.snapshot import CheckedFiles, Stamps, have_changed
from holdfast.state.story import Story
from holdfast.version import __version__

_FORMAT = 2
"""Changes with the meaning of what is saved."""
_VERSION = f"{_FORMAT} {__version__} {ANOMALIES_VERSION} {sys.byteorder}"
_RECORDS_MIN = 20_000
"""Fewer records are folded again faster than a file is written."""
_DIGEST_BYTES = 16
_ERRORS = (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError, FormatError)


class _StartLine(msgspec.Struct, frozen=True):
    """A `Line`, with data that any encoder can encode."""

    n: int
    at: str
    t: str
    d: bytes
    x: str
    k: str | None

    @classmethod
    def of(cls, line: Line) -> "_StartLine":
        return cls(line.n, line.at, line.t, bytes(line.d), line.x, line.k)

    def line(self) -> Line:
        return Line(self.n, self.at, self.t, msgspec.Raw(self.d), self.x, self.k)


class _Saved(msgspec.Struct, frozen=True):
    version: str
    identity: Identity
    cursor: Cursor
    segments: Stamps
    digest: str
    """Of the bytes before the cursor in its segment."""
    fold: FoldState
    lines: tuple[_StartLine, ...]
    header: _StartLine | None


_decode = msgspec.msgpack.Decoder(_Saved).decode


class FoldSnapshot:
    """The saved fold of one run, for one evaluation."""

    def __init__(self, run: str, evaluation: str | None = None, scorers: Iterable[Mapping[str, Any]] = ()) -> None:
        self._journal = journal_folder(run)
        uid = Reader(self._journal).uid
        self._checked = CheckedFiles(run, uid)
        self._identity = identify("folds", run, uid) if uid else None
        self._saved_n = 0
        self._path: str | None = None
        if self._identity is not None:
            collected = xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode((evaluation, comparable_by_task(scorers))))
            self._path = entry_path("folds", f"{self._identity.name}-{collected}.fold")

    def restore(self, fold: Fold, start: StartLines, segments: Stamps) -> Cursor | None:
        """Fill an empty fold and empty start lines; return the cursor to continue from. None if there is nothing that
        can be used: both are still empty then. `segments`: the stamps of the journal now.
        """
        saved = None if self._path is None else self._load(self._path)
        if saved is None or not self._is_prefix(saved, segments):
            return None
        try:
            fold.restore(saved.fold)
        except _ERRORS:
            return None
        start.restore([each.line() for each in saved.lines], saved.header.line() if saved.header else None)
        self._saved_n = saved.cursor.n
        return saved.cursor

    def restore_story(self, segments: Stamps) -> tuple[Story, Cursor] | None:
        """The story of the newest saved fold of the run, for any evaluation, and the cursor to continue from: the story
        depends on none. None if there is nothing that can be used.
        """
        if self._path is None or self._identity is None:
            return None
        pattern = os.path.join(glob.escape(os.path.dirname(self._path)), f"{self._identity.name}-*.fold")
        usable = [saved for path in glob.glob(pattern) if (saved := self._load(path)) is not None]
        for saved in sorted(usable, key=lambda each: each.cursor.n, reverse=True):
            if self._is_prefix(saved, segments):
                with contextlib.suppress(*_ERRORS):
                    return msgspec.json.decode(saved.fold.story, type=Story), saved.cursor
        return None

    def save(self, fold: Fold, start: StartLines, reader: Reader, segments: Stamps) -> None:
        """Save what a reader has read up to its cursor, if that spares a later resume much. `segments`: the stamps of
        the journal, taken before it was read. If saving fails, a later resume folds more, nothing else.
        """
        if self._path is None or self._identity is None or reader.cursor.n - self._saved_n < _RECORDS_MIN:
            return
        if fold.damage or not reader.is_whole:
            return
        with contextlib.suppress(*_ERRORS):
            lines, header = start.collected()
            saved = _Saved(
                _VERSION,
                self._identity,
                reader.cursor,
                segments,
                _digest_before(self._journal, reader.cursor),
                fold.state(),
                tuple(map(_StartLine.of, lines)),
                None if header is None else _StartLine.of(header),
            )
            encoded = msgspec.msgpack.encode(saved)
            if len(encoded) > SMALL_BYTES_MAX - _DIGEST_BYTES:
                return
            if _decode(encoded) != saved or msgspec.json.decode(saved.fold.story, type=Story) != fold.story:
                return
            replace_file(self._path, xxhash.xxh3_128_digest(encoded) + encoded)
            self._saved_n = reader.cursor.n
            make_room(os.path.dirname(os.path.dirname(self._path)), keep=self._path)

    def _is_prefix(self, saved: _Saved, segments: Stamps) -> bool:
        """Whether the journal begins with what was read."""
        if have_changed(self._journal, saved.segments, segments, self._checked):
            return False
        if os.path.basename(segment_path(self._journal, saved.cursor.segment, sealed=True)) in saved.segments:
            return True  # it was sealed and synced before it was read
        try:  # after a power loss a file may have the same size and times, and lack bytes that were not yet synced
            return _digest_before(self._journal, saved.cursor) == saved.digest
        except OSError:
            return False

    def _load(self, path: str) -> _Saved | None:
        try:
            data = read_own_file(path)
            if xxhash.xxh3_128_digest(memoryview(data)[_DIGEST_BYTES:]) != data[:_DIGEST_BYTES]:
                raise ValueError("its checksum does not match")
            saved = _decode(memoryview(data)[_DIGEST_BYTES:])
        except FileNotFoundError:
            return None
        except _ERRORS as error:
            logging.getLogger("holdfast").warning(
                "the saved state of %s cannot be used (%s); reading the whole journal",
                os.path.dirname(self._journal),
                error,
            )
            remove_entry(path)
            return None
        if saved.version != _VERSION or saved.identity != self._identity:
            return None
        mark_used(path)
        return saved


def _digest_before(journal: str, cursor: Cursor) -> str:
    """The digest of the bytes before the cursor in its segment, sealed or not."""
    digest = xxhash.xxh3_128()
    paths = [segment_path(journal, cursor.segment, sealed=sealed) for sealed in (False, True)]
    path = next(filter(os.path.lexists, paths), paths[0])
    with contextlib.closing(open_content(OS_DISK, path)) as content:
        for piece in content.pieces(0, cursor.offset):
            digest.update(piece.data)
    return digest.hexdigest()
