"""Opening to write: one path for a first run, a resume and a takeover, whatever was left behind."""

import os

import msgspec
import pytest

from holdfast.errors import FencedError, FormatError
from holdfast.journal import Damage, Position, verify
from holdfast.journal.segments import list_chain
from holdfast.records import Fence, Segment, draft, line_of, seed_of
from tests.journals import (
    QUICK,
    UID,
    QuickDisk,
    flipped,
    note,
    notes,
    open_journal,
    read_all,
    request,
    small_journal,
    spans_of,
    tree_of,
    write_session,
)

WIDE = request(segment_bytes=1_000_000)
AT = b"2024-01-01T00:00:00.000000Z"
HEADER = msgspec.json.Decoder(Segment)


@pytest.fixture
def folder(tmp_path: os.PathLike[str]) -> str:
    return os.path.join(tmp_path, "journal")


def path_of(folder: str, number: int) -> str:
    return os.path.join(folder, f"{number:06d}.jsonl")


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def headers(folder: str) -> list[Segment]:
    return [HEADER.decode(entry.line.d) for entry in read_all(folder).entries if entry.line.t == "segment"]


# The usual.


def test_a_first_opening_makes_the_folder_and_an_epoch(folder: str) -> None:
    opened, positions = write_session(folder, notes("a", 2), wanted=WIDE)
    assert opened.epoch == 1
    assert opened.damage == ()
    assert [position.n for position in positions] == [2, 3]
    assert all(isinstance(position, Position) for position in positions)
    assert read_all(folder).keys == ["a-0", "a-1"]


def test_epochs_grow_and_numbers_go_on(folder: str) -> None:
    epochs = [write_session(folder, notes(f"a{index}", 2), wanted=WIDE)[0].epoch for index in range(4)]
    assert epochs == [1, 2, 3, 4]
    seen = read_all(folder)
    assert seen.numbers == list(range(1, 13))
    assert [header.epoch for header in headers(folder)] == epochs
    assert verify(folder, disk=QUICK).ok


def test_a_header_names_the_last_record_before_it(folder: str) -> None:
    small_journal(folder)
    entries = {entry.line.n: entry for entry in read_all(folder).entries}
    for header in headers(folder)[1:]:
        assert header.prev is not None
        last = entries[header.first - 1]
        assert header.prev == Fence(last.segment, last.end, last.line.n, last.line.x)


def test_a_given_epoch_may_skip_some(folder: str) -> None:
    write_session(folder, [], wanted=request(epoch=7))
    assert write_session(folder, [])[0].epoch == 8


@pytest.mark.parametrize("epoch", [0, 1, 3, 4])
def test_an_older_epoch_is_fenced_and_changes_nothing(folder: str, epoch: int) -> None:
    """Also not the temporary file that the newer epoch is just writing."""
    for _ in range(4):
        write_session(folder, notes("a", 2), wanted=WIDE)
    with open(path_of(folder, 5) + ".e5.tmp", "wb") as file:
        file.write(b"a newer writer at work")
    before = tree_of(folder)
    with pytest.raises(FencedError, match="epoch 4"):
        open_journal(folder, wanted=request(epoch=epoch))
    assert tree_of(folder) == before


def test_a_position_is_where_the_record_is(folder: str) -> None:
    _, positions = write_session(folder, notes("a", 12))
    entries = {entry.line.n: entry for entry in read_all(folder).entries}
    assert [(position.segment, position.offset) for position in positions] == [
        (entries[position.n].segment, entries[position.n].offset) for position in positions
    ]


# A torn tail.


def test_a_torn_tail_whose_checksum_is_right_is_kept(folder: str) -> None:
    write_session(folder, notes("a", 3), wanted=WIDE)
    path = path_of(folder, 1)
    whole = content(path)
    os.truncate(path, len(whole) - 1)
    opened, _ = write_session(folder, [note("new")], wanted=WIDE)
    assert content(path) == whole
    assert opened.damage == ()
    assert read_all(folder).keys == ["a-0", "a-1", "a-2", "new"]


