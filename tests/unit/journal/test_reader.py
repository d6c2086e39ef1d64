"""Reading: from any cursor, while the journal is written, sealed, rotated and repaired."""

import os
from collections.abc import Callable

import msgspec
import pytest

from holdfast.errors import FormatError, StaleCursorError
from holdfast.journal import START, Cursor, Damage, Entry, Reader, seal
from holdfast.journal.frames import read_table
from holdfast.records import draft, line_of, seed_of
from tests.journals import (
    QUICK,
    UID,
    QuickDisk,
    flipped,
    note,
    notes,
    open_journal,
    plain_numbers,
    read_all,
    request,
    small_journal,
    write_session,
)

WIDE = request(segment_bytes=1_000_000)


@pytest.fixture
def folder(tmp_path: os.PathLike[str]) -> str:
    return os.path.join(tmp_path, "journal")


def cursor_behind(entry: Entry) -> Cursor:
    return Cursor(entry.segment, entry.end, entry.line.n, entry.line.x)


def numbers(reader: Reader, *, live: bool = False) -> list[int]:
    found = list(reader.read(live=live))
    assert not [each for each in found if isinstance(each, Damage)]
    return [each.line.n for each in found if isinstance(each, Entry)]


# From any cursor.


def test_reading_from_each_records_cursor_yields_exactly_the_rest(folder: str) -> None:
    small_journal(folder)
    entries = read_all(folder).entries
    everything = [entry.line.n for entry in entries]
    assert len(everything) > 15
    for index, entry in enumerate(entries):
        rest = numbers(Reader(folder, UID, cursor_behind(entry), QUICK))
        assert rest == everything[index + 1 :]


def test_a_readers_own_cursor_is_behind_what_it_has_yielded(folder: str) -> None:
    small_journal(folder)
    reader = Reader(folder, UID, disk=QUICK)
    assert reader.cursor == START
    for found in reader.read():
        assert isinstance(found, Entry)
        assert reader.cursor == cursor_behind(found)


def test_a_reader_without_a_uid_finds_it_in_the_headers(folder: str) -> None:
    written = small_journal(folder)
    reader = Reader(folder, disk=QUICK)
    assert numbers(reader) == sorted(written.lines)
    assert reader.uid == UID


def test_a_journal_without_segments_has_no_records(folder: str) -> None:
    os.mkdir(folder)
    reader = Reader(folder, disk=QUICK)
    assert list(reader.read()) == []
    assert reader.uid == ""


@pytest.mark.parametrize("change", [{"offset": 5}, {"x": "0" * 16}, {"segment": 1}, {"segment": 99}, {"offset": 10**9}])
def test_a_cursor_that_does_not_match_is_stale(folder: str, change: dict[str, int | str]) -> None:
    small_journal(folder)
    known = cursor_behind(read_all(folder).entries[7])
    fields = {name: getattr(known, name) for name in known.__struct_fields__}
    with pytest.raises(StaleCursorError, match="read again"):
        list(Reader(folder, UID, Cursor(**{**fields, **change}), QUICK).read())


def test_a_cursor_into_bytes_that_were_cut_is_stale(folder: str) -> None:
    write_session(folder, notes("a", 3), wanted=WIDE)
    path = os.path.join(folder, "000001.jsonl")
    reader = Reader(folder, UID, disk=QUICK)
    numbers(reader)
    os.truncate(path, os.path.getsize(path) - 20)
    with pytest.raises(StaleCursorError):
        list(reader.read())


def test_a_cursor_beyond_the_fence_of_a_successor_is_stale(folder: str) -> None:
    """It has read records that were never acknowledged, and that another epoch has voided."""
    opened = open_journal(folder, wanted=WIDE)
    opened.appender.commit([note("kept")])
    path = os.path.join(folder, "000001.jsonl")
    size = os.path.getsize(path)
    opened.appender.commit([note("void")])
    opened.appender.close()
    reader = Reader(folder, UID, disk=QUICK)
    numbers(reader)
    with open(path, "rb") as file:
        data = file.read()
    os.truncate(path, size)
    write_session(folder, [note("of the next epoch")], wanted=WIDE)
    with open(path, "wb") as file:
        file.write(data)
    with pytest.raises(StaleCursorError):
        list(reader.read())
    assert read_all(folder).keys == ["kept", "of the next epoch"]


# While it is written.


def test_a_reader_tails_a_live_journal(folder: str) -> None:
    appender = open_journal(folder).appender
    reader = Reader(folder, UID, disk=QUICK)
    seen = numbers(reader, live=True)
    for index in range(20):
        appender.commit([note(f"key-{index}"), note(f"other-{index}")])
        seen += numbers(reader, live=True)
    appender.close()
    assert seen == read_all(folder).numbers
    assert len(plain_numbers(folder)) > 3


