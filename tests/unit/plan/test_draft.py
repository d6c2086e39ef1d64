"""A plan that is made while the spec is surveyed: the same bytes as in two steps, and one reading of the data."""

import errno
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import pytest

from holdfast.errors import SpecError
from holdfast.plan import DATA, PLAN, draft_plan, prepare, write_plan
from holdfast.spec import Spec
from tests.unit.plan.plans import ROWS, model, plan_of, spec_of, task

SPECS = {
    "one cell": spec_of(),
    "models and repeats": spec_of(models=[model("x"), model("y/z")], tasks=[task("one", repeats=3), task("two")]),
    "a model of one task only": spec_of(
        models=[model("x"), model("y"), model("z")], tasks=[task("one", models=["z", "x"]), task("two", models=["y"])]
    ),
    "a task without selected samples": spec_of(tasks=[task("one"), task("two"), task("three")], samples=["a"]),
    "a limit": spec_of(limit=1, models=[model("x"), model("y")]),
    "no rows": spec_of(record_data=False, models=[model("x"), model("y")]),
}
OTHER_ROWS: list[dict[str, Any]] = [
    {"id": "zwölf/%\n", "q": "?", "target": "\u2028"},
    {"id": "x", "q": "2+2", "target": None, "more": [1.5, None]},
]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_a_draft_is_written_as_the_same_bytes(tmp_path: Path, spec: Spec) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        each.name: OTHER_ROWS if each.name == "two" else ROWS for each in spec.tasks
    }
    assert plan_of(tmp_path, spec, rows).planned.cells  # compares the two


def test_a_start_reads_each_row_once(tmp_path: Path) -> None:
    read: list[None] = []
    spec = spec_of(models=[model("x"), model("y")])
    works = prepare(spec, {"t": ROWS}, {}, counted=lambda: read.append(None))
    draft = draft_plan(str(tmp_path), spec, works)
    assert draft is not None
    assert write_plan(str(tmp_path), spec, works, draft=draft).plan.count == 2 * len(ROWS)
    assert len(read) == len(ROWS)


@pytest.mark.parametrize("rows", [[*ROWS, ROWS[0]], [*ROWS, {"id": "c"}], []], ids=["twice", "no column", "empty"])
def test_a_spec_that_cannot_run_leaves_nothing(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    spec = spec_of()
    with pytest.raises(SpecError):
        draft_plan(str(tmp_path / "runs" / "r"), spec, prepare(spec, {"t": rows}, {}))
    assert list(tmp_path.iterdir()) == []


def test_rows_that_name_files_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "q": "?", "file": "a.txt"}\n')
    spec = spec_of(tasks=[task(dataset={"path": str(tmp_path / "rows.jsonl"), "files": ["file"]})])
    assert draft_plan(str(tmp_path), spec, prepare(spec, {}, {})) is None


class FullFile:
    """A temporary file on a full disk."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("fails", ["open", "write"])
def test_without_room_for_the_draft_the_data_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    make = tempfile.TemporaryFile

    def no_room(dir: str) -> Any:
        if fails == "open":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return FullFile(make(dir=dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", no_room)
    spec = spec_of()
    works = prepare(spec, {"t": ROWS}, {})
    assert draft_plan(str(tmp_path), spec, works) is None
    assert write_plan(str(tmp_path), spec, works, draft=None).plan.count == 2
    assert {each.name for each in tmp_path.iterdir()} == {PLAN, DATA}
