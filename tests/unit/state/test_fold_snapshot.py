"""Saved folds: with one or without, a resume knows the same; whatever is wrong with one, it is not used."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import StaleCursorError
from holdfast.journal import START, Cursor, Damage, Entry, Reader, StartLines, journal_folder, seal
from holdfast.records import Draft, draft
from holdfast.records.facts import Failure, ScoreGiven, Step
from holdfast.state import Fold, FoldSnapshot, fold_snapshot, stamp_segments
from holdfast.state.cache import identify
from tests.journals import QUICK, UID, open_journal, plain_numbers, request, write_session
from tests.unit.state.stories import (
    EVALUATION,
    ended,
    failed,
    finished,
    key,
    new_run,
    resumed,
    score,
    scoring,
    started,
    step,
    write,
)

KEYS = 3
SCORERS = [{"task": "task", "name": "right"}]
ordinals = st.integers(0, KEYS - 1)
numbers = st.integers(2, 20)


def judge_step(o: int, evaluation: str) -> Draft:
    return draft("step", Step(o, f"score/{evaluation}/right", "q"), key(o))


def broken_score(o: int, of: int, kind: str) -> Draft:
    return draft("score", ScoreGiven(o, of, EVALUATION, "x", failure=Failure(kind, "no"), last=True), key(o))


records = st.one_of(
    st.builds(step, ordinals, st.integers(1, 3)),
    st.builds(judge_step, ordinals, st.sampled_from([EVALUATION, "evaluation-2"])),
    st.builds(finished, ordinals, st.sampled_from(["a", "b"]), st.integers(1, 3), st.integers(0, 1)),
    st.builds(failed, ordinals, st.integers(1, 4), st.booleans()),
    st.builds(
        score,
        ordinals,
        numbers,
        st.sampled_from([True, 0.5, None]),
        st.sampled_from(["x", "y"]),
        st.just(EVALUATION),
        st.booleans(),
    ),
    st.builds(broken_score, ordinals, numbers, st.sampled_from(["server", "scorer"])),
    st.builds(scoring, st.sampled_from([EVALUATION, "evaluation-2"]), st.sampled_from([(), SCORERS])),
    st.builds(resumed, st.sampled_from([None, {"seed": 2}])),
    st.builds(ended, st.sampled_from(["completed", "interrupted", "failed", "cancelled"])),
)
arguments = st.sampled_from([(None, ()), (EVALUATION, ()), ("evaluation-3", SCORERS)])
Arguments = tuple[str | None, Sequence[dict[str, Any]]]


class Read:
    """What a resume knows after it has read a journal, as `Reading` does it."""

    def __init__(self, run: str, given: Arguments = (None, ()), *, saved: bool = True) -> None:
        self.fold, self.start, self.applied = Fold(*given), StartLines(), 0
        journal = journal_folder(run)
        segments = stamp_segments(journal)
        snapshot = FoldSnapshot(run, *given) if saved else None
        cursor = snapshot.restore(self.fold, self.start, segments) if snapshot is not None else None
        self.continued = cursor is not None
        self._reader = Reader(journal, cursor=cursor or START)
        try:
            self.fold.read(self._counted())
        except StaleCursorError:
            self.__init__(run, given, saved=False)  # type: ignore[misc] # from the beginning
            return
        if snapshot is not None:
            snapshot.save(self.fold, self.start, self._reader, segments)

    def _counted(self) -> Iterator[Entry | Damage]:
        for each in self.start.watch(self._reader.read()):
            self.applied += 1
            yield each

    @property
    def content(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self.fold).items() if not hasattr(value, "encoded")}
        encoded = {name: value.encoded() for name, value in vars(self.fold).items() if hasattr(value, "encoded")}
        counts = self.fold.finished.count, self.fold.failed.count, len(self.fold.unscored)
        return {**plain, **encoded, "start": self.start.collected(), "cursor": self.cursor, "counts": counts}

    @property
    def cursor(self) -> Cursor:
        return self._reader.cursor


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_snapshot, "_RECORDS_MIN", 1)


@contextlib.contextmanager
def small() -> Iterator[str]:
    with patch.object(fold_snapshot, "_RECORDS_MIN", 1), tempfile.TemporaryDirectory() as folder:
        yield folder


@given(st.lists(st.tuples(st.lists(records, max_size=6), st.booleans(), st.booleans()), min_size=1), arguments)
@settings(max_examples=60, deadline=None)
def test_a_saved_fold_and_the_rest_are_the_fold_of_everything(
    sessions: list[tuple[list[Draft], bool, bool]], given: Arguments
) -> None:
    """Each session is written by a process; then, at random, its segments are sealed, and the fold is saved."""
    with small() as folder:
        run = new_run(folder, [started(KEYS)])
        for session, is_sealed, is_saved in sessions:
            write_session(journal_folder(run), session, wanted=request(segment_bytes=900))
            for number in plain_numbers(journal_folder(run)) if is_sealed else ():
                seal(QUICK, journal_folder(run), number)
            if is_saved:
                assert Read(run, given).content == Read(run, given, saved=False).content
        found = Read(run, given)
        assert found.content == Read(run, given, saved=False).content
        assert Read(run, given).content == found.content


@given(st.lists(records, min_size=1, max_size=8), st.lists(records, min_size=1, max_size=8), st.data())
@settings(max_examples=60, deadline=None)
def test_a_journal_that_was_changed_or_cut_anywhere_is_read_as_it_is(
    before: list[Draft], after: list[Draft], data: st.DataObject
) -> None:
    """A negative control of the property above: what was saved is true only of the journal that was read."""
    with small() as folder:
        run = new_run(folder, [started(KEYS), *before])
        Read(run)
        write(run, after)
        journal = journal_folder(run)
        name = data.draw(st.sampled_from(sorted(os.listdir(journal))))
        path = Path(journal, name)
        content = path.read_bytes()
        at = data.draw(st.integers(content.index(b"\n") + 1, len(content)), label="at")
        changed = content[:at] if data.draw(st.booleans(), label="cut") else content[:at] + b"#" + content[at + 1 :]
        path.write_bytes(changed)
        if changed == content:
            return
        assert Read(run).content == Read(run, saved=False).content


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_change_before_the_cursor_of_a_segment_that_grows_is_found(tmp_path: Path, is_sealed: bool) -> None:
    """The stamps show that the file has grown; only the digest shows that it has changed too."""
    run = new_run(tmp_path)
    opened = open_journal(journal_folder(run), wanted=request(segment_bytes=100_000))
    path = Path(journal_folder(run), "000001.jsonl")
    for record in SESSION:
        opened.appender.commit([record])
    assert not Read(run).continued
    opened.appender.commit([step(1)])
    assert Read(run).continued
    opened.appender.commit([step(1)])
    opened.appender.close()
    content = path.read_bytes()
    at = content.index(b"sample.finished")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"#")
    if is_sealed:
        seal(QUICK, journal_folder(run), 1)
    found = Read(run)
    assert (found.continued, found.fold.finished.count) == (False, 0)
    assert found.content == Read(run, saved=False).content


def test_bytes_that_changed_under_the_same_stamp_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a power loss, if the last bytes were not synced yet."""
    run = new_run(tmp_path, SESSION)
    Read(run)
    path = Path(journal_folder(run), "000001.jsonl")
    path.write_bytes(path.read_bytes().replace(b"sample.finished", b"\0" * 15))
    monkeypatch.setattr(fold_snapshot, "have_changed", lambda *arguments: False)
    found = Read(run)
    assert (found.continued, found.fold.finished.count) == (False, 0)


