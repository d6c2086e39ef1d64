"""The derived index: it can be deleted, spoilt, locked or outdated, and always says what the journal says."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast.state.cache as cache_module
import holdfast.state.index as index_module
from holdfast.journal import Reader, journal_folder
from holdfast.journal.marks import Damage, Entry
from holdfast.records import Draft, draft
from holdfast.records.facts import ScoreGiven
from holdfast.state import Index
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
            index.story,
        )
    finally:
        index.close()


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> str:
    records = [started(5), scoring(), step(0), finished(0), score(0, 5), failed(1), step(2), failed(3, final=False)]
    return new_run(tmp_path, records)


def index_file(run: str) -> str:
    return os.path.join(run, "index.db")


def test_it_says_what_the_fold_says(run: str) -> None:
    fold = fold_of(run)
    finished_now, failed_now, unfinished_now, answers, scores, story = looked_at(run)
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
    for size in range(0, len(content), 1500):
        Path(index_file(run)).write_bytes(content[:size])
        assert looked_at(run) == before


def test_it_is_made_anew_when_it_is_of_another_version(run: str) -> None:
    before = looked_at(run)
    database = sqlite3.connect(index_file(run))
    database.execute("DROP TABLE scores")
    database.execute("PRAGMA user_version = 77")
    database.commit()
    database.close()
    assert looked_at(run) == before
    database = sqlite3.connect(index_file(run))
    assert database.execute("PRAGMA user_version").fetchone() != (77,)
    database.close()


def test_it_is_made_anew_when_a_table_is_gone(run: str) -> None:
    before = looked_at(run)
    database = sqlite3.connect(index_file(run))
    database.execute("DROP TABLE meta")
    database.commit()
    database.close()
    assert looked_at(run) == before


def test_it_is_made_in_memory_while_another_process_has_locked_its_file(run: str) -> None:
    before = looked_at(run)
    other = sqlite3.connect(index_file(run))
    other.execute("BEGIN EXCLUSIVE")
    try:
        assert looked_at(run) == before
    finally:
        other.close()


def test_it_is_made_in_memory_where_nothing_can_be_written(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = looked_at(run)
    connect = sqlite3.connect

    def read_only(path: str, timeout: float = 5.0) -> sqlite3.Connection:
        return connect(path if path == ":memory:" else f"file:{path}?mode=ro", timeout=timeout, uri=True)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    assert looked_at(run) == before
    if os.path.exists(index_file(run)):
        os.unlink(index_file(run))
    assert looked_at(run) == before
    assert not os.path.exists(index_file(run))


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite cannot write where runs are, as on a read-only mount."""
    connect = sqlite3.connect

    def refused(path: str, timeout: float = 5.0) -> sqlite3.Connection:
        if os.path.basename(path) == "index.db":
            raise sqlite3.OperationalError("unable to open database file")
        return connect(path, timeout=timeout)

    monkeypatch.setattr(sqlite3, "connect", refused)


def cached(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.db"))


@pytest.mark.usefixtures("read_only")
def test_it_is_kept_in_the_cache_where_the_run_cannot_be_written(
    run: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = looked_at(run)
    assert before[:3] == (1, 1, 3)
    assert len(cached(cache)) == 1
    write(run, [finished(4)])
    read = entries_read(monkeypatch)
    assert looked_at(run)[0] == 2
    assert [each.line.t for each in read if isinstance(each, Entry)] == ["segment", "sample.finished"]
    assert not os.path.exists(index_file(run))
    assert len(cached(cache)) == 1


def test_it_is_kept_in_the_cache_where_the_run_is_on_another_machine(
    run: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's locks are not to be trusted there."""
    mounts = cache / "mountinfo"
    device = os.stat(run).st_dev
    mounts.write_text(f"1 0 {os.major(device)}:{os.minor(device)} / / rw shared:1 - nfs4 server:/share rw\n")
    monkeypatch.setattr(cache_module, "_MOUNTS", str(mounts))
    vars(cache_module)["_kind_of"].cache_clear()
    try:
        assert looked_at(run)[:3] == (1, 1, 3)
        assert len(cached(cache)) == 1
        assert not os.path.exists(index_file(run))
    finally:
        vars(cache_module)["_kind_of"].cache_clear()


@pytest.mark.usefixtures("read_only")
def test_in_the_cache_every_run_has_its_own_and_what_is_wrong_with_it_is_mended(
    run: str, cache: Path, tmp_path: Path
) -> None:
    before = looked_at(run)
    (file,) = cached(cache)
    for garbage in (b"garbage" * 1000, b"", file.read_bytes()[:5000]):
        file.write_bytes(garbage)
        assert looked_at(run) == before
    os.rename(run, f"{run}-moved")
    other = new_run(tmp_path, [started(2), finished(1)])
    assert other == run
    assert looked_at(other)[:3] == (1, 0, 1)
    assert looked_at(f"{run}-moved") == before


@pytest.mark.usefixtures("read_only")
def test_it_is_made_in_memory_where_there_is_no_cache_either(
    run: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "a file"))
    assert looked_at(run)[:3] == (1, 1, 3)
    assert cached(cache) == []


@pytest.mark.usefixtures("read_only")
def test_what_nobody_has_looked_at_for_a_month_leaves_the_cache(run: str, cache: Path, tmp_path: Path) -> None:
    looked_at(run)
    (old,) = cached(cache)
    os.utime(old, (0, 0))
    looked_at(new_run(tmp_path / "another", [started(1)]))
    assert old not in cached(cache)
    assert looked_at(run)[:3] == (1, 1, 3)


def test_a_locked_index_is_not_looked_for_elsewhere(run: str, cache: Path) -> None:
    looked_at(run)
    other = sqlite3.connect(index_file(run))
    other.execute("BEGIN EXCLUSIVE")
    looked_at(run)
    other.close()
    assert cached(cache) == []


def test_it_is_made_in_memory_where_a_folder_is_in_its_way(run: str) -> None:
    before = looked_at(run)
    os.unlink(index_file(run))
    os.mkdir(index_file(run))
    assert looked_at(run) == before


def test_it_is_made_anew_when_the_journal_is_another_one(run: str, tmp_path: Path) -> None:
    looked_at(run)
    other = new_run(tmp_path / "other", [started(2), finished(1)])
    os.replace(index_file(run), index_file(other))
    assert looked_at(other)[:3] == (1, 0, 1)


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
