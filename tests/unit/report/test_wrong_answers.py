"""Failed samples count as wrong where the task says so: in reports, comparisons, gates and leaderboards alike."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.models import Request
from holdfast.pytest_plugin import assert_score
from holdfast.records.samples import Answer, Sample
from holdfast.report.cell_totals import CellAnswers
from holdfast.report.cells import CellReport
from holdfast.report.compare.comparison import compare_sides
from holdfast.report.compare.gate import GateRule, judge_level
from holdfast.report.formats.latex import latex
from holdfast.report.formats.markdown import markdown
from holdfast.report.summaries.wrong_answers import WrongAnswers
from holdfast.runs import Run, find_run, leaderboard_of
from holdfast.score import scorer
from holdfast.solve import Context
from holdfast.stats import summarise
from tests.e2e.commands import call
from tests.oracle import check_reports
from tests.unit.engine.runs import Asked, given, go, mock, model, records, rows

WRONG = {"counts": {"failed": "wrong"}, "sample_retries": 0}


def reported(store: Path) -> list[CellReport]:
    """The cells. Every number of them is computed a second time."""
    place = find_run(str(store), "run-1")
    checked = check_reports(place)
    assert (checked.differences, checked.unchecked) == ([], [])
    with Run(place) as run:
        return list(run.report().cells)


def failing(*numbers: int) -> Any:
    async def solve(sample: Sample, ctx: Context) -> str:
        if int(sample.id[1:]) in numbers:
            raise ValueError("no")
        return str(sample.input)

    return solve


def asked(fields: dict[str, Any], scorers: Sequence[Any] = ("exact_match",), failed: Sequence[int] = (0, 1, 2)) -> Any:
    return Asked(rows=rows(10), solver=failing(*failed), scorers=scorers, fields={**WRONG, **fields})


@pytest.mark.parametrize("rule", ["no_score", "wrong"])
def test_failed_samples_count_as_the_task_says(tmp_path: Path, rule: str) -> None:
    go(tmp_path, given([asked({"counts": {"failed": rule}})]))
    (cell,) = reported(tmp_path)
    (found,) = cell.scorers
    assert (cell.failed, cell.finished) == (3, 7)
    if rule == "no_score":
        assert (found.summary.mean, found.missing, found.wrong) == (1.0, {"failed": 3}, None)
        return
    assert found.summary == summarise([0.0] * 3 + [1.0] * 7)
    assert (found.missing, found.bounds) == ({}, None)
    assert found.wrong is not None
    assert (found.wrong.counts, found.wrong.answered_mean, found.wrong.answered) == ({"failed": 3}, 1.0, 7)


def test_the_journal_has_no_scores_of_failed_samples(tmp_path: Path) -> None:
    go(tmp_path, given([asked({})]))
    assert len([kind for kind, _ in records(tmp_path) if kind == "score"]) == 7
    with Run.find(str(tmp_path), "run-1") as run:
        assert [(line.status, line.scores) for line in run.lines()][:1] == [("failed", {})]


def test_the_rule_for_failed_samples_opens_no_evaluation(tmp_path: Path) -> None:
    """It changes no recorded score. Evaluations of earlier versions keep their ids."""
    ids = []
    for name, counts in (("a", {}), ("b", {"failed": "wrong"}), ("c", {"empty": "wrong", "failed": "wrong"})):
        go(tmp_path / name, given([asked({"counts": counts})]))
        with Run.find(str(tmp_path / name), "run-1") as run:
            ids.append(run.evaluations()[0].evaluation)
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(
    ("scale", "lowest"), [((1, 5), 1.0), ("count", 0.0), ("bool", 0.0), (None, None), ("number", None)]
)
def test_the_lowest_value_of_the_scale_counts(tmp_path: Path, scale: Any, lowest: float | None) -> None:
    def three(sample: Sample, answer: Answer) -> float:
        return 1.0 if scale == "bool" else 3.0

    go(tmp_path, given([asked({}, [scorer(three, scale=scale)])]))
    (found,) = reported(tmp_path)[0].scorers
    if lowest is None:
        assert (found.summary.mean, found.missing) == (3.0, {"failed": 3})
    else:
        best = 1.0 if scale == "bool" else 3.0
        assert found.summary.mean == pytest.approx((3 * lowest + 7 * best) / 10)


def test_bools_of_a_scorer_without_a_scale_are_right_or_wrong(tmp_path: Path) -> None:
    def lenient(sample, answer):  # type: ignore[no-untyped-def]  # so that it declares nothing
        return True

    go(tmp_path, given([asked({}, [lenient])]))
    assert reported(tmp_path)[0].scorers[0].summary.mean == 0.7


def test_labels_stay_as_they_are(tmp_path: Path) -> None:
    def label(sample: Sample, answer: Answer) -> str:
        return "good"

    go(tmp_path, given([asked({}, [label])]))
    (found,) = reported(tmp_path)[0].scorers
    assert (found.labels, found.missing, found.wrong) == ({"good": 7}, {"failed": 3}, None)


def test_reducers_and_repeats_see_failed_answers_as_wrong(tmp_path: Path) -> None:
    """Two of four repeats of each sample fail."""
    seen: dict[str, int] = {}

    async def solve(sample: Sample, ctx: Context) -> str:
        seen[sample.id] = seen.get(sample.id, 0) + 1
        if seen[sample.id] <= 2:
            raise ValueError("no")
        return str(sample.input)

    reduce = ["mean", "pass@2", "pass^2", "max", "cons@3"]
    fields = {**WRONG, "repeats": 4, "reduce": reduce}
    go(tmp_path, given([Asked(rows=rows(5), solver=solve, scorers=["exact_match"], fields=fields)]))
    (found,) = reported(tmp_path)[0].scorers
    assert (found.summary.mean, found.summary.n, found.summary.samples) == (0.5, 20, 5)
    means = {each.reducer: each.summary.mean for each in found.reduced}
    assert means == pytest.approx({"pass@2": 5 / 6, "pass^2": 1 / 6, "max": 1.0, "cons@3": 0.5})
    with Run.find(str(tmp_path), "run-1") as run:
        (side,) = run.sides("run-1").values()
        measures = {name: each.summary().mean for name, each in side.measures().items()}
    assert measures == pytest.approx(
        {"exact_match": 0.5, **{f"exact_match {name}": mean for name, mean in means.items()}}
    )


def test_groups_of_failed_samples_are_known(tmp_path: Path) -> None:
    several = [{**row, "passage": number // 3} for number, row in enumerate(rows(12))]
    fields = {**WRONG, "dataset": {"group": "passage"}}
    go(tmp_path, given([Asked(rows=several, solver=failing(0, 1, 5), scorers=["exact_match"], fields=fields)]))
    (found,) = reported(tmp_path)[0].scorers
    assert (found.summary.mean, found.summary.groups) == (0.75, 4)


@pytest.fixture(scope="module")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`good` is right on all; `fails` fails on all 12; `half` fails on half, and is right else."""
    store = tmp_path_factory.mktemp("models")

    async def echo(request: Request) -> str:
        return str(request.messages[-1]["content"])

    async def fail(request: Request) -> str:
        raise ValueError("no")

    async def half(request: Request) -> str:
        text = str(request.messages[-1]["content"])
        if int(text.split()[-1]) % 2:
            raise ValueError("no")
        return text

    models = [model("good", echo), model("fails", fail), model("half", half)]
    go(store, given([Asked(rows=rows(12), scorers=["exact_match"], fields=WRONG)], models))
    return store


