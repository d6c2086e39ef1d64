"""Scores that are missing are counted and bounded, and never help: in reports, gates, comparisons and leaderboards."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types

from holdfast.models import Request
from holdfast.pytest_plugin import assert_score
from holdfast.records.samples import Answer, Sample
from holdfast.report.cells import CellReport
from holdfast.report.compare.comparison import Comparison, adjust_p_values, compare_sides
from holdfast.report.compare.gate import GateRule, GateVerdict, judge_against, judge_level
from holdfast.report.compare.leaderboard import Board, leaderboards
from holdfast.report.compare.sides import SideAnswers
from holdfast.report.costs import Cost
from holdfast.report.formats.latex import latex
from holdfast.report.formats.markdown import markdown
from holdfast.report.tables import report_rows
from holdfast.runs import Run, find_run
from holdfast.runs.execution.answer_selection import AnswerSelection
from holdfast.runs.scoring import ScoreRequest, given_to_score, score
from holdfast.score import scorer
from holdfast.solve import Context
from holdfast.stats import BOOL, COUNT, UNIT, Scale
from tests.oracle import check_reports
from tests.unit.engine.runs import Asked, given, go, model, rows
from tests.unit.report.test_weighing import line, side, side_of

CLOSE = 1e-12


def number_of(sample: Sample) -> int:
    return int(sample.id[1:])


def reported(store: Path) -> CellReport:
    """The only cell. Every number of it is computed a second time."""
    place = find_run(str(store), "run-1")
    checked = check_reports(place)
    assert (checked.differences, checked.unchecked) == ([], [])
    with Run(place) as run:
        (cell,) = run.report().cells
    return cell


def judged(mine: SideAnswers, rule: GateRule, theirs: SideAnswers | None = None) -> GateVerdict:
    own = mine.measures()["s"]
    return judge_level(mine, own, rule) if theirs is None else judge_against(mine, own, theirs.measures()["s"], rule)


def with_failures(values: Sequence[Any], run: str = "r", scale: Scale | None = None) -> SideAnswers:
    """One sample each; None is one that failed."""
    lines = [
        line(f"x{number}", status="failed") if value is None else line(f"x{number}", value)
        for number, value in enumerate(values)
    ]
    return side_of(lines, run, scale=scale)


def test_a_scorer_without_a_word_on_wrong_answers_is_not_perfect(tmp_path: Path) -> None:
    def lenient(sample: Sample, answer: Answer) -> bool | None:
        return True if number_of(sample) < 25 else None

    go(tmp_path, given([Asked(rows=rows(40), scorers=[lenient])]))
    (found,) = reported(tmp_path).scorers
    assert (found.summary.mean, found.summary.n, found.no_score) == (1.0, 25, 15)
    assert found.missing == {"no_score": 15}
    assert found.bounds == (25 / 40, 1.0)
    assert (found.scale, found.is_declared) == (BOOL, True)


@pytest.mark.parametrize("scale", [None, COUNT])
def test_without_both_ends_of_a_scale_there_are_no_bounds(tmp_path: Path, scale: Scale | None) -> None:
    def rare(sample: Sample, answer: Answer) -> float | None:
        return None if sample.id == "s0" else number_of(sample)

    go(tmp_path, given([Asked(rows=rows(4), scorers=[scorer(rare, scale=scale)])]))
    (found,) = reported(tmp_path).scorers
    assert (found.summary.mean, found.missing, found.bounds) == (2.0, {"no_score": 1}, None)
    assert found.is_declared is (scale is not None)


@pytest.mark.parametrize("scale", [None, {"": (0, 2), "part": (0, 2)}])
def test_every_reason_for_a_missing_score_is_counted_once(tmp_path: Path, scale: Any) -> None:
    """A label is none of the values that a scale allows: then the scorer has failed."""

    async def solve(sample: Sample, ctx: Context) -> str:
        if sample.id == "s0":
            raise ValueError("no")
        return "" if sample.id == "s1" else "text"

    def strict(sample: Sample, answer: Answer) -> Any:
        if sample.id == "s2":
            raise ValueError("cannot say")
        return {"s3": None, "s4": "unreadable", "s5": {"part": 1}}.get(sample.id, 0.5)

    scorers = [scorer(strict, scale=scale)]
    go(tmp_path, given([Asked(rows=rows(10), solver=solve, scorers=scorers, fields={"sample_retries": 0})]))
    cell = reported(tmp_path)
    found = next(each for each in cell.scorers if each.scorer == "strict")
    broken = {"scorer_failed": 1, "label": 1} if scale is None else {"scorer_failed": 2}
    assert found.missing == {"failed": 1, "no_score": 2, "not_scored": 1, **broken}
    assert found.summary.n == 4
    expected = None if scale is None else pytest.approx((4 * 0.5 / 10, (4 * 0.5 + 6 * 2) / 10), abs=CLOSE)
    assert found.bounds == expected


@pytest.fixture(scope="module")
def partly_empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 40 answers, 12 are empty and 27 right."""
    store = tmp_path_factory.mktemp("empty")

    async def reply(request: Request) -> str:
        question = str(request.messages[-1]["content"])
        number = int(question.split()[-1])
        return "" if number < 12 else "wrong" if number == 12 else question

    go(store, given([Asked(rows=rows(40), scorers=["exact_match"])], [model("m", reply)]))
    return store