@pytest.mark.parametrize("left", [1, 2, 20, 100])
def test_a_torn_tail_that_is_wrong_is_cut_and_in_quarantine(folder: str, left: int) -> None:
    write_session(folder, notes("a", 3), wanted=WIDE)
    path = path_of(folder, 1)
    last = list(spans_of(content(path)))[-1]
    torn = content(path)[last.first : last.first + left]
    os.truncate(path, last.first + left)
    opened, _ = write_session(folder, [note("new")], wanted=WIDE)
    assert os.path.getsize(path) == last.first
    kept = os.path.join(folder, "quarantine", f"000001.jsonl.{last.first}-{last.first + left}")
    assert content(kept) == torn
    assert opened.damage == ()
    assert read_all(folder).keys == ["a-0", "a-1", "new"]
    assert verify(folder, disk=QUICK).ok


def test_a_tail_that_repeats_a_number_is_cut(folder: str) -> None:
    write_session(folder, notes("a", 3), wanted=WIDE)
    path = path_of(folder, 1)
    again = content(path).splitlines()[1]
    with open(path, "ab") as file:
        file.write(again)
    write_session(folder, [note("new")], wanted=WIDE)
    assert read_all(folder).keys == ["a-0", "a-1", "a-2", "new"]


# Losses.


def test_what_someone_knew_to_be_durable_is_recorded_as_lost_and_its_numbers_stay_unused(folder: str) -> None:
    write_session(folder, notes("a", 3), wanted=WIDE)
    opened, _ = write_session(folder, [note("new")], wanted=request(known_n=9))
    assert [(damage.kind, damage.n_first, damage.n_last) for damage in opened.damage] == [("lost", 5, 9)]
    assert min(n for n in read_all(folder).numbers if n > 4) == 10
    verification = verify(folder, disk=QUICK)
    assert verification.ok
    assert [(damage.n_first, damage.n_last) for damage in verification.known] == [(5, 9)]


@pytest.mark.parametrize(("epoch", "lost"), [(None, 1), (2, 1), (1, 0), (3, 0)])
def test_what_was_acknowledged_counts_only_under_the_epoch_that_wrote_last(
    folder: str, epoch: int | None, lost: int
) -> None:
    for prefix in ("a", "b"):
        _, positions = write_session(folder, notes(prefix, 2), wanted=WIDE)
    known_n = positions[-1].n + 5
    opened, _ = write_session(folder, notes("c", 1), wanted=request(known_n=known_n, known_epoch=epoch))
    assert opened.epoch == 3
    assert [(damage.kind, damage.n_last) for damage in opened.damage] == [("lost", known_n)] * lost


def test_a_journal_that_is_gone_and_was_known_is_recorded_as_lost(folder: str) -> None:
    opened, positions = write_session(folder, [note("new")], wanted=request(known_n=9))
    assert [(damage.kind, damage.n_first, damage.n_last) for damage in opened.damage] == [("lost", 1, 9)]
    assert positions[0].n > 9


def test_knowing_less_than_the_file_holds_is_no_loss(folder: str) -> None:
    write_session(folder, notes("a", 3), wanted=WIDE)
    assert write_session(folder, [], wanted=request(known_n=3))[0].damage == ()
    assert read_all(folder).numbers == [1, 2, 3, 4, 5]


def test_damage_is_recorded_with_its_range_its_key_and_its_bytes(folder: str) -> None:
    write_session(folder, notes("a", 4), wanted=WIDE)
    path = path_of(folder, 1)
    hit = list(spans_of(content(path)))[2]
    broken = flipped(content(path), hit.last - 5)
    with open(path, "wb") as file:
        file.write(broken)
    opened, _ = write_session(folder, [note("new")], wanted=WIDE)
    assert opened.damage == (Damage("line", 1, hit.first, hit.last, 3, 3, ("a-1",)),)
    (anomaly,) = read_all(folder).anomalies
    assert (anomaly.n_first, anomaly.n_last, anomaly.keys) == (3, 3, ("a-1",))
    assert content(os.path.join(folder, anomaly.quarantine)) == broken[hit.first : hit.last]


