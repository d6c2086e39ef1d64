"""From bytes to verified records: finds every valid line of a segment, and describes the bytes that are none.

A scanner is fed pieces in order. It accepts a line only if its checksum is right and its number is greater than the
last one. Everything between two accepted lines becomes one `Damage`. Memory is bounded by the longest line that may
exist, whatever the file holds.
"""

import re
from collections.abc import Iterator

import msgspec

from holdfast.errors import FormatError
from holdfast.journal.content import Piece
from holdfast.journal.positions import Damage, Entry
from holdfast.records import LINE_BYTES_MAX, Line, is_known, parse

_KEY = re.compile(rb'"k":("(?:[^"\\]|\\.)*")')
RECORD_START = re.compile(rb'{"n":(\d{1,15}),"at":"')
_RECORD_BYTES_MIN = 80  # no record is shorter
_PIECES = {"frame", "cut"}
_KEY_SEARCH_BYTES = 64 * 1024
_KEYS_MAX = 100


class Tail(msgspec.Struct, frozen=True):
    """The bytes behind the last newline. `whole`: they are a record that only lacks its newline; it ends at `line_end`.

    After a power loss a file system may show NULs instead of bytes that were written last. So trailing NULs are
    ignored: a record with a NUL instead of its newline is whole.
    """

    first: int
    line_end: int
    whole: bool


class Scanner:
    """The state of a scan: the last accepted record (`n`, `x`, `end`), and the damage since then."""

    def __init__(self, segment: int, seed: int, n: int, x: str = "", offset: int = 0) -> None:
        self.segment = segment
        self.n = n
        self.x = x
        self.end = offset
        self._seed = seed
        self._read_to = offset
        self._line_at = offset  # where the current, still incomplete line begins
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._bad: _Area | None = None

    def feed(self, piece: Piece) -> Iterator[Entry | Damage]:
        if piece.broken:
            self._read_to = piece.offset + piece.gap
            if self._read_to > self._line_at:
                self._blame("frame", b"".join(self._parts))
            return
        *lines, rest = piece.data.split(b"\n")
        at = piece.offset
        for part in lines:
            self._keep(part)
            at += len(part) + 1
            self._read_to = at
            yield from self._judge()
        self._keep(rest)
        self._read_to = piece.offset + len(piece.data)

    def tail(self) -> Tail | None:
        """The bytes behind the last newline; None if there are none."""
        if self._read_to == self._line_at:
            return None
        raw = b"".join(self._parts).rstrip(b"\0")
        line = parse(raw, self._seed) if self._parts_bytes <= LINE_BYTES_MAX else None
        return Tail(self._line_at, self._line_at + len(raw), line is not None and line.n > self.n)

    def accept_tail(self, tail: Tail) -> Iterator[Entry | Damage]:
        """Accept a whole last record as if it had its newline."""
        self._parts = [b"".join(self._parts).rstrip(b"\0")]
        self._read_to = tail.line_end
        yield from self._judge()

    def blame_tail(self, kind: str) -> None:
        """Count the unfinished last line as damage, because nothing will complete it."""
        if self._read_to > self._line_at:
            self._blame(kind, b"".join(self._parts))

    def blame_missing_bytes(self, last: int) -> None:
        """Count the bytes up to `last` as damage if the segment ends before it."""
        if last > self._read_to:
            self._read_to = last
            self._blame("cut", b"".join(self._parts))

    def blame_missing_end(self, detail: str) -> None:
        """Count at least one record as lost behind the bytes that were read."""
        self._blame("cut", b"")
        assert self._bad is not None
        self._bad.pieces = max(self._bad.lines, 1)
        self._bad.detail = detail

    def trailing(self, n_last: int | None = None) -> Damage | None:
        """The damage behind the last accepted record, when the scan has ended.

        With a successor, its fence gives the last lost number (`n_last`). Without one it is estimated: each damaged
        line counts as one record, each number that is readable in them too, and a lost piece as at least one.
        """
        area, self._bad = self._bad, None
        if area is not None:
            return area.damage(self.segment, self.n + 1, area.n_last(self.n) if n_last is None else n_last)
        if n_last is None or n_last <= self.n:
            return None
        return Damage("hole", self.segment, self.end, self.end, self.n + 1, n_last)

    def _keep(self, part: bytes) -> None:
        """Collect an incomplete line. One that is too long to be a record is dropped, to bound memory."""
        self._parts_bytes += len(part)
        if self._parts_bytes <= LINE_BYTES_MAX:
            self._parts.append(part)
        else:
            del self._parts[1:]

    def _judge(self) -> Iterator[Entry | Damage]:
        """Decide about the current line: yield it as an entry, with the damage before it, or count it as damage."""
        line = self._parse()
        if line is None:
            self._blame("line", b"".join(self._parts), lines=1)
            return
        if not is_known(line.t):
            raise FormatError(
                f"record {line.n} in segment {self.segment} has the type {line.t!r}, which this version does not know; "
                "read this run with a newer Holdfast"
            )
        if line.n <= self.n:
            self._blame("repeat", b"")
            return
        if self._bad is not None or line.n > self.n + 1:
            area = self._bad or _Area("hole", self._line_at, self._line_at)
            self._bad = None
            yield area.damage(self.segment, self.n + 1, line.n - 1)
        entry = Entry(line, self.segment, self._line_at, self._read_to)
        self.n, self.x, self.end = line.n, line.x, self._read_to
        self._begin_line()
        yield entry

    def _parse(self) -> Line | None:
        if self._parts_bytes > LINE_BYTES_MAX:
            return None
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]  # drop the parts, so that a large line is in memory only once
        return parse(self._parts[0], self._seed)

    def _blame(self, kind: str, raw: bytes, lines: int = 0) -> None:
        """Count the bytes since the last line end as damage."""
        if self._bad is None:
            self._bad = _Area(kind, self._line_at, self._read_to)
        self._bad.last = self._read_to
        self._bad.lines += lines
        for found in _KEY.findall(raw[:_KEY_SEARCH_BYTES]):
            self._bad.add_key(found)
        if kind in _PIECES:
            self._bad.pieces = 1
        if lines:
            self._bad.add_numbers(raw)
        self._begin_line()

    def _begin_line(self) -> None:
        self._line_at = self._read_to
        self._parts = []
        self._parts_bytes = 0


class _Area:
    """Damaged bytes between two accepted records."""

    def __init__(self, kind: str, first: int, last: int) -> None:
        self.kind = kind
        self.first = first
        self.last = last
        self.lines = 0
        self.pieces = 0
        self.detail = ""
        self._numbers = 0
        self._keys: dict[str, None] = {}

    def n_last(self, n: int) -> int:
        """The last number that this area may have held, after record `n`."""
        counted = n + max(self.lines, self.pieces)
        return max(counted, min(self._numbers, n + (self.last - self.first) // _RECORD_BYTES_MIN))

    def add_numbers(self, raw: bytes) -> None:
        self._numbers = max([self._numbers, *(int(found) for found in RECORD_START.findall(raw))])

    def add_key(self, quoted: bytes) -> None:
        """Remember a key that is readable in a damaged line: it shows the user which sample is affected."""
        if len(self._keys) < _KEYS_MAX:
            try:
                self._keys[msgspec.json.decode(quoted, type=str)] = None
            except (msgspec.DecodeError, UnicodeDecodeError):
                return  # the damage is in the key itself

    def damage(self, segment: int, n_first: int, n_last: int) -> Damage:
        keys = tuple(self._keys)
        return Damage(self.kind, segment, self.first, self.last, n_first, n_last, keys, self.detail)
