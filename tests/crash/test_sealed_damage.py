"""Damage to a sealed segment with frames of the real size: a flipped byte or a cut costs the records of one frame."""

import os
import random
from collections.abc import Iterable, Iterator

import pytest

from holdfast.journal import frames as frames_module
from holdfast.journal import seal, verify
from holdfast.records import Draft, draft
from tests.damaged import Case, cut, flip, frames_of, problems_of_reading, remove_tree
from tests.journals import QUICK, Snapshot, notes, put_files, read_all, request, snapshot, write_session

NAME = "000001.jsonl.zst"
FRAME_BYTES_MAX = 64 * 1024
"""Written out: the promise must not follow the constant that it is about."""
RECORDS = 300


def records() -> list[Draft]:
    """About 300 KiB that compress well, so that every byte of the sealed file can be tried."""
    chance = random.Random(11)
    words = ["answer", "the", "of", "seven", "because", "therefore", "sum"]
    texts = (" ".join(chance.choices(words, k=4)) * 40 for _ in range(RECORDS))
    started = draft("run.started", {"run_id": "r", "spec": {"text": "x" * 500}})
    answers = [draft("note", {"text": text}, f"sums/local/{index}/1") for index, text in enumerate(texts)]
    extended = draft("run.extended", {"changes": [], "spec": {}})
    return [*notes("before", 1), started, *answers[:200], extended, *answers[200:]]


def make_sealed(folder: str) -> Snapshot:
    write_session(folder, records(), wanted=request(segment_bytes=1 << 26))
    seal(QUICK, folder, 1)
    return snapshot(folder)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return make_sealed(os.path.join(tmp_path_factory.mktemp("sealed"), "journal"))


def lost_bytes(case: Case, journal: Snapshot, folder: str) -> int:
    """How many bytes of records cannot be read any more."""
    put_files(folder, case.files)
    seen = read_all(folder).lines
    remove_tree(folder)
    return sum(len(line) for n, line in journal.lines.items() if n not in seen)


def problems_of(cases: Iterable[Case], journal: Snapshot, tmp_path: os.PathLike[str]) -> Iterator[str]:
    for index, case in enumerate(cases):
        folder = put_files(os.path.join(tmp_path, f"case-{index}"), case.files)
        yield from (f"{case.name}: {problem}" for problem in problems_of_reading(case, journal, folder))
        remove_tree(folder)


def flips(journal: Snapshot, places: Iterable[int]) -> Iterator[Case]:
    return (flip(journal, NAME, at, 0x01) for at in places)


def sampled(journal: Snapshot, count: int) -> list[int]:
    return sorted(random.Random(5).sample(range(len(journal.files[NAME])), count))


def test_a_flipped_byte_costs_at_most_64_kib_of_records(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    assert len(journal.contents[NAME]) > 4 * FRAME_BYTES_MAX, "sanity: a file of several frames"
    for case in flips(journal, sampled(journal, 60)):
        assert lost_bytes(case, journal, os.path.join(tmp_path, "case")) <= FRAME_BYTES_MAX, case.name
    assert list(problems_of(flips(journal, sampled(journal, 60)), journal, tmp_path)) == []


def test_a_file_cut_in_half_keeps_what_was_before_the_cut(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    size = len(journal.files[NAME])
    assert list(problems_of((cut(journal, NAME, end) for end in sampled(journal, 30)), journal, tmp_path)) == []
    half = lost_bytes(cut(journal, NAME, size // 2), journal, os.path.join(tmp_path, "half"))
    assert half < 0.8 * len(journal.contents[NAME])


@pytest.mark.long
def test_every_flipped_byte_costs_at_most_the_records_of_its_frame(
    journal: Snapshot, tmp_path: os.PathLike[str]
) -> None:
    places = range(len(journal.files[NAME]))
    for case in flips(journal, places):
        assert lost_bytes(case, journal, os.path.join(tmp_path, "case")) <= FRAME_BYTES_MAX, case.name
    assert list(problems_of(flips(journal, places), journal, tmp_path)) == []


@pytest.mark.long
def test_every_cut_keeps_the_frames_before_it(journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    ends = range(len(journal.files[NAME]))
    assert list(problems_of((cut(journal, NAME, end) for end in ends), journal, tmp_path)) == []


def test_frames_are_small_and_what_begins_or_extends_a_run_has_frames_of_its_own(journal: Snapshot) -> None:
    plain = journal.contents[NAME]
    frames = [plain[frame.first : frame.first + frame.size] for frame in frames_of(journal, NAME)]
    assert b"".join(frames) == plain
    assert max(map(len, frames)) <= FRAME_BYTES_MAX
    assert sum(map(len, frames)) / len(frames) > FRAME_BYTES_MAX / 3, "not many tiny ones either"
    alone = [frame for frame in frames if frame.count(b"\n") == 1]
    assert any(b'"t":"segment"' in frame for frame in alone)
    for kind in (b"run.started", b"run.extended"):
        assert any(b'"t":"%b"' % kind in frame for frame in alone), kind


def test_a_longer_line_has_a_frame_of_its_own(tmp_path: os.PathLike[str]) -> None:
    folder = os.path.join(tmp_path, "journal")
    long = [draft("note", {"text": os.urandom(200_000).hex()}, f"long-{index}") for index in range(3)]
    started = draft("run.started", {"run_id": "r", "spec": {"text": os.urandom(100_000).hex()}})
    write_session(folder, [started, *notes("a", 3), *long, *notes("b", 3)], wanted=request(segment_bytes=1 << 26))
    before = read_all(folder)
    seal(QUICK, folder, 1)
    assert read_all(folder) == before
    sealed = snapshot(folder)
    large = [frame for frame in frames_of(sealed, NAME) if frame.size > FRAME_BYTES_MAX]
    plain = sealed.contents[NAME]
    assert [plain[frame.first : frame.first + frame.size].count(b"\n") for frame in large] == [1, 1, 1, 1]


def older_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """As versions before wrote them: the header, then 1 MiB at a time."""
    data = b"".join(chunks)
    header = data.index(b"\n") + 1
    yield data[:header]
    while header < len(data):
        end = data.rfind(b"\n", header, header + (1 << 20)) + 1
        yield data[header:end]
        header = end


def test_a_file_of_an_older_version_reads_the_same(
    journal: Snapshot, tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(frames_module, "_blocks", older_blocks)
        older = make_sealed(os.path.join(tmp_path, "older"))
    assert max(frame.size for frame in frames_of(older, NAME)) > 4 * FRAME_BYTES_MAX
    assert older.contents == journal.contents
    folder = os.path.join(tmp_path, "older")
    assert verify(folder, disk=QUICK).errors == ()
    assert read_all(folder).lines == journal.lines
    early = flip(older, NAME, frames_of(older, NAME)[1].at + 4, 0x01)
    lost = lost_bytes(early, older, os.path.join(tmp_path, "flipped"))
    assert lost > FRAME_BYTES_MAX, "older files do not keep the promise, so the tests above can fail"
