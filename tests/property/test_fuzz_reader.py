"""Random files and random changes to good ones: reading, checking and opening never break, invent or reach outside."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.journal import frames, verify
from tests.journals import (
    QUICK,
    UID,
    Snapshot,
    note,
    put_files,
    read_all,
    sealed_journal,
    small_journal,
    tree_of,
    write_session,
)

names = st.sampled_from(
    [
        "000004.jsonl.zst",
        "000005.jsonl.zst",
        "000006.jsonl",
        "000001.jsonl",
        "000002.jsonl",
        "000003.jsonl",
        "000001.jsonl.zst",
        "000002.jsonl.zst",
        "x.tmp",
    ]
)
pieces = st.sampled_from(
    [
        b"\n",
        b"{}",
        b'{"n":1,"at":"","t":"segment","d":{"format":1,"run":"run-under-test"},"x":"0000000000000000"}\n',
        b'{"n":1,"at":"","t":"note","d":{"a":[[[[',
        b"\x28\xb5\x2f\xfd",
        b"\x5e\x2a\x4d\x18",
        b"\xb1\xea\x92\x8f",
        b"\x50\x2a\x4d\x18\x08\x00\x00\x00",
        b"\0" * 100,
        b"\xff\xff\xff\xff",
    ]
)
noise = st.lists(st.binary(max_size=60) | pieces, max_size=12).map(b"".join)


def build(make_sealed: bool) -> Snapshot:
    before = frames.FRAME_BYTES
    frames.FRAME_BYTES = 300
    try:
        with tempfile.TemporaryDirectory() as place:
            folder = os.path.join(place, "journal")
            return sealed_journal(folder) if make_sealed else small_journal(folder)
    finally:
        frames.FRAME_BYTES = before


JOURNALS = {kind: build(kind) for kind in (False, True)}


@contextmanager
def placed(files: dict[str, bytes]) -> Iterator[str]:
    """The files as a run's journal, beside a file that must not be touched."""
    with tempfile.TemporaryDirectory() as store:
        put_files(os.path.join(store, "beside"), {"precious": b"do not touch"})
        folder = put_files(os.path.join(store, "run", "journal"), files)
        yield folder
        outside = {path: data for path, data in tree_of(store).items() if not path.startswith("run/journal/")}
        assert outside == {"beside/precious": b"do not touch"}


def survive(files: dict[str, bytes], written: dict[int, bytes]) -> None:
    with placed(files) as folder:
        before = tree_of(folder)
        try:
            seen = read_all(folder)
            assert [line for n, line in seen.lines.items() if written.get(n) != line] == []
            assert seen.numbers == sorted(set(seen.numbers))
            verify(folder, UID, disk=QUICK)
            verify(folder, disk=QUICK)
        except HoldfastError:
            return
        assert tree_of(folder) == before
        write_session(folder, [note("new")])
        again = read_all(folder)
        assert "new" in again.keys
        assert set(seen.lines.values()) <= set(again.lines.values())


@given(st.dictionaries(names, noise, max_size=4))
def test_random_files_are_survived(files: dict[str, bytes]) -> None:
    survive(files, {})


@st.composite
def mutations(draw: st.DrawFn) -> tuple[Snapshot, dict[str, bytes]]:
    """A good journal with up to four changes, each to some file."""
    journal = JOURNALS[draw(st.booleans())]
    files = dict(journal.files)
    for _ in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(sorted(files)))
        files[name] = draw(mutated(files[name]))
    return journal, files


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    first, last = sorted(draw(st.tuples(st.integers(0, len(data)), st.integers(0, len(data)))))
    change = draw(st.sampled_from(["delete", "insert", "overwrite", "repeat", "shuffle", "cut", "flip", "move"]))
    middle = data[first:last]
    if change == "shuffle":
        return b"".join(draw(st.permutations(data.splitlines(keepends=True)[:40])))
    replacement = {
        "delete": b"",
        "insert": draw(noise) + middle,
        "overwrite": draw(noise),
        "repeat": middle * 2,
        "cut": b"",
        "flip": bytes(byte ^ 0x20 for byte in middle),
        "move": middle[::-1],
    }[change]
    return data[:first] + replacement + (b"" if change == "cut" else data[last:])


@given(mutations())
def test_random_changes_to_a_journal_are_survived(case: tuple[Snapshot, dict[str, bytes]]) -> None:
    journal, files = case
    survive(files, journal.lines)


@given(mutations())
@settings(max_examples=60)
def test_what_a_changed_journal_keeps_is_never_lost_by_opening_it_again_and_again(
    case: tuple[Snapshot, dict[str, bytes]],
) -> None:
    _, files = case
    with placed(files) as folder:
        kept: set[bytes] = set()
        for attempt in range(3):
            write_session(folder, [note(f"new-{attempt}")])
            lines = set(read_all(folder).lines.values())
            assert kept <= lines
            kept = lines


@given(st.lists(st.tuples(names, st.sampled_from(sorted(JOURNALS[False].files))), max_size=6))
def test_copied_and_renamed_segments_are_survived(copies: list[tuple[str, str]]) -> None:
    journal = JOURNALS[False]
    files = dict(journal.files)
    for target, source in copies:
        if target.endswith(".zst") == source.endswith(".zst") and target != "x.tmp":
            files[target] = journal.files[source]
    survive(files, journal.lines)


@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize("emptied", [1, 2, 3])
@pytest.mark.parametrize("kind", [False, True], ids=["hot", "sealed"])
def test_last_segments_that_were_emptied_cost_nothing_that_came_before_them(kind: bool, emptied: int, gap: int) -> None:
    """Each of them had a header, and so a number, that must not be given away again."""
    journal = JOURNALS[kind]
    last = max(int(name.partition(".")[0]) for name in journal.files)
    after = {f"{last + gap + number:06d}.jsonl": b"" for number in range(1, emptied + 1)}
    survive({**journal.files, **after}, journal.lines)
