"""Reading a journal: from any cursor, also while it is written, sealed and repaired.

A reader yields verified entries in order, and a `Damage` for everything between them that is not a record. It never
writes and holds no lock. If a file vanishes, it was sealed or quarantined, so the reader lists the folder again.
Records that were read can become void later (a sync failed, another epoch took over). Then the cursor no longer matches
and reading raises StaleCursorError. Records that the journal has lost, but started.jsonl still holds, are yielded in
order, after the damage.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import DamagedError, StaleCursorError
from holdfast.files import SETTLED_SECONDS
from holdfast.journal.disk import OS_DISK, Disk
from holdfast.journal.positions import START, Cursor, Damage, Entry
from holdfast.journal.scan import (
    LOOKUP_BYTES,
    LOOKUP_RECENT_BYTES,
    RECORD_START,
    Scanner,
    SegmentContent,
    is_record_end,
    line_at,
    open_segment,
    read_line,
)
from holdfast.journal.segments import Chain, HeaderCache, SegmentFile, fence_between, list_chain
from holdfast.journal.start_copy import START_FILE, CopiedLine, StartCopy, read_start
from holdfast.records import LINE_BYTES_MAX, parse, seed_of

_GLUED_BYTES_MAX = 1 << 20
_LISTED_SECONDS = 0.05
"""How old the listing of a folder that has not changed for a while may be."""


class _Lookup(msgspec.Struct, frozen=True):
    """The segment of the last lookup, open. Records from `end` on are void."""

    chain: Chain
    number: int
    path: str
    content: SegmentContent
    end: int | None
    seed: int


class Reader:
    """Reads the journal as it is now. Call `read` again for records that were appended since."""

    def __init__(self, folder: str, uid: str | None = None, cursor: Cursor = START, disk: Disk = OS_DISK) -> None:
        self._cursor = cursor
        self._last: Entry | None = None  # the record before the cursor, if this reader has read it
        self._folder = folder
        self._uid = uid
        self._disk = disk
        self._headers: HeaderCache = {}
        self._strays_seen: set[Damage] = set()
        self._checked = cursor == START
        self._lookup: _Lookup | None = None
        self._listed: tuple[tuple[int, int, int], Chain] | None = None
        self._listed_until = 0.0
        self._tail_n = 0  # the last record, if it was yielded although its newline is missing
        self._start: StartCopy | None = None
        self._copied_n = 0  # the last record that was yielded from started.jsonl
        self.start_n = 0
        """The last number in started.jsonl: a record with this number was durable."""
        self._segment = max(cursor.segment, 1)
        self._offset = cursor.offset
        self._n = cursor.n  # every number up to this one was yielded or reported as lost

    @property
    def cursor(self) -> Cursor:
        """Behind the last record that was read."""
        last = self._last
        if last is not None:  # made only here, because nobody needs the cursor behind every record
            self._cursor, self._last = Cursor(last.segment, last.end, last.line.n, last.line.x), None
        return self._cursor

    def read(self, *, live: bool = False) -> Iterator[Entry | Damage]:
        """Yield everything from the cursor to the end.

        `live`: a writer may be appending, so an incomplete or damaged end is reported only when something follows it.
        """
        copies = self._find_copies()
        entries = self._read(live=live)
        lost_n = 0
        while copies:
            found = next(entries, None)
            if found is None:
                yield from self._end_with(copies, lost_n, live)
                return
            if isinstance(found, Damage):
                lost_n = max(lost_n, found.n_last)
            else:
                while copies and copies[0].line.n < found.line.n:
                    yield self._take(copies)
                if copies and copies[0].line.n == found.line.n:
                    copies.popleft()
            yield found
        yield from entries

    def _find_copies(self) -> deque[CopiedLine]:
        """The lines of started.jsonl behind the cursor.

        The file is read before the journal is listed, because its lines were durable in the journal before they were
        copied. In the other order a new line would look like a lost record.
        """
        self._start = read_start(self._disk, os.path.dirname(self._folder))
        if not self._start.lines:
            return deque()
        chain = self._list()
        valid = self._start.valid_in(chain) if self._start.uid == self._uid else []
        self.start_n = max((each.line.n for each in valid), default=0)
        read_n = max(self.cursor.n, self._tail_n, self._copied_n)
        return deque(each for each in valid if each.line.n > read_n)

    def _take(self, copies: deque[CopiedLine]) -> Entry:
        copied = copies.popleft()
        self._copied_n = copied.line.n
        return copied.entry()

    def _end_with(self, copies: deque[CopiedLine], lost_n: int, live: bool) -> Iterator[Entry | Damage]:
        """Yield the lines of started.jsonl behind the last record. If the journal has no record at all, yield nothing:
        the whole journal is lost, and a copy of it may exist elsewhere.
        """
        if self.cursor == START and not self._tail_n:
            return
        last = copies[-1].line.n
        if not live and last > lost_n:
            first = max(self.cursor.n, self._tail_n, lost_n) + 1
            detail = f"{START_FILE} shows that record {last} was durable"
            yield Damage("lost", self._segment, self._offset, self._offset, first, last, detail=detail)
        while copies:
            yield self._take(copies)

    def _read(self, *, live: bool) -> Iterator[Entry | Damage]:
        while True:
            chain = self._list()
            for stray in chain.strays:
                if stray not in self._strays_seen:
                    self._strays_seen.add(stray)
                    yield stray
            files = chain.from_number(self._segment)
            try:
                if not self._checked:
                    self._check_cursor(files[0] if files else None)
                if not files:
                    return
                n_end = self._first_number(files)
                content = open_segment(self._disk, files[0].path)
            except FileNotFoundError:
                continue  # sealed or quarantined since we listed it
            try:
                yield from self._enter(files[0])
                if len(files) > 1:
                    yield from self._read_closed(files[0], files[1], content, n_end)
                    continue
                yield from self._read_last(files[0], content, live)
            finally:
                content.close()
            segments = self._list().segments
            if not segments or segments[-1].number == files[0].number:
                return

    def record_at(self, segment: int, offset: int) -> Entry | None:
        """One record, without reading the rest of its segment; None if there is none at that offset."""
        chain = self._list_for_lookup()
        found = self._lookup
        if found is None or found.chain is not chain or found.number != segment:
            try:  # it stays open, because the next lookup is usually in the same segment
                found = self._open_for_lookup(chain, segment)
            except FileNotFoundError:  # sealed or quarantined since we listed it
                self._listed = None
                return self.record_at(segment, offset)
        if found is None or (found.end is not None and offset >= found.end):
            return None  # there is no such segment, or the record is void
        raw = line_at(found.content, offset, LINE_BYTES_MAX + 1)
        line = parse(raw.removesuffix(b"\n"), found.seed)
        return None if line is None else Entry(line, segment, offset, offset + len(raw))

    def last_before(self, segment: int) -> Entry | None:
        """The last record before a segment; None if there is none, or a long one. It shows how a process ended."""
        chain = self._list_for_lookup()
        number = max((file.number for file in chain.segments if file.number < segment), default=0)
        try:
            found = self._open_for_lookup(chain, number)
        except FileNotFoundError:  # sealed or quarantined since we listed it
            self._listed = None
            return None
        if found is None:
            return None
        end = found.content.size() if found.end is None else found.end
        first = max(0, end - LOOKUP_BYTES)
        text = b"".join(piece.data for piece in found.content.pieces(first, end))
        start = text.rfind(b"\n", 0, -1) + 1
        line = parse(text[start:-1], found.seed) if text.endswith(b"\n") else None
        return None if line is None else Entry(line, number, first + start, end)

    def _open_for_lookup(self, chain: Chain, segment: int) -> "_Lookup | None":
        files = chain.from_number(segment)
        if not files or files[0].number != segment:
            return None
        fence = fence_between(files[0], files[1]) if len(files) > 1 else None
        path, end = files[0].path, None if fence is None else fence.bytes
        if self._lookup is not None and self._lookup.path == path:
            content = self._lookup.content
        else:
            self.close()
            content = open_segment(self._disk, path, LOOKUP_BYTES, LOOKUP_RECENT_BYTES)
        self._lookup = _Lookup(chain, segment, path, content, end, self._seed)
        return self._lookup

    def _list_for_lookup(self) -> Chain:
        """List the journal only if its folder has changed, which is noticed after a moment: an export looks up millions
        of records.
        """
        now = time.monotonic()
        if self._listed is not None and now < self._listed_until:
            return self._listed[1]
        self._listed_until = now + _LISTED_SECONDS
        try:
            # A simulated disk has no times.
            found = os.stat(self._folder) if self._disk is OS_DISK else None
        except OSError:
            found = None
        stamp = None if found is None else (found.st_dev, found.st_ino, found.st_mtime_ns)
        if self._listed is not None and self._listed[0] == stamp:
            return self._listed[1]
        chain = self._list()
        # The time of a folder is coarse: a change right after this one could leave it as it is.
        is_settled = found is not None and time.time() - found.st_mtime > SETTLED_SECONDS
        self._listed = (stamp, chain) if stamp is not None and is_settled else None
        return chain

    @property
    def is_whole(self) -> bool:
        """Whether everything that was read is a line of the journal before the cursor. Then another reader that starts
        at the cursor yields what this one would yield next.
        """
        return not (self._tail_n or self._copied_n or self._strays_seen)

    def close(self) -> None:
        """Close the file that `record_at` keeps open."""
        if self._lookup is not None:
            self._lookup.content.close()
            self._lookup = None

    @property
    def uid(self) -> str:
        """The uid of the journal's run; empty if neither a segment nor started.jsonl names it."""
        return self._list().uid

    @property
    def _seed(self) -> int:
        return seed_of(self._uid or "")

    def _list(self) -> Chain:
        if self._uid:
            return list_chain(self._disk, self._folder, self._uid, self._headers)
        if self._start is None:
            self._start = read_start(self._disk, os.path.dirname(self._folder))
        # Without a readable header, the uid is that of started.jsonl: no record can be verified without a uid.
        chain = list_chain(self._disk, self._folder, self._start.uid or None, self._headers)
        is_foreign = any(each.kind == "foreign" for each in chain.strays)
        if chain.uid and is_foreign and not any(file.header for file in chain.segments):
            path = os.path.join(os.path.dirname(self._folder), START_FILE)
            raise DamagedError(
                f"the journal in {self._folder} belongs to another run than {path}; restore the journal of this run, "
                f"or remove {START_FILE} if the journal is the right one"
            )
        self._uid = chain.uid or self._uid
        return chain

    def _check_cursor(self, file: SegmentFile | None) -> None:
        """StaleCursorError unless the cursor's record still ends at the cursor's offset."""
        found = False
        if file is not None and file.number == self.cursor.segment:
            with contextlib.closing(open_segment(self._disk, file.path)) as content:
                found = is_record_end(content, self.cursor.offset, self.cursor.x)
        if not found:
            raise self._stale(f"record {self.cursor.n} does not end at byte {self.cursor.offset}")
        self._checked = True

    def _enter(self, file: SegmentFile) -> Iterator[Damage]:
        """Move to a segment, and report the segments before it that are missing."""
        prev = file.header.segment.prev if file.header else None
        if file.number > self._segment and prev is not None and prev.segment == self._segment - 1:
            self._segment = file.number  # the writer skipped the numbers between: stray files had them
        if file.number == self._segment:
            return
        n_last = file.header.line.n - 1 if file.header else self._n
        detail = f"segments {self._segment} to {file.number - 1} are missing"
        yield Damage("missing", self._segment, 0, 0, self._n + 1, n_last, detail=detail)
        self._segment, self._offset, self._n = file.number, 0, n_last

    def _read_last(self, file: SegmentFile, content: SegmentContent, live: bool) -> Iterator[Entry | Damage]:
        """Read the last segment. Its end is not known: a writer may be appending, or may have died in the middle."""
        if content.size() < self._offset:
            raise self._stale(f"segment {file.number} has become shorter")
        scanner = self._scanner()
        yield from self._scan(scanner, content, None, None)
        if live and not file.sealed:  # nothing is appended to a sealed segment, so there an incomplete end is damage
            return
        tail = scanner.tail()
        if tail is not None and tail.whole:
            for found in scanner.accept_tail(tail):
                if isinstance(found, Entry):
                    if found.line.n == self._tail_n:
                        continue
                    self._tail_n = found.line.n
                yield found
            return
        yield from end_of(scanner, file, content)

    def _read_closed(
        self, file: SegmentFile, successor: SegmentFile, content: SegmentContent, n_end: int | None
    ) -> Iterator[Entry | Damage]:
        """Read a segment that has a successor. It ends at the fence in the successor's header; the rest is void."""
        fence = fence_between(file, successor)
        scanner = self._scanner()
        if fence is None:
            yield from self._scan(scanner, content, None, n_end)
            damage = scanner.trailing()
            if damage is not None:  # the damage at the start of the successor covers the numbers up to its first record
                damage = msgspec.structs.replace(damage, open_end=False)
        else:
            if self._offset > fence.bytes:
                raise self._stale(f"segment {file.number} ends at byte {fence.bytes}")
            yield from self._scan(scanner, content, fence.bytes, None)
            scanner.blame_tail("line")
            scanner.blame_missing_bytes(fence.bytes)
            damage = scanner.trailing(fence.n)
            self._n = max(self._n, fence.n)
        if damage is not None:
            yield damage
        elif fence is not None and scanner.x != fence.x:
            detail = f"record {fence.n} is not the one that segment {successor.number} follows"
            yield Damage("fence", file.number, scanner.end, scanner.end, fence.n, fence.n - 1, detail=detail)
        self._segment, self._offset = file.number + 1, 0

    def _first_number(self, files: Sequence[SegmentFile]) -> int | None:
        """The first record number after the first of these segments, if no readable header says where that one ends."""
        if len(files) < 2 or fence_between(files[0], files[1]) is not None:
            return None
        for unreadable, file in enumerate(files[1:]):
            found = file.header.line.n if file.header else self._first_record(file)
            if found is not None:
                return found - unreadable  # each unreadable header in between has a number too
        return None

    def _first_record(self, file: SegmentFile) -> int | None:
        """The number of a segment's unreadable header, computed from the first readable record behind it."""
        content = open_segment(self._disk, file.path)
        try:
            scanner = Scanner(file.number, self._seed, 0)
            for piece in content.pieces(0):
                for found in scanner.feed(piece):
                    if isinstance(found, Entry):
                        glued = read_line(self._disk, file.path, 0, min(found.offset, _GLUED_BYTES_MAX))
                        return found.line.n - max(1, len(RECORD_START.findall(glued)))
        finally:
            content.close()
        return None

    def _scanner(self) -> Scanner:
        return Scanner(self._segment, self._seed, self._n, self.cursor.x, self._offset)

    def _scan(
        self, scanner: Scanner, content: SegmentContent, end: int | None, n_end: int | None
    ) -> Iterator[Entry | Damage]:
        """Yield entries and damage up to byte `end` or, if that is not known, up to record number `n_end`."""
        for piece in content.pieces(self._offset, end):
            for found in scanner.feed(piece):
                if isinstance(found, Entry):
                    if n_end is not None and found.line.n >= n_end:
                        return
                    self._offset, self._n, self._last = found.end, found.line.n, found
                    if found.line.n == self._tail_n:
                        continue  # it was yielded before its newline was repaired
                yield found

    def _stale(self, why: str) -> StaleCursorError:
        return StaleCursorError(f"{self._folder}: {why}, so the reader's cursor is stale: read again from the start")


def end_of(scanner: Scanner, file: SegmentFile, content: SegmentContent) -> Iterator[Damage]:
    """The damage at the end of a segment without a successor."""
    scanner.blame_tail("torn")
    if content.cut:
        scanner.blame_missing_end("the end of the sealed file is missing; how many records it held is not known")
    elif file.header is None and scanner.end == 0:
        scanner.blame_missing_end("its header is missing")
    damage = scanner.trailing()
    if damage is not None:
        yield damage
