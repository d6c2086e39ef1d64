"""Scores that are shares of several parts of a sample: the mean is the share of all parts, as IFEval publishes it."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.models import Request
from holdfast.report.cells import ScorerReport
from holdfast.report.compare.comparison import compare_sides
from holdfast.runs import Run, leaderboard_of
from holdfast.stats import UNIT, sum_groups, summarise_sums
from tests.unit.engine.runs import Asked, given, go, model

NO_COMMA, TITLE, QUOTED = "punctuation:no_comma", "detectable_format:title", "startend:quotation"
LISTS = [[NO_COMMA], [NO_COMMA, TITLE], [NO_COMMA, TITLE, QUOTED], [TITLE], [NO_COMMA], [TITLE, QUOTED]]
ROWS = [
    {"id": f"s{number}", "prompt": f"prompt {number}", "instruction_id_list": names, "kwargs": [{}] * len(names)}
    for number, names in enumerate(LISTS)
]
ENTRY = {"ifeval_instruction": {"skip_language": True, "name": "instruction"}}
WORST = [{"ifeval_prompt": {"skip_language": True, "name": "prompt"}}, ENTRY]
DATA = {"input": "prompt", "group": "id"}


async def plain(request: Request) -> str:
    """Follows `no_comma` only: 4 of 10 instructions, and 2 of 6 prompts."""
    return "a plain answer"


async def title(request: Request) -> str:
    """Follows `no_comma` and `title`: 8 of 10 instructions, and 4 of 6 prompts."""
    return "<<a title>>"


async def fail(request: Request) -> str:
    if str(request.messages[-1]["content"]) == "prompt 2":
        raise ValueError("no")
    return "a plain answer"


def made(store: Path, *replies: Any, fields: dict[str, Any] | None = None, **more: Any) -> dict[str, ScorerReport]:
    """The scorers of the first model."""
    models = [model(f"m{number}", reply) for number, reply in enumerate(replies)]
    fields = {"dataset": DATA, "prompt": "{prompt}", **(fields or {})}
    go(store, given([Asked(rows=ROWS, scorers=WORST, fields=fields)], models, **more))
    with Run.find(str(store), "run-1") as run:
        return {each.scorer: each for each in run.report().cells[0].scorers}


def test_the_mean_is_the_share_of_all_instructions_clustered_by_prompt(tmp_path: Path) -> None:
    found = made(tmp_path, plain)
    shares, weights = [1, 1 / 2, 1 / 3, 0, 1, 0], [1, 2, 3, 1, 1, 2]
    summary = found["instruction"].summary
    expected = summarise_sums([sum_groups(shares, None, weights)], scale=UNIT)
    assert summary.mean == pytest.approx(0.4)
    assert summary.mean != pytest.approx(sum(shares) / 6)
    assert (summary.standard_error, summary.low, summary.high) == pytest.approx(
        (expected.standard_error, expected.low, expected.high)
    )
    assert (summary.n, summary.groups) == (6, None)
    assert found["prompt"].summary.mean == pytest.approx(2 / 6)
    assert (found["prompt"].weight, found["instruction"].bounds) == (None, None)
    with Run.find(str(tmp_path), "run-1") as run:
        assert "instruction: the mean is the share of all 10 entries of instruction_id_list" in str(run.report())


def test_repeats_weigh_like_their_prompt(tmp_path: Path) -> None:
    summary = made(tmp_path, plain, fields={"repeats": 3})["instruction"].summary
    assert summary.mean == pytest.approx(0.4)
    assert (summary.n, summary.samples) == (18, 6)


def test_failed_prompts_count_with_all_their_instructions(tmp_path: Path) -> None:
    fields = {"counts": {"failed": "wrong"}, "sample_retries": 0}
    found = made(tmp_path, fail, fields=fields)["instruction"]
    assert found.summary.mean == pytest.approx(3 / 10)
    assert found.wrong is not None
    assert found.wrong.answered_mean == pytest.approx(3 / 7)


def test_bounds_weigh_missing_prompts_too(tmp_path: Path) -> None:
    found = made(tmp_path, fail, fields={"sample_retries": 0})["instruction"]
    assert found.summary.mean == pytest.approx(3 / 7)
    assert found.bounds == pytest.approx((3 / 10, 6 / 10))


def test_comparisons_and_leaderboards_have_the_same_means(tmp_path: Path) -> None:
    made(tmp_path, plain, title)
    with Run.find(str(tmp_path), "run-1") as run:
        sides = {name: each for (_, name), each in run.sides("run-1").items()}
        found = {each.scorer: each for each in compare_sides(sides["m0"], sides["m1"])}["instruction"]
        assert (found.mean_first, found.mean_second) == pytest.approx((0.4, 0.8))
        assert found.difference is not None
        assert found.difference.mean == pytest.approx(0.4)
        boards = {board.scorer: board for board in leaderboard_of([run]).boards}
        means = {each.model: each.summary for each in boards["instruction"].ranked}
        reports = {cell.model: {each.scorer: each for each in cell.scorers} for cell in run.report().cells}
    assert means == {name: each["instruction"].summary for name, each in reports.items()}


def test_without_the_rows_samples_weigh_equally_and_the_report_says_so(tmp_path: Path) -> None:
    found = made(tmp_path, plain, record_data=False)["instruction"]
    assert found.summary.mean == pytest.approx(sum([1, 1 / 2, 1 / 3, 0, 1, 0]) / 6)
    assert found.weight is not None
    assert found.weight.unknown.endswith("is not known because record_data is off, so samples weigh equally")
