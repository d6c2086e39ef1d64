"""An append reads nothing and makes a constant number of calls, however long the journal is."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from holdfast.journal import Entry
from holdfast.journal.appender import Hooks
from holdfast.journal.disk import IOV_MAX, OsDisk, write_all
from holdfast.journal.opening import OpenRequest, open_to_write
from holdfast.journal.reader import Reader
from holdfast.records import draft, draft_group


class CountingDisk(OsDisk):
    """Counts every call to the disk."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> object:
        if not name.startswith("_") and name != "calls":
            self.calls[name] += 1
        return super().__getattribute__(name)


def calls_of_one_commit(folder: Path, records_before: int) -> dict[str, int]:
    disk = CountingDisk()
    appender = open_to_write(disk, str(folder), OpenRequest("run-1"), Hooks(lambda: 0.0)).appender
    batch = [draft("note", {"text": "x" * 100}) for _ in range(500)]
    for _ in range(records_before // 500):
        appender.commit(batch)
    disk.calls.clear()
    appender.commit(batch[:10])
    counted = dict(disk.calls)
    appender.close()
    return counted


@pytest.mark.parametrize("records_before", [0, 1_000, 100_000])
def test_a_commit_is_one_write_and_one_sync_however_long_the_journal_is(records_before: int, tmp_path: Path) -> None:
    assert calls_of_one_commit(tmp_path / "journal", records_before) == {"write": 1, "sync": 1}


def test_followers_are_written_right_after_their_first_record(tmp_path: Path) -> None:
    folder = str(tmp_path / "journal")
    appender = open_to_write(OsDisk(), folder, OpenRequest("run-1"), Hooks(lambda: 0.0)).appender
    group = draft_group(draft("sample.finished", {"o": 0}, "k"), [draft("score", {"o": 0, "of": 0, "x": 1}, "k")] * 2)
    positions = appender.commit([draft("note", {}), group, draft("note", {})])
    appender.close()
    first = positions[0].n
    assert [position.n - first for position in positions] == [0, 1, 4]
    entries = list(Reader(folder, "run-1").read())[-5:]
    lines = [entry.line for entry in entries if isinstance(entry, Entry)]
    assert [(line.n - first, line.t) for line in lines] == [
        (0, "note"),
        (1, "sample.finished"),
        (2, "score"),
        (3, "score"),
        (4, "note"),
    ]
    scored = msgspec.Raw(b'{"o":0,"of":%d,"x":1}' % positions[1].n)
    assert [line.d for line in lines if line.t == "score"] == [scored, scored]
    places = [(entry.line.n, entry.offset) for entry in entries if isinstance(entry, Entry)]
    assert all((position.n, position.offset) in places for position in positions)


class StingyDisk(OsDisk):
    """Writes at most a few bytes at a time, and remembers how many buffers it was given."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.buffers: list[int] = []

    def write(self, handle: int, buffers: Sequence[bytes | memoryview]) -> int:
        self.buffers.append(len(buffers))
        return super().write(handle, [b"".join(buffers)[: self.most]])


@pytest.mark.parametrize("most", [1, 7, 4096])
def test_short_writes_are_continued_where_they_stopped(most: int, tmp_path: Path) -> None:
    disk = StingyDisk(most)
    handle = disk.create(str(tmp_path / "file"))
    parts = [b"one", b"", b"two" * 10, b"three" * 100]
    assert write_all(disk, handle, parts) == len(b"".join(parts))
    disk.close(handle)
    assert (tmp_path / "file").read_bytes() == b"".join(parts)


def test_no_write_is_given_more_buffers_than_the_system_allows(tmp_path: Path) -> None:
    disk = StingyDisk(1 << 30)
    handle = disk.create(str(tmp_path / "file"))
    write_all(disk, handle, [b"x"] * (IOV_MAX * 2 + 5))
    disk.close(handle)
    assert disk.buffers == [IOV_MAX, IOV_MAX, 5]
    assert (tmp_path / "file").stat().st_size == IOV_MAX * 2 + 5


def test_a_batch_of_many_large_records_is_written_whole(tmp_path: Path) -> None:
    disk = CountingDisk()
    appender = open_to_write(disk, str(tmp_path / "journal"), OpenRequest("run-1"), Hooks(lambda: 0.0)).appender
    positions = appender.commit([draft("note", {"text": "x" * 40_000}) for _ in range(IOV_MAX)])
    appender.close()
    assert len(positions) == IOV_MAX
    assert [position.n for position in positions] == list(range(2, IOV_MAX + 2))
