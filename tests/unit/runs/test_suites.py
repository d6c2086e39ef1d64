"""A leaderboard of several tasks: one column per task, a mean over common tasks, and overall ranks with ties."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from holdfast.models import Request
from holdfast.records.samples import Answer, Sample
from holdfast.report import Suite
from holdfast.runs import Run, leaderboard_of
from holdfast.score import scorer
from holdfast.stats import summarise
from tests.e2e.commands import call
from tests.unit.engine.runs import Asked, given, go, model, rows

SIZES = {"easy": 40, "hard": 20, "long": 10}
RIGHT = {
    "strong": {"easy": 38, "hard": 18, "long": 9},
    "alike": {"easy": 37, "hard": 18, "long": 9},
    "weak": {"easy": 10, "hard": 4, "long": 1},
}


def replies(name: str, right: dict[str, dict[str, int]] = RIGHT) -> Any:
    async def reply(request: Request) -> str:
        task, text = str(request.messages[-1]["content"]).split(":", 1)
        number = int(text.split()[-1])
        return text if number < right[name][task] else "wrong"

    return reply


def asked(task: str, **fields: Any) -> Asked:
    def quality(sample: Sample, answer: Answer) -> float:
        return 3.0

    scorers = ["exact_match", scorer(quality, scale=(1, 5), name="a_grade")]
    return Asked(task, rows(SIZES[task]), scorers=scorers, fields={"prompt": f"{task}:{{input}}", **fields})


def suite_in(store: Path, *names: str) -> Suite:
    runs = [Run.find(str(store), name) for name in names or ("run-1",)]
    try:
        found = leaderboard_of(runs).suite
    finally:
        for run in runs:
            run.close()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("suite")
    go(made, given([asked(task) for task in SIZES], [model(name, replies(name)) for name in RIGHT]))
    return made


def test_tasks_weigh_equally_and_models_that_do_not_differ_share_a_rank(store: Path) -> None:
    suite = suite_in(store)
    assert [(each.task, each.scorer, each.left_out) for each in suite.tasks] == [
        (task, "exact_match", "") for task in SIZES
    ]
    assert [(each.rank, each.model) for each in suite.models] == [(1, "strong"), (1, "alike"), (3, "weak")]
    for each in suite.models:
        shares = {task: count / SIZES[task] for task, count in RIGHT[each.model].items()}
        assert each.scores == pytest.approx(shares)
        assert each.summary.mean == pytest.approx(sum(shares.values()) / 3)
        parts = [summarise([1.0] * n + [0.0] * (SIZES[task] - n)) for task, n in RIGHT[each.model].items()]
        errors = [part.standard_error or 0.0 for part in parts]
        assert each.summary.standard_error == pytest.approx(math.hypot(*errors) / 3)


def test_the_first_scorer_of_the_spec_is_the_headline(store: Path) -> None:
    """`a_grade` comes first in the alphabet, and would not be a share."""
    assert {each.scorer for each in suite_in(store).tasks} == {"exact_match"}


def test_one_task_is_no_suite(store: Path) -> None:
    with Run.find(str(store), "run-1") as run:
        assert leaderboard_of([run], task="easy").suite is None


def test_every_format_has_the_suite(store: Path) -> None:
    def shown(*options: str) -> str:
        done = call("leaderboard", "run-1", "--store", store, *options, cwd=store)
        assert done.code == 0, done.err
        return done.out

    table = shown().splitlines()
    assert table[0].split() == ["rank", "model", "mean", "±", "s.e.", "95%", "interval", "easy", "hard", "long"]
    assert table[1].split()[:3] == ["1", "strong", "0.9167"]
    assert table[1].split()[-3:] == ["0.9500", "0.9000", "0.9000"]
    assert "mean over tasks: 3 of 3 tasks that all models have completed" in shown()
    assert "| rank | model | mean |" in shown("--format", "md")
    assert r"rank & model & mean & ± s.e. & 95\% interval & easy & hard & long \\" in shown("--format", "latex")
    assert "<th>hard</th>" in shown("--format", "html")
    found = json.loads(shown("--json"))["suite"]
    assert [each["rank"] for each in found["models"]] == [1, 1, 3]
    assert found["tasks"][0] == {
        "task": "easy",
        "scorer": "exact_match",
        "scale": {"kind": "bool", "lowest": 0.0, "highest": 1.0},
        "left_out": "",
    }


def test_a_model_that_lacks_a_task_has_no_overall_rank(tmp_path: Path) -> None:
    tasks = [asked("easy"), asked("hard"), asked("long", models=["strong", "alike"])]
    go(tmp_path, given(tasks, [model(name, replies(name)) for name in RIGHT]))
    suite = suite_in(tmp_path)
    assert suite.counted == ["easy", "hard"]
    assert [(each.rank, each.model) for each in suite.models] == [(1, "strong"), (1, "alike"), (None, "weak")]
    weak = suite.models[-1]
    assert weak.lacks == ("long",)
    assert weak.summary.mean == pytest.approx((10 / 40 + 4 / 20) / 2)
    done = call("leaderboard", "run-1", "--store", tmp_path, cwd=tmp_path)
    assert "long: not part of the mean over tasks: 1 of 3 models has not completed it (weak)" in done.err
    assert "no overall rank for weak of run-1: long not completed" in done.err
    assert "mean of 2" in done.out
    assert "2 of 3 tasks" in done.out


def test_scores_that_are_no_shares_are_shown_but_not_averaged(tmp_path: Path) -> None:
    def quality(sample: Sample, answer: Answer) -> float:
        return 3.0

    graded = Asked("graded", rows(5), scorers=[scorer(quality, scale=(1, 5))], fields={"prompt": "easy:{input}"})
    go(tmp_path, given([asked("easy"), graded], [model("strong", replies("strong"))]))
    suite = suite_in(tmp_path)
    assert (suite.counted, suite.models[0].scores["graded"]) == (["easy"], 3.0)
    assert suite.tasks[1].left_out == "the scores of quality are not from 0 to 1"


def test_tasks_of_several_runs_are_one_suite_if_no_run_repeats_them(tmp_path: Path) -> None:
    models = [model(name, replies(name)) for name in RIGHT]
    for task in SIZES:
        go(tmp_path, given([asked(task)], models), run_id=task)
    suite = suite_in(tmp_path, *SIZES)
    assert [(each.rank, each.model, each.run) for each in suite.models] == [
        (1, "strong", "easy, hard, long"),
        (1, "alike", "easy, hard, long"),
        (3, "weak", "easy, hard, long"),
    ]
    go(tmp_path, given([asked("easy"), asked("hard")], models[:1]), run_id="again")
    suite = suite_in(tmp_path, *SIZES, "again")
    assert [each.run for each in suite.models if each.model == "strong"] == ["easy", "hard", "long", "again"]


def test_missing_scores_never_help(tmp_path: Path) -> None:
    """`half` is right wherever it answers, on the same keys as the others; its failures could undo its lead."""

    async def half(request: Request) -> str:
        text = str(request.messages[-1]["content"]).split(":", 1)[1]
        if int(text.split()[-1]) % 2:
            raise ValueError("no")
        return text

    fields = {"sample_retries": 0}
    middle = replies("middle", {"middle": {"easy": 20, "hard": 10}})
    models = [model("half", half), model("middle", middle)]
    go(tmp_path, given([asked("easy", **fields), asked("hard", **fields)], models))
    suite = suite_in(tmp_path)
    assert (suite.undecided, [each.rank for each in suite.models]) == (1, [1, 1])
    counted = {**fields, "counts": {"failed": "wrong"}}
    go(tmp_path, given([asked("easy", **counted), asked("hard", **counted)], models), run_id="wrong")
    assert [each.summary.mean for each in suite_in(tmp_path, "wrong").models] == [0.5, 0.5]
