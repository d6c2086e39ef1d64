"""Counts, means, tokens and dollars of reports are those of the oracle, which finds mistakes in them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.journal import OpenRequest, Reader
from holdfast.records import draft
from holdfast.records.facts import ScoreGiven
from holdfast.records.samples import Answer, Sample, Usage
from holdfast.runs import Run, RunLocation, find_run
from holdfast.runs.verification import check_scores
from holdfast.score import SCORERS
from holdfast.solve import Context
from holdfast.state import totals
from holdfast.stats import sum_groups
from tests.caches import index_file, tamper
from tests.journals import write_session
from tests.oracle import check_reports
from tests.unit.engine.runs import Asked, cut_after, given, go, model, records, rows


def mixed(sample: Sample, answer: Answer) -> Any:
    number = int(sample.id[1:])
    if number == 3:
        raise ValueError("no")
    return {"grade": number / 7, "right": number % 2 == 0, "tone": "good" if number % 3 else "bad", "silent": None}


async def partly(sample: Sample, ctx: Context) -> Any:
    if sample.id == "s1":
        raise ValueError("no")
    return await ctx.generate()


async def paid(request: Any) -> Answer:
    text = str(request.messages[-1]["content"])
    return Answer(text, finish_reason="length" if "4" in text else "stop", usage=Usage(1000, 20, 100))


PRICE = {"input": 2.0, "output": 8.0, "cached_input": 0.5}


def ran(store: Path) -> RunLocation:
    exact = SCORERS["exact_match"]
    task = Asked(rows=rows(6), solver=partly, scorers=[exact, mixed], fields={"repeats": 3, "sample_retries": 1})
    other = Asked(name="other", rows=rows(1), scorers=[exact])
    go(store, given([task, other], [model("a", paid, price=PRICE), model("b", paid)]))
    return find_run(str(store), "run-1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunLocation:
    """Nobody changes it."""
    return ran(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def copied(whole: RunLocation, tmp_path: Path) -> RunLocation:
    """The same, with an index, to be changed."""
    with Run(whole) as run:
        run.report()
    shutil.copytree(whole.store, tmp_path, dirs_exist_ok=True)
    return find_run(str(tmp_path), "run-1")


def test_every_number_is_as_reported_also_after_a_kill_and_with_several_evaluations(tmp_path: Path) -> None:
    ran(tmp_path)
    cut_after(tmp_path, lambda kind, data: kind != "score" or data["o"] < 20)
    place = ran(tmp_path)
    task = Asked(rows=rows(6), solver=partly, scorers=[mixed], fields={"repeats": 3, "sample_retries": 1})
    other = Asked(name="other", rows=rows(1), scorers=[SCORERS["includes"]])
    go(tmp_path, given([task, other], [model("a", paid, price=PRICE), model("b", paid)]))
    found = check_reports(place)
    assert found.differences == []
    assert found.numbers > 150
    assert found.records == len(records(tmp_path))
    again = check_scores(place)
    assert (again.differences, again.records) == ([], found.records)
    assert again.numbers > 300
    assert (again.rescored["exact_match"], again.rescored["includes"]) == (32, 2)
    assert again.skipped == {"mixed": "it does not come with Holdfast, or a part of it does not"}
    assert any(data.get("taken") for kind, data in records(tmp_path) if kind == "score")


def test_a_run_without_scores_or_without_answers_has_its_counts_checked(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(2), solver=partly, fields={"sample_retries": 0})]))
    found = check_reports(find_run(str(tmp_path), "run-1"))
    again = check_scores(find_run(str(tmp_path), "run-1"))
    assert (found.differences, again.differences, again.rescored, again.skipped) == ([], [], {}, {})
    assert min(found.numbers, again.numbers) > 10


def halved(values: Any, groups: Any = None, weights: Any = None) -> Any:
    found = sum_groups(values, groups, weights)
    return msgspec.structs.replace(found, squares=found.squares / 4)


def every_answer_a_sample(samples: Any, values: Any) -> Any:
    return {f"{sample} {index}": value for index, (sample, value) in enumerate(zip(samples, values, strict=True))}


@pytest.mark.parametrize(("name", "broken"), [("sum_groups", halved), ("mean_by_sample", every_answer_a_sample)])
def test_a_mistake_in_the_statistics_of_reports_is_found(
    whole: RunLocation, monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(totals, name, broken)
    index_file(whole.folder).unlink(missing_ok=True)  # it has the right sums
    try:
        found = check_reports(whole).differences
    finally:
        index_file(whole.folder).unlink()
    assert any("mixed.grade: standard error" in each for each in found)


def test_a_score_set_by_hand_counts_and_what_the_scorer_said_itself_is_made_again(
    copied: RunLocation, tmp_path: Path
) -> None:
    place = copied
    told = next(data for kind, data in records(tmp_path) if kind == "score" and data["scorer"] == "exact_match")
    at = "2026-01-01T00:00:00+00:00"
    words = [("exact_match", False), ("exact_match", None), ("mixed.grade", 0.125), ("manners", "good")]
    edits = [
        ScoreGiven(told["o"], told["of"], told["evaluation"], *each, "read it", author="ann", at=at) for each in words
    ]
    uid = Reader(place.journal).uid
    write_session(place.journal, [draft("score", each, "task/a/s0/1") for each in edits], wanted=OpenRequest(uid))
    assert check_reports(place).differences == []
    found = check_scores(place)
    assert (found.differences, found.rescored["exact_match"]) == ([], 32)
    tamper(place.folder, "edits", lambda row: None, lambda row: row.scorer == "mixed.grade")
    assert any("mixed.grade: edited by hand: the report says 0" in each for each in check_reports(place).differences)
    assert any("[mixed.grade].edited: the report says 0" in each for each in check_scores(place).differences)


def test_a_number_beyond_measure_breaks_no_report(tmp_path: Path) -> None:
    """Its square is no number any more."""

    def wild(sample: Sample, answer: Answer) -> float:
        return 1e200 if sample.id == "s1" else 1.5

    go(tmp_path, given([Asked(rows=rows(3), scorers=[wild])]))
    with Run.find(str(tmp_path), "run-1") as run:
        (found,) = run.report().cells[0].scorers
        assert (found.summary.mean, found.summary.n, found.no_score) == (1.5, 2, 1)
        assert run.score_kinds() == {"wild": "number"}
    assert check_reports(find_run(str(tmp_path), "run-1")).differences == []