def test_a_live_reader_waits_for_the_rest_of_a_line(folder: str) -> None:
    write_session(folder, [note("whole")], wanted=WIDE)
    path = os.path.join(folder, "000001.jsonl")
    line = line_of(note("late"), 3, b"2024-01-01T00:00:00.000000Z", seed_of(UID))
    reader = Reader(folder, UID, disk=QUICK)
    seen = []
    for byte in line:
        seen += numbers(reader, live=True)
        with open(path, "ab") as file:
            file.write(bytes([byte]))
    assert seen == [1, 2]
    assert numbers(reader, live=True) == [3]


def test_a_whole_last_line_without_newline_is_yielded_once(folder: str) -> None:
    write_session(folder, notes("a", 2), wanted=WIDE)
    path = os.path.join(folder, "000001.jsonl")
    os.truncate(path, os.path.getsize(path) - 1)
    reader = Reader(folder, UID, disk=QUICK)
    assert numbers(reader) + numbers(reader) == [1, 2, 3]


def test_damage_at_the_end_is_not_reported_live_before_something_follows(folder: str) -> None:
    write_session(folder, notes("a", 2), wanted=WIDE)
    with open(os.path.join(folder, "000001.jsonl"), "ab") as file:
        file.write(b"not a record\n")
    reader = Reader(folder, UID, disk=QUICK)
    assert numbers(reader, live=True) == [1, 2, 3]
    write_session(folder, [note("next")], wanted=WIDE)
    found = list(reader.read(live=True))
    assert [each.kind for each in found if isinstance(each, Damage)] == ["line"]
    assert [each.line.k for each in found if isinstance(each, Entry)] == [None, None, "next"]


# While files change under it.


class Meddling(QuickDisk):
    """Does something just before each opening of a file."""

    def __init__(self, meddle: Callable[[str], None]) -> None:
        self._meddle = meddle

    def open(self, path: str, *, write: bool = False) -> int:
        self._meddle(path)
        return super().open(path, write=write)


