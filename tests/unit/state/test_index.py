"""The derived index: it can be deleted, spoilt, locked or outdated, and always says what the journal says."""

import errno
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast.state.index as index_module
from holdfast.journal import Reader, journal_folder
from holdfast.journal.positions import Damage, Entry
from holdfast.records import Draft, draft
from holdfast.records.facts import Cell, RunStarted, ScoreGiven, StoredFile
from holdfast.state import Index, index_pages, snapshot
from holdfast.state.snapshot import Snapshot, SnapshotWriter, read_trailer
from tests.caches import doctor, index_file
from tests.journals import flipped
from tests.unit.state.stories import (
    EVALUATION,
    ended,
    entries,
    failed,
    finished,
    fold_of,
    key,
    new_run,
    resumed,
    score,
    scoring,
    started,
    step,
    write,
)


def looked_at(run: str) -> tuple[Any, ...]:
    """Everything that an index says."""
    index = Index(run)
    try:
        return (
            index.finished,
            index.failed,
            index.unfinished,
            list(index.answers()),
            list(index.scores(EVALUATION)),
            [index.positions(o) for o in range(120)],
            index.totals(index.story.cells),
            index.story,
        )
    finally:
        index.close()


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HOLDFAST_CACHE", str(folder))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> str:
    records = [started(5), scoring(), step(0), finished(0), score(0, 5), failed(1), step(2), failed(3, final=False)]
    return new_run(tmp_path, records)


def test_it_says_what_the_fold_says(run: str) -> None:
    fold = fold_of(run)
    finished_now, failed_now, unfinished_now, answers, scores, *_, story = looked_at(run)
    assert (finished_now, failed_now, unfinished_now) == (1, 1, 3)
    assert (fold.finished.count, fold.failed.count, fold.unfinished) == (1, 1, 3)
    assert story == fold.story
    assert [(each.o, each.status) for each in answers] == [(0, "finished"), (1, "failed"), (3, "unfinished")]
    assert [(each.o, each.scorer, each.value) for each in scores] == [(0, "right", True)]


def test_it_can_be_deleted_at_any_time(run: str) -> None:
    before = looked_at(run)
    os.unlink(index_file(run))
    assert looked_at(run) == before
    assert os.path.exists(index_file(run))


