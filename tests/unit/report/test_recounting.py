"""`verify --scores` computes every number a second time: what it finds is what a report says, unless one is wrong."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.api import Run, RunPlace, find_run
from holdfast.api.recounting import ScoresChecked, check_scores
from holdfast.journal import Reader, Request
from holdfast.records import draft
from holdfast.records.built_in import SCORERS
from holdfast.records.exchange import Answer, Sample, Usage
from holdfast.records.facts import ScoreGiven
from holdfast.report import cells as cells_module
from holdfast.score import BUILT_IN
from holdfast.solve import Context
from holdfast.state import Index
from holdfast.stats import summarise
from tests.caches import doctored, index_file
from tests.journals import write_session
from tests.unit.engine.runs import Asked, cut_after, folder, given, go, model, records, rows


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


def ran(store: Path) -> RunPlace:
    exact = BUILT_IN["exact_match"]
    task = Asked(rows=rows(6), solver=partly, scorers=[exact, mixed], fields={"repeats": 3, "sample_retries": 1})
    other = Asked(name="other", rows=rows(1), scorers=[exact])
    go(store, given([task, other], [model("a", paid, price=PRICE), model("b", paid)]))
    return find_run(str(store), "run-1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunPlace:
    """Nobody changes it."""
    return ran(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def copied(whole: RunPlace, tmp_path: Path) -> RunPlace:
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
    other = Asked(name="other", rows=rows(1), scorers=[BUILT_IN["includes"]])
    go(tmp_path, given([task, other], [model("a", paid, price=PRICE), model("b", paid)]))
    found = check_scores(place)
    assert found.differences == []
    assert found.numbers > 150
    assert found.records == len(records(tmp_path))
    assert (found.rescored["exact_match"], found.rescored["includes"]) == (32, 2)
    assert found.skipped == {"mixed": "it does not come with Holdfast, or a part of it does not"}
    assert any(data.get("taken") for kind, data in records(tmp_path) if kind == "score")


def test_a_run_without_scores_or_without_answers_has_its_counts_checked(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(2), solver=partly, fields={"sample_retries": 0})]))
    found = check_scores(find_run(str(tmp_path), "run-1"))
    assert (found.differences, found.rescored, found.skipped) == ([], {}, {})
    assert found.numbers > 10


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE scores SET value = CAST('1.0' AS BLOB) WHERE scorer = 'mixed.grade' AND o = 0", "mixed.grade: mean"),
        ("DELETE FROM scores WHERE scorer = 'exact_match' AND o = 0", "exact_match: n: the report says 14"),
        ("UPDATE scores SET failure = '' WHERE failure != ''", "scorer failed: the report says 0"),
        ("UPDATE scores SET value = CAST('\"good\"' AS BLOB) WHERE scorer = 'mixed.tone'", "label bad"),
        ("UPDATE answers SET status = 'failed', kind = 'odd' WHERE o = 0", "finished: the report says 14"),
        ("UPDATE answers SET output_tokens = 21 WHERE o = 0", "output tokens: the report says 301, the journal 300"),
        ("UPDATE answers SET seconds = seconds + 1 WHERE o = 0", "seconds: "),
        ("UPDATE answers SET marks = '' WHERE marks != ''", "answers, truncated: the report says 0"),
        ("UPDATE answers SET kind = 'timeout' WHERE kind = 'solver'", "failed, timeout"),
    ],
)
def test_an_index_that_was_tampered_with_is_found(copied: RunPlace, change: str, told: str) -> None:
    tamper(copied, change)
    found = check_scores(copied).differences
    assert any(told in each for each in found), found


def test_dollars_tokens_and_steps_that_were_tampered_with_are_found(copied: RunPlace) -> None:
    place = copied
    Index(place.folder).close()
    with doctored(index_file(place.folder)) as database:
        (raw,) = database.execute("SELECT value FROM meta WHERE name = 'story'").fetchone()
        story = msgspec.json.decode(raw)
        story["steps"] += 1
        story["bills"]["task/a"][""]["usage"]["input_tokens"] += 5
        database.execute("UPDATE meta SET value = ? WHERE name = 'story'", (msgspec.json.encode(story),))
    found = check_scores(place).differences
    assert [each.partition(":")[0] for each in found] == ["steps live", "dollars", "task/a"]


def halved(report: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(values: Any, groups: Any) -> Any:
        found = report(values, groups)
        return msgspec.structs.replace(found, standard_error=found.standard_error and found.standard_error / 2)

    return wrong


def ungrouped(report: Callable[..., Any]) -> Callable[..., Any]:
    return lambda values, groups: report(values)


@pytest.mark.parametrize("broken", [halved, ungrouped])
def test_a_mistake_in_the_statistics_of_reports_is_found(
    whole: RunPlace, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(cells_module, "summarise", broken(summarise))
    assert any("mixed.grade: standard error" in each for each in check_scores(whole).differences)


def test_a_recorded_score_that_the_scorer_would_not_give_is_found(copied: RunPlace, tmp_path: Path) -> None:
    place = copied
    scores = [data for kind, data in records(tmp_path) if kind == "score" and data["scorer"] == "exact_match"]
    told = next(data for data in scores if data["o"] == 0)
    forged = ScoreGiven(told["o"], told["of"], told["evaluation"], "exact_match", False, last=True)
    uid = Reader(place.journal).uid
    write_session(place.journal, [draft("score", forged, "task/a/s0/1")], wanted=Request(uid))
    assert check_scores(place).differences == ["task/a/s0/1: exact_match: recorded is False, scored again True"]


def test_a_score_set_by_hand_counts_and_what_the_scorer_said_itself_is_made_again(
    copied: RunPlace, tmp_path: Path
) -> None:
    place = copied
    told = next(data for kind, data in records(tmp_path) if kind == "score" and data["scorer"] == "exact_match")
    at = "2026-01-01T00:00:00+00:00"
    words = [("exact_match", False), ("exact_match", None), ("mixed.grade", 0.125), ("manners", "good")]
    edits = [
        ScoreGiven(told["o"], told["of"], told["evaluation"], *each, "read it", author="ann", at=at) for each in words
    ]
    uid = Reader(place.journal).uid
    write_session(place.journal, [draft("score", each, "task/a/s0/1") for each in edits], wanted=Request(uid))
    found = check_scores(place)
    assert (found.differences, found.rescored["exact_match"]) == ([], 32)
    tamper(place, "DELETE FROM edits WHERE scorer = 'mixed.grade'")
    assert any("mixed.grade: edited by hand: the report says 0" in each for each in check_scores(place).differences)


def test_a_scorer_of_another_version_is_not_asked_again(whole: RunPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORERS, "exact_match", 2)
    found: ScoresChecked = check_scores(whole)
    assert found.skipped["exact_match"] == "its version, or that of a package that it computes with, has changed since"
    assert (found.rescored, found.differences) == ({}, [])


def test_composed_scorers_are_asked_again_with_their_extractors_and_those_with_parts_of_your_own_are_not(
    tmp_path: Path,
) -> None:
    exact, includes = BUILT_IN["exact_match"], BUILT_IN["includes"]
    whole = BUILT_IN["all_of"].using(of=[exact, includes.using(extract=["last_line"])], name="whole")
    partly_own = BUILT_IN["any_of"].using(of=[exact, right], name="own")
    depends = BUILT_IN["when"].using(test=exact, then=includes)
    go(tmp_path, given([Asked(rows=rows(4), scorers=[whole, partly_own, depends, BUILT_IN["consistency"]])]))
    found = check_scores(find_run(str(tmp_path), "run-1"))
    assert found.differences == []
    assert found.rescored == {"whole": 4, "when": 4}
    assert set(found.skipped) == {"own", "consistency"}


def test_a_number_beyond_measure_breaks_no_report(tmp_path: Path) -> None:
    """Its square is no number any more."""

    def wild(sample: Sample, answer: Answer) -> float:
        return 1e200 if sample.id == "s1" else 1.5

    go(tmp_path, given([Asked(rows=rows(3), scorers=[wild])]))
    with Run.find(str(tmp_path), "run-1") as run:
        (found,) = run.report().cells[0].scorers
        assert (found.summary.mean, found.summary.n, found.no_score) == (1.5, 2, 1)
        assert run.score_kinds() == {"wild": "number"}
    assert check_scores(find_run(str(tmp_path), "run-1")).differences == []


def right(sample: Sample, answer: Answer) -> bool:
    return bool(answer.text == sample.target)


def tamper(place: RunPlace, change: str) -> None:
    Index(place.folder).close()
    with doctored(index_file(place.folder)) as database:
        assert database.execute(change).rowcount > 0


@pytest.mark.usefixtures("copied")
def test_the_folder_is_left_as_it_was(tmp_path: Path) -> None:
    before = sorted(path.name for path in Path(folder(tmp_path)).rglob("*"))
    check_scores(find_run(str(tmp_path), "run-1"))
    assert sorted(path.name for path in Path(folder(tmp_path)).rglob("*")) == before