def test_comparisons_gates_and_leaderboards_count_them(two_models: Path) -> None:
    assert [cell.scorers[0].summary.mean for cell in reported(two_models)] == [1.0, 0.0, 0.5]
    with Run.find(str(two_models), "run-1") as run:
        sides = {model: each for (_, model), each in run.sides("run-1").items()}
        (found,) = compare_sides(sides["good"], sides["half"])
        assert (found.common, found.mean_second, found.missing_second, found.losses) == (12, 0.5, {}, 6)
        (found,) = compare_sides(sides["good"], sides["fails"])
        assert (found.common, found.mean_second) == (12, 0.0)
        measure = sides["half"].measures()["exact_match"]
        assert judge_level(sides["half"], measure, GateRule(at_least=0.2)).outcome == "passed"
        assert judge_level(sides["half"], measure, GateRule(at_least=0.9)).outcome == "worse"
        (board,) = leaderboard_of([run]).boards
        means = {each.model: (each.summary.mean, each.missing) for each in board.ranked}
        assert means == {"good": (1.0, 0), "half": (0.5, 0), "fails": (0.0, 0)}
        with pytest.raises(pytest.fail.Exception, match=r"mean 0\.0000"):
            assert_score(run, at_least=0.4)


def test_every_format_says_so(two_models: Path) -> None:
    said = "6 failed samples count as wrong (50.0% failed of 12); the mean over the other 6 answers is 1.0000"
    none = "12 failed samples count as wrong (100.0% failed of 12); none is left"
    with Run.find(str(two_models), "run-1") as run:
        report = run.report()
        for text in (str(report), markdown(report), report._repr_html_(), latex([report]).replace("\\", "")):
            assert said in text
            assert none in text
    shown = call("show", "run-1", "--store", two_models, cwd=two_models)
    assert said in shown.out
    done = call("report", "run-1", "--store", two_models, "--json", cwd=two_models)
    cell = json.loads(done.out)["cells"][2]
    assert cell["failed"] == 6
    assert cell["scorers"][0]["wrong"] == {"counts": {"failed": 6}, "answered_mean": 1.0, "answered": 6}


