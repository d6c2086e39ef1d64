"""What a resume brings, compared with the plan: every difference is found, counted, and told with the first ids."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan import changed_inputs, changed_rows, inputs_of, prepare
from holdfast.records.facts import Change, TaskInputs
from tests.unit.plan.plans import model, plan_of, spec_of, task


def row(number: int, text: str = "q") -> dict[str, Any]:
    return {"id": f"s{number}", "q": f"{text}{number}"}


def told(folder: Path, before: list[dict[str, Any]], after: list[dict[str, Any]], **fields: Any) -> list[Change]:
    spec = spec_of(**fields)
    plan = plan_of(folder, spec, {each.name: before for each in spec.tasks})
    works = prepare(spec, {each.name: after for each in spec.tasks}, {})
    return changed_rows(str(folder), spec, works, plan.planned.cells)


CASES: dict[str, tuple[list[int], list[int], str]] = {
    "one added at the end": ([1, 2], [1, 2, 3], "1 sample added (s3)"),
    "one added at the start": ([1, 2], [9, 1, 2], "1 sample added (s9)"),
    "many added": ([1], list(range(1, 9)), "7 samples added (s2, s3, s4, …)"),
    "three removed": ([1, 2, 3, 4], [1], "3 samples removed (s2, s3, s4)"),
    "one other": ([1, 2], [1, 3], "1 sample added (s3); 1 sample removed (s2)"),
    "turned round": ([1, 2, 3], [3, 2, 1], "the rows are in another order"),
    "two swapped": ([1, 2, 3], [2, 1, 3], "the rows are in another order"),
}


@pytest.mark.parametrize("repeats", [1, 12])
@pytest.mark.parametrize("case", CASES)
def test_added_removed_and_reordered_samples_are_told(tmp_path: Path, case: str, repeats: int) -> None:
    before, after, words = CASES[case]
    changes = told(tmp_path, [*map(row, before)], [*map(row, after)], tasks=[task(repeats=repeats)])
    assert [(change.field, change.new, change.kind) for change in changes] == [("tasks.t.dataset", words, "result")]


def test_changed_samples_are_told_beside_the_others(tmp_path: Path) -> None:
    after = [row(1, "other"), row(2), row(3, "other"), row(5)]
    changes = told(tmp_path, [row(1), row(2), row(3), row(4)], after)
    assert [change.new for change in changes] == [
        "1 sample added (s5); 1 sample removed (s4); 2 samples changed (s1, s3)"
    ]


def test_each_task_is_told_once_however_many_models_it_has(tmp_path: Path) -> None:
    fields = {"tasks": [task("t"), task("u")], "models": [model("m"), model("n")]}
    changes = told(tmp_path, [row(1)], [row(1), row(2)], **fields)
    assert sorted(change.field for change in changes) == ["tasks.t.dataset", "tasks.u.dataset"]


def test_ids_are_told_as_they_are_written_in_the_data(tmp_path: Path) -> None:
    strange = {"id": "a/b 100%", "q": "x"}
    (change,) = told(tmp_path, [row(1)], [row(1), strange])
    assert change.new == "1 sample added (a/b 100%)"


@settings(max_examples=60, deadline=None)
@given(
    before=st.lists(st.integers(0, 6), min_size=1, max_size=6, unique=True),
    after=st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=6, unique_by=lambda pair: pair[0]),
    repeats=st.integers(1, 3),
)
def test_any_difference_is_found_and_its_counts_are_right(
    tmp_path_factory: pytest.TempPathFactory, before: list[int], after: list[tuple[int, bool]], repeats: int
) -> None:
    given_rows = [row(number, "other" if other else "q") for number, other in after]
    changes = told(tmp_path_factory.mktemp("plan"), [*map(row, before)], given_rows, tasks=[task(repeats=repeats)])
    now = dict(after)
    counts = {
        "added": len([number for number in now if number not in before]),
        "removed": len([number for number in before if number not in now]),
        "changed": len([number for number in before if now.get(number, False)]),
    }
    reordered = sorted(before) == sorted(now) and before != list(now)
    assert bool(changes) == (any(counts.values()) or reordered)
    for change in changes:
        for word, count in counts.items():
            assert (f"{count} sample{'s' * (count != 1)} {word} (" in change.new) == bool(count)
        assert ("another order" in change.new) == reordered


def test_equal_rows_in_another_place_are_no_difference(tmp_path: Path) -> None:
    assert told(tmp_path, [row(1), row(2)], [row(1), row(2)]) == []


def test_a_row_whose_columns_are_in_another_order_is_the_same_row(tmp_path: Path) -> None:
    turned = [dict(reversed(list(row(1).items())))]
    assert told(tmp_path, [row(1)], turned) == []


def test_other_examples_and_other_code_are_told_by_their_fields() -> None:
    spec = spec_of()
    works = prepare(spec, {"t": [row(1)]}, {})
    assert changed_inputs(inputs_of(works), works) == []
    stored = {"t": TaskInputs("digest", [{"q": "old"}]), "gone": TaskInputs("other")}
    fields = [change.field for change in changed_inputs(stored, works)]
    assert fields == ["tasks.t.solver", "tasks.t.fewshot"]


def shots_of(path: Path, stored: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    fewshot = {"path": str(path), "n": 2, "seed": 1, **fields}
    spec = spec_of(tasks=[task(fewshot=fewshot)])
    return [shot.row for shot in prepare(spec, {"t": [row(1)]}, {}, {"t": TaskInputs("", stored)})["t"].prompt.shots]


def test_stored_examples_stand_in_for_a_file_that_is_gone_and_for_no_other(tmp_path: Path) -> None:
    path = tmp_path / "shots.jsonl"
    path.write_text("".join(f'{{"q": "{letter}", "target": "{letter}"}}\n' for letter in "abcdef"))
    chosen = shots_of(path, [])
    assert len(chosen) == 2
    assert shots_of(path, [{"q": "stored", "target": "x"}] * 2) == chosen
    path.unlink()
    assert shots_of(path, chosen) == chosen
