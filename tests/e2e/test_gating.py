"""`holdfast gate`: exit 7 unless a run is good enough, and 2 if that cannot be judged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types
from statsmodels.stats.power import TTestPower  # type: ignore[import-untyped]  # no types

from tests.e2e.commands import Done, call, write_spec
from tests.e2e.known_answers import marks, once, run_known, write_known
from tests.tango import tango_interval

CLOSE = 1e-9
NEAR = 1e-6
SAID = {
    "one": once(*range(30), of=40),
    "two": once(*range(1, 31), of=40),  # as often right, twice on others
    "three": once(*range(10), of=40),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gates")
    run_known(folder, SAID)
    return folder


def gated(folder: Path, *arguments: str) -> Done:
    return call("gate", *arguments, "--store", folder / "runs", cwd=folder)


def verdict(folder: Path, code: int, *arguments: str) -> dict[str, Any]:
    done = gated(folder, *arguments, "--json")
    assert done.code == code, done.said
    told = done.json()
    assert told["passed"] == (code == 0)
    (found,) = told["verdicts"]
    assert isinstance(found, dict)
    return found


def steps(folder: Path, run: str, baseline: str = "one") -> Any:
    mine, theirs = (np.ravel(list(marks(folder, each).values())) for each in (run, baseline))
    return mine - theirs


def test_a_difference_whose_whole_interval_is_above_the_margin_passes(store: Path) -> None:
    found = verdict(store, 0, "two", "--baseline", "one", "--margin", "0.12")
    interval = tango_interval(1, 1, 40)
    assert [found["interval"]["low"], found["interval"]["high"]] == pytest.approx(interval, abs=NEAR)
    assert (found["outcome"], found["bound"], found["common"], found["samples"]) == ("passed", -0.12, 40, 40)
    assert interval[0] > -0.12


def test_a_difference_whose_whole_interval_is_below_it_is_worse(store: Path) -> None:
    found = verdict(store, 7, "three", "--baseline", "one", "--margin", "0.1", "--if-unsure", "pass")
    assert (found["outcome"], tango_interval(0, 20, 40)[1] < -0.1) == ("worse", True)
    assert (found["mean"], found["baseline"]) == (pytest.approx(0.25), pytest.approx(0.75))
    done = gated(store, "three", "--baseline", "one", "--margin", "0.1")
    assert "not passed: the difference to the baseline is below -0.1 at confidence 0.95" in done.out


def test_not_enough_data_fails_unless_it_may_pass_and_what_is_needed_is_reported(store: Path) -> None:
    arguments = ("two", "--baseline", "one", "--margin", "0.01")
    found = verdict(store, 7, *arguments)
    spread = steps(store, "two").std(ddof=1)
    usual = TTestPower().solve_power(effect_size=0.01 / spread, alpha=0.05, power=0.8)
    assert found["outcome"] == "unsure"
    assert usual < found["samples_needed"] < 1.25 * usual  # a score interval needs a few more
    told = f"about {found['samples_needed']} samples would decide with power 0.8, "
    assert f"{told}if the difference to the baseline stays 0;" in gated(store, *arguments).out
    lenient = verdict(store, 0, *arguments, "--if-unsure", "pass")
    assert (lenient["outcome"], lenient["passed"]) == ("unsure", True)


def test_confidence_is_that_of_the_interval(store: Path) -> None:
    arguments = ("two", "--baseline", "one", "--margin", "0.06")
    low = {level: tango_interval(1, 1, 40, level)[0] for level in (0.5, 0.95)}
    assert low[0.95] < -0.06 < low[0.5]
    assert verdict(store, 0, *arguments, "--confidence", "0.5")["interval"]["low"] == pytest.approx(low[0.5], abs=NEAR)
    assert verdict(store, 7, *arguments)["interval"]["low"] == pytest.approx(low[0.95], abs=NEAR)


def test_identical_scores_are_not_certainty_unless_they_are_accepted(store: Path) -> None:
    same = ("one", "--baseline", "one", "--margin")
    found = verdict(store, 7, *same, "0.001")
    assert (found["outcome"], found["interval"]["mean"], found["identical"]) == ("unsure", 0.0, True)
    assert found["samples_needed"] == pytest.approx(1.96**2 / 0.001, rel=0.01)
    assert verdict(store, 7, *same, "0")["samples_needed"] is None
    assert verdict(store, 0, *same, "0.1")["outcome"] == "passed"  # 40 ties are enough for a margin of 0.1
    assert verdict(store, 0, *same, "0", "--identical-passes")["outcome"] == "passed"
    shown = gated(store, *same, "0", "--identical-passes").out
    assert "passed because of --identical-passes: every score is the same (40 samples)" in shown
    assert "or --identical-passes" in gated(store, *same, "0").out


@pytest.mark.parametrize(("at_least", "outcome"), [(0.5, "passed"), (0.75, "unsure"), (0.95, "worse")])
def test_a_number_is_reached_missed_or_not_decided(store: Path, at_least: float, outcome: str) -> None:
    found = verdict(store, 0 if outcome == "passed" else 7, "one", "--at-least", str(at_least))
    interval = scipy_stats.binomtest(30, 40).proportion_ci(method="exact")
    assert [found["interval"]["low"], found["interval"]["high"]] == pytest.approx([*interval], abs=CLOSE)
    assert (found["outcome"], found["baseline"]) == (outcome, None)


def test_keys_without_a_score_are_no_pass(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(
        "import holdfast.models\n"
        "async def model(request):\n"
        "    if '1 + 7' in request.messages[-1]['content']:\n"
        "        raise holdfast.models.ModelError('bad_request', 'no')\n"
        "    return '8'\n"
    )
    path = write_spec(tmp_path, 5)
    assert call("run", path, "--id", "whole", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    path = write_spec(tmp_path, 5, model={"provider": "moody:model", "options": {}}, task={"sample_retries": 0})
    assert call("run", path, "--id", "part", "--store", tmp_path / "runs", cwd=tmp_path).code == 1
    against = ("--baseline", "whole", "--margin", "0.1")
    found = verdict(tmp_path, 7, "part", *against)
    assert (found["outcome"], found["missing"]) == ("missing", {"failed": 1})
    assert verdict(tmp_path, 7, "part", "--at-least", "0", "--if-unsure", "pass")["outcome"] == "missing"
    low = tango_interval(0, 1, 5)[0]  # the missing one counts as wrong
    assert verdict(tmp_path, 0, "part", "--baseline", "whole", "--margin", "0.75", "--missing-max", "1")["passed"]
    accepted = verdict(tmp_path, 7, "part", "--baseline", "whole", "--margin", "0.72", "--missing-max", "1")
    assert -0.75 < low < -0.72 < accepted["interval"]["low"]
    assert (accepted["outcome"], accepted["depends_on_missing"]) == ("unsure", True)
    assert "1 key without a score (1 failed)" in gated(tmp_path, "part", *against).out
    done = gated(tmp_path, "whole", "--baseline", "part", "--margin", "0.1")
    assert (done.code, "the baseline part has 1 key of sums without a score" in done.err) == (2, True), done.said


def test_a_run_without_a_single_answer_is_no_pass(tmp_path: Path) -> None:
    path = write_spec(tmp_path, 3)
    assert call("run", path, "--id", "whole", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    failing = {"options": {"failures": [{"kind": "bad_request"}]}}
    path = write_spec(tmp_path, 3, model=failing, task={"sample_retries": 0})
    assert call("run", path, "--id", "none", "--store", tmp_path / "runs", cwd=tmp_path).code == 1
    for against in (("--baseline", "whole", "--margin", "0.1"), ("--at-least", "0")):
        found = verdict(tmp_path, 7, "none", *against, "--scorer", "numeric", "--if-unsure", "pass")
        assert (found["outcome"], found["missing"], found["scorer"]) == ("missing", {"failed": 3}, "numeric")
    assert verdict(tmp_path, 7, "none", "--at-least", "0")["outcome"] == "missing"


def test_what_is_not_comparable_is_not_judged(tmp_path: Path) -> None:
    for run, task in (("one", {}), ("two", {"scorers": [{"numeric": {"tolerance": 50}}]})):
        path = write_spec(tmp_path, 4, task=task)
        assert call("run", path, "--id", run, "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    done = gated(tmp_path, "two", "--baseline", "one", "--margin", "0.1")
    assert (done.code, "not comparable by numeric: the scorers differ" in done.err) == (2, True), done.said
    path = write_spec(tmp_path, 4)
    data = tmp_path / "sums.jsonl"
    data.write_text(data.read_text().replace('"8"', '"88"'))
    assert call("run", path, "--id", "three", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    done = gated(tmp_path, "three", "--baseline", "one", "--margin", "0.1")
    assert (done.code, "not comparable on 1 sample: rows with the same id differ" in done.err) == (2, True), done.said


def test_what_the_baseline_has_must_be_judged_unless_something_is_named(tmp_path: Path) -> None:
    said = {"one": once(0, 1, of=3), "two": once(0, 1, of=3)}
    path = write_known(tmp_path, said, {"a": "one", "b": "two"}, scorers=["numeric", "talk:mark"])
    assert call("run", path, "--id", "both", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    path = write_known(tmp_path, said, {"a": "one"})
    assert call("run", path, "--id", "alone", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    against = ("alone", "--baseline", "both", "--margin", "0.1")
    done = gated(tmp_path, *against)
    assert (done.code, "the baseline has quiz with b" in done.err) == (2, True), done.said
    done = gated(tmp_path, *against, "--model", "a")
    assert (done.code, "alone has no scores of mark, which the baseline has" in done.err) == (2, True), done.said
    assert verdict(tmp_path, 7, *against, "--model", "a", "--scorer", "numeric")["outcome"] == "unsure"


def test_a_part_of_the_samples_does_not_pass(tmp_path: Path) -> None:
    run_known(tmp_path, {"one": once(0, 1, 2, of=6)})
    done = call("run", "known.yaml", "--id", "few", "--limit", "4", "--store", "runs", cwd=tmp_path)
    assert done.code == 0, done.err
    found = verdict(tmp_path, 7, "few", "--baseline", "one", "--margin", "0.9")
    assert (found["outcome"], found["common"], found["missing"]) == ("missing", 4, {"not_planned": 2})
    assert "2 keys without a score (2 not planned)" in gated(tmp_path, "few", "--baseline", "one", "--margin", "1").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("one",), "--baseline RUN or --at-least NUMBER"),
        (("one", "--baseline", "two", "--at-least", "0.5"), "give either --baseline RUN or --at-least NUMBER"),
        (("one", "--baseline", "two"), "--margin 0.02"),
        (("one", "--baseline", "two", "--margin", "-1"), "0 or more"),
        (("one", "--at-least", "0.5", "--confidence", "95"), "between 0 and 1"),
        (("one", "--at-least", "0.5", "--if-unsure", "pss"), "did you mean 'pass'?"),
        (("one", "--at-least", "0.5", "--task", "quizz"), "did you mean 'quiz'?"),
        (("one", "--at-least", "0.5", "--model", "n"), "has no such model"),
        (("one", "--at-least", "0.5", "--scorer", "numerc"), "did you mean 'numeric'?"),
        (("one", "--baseline", "nope", "--margin", "0.1"), "nope"),
    ],
)
def test_what_makes_no_sense_is_reported(store: Path, arguments: tuple[str, ...], said: str) -> None:
    done = gated(store, *arguments)
    assert (done.code, said in done.err) == (2, True), done.said
