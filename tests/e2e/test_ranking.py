"""`holdfast leaderboard`: means with intervals, and ranks that respect ties."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types

from tests.e2e.commands import Done, call, run
from tests.e2e.known_answers import marks, once, run_known, write_known

CLOSE = 1e-9
GOOD = once(*range(28), of=30)
NEARLY = once(*range(2, 28), of=30)
BAD = once(0, 1, 2, of=30)


def ranked(folder: Path, *arguments: str) -> Done:
    return call("leaderboard", *arguments, "--store", folder / "runs", cwd=folder)


def boards(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done = ranked(folder, *arguments, "--json")
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = done.json()["boards"]
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models in one run; one of them has a price."""
    folder = tmp_path_factory.mktemp("models")
    said = {"one": BAD, "two": GOOD, "three": NEARLY}
    path = write_known(folder, said, {"bad": "one", "good": "two", "nearly": "three"}, scorers=["numeric", "talk:mark"])
    spec = yaml.safe_load(path.read_text())
    spec["models"][1]["price"] = {"input": 1.0, "output": 2.0}
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    assert call("run", path, "--id", "r", "--store", folder / "runs", cwd=folder).code == 0
    return folder


def test_a_rank_is_one_and_the_number_of_those_that_are_significantly_better(store: Path) -> None:
    board = boards(store, "r", "--scorer", "numeric")[0]
    assert (board["task"], board["scorer"], board["common_min"]) == ("quiz", "numeric", 30)
    assert [(each["model"], each["rank"]) for each in board["ranked"]] == [("good", 1), ("nearly", 1), ("bad", 3)]
    values = {name: np.ravel(list(marks(store, "r", model=name).values())) for name in ("bad", "good", "nearly")}
    for each in board["ranked"]:
        mine = values[each["model"]]
        interval = scipy_stats.binomtest(int(mine.sum()), 30).proportion_ci(method="wilson")
        assert each["summary"]["mean"] == pytest.approx(mine.mean(), abs=CLOSE)
        assert [each["summary"]["low"], each["summary"]["high"]] == pytest.approx([*interval], abs=CLOSE)
        assert (each["summary"]["n"], each["missing"]) == (30, 0)
    ps = {
        pair: scipy_stats.binomtest(int((values[pair[0]] < values[pair[1]]).sum()), int(differ)).pvalue
        for pair in (("bad", "good"), ("bad", "nearly"), ("good", "nearly"))
        for differ in [(values[pair[0]] != values[pair[1]]).sum()]
    }
    assert ps["good", "nearly"] > 0.05
    assert max(ps["bad", "good"], ps["bad", "nearly"]) * 3 < 0.05  # also adjusted


def test_what_is_lower_by_chance_shares_a_rank_whatever_the_order_of_models(tmp_path: Path) -> None:
    said = {"one": once(0, 1, of=4), "two": once(0, 1, 2, of=4), "three": once(3, of=4)}
    run_known(tmp_path, said)
    (board,) = boards(tmp_path, "one", "two", "three")
    assert [(each["run"], each["rank"]) for each in board["ranked"]] == [("two", 1), ("one", 1), ("three", 1)]


def test_models_of_several_runs_are_ranked_on_the_keys_that_both_have(tmp_path: Path) -> None:
    run_known(tmp_path, {"one": BAD, "two": GOOD})
    (tmp_path / "other").mkdir()
    few = {sample: texts for sample, texts in NEARLY.items() if sample < "s20"}
    path = write_known(tmp_path / "other", {"three": few}, {"m": "three"})
    done = run("run", path, "--id", "three", "--store", tmp_path / "runs", cwd=tmp_path / "other")
    assert done.code == 0, done.err  # in a process of its own: this one has imported the first run's `talk`
    (board,) = boards(tmp_path, "one", "two", "three")
    assert board["common_min"] == 20
    assert [(each["run"], each["rank"], each["summary"]["n"]) for each in board["ranked"]] == [
        ("two", 1, 20),
        ("three", 1, 20),
        ("one", 3, 20),
    ]
    told = ranked(tmp_path, "one", "two", "three").out.splitlines()
    assert told[0].split() == ["task", "scorer", "rank", "model", "run", "mean", "95%", "interval", "n"]


def test_a_table_has_costs_where_they_are_known(store: Path) -> None:
    head, good, nearly, *_ = ranked(store, "r", "--scorer", "numeric").out.splitlines()
    assert head.split() == ["task", "scorer", "rank", "model", "mean", "95%", "interval", "n", "cost"]
    assert good.split()[:5] == ["quiz", "numeric", "1", "good", "0.9333"]
    assert ("$" in good, "$" in nearly) == (True, False)


def test_it_can_be_written_as_markdown_and_csv(store: Path) -> None:
    lines = ranked(store, "r", "--format", "md", "--scorer", "numeric").out.splitlines()
    assert lines[1].startswith("| --- | --- | --- | --- | --: |")
    assert lines[2].startswith("| quiz | numeric | 1 | good | 0.9333 |")
    rows = list(csv.DictReader(io.StringIO(ranked(store, "r", "--format", "csv").out)))
    assert [row["scorer"] for row in rows[:3]] == ["mark"] * 3
    assert [(row["scorer"], row["rank"], row["model"], row["n"]) for row in rows[3:]] == [
        ("numeric", "1", "good", "30"),
        ("numeric", "1", "nearly", "30"),
        ("numeric", "3", "bad", "30"),
    ]
    assert float(rows[3]["mean"]) == pytest.approx(28 / 30)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nope",), "nope"),
        (("r", "--task", "quizz"), "did you mean 'quiz'?"),
        (("r", "--scorer", "nope"), "--scorer nope"),
        (("r", "--format", "cvs"), "did you mean 'csv'?"),
    ],
)
def test_what_cannot_be_ranked_is_reported(store: Path, arguments: tuple[str, ...], said: str) -> None:
    done = ranked(store, *arguments)
    assert (done.code, said in done.err) == (2, True), done.said
