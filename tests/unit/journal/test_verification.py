"""Checking: `ok` means that nothing is wrong that the journal does not tell of itself."""

import os
from collections.abc import Callable

import pytest

from holdfast.journal import Damage, bounded, count_lost, describe, seal, unrecorded, verify
from holdfast.journal.disk import Disk
from holdfast.journal.frames import read_table
from holdfast.records import Anomaly, draft
from tests.journals import (
    QUICK,
    UID,
    QuickDisk,
    Snapshot,
    flipped,
    note,
    notes,
    read_all,
    request,
    sealed_journal,
    small_journal,
    spans_of,
    tree_of,
    write_session,
)

WIDE = request(segment_bytes=1_000_000)


@pytest.fixture
def folder(tmp_path: os.PathLike[str]) -> str:
    return os.path.join(tmp_path, "journal")


def test_a_journal_that_is_as_written_is_ok(folder: str) -> None:
    written = small_journal(folder)
    result = verify(folder, disk=QUICK)
    assert (result.ok, result.errors, result.warnings, result.damage, result.known) == (True, (), (), (), ())
    assert (result.uid, result.segments) == (UID, len(written.files))
    assert (result.records, result.last_n) == (len(written.lines), max(written.lines))


@pytest.mark.parametrize("make", [small_journal, sealed_journal])
def test_how_far_it_is_grows_to_the_whole(folder: str, make: Callable[[str], Snapshot]) -> None:
    make(folder)
    told: list[tuple[int, int]] = []
    result = verify(folder, disk=QUICK, progress=lambda done, total: told.append((done, total)))
    done, totals = zip(*told, strict=True)
    assert (result.ok, len(told), result.segments > 1) == (True, result.records, True)
    assert list(done) == sorted(set(done))
    assert {done[-1]} == set(totals)


def test_a_closed_run_is_ok(folder: str) -> None:
    written = sealed_journal(folder)
    assert verify(folder, disk=QUICK).records == len(written.lines)
    assert verify(folder, disk=QUICK).ok


def test_a_journal_without_segments_is_damaged(folder: str) -> None:
    os.mkdir(folder)
    result = verify(folder, disk=QUICK)
    assert not result.ok
    assert result.records == 0


def test_verifying_changes_nothing(folder: str) -> None:
    write_session(folder, notes("a", 3), wanted=WIDE)
    with open(os.path.join(folder, "000001.jsonl"), "ab") as file:
        file.write(b"bad line\ntorn")
    before = tree_of(folder)
    assert not verify(folder, disk=ReadOnly()).ok
    assert tree_of(folder) == before


class ReadOnly(QuickDisk):
    """Refuses whatever would change the disk."""

    def create(self, path: str) -> int:
        raise AssertionError(path)

    def remove(self, path: str) -> None:
        raise AssertionError(path)

    def replace(self, temporary: str, path: str) -> None:
        raise AssertionError(path)

    def open(self, path: str, *, write: bool = False) -> int:
        assert not write
        return super().open(path)


def test_an_unknown_loss_is_an_error_and_a_recorded_one_a_warning(folder: str) -> None:
    write_session(folder, notes("a", 4), wanted=WIDE)
    hit = damage_record(folder, 2)
    result = verify(folder, disk=QUICK)
    assert [damage.n_first for damage in result.damage] == [hit]
    assert result.errors == (describe(result.damage[0]),)
    assert result.keys == ("a-1",)
    write_session(folder, [note("new")], wanted=WIDE)
    result = verify(folder, disk=QUICK)
    assert result.ok
    assert [damage.n_first for damage in result.known] == [hit]
    assert [warning for warning in result.warnings if "already recorded" in warning]
    assert result.keys == ("a-1",)


def test_a_new_loss_beside_a_recorded_one_is_still_an_error(folder: str) -> None:
    write_session(folder, notes("a", 6), wanted=WIDE)
    damage_record(folder, 2)
    write_session(folder, [note("new")], wanted=WIDE)
    hit = damage_record(folder, 4)
    result = verify(folder, disk=QUICK)
    assert [damage.n_first for damage in result.damage] == [hit]
    assert len(result.known) == 1


def test_a_torn_tail_is_a_warning(folder: str) -> None:
    write_session(folder, notes("a", 3), wanted=WIDE)
    with open(os.path.join(folder, "000001.jsonl"), "ab") as file:
        file.write(b'{"n":5,"at"')
    result = verify(folder, disk=QUICK)
    assert result.ok
    assert [warning for warning in result.warnings if "torn" in warning]


