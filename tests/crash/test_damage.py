"""Damage to a journal: every flip, every cut, and what file systems and people do to files.

Promised, whatever happens to the bytes: reading never raises, invents nothing and keeps every record that was not
hit; the damage is found; opening to write succeeds, and records each loss in its last segment once.
"""

import itertools
import os
import random

import pytest

from holdfast.journal import frames as frames_module
from holdfast.journal import verify
from tests.damaged import (
    Case,
    assert_all_hold,
    cut,
    cuts,
    emptied,
    flip,
    flips,
    frames_of,
    inside_fences,
    plain_names,
    problems_of_reading,
    remove_tree,
    replaced,
    sample,
    untouched,
)
from tests.journals import (
    OTHER_UID,
    QUICK,
    Snapshot,
    flipped,
    note,
    put_files,
    read_all,
    sealed_journal,
    small_journal,
    without,
    write_session,
)

MASKS = (0x01, 0x80, 0xFF)


@pytest.fixture
def journal(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """Sealed segments with several frames each, closed plain ones, a hot one; three epochs."""
    monkeypatch.setattr(frames_module, "FRAME_BYTES", 300)
    return small_journal(os.path.join(tmp_path, "original"))


@pytest.fixture
def finished(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """A closed run: the last segment is sealed too."""
    monkeypatch.setattr(frames_module, "FRAME_BYTES", 300)
    return sealed_journal(os.path.join(tmp_path, "original"))


# Bytes flipped.


def test_a_flipped_byte_costs_at_most_the_record_it_is_in(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    assert_all_hold(sample(flips(journal, (*MASKS, None))), journal, tmp_path)


def test_a_flipped_byte_of_a_closed_run_is_found_and_bounded(finished: Snapshot, tmp_path: os.PathLike[str]) -> None:
    assert_all_hold(sample(flips(finished, MASKS)), finished, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("mask", [0x01, None], ids=["one bit", "to a newline"])
def test_every_flipped_byte_costs_at_most_the_record_it_is_in(
    journal: Snapshot, tmp_path: os.PathLike[str], mask: int | None
) -> None:
    assert_all_hold(flips(journal, (mask,)), journal, tmp_path)


@pytest.mark.long
def test_every_flipped_byte_of_a_closed_run_is_found_and_bounded(
    finished: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    assert_all_hold(flips(finished, (0x01,)), finished, tmp_path)


@pytest.mark.long
def test_every_flip_in_a_sealed_file_costs_at_most_the_records_of_its_frame(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    """Also if the damaged frame unpacks to something else of the right length: its neighbours are not glued to it."""
    inside: list[str] = []
    outside: list[str] = []
    for index, (name, at) in enumerate(sealed_places(journal)):
        case = flip(journal, name, at, 0x01)
        folder = put_files(os.path.join(tmp_path, f"read-{index}"), case.files)
        found = list(problems_of_reading(case, journal, folder))
        remove_tree(folder)
        (inside if at < end_of_frames(journal, name) else outside).extend(f"{case.name}: {each}" for each in found)
    assert inside == []
    assert outside == [], "a flip in the digest or the table costs no record at all"


def sealed_places(journal: Snapshot) -> list[tuple[str, int]]:
    sealed = [name for name in journal.names if name.endswith(".zst")]
    return [(name, at) for name in sealed for at in range(len(journal.files[name]))]


def end_of_frames(journal: Snapshot, name: str) -> int:
    last = frames_of(journal, name)[-1]
    return last.at + last.length


def test_a_flip_in_the_header_of_the_last_segment_is_recorded_once(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    name = journal.last
    header = journal.spans(name)[0]
    assert_all_hold((flip(journal, name, at, 0x01) for at in range(header.first, header.last, 7)), journal, tmp_path)


# Bytes cut off.


def test_a_cut_costs_only_what_was_behind_it(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    assert_all_hold(sample(cuts(journal)), journal, tmp_path)


def test_a_cut_of_the_hot_segment_at_every_third_byte_behind_its_header(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    name = journal.last
    ends = range(journal.spans(name)[0].last, len(journal.files[name]), 3)
    assert_all_hold((cut(journal, name, end) for end in ends), journal, tmp_path)


@pytest.mark.long
def test_every_cut_costs_only_what_was_behind_it(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    assert_all_hold(cuts(journal), journal, tmp_path)


@pytest.mark.long
def test_every_cut_of_a_closed_run_costs_only_what_was_behind_it(
    finished: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    assert_all_hold(cuts(finished), finished, tmp_path)


def test_a_last_segment_that_is_empty_is_found(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    """A segment gets its name only with its header in it, so an empty one has lost something."""
    assert_all_hold([emptied(journal, journal.last)], journal, tmp_path)


@pytest.mark.parametrize("filling", [b"\0", b"\xff", b"garbage\n"])
def test_a_last_segment_that_holds_no_record_any_more_is_recorded(
    journal: Snapshot, tmp_path: os.PathLike[str], filling: bytes
) -> None:
    size = len(journal.files[journal.last])
    files = {**journal.files, journal.last: (filling * size)[:size]}
    folder = put_files(os.path.join(tmp_path, "filled"), files)
    opened, _ = write_session(folder, [note("after")])
    assert opened.damage, "a segment that had a header, and has no line any more, is a loss"
    assert len(read_all(folder).anomalies) == 1


def test_a_closed_run_whose_last_segment_was_cut_records_the_loss(
    finished: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    name = finished.last
    files = {**finished.files, name: finished.files[name][: len(finished.files[name]) // 2]}
    folder = put_files(os.path.join(tmp_path, "cut"), files)
    opened, _ = write_session(folder, [note("after")])
    assert opened.damage, "the file is not whole any more: that is known before anything is appended"


def test_a_lost_frame_at_the_end_of_a_closed_run_is_not_said_to_have_lost_nothing(
    finished: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    name = finished.last
    frames = frames_of(finished, name)
    files = {**finished.files, name: flipped(finished.files[name], frames[-1].at, 0xFF)}
    folder = put_files(os.path.join(tmp_path, "frame"), files)
    opened, _ = write_session(folder, [note("after")])
    assert [damage for damage in opened.damage if damage.records_lost > 0]
    new = [entry.line.n for entry in read_all(folder).entries if entry.line.n not in finished.lines]
    assert min(new) > max(finished.lines) - len(finished.spans(name)), "sanity: the new records come behind"


# Segments as a whole.


def test_a_segment_that_is_missing_empty_or_garbage_costs_only_its_own_records(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    inner = journal.names[:-1]
    cases = [emptied(journal, name) for name in inner]
    cases += [replaced(journal, name, "garbage", b"\xde\xad\xbe\xef\n" * 100) for name in inner]
    for name in inner:
        files = {other: data for other, data in journal.files.items() if other != name}
        cases.append(Case(f"{name} missing", files, untouched(journal, journal.numbers_in(name))))
    assert_all_hold(cases, journal, tmp_path)


def test_a_segment_copied_under_another_number_changes_nothing_that_is_read(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    whole = untouched(journal, set())
    targets = (name for number in (6, 9, 999_999) for name in (f"{number:06d}.jsonl", f"{number:06d}.jsonl.zst"))
    cases = [
        Case(f"{name} copied to {target}", {**journal.files, target: journal.files[name]}, whole)
        for target, name in itertools.product(targets, journal.names)
        if target.endswith(".zst") == name.endswith(".zst")
    ]
    assert_all_hold(cases, journal, tmp_path)


def test_a_sealed_copy_of_another_segment_does_not_hide_the_plain_one_beside_it(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    whole = untouched(journal, set())
    source = journal.files["000001.jsonl.zst"]
    plain = [name for name in journal.names if name.endswith(".jsonl")]
    cases = [Case(f"segment 1 copied to {name}.zst", {**journal.files, f"{name}.zst": source}, whole) for name in plain]
    assert_all_hold(cases, journal, tmp_path)


def test_a_sealed_segment_of_another_run_does_not_hide_the_plain_one_beside_it(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    foreign = small_journal(os.path.join(tmp_path, "foreign"), OTHER_UID)
    files = {**journal.files, "000004.jsonl.zst": foreign.files["000001.jsonl.zst"]}
    assert_all_hold([Case("foreign 4 beside ours", files, untouched(journal, set()))], journal, tmp_path)


def test_segments_whose_names_are_swapped_lose_nothing(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    whole = untouched(journal, set())
    cases = []
    for one, other in itertools.combinations(journal.names, 2):
        if one.endswith(".zst") == other.endswith(".zst"):
            files = {**journal.files, one: journal.files[other], other: journal.files[one]}
            cases.append(Case(f"{one} and {other} swapped", files, whole))
    assert_all_hold(cases, journal, tmp_path)


def test_a_segment_renamed_over_its_predecessor_is_still_read_and_never_written_over(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    """The new segment's number must be greater than that of any segment, whatever the files are called."""
    *_, before, last = journal.names
    files = {**journal.files, before: journal.files[last]}
    del files[last]
    case = Case("the hot segment over its predecessor", files, untouched(journal, journal.numbers_in(before)))
    assert_all_hold([case], journal, tmp_path)


def test_a_segment_of_another_run_is_reported_and_never_read(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    foreign = small_journal(os.path.join(tmp_path, "foreign"), OTHER_UID)
    cases = [replaced(journal, name, "foreign", foreign.files[name])._replace(recorded=False) for name in journal.names]
    extra = {**journal.files, "000007.jsonl": foreign.files[foreign.last]}
    cases.append(Case("a foreign segment behind ours", extra, untouched(journal, set())))
    assert_all_hold(cases, journal, tmp_path)


def test_a_file_with_the_greatest_possible_number_does_not_make_new_segments_invisible(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    foreign = small_journal(os.path.join(tmp_path, "foreign"), OTHER_UID)
    for index, data in enumerate((b"", b"garbage\n", journal.files[journal.last], foreign.files[foreign.last])):
        files = {**journal.files, "999999999999.jsonl": data}
        folder = put_files(os.path.join(tmp_path, f"great-{index}"), files)
        write_session(folder, [note("after")])
        assert "after" in read_all(folder).keys


def test_after_a_stray_file_no_segment_is_said_to_be_missing(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    """The new segment's header says which one it follows: a number that was skipped is no loss."""
    files = {**journal.files, "000009.jsonl": journal.files[journal.last]}
    folder = put_files(os.path.join(tmp_path, "stray"), files)
    write_session(folder, [note("after")])
    os.remove(os.path.join(folder, "000009.jsonl"))
    assert verify(folder, disk=QUICK).errors == ()


# Bytes that do not belong.


@pytest.mark.parametrize("where", ["hot", "closed", "sealed"])
def test_blocks_of_garbage_and_of_nuls_behind_the_end_cost_nothing(
    journal: Snapshot, tmp_path: os.PathLike[str], where: str
) -> None:
    name = {"hot": journal.last, "closed": journal.names[-2], "sealed": journal.names[0]}[where]
    noise = random.Random(7).randbytes(5000).replace(b"\n", b"")
    blocks = [b"\0" * 4096, b"\0" * 100 + b"\n", noise, noise + b"\n", b"\n", b"\n" * 50, b"{}\n", b"\xff\xfe\xc0\n"]
    whole = untouched(journal, set())
    cases = [
        Case(f"{block[:4]!r}.. behind {name}", {**journal.files, name: journal.files[name] + block}, whole)
        for block in blocks
    ]
    assert_all_hold(cases, journal, tmp_path)


def test_blocks_of_garbage_between_two_records_cost_nothing(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    """Whole blocks with a line end of their own; without one they are glued to the next record."""
    cases = []
    for name in plain_names(journal):
        data = journal.files[name]
        for span in journal.spans(name)[1:]:
            for block in (b"\0" * 512 + b"\n", b"\xc3\x28\xa0\xa1\n", b"\n"):
                files = {**journal.files, name: data[: span.first] + block + data[span.first :]}
                cases.append(Case(f"{block[:3]!r} before record {span.n}", files, untouched(journal, set())))
            files = {**journal.files, name: data[: span.first] + b"\0" * 512 + data[span.first :]}
            cases.append(Case(f"NULs glued to record {span.n}", files, untouched(journal, {span.n})))
    assert_all_hold(inside_fences(cases, journal), journal, tmp_path)


def test_a_line_of_another_run_is_damage(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    foreign = small_journal(os.path.join(tmp_path, "foreign"), OTHER_UID)
    name = journal.last
    span = journal.spans(name)[1]
    data = journal.files[name]
    files = {**journal.files, name: data[: span.first] + foreign.lines[span.n] + data[span.last :]}
    assert_all_hold([Case("a foreign line", files, untouched(journal, {span.n}))], journal, tmp_path)


# Lines as a whole, of the hot segment: nothing but the lines themselves can tell.


def test_glued_lines_cost_the_two_that_are_glued(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    name = journal.last
    data = journal.files[name]
    cases = []
    for one, other in itertools.pairwise(journal.spans(name)):
        files = {**journal.files, name: data[: one.last - 1] + data[one.last :]}
        cases.append(Case(f"{one.n} and {other.n} glued", files, untouched(journal, {one.n, other.n})))
    assert_all_hold(cases, journal, tmp_path)


def test_removed_lines_are_noticed_and_cost_only_themselves(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    cases = []
    for name in plain_names(journal):
        lines = journal.files[name].splitlines(keepends=True)
        spans = journal.spans(name)
        last = len(lines) - 1 if name == journal.last else len(lines)  # the very last one leaves no trace
        for index in range(last):
            files = {**journal.files, name: without(lines, index)}
            cases.append(Case(f"{name} without line {index}", files, untouched(journal, {spans[index].n})))
    assert_all_hold(inside_fences(cases, journal), journal, tmp_path)


def test_a_line_that_is_there_twice_counts_once_and_costs_nothing(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    name = journal.last
    lines = journal.files[name].splitlines(keepends=True)
    cases = []
    for index, place in itertools.product(range(1, len(lines)), range(1, len(lines) + 1)):
        if place > index:
            files = {**journal.files, name: b"".join([*lines[:place], lines[index], *lines[place:]])}
            cases.append(Case(f"line {index} again at {place}", files, untouched(journal, set())))
    assert_all_hold(cases, journal, tmp_path)


def test_a_later_line_copied_to_an_earlier_place_costs_at_most_what_lies_between(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    """Numbers only grow: what comes after a greater one is not read. It is found, and the keys are asked again."""
    name = journal.last
    lines = journal.files[name].splitlines(keepends=True)
    spans = journal.spans(name)
    files = {**journal.files, name: b"".join([lines[0], lines[-1], *lines[1:]])}
    between = {span.n for span in spans[1:]}
    case = Case("the last line also behind the header", files, untouched(journal, between))
    assert_all_hold([case], journal, tmp_path)


def test_lines_in_another_order_cost_only_those_that_were_moved(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    name = journal.last
    lines = journal.files[name].splitlines(keepends=True)
    spans = journal.spans(name)
    cases = []
    for index in range(1, len(lines) - 1):
        moved = [*lines[:index], lines[index + 1], lines[index], *lines[index + 2 :]]
        lost = {spans[index].n, spans[index + 1].n}
        cases.append(Case(f"{index} swapped", {**journal.files, name: b"".join(moved)}, untouched(journal, lost)))
    assert_all_hold(cases, journal, tmp_path)


def test_damage_before_a_whole_last_line_without_newline_is_reported(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    name = journal.last
    span = journal.spans(name)[-2]
    data = flipped(journal.files[name], span.first + 3)[:-1]
    case = Case("a flip, then a torn newline", {**journal.files, name: data}, untouched(journal, {span.n}))
    assert_all_hold([case], journal, tmp_path)


def test_a_hole_before_a_whole_last_line_without_newline_is_reported(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    name = journal.last
    lines = journal.files[name].splitlines(keepends=True)
    lost = journal.spans(name)[-2].n
    data = without(lines, len(lines) - 2)[:-1]
    case = Case("a line removed, then a torn newline", {**journal.files, name: data}, untouched(journal, {lost}))
    assert_all_hold([case], journal, tmp_path)