@pytest.mark.parametrize("garbage", [b"", b"garbage" * 1000, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_it_is_made_anew_when_its_file_is_garbage(run: str, garbage: bytes) -> None:
    before = looked_at(run)
    Path(index_file(run)).write_bytes(garbage)
    assert looked_at(run) == before


def test_it_is_made_anew_when_its_file_is_cut(run: str) -> None:
    before = looked_at(run)
    content = Path(index_file(run)).read_bytes()
    for size in range(0, len(content), len(content) // 20):
        Path(index_file(run)).write_bytes(content[:size])
        assert looked_at(run) == before


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "holdfast"]
    caplog.clear()
    return found


def with_value(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda directory: directory.update({name: value})


def damage_blob(directory: dict[str, Any]) -> None:
    """Its checksum is that of other bytes."""
    (page,) = directory["pages"].values()
    page["blobs"]["answers"][2] += 1


SPOILT: dict[str, Callable[[dict[str, Any]], object]] = {
    "its story is of another kind": with_value("story", 5),
    "its cursor is of another kind": with_value("cursor", [1]),
    "a page is of another kind": with_value("pages", {"0": 5}),
    "a text is a number": with_value("segments", {"a": 1}),
    "the rows of a page are others": damage_blob,
}


@pytest.mark.parametrize("change", SPOILT.values(), ids=SPOILT)
def test_what_cannot_be_decoded_is_rebuilt_with_one_warning(
    run: str, change: Callable[[dict[str, Any]], object], caplog: pytest.LogCaptureFixture
) -> None:
    before = looked_at(run)

    def spoil(directory: bytes) -> bytes:
        found = msgspec.json.decode(directory)
        change(found)
        return msgspec.json.encode(found)

    doctor(index_file(run), spoil)
    assert looked_at(run) == before
    (warning,) = warnings_in(caplog)
    assert warning.startswith(f"the index of {run} ")
    assert looked_at(run) == before
    assert warnings_in(caplog) == [], "the file was replaced"


def test_an_index_of_another_version_is_rebuilt_with_one_warning(
    run: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = looked_at(run)
    monkeypatch.setattr(index_module, "_VERSION", 999)
    assert looked_at(run) == before
    assert warnings_in(caplog) == [f"the index of {run} was written by another version; rebuilt from the journal"]
    assert looked_at(run) == before
    assert warnings_in(caplog) == []


@pytest.fixture
def large(many: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """With an index of twelve pages."""
    monkeypatch.setattr(index_pages, "PAGE_KEYS", 10)
    return many


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = [started(120), scoring()]
    for o in range(120):
        records += [step(o), finished(o), score(o, 3 * o + 5, o % 3 == 0)]
    return new_run(tmp_path_factory.mktemp("large"), records)


@pytest.mark.parametrize("seed", [0, pytest.param(range(1, 25), marks=pytest.mark.long)], ids=["200 flips", "4,800"])
def test_no_flipped_bit_changes_what_it_says(large: str, seed: int | range, caplog: pytest.LogCaptureFixture) -> None:
    truth = looked_at(large)
    path = index_file(large)
    content = path.read_bytes()
    for each in [seed] if isinstance(seed, int) else seed:
        chance = random.Random(each)
        for _ in range(200):
            path.write_bytes(flipped(content, chance.randrange(len(content)), 1 << chance.randrange(8)))
            assert looked_at(large) == truth
            assert len(warnings_in(caplog)) == 1


def test_without_its_checksum_some_flipped_bits_would_change_what_it_says(
    large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: it can fail."""
    truth = looked_at(large)
    path = index_file(large)
    content = path.read_bytes()
    monkeypatch.setattr(snapshot, "_verified", lambda found, blob: found)

    def unverified(_: Snapshot, handle: int, size: int) -> bytes:
        trailer = read_trailer(handle, size)
        return b"" if trailer is None else os.pread(handle, trailer.bytes - trailer.directory, trailer.directory)

    monkeypatch.setattr(Snapshot, "_read_directory", unverified)
    chance, wrong = random.Random(0), 0
    for _ in range(200):
        path.write_bytes(flipped(content, chance.randrange(len(content)), 1 << chance.randrange(8)))
        try:
            wrong += looked_at(large) != truth
        except msgspec.MsgspecError:
            wrong += 1
    assert wrong > 10


def test_a_query_that_fails_half_way_continues_with_a_rebuilt_index(
    large: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program overwrites the file while it is open."""
    truth = looked_at(large)
    index = Index(large)
    try:
        answers, scores = index.answers(), index.scores(EVALUATION)
        some = [next(answers) for _ in range(10)], [next(scores) for _ in range(10)]
        write(large, [step(0)])  # the rebuilt index must not know of it: the rest would be of another state
        with index_file(large).open("r+b") as file:
            file.write(b"\xff" * index_file(large).stat().st_size)
        vars(index)["_recent"].clear()
        assert [*some[0], *answers] == truth[3]
        assert [*some[1], *scores] == truth[4]
        assert (index.finished, index.failed, index.unfinished) == truth[:3]
    finally:
        index.close()
    assert len(warnings_in(caplog)) == 1
    assert looked_at(large)[:5] == truth[:5]


def test_a_reader_keeps_what_it_opened_while_others_replace_the_file(run: str) -> None:
    looked_at(run)
    first = Index(run)
    rows = first.answers()
    assert next(rows).o == 0
    write(run, [finished(4)])
    second = Index(run)
    index_file(run).unlink()
    assert (first.finished, second.finished) == (1, 2)
    assert [row.o for row in rows] == [1, 3]
    first.close()
    second.close()


def test_nothing_is_written_to_the_run_and_an_old_index_there_is_not_opened(run: str) -> None:
    """A shipped or forged `index.db`, which says something else."""
    Path(run, "index.db").write_bytes(b"SQLite format 3\0")
    before = {path: path.stat() for path in Path(run).rglob("*")}
    assert looked_at(run)[:3] == (1, 1, 3)
    assert {path: path.stat() for path in Path(run).rglob("*")} == before
    assert index_file(run).exists()


def test_a_copy_of_a_run_has_an_index_of_its_own(run: str, cache: Path) -> None:
    """Equal uids: what is in the copy must not fill the original's index, nor after one takes the other's place."""
    before = looked_at(run)
    shutil.copytree(run, f"{run}-copy")
    write(f"{run}-copy", [finished(2), finished(4)])
    assert looked_at(f"{run}-copy")[0] == 3
    assert looked_at(run) == before
    os.rename(run, f"{run}-original")
    os.rename(f"{run}-copy", run)
    assert looked_at(run)[0] == 3
    assert looked_at(f"{run}-original") == before
    assert len(cached(cache)) == 4


def cached(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.db"))


def test_an_index_that_takes_the_place_of_another_is_rebuilt(run: str, tmp_path: Path) -> None:
    looked_at(run)
    other = new_run(tmp_path / "other", [started(2), finished(1)])
    looked_at(other)
    os.replace(index_file(run), index_file(other))
    assert looked_at(other)[:3] == (1, 0, 1)


@pytest.mark.parametrize("way", ["folder", "link", "pipe"])
def test_it_is_rebuilt_where_something_else_is_in_its_way(run: str, way: str, cache: Path) -> None:
    before = looked_at(run)
    path = index_file(run)
    path.rename(cache / "kept")
    if way == "folder":
        path.mkdir()
        (path / "file").touch()
    elif way == "link":
        path.symlink_to(cache / "kept")
    else:
        os.mkfifo(path)
    assert looked_at(run) == before
    assert stat.S_ISREG(path.lstat().st_mode)


@pytest.mark.parametrize("method", ["add", "publish"])
def test_a_cache_that_is_full_is_done_without(
    run: str, method: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    before = looked_at(run)
    write(run, [finished(4), failed(2, kind="y" * 50_000)])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SnapshotWriter, method, full)
    monkeypatch.setattr(snapshot, "_SPILL_BYTES", 0)
    assert looked_at(run)[0] == before[0] + 1
    assert [path.name for path in cache.rglob("*.tmp")] == []


def entries_read(monkeypatch: pytest.MonkeyPatch) -> list[Entry | Damage]:
    """What indexes read of journals from now on."""
    read: list[Entry | Damage] = []

    class Watched(Reader):
        def read(self, *, live: bool = False) -> Iterator[Entry | Damage]:
            for each in super().read(live=live):
                read.append(each)
                yield each

    monkeypatch.setattr(index_module, "Reader", Watched)
    return read


def test_it_reads_only_what_came_since(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at(run)
    write(run, [finished(4), score(4, 12)])
    read = entries_read(monkeypatch)
    assert looked_at(run)[0] == 2
    assert [each.line.t for each in read if isinstance(each, Entry)] == ["segment", "sample.finished", "score"]


def test_it_catches_up_to_the_same_as_if_it_were_made_anew(run: str) -> None:
    for record in [resumed(), finished(1, attempt=2), finished(0, "again"), score(1, 13), failed(2), ended()]:
        looked_at(run)
        write(run, [record])
    caught_up = looked_at(run)
    os.unlink(index_file(run))
    assert caught_up == looked_at(run)


def test_the_first_finished_record_counts_and_the_second_is_counted_as_twice(run: str) -> None:
    write(run, [finished(0, "second")])
    index = Index(run)
    assert (index.finished, index.story.twice) == (1, 1)
    row = next(index.answers())
    assert entries(run)[4].offset == row.at_byte
    index.close()


def test_scores_of_lost_or_superseded_answers_are_not_shown(run: str) -> None:
    write(
        run,
        [finished(0, "second"), score(0, 11, False, "of the second"), score(4, 5), score(1, 7, True, "of a failure")],
    )
    index = Index(run)
    assert [(each.o, each.scorer) for each in index.scores(EVALUATION)] == [(0, "right")]
    index.close()


@pytest.mark.parametrize("is_caught_up", [False, True])
@pytest.mark.parametrize("order", ["second score last", "first score last", "only the second is scored", "edited"])
def test_scores_of_a_second_answer_to_a_key_do_not_replace_those_of_the_first(
    tmp_path: Path, order: str, is_caught_up: bool
) -> None:
    """Two workers answered the key 0. The records 3 and 4 are their answers."""
    run = new_run(tmp_path, [started(1), finished(0, "first"), finished(0, "second")])
    first, second = score(0, 3, 0.25, "x"), score(0, 4, 0.75, "x")
    by_hand = draft("score", ScoreGiven(0, 4, EVALUATION, "x", 0.5, author="me", at="2026-01-01T00:00:00Z"), key(0))
    for record in {
        "second score last": [first, second],
        "first score last": [second, first],
        "only the second is scored": [second],
        "edited": [first, by_hand],
    }[order]:
        if is_caught_up:
            looked_at(run)
        write(run, [record])
    index = Index(run)
    found = [(row.scorer, row.value) for row in index.scores(EVALUATION)]
    index.close()
    assert found == ([] if order == "only the second is scored" else [("x", 0.25)])


@pytest.mark.parametrize("is_caught_up", [False, True])
def test_a_score_of_an_answer_that_never_counted_is_dropped_when_another_counts(
    tmp_path: Path, is_caught_up: bool
) -> None:
    """Its answer, record 99, is lost. The bytes of the index do not depend on when it was read."""
    run = new_run(tmp_path, [started(1), score(0, 99, 0.75, "y")])
    if is_caught_up:
        looked_at(run)
    write(run, [finished(0, "second"), score(0, 5, 0.25, "x")])
    index = Index(run)
    found = [(row.scorer, row.value) for row in index.scores(EVALUATION)]
    made = index._evaluation(0, EVALUATION).made  # noqa: SLF001
    index.close()
    assert found == [("x", 0.25)]
    assert {each.of for rows in made.values() for each in rows.values()} == {5}


def test_two_readers_at_once_count_nothing_twice(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between one reader's look at the cursor and its first line, another one brings the index up to date."""
    looked_at(run)
    write(run, [finished(2), finished(4)])
    others: list[tuple[Any, ...]] = []

    class Overtaken(Reader):
        def read(self, *, live: bool = False) -> Iterator[Entry | Damage]:
            monkeypatch.setattr(index_module, "Reader", Reader)
            others.append(looked_at(run))
            yield from super().read(live=live)

    monkeypatch.setattr(index_module, "Reader", Overtaken)
    mine = looked_at(run)
    assert (mine[0], mine[-1].twice) == (3, 0)
    assert others[0][:3] == mine[:3]
    assert looked_at(run)[-1].twice == 0


def damage_record(run: str, number: int) -> None:
    """Flip a bit in the middle of one record."""
    entry = next(each for each in entries(run) if each.line.n == number)
    path = os.path.join(journal_folder(run), f"{entry.segment:06d}.jsonl")
    content = Path(path).read_bytes()
    Path(path).write_bytes(flipped(content, (entry.offset + entry.end) // 2))


def test_damage_is_reported_by_every_look_not_only_by_the_first(run: str) -> None:
    damage_record(run, 5)
    looks = []
    for _ in range(2):
        index = Index(run)
        looks.append([(each.kind, each.n_first, each.n_last) for each in index.damage])
        index.close()
    assert looks == [[("line", 5, 5)]] * 2


def test_an_answer_lost_to_damage_is_unfinished_again_though_the_index_has_seen_it(run: str) -> None:
    """Once the writer has found and recorded the loss, and has answered the key anew, the new answer counts."""
    looked_at(run)
    damage_record(run, 5)
    positions = write(run, [resumed(), step(0), finished(0, "anew")])
    index = Index(run)
    try:
        row = index.answer("task/model/s0/1")
        assert row is not None
        assert (row.status, row.n) == ("finished", positions[-1].n)
        assert index.story.twice == 0
    finally:
        index.close()


def test_keys_are_found_by_name_and_by_ordinal(run: str) -> None:
    index = Index(run)
    try:
        found = index.answer("task/model/s1/1")
        assert found is not None
        assert (found.o, found.status, found.kind, found.message) == (1, "failed", "server", "no")
        assert index.answer("task/model/s9/1") is None
        assert [each.o for each in index.answers("failed")] == [1]
        assert [each.o for each in index.answers(first=1, count=2)] == [1]
    finally:
        index.close()


def by_hand(o: int, of: int, value: object, scorer: str = "right", author: str = "ann") -> Draft:
    given = ScoreGiven(o, of, EVALUATION, scorer, value, "read it", author=author, at="2026-01-01T00:00:00+00:00")
    return draft("score", given, key(o))


def test_what_a_person_set_counts_whatever_the_scorer_says_before_or_after(run: str) -> None:
    write(run, [by_hand(0, 5, 0.5), by_hand(0, 5, 0.25, author="bob"), score(0, 5, True)])
    index = Index(run)
    assert [(each.value, each.author) for each in index.scores(EVALUATION)] == [(0.25, "bob")]
    assert [each.author for each in index.edits_of(0, 5, EVALUATION)] == ["ann", "bob"]
    assert [each.value for each in index.made_of(0, 5, EVALUATION)] == [True]
    assert index.counts_of(EVALUATION).edited == 1


def test_scores_that_were_made_again_replace_all_of_the_round_before(run: str) -> None:
    """A failure has the scorer's name, its scores may have others."""
    write(run, [score(0, 5, 1, "judge", last=False), score(0, 5, 2, "right")])
    write(run, [score(0, 5, 4, "judge.tone", last=False), score(0, 5, 5, "right")])
    index = Index(run)
    assert {each.scorer: each.value for each in index.scores(EVALUATION)} == {"judge.tone": 4, "right": 5}
    assert index.counts_of(EVALUATION).answers == 1


def test_a_score_set_by_hand_counts_where_its_scorer_has_said_nothing(run: str) -> None:
    write(run, [by_hand(0, 5, None, "silent")])
    counts = Index(run).counts_of(EVALUATION)
    assert (counts.no_score, counts.edited, counts.failures) == (1, 1, 0)


def test_the_pages_of_a_cell_are_its_own_also_if_it_has_none_yet(tmp_path: Path) -> None:
    cells = tuple(Cell("task", f"m{i}", 4 * i, 4, 0, 0) for i in range(3))
    begun = RunStarted("run", {}, StoredFile(12, ""), StoredFile(4, ""), cells)
    run = new_run(tmp_path, [draft("run.started", begun), finished(0), finished(9)])
    index = Index(run)
    try:
        counts = [[page.answers.finished for page in index.totals([cell])] for cell in cells]
        rows = [[row.o for row in index.answers("", cell.first, cell.count)] for cell in cells]
    finally:
        index.close()
    assert (counts, rows) == ([[1], [], [1]], [[0], [], [9]])
