"""Void bytes: what a poisoned segment holds beyond its successor's fence was never acknowledged, and never counts.

Also when the header that says so is damaged: then the numbers that follow tell.
"""

import errno
import os

import pytest

from holdfast.journal import Reader, seal, verify
from tests.journals import (
    QUICK,
    UID,
    QuickDisk,
    Snapshot,
    flipped,
    note,
    open_journal,
    put_files,
    read_all,
    request,
    snapshot,
    spans_of,
    write_session,
)

WIDE = request(segment_bytes=100_000)
FIRST, SECOND, THIRD = "000001.jsonl", "000002.jsonl", "000003.jsonl"


class FailingSync(QuickDisk):
    """When armed, the next sync fails once, after its bytes were written."""

    def __init__(self) -> None:
        self.armed = False

    def sync(self, handle: int) -> None:
        if self.armed:
            self.armed = False
            raise OSError(errno.EIO, "the disk has failed")


def poisoned_journal(folder: str, *, void: int, later: int) -> list[str]:
    """Segment 1: three records and a void batch; segment 2: the same batch, acknowledged; segment 3: another epoch."""
    disk = FailingSync()
    appender = open_journal(folder, disk, WIDE).appender
    before = [f"before-{index}" for index in range(3)]
    batch = [f"batch-{index}" for index in range(void)]
    appender.commit([note(key) for key in before])
    disk.armed = True
    appender.commit([note(key) for key in batch])
    appender.close()
    return before + batch + another_epoch(folder, later)


def bare_header_journal(folder: str, *, void: int, later: int) -> list[str]:
    """The same, but the process died before the batch reached segment 2, which holds only its header."""
    poisoned_journal(folder, void=void, later=0)
    os.remove(os.path.join(folder, THIRD))
    path = os.path.join(folder, SECOND)
    with open(path, "rb") as file:
        header = next(spans_of(file.read()))
    os.truncate(path, header.last)
    return [f"before-{index}" for index in range(3)] + another_epoch(folder, later)


def another_epoch(folder: str, count: int) -> list[str]:
    keys = [f"later-{index}" for index in range(count)]
    write_session(folder, map(note, keys), wanted=WIDE)
    return keys


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def place(tmp_path: os.PathLike[str], request: pytest.FixtureRequest) -> tuple[str, bool]:
    """A journal folder to be, and whether the poisoned segment is to be sealed."""
    return os.path.join(tmp_path, "journal"), bool(request.param)


def test_void_records_are_never_counted(place: tuple[str, bool]) -> None:
    folder, sealed = place
    acknowledged = poisoned_journal(folder, void=5, later=4)
    if sealed:
        seal(QUICK, folder, 1)
    assert read_all(folder).keys == acknowledged
    verification = verify(folder, disk=QUICK)
    assert verification.ok
    assert [warning for warning in verification.warnings if "void" in warning]


def test_a_void_record_is_not_given_out_by_its_position(place: tuple[str, bool]) -> None:
    folder, sealed = place
    poisoned_journal(folder, void=5, later=4)
    void = list(spans_of(content_of(folder, 1)))[4:]
    if sealed:
        seal(QUICK, folder, 1)
    reader = Reader(folder, UID, disk=QUICK)
    assert len(void) == 5
    assert [reader.record_at(1, span.first) for span in void] == [None] * 5


def test_a_flip_in_void_bytes_costs_nothing(place: tuple[str, bool]) -> None:
    folder, sealed = place
    acknowledged = poisoned_journal(folder, void=5, later=4)
    at = list(spans_of(content_of(folder, 1)))[5].first + 10
    if sealed:
        seal(QUICK, folder, 1)
    else:
        flip_file(os.path.join(folder, FIRST), at)
    assert read_all(folder).keys == acknowledged
    assert verify(folder, disk=QUICK).ok


