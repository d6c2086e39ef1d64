"""Which rows a resume does not compare again, and every reason to compare them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.plan import ComparedRows, PreparedTask, changed_rows, prepare, stamp_of_data, stamps
from holdfast.records import Block
from holdfast.spec import Spec
from holdfast.state import stamp_of_file
from tests.unit.plan.plans import ROWS, Plan, model, plan_of, spec_of, task


def write_rows(path: Path, rows: list[dict[str, Any]], hours_ago: float = 1.0) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settle(path, hours_ago)


def settle(path: Path, hours_ago: float = 1.0) -> None:
    when = os.stat(path).st_ctime_ns - int(hours_ago * 3600 * 1e9)
    os.utime(path, ns=(when, when))


class Case:
    """A planned run whose data is a file, and how often its rows were read since."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "rows.jsonl"
        write_rows(self.path, ROWS)
        self.spec = self.spec_with()
        self.plan: Plan = plan_of(folder / "run", self.spec)
        self.read = 0

    def spec_with(self, dataset: dict[str, Any] | None = None, **fields: Any) -> Spec:
        return spec_of(tasks=[task(dataset={"path": str(self.path), **(dataset or {})})], **fields)

    def works(self, spec: Spec, rows: Any = None) -> dict[str, PreparedTask]:
        def count() -> None:
            self.read += 1

        return prepare(spec, {} if rows is None else {"t": rows}, {}, counted=count)

    def compare(self, spec: Spec | None = None, uid: str = "u", rows: Any = None) -> tuple[int, int]:
        """How many tasks have changed, and how many rows were read."""
        self.read = 0
        spec = spec or self.spec
        planned = self.plan.planned
        compared = ComparedRows(
            str(self.folder / "run"), uid, [Block(1, planned.plan, planned.data, tuple(planned.cells))]
        )
        found = changed_rows(str(self.folder / "run"), spec, self.works(spec, rows), planned.cells, compared)
        return len(found), self.read


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(stamps, "SETTLED_SECONDS", -3600.0)  # ctime is now, and cannot be set
    return Case(tmp_path)


def test_rows_are_not_read_again_while_their_file_is_unchanged(case: Case) -> None:
    assert case.compare() == (0, 2)
    assert case.compare() == (0, 0)
    assert case.compare() == (0, 0)


def change_a_row(path: Path) -> None:
    """The same size and, as far as a program can set it, the same time; only ctime differs."""
    before = os.stat(path)
    text = path.read_text()
    assert "2+2" in text
    path.write_text(text.replace("2+2", "3+2"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = os.stat(path)
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)


def replace_by_another(path: Path) -> None:
    other = path.with_name("other.jsonl")
    other.write_text(path.read_text().replace("2+2", "3+2"))
    os.replace(other, path)


def link_to_another(path: Path) -> None:
    other = path.with_name("other.jsonl")
    other.write_text(path.read_text().replace("2+2", "3+2"))
    path.unlink()
    path.symlink_to(other)


def add_a_row(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"id": "c", "q": "3+3", "target": "6"}\n')


@pytest.mark.parametrize("change", [change_a_row, replace_by_another, link_to_another, add_a_row])
def test_every_change_of_the_file_is_found(case: Case, change: Callable[[Path], None]) -> None:
    assert case.compare() == (0, 2)
    assert case.compare() == (0, 0)
    change(case.path)
    changed, read = case.compare()
    assert changed == 1
    assert read > 0
    assert case.compare()[0] == 1  # a refusal is not remembered as a comparison


def test_without_the_stamp_the_same_change_would_be_missed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: the change of a row is found only because the stamps differ."""
    assert case.compare() == (0, 2)
    before = stamp_of_data(case.spec, case.works(case.spec)["t"])
    change_a_row(case.path)
    monkeypatch.setattr(stamps, "stamp_of_file", lambda path: before)
    assert case.compare() == (0, 0)


def test_the_target_of_a_link_is_what_counts(case: Case) -> None:
    real = case.path.with_name("real.jsonl")
    os.replace(case.path, real)
    case.path.symlink_to(real)
    assert case.compare() == (0, 2)
    assert case.compare() == (0, 0)
    change_a_row(real)
    assert case.compare()[0] == 1


def test_another_spec_or_run_is_compared(case: Case) -> None:
    assert case.compare() == (0, 2)
    assert case.compare(uid="another") == (0, 2)
    for spec in (
        case.spec_with(seed=7),
        case.spec_with(limit=1),
        case.spec_with(samples=["a"]),
        case.spec_with(dataset={"id": "target"}),
        case.spec_with(models=[model(params={"temperature": 1})]),
    ):
        changed, read = case.compare(spec)
        assert changed == 1
        assert read > 0
    assert case.compare() == (0, 0)


def test_another_version_compares_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert case.compare() == (0, 2)
    monkeypatch.setattr(stamps, "__version__", "another")
    assert case.compare() == (0, 2)


def test_data_whose_stamp_proves_nothing_is_always_compared(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (case.spec_with(dataset={"files": ["q"]}), case.spec_with(record_data=False)):
        assert stamp_of_data(spec, case.works(spec)["t"]) == ""
    assert [case.compare(rows=ROWS) for _ in range(2)] == [(0, 2), (0, 2)]
    monkeypatch.setattr(stamps, "is_networked", lambda path: True)
    assert [case.compare() for _ in range(2)] == [(0, 2), (0, 2)]


def test_a_file_that_has_just_been_changed_is_compared_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "SETTLED_SECONDS", 3.0)
    assert [case.compare() for _ in range(2)] == [(0, 2), (0, 2)]


def test_a_file_that_changes_while_it_is_read_is_compared_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def changing(path: str) -> str:
        calls.append(path)
        os.utime(path)
        return stamp_of_file(path)

    monkeypatch.setattr(stamps, "stamp_of_file", changing)
    assert [case.compare() for _ in range(2)] == [(0, 2), (0, 2)]
    assert len(calls) > 2
