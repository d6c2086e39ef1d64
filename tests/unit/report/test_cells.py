"""What a run found: failures and missing scores are shown and never averaged in; repeats are one group."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.records.samples import Answer, Sample, Usage
from holdfast.report import CellReport, Example, ScorerReport, report_cells
from holdfast.score import scorer
from holdfast.solve import Context
from holdfast.state import Index
from holdfast.stats import summarise
from tests.unit.engine.runs import Asked, folder, given, go, mock, rows
from tests.unit.state.stories import entries, finished, new_run, score, scoring, started, write


def cells(store: Path, evaluation: str = "") -> list[CellReport]:
    index = Index(folder(store))
    try:
        return list(report_cells(index, evaluation))
    finally:
        index.close()


def scorers(store: Path) -> dict[str, ScorerReport]:
    (cell,) = cells(store)
    return {each.scorer: each for each in cell.scorers}


def by_number(*values: Any) -> Any:
    """A scorer that gives each sample the value at its number."""

    def said(sample: Sample, answer: Answer) -> Any:
        value = values[int(sample.id[1:])]
        if isinstance(value, Exception):
            raise value
        return value

    return scorer(said, name="said")


def test_missing_scores_and_failed_scorers_have_no_part_in_the_mean(tmp_path: Path) -> None:
    values = [1.0, 0.5, None, float("nan"), ValueError("cannot say"), 0.0]
    go(tmp_path, given([Asked(rows=rows(6), scorers=[by_number(*values)])]))
    said = scorers(tmp_path)["said"]
    assert (said.summary.n, said.summary.mean, said.no_score, said.failures) == (3, 0.5, 2, 1)
    assert said.example == Example("task/mock/s4/1", "ValueError: cannot say")


def test_failed_samples_are_counted_with_their_kinds_and_have_no_part_in_the_mean(tmp_path: Path) -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        if sample.id in ("s1", "s3"):
            raise ValueError("no")
        return "fine"

    task = Asked(rows=rows(5), solver=solve, scorers=[by_number(1, 1, 1, 1, 0)], fields={"sample_retries": 0})
    go(tmp_path, given([task]))
    (cell,) = cells(tmp_path)
    assert (cell.planned, cell.finished, cell.failed, cell.unfinished) == (5, 3, 2, 0)
    assert cell.failures == {"solver": 2}
    assert cell.examples == {"solver": Example("task/mock/s1/1", "ValueError: no")}
    assert cell.scorers[0].summary.n == 3
    assert cell.scorers[0].summary.mean == pytest.approx(2 / 3)


def test_repeats_of_a_sample_are_one_group(tmp_path: Path) -> None:
    task = Asked(rows=rows(4), scorers=[by_number(0.25, 1.0, 0.5, 0.0)], fields={"repeats": 5})
    go(tmp_path, given([task]))
    summary = scorers(tmp_path)["said"].summary
    alone = summarise([0.25, 1.0, 0.5, 0.0])
    assert summary == msgspec.structs.replace(alone, n=20, samples=4)
    assert alone.mean == 0.4375


def test_labels_are_counted_and_not_averaged(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(4), scorers=[by_number("good", "bad", "good", None)])]))
    said = scorers(tmp_path)["said"]
    assert (said.labels, said.summary.mean, said.no_score) == ({"good": 2, "bad": 1}, None, 1)


def test_a_scorer_that_returns_a_mapping_is_one_row_for_each_of_its_keys(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(2), scorers=[by_number({"a": 1, "b": 0}, {"a": 0, "b": 0})])]))
    found = scorers(tmp_path)
    assert {name: each.summary.mean for name, each in found.items()} == {"said.a": 0.5, "said.b": 0.0}


def test_each_cell_is_reported_by_itself(tmp_path: Path) -> None:
    tasks = [
        Asked("one", rows(2), scorers=[by_number(1, 1)]),
        Asked("two", rows(3), scorers=[by_number(0, 0, 0)]),
        Asked("none", rows(1)),
    ]
    go(tmp_path, given(tasks, [mock(name="a"), mock(name="b")]))
    found = [
        (cell.task, cell.model, cell.planned, [each.summary.mean for each in cell.scorers]) for cell in cells(tmp_path)
    ]
    assert found == [
        ("one", "a", 2, [1.0]),
        ("one", "b", 2, [1.0]),
        ("two", "a", 3, [0.0]),
        ("two", "b", 3, [0.0]),
        ("none", "a", 1, []),
        ("none", "b", 1, []),
    ]


def test_the_tokens_of_a_cell_are_those_of_its_answers(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(3))]))
    (cell,) = cells(tmp_path)
    assert cell.usage == Usage(6, 6)  # "question 1" is two words, and so is its echo


def test_two_scorers_of_one_kind_with_other_arguments_are_both_reported(tmp_path: Path) -> None:
    """Or the spec is refused: what must not happen is that one of them vanishes."""
    fields = {"scorers": [{"includes": {}}, {"includes": {"ignore_case": True}}]}
    try:
        go(tmp_path, given([Asked(rows=rows(2), fields=fields)]))
    except HoldfastError:
        return
    assert len(scorers(tmp_path)) == 2


def test_what_another_reader_brings_in_meanwhile_has_no_part_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is at work; `watch` brings the index up to date between our look at the answers and at the scores."""
    run = new_run(tmp_path, [started(2), scoring(), finished(0)])
    of_first = [each.line.n for each in entries(run) if each.line.t == "sample.finished"]
    write(run, [score(0, of_first[0])])
    index, before = Index(run), Index.scores
    (second,) = write(run, [finished(1)])[-1:]
    write(run, [score(1, second.n, value=False)])

    def later(self: Index, *wanted: Any) -> Any:
        Index(run).close()
        return before(self, *wanted)

    monkeypatch.setattr(Index, "scores", later)
    (cell,) = report_cells(index)
    index.close()
    assert (cell.finished, [each.summary.n for each in cell.scorers]) == (1, [1])