@pytest.mark.parametrize("disk", [QUICK])
def test_a_sealed_file_with_a_flip_that_costs_no_record_is_an_error(folder: str, disk: Disk) -> None:
    write_session(folder, notes("a", 3), wanted=WIDE)
    write_session(folder, notes("b", 3), wanted=WIDE)
    seal(disk, folder, 1)
    path = os.path.join(folder, "000001.jsonl.zst")
    with open(path, "rb") as file:
        data = file.read()
    digest_at = data.index(b"\x50\x2a\x4d\x18") + 8
    with open(path, "wb") as file:
        file.write(flipped(data, digest_at))
    assert len(read_all(folder).keys) == 6
    assert "changed" in verify(folder, disk=disk).errors[0]


def test_an_anomaly_of_another_shape_is_read_over(folder: str) -> None:
    """Other rooms write anomalies too, and newer versions may add to them; none of them makes a check fail."""
    write_session(folder, [draft("anomaly", {"kind": "second answer", "of": 3})], wanted=WIDE)
    assert verify(folder, disk=QUICK).ok


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Damage("line", 3, 10, 20, 7, 7), ["line", "segment 3", "bytes 10 to 20", "record 7 lost"]),
        (Damage("hole", 3, 10, 10, 7, 9), ["hole", "records 7 to 9 lost"]),
        (Damage("repeat", 3, 10, 20, 7, 6), ["no record lost"]),
        (Damage("stray", 3, 0, 0, 0, -1, detail="why"), ["no record lost", "(why)"]),
        (Damage("frame", 3, 10, 20, 7, 7, open_end=True), ["bytes 10 to 20 uncompressed", "at least record 7 lost"]),
    ],
)
def test_a_loss_is_described_in_one_line(damage: Damage, words: list[str]) -> None:
    text = describe(damage)
    assert "\n" not in text
    assert [word for word in words if word not in text] == []


def test_damage_at_the_end_counts_at_least_what_is_shown_and_is_recorded_once(folder: str) -> None:
    write_session(folder, notes("a", 6), wanted=WIDE)
    last = verify(folder, disk=QUICK).last_n
    seal(QUICK, folder, 1)
    flip_last_frame(os.path.join(folder, "000001.jsonl.zst"))
    (found,) = verify(folder, disk=QUICK).damage
    assert (found.open_end, str(count_lost([found]))) == (True, "at least 1 record")
    (known,) = bounded([found], last, is_last=True)
    assert (known.n_last, known.open_end) == (last, False)
    assert bounded([found], last)[0].open_end, "a later record may have been written"
    write_session(folder, [note("new")], wanted=request(segment_bytes=1_000_000, known_n=last))
    after = verify(folder, disk=QUICK)
    assert (after.damage, [each.n_last for each in after.known]) == ((), [last])
    anomalies = [Anomaly("frame", 1, 10, 20, 3, 3), Anomaly("lost", 1, 20, 20, 4, 8)]
    assert unrecorded([Damage("frame", 1, 10, 20, 3, 8)], anomalies) == []
    for other in (Damage("frame", 1, 10, 20, 3, 9), Damage("frame", 1, 10, 30, 3, 8), Damage("frame", 2, 10, 20, 3, 8)):
        assert unrecorded([other], anomalies) == [other]


def test_a_record_in_two_damaged_areas_is_counted_once() -> None:
    areas = [Damage("line", 2, 0, 20, 7, 9), Damage("frame", 1, 10, 20, 7, 7), Damage("stray", 3, 0, 0, 0, -1)]
    assert str(count_lost(areas)) == "3 records"
    assert str(count_lost([*areas, Damage("line", 4, 0, 9, 20, 20)])) == "4 records"


def flip_last_frame(path: str) -> None:
    with open(path, "rb") as file:
        data = file.read()
    frame = (read_table(lambda offset, size: data[offset : offset + size], len(data)) or [])[-1]
    with open(path, "wb") as file:
        file.write(flipped(data, frame.at + frame.length // 2))


def damage_record(folder: str, index: int) -> int:
    """Flip a byte of one record's data in the first segment; returns its number."""
    path = os.path.join(folder, "000001.jsonl")
    with open(path, "rb") as file:
        data = file.read()
    lines = data.splitlines(keepends=True)
    first = sum(len(line) for line in lines[:index])
    with open(path, "wb") as file:
        file.write(flipped(data, first + len(lines[index]) - 10))
    return next(spans_of(lines[index])).n


def test_a_last_record_without_its_newline_is_counted_and_is_the_last(tmp_path: os.PathLike[str]) -> None:
    folder = os.path.join(tmp_path, "whole")
    journal = small_journal(folder)
    path = os.path.join(folder, journal.last)
    os.truncate(path, os.path.getsize(path) - 1)
    found = verify(folder, UID, disk=QUICK)
    assert found.ok
    assert (found.records, found.last_n) == (len(journal.lines), max(journal.lines))