def test_numbers_of_glued_last_records_are_not_used_again(folder: str) -> None:
    """Two records were acknowledged; that they are now one bad line does not free their numbers."""
    write_session(folder, notes("a", 4), wanted=WIDE)
    path = path_of(folder, 1)
    spans = list(spans_of(content(path)))
    broken = flipped(content(path), spans[-2].last - 1)
    with open(path, "wb") as file:
        file.write(broken)
    write_session(folder, [note("new")], wanted=WIDE)
    new = [entry.line.n for entry in read_all(folder).entries if entry.segment > 1]
    assert min(new) > spans[-1].n


def test_an_unreadable_header_still_counts_as_an_epoch(folder: str) -> None:
    for _ in range(3):
        write_session(folder, notes("a", 2), wanted=WIDE)
    path = path_of(folder, 3)
    broken = flipped(content(path), 40)
    with open(path, "wb") as file:
        file.write(broken)
    assert write_session(folder, [], wanted=WIDE)[0].epoch == 4


# What was left behind.


def test_the_classic_first_bytes_then_crash_then_retry_then_crash_then_resume(folder: str) -> None:
    """First bytes written, crash before any other file exists; the retry crashes too; the third continues."""

    class Dying(QuickDisk):
        """Dies at the n-th step that changes the disk."""

        def __init__(self, steps: int) -> None:
            self.steps = steps

        def publish(self, temporary: str, path: str) -> None:
            self.step()
            super().publish(temporary, path)
            self.step()

        def sync(self, handle: int) -> None:
            self.step()

        def step(self) -> None:
            self.steps -= 1
            if self.steps == 0:
                raise KeyboardInterrupt

    for first in range(1, 6):
        for second in range(1, 6):
            place = f"{folder}-{first}-{second}"
            acknowledged = []
            for steps in (first, second, 1000):
                try:
                    _, positions = write_session(place, [note(f"key-{steps}")], disk=Dying(steps), wanted=WIDE)
                    acknowledged += [position.n for position in positions]
                except KeyboardInterrupt:
                    pass
            seen = read_all(place)
            assert seen.damage == []
            assert set(acknowledged) <= set(seen.numbers)
            assert f"key-{1000}" in seen.keys
            assert verify(place, disk=QUICK).ok


def test_leftover_temporaries_are_removed(folder: str) -> None:
    write_session(folder, notes("a", 2), wanted=WIDE)
    for name in ("000002.jsonl.e2.tmp", "000001.jsonl.zst.tmp"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(b"half")
    write_session(folder, [note("new")], wanted=WIDE)
    assert [name for name in os.listdir(folder) if name.endswith(".tmp")] == []
    assert read_all(folder).keys == ["a-0", "a-1", "new"]


def test_a_file_that_is_none_of_ours_is_left_alone(folder: str) -> None:
    write_session(folder, notes("a", 2), wanted=WIDE)
    with open(os.path.join(folder, "README"), "wb") as file:
        file.write(b"hands off")
    write_session(folder, [note("new")], wanted=WIDE)
    assert content(os.path.join(folder, "README")) == b"hands off"


# What is refused.


def test_a_newer_format_is_refused_and_nothing_on_disk_changes(folder: str) -> None:
    write_session(folder, notes("a", 2), wanted=WIDE)
    newer = draft("segment", Segment(99, UID, 2, 2, 4))
    with open(path_of(folder, 2), "wb") as file:
        file.write(line_of(newer, 4, AT, seed_of(UID)))
    with open(path_of(folder, 3) + ".e3.tmp", "wb") as file:
        file.write(b"the newer program's own")
    before = tree_of(folder)
    with pytest.raises(FormatError, match="99"):
        open_journal(folder)
    assert tree_of(folder) == before


def test_a_newer_format_whose_header_has_another_shape_is_refused_as_such(folder: str) -> None:
    write_session(folder, notes("a", 2), wanted=WIDE)
    newer = draft("segment", {"format": 3, "run": UID, "chapter": 2})
    with open(path_of(folder, 2), "wb") as file:
        file.write(line_of(newer, 4, AT, seed_of(UID)))
    with pytest.raises(FormatError, match="format 3"):
        list_chain(QUICK, folder, UID)
    assert "format 3" in verify(folder, disk=QUICK).errors[0]
