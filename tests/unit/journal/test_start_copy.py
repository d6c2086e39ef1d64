"""started.jsonl: what it holds, what a reader takes from it, and what it never takes."""

import os
from pathlib import Path

import pytest

from holdfast.errors import DamagedError
from holdfast.journal import Damage, Entry, Reader, seal, verify
from holdfast.journal.disk import OsDisk
from holdfast.journal.mirror.pieces import FolderSource
from holdfast.journal.mirror.restore import uid_of
from holdfast.journal.start_copy import (
    START_FILE,
    StartLines,
    copy_start,
    is_start_copy_current,
    read_start,
    write_start,
)
from holdfast.records import Draft, draft
from tests.journals import OTHER_UID, QUICK, UID, flipped, notes, request, unpacked, write_session

STARTED, EXTENDED = 2, 10
WIDE = request(segment_bytes=1_000_000)
KINDS = ["segment", "run.started", "segment", "run.extended"]


def started() -> Draft:
    return draft("run.started", {"text": 'with "quotes" and ümlauts'})


def extended() -> Draft:
    return draft("run.extended", {"text": "more"})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two plain segments: header 1, run.started 2, notes 3 to 7; header 8, note 9, run.extended 10, notes 11 to 13."""
    folder = str(tmp_path / "journal")
    write_session(folder, [started(), *notes("a", 5)], wanted=WIDE)
    write_session(folder, [*notes("b", 1), extended(), *notes("c", 3)], wanted=WIDE)
    copy_start(str(tmp_path), UID, Reader(folder, UID, disk=QUICK).read())
    return tmp_path


def journal(run: Path) -> str:
    return str(run / "journal")


def segment(run: Path, number: int) -> Path:
    return run / "journal" / f"{number:06d}.jsonl"


def damage_lines(run: Path, number: int, *indexes: int) -> None:
    path = segment(run, number)
    lines = path.read_bytes().splitlines(keepends=True)
    for index in indexes:
        lines[index] = flipped(lines[index], len(lines[index]) // 2)
    path.write_bytes(b"".join(lines))


def found_in(run: Path, *, live: bool = False) -> tuple[list[int], list[int], list[Damage]]:
    """The numbers of all records, of those from the copy, and the damage."""
    entries: list[Entry] = []
    damage: list[Damage] = []
    for found in Reader(journal(run), disk=QUICK).read(live=live):
        if isinstance(found, Entry):
            entries.append(found)
        else:
            damage.append(found)
    return [each.line.n for each in entries], [each.line.n for each in entries if each.is_copy], damage


def test_it_holds_the_lines_of_the_journal_byte_for_byte(run: Path) -> None:
    lines = unpacked(str(segment(run, 1))).splitlines()[:2] + unpacked(str(segment(run, 2))).splitlines()[0:3:2]
    assert (run / START_FILE).read_bytes().splitlines() == lines
    copy = read_start(QUICK, str(run))
    assert (copy.uid, copy.flaw) == (UID, "")
    assert [each.line.t for each in copy.lines] == KINDS
    assert [(each.segment, each.epoch) for each in copy.lines] == [(1, 1), (1, 1), (2, 2), (2, 2)]


def test_a_whole_journal_is_read_without_it(run: Path) -> None:
    assert found_in(run) == ([*range(1, 14)], [], [])


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1), (1, 2)])
def test_lost_records_are_taken_from_it_in_their_place(run: Path, lost: tuple[int, ...]) -> None:
    damage_lines(run, 1, *lost)
    numbers, copied, damage = found_in(run)
    assert copied == [index + 1 for index in lost if index < 2]
    assert numbers == sorted(numbers), "before every later record"
    assert {*range(1, 14)} - {*numbers} == {index + 1 for index in lost if index > 1}
    assert sum(each.records_lost for each in damage) == len(lost)


def test_the_only_header_is_lost_and_the_records_still_verify(run: Path) -> None:
    segment(run, 2).unlink()
    damage_lines(run, 1, 0)
    numbers, copied, _ = found_in(run)
    assert numbers[:7] == [*range(1, 8)]
    assert copied == [1, 8, 10]
    assert uid_of(FolderSource(str(run))) == UID
    (run / START_FILE).unlink()
    assert found_in(run)[0] == [], "the negative control: without it nobody knows the uid"


def test_a_lost_end_is_damage_and_its_records_are_taken_from_it(run: Path) -> None:
    path = segment(run, 2)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    numbers, copied, damage = found_in(run)
    assert (numbers, copied) == ([*range(1, 10), EXTENDED], [EXTENDED])
    assert [(each.kind, each.n_first, each.n_last) for each in damage] == [("lost", EXTENDED, EXTENDED)]
    reader = Reader(journal(run), disk=QUICK)
    assert [each.line.n for each in reader.read(live=True) if isinstance(each, Entry)][-1] == EXTENDED
    assert (reader.cursor.n, reader.start_n) == (9, EXTENDED)
    assert list(reader.read(live=True)) == [], "the same reader yields it once"


def test_a_new_segment_does_not_reuse_a_number_that_only_the_copy_knows(run: Path) -> None:
    segment(run, 2).unlink()
    opened, _ = write_session(journal(run), notes("d", 2), wanted=WIDE)
    assert [(each.kind, each.n_first, each.n_last) for each in opened.damage] == [("lost", 8, EXTENDED)]
    numbers, copied, damage = found_in(run)
    assert copied == [8, EXTENDED]
    assert numbers == [*range(1, 9), *range(EXTENDED, EXTENDED + 5)]
    assert verify(journal(run), UID, QUICK).ok, "the loss is recorded"
    assert sum(each.records_lost for each in damage) == 3


def test_records_that_a_takeover_has_replaced_are_not_taken_from_it(run: Path) -> None:
    """Another machine continued from a mirror that had only the first segment, and ended before number 10."""
    segment(run, 2).unlink()
    copy = run / START_FILE
    data = copy.read_bytes()
    copy.unlink()
    write_session(journal(run), [], wanted=request(epoch=3))
    copy.write_bytes(data)
    assert found_in(run) == ([*range(1, 9)], [], [])
    assert Reader(journal(run), disk=QUICK).start_n <= STARTED


def test_a_journal_without_any_record_takes_nothing_from_it(run: Path) -> None:
    for number in (1, 2):
        segment(run, number).write_bytes(b"")
    assert found_in(run)[0] == []
    for number in (1, 2):
        segment(run, number).unlink()
    assert found_in(run) == ([], [], [])


def test_a_reader_with_a_cursor_behind_it_takes_nothing_from_it(run: Path) -> None:
    damage_lines(run, 1, 1)
    reader = Reader(journal(run), disk=QUICK)
    for _ in reader.read():
        if reader.cursor.n == 3:
            break
    later = Reader(journal(run), cursor=reader.cursor, disk=QUICK)
    assert [each.line.n for each in later.read() if isinstance(each, Entry)] == [*range(4, 14)]


def test_a_file_of_another_run_is_damage_unless_the_reader_knows_the_run(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_session(str(other / "journal"), [started()], wanted=request(OTHER_UID))
    copy_start(str(other), OTHER_UID, Reader(str(other / "journal"), disk=QUICK).read())
    (run / START_FILE).write_bytes((other / START_FILE).read_bytes())
    with pytest.raises(DamagedError, match="belongs to another run"):
        found_in(run)
    assert not verify(journal(run), disk=QUICK).ok
    assert len([*Reader(journal(run), UID, disk=QUICK).read()]) == 13


@pytest.mark.parametrize("at", range(0, 900, 97))
def test_no_flip_of_it_changes_what_is_read(run: Path, at: int) -> None:
    copy = run / START_FILE
    data = copy.read_bytes()
    copy.write_bytes(flipped(data, at % len(data)))
    assert read_start(QUICK, str(run)).flaw == "is damaged"
    assert found_in(run) == ([*range(1, 14)], [], [])
    found = verify(journal(run), UID, QUICK)
    assert found.ok
    assert [START_FILE in each for each in found.warnings] == [True]


def test_every_cut_of_it_is_noticed(run: Path) -> None:
    copy = run / START_FILE
    data = copy.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    for size in range(0, len(data), 7):
        copy.write_bytes(data[:size])
        if size not in ends:
            assert read_start(QUICK, str(run)).flaw == "is damaged"
        assert found_in(run) == ([*range(1, 14)], [], [])


def test_what_is_no_file_is_no_copy(run: Path) -> None:
    copy = run / START_FILE
    copy.unlink()
    assert read_start(QUICK, str(run)).flaw == "is missing"
    copy.symlink_to(run / "elsewhere")
    assert read_start(QUICK, str(run)).flaw == "is not a file"
    copy.unlink()
    copy.mkdir()
    assert read_start(QUICK, str(run)).flaw == "is not a file"
    assert found_in(run) == ([*range(1, 14)], [], [])


def test_it_is_written_once_and_a_failure_is_only_reported(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = StartLines()
    entries = list(lines.watch(Reader(journal(run), UID, disk=QUICK).read()))
    assert len(entries) == 13
    before = os.stat(run / START_FILE)
    write_start(str(run), UID, lines, QUICK)
    assert os.stat(run / START_FILE).st_ino == before.st_ino
    assert is_start_copy_current(str(run), UID, lines, QUICK)
    (run / START_FILE).unlink()
    (run / START_FILE).mkdir()
    assert not is_start_copy_current(str(run), UID, lines, QUICK)
    write_start(str(run), UID, lines, OsDisk())
    assert "could not be written" in caplog.text


def test_sealed_segments_are_completed_from_it_too(run: Path) -> None:
    for number in (1, 2):
        seal(QUICK, journal(run), number)
    path = run / "journal" / "000001.jsonl.zst"
    path.write_bytes(flipped(path.read_bytes(), 20))
    numbers, copied, damage = found_in(run)
    assert copied[:1] == [1]
    assert numbers == sorted(numbers)
    assert damage
