"""Keys, ordinals and cells: the exact list of what will be asked."""

from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.records.keys import Key, parse_key
from tests.unit.plan.plans import ROWS, model, plan_of, spec_of, task

ODD = [
    "a/b",
    "50%",
    "%2F",
    "line\nbreak",
    "tab\there",
    "Größe",
    "日本",
    "\u2028",
    "x:y",
    " ",
    ".",
    "..",
    "a" * 300,
    "🦭",
]


def test_odd_ids_come_back_from_their_keys(tmp_path: Path) -> None:
    rows = [{"id": name, "q": "?"} for name in ODD if name.strip()]
    plan = plan_of(tmp_path, spec_of(), {"t": rows})
    assert [parse_key(key) for key in plan.keys] == [Key("t", "m", row["id"], 1) for row in rows]
    assert len(set(plan.keys)) == len(rows)
    assert all(key.count("/") == 3 and key.splitlines() == [key] for key in plan.keys)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "base:adapter", "gpt-4.1", "a b", "50%", "Größe"])
def test_odd_names_of_models_and_tasks_come_back_from_their_keys(tmp_path: Path, name: str) -> None:
    plan = plan_of(tmp_path, spec_of(models=[model(name)], tasks=[task(name)]))
    assert {(parse_key(key).task, parse_key(key).model) for key in plan.keys} == {(name, name)}
    assert (plan.planned.cells[0].task, plan.planned.cells[0].model) == (name, name)


def test_keys_that_look_alike_stay_apart(tmp_path: Path) -> None:
    rows = [{"id": name, "q": "?"} for name in ("a/b", "a%2Fb", "a%252Fb", "é", "e\u0301")]
    assert len(set(plan_of(tmp_path, spec_of(), {"t": rows}).keys)) == 5


def test_ordinals_are_contiguous_over_all_cells_in_the_order_of_the_spec(tmp_path: Path) -> None:
    spec = spec_of(
        models=[model("x"), model("y")], tasks=[task("one", repeats=2), task("two", models=["y"]), task("three")]
    )
    plan = plan_of(tmp_path, spec)
    assert [line.o for line in plan.lines] == list(range(len(plan.lines)))
    assert plan.keys == [
        *(f"one/{name}/{row}/{repeat}" for name in "xy" for row in "ab" for repeat in (1, 2)),
        "two/y/a/1",
        "two/y/b/1",
        *(f"three/{name}/{row}/1" for name in "xy" for row in "ab"),
    ]
    assert [(cell.task, cell.model, cell.first, cell.count) for cell in plan.planned.cells] == [
        ("one", "x", 0, 4),
        ("one", "y", 4, 4),
        ("two", "y", 8, 2),
        ("three", "x", 10, 2),
        ("three", "y", 12, 2),
    ]


def test_a_line_of_the_plan_names_the_row_that_it_asks_about(tmp_path: Path) -> None:
    spec = spec_of(models=[model("x"), model("y")], tasks=[task("one", repeats=2), task("two")])
    plan = plan_of(tmp_path, spec)
    by_number = {line.r: line for line in plan.data}
    assert [line.r for line in plan.data] == [1, 2, 3, 4]
    assert all(by_number[line.r].id == parse_key(line.k).sample_id for line in plan.lines)


def test_a_limit_and_chosen_samples_shorten_the_plan(tmp_path: Path) -> None:
    rows = [{"id": str(i), "q": "?"} for i in range(9)]
    assert plan_of(tmp_path / "one", spec_of(limit=2), {"t": rows}).keys == ["t/m/0/1", "t/m/1/1"]
    assert plan_of(tmp_path / "two", spec_of(samples=["7", "3"]), {"t": rows}).keys == ["t/m/3/1", "t/m/7/1"]
    assert plan_of(tmp_path / "three", spec_of(samples=["7", "3"], limit=1), {"t": rows}).keys == ["t/m/3/1"]


def test_rows_without_ids_are_numbered_as_they_stand_in_the_file(tmp_path: Path) -> None:
    rows = [{"q": "a"}, {"q": "b"}, {"q": "c"}]
    assert plan_of(tmp_path, spec_of(samples=["2"]), {"t": rows}).keys == ["t/m/2/1"]


def test_a_task_without_a_model_has_nothing_to_ask(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"tasks\[0\]"):
        plan_of(tmp_path, spec_of(tasks=[task(models=[])]))


def test_the_same_spec_gives_the_same_plan(tmp_path: Path) -> None:
    spec = spec_of(models=[model("x"), model("y")], tasks=[task("one", repeats=3), task("two")])
    assert plan_of(tmp_path / "one", spec) == plan_of(tmp_path / "two", spec)


def test_two_samples_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="'a'"):
        plan_of(tmp_path, spec_of(), {"t": [ROWS[0], ROWS[1], ROWS[0]]})
