"""Grades as in SimpleQA: whether an answer is correct has a row of its own, and F1 is drawn by group."""

from pathlib import Path
from typing import Any

from holdfast.models import Request
from holdfast.records.samples import Answer, Sample
from holdfast.report.cells import CellReport, ScorerReport
from holdfast.report.compare.comparison import compare_sides
from holdfast.report.compare.gate import GateRule, judge_level
from holdfast.runs import Run, comparison_of, find_run, leaderboard_of
from holdfast.score import scorer
from holdfast.stats import graded_f1, summarise
from tests.oracle import check_reports
from tests.unit.engine.runs import Asked, given, go, model

GRADES = ["correct"] * 6 + ["incorrect"] * 3 + ["not_attempted"] * 3
ROWS = [
    {"id": f"s{number}", "input": grade, "target": "x", "passage": number // 2, "half": number % 2}
    for number, grade in enumerate(GRADES)
]
WRONG = {"counts": {"failed": "wrong"}, "sample_retries": 0}


@scorer(scale={"": "label", "correct": "bool"})
def graded(sample: Sample, answer: Answer) -> str:
    return answer.text


async def echo(request: Request) -> str:
    text = str(request.messages[-1]["content"])
    if text == "not_attempted":
        raise ValueError("no")
    return text


async def wrong(request: Request) -> str:
    return "incorrect"


async def say(request: Request) -> str:
    return str(request.messages[-1]["content"])


def reported(store: Path) -> list[CellReport]:
    place = find_run(str(store), "run-1")
    checked = check_reports(place)
    assert (checked.differences, checked.unchecked) == ([], [])
    with Run(place) as run:
        return list(run.report().cells)


def made(store: Path, *replies: Any, **fields: Any) -> list[dict[str, ScorerReport]]:
    """The scorers of each model."""
    models = [model(f"m{number}", reply) for number, reply in enumerate(replies)]
    go(store, given([Asked(rows=ROWS, scorers=[graded], fields=fields)], models))
    return [{each.scorer: each for each in cell.scorers} for cell in reported(store)]


def test_correct_grades_have_a_mean_and_all_grades_an_f1(tmp_path: Path) -> None:
    (found,) = made(tmp_path, say)
    assert list(found) == ["graded", "graded correct"]
    assert found["graded correct"].summary == summarise([1.0] * 6 + [0.0] * 6)
    assert found["graded"].labels == {"correct": 6, "incorrect": 3, "not_attempted": 3}
    grades = found["graded"].grades
    assert grades is not None
    assert (grades.correct, grades.incorrect, grades.not_attempted) == (6, 3, 3)
    assert grades.f1 == graded_f1({(1, 0, 0): 6, (0, 1, 0): 3, (0, 0, 1): 3})
    with Run.find(str(tmp_path), "run-1") as run:
        text = str(run.report())
    assert "50.0% of all answers are correct, 66.7% of those attempted; F1 0.5714 (95%: 0." in text
    assert "bootstrap over answers" in text


def test_failed_samples_are_incorrect_if_they_count_as_wrong(tmp_path: Path) -> None:
    (found,) = made(tmp_path, echo, **WRONG)
    row, grades = found["graded correct"], found["graded"].grades
    assert (row.summary.mean, row.missing) == (0.5, {})
    assert row.wrong is not None
    assert (row.wrong.counts, row.wrong.answered_mean) == ({"failed": 3}, 6 / 9)
    assert grades is not None
    assert (grades.correct, grades.incorrect, grades.not_attempted) == (6, 6, 0)
    assert found["graded"].missing == {"failed": 3}


def test_failed_samples_are_left_out_else(tmp_path: Path) -> None:
    (found,) = made(tmp_path, echo, sample_retries=0)
    grades = found["graded"].grades
    assert grades is not None
    assert (grades.correct, grades.incorrect, grades.not_attempted) == (6, 3, 0)
    assert found["graded correct"].missing == {"failed": 3}


def test_groups_and_repeats_are_drawn_as_a_whole(tmp_path: Path) -> None:
    (found,) = made(tmp_path / "groups", say, dataset={"group": "passage"})
    assert found["graded"].grades is not None
    pairs = {(2, 0, 0): 3, (0, 2, 0): 1, (0, 1, 1): 1, (0, 0, 2): 1}
    assert found["graded"].grades.f1 == graded_f1(pairs)
    assert found["graded correct"].summary.groups == 6
    (found,) = made(tmp_path / "repeats", say, repeats=3)
    assert found["graded"].grades is not None
    assert found["graded"].grades.f1 == graded_f1({(3, 0, 0): 6, (0, 3, 0): 3, (0, 0, 3): 3})
    assert found["graded"].grades.f1.groups == 12


def test_a_macro_mean_and_reducers_are_of_correct_answers(tmp_path: Path) -> None:
    (found,) = made(tmp_path, say, macro="half", repeats=2, reduce=["mean", "pass@2"])
    row = found["graded correct"]
    assert [(each.reducer, each.summary.mean) for each in row.macro] == [("", 0.5), ("pass@2", 0.5)]
    assert [(each.reducer, each.summary.mean) for each in row.reduced] == [("pass@2", 0.5)]


def test_models_are_compared_judged_and_ranked_by_correct_answers(tmp_path: Path) -> None:
    first, second = made(tmp_path, say, wrong, **WRONG)
    assert (first["graded correct"].summary.mean, second["graded correct"].summary.mean) == (0.5, 0.0)
    with Run.find(str(tmp_path), "run-1") as run:
        sides = {name: each for (_, name), each in run.sides("run-1").items()}
        labels, found = compare_sides(sides["m0"], sides["m1"])
        assert (labels.scorer, labels.difference, found.scorer) == ("graded", None, "graded correct")
        assert (found.mean_first, found.mean_second, found.losses, found.test) == (0.5, 0.0, 6, "mcnemar")
        assert [each.adjusted_p for each in comparison_of([run]).comparisons] == [None, found.p]
        measure = sides["m0"].measures()["graded correct"]
        assert judge_level(sides["m0"], measure, GateRule(at_least=0.2)).outcome == "passed"
        (board,) = leaderboard_of([run]).boards
        assert (board.scorer, [each.summary.mean for each in board.ranked]) == ("graded correct", [0.5, 0.0])


def test_labels_that_are_no_grades_have_no_row(tmp_path: Path) -> None:
    def label(sample: Sample, answer: Answer) -> str:
        return answer.text

    go(tmp_path, given([Asked(rows=ROWS, scorers=[label])], [model("m", say)]))
    (cell,) = reported(tmp_path)
    assert [(each.scorer, each.grades) for each in cell.scorers] == [("label", None)]


def test_scores_that_failed_are_listed_once(tmp_path: Path) -> None:
    @scorer(name="broken", scale={"": "label", "correct": "bool"})
    def broken(sample: Sample, answer: Answer) -> str:
        if answer.text == "incorrect":
            raise ValueError("no")
        return answer.text

    go(tmp_path, given([Asked(rows=ROWS, scorers=[broken])], [model("m", say)]))
    (cell,) = reported(tmp_path)
    assert [each.failures for each in cell.scorers] == [3, 3]
    with Run.find(str(tmp_path), "run-1") as run:
        assert str(run.report()).count("failed on 3 answers") == 1