def passes(run: Run, at_least: float, failed_max: int, *, certain: bool) -> bool:
    try:
        assert_score(run, at_least=at_least, certain=certain, failed_max=failed_max)
    except pytest.fail.Exception:
        return False
    return True


@pytest.mark.parametrize("at_least", [0.3, 0.5, 0.52, 0.8, 0.82, 0.97])
@pytest.mark.parametrize("accepted", [0, 11, 12, 40])
def test_assert_score_and_gate_have_one_verdict_on_missing_scores(
    partly_empty: Path, at_least: float, accepted: int
) -> None:
    """The lower end of 27 of 40, by Clopper and Pearson, is 0.509; of the 28 that are known it is 0.817."""
    low, of_known = scipy_stats.beta.ppf(0.025, [27, 27], [14, 2]).tolist()
    with Run(find_run(str(partly_empty), "run-1")) as run:
        (answers,) = run.sides("run-1").values()
        gated = judge_level(
            answers, answers.measures()["exact_match"], GateRule(at_least=at_least, missing_max=accepted)
        )
        assert gated.missing == {"no_score": 12}
        assert (gated.interval.mean, gated.interval.low) == pytest.approx((27 / 28, of_known), abs=1e-9)
        assert gated.passed is (accepted >= 12 and low >= at_least)
        assert passes(run, at_least, accepted, certain=True) is gated.passed
        assert passes(run, at_least, accepted, certain=False) is (accepted >= 12 and at_least <= 27 / 40)
        if accepted < 12:
            assert (gated.outcome, gated.depends_on_missing) == ("missing", False)
        elif low < at_least:
            assert (gated.outcome, gated.depends_on_missing) == ("unsure", of_known >= at_least)


def test_missing_scores_are_reported_as_empty_answers_too(partly_empty: Path) -> None:
    cell = reported(partly_empty)
    (found,) = cell.scorers
    assert (found.missing, cell.marks) == ({"no_score": 12}, {"empty": 12})
    assert found.bounds == (27 / 40, 39 / 40)


def test_a_count_that_is_missing_may_be_none_at_all() -> None:
    """A count has a lowest value and no highest: that is enough for a gate."""
    mine = with_failures([9, 8, 9, 10, 9, 9, 8, None], scale=COUNT)
    sure, unsure = (judged(mine, GateRule(at_least=each, missing_max=1)) for each in (3, 8))
    filled = [9, 8, 9, 10, 9, 9, 8, 0]
    low, high = scipy_stats.t.interval(0.95, 7, loc=62 / 8, scale=scipy_stats.sem(filled))
    assert 3 < low < 8 < high
    assert (sure.outcome, unsure.outcome, unsure.depends_on_missing) == ("passed", "unsure", True)
    assert unsure.interval.mean == 62 / 7


