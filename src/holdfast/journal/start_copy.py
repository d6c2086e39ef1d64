"""started.jsonl: a second copy of the records without which no other record can be understood.

It holds `run.started` and every `run.extended`, each after the header of its segment. The lines are the same bytes as
in the journal, with their checksums. Invariant: the file is replaced atomically only after such a record is durable in
the journal, so a line that is here and not there was lost from the journal. A crash before the replacement leaves an
older copy or none; the next resume writes it. Losing only this file loses nothing.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.errors import FormatError
from holdfast.journal.disk import OS_DISK, Disk, NotAFileError, write_file
from holdfast.journal.positions import Damage, Entry
from holdfast.journal.segments import Chain, Header, parse_header
from holdfast.records import LINE_BYTES_MAX, SEGMENT, START_RECORDS, Draft, Line, line_of, parse, seed_of

START_FILE = "started.jsonl"
_encode = msgspec.json.Encoder().encode


class CopiedLine(msgspec.Struct, frozen=True):
    """A record or segment header, and the segment and epoch in which it was written."""

    line: Line
    segment: int
    epoch: int

    def entry(self) -> Entry:
        return Entry(self.line, self.segment, -1, -1)


class StartCopy(msgspec.Struct, frozen=True):
    """The content of the file. `flaw`: what is wrong, as the rest of a sentence that starts with the file's name; empty
    if nothing is.
    """

    uid: str = ""
    lines: tuple[CopiedLine, ...] = ()
    flaw: str = ""

    def valid_in(self, chain: Chain) -> list[CopiedLine]:
        """The lines that no later epoch has replaced. If another machine took the run over before a line reached the
        mirror, it has given the line's number to another record.
        """
        headers = [file.header for file in chain.segments if file.header is not None]
        return [
            each
            for each in self.lines
            if not any(header.segment.epoch > each.epoch and header.line.n <= each.line.n for header in headers)
        ]


def read_start(disk: Disk, run: str) -> StartCopy:
    """The copy in a run folder. Lines with a wrong checksum are left out."""
    try:
        handle = disk.open(os.path.join(run, START_FILE))
    except FileNotFoundError:
        return StartCopy(flaw="is missing")
    except NotAFileError:
        return StartCopy(flaw="is not a file")
    except OSError as error:
        return StartCopy(flaw=f"cannot be read ({error.strerror})")
    try:
        size = disk.size(handle)
        data = disk.read(handle, 0, size) if size <= LINE_BYTES_MAX else b""
    except OSError as error:
        return StartCopy(flaw=f"cannot be read ({error.strerror})")
    finally:
        disk.close(handle)
    return parse_start(data)


def parse_start(data: bytes) -> StartCopy:
    """Parse the bytes of a started.jsonl."""
    *raws, rest = data.split(b"\n")
    uid, lines = "", list[CopiedLine]()
    header: Header | None = None
    is_whole = bool(raws) and not rest
    for raw in raws:
        try:
            found = parse_header(raw, uid or None, START_FILE)
        except FormatError:  # the journal has the same format, and reading it reports the error
            found = None
        if found is not None and found.segment.run == (uid or found.segment.run):
            header, uid = found, found.segment.run
            lines.append(CopiedLine(found.line, found.segment.segment, found.segment.epoch))
            continue
        line = parse(raw, seed_of(uid)) if header is not None else None
        if line is None or header is None or line.t not in START_RECORDS:
            is_whole = False
            continue
        lines.append(CopiedLine(line, header.segment.segment, header.segment.epoch))
    return StartCopy(uid, tuple(lines), "" if is_whole else "is damaged")


_WATCHED = frozenset({SEGMENT, *START_RECORDS})


class StartLines:
    """Collects the lines for the file while a journal is read."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._header: Line | None = None

    def watch(self, entries: Iterable[Entry | Damage]) -> Iterator[Entry | Damage]:
        """Pass the entries through unchanged and collect the start records among them."""
        for each in entries:
            if isinstance(each, Entry) and each.line.t in _WATCHED:
                if each.line.t == SEGMENT:
                    self._header = each.line
                elif self._header is not None:
                    self._lines += [line for line in (self._header, each.line) if line not in self._lines]
            yield each

    def collected(self) -> tuple[list[Line], Line | None]:
        """The lines so far, and the header of the segment that is being read."""
        return self._lines, self._header

    def restore(self, lines: Sequence[Line], header: Line | None) -> None:
        """Continue from what was collected before."""
        self._lines, self._header = list(lines), header

    def encoded(self, uid: str) -> bytes:
        """The bytes of the file: the same lines as in the journal."""
        seed = seed_of(uid)
        drafts = [(line, Draft(b'"t":%b,"d":' % _encode(line.t), bytes(line.d), 0)) for line in self._lines]
        return b"".join(line_of(record, line.n, line.at.encode(), seed) for line, record in drafts)


def is_start_copy_current(run: str, uid: str, lines: StartLines, disk: Disk = OS_DISK) -> bool:
    """Whether the file holds exactly these lines."""
    return _read_bytes(disk, os.path.join(run, START_FILE)) == lines.encoded(uid)


def write_start(run: str, uid: str, lines: StartLines, disk: Disk = OS_DISK) -> None:
    """Replace the file, unless it is up to date. The run does not depend on it, so a failure is only logged."""
    data = lines.encoded(uid)
    path = os.path.join(run, START_FILE)
    if not data or len(data) > LINE_BYTES_MAX or _read_bytes(disk, path) == data:
        return
    try:
        write_file(disk, path, f"{path}.tmp", data)
    except OSError as error:
        logging.getLogger("holdfast").warning(
            "%s could not be written: %s; the run continues without this copy", path, error.strerror
        )


def copy_start(run: str, uid: str, entries: Iterable[Entry | Damage]) -> None:
    """Write the file for a journal that was just created."""
    lines = StartLines()
    for _ in lines.watch(entries):
        pass
    write_start(run, uid, lines)


def _read_bytes(disk: Disk, path: str) -> bytes | None:
    try:
        handle = disk.open(path)
    except OSError:
        return None
    try:
        return disk.read(handle, 0, LINE_BYTES_MAX + 1)
    except OSError:
        return None
    finally:
        disk.close(handle)
