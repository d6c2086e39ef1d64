"""Reducers over repeats: what a report says of samples, and how far the judges of a panel agree."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.inter_rater import cohens_kappa  # type: ignore[import-untyped]  # no types
from statsmodels.stats.proportion import proportion_confint  # type: ignore[import-untyped]

from tests.e2e.commands import Done, call, shown, write_spec
from tests.e2e.known_answers import once, run_known, write_known

CLOSE = 1e-9
SAID = {
    "a": ["1", "0", "1", "0"],
    "b": ["1", "1", "1", "1"],
    "c": ["0", "2", "0", "1"],
    "d": ["0", "0", "0", "0"],
    "e": ["1", "1", "2", "0"],
}
RIGHT = {sample: [text == "1" for text in texts] for sample, texts in SAID.items()}


def reported(folder: Path, run: str = "one") -> list[dict[str, Any]]:
    done = call("report", run, "--store", folder / "runs", "--json", cwd=folder)
    assert done.code == 0, done.err
    cells: list[dict[str, Any]] = done.json()["cells"]
    return cells


def reduced(folder: Path, run: str = "one") -> dict[str, dict[str, Any]]:
    (cell,) = reported(folder, run)
    (scorer,) = cell["scorers"]
    return {each["reducer"]: each["summary"] | {"no_value": each["no_value"]} for each in scorer["reduced"]}


def subsets(texts: list[str], k: int) -> list[tuple[str, ...]]:
    return list(itertools.combinations(texts, k))


def wins(drawn: tuple[str, ...]) -> float:
    """Whether the most frequent answer is right; of several as frequent, what drawing lots gives."""
    counts = Counter(drawn)
    most = [text for text, count in counts.items() if count == max(counts.values())]
    return most.count("1") / len(most)


def test_each_reducer_is_a_row_with_an_interval_over_samples(tmp_path: Path) -> None:
    asked = [
        "mean",
        "median",
        "max",
        {"pass_at_k": {"k": 2}},
        "pass^2",
        {"cons_at_k": {"k": 3}},
        {"at_least": {"k": 2}},
    ]
    run_known(tmp_path, {"one": SAID}, reduce=asked)
    found = reduced(tmp_path)
    expected: dict[str, list[Any]] = {
        "median": [np.median(each) for each in RIGHT.values()],
        "max": [float(any(each)) for each in RIGHT.values()],
        "pass@2": [np.mean([any(x == "1" for x in each) for each in subsets(texts, 2)]) for texts in SAID.values()],
        "pass^2": [np.mean([all(x == "1" for x in each) for each in subsets(texts, 2)]) for texts in SAID.values()],
        "cons@3": [np.mean([wins(each) for each in subsets(texts, 3)]) for texts in SAID.values()],
        "at_least_2": [float(sum(each) >= 2) for each in RIGHT.values()],
    }
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert (found[name]["n"], found[name]["no_value"]) == (5, 0)
        assert found[name]["mean"] == pytest.approx(np.mean(values), abs=CLOSE), name
        low, high = proportion_confint(5 * np.mean(values), 5, 0.05, "wilson")
        if set(values) <= {0.0, 1.0}:
            assert [found[name]["low"], found[name]["high"]] == pytest.approx([low, high], abs=CLOSE), name
        else:  # a chance varies less than right or wrong, so the interval is not wider
            assert low - CLOSE <= found[name]["low"] < found[name]["mean"] < found[name]["high"] <= high + CLOSE, name
    told = call("report", "one", "--store", tmp_path / "runs", cwd=tmp_path).out
    assert f"numeric pass@2 {found['pass@2']['mean']:.4f}" in " ".join(told.split())
    written = call("report", "one", "--format", "markdown", "--store", tmp_path / "runs", cwd=tmp_path).out
    assert f"| numeric pass^2 | {found['pass^2']['mean']:.4f} |" in written.replace("\\", "")


def test_labels_may_say_which_answers_are_the_same(tmp_path: Path) -> None:
    said = {"a": ["1 .", "so 1", "0"], "b": ["1", "0 !", "0 ?"]}
    (tmp_path / "lists.py").write_text(
        "import re\ndef final(sample, answer):\n    return re.search('[01]', answer.text)[0]\n"
    )
    asked = ["majority", "cons@3", {"cons_at_k": {"k": 3, "answer": "final"}}]
    run_known(tmp_path, {"one": said, "two": said}, scorers=["numeric", "lists:final"], reduce=asked)
    (cell,) = reported(tmp_path)
    final, numeric = cell["scorers"]
    assert [each["reducer"] for each in final["reduced"]] == ["majority"]
    assert final["reduced"][0]["labels"] == {"0": 1, "1": 1}
    means = {each["reducer"]: each["summary"]["mean"] for each in numeric["reduced"]}
    a, b = 2 / 3, 1 / 3  # of texts: all differ, and each may be drawn
    assert means == pytest.approx({"majority": 0.5, "cons@3": (a + b) / 2, "cons@3 by final": (1 + 0) / 2})
    done = call("compare", "one", "two", "--store", tmp_path / "runs", "--json", cwd=tmp_path)
    same = {each["scorer"]: each["mean_first"] for each in done.json()["comparisons"]}
    assert same == pytest.approx(
        {f"numeric {name}": mean for name, mean in means.items()} | {"final majority": None, "final": None}
    )


def test_without_the_mean_among_them_the_table_does_not_have_it(tmp_path: Path) -> None:
    run_known(tmp_path, {"one": SAID}, reduce="pass@4")
    told = call("report", "one", "--store", tmp_path / "runs", cwd=tmp_path).out.splitlines()
    rows = [line for line in told if "numeric" in line]
    assert [row.split()[2:4] for row in rows] == [["numeric", "pass@4"]]
    assert rows[0].split()[4] == "0.8000"  # four of five samples have a right answer


def test_without_the_field_a_report_is_what_it_was(tmp_path: Path) -> None:
    run_known(tmp_path, {"one": SAID})
    (cell,) = reported(tmp_path)
    assert cell["scorers"][0]["reduced"] == []
    assert cell["scorers"][0]["summary"]["mean"] == pytest.approx(np.mean(list(RIGHT.values())), abs=CLOSE)


def test_a_sample_with_too_few_scores_has_no_part_and_is_reported(tmp_path: Path) -> None:
    said = {"a": ["1", "0"], "b": ["1", "oops"], "c": ["0", "0"]}
    path = write_known(tmp_path, {"one": said}, {"m": "one"}, scorers=["talk:mark"], reduce=["mean", "pass@2"])
    done = call("run", path, "--id", "one", "--store", tmp_path / "runs", cwd=tmp_path)
    assert (done.code, "could not convert string to float" in done.out) == (1, True)
    assert reduced(tmp_path)["pass@2"] | {"low": 0, "high": 0} == {
        "n": 2,
        "mean": 0.5,
        "standard_error": pytest.approx(0.5),
        "low": 0,
        "high": 0,
        "groups": None,
        "samples": None,
        "method": "wilson",
        "no_value": 1,
    }
    told = call("report", "one", "--store", tmp_path / "runs", cwd=tmp_path).out
    assert "quiz/m: mark pass@2: 1 sample without a value (a score is missing" in told


def test_another_reducer_on_a_finished_run_is_accepted_and_nothing_is_scored_again(tmp_path: Path) -> None:
    run_known(tmp_path, {"one": SAID})
    before = shown("one", tmp_path / "runs")
    setting = "tasks.quiz.reduce=majority"
    assert call("resume", "one", "--set", setting, "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    after = shown("one", tmp_path / "runs")
    assert (after["evaluations"], after["steps"]) == (before["evaluations"], before["steps"])
    assert [each["field"] for each in after["resumes"][0]["changes"]] == ["tasks.quiz.reduce"]
    assert reduced(tmp_path)["majority"]["mean"] == pytest.approx((0.5 + 1 + 0 + 0 + 0.5) / 5)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("meen", "unknown reducer 'meen'; did you mean 'mean'?"),
        (["mean", "pass_at"], "reduce[1]: unknown reducer 'pass_at'; did you mean 'pass_at_k'?"),
        ({"pass_at_k": {}}, "missing required field `k`"),
        ({"pass_at_k": {"k": 0}}, "k is 0; it must be at least 1"),
        ({"pass_at_k": {"k": 2, "treshold": 1}}, "unknown field `treshold`"),
        ({"mean": {"k": 2}}, "mean takes no arguments"),
        ("pass@9", "pass@9 needs 9 repeats, and the task has 4"),
        (["mean", "mean"], "reduce[1]: mean is listed twice"),
        ([], "an empty list"),
        (3, "tasks[0].reduce"),
        ({"mean": {}, "max": {}}, "one name with its arguments"),
        ({"cons_at_k": {"k": 2, "answer": "numerc"}}, "the task has no scorer 'numerc'; did you mean 'numeric'?"),
        ({"pass_at_k": {"k": 2, "answer": "numeric"}}, "unknown field `answer`"),
    ],
)
def test_what_is_no_reducer_is_refused_before_anything_is_asked(tmp_path: Path, said: Any, told: str) -> None:
    path = write_known(tmp_path, {"one": SAID}, {"m": "one"}, reduce=said)
    done: Done = call("run", path, "--id", "one", "--store", tmp_path / "runs", cwd=tmp_path)
    assert (done.code, told in done.err, "tasks[0].reduce" in done.err) == (2, True, True), done.err
    assert not (tmp_path / "runs").exists()


JUDGES = r"""
import json, pathlib, re
async def strict(request):
    return verdict(request, "strict")