def test_a_part_of_a_run_does_not_pass_against_the_whole() -> None:
    whole, part = side(*[True] * 20, run="whole"), side(*[True] * 12, run="part")
    found = judged(part, GateRule(margin=0.5), whole)
    assert (found.outcome, found.passed, found.missing) == ("missing", False, {"not_planned": 8})
    assert (found.common, found.mean, found.baseline) == (12, 1.0, 1.0)
    accepted = judged(part, GateRule(margin=0.5, missing_max=8), whole)
    # 12 ties alone would do: with t = 2.201 they end at t^2 / (12 + t^2) = 0.288.
    assert accepted.interval.low == pytest.approx(-(2.200985**2) / (12 + 2.200985**2), rel=1e-6)
    assert (accepted.outcome, accepted.depends_on_missing) == ("unsure", True)
    assert judged(part, GateRule(margin=0.7, missing_max=8), whole).outcome == "passed"
    assert judged(part, GateRule(margin=0.5, missing_max=7), whole).outcome == "missing"
    assert judged(whole, GateRule(margin=0.5), part).outcome == "passed"  # more than the baseline has is no lack


def test_part_of_a_run_that_was_identical_does_not_pass_with_identical_passes() -> None:
    whole, part = side(*[True] * 20, run="whole"), side(*[True] * 12, run="part")
    found = judged(part, GateRule(identical_passes=True, missing_max=8), whole)
    assert (found.identical, found.outcome, found.depends_on_missing) == (True, "unsure", True)


def test_what_the_baseline_does_not_know_counts_as_right_there() -> None:
    mine = side(*[True] * 50)
    lucky = with_failures([True] * 40 + [None] * 10)
    found = judged(mine, GateRule(margin=0.15), lucky)
    assert (found.missing, found.outcome) == ({}, "passed")
    bad = side(*[True] * 40, *[False] * 10)
    # 10 losses of 50: Tango's interval, with t for 49 degrees of freedom, ends at -0.33.
    found = judged(bad, GateRule(margin=0.2), lucky)
    assert (found.missing, found.interval.mean, found.outcome, found.depends_on_missing) == ({}, 0.0, "unsure", True)


def failing_repeats(store: Path, reduce: Any, failures: dict[str, int], samples: int, repeats: int, right: int) -> None:
    """The first samples are right. `failures`: how many repeats of a sample fail."""
    turn = Counter[str]()

    async def solve(sample: Sample, ctx: Context) -> str:
        turn[sample.id] += 1
        if turn[sample.id] <= failures.get(sample.id, 0):
            raise ValueError("no")
        return "fine"

    def first(sample: Sample, answer: Answer) -> bool:
        return number_of(sample) < right

    fields = {"repeats": repeats, "sample_retries": 0, "reduce": reduce}
    go(store, given([Asked(rows=rows(samples), solver=solve, scorers=[first], fields=fields)]))


def test_samples_weigh_equally_though_repeats_failed(tmp_path: Path) -> None:
    """11 of 20 samples are right. Of the wrong ones, 7 have one answer of two: 22 of 33 answers are right."""
    failing_repeats(tmp_path, "mean", {f"s{number}": 1 for number in range(13, 20)}, samples=20, repeats=2, right=11)
    (found,) = reported(tmp_path).scorers
    assert found.summary.mean == 0.55
    assert (found.summary.n, found.summary.samples, found.summary.groups) == (33, 20, None)
    assert found.missing == {"failed": 7}
    assert found.bounds == (22 / 40, 29 / 40)
    assert found.summary.standard_error == pytest.approx((0.55 * 0.45 / 19) ** 0.5, abs=CLOSE)
    with Run(find_run(str(tmp_path), "run-1")) as run:
        (answers,) = run.sides("run-1").values()
        measure = answers.measures()["first"]
        assert measure.summary() == found.summary
        gated = judge_level(answers, measure, GateRule(at_least=0.1, missing_max=7))
        assert (gated.mean, gated.samples, gated.common) == (0.55, 20, 33)
        assert passes(run, 0.55, 7, certain=False)
        assert not passes(run, 0.56, 7, certain=False)