def saved_file(run: str) -> Path:
    (found,) = [
        each for each in Path(os.environ["HOLDFAST_CACHE"], "folds").iterdir() if each.name.startswith(name_of(run))
    ]
    return found


def name_of(run: str) -> str:
    identity = identify("folds", run, UID)
    assert identity is not None
    return identity.name


SESSION = [started(2), scoring(), step(0), finished(0), step(1)]


def test_a_saved_fold_spares_the_records_before_it(tmp_path: Path) -> None:
    run = new_run(tmp_path, SESSION)
    first = Read(run)
    assert (first.continued, first.applied) == (False, len(SESSION) + 1)
    again = Read(run)
    assert (again.continued, again.applied) == (True, 0)
    write(run, [finished(1)])
    later = Read(run)
    assert (later.continued, later.applied) == (True, 2)  # with the header of the new segment
    assert later.fold.finished.count == 2


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [flip, cut, empty])
def test_a_damaged_file_is_not_used_and_warned_of_once(
    tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(tmp_path, SESSION)
    Read(run)
    harm(saved_file(run))
    assert not Read(run).continued
    assert len(caplog.records) == 1
    assert Read(run).continued  # it was replaced
    assert len(caplog.records) == 1


def test_a_file_of_another_run_version_or_evaluation_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = new_run(tmp_path / "a", SESSION), new_run(tmp_path / "b", [started(2), finished(0), finished(1)])
    Read(run)
    Read(other)
    assert not Read(run, (EVALUATION, ())).continued
    shutil.copyfile(saved_file(other), saved_file_of(run))
    assert not Read(run).continued
    assert Read(run).continued
    monkeypatch.setattr(fold_snapshot, "_VERSION", "another")
    assert not Read(run).continued


def saved_file_of(run: str) -> Path:
    """Of the evaluation that is not named."""
    folder = Path(os.environ["HOLDFAST_CACHE"], "folds")
    return min((each for each in folder.iterdir() if each.name.startswith(name_of(run))), key=os.path.getmtime)


def test_a_copied_run_starts_from_its_own_journal(tmp_path: Path) -> None:
    run = new_run(tmp_path, SESSION)
    Read(run)
    shutil.copytree(run, tmp_path / "copy")
    assert not Read(str(tmp_path / "copy")).continued


def test_a_replaced_segment_is_read_again(tmp_path: Path) -> None:
    """The same size and the same time: only inode and ctime differ."""
    run = new_run(tmp_path, SESSION)
    Read(run)
    path = Path(journal_folder(run), "000001.jsonl")
    about = os.stat(path)
    path.with_suffix(".new").write_bytes(path.read_bytes())
    os.replace(path.with_suffix(".new"), path)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert not Read(run).continued


def test_a_missing_segment_is_found(tmp_path: Path) -> None:
    run = new_run(tmp_path, SESSION)
    write(run, [finished(1)])
    Read(run)
    os.unlink(Path(journal_folder(run), "000001.jsonl"))
    found = Read(run)
    assert not found.continued
    assert found.fold.damage


def test_a_journal_with_any_damage_is_not_saved(tmp_path: Path) -> None:
    run = new_run(tmp_path, SESSION)
    path = Path(journal_folder(run), "000001.jsonl")
    path.write_bytes(path.read_bytes()[:-5])  # a torn record
    assert Read(run).fold.damage
    assert not Read(run).continued


def test_a_record_without_its_newline_is_not_saved(tmp_path: Path) -> None:
    """It is read, but the cursor is before it: a later reader would read it twice."""
    run = new_run(tmp_path, SESSION)
    path = Path(journal_folder(run), "000001.jsonl")
    path.write_bytes(path.read_bytes()[:-1])
    assert Read(run).applied == len(SESSION) + 1
    assert not Read(run).continued


def test_small_journals_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_snapshot, "_RECORDS_MIN", 20_000)
    run = new_run(tmp_path, SESSION)
    Read(run)
    assert not Read(run).continued


def test_without_a_cache_everything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_snapshot, "entry_path", lambda kind, name: None)
    run = new_run(tmp_path, SESSION)
    assert [Read(run).continued for _ in range(2)] == [False, False]