async def kind(request):
    return verdict(request, "kind")
async def odd(request):
    return verdict(request, "odd")
def verdict(request, name):
    votes = json.loads(pathlib.Path("votes.json").read_text())[name]
    number = int(re.search(r"<<<\n(\d+) \+", request.messages[-1]["content"])[1])
    return json.dumps({"criterion": {"reason": "so", "score": votes[number - 1]}})
"""
VOTES = {"strict": [1, 2, 3, 3, 5, 4], "kind": [2, 2, 4, 3, 5, 5], "odd": [5, 1, 3, 3, 1, 4]}


def ordinal_alpha(units: list[tuple[int, ...]]) -> float:
    """Krippendorff's definition: over ordered pairs of ratings, within units and overall."""
    every = [rating for unit in units for rating in unit]
    counts = Counter(every)

    def distance(one: int, other: int) -> float:
        low, high = min(one, other), max(one, other)
        between = sum(count for rating, count in counts.items() if low <= rating <= high)
        return (between - (counts[low] + counts[high]) / 2) ** 2 if low != high else 0.0

    inside = sum(distance(a, b) / (len(unit) - 1) for unit in units for a, b in itertools.permutations(unit, 2))
    overall = sum(distance(a, b) for a, b in itertools.permutations(every, 2)) / (len(every) - 1)
    return 1 - inside / overall