def test_samples_weigh_equally_in_comparisons() -> None:
    """Of three samples, one has all five repeats: by keys the second side gains 3 of 7, by samples 1.6 of 3."""
    ahead = [True, True, True, False, False]
    lines = [line("a", value, repeat) for repeat, value in enumerate(ahead, 1)]
    lines += [line(sample, sample == "b", 1) for sample in "bc"]
    lines += [line(sample, repeat=repeat, status="failed") for sample in "bc" for repeat in range(2, 6)]
    every = [line(sample, False, repeat) for sample in "abc" for repeat in range(1, 6)]
    (found,) = compare_sides(side_of(every, "first"), side_of(lines, "second"))
    assert (found.mean_first, found.common, found.samples) == (0.0, 7, 3)
    assert found.mean_second == pytest.approx(1.6 / 3, abs=CLOSE)
    assert found.difference is not None
    assert found.difference.mean == pytest.approx(1.6 / 3, abs=CLOSE)
    assert (found.difference.n, found.difference.samples) == (7, 3)
    assert (found.wins, found.losses, found.ties) == (4, 0, 3)
    # All 15 keys: with the 8 missing ones wrong, 4 are right, with them right, 12.
    assert found.bounds == pytest.approx((4 / 15, 12 / 15), abs=CLOSE)


def test_reduced_rows_count_samples_without_a_value(tmp_path: Path) -> None:
    """Of six samples with three repeats each, one has no answer at all, and one has two; three samples are right."""
    ways = ["mean", "max", "at_least_2", "pass@2", "pass^3", "majority", "median"]
    failing_repeats(tmp_path, ways, {"s0": 3, "s5": 1}, samples=6, repeats=3, right=3)
    (found,) = reported(tmp_path).scorers
    told = {each.reducer: each for each in found.reduced}
    assert {name: each.no_value for name, each in told.items()} == {
        "max": 2,
        "at_least_2": 2,
        "pass@2": 1,
        "pass^3": 2,
        "majority": 1,
        "median": 1,
    }
    assert {name: (each.summary.mean, each.summary.n) for name, each in told.items()} == {
        **dict.fromkeys(["max", "at_least_2", "pass^3"], (0.5, 4)),
        **dict.fromkeys(["pass@2", "majority", "median"], (0.4, 5)),
    }
    for name, each in told.items():
        expected = (2 / 6, 4 / 6) if each.no_value == 2 else (2 / 6, 3 / 6)
        assert each.bounds == pytest.approx(expected, abs=CLOSE), name
    assert (found.summary.mean, found.summary.samples, found.missing) == (0.4, 5, {"failed": 4})
    assert found.bounds == pytest.approx((6 / 18, 10 / 18), abs=CLOSE)


def compared(first: SideAnswers, second: SideAnswers) -> Comparison:
    (found,) = adjust_p_values(list(compare_sides(first, second)))
    return found


def test_a_comparison_says_if_a_difference_depends_on_what_is_missing() -> None:
    """The second side gains 8 of 12, and its 8 failures are samples that the first has right."""
    first = side(*[True] * 4, *[False] * 8, *[True] * 8, run="first")
    second = with_failures([True] * 12 + [None] * 8, run="second")
    found = compared(first, second)
    assert found.p == pytest.approx(scipy_stats.binomtest(0, 8).pvalue, abs=CLOSE)
    assert found.adjusted_p == found.p
    assert (found.missing_second, found.bounds) == ({"failed": 8}, (0.0, 8 / 20))
    assert (found.cautious_p, found.depends_on_missing) == (1.0, True)
    back = compared(second, first)
    assert (back.bounds, back.cautious_p, back.depends_on_missing) == ((-8 / 20, 0.0), 1.0, True)
    assert back.difference is not None
    assert back.difference.mean == -8 / 12


