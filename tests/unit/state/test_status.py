"""A run's status is derived from its last word and its lock, never stored."""

from pathlib import Path

import pytest

from holdfast.journal import Lock
from holdfast.state import Standing, is_held, status_of
from tests.unit.state.stories import ended, failed, finished, fold_of, new_run, resumed, started


def status(run: str, held: bool = False) -> str:
    fold = fold_of(run)
    return status_of(fold.story, fold.unfinished, Standing(held))[0]


def test_a_run_whose_lock_is_held_is_running(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(1)])
    assert not is_held(run)
    lock = Lock(run)
    assert is_held(run)
    assert status(run, is_held(run)) == "running"
    lock.release()
    assert not is_held(run)
    assert status(run) == "interrupted"


def test_looking_at_the_lock_does_not_take_it(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(1)])
    assert not is_held(run)
    Lock(run, wait_seconds=0.0).release()
    assert not is_held(str(tmp_path))


def test_a_run_without_a_last_word_is_interrupted_and_says_why(tmp_path: Path) -> None:
    fold = fold_of(new_run(tmp_path, [started(1), finished(0)]))
    found, reason = status_of(fold.story, fold.unfinished, Standing(False))
    assert found == "interrupted"
    assert "killed" in reason


def test_completed_needs_every_key_to_have_ended(tmp_path: Path) -> None:
    assert status(new_run(tmp_path / "all", [started(2), finished(0), failed(1), ended()])) == "completed"
    fold = fold_of(new_run(tmp_path / "lost", [started(2), finished(0), ended()]))
    found, reason = status_of(fold.story, fold.unfinished, Standing(False))
    assert (found, reason.split()[0]) == ("interrupted", "1")


@pytest.mark.parametrize("kind", ["interrupted", "failed", "cancelled"])
def test_the_last_word_is_the_status_with_its_reason(tmp_path: Path, kind: str) -> None:
    fold = fold_of(new_run(tmp_path, [started(2), ended(kind, "because")]))
    assert status_of(fold.story, fold.unfinished, Standing(False)) == (kind, "because")


def test_a_resume_takes_the_last_word_back(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(1), finished(0), ended(), resumed()])
    assert status(run) == "interrupted"
    assert fold_of(run).story.completed == ""