@pytest.mark.parametrize("panel", [["strict", "kind"], ["strict", "kind", "odd"]])
def test_the_agreement_of_a_panel_is_in_the_report(tmp_path: Path, panel: list[str]) -> None:
    (tmp_path / "jury.py").write_text(JUDGES)
    (tmp_path / "votes.json").write_text(json.dumps(VOTES))
    roles = {name: {"provider": f"jury:{name}"} for name in panel}
    scorer = {"rubric": {"criteria": "It is right.", "roles": panel}}
    path = write_spec(tmp_path, 6, roles=roles, task={"scorers": ["numeric", scorer]})
    done = call("run", path, "--id", "one", "--store", tmp_path / "runs", cwd=tmp_path)
    assert done.code == 0, done.err
    (cell,) = reported(tmp_path)
    (found,) = cell["agreement"]
    units = list(zip(*(VOTES[name] for name in panel), strict=True))
    assert (found["scorer"], found["judges"], found["n"]) == ("rubric", panel, 6)
    assert found["alpha"] == pytest.approx(ordinal_alpha(units), abs=CLOSE)
    same = np.mean([np.mean([a == b for a, b in itertools.combinations(unit, 2)]) for unit in units])
    assert found["agreement"] == pytest.approx(same, abs=CLOSE)
    if len(panel) == 2:
        table = np.zeros((5, 5))
        for one, other in units:
            table[one - 1, other - 1] += 1
        assert found["kappa"] == pytest.approx(cohens_kappa(table).kappa, abs=CLOSE)
    else:
        assert found["kappa"] is None
    told = call("report", "one", "--store", tmp_path / "runs", cwd=tmp_path).out
    assert f"Krippendorff's alpha (ordinal) {found['alpha']:.4f}" in told
    assert ("Cohen's kappa (unweighted)" in told) == (len(panel) == 2)


def test_a_judge_alone_has_nobody_to_agree_with(tmp_path: Path) -> None:
    run_known(tmp_path, {"one": once(0, of=2)})
    (cell,) = reported(tmp_path)
    assert cell["agreement"] == []