@pytest.mark.parametrize("void", [1, 2, 7])
@pytest.mark.parametrize("later", [0, 1, 12])
def test_a_flip_in_the_header_behind_a_poisoned_segment_keeps_all_other_records(
    place: tuple[str, bool], void: int, later: int
) -> None:
    folder, sealed = place
    acknowledged = poisoned_journal(folder, void=void, later=later)
    if sealed:
        seal(QUICK, folder, 1)
    flip_file(os.path.join(folder, SECOND), 30)
    assert read_all(folder).keys == acknowledged
    assert verify(folder, disk=QUICK).errors


@pytest.mark.parametrize("later", [0, 1, 12])
def test_a_flip_in_a_bare_header_behind_a_poisoned_segment_keeps_all_records(
    place: tuple[str, bool], later: int
) -> None:
    """The void numbers are used again further on: counting them would hide acknowledged records."""
    folder, sealed = place
    acknowledged = bare_header_journal(folder, void=7, later=later)
    if sealed:
        seal(QUICK, folder, 1)
    assert read_all(folder).keys == acknowledged
    flip_file(os.path.join(folder, SECOND), 30)
    assert read_all(folder).keys == acknowledged
    assert verify(folder, disk=QUICK).errors


def test_losing_the_whole_successor_of_a_poisoned_segment_hides_no_record_of_later_segments(
    place: tuple[str, bool],
) -> None:
    folder, sealed = place
    poisoned_journal(folder, void=7, later=12)
    if sealed:
        seal(QUICK, folder, 1)
    with open(os.path.join(folder, SECOND), "wb"):
        pass
    assert [key for key in read_all(folder).keys if key.startswith("later")] == [
        f"later-{index}" for index in range(12)
    ]


def test_opening_after_a_flip_in_the_header_behind_a_poisoned_segment_continues(place: tuple[str, bool]) -> None:
    folder, sealed = place
    acknowledged = poisoned_journal(folder, void=7, later=0)
    os.remove(os.path.join(folder, THIRD))
    if sealed:
        seal(QUICK, folder, 1)
    flip_file(os.path.join(folder, SECOND), 30)
    for attempt in range(3):
        write_session(folder, [note(f"new-{attempt}")], wanted=WIDE)
        acknowledged.append(f"new-{attempt}")
        assert read_all(folder).keys == acknowledged
    assert len(read_all(folder).anomalies) == 1


@pytest.mark.long
def test_every_single_flip_in_a_poisoned_journal_keeps_all_other_acknowledged_records(
    tmp_path: os.PathLike[str],
) -> None:
    folder = os.path.join(tmp_path, "journal")
    acknowledged = poisoned_journal(folder, void=4, later=3)
    original = snapshot(folder)
    places = [(name, at) for name in original.names for at in range(len(original.files[name]))]
    wrong = []
    for index, (name, at) in enumerate(places):
        files = {**original.files, name: flipped(original.files[name], at)}
        seen = read_all(put_files(os.path.join(tmp_path, f"case-{index}"), files))
        missing = set(acknowledged) - set(seen.keys) - keys_hit(original, name, at)
        invented = set(seen.lines.values()) - set(original.lines.values())
        if missing or invented:
            wrong.append((name, at, missing, invented))
    assert wrong == []


def keys_hit(original: Snapshot, name: str, at: int) -> set[str]:
    """The keys of the line that a byte is in and, for a newline, of the line behind it."""
    data = original.contents[name]
    spans = [span for span in original.spans(name) if span.first <= at < span.last or span.first - 1 == at]
    touched = [data[span.first : span.last] for span in spans]
    return {part.split(b'"')[0].decode() for line in touched for part in line.split(b'"k":"')[1:]}


def content_of(folder: str, number: int) -> bytes:
    with open(os.path.join(folder, f"{number:06d}.jsonl"), "rb") as file:
        return file.read()


def flip_file(path: str, at: int) -> None:
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(flipped(data, at))