def test_rates_of_empty_and_truncated_answers_are_beside_the_mean(tmp_path: Path) -> None:
    async def reply(request: Request) -> Answer:
        text = str(request.messages[-1]["content"])
        number = int(text.split()[-1])
        if number == 9:
            raise ValueError("no")
        text = "" if number < 2 else text
        reason = "length" if number == 2 else "stop"
        return Answer(text, {"role": "assistant", "content": text}, finish_reason=reason)

    counts = {"empty": "wrong", "truncated": "wrong", "failed": "wrong"}
    fields = {"counts": counts, "sample_retries": 0}
    go(tmp_path, given([Asked(rows=rows(10), scorers=["exact_match"], fields=fields)], [model("m", reply)]))
    (found,) = reported(tmp_path)[0].scorers
    assert found.summary.mean == 0.6
    assert found.wrong is not None
    assert found.wrong.counts == {"empty": 2, "failed": 1, "truncated": 1}
    assert (found.wrong.answered_mean, found.wrong.answered) == (1.0, 6)
    with Run.find(str(tmp_path), "run-1") as run:
        said = "2 empty answers, 1 failed sample, 1 truncated answer count as wrong"
        assert f"{said} (20.0% empty, 10.0% failed, 10.0% truncated of 10)" in str(run.report())


def test_without_wrong_answers_nothing_is_said(tmp_path: Path) -> None:
    go(tmp_path, given([asked({}, failed=())], [mock()]))
    with Run.find(str(tmp_path), "run-1") as run:
        assert "as wrong" not in str(run.report())


SUMS = [{"id": f"s{number}", "input": f"question {number}", "target": "7"} for number in range(10)]


async def reply_sums(request: Request) -> str:
    """2 answers have no number, 3 a wrong one, 5 the right one."""
    number = int(str(request.messages[-1]["content"]).split()[-1])
    return "no idea" if number < 2 else "8" if number < 5 else "7"


@pytest.mark.parametrize("scorer", ["numeric", {"exact_match": {"extract": {"regex": {"pattern": "[0-9]"}}}}])
def test_the_rate_of_unreadable_answers_is_beside_the_mean(tmp_path: Path, scorer: Any) -> None:
    go(tmp_path, given([Asked(rows=SUMS, scorers=[scorer])], [model("m", reply_sums)]))
    (found,) = reported(tmp_path)[0].scorers
    assert found.summary.mean == 0.5
    assert found.wrong == WrongAnswers({"unreadable": 2}, 5 / 8, 8)
    with Run.find(str(tmp_path), "run-1") as run:
        report = run.report()
        rest = "the mean over the other 8 answers is 0.6250"
        said = f"2 unreadable answers count as wrong (20.0% unreadable of 10); {rest}"
        for text in (str(report), markdown(report), report._repr_html_(), latex([report]).replace("\\", "")):
            assert said in text


def test_the_rate_of_unreadable_answers_needs_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"repeats": 2}
    go(tmp_path, given([Asked(rows=SUMS, scorers=["numeric"], fields=fields)], [model("m", reply_sums)]))
    monkeypatch.setattr(CellAnswers, "rows", None)
    monkeypatch.setattr(CellAnswers, "scores", None)
    with Run.find(str(tmp_path), "run-1") as run:
        (found,) = run.report().cells[0].scorers
    assert found.wrong == WrongAnswers({"unreadable": 4}, 5 / 8, 16)


def test_unreadable_and_failed_answers_have_a_rate_each(tmp_path: Path) -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        if sample.id == "s9":
            raise ValueError("no")
        return "none" if sample.id == "s0" else "7"

    go(tmp_path, given([Asked(rows=SUMS, solver=solve, scorers=["numeric"], fields=WRONG)]))
    (found,) = reported(tmp_path)[0].scorers
    assert found.wrong == WrongAnswers({"failed": 1, "unreadable": 1}, 1.0, 8)


def test_a_score_set_by_hand_is_readable(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=SUMS, scorers=["numeric"])], [model("m", reply_sums)]))
    for sample in ("s0", "s1"):
        edit = ("--set", f"task/m/{sample}/1", "numeric=true", "--reason", "it says seven", "--by", "ann")
        done = call("score", "run-1", *edit, "--store", tmp_path, cwd=tmp_path)
        assert done.code == 0, done.err
    (found,) = reported(tmp_path)[0].scorers
    assert (found.summary.mean, found.wrong) == (0.7, None)