def sealing_when(folder: str, countdown: int) -> Meddling:
    """Seals every plain segment but the last when the count of openings reaches zero."""
    left = [countdown]

    def meddle(path: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            for number in plain_numbers(folder)[:-1]:
                seal(QUICK, folder, number)

    return Meddling(meddle)


@pytest.mark.parametrize("countdown", range(1, 16))
def test_a_segment_sealed_between_listing_and_opening_is_still_read(folder: str, countdown: int) -> None:
    write_session(folder, notes("a", 12))
    everything = read_all(folder).numbers
    assert numbers(Reader(folder, UID, disk=sealing_when(folder, countdown))) == everything


@pytest.mark.parametrize("countdown", range(1, 16))
def test_a_segment_sealed_while_a_cursor_is_checked_is_still_read(folder: str, countdown: int) -> None:
    write_session(folder, notes("a", 12))
    entries = read_all(folder).entries
    cursor = cursor_behind(entries[1])
    reader = Reader(folder, UID, cursor, sealing_when(folder, countdown))
    assert numbers(reader) == [entry.line.n for entry in entries[2:]]


@pytest.mark.parametrize("countdown", range(1, 16))
def test_a_segment_sealed_while_its_number_is_looked_for_is_still_read(folder: str, countdown: int) -> None:
    """The header behind the first segment is damaged, so its records are looked at to find where the first ends."""
    write_session(folder, notes("a", 12))
    everything = read_all(folder).numbers
    header = 1 + len([n for n in everything if n < 6])
    flip_in_place(os.path.join(folder, "000002.jsonl"), 30)
    found = list(Reader(folder, UID, disk=sealing_when(folder, countdown)).read())
    assert [each.line.n for each in found if isinstance(each, Entry)] == [n for n in everything if n != header]


@pytest.mark.parametrize("countdown", range(1, 16))
def test_a_record_is_found_by_its_position_while_its_segment_is_sealed(folder: str, countdown: int) -> None:
    write_session(folder, notes("a", 12))
    entry = read_all(folder).entries[1]
    reader = Reader(folder, UID, disk=sealing_when(folder, countdown))
    assert reader.record_at(entry.segment, entry.offset) == entry


def test_reading_survives_sealing_and_rotation_between_two_records(folder: str) -> None:
    appender = open_journal(folder).appender
    appender.commit(notes("a", 6))
    reader = Reader(folder, UID, disk=QUICK)
    seen = []
    for index, found in enumerate(reader.read(live=True)):
        assert isinstance(found, Entry)
        seen.append(found.line.n)
        if index < 10:
            appender.commit([note(f"more-{index}")])
            for number in plain_numbers(folder)[:-1]:
                seal(QUICK, folder, number)
    appender.close()
    assert seen == read_all(folder).numbers[: len(seen)]
    assert seen + numbers(reader) == read_all(folder).numbers


def test_reading_survives_a_last_segment_that_is_quarantined_between_two_reads(folder: str) -> None:
    write_session(folder, notes("a", 2), wanted=WIDE)
    reader = Reader(folder, UID, disk=QUICK)
    assert numbers(reader, live=True) == [1, 2, 3]
    with open(os.path.join(folder, "000002.jsonl"), "wb") as file:
        file.write(b"no record at all\n")
    assert numbers(reader, live=True) == []
    write_session(folder, [note("after")], wanted=WIDE)
    found = list(reader.read(live=True))
    assert [each.line.k for each in found if isinstance(each, Entry)][-1] == "after"


def flip_in_place(path: str, at: int) -> None:
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(flipped(data, at))


# One record.


def test_every_record_is_found_by_its_position(folder: str) -> None:
    small_journal(folder)
    reader = Reader(folder, UID, disk=QUICK)
    entries = read_all(folder).entries
    assert [reader.record_at(entry.segment, entry.offset) for entry in entries] == entries


def test_a_position_that_is_none_gives_nothing(folder: str) -> None:
    small_journal(folder)
    reader = Reader(folder, UID, disk=QUICK)
    entry = read_all(folder).entries[3]
    places = [
        (entry.segment, entry.offset + 1),
        (entry.segment, 10**9),
        (99, 0),
        (0, 0),
        (entry.segment, entry.end - 1),
    ]
    assert [reader.record_at(*place) for place in places] == [None] * len(places)


class Counting(QuickDisk):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        self.bytes = 0

    def read(self, handle: int, offset: int, size: int) -> bytes:
        data = super().read(handle, offset, size)
        self.bytes += len(data)
        return data


def test_one_record_of_a_sealed_segment_costs_only_its_frame_and_the_table(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.journal.frames.FRAME_BYTES", 2000)
    write_session(folder, [note(f"{index}", os.urandom(400).hex()) for index in range(40)], wanted=WIDE)
    write_session(folder, [note("later")], wanted=WIDE)
    entries = [entry for entry in read_all(folder).entries if entry.segment == 1]
    seal(QUICK, folder, 1)
    with open(os.path.join(folder, "000001.jsonl.zst"), "rb") as file:
        data = file.read()
    table = read_table(lambda offset, size: data[offset : offset + size], len(data))
    assert table
    assert len(table) > 10
    disk = Counting()
    reader = Reader(folder, UID, disk=disk)
    assert reader.uid == UID  # the headers are read now, once
    for entry in entries:
        disk.bytes = 0
        assert reader.record_at(entry.segment, entry.offset) == entry
        packed = next(frame.length for frame in table if frame.first <= entry.offset < frame.first + frame.size)
        assert disk.bytes <= packed + 8 * len(table) + 100


def test_one_record_of_a_hot_segment_costs_little_of_it(folder: str) -> None:
    write_session(folder, notes("a", 3000), wanted=WIDE)
    disk = Counting()
    reader = Reader(folder, UID, disk=disk)
    assert reader.uid == UID
    entry = read_all(folder).entries[100]
    disk.bytes = 0
    assert reader.record_at(entry.segment, entry.offset) == entry
    assert disk.bytes <= 64 * 1024


# What it refuses.


def test_a_record_of_an_unknown_type_is_refused(folder: str) -> None:
    write_session(folder, notes("a", 2), wanted=WIDE)
    record = msgspec.structs.replace(draft("note", {}), head=b'"t":"from.the.future","d":')
    with open(os.path.join(folder, "000001.jsonl"), "ab") as file:
        file.write(line_of(record, 4, b"2024-01-01T00:00:00.000000Z", seed_of(UID)))
    with pytest.raises(FormatError, match=r"from\.the\.future"):
        list(Reader(folder, UID, disk=QUICK).read())
    with pytest.raises(FormatError):
        open_journal(folder)


def test_a_deeply_nested_line_that_is_no_record_is_damage(folder: str) -> None:
    write_session(folder, notes("a", 2), wanted=WIDE)
    with open(os.path.join(folder, "000007.jsonl"), "wb") as file:
        file.write(b'{"zz":' + b"[" * 30_000 + b"]" * 30_000 + b"}\n")
    assert read_all(folder).keys == ["a-0", "a-1"]


def test_a_folder_that_does_not_exist_has_no_records(folder: str) -> None:
    assert list(Reader(folder, disk=QUICK).read()) == []


# The last record before a segment.


def test_the_last_record_before_each_segment_is_found_also_in_sealed_ones(folder: str) -> None:
    small_journal(folder)
    entries = read_all(folder).entries
    reader = Reader(folder, UID, disk=QUICK)
    for segment in {entry.segment for entry in entries}:
        before = [each for each in entries if each.segment < segment]
        assert reader.last_before(segment) == (before[-1] if before else None)
    assert reader.last_before(99) == entries[-1]
    reader.close()


def test_a_long_last_record_is_not_looked_for(folder: str) -> None:
    write_session(folder, [note("k", "x" * 200_000)], wanted=WIDE)
    write_session(folder, [note("k", "y")], wanted=WIDE)
    entries = read_all(folder).entries
    reader = Reader(folder, UID, disk=QUICK)
    second = entries[-1].segment
    assert second > 1
    assert reader.last_before(second) is None
    reader.close()
