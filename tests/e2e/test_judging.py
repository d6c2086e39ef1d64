"""Judges in whole runs: their calls are durable, a failure of theirs is no score, and nothing is paid for twice."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import Entry, Reader
from tests.e2e.commands import call, environment, exported, run, shown, write_spec

JUDGE = '''
"""A judge that writes down what it is asked, dies, and mumbles, as the files beside it say."""
import json, os, pathlib
import holdfast.models

async def judge(request):
    asked = request.messages[-1]["content"]
    with open("asked.txt", "a") as file:
        file.write(json.dumps(request.messages) + "\\n")
    count = len(pathlib.Path("asked.txt").read_text().splitlines())
    if pathlib.Path("die-at").exists() and count == int(pathlib.Path("die-at").read_text()):
        os.kill(os.getpid(), 9)
    if pathlib.Path("down").exists():
        raise holdfast.models.ModelError("auth", "the judge's key is wrong")
    if pathlib.Path("mumble").exists():
        return "I would rather not say."
    return json.dumps({"criterion": {"reason": "seen", "score": 4}})
'''
OWN = """
import holdfast

@holdfast.scorer
async def verdict(sample, answer, ctx):
    said = await ctx.generate(f"Is {answer.text} right?", role="judge")
    return said.json()["criterion"]["score"]