def test_a_large_difference_does_not_depend_on_one_failure() -> None:
    first, second = side(*[False] * 30, False), with_failures([True] * 30 + [None])
    found = compared(first, second)
    assert found.cautious_p == pytest.approx(scipy_stats.binomtest(0, 30).pvalue, rel=1e-9)  # the failure is a tie
    assert (found.depends_on_missing, found.bounds) == (False, (30 / 31, 1.0))
    found = compared(side(*[False] * 30, True), second)
    assert found.cautious_p == pytest.approx(scipy_stats.binomtest(1, 31).pvalue, rel=1e-9)
    assert (found.depends_on_missing, found.bounds) == (False, (29 / 31, 30 / 31))


def test_what_is_missing_on_a_scale_without_ends_could_be_anything() -> None:
    whole = compared(side(*[False] * 9), side(*[True] * 9))
    assert (whole.cautious_p, whole.bounds, whole.depends_on_missing) == (None, None, False)
    unknown = compared(side(*[0.5] * 10), with_failures([0.75] * 9 + [None]))
    assert (unknown.cautious_p, unknown.bounds, unknown.depends_on_missing) == (1.0, None, True)  # it could be anything
    known = compared(side(*[0.5] * 10, scale=UNIT), with_failures([0.75] * 9 + [None], scale=UNIT))
    assert known.bounds == pytest.approx(((9 * 0.25 - 0.5) / 10, (9 * 0.25 + 0.5) / 10), abs=CLOSE)


def test_whether_a_difference_depends_on_missing_scores_is_judged_after_adjustment() -> None:
    """8 gains and a failure against them: p is 0.039. It is enough for one comparison, and not for one of two."""
    first, second = side(*[False] * 8, True), with_failures([True] * 8 + [None])
    assert scipy_stats.binomtest(1, 9).pvalue == pytest.approx(0.0390625)
    assert compared(first, second).depends_on_missing is False
    other = compare_sides(side(*[True] * 9, run="other"), side(*[True] * 8, False))
    found, _ = adjust_p_values([*compare_sides(first, second), *other])
    assert found.adjusted_p == pytest.approx(2 * 2 * 0.5**8)
    assert found.depends_on_missing is True


def board(*sides: SideAnswers) -> Board:
    (found,) = leaderboards([{("t", "m"): each} for each in sides], [{("t", "m"): Cost()}] * len(sides))
    return found


def ranks(found: Board) -> dict[str, int]:
    return {each.run: each.rank for each in found.ranked}


def test_a_model_with_failures_does_not_lead() -> None:
    fails = with_failures([True] * 12 + [None] * 8, "fails")
    steady = side(*[True] * 4, *[False] * 8, *[True] * 8, run="steady")
    for found in (board(fails, steady), board(steady, fails)):
        assert ranks(found) == {"fails": 1, "steady": 1}
        assert (found.common_min, found.undecided) == (12, 1)
        told = {each.run: each for each in found.ranked}
        assert (told["fails"].missing, told["fails"].bounds) == (8, (12 / 20, 1.0))
        assert (told["steady"].missing, told["steady"].bounds) == (0, None)
        assert (told["fails"].summary.mean, told["steady"].summary.mean) == (1.0, 4 / 12)
    answered = side(*[True] * 20, run="answered")
    found = board(answered, steady)
    assert (ranks(found), found.undecided, found.common_min) == ({"answered": 1, "steady": 2}, 0, 20)


