"""Macro means: the values of one column weigh equally, with a standard error of their own."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from holdfast.models import Request
from holdfast.records.samples import Answer, Sample
from holdfast.report.cells import ScorerReport
from holdfast.report.formats.latex import latex
from holdfast.report.formats.markdown import markdown
from holdfast.report.reduction import plural
from holdfast.runs import Run, find_run
from holdfast.score import scorer
from tests.e2e.commands import call
from tests.oracle import check_reports
from tests.unit.engine.runs import Asked, given, go, model

SUBJECTS = ["algebra"] * 8 + ["biology"] * 4 + ["chess"] * 2
RIGHT = [1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0]
"""Right in 6 of 8, 2 of 4 and 1 of 2 samples."""


def rows(strata: list[Any] = SUBJECTS, **columns: list[Any]) -> list[dict[str, Any]]:
    several = [
        {"id": f"s{number}", "input": f"question {number}", "target": "x", "subject": each}
        for number, each in enumerate(strata)
    ]
    return [{**row, **{name: every[at] for name, every in columns.items()}} for at, row in enumerate(several)]


def by_number(*values: Any, scale: Any = "bool") -> Any:
    def said(sample: Sample, answer: Answer) -> Any:
        return values[int(sample.id[1:])]

    return scorer(said, name="said", scale=scale)


def reported(store: Path) -> ScorerReport:
    place = find_run(str(store), "run-1")
    checked = check_reports(place)
    assert (checked.differences, checked.unchecked) == ([], [])
    with Run(place) as run:
        (cell,) = run.report().cells
    (found,) = cell.scorers
    return found


async def echo(request: Request) -> str:
    return str(request.messages[-1]["content"])


def made(store: Path, *, data: list[dict[str, Any]] | None = None, values: Any = RIGHT, **fields: Any) -> None:
    scale, fields = fields.pop("scale", "bool"), {"macro": "subject", **fields}
    task = Asked(rows=rows() if data is None else data, scorers=[by_number(*values, scale=scale)], fields=fields)
    go(store, given([task], [model("m", echo)]))


def test_strata_weigh_equally_and_their_squared_errors_are_added(tmp_path: Path) -> None:
    made(tmp_path)
    found = reported(tmp_path)
    (macro,) = found.macro
    assert found.summary.mean == pytest.approx(9 / 14)
    assert macro.summary.mean == pytest.approx((6 / 8 + 2 / 4 + 1 / 2) / 3)
    errors = [math.sqrt(p * (1 - p) / (n - 1)) for p, n in ((0.75, 8), (0.5, 4), (0.5, 2))]
    assert macro.summary.standard_error == pytest.approx(math.hypot(*errors) / 3)
    assert [(each.name, each.summary.n, each.summary.mean) for each in macro.strata] == [
        ("algebra", 8, 0.75),
        ("biology", 4, 0.5),
        ("chess", 2, 0.5),
    ]
    assert macro.title == "macro mean over 3 subjects"


def test_groups_in_several_strata_are_clustered(tmp_path: Path) -> None:
    """One question in two languages, with equal answers: the error is that of the questions."""
    languages = ["de"] * 6 + ["en"] * 6
    questions = [*range(6), *range(6)]
    values = [1, 0, 1, 1, 0, 0] * 2
    made(
        tmp_path,
        data=rows(languages, question=questions),
        values=values,
        dataset={"group": "question"},
    )
    (macro,) = reported(tmp_path).macro
    assert (macro.summary.mean, macro.summary.groups) == (0.5, 6)
    assert macro.summary.standard_error == pytest.approx(math.sqrt(0.25 / 5))


def test_reducers_have_macro_means_too(tmp_path: Path) -> None:
    made(tmp_path, repeats=2, reduce=["mean", "pass@2"])
    found = reported(tmp_path)
    assert [each.title for each in found.macro] == ["macro mean over 3 subjects", "pass@2 macro mean over 3 subjects"]


def test_a_reducer_alone_has_one(tmp_path: Path) -> None:
    made(tmp_path, repeats=2, reduce="pass@2")
    assert [each.reducer for each in reported(tmp_path).macro] == ["pass@2"]


def test_a_stratum_without_a_score_leaves_no_macro_mean_and_says_why(tmp_path: Path) -> None:
    made(tmp_path, values=[*RIGHT[:12], None, None])
    (macro,) = reported(tmp_path).macro
    assert (macro.summary.mean, macro.unknown) == (None, "1 of 3 subjects has no score: chess")
    with Run.find(str(tmp_path), "run-1") as run:
        text = str(run.report())
    assert "task/m: said: no macro mean: 1 of 3 subjects has no score: chess" in text
    assert "macro mean over" not in text


def test_failed_samples_that_count_as_wrong_are_in_their_stratum(tmp_path: Path) -> None:
    async def failing(request: Request) -> str:
        if str(request.messages[-1]["content"]).endswith(("12", "13")):
            raise ValueError("no")
        return "x"

    fields = {"macro": "subject", "counts": {"failed": "wrong"}, "sample_retries": 0}
    go(tmp_path, given([Asked(rows=rows(), scorers=["exact_match"], fields=fields)], [model("f", failing)]))
    (macro,) = reported(tmp_path).macro
    assert macro.summary.mean == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("data", "more", "why"),
    [
        (rows(["a", "b", None]), {}, "1 answer of 3 has no value in the column subject"),
        (
            rows(["a", "b", "c"]),
            {"record_data": False},
            "which samples share a subject is not known: record_data is off",
        ),
    ],
)
def test_unknown_strata_leave_no_macro_mean(tmp_path: Path, data: Any, more: Any, why: str) -> None:
    task = Asked(rows=data, scorers=[by_number(1, 0, 1)], fields={"macro": "subject"})
    go(tmp_path, given([task], [model("m", echo)], **more))
    (macro,) = reported(tmp_path).macro
    assert (macro.summary.mean, macro.unknown) == (None, why)


def test_a_stratum_with_one_sample_leaves_no_standard_error(tmp_path: Path) -> None:
    made(tmp_path, data=rows(["a", "a", "b"]), values=[1, 0, 1])
    (macro,) = reported(tmp_path).macro
    assert (macro.summary.mean, macro.summary.standard_error) == (0.75, None)
    with Run.find(str(tmp_path), "run-1") as run:
        assert "the macro mean has no standard error, because a subject has one independent sample" in str(run.report())


def test_labels_have_no_macro_mean(tmp_path: Path) -> None:
    made(tmp_path, values=["good"] * 14, scale="label")
    assert reported(tmp_path).macro == ()


def test_every_format_has_the_row_and_the_strata_are_in_json_and_behind_all(tmp_path: Path) -> None:
    made(tmp_path)
    with Run.find(str(tmp_path), "run-1") as run:
        report = run.report()
        for text in (str(report), markdown(report), report._repr_html_(), latex([report])):
            assert "macro mean over 3 subjects" in text
            assert "0.5833" in text
        for text in (str(report), markdown(report)):
            assert "biology" not in text
        assert "the mean of each subject: holdfast report run-1 --all" in str(report)
        assert "The mean of each subject: holdfast report run-1 --all" in markdown(report)
    done = call("report", "run-1", "--store", tmp_path, "--json", cwd=tmp_path)
    (macro,) = json.loads(done.out)["cells"][0]["scorers"][0]["macro"]
    assert (macro["column"], macro["reducer"], macro["unknown"]) == ("subject", "", "")
    assert macro["summary"]["mean"] == pytest.approx(7 / 12)
    assert [each["name"] for each in macro["strata"]] == ["algebra", "biology", "chess"]
    done = call("report", "run-1", "--store", tmp_path, "--all", cwd=tmp_path)
    line = next(line for line in done.out.splitlines() if "biology" in line)
    assert line.split()[:5] == ["task", "m", "said", "biology", "0.5000"]
    assert "the mean of each" not in done.out
    options = ("--store", tmp_path, "--all", "--format")
    page = call("report", "run-1", *options, "markdown", cwd=tmp_path).out
    assert "| task | model | scorer | subject | mean |" in page
    assert "| task | m | said | biology | 0.5000 |" in page
    page = call("report", "run-1", *options, "html", cwd=tmp_path).out
    assert page.count("<summary>The mean of each subject</summary>") == 1
    assert page.count(">biology</th>") == 1


@pytest.mark.parametrize(
    ("noun", "several"), [("subject", "subjects"), ("category", "categories"), ("key", "keys"), ("class", "class")]
)
def test_columns_have_plurals(noun: str, several: str) -> None:
    assert plural(noun) == several
