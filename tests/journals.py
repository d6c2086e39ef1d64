"""Small journals for tests, and what is known of every line in them.

Built with the synchronous core on real files. `QuickDisk` leaves out the syncs: tests of damage and of reading are
not about what a power loss leaves.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.journal import Damage, Entry, OpenRequest, Position, Reader, seal
from holdfast.journal.appender import Hooks
from holdfast.journal.disk import Disk, OsDisk
from holdfast.journal.opening import Opened, open_to_write
from holdfast.journal.scan import open_content
from holdfast.records import Anomaly, Draft, Line, draft

UID = "run-under-test"
OTHER_UID = "some-other-run"
SEGMENT_BYTES = 700
ANOMALY = msgspec.json.Decoder(Anomaly)


class QuickDisk(OsDisk):
    """Real files without syncs."""

    def sync(self, handle: int) -> None:
        return None

    def sync_folder(self, path: str) -> None:
        return None


QUICK = QuickDisk()


class Ticks:
    """A clock that advances by one second at each look."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def __call__(self) -> float:
        self._now += 1.0
        return self._now


class Span(NamedTuple):
    """Record `n` is the uncompressed bytes [first, last) of its segment, newline included."""

    n: int
    first: int
    last: int


class Snapshot(NamedTuple):
    """A journal as it was written: the files, their uncompressed bytes, and each line by its number."""

    files: dict[str, bytes]
    contents: dict[str, bytes]
    lines: dict[int, bytes]

    def spans(self, name: str) -> list[Span]:
        return list(spans_of(self.contents[name]))

    def numbers_in(self, name: str) -> set[int]:
        return {span.n for span in self.spans(name)}

    @property
    def names(self) -> list[str]:
        return sorted(self.files)

    @property
    def last(self) -> str:
        return self.names[-1]


class Seen(NamedTuple):
    """What one pass over a journal yields."""

    entries: list[Entry]
    damage: list[Damage]

    @property
    def lines(self) -> dict[int, bytes]:
        return {entry.line.n: bytes_of(entry.line) for entry in self.entries}

    @property
    def numbers(self) -> list[int]:
        return [entry.line.n for entry in self.entries]

    @property
    def keys(self) -> list[str]:
        return [entry.line.k for entry in self.entries if entry.line.k is not None]

    @property
    def anomalies(self) -> list[Anomaly]:
        return [ANOMALY.decode(entry.line.d) for entry in self.entries if entry.line.t == "anomaly"]


def hooks(clock: Callable[[], float] | None = None) -> Hooks:
    return Hooks(clock=clock or Ticks())


def request(
    uid: str = UID,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    epoch: int | None = None,
    known_n: int = 0,
    known_epoch: int | None = None,
) -> OpenRequest:
    return OpenRequest(uid, epoch, known_n, known_epoch, segment_bytes)


def note(key: str, text: str = "an answer that was paid for") -> Draft:
    return draft("note", {"text": f"{text} {key}", "cost": len(key)}, key)


def notes(prefix: str, count: int) -> list[Draft]:
    return [note(f"{prefix}-{index}") for index in range(count)]


def open_journal(folder: str, disk: Disk = QUICK, wanted: OpenRequest | None = None) -> Opened:
    return open_to_write(disk, folder, wanted or request(), hooks())


def write_session(
    folder: str, records: Iterable[Draft], disk: Disk = QUICK, wanted: OpenRequest | None = None
) -> tuple[Opened, list[Position]]:
    """One epoch: open, commit each record by itself, let go."""
    opened = open_journal(folder, disk, wanted)
    positions = [position for record in records for position in opened.appender.commit([record])]
    opened.appender.close()
    return opened, positions


def small_journal(folder: str, uid: str = UID) -> Snapshot:
    """Three epochs over several segments: sealed ones, closed plain ones, and a hot one with several records."""
    wanted = request(uid)
    write_session(folder, notes("first", 4), wanted=wanted)
    write_session(folder, notes("second", 5), wanted=wanted)
    for number in plain_numbers(folder):
        seal(QUICK, folder, number)
    write_session(folder, notes("third", 7), wanted=wanted)
    return snapshot(folder)


def sealed_journal(folder: str) -> Snapshot:
    """A run that was closed: everything is sealed, the last segment too."""
    write_session(folder, notes("first", 4))
    write_session(folder, notes("second", 6), wanted=request(segment_bytes=10_000))
    for number in plain_numbers(folder):
        seal(QUICK, folder, number)
    return snapshot(folder)


def plain_numbers(folder: str) -> list[int]:
    return sorted(int(name.split(".")[0]) for name in os.listdir(folder) if name.endswith(".jsonl"))


def snapshot(folder: str) -> Snapshot:
    files = files_in(folder)
    contents = {name: unpacked(os.path.join(folder, name)) for name in files}
    lines = {}
    for content in contents.values():
        lines.update({span.n: content[span.first : span.last] for span in spans_of(content)})
    return Snapshot(files, contents, lines)


def files_in(folder: str) -> dict[str, bytes]:
    """Every file directly in a folder, with its bytes."""
    found = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                found[name] = file.read()
    return found


def tree_of(folder: str) -> dict[str, bytes]:
    """Every file below a folder, to see whether anything has changed."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:  # a live run replaces its lease
                found[os.path.relpath(path, folder)] = file.read()
    return found


def put_files(folder: str, files: Mapping[str, bytes]) -> str:
    """A new folder with these files."""
    os.makedirs(folder)
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
    return folder


def unpacked(path: str) -> bytes:
    content = open_content(QUICK, path)
    try:
        return b"".join(piece.data for piece in content.pieces(0))
    finally:
        content.close()


def spans_of(content: bytes) -> Iterator[Span]:
    at = 0
    for line in content.splitlines(keepends=True):
        yield Span(msgspec.json.decode(line, type=Line).n, at, at + len(line))
        at += len(line)


def bytes_of(line: Line) -> bytes:
    """The bytes that a verified record was written as."""
    key = b"" if line.k is None else b'"k":%b,' % msgspec.json.encode(line.k)
    head = b'{"n":%d,"at":"%b","t":%b,%b"d":' % (line.n, line.at.encode(), msgspec.json.encode(line.t), key)
    return b'%b%b,"x":"%b"}\n' % (head, bytes(line.d), line.x.encode())


def read_all(folder: str, disk: Disk = QUICK, uid: str | None = UID) -> Seen:
    entries: list[Entry] = []
    damage: list[Damage] = []
    for found in Reader(folder, uid, disk=disk).read():
        if isinstance(found, Entry):
            entries.append(found)
        else:
            damage.append(found)
    return Seen(entries, damage)


def flipped(data: bytes, at: int, mask: int = 0x01) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def frames_of(packed: bytes) -> list[int]:
    """Where the frames of a sealed segment begin: its header has one, and so has every megabyte of other records."""
    return [found.start() for found in re.finditer(rb"\x28\xb5\x2f\xfd", packed)]


def without(lines: Sequence[bytes], *indexes: int) -> bytes:
    return b"".join(line for index, line in enumerate(lines) if index not in indexes)
