"""`holdfast compare`: what changed, on the keys that both have."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.commands import call, write_spec

SHIFTED = {"options": {"reply": "9"}}


def made(folder: Path, run_id: str, rows: int = 6, **changes: Any) -> None:
    path = write_spec(folder, rows, **changes)
    assert call("run", path, "--id", run_id, "--store", folder / "runs", cwd=folder).code == 0


def compared(folder: Path, *arguments: str) -> dict[str, Any]:
    done = call("compare", *arguments, "--store", folder / "runs", "--json", cwd=folder)
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json()
    return found


def test_two_runs_are_compared_on_the_keys_that_both_have(tmp_path: Path) -> None:
    made(tmp_path, "one", 6)
    made(tmp_path, "two", 4, model=SHIFTED)
    found = compared(tmp_path, "one", "two")
    (numeric,) = found["comparisons"]
    assert (numeric["scorer"], numeric["common"], numeric["only_first"], numeric["only_second"]) == ("numeric", 4, 2, 0)
    changed = {shift["sample_id"]: (shift["output_before"], shift["output_after"]) for shift in numeric["changed"]}
    assert set(changed.values()) <= {("8", "9")}
    assert numeric["higher"] + numeric["lower"] == len(changed)
    assert numeric["equal"] == 4 - len(changed)
    assert found["warnings"] == []


def test_rows_that_differ_are_told(tmp_path: Path) -> None:
    made(tmp_path, "one")
    path = write_spec(tmp_path)
    data = tmp_path / "sums.jsonl"
    first, *rest = data.read_text().splitlines()
    data.write_text("\n".join([first.replace('"question": "', '"question": "0 + '), *rest]) + "\n")
    assert call("run", path, "--id", "two", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    (doubt,) = compared(tmp_path, "one", "two")["warnings"]
    assert "1 sample of one id have other rows" in doubt


def test_equal_runs_show_no_change_and_no_doubt(tmp_path: Path) -> None:
    made(tmp_path, "one")
    made(tmp_path, "two")
    found = compared(tmp_path, "one", "two")
    assert found["warnings"] == []
    assert [each["changed"] for each in found["comparisons"]] == [[]]


def test_other_scorers_of_the_same_name_are_told(tmp_path: Path) -> None:
    made(tmp_path, "one")
    made(tmp_path, "two", task={"scorers": [{"numeric": {"tolerance": 100}}]})
    found = compared(tmp_path, "one", "two")
    assert any("the scorer numeric is not the same" in doubt for doubt in found["warnings"])


def test_variants_and_models_of_one_run_are_compared(tmp_path: Path) -> None:
    path = write_spec(tmp_path, 5)
    spec = yaml.safe_load(path.read_text())
    spec["tasks"][0]["prompt"] = {"short": "{question}", "long": "Think. {question}"}
    spec["models"].append({"name": "nine", "provider": "mock", **SHIFTED})
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    assert call("run", path, "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    found = [
        (each["first"]["task"], each["first"]["model"], each["second"]["task"], each["second"]["model"])
        for each in compared(tmp_path, "r")["comparisons"]
    ]
    assert found == [
        ("sums+short", "arith", "sums+short", "nine"),
        ("sums+long", "arith", "sums+long", "nine"),
        ("sums+short", "arith", "sums+long", "arith"),
        ("sums+short", "nine", "sums+long", "nine"),
    ]


def test_a_person_sees_both_answers_of_what_changed(tmp_path: Path) -> None:
    made(tmp_path, "one")
    made(tmp_path, "two", model=SHIFTED)
    done = call("compare", "one", "two", "--store", tmp_path / "runs", cwd=tmp_path)
    assert done.code == 0
    lines = done.out.splitlines()
    assert "difference" in lines[0]
    assert "    - 8" in lines
    assert "    + 9" in lines


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("one",), "name a second run"),
        (("one", "two", "three"), "one run, for its models and variants, or two"),
        (("one", "two", "--scorer", "nope"), "--scorer nope"),
        (("one", "nope"), "nope"),
    ],
)
def test_what_cannot_be_compared_is_told(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    made(tmp_path, "one")
    made(tmp_path, "two")
    done = call("compare", *arguments, "--store", tmp_path / "runs", cwd=tmp_path)
    assert (done.code, said in done.err) == (2, True), done.said
