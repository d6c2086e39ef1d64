"""A key's digest changes when, and only when, what will be asked changes."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.spec import Spec, build_spec
from tests.unit.plan.plans import ROWS, model, plan_of, spec_of, task

_SOLVER = "async def solve(sample, ctx, turns=1):\n    return {said!r}\n"


def digests(folder: Path, spec: Spec | None = None, rows: Any = None) -> list[str]:
    return plan_of(folder, spec or spec_of(), rows).digests


RESULT: dict[str, dict[str, Any]] = {
    "prompt": {"tasks": [task(prompt="Compute {q}")]},
    "system": {"tasks": [task(system="Be exact.")]},
    "messages": {"tasks": [task(messages=[{"role": "user", "content": "Hello"}])]},
    "template": {"tasks": [task(template="jinja")]},
    "solver arguments": {"tasks": [task(solver={"tests.unit.plan.own_solver:twice": {"times": 3}})]},
    "provider": {"models": [model(provider="openai")]},
    "model": {"models": [model(model="other")]},
    "params": {"models": [model(params={"temperature": 0.5})]},
    "options": {"models": [model(options={"reply": "x"})]},
    "seed": {"seed": 1},
}

OTHER: dict[str, dict[str, Any]] = {
    "scorers": {"tasks": [task(scorers=["numeric"])]},
    "base_url": {"models": [model(base_url="http://127.0.0.1:1/v1")]},
    "api_key_env": {"models": [model(api_key_env="KEY")]},
    "headers": {"models": [model(headers={"X": "y"})]},
    "max_connections": {"models": [model(max_connections=1)]},
    "timeout_seconds": {"models": [model(timeout_seconds=1)]},
    "max_samples": {"tasks": [task(max_samples=1)]},
    "concurrency": {"concurrency": {"samples": 1}},
    "tags": {"tags": ["x"]},
    "description": {"description": "x"},
    "experiment": {"experiment": "x"},
    "progress_file": {"progress_file": "x"},
    "fail_on_error": {"fail_on_error": 1},
    "roles": {"roles": {"judge": {"provider": "mock"}}},
    "another model": {"models": [model(), model("n")]},
    "more repeats": {"tasks": [task(repeats=2)]},
    "a limit": {"limit": 1},
}


@pytest.mark.parametrize("name", RESULT)
def test_what_changes_an_answer_changes_every_digest(tmp_path: Path, name: str) -> None:
    before = digests(tmp_path / "one")
    after = digests(tmp_path / "two", spec_of(**RESULT[name]))
    assert len(before) == len(after) == 2
    assert not set(before) & set(after)


@pytest.mark.parametrize("name", OTHER)
def test_what_changes_no_answer_changes_no_digest(tmp_path: Path, name: str) -> None:
    before = plan_of(tmp_path / "one", spec_of())
    after = plan_of(tmp_path / "two", spec_of(**OTHER[name]))
    was = dict(zip(before.keys, before.digests, strict=True))
    now = dict(zip(after.keys, after.digests, strict=True))
    common = was.keys() & now.keys()
    assert common
    assert {key: was[key] for key in common} == {key: now[key] for key in common}


def test_solver_arguments_are_told_apart_from_each_other(tmp_path: Path) -> None:
    made = [
        digests(
            tmp_path / str(times), spec_of(tasks=[task(solver={"tests.unit.plan.own_solver:twice": {"times": times}})])
        )
        for times in (1, 2)
    ]
    assert not set(made[0]) & set(made[1])


def test_another_row_changes_its_own_digest_only(tmp_path: Path) -> None:
    before = digests(tmp_path / "one")
    after = digests(tmp_path / "two", rows={"t": [ROWS[0], {**ROWS[1], "target": "5"}]})
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)


def test_the_order_of_columns_and_of_rows_changes_no_digest(tmp_path: Path) -> None:
    before = plan_of(tmp_path / "one", spec_of())
    turned = [dict(reversed(list(row.items()))) for row in reversed(ROWS)]
    after = plan_of(tmp_path / "two", spec_of(), {"t": turned})
    assert dict(zip(before.keys, before.digests, strict=True)) == dict(zip(after.keys, after.digests, strict=True))


def test_repeats_of_a_row_have_digests_of_their_own(tmp_path: Path) -> None:
    assert len(set(digests(tmp_path, spec_of(tasks=[task(repeats=3)])))) == 6


def test_the_same_question_to_two_models_has_two_digests(tmp_path: Path) -> None:
    spec = spec_of(models=[model("x", model="one"), model("y", model="two")])
    assert len(set(digests(tmp_path, spec))) == 4


def test_another_input_column_changes_the_digest_if_it_is_what_is_asked(tmp_path: Path) -> None:
    rows = {"t": [{"id": "a", "short": "2+2", "long": "Please add 2 and 2", "target": "4"}]}
    asked = [
        digests(tmp_path / column, spec_of(tasks=[{"name": "t", "dataset": {"input": column}}]), rows)
        for column in ("short", "long")
    ]
    assert asked[0] != asked[1]


def test_another_example_changes_the_digest_and_another_path_does_not(tmp_path: Path) -> None:
    def with_shots(name: str, answer: str, **fewshot: Any) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        rows = [{"id": "s", "q": "0+0", "target": answer}, {"id": "r", "q": "9+9", "target": "18"}]
        (folder / "shots.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        shots = {"path": str(folder / "shots.jsonl"), "n": 2, "seed": 1, **fewshot}
        return digests(folder, spec_of(tasks=[task(fewshot=shots)]))

    first = with_shots("one", "0")
    assert with_shots("two", "0") == first
    assert with_shots("three", "none") != first
    assert with_shots("four", "0", n=1) != first
    assert digests(tmp_path / "five") != first


def test_another_path_to_the_same_rows_changes_no_digest(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        made.append(digests(tmp_path / name, spec_of(tasks=[task(dataset={"path": str(path)})])))
    assert made[0] == made[1]


def test_other_solver_code_changes_the_digest_and_the_same_code_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = []
    for number, said in enumerate(("yes", "yes", "no")):
        (tmp_path / "their_solver.py").write_text(_SOLVER.format(said=said))
        sys.modules.pop("their_solver", None)
        importlib.invalidate_caches()
        made.append(digests(tmp_path / str(number), spec_of(tasks=[task(solver="their_solver:solve")])))
    sys.modules.pop("their_solver", None)
    assert made[0] == made[1]
    assert not set(made[1]) & set(made[2])


def test_a_default_that_is_spelled_out_changes_no_digest(tmp_path: Path) -> None:
    raw = {"models": [model()], "tasks": [task()], "defaults": {"params": {"temperature": 0.5}}}
    spelled = {"models": [model(params={"temperature": 0.5})], "tasks": [task()]}
    assert digests(tmp_path / "one", build_spec(raw)) == digests(tmp_path / "two", build_spec(spelled))