"""
RUBRIC = {"rubric": {"criteria": "It is right."}}


def staged(folder: Path, rows: int = 6, **changes: Any) -> Path:
    (folder / "bench.py").write_text(JUDGE)
    given: dict[str, Any] = {
        "roles": {"judge": {"provider": "bench:judge"}},
        "task": {"scorers": ["numeric", RUBRIC]},
    } | changes
    write_spec(folder, rows, **given)
    return folder / "runs"


def begin(folder: Path, *more: str) -> Any:
    return run("run", "eval.yaml", "--id", "r", "--store", folder / "runs", *more, cwd=folder)


def asked(folder: Path) -> list[str]:
    path = folder / "asked.txt"
    return path.read_text().splitlines() if path.exists() else []


def steps_of_judges(store: Path) -> list[dict[str, Any]]:
    (journal,) = store.rglob("journal")
    found = [
        json.loads(bytes(each.line.d))
        for each in Reader(str(journal)).read()
        if isinstance(each, Entry) and each.line.t == "step"
    ]
    return [each for each in found if each["scope"].startswith("score/")]


def test_a_judge_scores_and_its_calls_are_steps_of_the_evaluation(tmp_path: Path) -> None:
    store = staged(tmp_path)
    done = begin(tmp_path)
    assert done.code == 0, done.err
    assert [each["scores"]["rubric"] for each in exported("r", store)] == [4.0] * 6
    steps = steps_of_judges(store)
    assert len(steps) == len(asked(tmp_path)) == 6
    (evaluation,) = {each["scope"].split("/")[1] for each in steps}
    assert list(shown("r", store)["evaluations"]) == [evaluation]
    assert {each["asked"]["role"] for each in steps} == {"judge"}
    assert "rubric" in done.out


@pytest.mark.parametrize("moment", [3, *(pytest.param(moment, marks=pytest.mark.long) for moment in (1, 6))])
def test_a_kill_while_judges_are_asked_pays_for_no_verdict_twice(tmp_path: Path, moment: int) -> None:
    store = staged(tmp_path)
    (tmp_path / "die-at").write_text(str(moment))
    assert begin(tmp_path).code == -9
    (tmp_path / "die-at").unlink()
    before = {each["asked"]["new"][-1]["content"] for each in steps_of_judges(store)}
    first = len(asked(tmp_path))
    done = begin(tmp_path)
    assert done.code == 0, done.err
    again = [json.loads(line)[-1]["content"] for line in asked(tmp_path)[first:]]
    assert not before & set(again), "a verdict that was recorded was asked for again"
    assert [each["scores"]["rubric"] for each in exported("r", store)] == [4.0] * 6
    assert Counter(each["o"] for each in steps_of_judges(store) if "answer" in each) == dict.fromkeys(range(6), 1)


def test_a_judge_that_cannot_be_reached_is_a_failure_that_a_resume_repairs(tmp_path: Path) -> None:
    store = staged(tmp_path)
    (tmp_path / "down").touch()
    done = begin(tmp_path)
    assert done.code == 1, done.said
    assert "the judge's key is wrong" in done.said
    assert {json.dumps(each["scores"]["rubric"]) for each in exported("r", store)} == {
        json.dumps({"failure": {"message": "the judge's key is wrong"}})
    }
    assert [each["status"] for each in exported("r", store)] == ["finished"] * 6
    (tmp_path / "down").unlink()
    assert begin(tmp_path).code == 0
    assert [each["scores"]["rubric"] for each in exported("r", store)] == [4.0] * 6
    assert {each["scope"].split("/")[2] for each in steps_of_judges(store) if "answer" in each} == {"2"}
    assert shown("r", store)["steps"]["live"] == 6 + 6 + 6, "answers, then failed and good verdicts"


def test_a_judge_that_mumbles_is_asked_again_then_a_failure_and_never_a_zero(tmp_path: Path) -> None:
    store = staged(tmp_path, rows=2)
    (tmp_path / "mumble").touch()
    done = begin(tmp_path)
    assert done.code == 1
    assert len(asked(tmp_path)) == 2 * 3
    assert "the judge 'judge' was asked 3 times, and there is no JSON object in it" in done.said
    assert all("failure" in each["scores"]["rubric"] for each in exported("r", store))


def test_judges_score_a_run_that_has_its_answers_without_asking_the_model(tmp_path: Path) -> None:
    store = staged(tmp_path, task={"scorers": ["numeric"]})
    assert begin(tmp_path).code == 0
    (tmp_path / "mine.py").write_text(OWN)
    done = run("score", "r", "--scorers", "mine.py", "--store", store, cwd=tmp_path)
    assert done.code == 0, done.err
    assert len(asked(tmp_path)) == 6
    report = json.loads(call("report", "r", "--store", store, "--json", cwd=tmp_path).out)
    assert "verdict" in json.dumps(report)
    again = run("score", "r", "--scorers", "mine.py", "--store", store, cwd=tmp_path)
    assert again.code == 0
    assert len(asked(tmp_path)) == 6, "the same evaluation asks nothing more"


def test_scoring_in_a_pipe_shows_how_far_it_is(tmp_path: Path) -> None:
    staged(tmp_path, task={"scorers": ["numeric"]})
    begin(tmp_path)
    (tmp_path / "rubric.yaml").write_text(json.dumps([RUBRIC]))
    done = run("score", "r", "--scorers", "rubric.yaml", cwd=tmp_path)
    assert done.code == 0, done.err
    first, last, *_ = done.err.splitlines()
    assert first == "scoring 6 answers of sums/r"
    assert re.fullmatch(r"6/6  100%  .*took .*  rubric 4\.00  0 failed", last)


SCRIPT = """
import holdfast
run = holdfast.open_run("r", store="runs")
judge = {"provider": "openai", "model": "j", "base_url": "http://127.0.0.1:9", "api_key_env": "", **LIMITS}
run.score([{"rubric": {"criteria": "It is right."}}], roles={"judge": judge}QUIET)
"""


@pytest.mark.parametrize("quiet", ["", ", quiet=True"], ids=["", "quiet"])
def test_a_program_is_informed_that_scoring_waits_for_the_judge(quiet: str, tmp_path: Path) -> None:
    """The first message is due after 3 seconds without an answer; the server is given up after 12."""
    staged(tmp_path, task={"scorers": ["numeric"]})
    begin(tmp_path)
    script = SCRIPT.replace("**LIMITS", '"first_contact_seconds": 12.0').replace("QUIET", quiet)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = "0/6 done, none finished for " in done.stderr
    assert said == (not quiet), done.stderr
    if said:
        assert "judge: " in done.stderr


def test_another_judge_is_another_evaluation_and_sends_the_evaluated_model_nothing(tmp_path: Path) -> None:
    store = staged(tmp_path)
    assert begin(tmp_path).code == 0
    other = json.dumps({"temperature": 1})
    done = begin(tmp_path, "--set", f"roles.judge.params={other}")
    assert done.code == 0, done.err
    assert len(asked(tmp_path)) == 12
    assert len(shown("r", store)["evaluations"]) == 2
    assert len(steps_of_judges(store)) == 12
    assert shown("r", store)["steps"]["live"] == 6 + 12


def test_a_role_that_a_solver_uses_belongs_to_the_answers(tmp_path: Path) -> None:
    staged(tmp_path, task={"solver": {"best_of": {"n": 2, "role": "judge"}}, "scorers": ["numeric", RUBRIC]})
    assert begin(tmp_path).code in (0, 1)
    other = json.dumps({"temperature": 1})
    done = begin(tmp_path, "--set", f"roles.judge.params={other}")
    assert done.code == 3
    assert "roles.judge.params" in done.err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"roles": {}},
            "eval.yaml: tasks[0].scorers[1]: rubric calls the role 'judge', which has no model; add to eval.yaml, at "
            "the top level, the line `roles: {judge: openai/MODEL}`, or use --set roles.judge=openai/MODEL",
        ),
        (
            {"roles": {"jugde": {"provider": "bench:judge"}}},
            "rubric calls the role 'judge', which has no model (there are: jugde); add to eval.yaml, under `roles:`, "
            "the line `judge: openai/MODEL`",
        ),
    ],
)
def test_a_judge_that_nobody_described_is_refused_before_anything_is_asked(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    store = staged(tmp_path, **changes)
    done = begin(tmp_path)
    assert done.code == 2
    assert problem in done.err
    assert not store.exists()
