"""`verify --scores` compares reports of the cached index with those of a rebuilt one, and scores answers again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.journal import OpenRequest, Reader
from holdfast.records import draft
from holdfast.records.built_in import SCORER_VERSIONS
from holdfast.records.facts import ScoreGiven
from holdfast.records.samples import Answer, Sample
from holdfast.runs import Run, RunLocation, find_run
from holdfast.runs.verification import ScoresChecked, check_index, check_scores
from holdfast.score import SCORERS as SCORER_TABLE
from holdfast.state import Index
from tests.caches import Change, doctor, index_file, set_row, tamper
from tests.journals import write_session
from tests.unit.engine.runs import Asked, folder, given, go, records, rows
from tests.unit.report.test_reported_counts import ran


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunLocation:
    """Nobody changes it."""
    return ran(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def copied(whole: RunLocation, tmp_path: Path) -> RunLocation:
    """The same, with an index, to be changed."""
    shutil.copytree(whole.store, tmp_path, dirs_exist_ok=True)
    place = find_run(str(tmp_path), "run-1")
    with Run(place) as run:
        run.report()
    return place


def at_first(row: Any) -> bool:
    return bool(row.o == 0)


TAMPERED: list[tuple[str, Change, Callable[[Any], bool], str]] = [
    (
        "scores",
        set_row(encoded=b"1.0"),
        lambda row: row.scorer == "mixed.grade" and row.o == 0,
        "cells[task/a].scorers[mixed.grade].summary.mean",
    ),
    (
        "scores",
        lambda row: None,
        lambda row: row.scorer == "exact_match" and row.o == 0,
        "scorers[exact_match].summary.n: the report says 14",
    ),
    ("scores", set_row(failure=""), lambda row: row.failure != "", "scorers[mixed].failures: the report says 0"),
    ("scores", set_row(encoded=b'"good"'), lambda row: row.scorer == "mixed.tone", "labels.bad"),
    ("answers", set_row(status="failed", kind="odd"), at_first, "finished: the report says 14"),
    ("answers", set_row(output_tokens=21), at_first, "output_tokens: the report says 301, the journal 300"),
    (
        "answers",
        lambda row: msgspec.structs.replace(row, seconds=row.seconds + 1),
        at_first,
        "cells[task/a].seconds: ",
    ),
    (
        "answers",
        set_row(marks=""),
        lambda row: row.marks != "",
        "marks.truncated: the report says nothing, the journal 3",
    ),
    ("answers", set_row(kind="timeout"), lambda row: row.kind == "solver", "failures.timeout"),
]


@pytest.mark.parametrize(("table", "change", "where", "told"), TAMPERED)
def test_an_index_that_was_tampered_with_is_found_and_rebuilt(
    copied: RunLocation, table: str, change: Change, where: Callable[[Any], bool], told: str
) -> None:
    tamper(copied.folder, table, change, where)
    found = check_scores(copied).differences
    assert any(told in each for each in found), found
    check_index(copied, is_wrong=True)
    assert check_scores(copied).differences == []


def test_dollars_tokens_and_steps_that_were_tampered_with_are_found(copied: RunLocation) -> None:
    place = copied
    Index(place.folder).close()

    def more(directory: bytes) -> bytes:
        found = msgspec.json.decode(directory)
        found["story"]["steps"] += 1
        found["story"]["bills"]["task/a"][""]["usage"]["input_tokens"] += 5
        return msgspec.json.encode(found)

    doctor(index_file(place.folder), more)
    found = check_scores(place).differences
    assert [each.partition(":")[0] for each in found] == ["cells[task/a].cost.dollars", "steps.live", "cost.dollars"]


def test_a_recorded_score_that_the_scorer_would_not_give_is_found(copied: RunLocation, tmp_path: Path) -> None:
    place = copied
    scores = [data for kind, data in records(tmp_path) if kind == "score" and data["scorer"] == "exact_match"]
    told = next(data for data in scores if data["o"] == 0)
    forged = ScoreGiven(told["o"], told["of"], told["evaluation"], "exact_match", False, last=True)
    uid = Reader(place.journal).uid
    write_session(place.journal, [draft("score", forged, "task/a/s0/1")], wanted=OpenRequest(uid))
    assert check_scores(place).differences == ["task/a/s0/1: exact_match: recorded is False, scored again True"]


def test_a_scorer_of_another_version_is_not_called_again(whole: RunLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORER_VERSIONS, "exact_match", 2)
    found: ScoresChecked = check_scores(whole)
    assert found.skipped["exact_match"] == "its version, or that of a package that it computes with, has changed since"
    assert (found.rescored, found.differences) == ({}, [])


def test_composed_scorers_are_asked_again_with_their_extractors_and_those_with_parts_of_your_own_are_not(
    tmp_path: Path,
) -> None:
    exact, includes = SCORER_TABLE["exact_match"], SCORER_TABLE["includes"]
    whole = SCORER_TABLE["all_of"].using(of=[exact, includes.using(extract=["last_line"])], name="whole")
    partly_own = SCORER_TABLE["any_of"].using(of=[exact, right], name="own")
    depends = SCORER_TABLE["when"].using(test=exact, then=includes)
    go(tmp_path, given([Asked(rows=rows(4), scorers=[whole, partly_own, depends, SCORER_TABLE["consistency"]])]))
    found = check_scores(find_run(str(tmp_path), "run-1"))
    assert found.differences == []
    assert found.rescored == {"whole": 4, "when": 4}
    assert set(found.skipped) == {"own", "consistency"}


def right(sample: Sample, answer: Answer) -> bool:
    return bool(answer.text == sample.target)


@pytest.mark.usefixtures("copied")
def test_the_folder_is_left_as_it_was(tmp_path: Path) -> None:
    before = sorted(path.name for path in Path(folder(tmp_path)).rglob("*"))
    check_scores(find_run(str(tmp_path), "run-1"))
    assert sorted(path.name for path in Path(folder(tmp_path)).rglob("*")) == before
