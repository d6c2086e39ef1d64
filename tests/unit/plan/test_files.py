"""The two files that pin a run: written whole, streamed, readable from any offset, and found out if they change."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import HoldfastError, JournalError
from holdfast.plan import DATA, PLAN, DataLine, PlanLine, find_problem, prepare, read_lines, survey, write_plan
from holdfast.records.samples import Sample
from tests.unit.plan.plans import ROWS, model, plan_of, spec_of, task

VALUES: list[dict[str, Any]] = [
    {"id": "text", "q": 'quotes " and \\ and \n and \u2028 and 🦭', "target": None},
    {"id": "numbers", "q": "?", "target": 0.1, "big": 2**53 + 1, "small": -1e-300, "whole": 3, "yes": True},
    {"id": "nested", "q": "?", "target": {"a": [1, {"b": None}], "é": []}},
    {"id": "messages", "q": "?", "target": "", "input": [{"role": "user", "content": "hello"}]},
    {"id": "keys", "q": "?", "target": "x", "with space": 1, "": 2, "a.b": 3},
]


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [{**row, "input": row.get("input")} for row in VALUES]
    plan = plan_of(tmp_path, spec_of(), {"t": rows})
    assert [line.sample() for line in plan.data] == [
        Sample(row["id"], row["input"], row["target"], row) for row in rows
    ]
    kept = plan.data[1].sample().row
    assert [type(kept[name]) for name in ("target", "big", "whole", "yes")] == [float, int, int, bool]


def test_rows_can_be_read_without_the_spec_that_named_their_columns(tmp_path: Path) -> None:
    rows = {"t": [{"nr": 7, "frage": "1+1", "antwort": "2"}]}
    spec = spec_of(
        tasks=[{"name": "t", "prompt": "{frage}", "dataset": {"id": "nr", "input": "frage", "target": "antwort"}}]
    )
    assert plan_of(tmp_path, spec, rows).data[0].sample() == Sample("7", "1+1", "2", rows["t"][0])


def test_without_record_data_no_row_is_stored_and_the_plan_is_the_same(tmp_path: Path) -> None:
    kept = plan_of(tmp_path / "kept", spec_of())
    left = plan_of(tmp_path / "left", spec_of(record_data=False))
    assert left.lines == kept.lines
    assert [(line.r, line.id) for line in left.data] == [(1, "a"), (2, "b")]
    assert [bytes(line.row) for line in left.data] == [b"null", b"null"]
    assert b"1+1" not in b"".join(read_lines(str(tmp_path / "left" / DATA)))


def test_a_cell_says_where_its_lines_begin(tmp_path: Path) -> None:
    spec = spec_of(models=[model("x"), model("y")], tasks=[task("one", repeats=2), task("two")])
    plan = plan_of(tmp_path, spec)
    for cell in plan.planned.cells:
        first = msgspec.json.decode(next(read_lines(str(tmp_path / PLAN), cell.plan_at)), type=PlanLine)
        row = msgspec.json.decode(next(read_lines(str(tmp_path / DATA), cell.data_at)), type=DataLine)
        assert (first.o, first.k) == (cell.first, f"{cell.task}/{cell.model}/a/1")
        assert (row.r, row.id) == (first.r, "a")


def test_what_is_pinned_is_what_is_in_the_files(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, spec_of())
    assert find_problem(str(tmp_path / PLAN), plan.planned.plan) == ""
    assert find_problem(str(tmp_path / DATA), plan.planned.data) == ""
    assert (plan.planned.plan.count, plan.planned.data.count) == (2, 2)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_damaged_seek_table_never_leads_to_other_lines(tmp_path: Path) -> None:
    """Reading begins at an offset that the table finds: what it finds is right, or an error."""
    rows = [{"id": f"{i:05d}", "q": "?", "pad": f"{i}" * 40} for i in range(8_000)]
    spec = spec_of(tasks=[task("one"), task("two")])
    plan = plan_of(tmp_path, spec, {"one": rows, "two": rows})
    path = tmp_path / DATA
    whole = path.read_bytes()
    (cell,) = [cell for cell in plan.planned.cells if cell.task == "two"]
    right = next(read_lines(str(path), cell.data_at))
    found = set()
    for at in range(len(whole) - 90, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :])
        try:
            found.add(next(read_lines(str(path), cell.data_at)))
        except HoldfastError:
            continue
    assert found <= {right}


@pytest.mark.parametrize("name", [PLAN, DATA])
def test_a_file_that_was_cut_is_not_what_was_pinned(tmp_path: Path, name: str) -> None:
    plan = plan_of(tmp_path, spec_of(), {"t": [{"id": str(i), "q": "?"} for i in range(200)]})
    path = tmp_path / name
    pinned = plan.planned.plan if name == PLAN else plan.planned.data
    whole = path.read_bytes()
    for size in range(0, len(whole) - 150, 37):  # what follows the rows is for `verify` to look at
        path.write_bytes(whole[:size])
        assert find_problem(str(path), pinned), size
        assert find_problem(str(path), msgspec.structs.replace(pinned, size=0)), size


def test_a_damaged_file_is_never_read_as_a_shorter_one(tmp_path: Path) -> None:
    plan_of(tmp_path, spec_of(), {"t": [{"id": str(i), "q": "?"} for i in range(50)]})
    path = tmp_path / PLAN
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + bytes(8) + whole[68:])
    with pytest.raises(JournalError, match=r"plan\.jsonl\.zst"):
        list(read_lines(str(path)))


def test_a_plan_that_was_left_half_written_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / f"{PLAN}.tmp").write_bytes(b"half")
    (tmp_path / DATA).write_bytes(b"of an earlier start")
    assert len(plan_of(tmp_path, spec_of()).lines) == 2
    assert not list(tmp_path.glob("*.tmp"))


def test_a_survey_creates_nothing(tmp_path: Path) -> None:
    spec = spec_of()
    assert survey(spec, prepare(spec, {"t": ROWS}, {})) == 2
    assert list(tmp_path.iterdir()) == []


def test_every_row_that_is_read_is_counted_also_one_that_is_not_wanted() -> None:
    read: list[None] = []
    spec = spec_of(samples=[ROWS[-1]["id"]])
    works = prepare(spec, {"t": ROWS}, {}, counted=lambda: read.append(None))
    assert survey(spec, works) == 1
    assert len(read) == len(ROWS)


def peak_of_planning(folder: Path, rows: int, characters: int) -> int:
    """The most memory, in bytes, that a plan of so many rows takes while it is surveyed and written."""
    path = folder / "rows.jsonl"
    with path.open("w") as file:
        for i in range(rows):
            file.write(json.dumps({"id": f"row-{i}", "q": f"{i} + {i}", "pad": "x" * characters}) + "\n")
    spec = spec_of(tasks=[task(dataset={"path": str(path)})])
    tracemalloc.start()
    try:
        works = prepare(spec, {}, {})
        assert survey(spec, works) == rows
        assert write_plan(str(folder), spec, works).plan.count == rows
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("rows", "characters"),
    [(5_000, 5_000), pytest.param(100_000, 300, marks=pytest.mark.long)],
    ids=["5,000 long rows", "100,000 rows"],
)
def test_rows_are_streamed_and_never_sit_in_memory(tmp_path: Path, rows: int, characters: int) -> None:
    """Three times as much text as memory; what is left to grow tells ids apart, with a few bytes each."""
    peak = peak_of_planning(tmp_path, rows, characters)
    assert rows * characters > 2.5 * peak
