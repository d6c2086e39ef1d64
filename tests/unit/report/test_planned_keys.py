"""A planned key is found with its ordinal and its row; for a slip, the key that was meant."""

from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.runs import Run
from tests.unit.engine.runs import RUN, Asked, given, go, mock, rows


@pytest.fixture
def store(tmp_path: Path) -> Path:
    tasks = [Asked("one", rows(3), fields={"repeats": 2}), Asked("two", rows(4))]
    go(tmp_path, given(tasks, [mock(name="a"), mock(name="org/b")]))
    return tmp_path


@pytest.mark.parametrize(
    ("key", "o", "row"),
    [
        ("one/a/s0/1", 0, "s0"),
        ("one/a/s2/2", 5, "s2"),
        ("one/org%2Fb/s1/1", 8, "s1"),
        ("two/a/s0/1", 12, "s0"),
        ("two/org%2Fb/s3/1", 19, "s3"),
    ],
)
def test_a_key_is_found_in_its_cell_with_its_row(store: Path, key: str, o: int, row: str) -> None:
    with Run.find(str(store), RUN) as run:
        found = run.planned(key)
    assert (found.key, found.o) == (key, o)
    assert found.row is not None
    assert found.row["id"] == row


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("one/a/s22/1", "one/a/s2/1"),
        ("one/a/s1/22", "one/a/s1/2"),
        ("two/org/b/s3/1", "two/org%2Fb/s3/1"),
        ("s3", "two/a/s3/1"),
        ("one/a/s1", "one/a/s1/1"),
        ("one/A/s1/1", "one/a/s1/1"),
    ],
)
def test_a_slip_is_answered_with_a_key_that_exists(store: Path, slip: str, meant: str) -> None:
    with Run.find(str(store), RUN) as run, pytest.raises(UsageError, match=f"'{slip}'; did you mean '{meant}'"):
        run.planned(slip)


def test_what_is_like_no_key_is_answered_with_the_command_that_lists_them(store: Path) -> None:
    with Run.find(str(store), RUN) as run, pytest.raises(UsageError, match="holdfast export"):
        run.planned("?" * 40)


def test_a_run_that_does_not_record_its_data_has_no_row_to_show(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(2))], record_data=False))
    with Run.find(str(tmp_path), RUN) as run:
        assert run.planned("task/mock/s1/1").row is None