def test_failures_that_change_nothing_cost_no_rank() -> None:
    found = board(with_failures([True] * 30 + [None], "good"), side(*[False] * 31, run="bad"))
    assert (ranks(found), found.undecided, found.common_min) == ({"good": 1, "bad": 2}, 0, 30)


def test_the_failures_of_the_worse_model_may_have_been_right() -> None:
    good, fails = side(*[True] * 10, *[False] * 10, run="good"), with_failures([False] * 10 + [None] * 10, "fails")
    found = board(good, fails)
    assert (ranks(found), found.undecided) == ({"good": 1, "fails": 1}, 1)
    assert next(each for each in found.ranked if each.run == "fails").bounds == (0.0, 0.5)


def test_on_a_scale_without_ends_a_failure_leaves_everything_open() -> None:
    good, bad = with_failures([2.5] * 30 + [None], "good"), side(*[0.5] * 31, run="bad")
    found = board(good, bad)
    assert (ranks(found), found.undecided) == ({"good": 1, "bad": 1}, 1)
    assert {each.bounds for each in found.ranked} == {None}


def test_equal_means_share_a_rank() -> None:
    """`c` is better than `a` (12 gains, no loss), and not surely than `b` (20 gains, 8 losses): both have 20 of 40."""
    right = {"c": range(32), "a": range(20), "b": [*range(12), *range(32, 40)]}
    assert 3 * scipy_stats.binomtest(0, 12).pvalue < 0.05 < 2 * scipy_stats.binomtest(8, 28).pvalue
    sides = {name: side(*(number in each for number in range(40)), run=name) for name, each in right.items()}
    assert ranks(board(sides["c"], sides["a"])) == {"c": 1, "a": 2}
    for order in ("cab", "abc", "bca"):
        found = board(*(sides[name] for name in order))
        assert ranks(found) == {"c": 1, "a": 1, "b": 1}
        assert found.ranked[0].run == "c"


def test_means_and_ranks_rest_on_the_keys_that_all_have() -> None:
    """The third model answers only the last ten, in which the first two differ by one."""
    one, two = side(*[True] * 20, run="one"), side(*[False] * 11, *[True] * 9, run="two")
    three = with_failures([None] * 10 + [True] * 8 + [False] * 2, "three")
    assert ranks(board(one, two)) == {"one": 1, "two": 2}
    found = board(one, two, three)
    assert found.common_min == 10
    assert {each.run: each.summary.mean for each in found.ranked} == {"one": 1.0, "two": 0.9, "three": 0.8}
    assert ranks(found) == {"one": 1, "two": 1, "three": 1}
    assert [each.run for each in found.ranked] == ["one", "two", "three"]


def test_a_scorer_that_fails_on_all_chosen_answers_leaves_out_the_others_too(tmp_path: Path) -> None:
    """`n` is the number of scores, also for a task of which no answer was chosen."""
    tasks = [
        Asked(name, [{**row, "id": f"{name}{row['id']}"} for row in rows(6)], scorers=["exact_match"])
        for name in ("a", "b")
    ]
    go(tmp_path, given(tasks))

    def broken(sample: Sample, answer: Answer) -> float:
        raise ValueError("no verdict")

    place, request = (
        find_run(str(tmp_path), "run-1"),
        ScoreRequest([broken], "", AnswerSelection(samples=("as0", "as1"))),
    )
    done = asyncio.run(score(given_to_score(given(tasks), place, request), place, request))
    with Run(done.place) as run:
        report = run.report(done.evaluation)
    chosen, other = report.cells
    assert chosen.scorers[0].missing == {"scorer_failed": 2, "not_scored": 4}
    assert other.scorers == ()
    names, shown = report_rows(report, all_columns=False)
    assert [(line[names.index("n")], line[names.index("left out")]) for line in shown] == [("0", "6")] * 2
    assert markdown(report).count("| 0 | 6 |") == 2
    assert latex([report]).count("& 0 & 6") == 2
