"""Declared scales through the real command: mixed scales are refused, and a declaration costs no second scoring."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.runs import Run
from holdfast.runs.store.lookup import run_location
from holdfast.score import scales_of
from holdfast.stats import BOOL, Scale
from tests.e2e.commands import Done, call, run

OWN = """
def rate(sample, answer):
    with open("rate.calls", "a") as file:
        file.write("x")
    return 2

def is_there(sample, answer) -> bool:
    return bool(answer.text)
"""
MIXED = {"all_of": {"of": ["exact_match", {"own_scales:rate": {"scale": [1, 5]}}]}}
HINT = 'scorer rate: declare its scale, @scorer(scale=(1, 5)) or "bool", so that intervals stay on it'


def write(folder: Path, *scorers: Any) -> None:
    (folder / "own_scales.py").write_text(OWN)
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"id": str(n), "q": "x", "target": "x"}) + "\n" for n in range(3))
    )
    task = {"name": "t", "dataset": {"path": "rows.jsonl"}, "prompt": "{q}", "scorers": list(scorers)}
    spec = {"experiment": "e", "models": [{"name": "parrot", "provider": "mock"}], "tasks": [task]}
    (folder / "eval.yaml").write_text(yaml.safe_dump(spec))


def start(folder: Path, *more: str) -> Done:
    return run("run", "eval.yaml", "--id", "r", "--store", "runs", *more, cwd=folder)


def calls(folder: Path) -> int:
    return (folder / "rate.calls").stat().st_size


def scale_in(folder: Path, score: str) -> Scale | None:
    with Run(run_location(str(folder / "runs"), "e", "r")) as found:
        assert len(found.evaluations()) == 1
        return scales_of(found.scorer_identities(), "t").of(score)


def test_different_scales_are_refused_before_a_run_begins(tmp_path: Path) -> None:
    write(tmp_path, "exact_match", MIXED)
    sentence = (
        "eval.yaml: tasks[0].scorers[1]: all_of combines different scales (exact_match: bool, rate: 1 to 5); make a "
        "part right or wrong with at_least: {of: …, value: …}, or map each scale to 0..1 with normalise: true\n"
    )
    for done in (start(tmp_path), run("check", "eval.yaml", cwd=tmp_path)):
        assert (done.code, done.err.removeprefix("holdfast: ")) == (2, sentence)
    assert not (tmp_path / "runs").exists()
    write(tmp_path, {"all_of": {**MIXED["all_of"], "normalise": True}})
    assert start(tmp_path).code == 0
    assert scale_in(tmp_path, "all_of") == Scale("range", 0.0, 1.0)


def test_a_run_that_an_earlier_version_began_with_different_scales_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, MIXED)
    monkeypatch.syspath_prepend(tmp_path)
    with monkeypatch.context() as earlier:
        earlier.setattr("holdfast.runs.execution.preparation.mixed_scales", lambda scorer: "")
        assert call("run", "eval.yaml", "--id", "r", "--store", "runs", "--limit", "1", cwd=tmp_path).code == 0
    assert run("resume", "r", "--store", "runs", cwd=tmp_path).code == 0
    extended = run("extend", "r", "--store", "runs", "--limit", "2", cwd=tmp_path)
    assert (extended.code, calls(tmp_path)) == (0, 2), extended.err
    forked = run("fork", "r", "--id", "f", "--store", "runs", cwd=tmp_path)
    assert forked.code == 0, forked.err
    assert scale_in(tmp_path, "all_of") == Scale("range", 0.0, 5.0)
    another = {"any_of": {"of": MIXED["all_of"]["of"]}}
    refused = run("score", "r", "--scorers", json.dumps(another), "--store", "runs", cwd=tmp_path)
    assert refused.code == 2
    assert "any_of combines different scales" in refused.err


def test_a_scale_that_is_declared_later_scores_nothing_again(tmp_path: Path) -> None:
    write(tmp_path, "own_scales:rate", "own_scales:is_there")
    assert start(tmp_path).code == 0
    assert (calls(tmp_path), scale_in(tmp_path, "rate"), scale_in(tmp_path, "is_there")) == (3, None, BOOL)

    write(tmp_path, {"own_scales:rate": {"scale": [1, 5]}}, "own_scales:is_there")
    resumed = start(tmp_path)
    assert resumed.code == 0, resumed.err
    assert (calls(tmp_path), scale_in(tmp_path, "rate")) == (3, Scale("range", 1.0, 5.0))

    wider = ("--scorers", '{"own_scales:rate": {scale: [0, 9]}}', "--scorers", "own_scales:is_there")
    assert run("score", "r", *wider, "--store", "runs", cwd=tmp_path).code == 0
    assert (calls(tmp_path), scale_in(tmp_path, "rate")) == (3, Scale("range", 0.0, 9.0))

    (journal,) = tmp_path.rglob("journal")
    before = sum(path.stat().st_size for path in journal.iterdir())
    assert run("score", "r", *wider, "--store", "runs", cwd=tmp_path).code == 0
    assert sum(path.stat().st_size for path in journal.iterdir()) == before


def test_a_value_off_the_declared_scale_fails(tmp_path: Path) -> None:
    write(tmp_path, {"own_scales:rate": {"scale": [3, 5]}})
    done = start(tmp_path)
    assert "returned 2, which is not on its scale, 3 to 5; correct the value, or the declared scale" in done.said


def test_check_mentions_a_scorer_without_a_scale_once(tmp_path: Path) -> None:
    write(tmp_path, "own_scales:rate", "own_scales:is_there", {"at_least": {"of": "own_scales:rate", "value": 2}})
    checked = run("check", "eval.yaml", cwd=tmp_path)
    assert (checked.code, checked.err) == (0, f"warning: eval.yaml: {HINT}\n")
    assert "eval.yaml can be run" in checked.out
    assert run("check", "eval.yaml", "--json", cwd=tmp_path).json()["warnings"] == [HINT]
    assert HINT not in start(tmp_path).err  # the report says so if it matters: the scorer may give bools
