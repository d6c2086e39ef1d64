"""Where nothing varies, a gate is not sure; what it passes, it passes for the number of samples there are."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types

from holdfast.records.samples import Answer, Sample
from holdfast.report.compare.comparison import compare_sides
from holdfast.report.compare.gate import GateRule
from holdfast.runs import Run, find_run
from holdfast.score import scorer
from holdfast.stats import BOOL, NUMBER, UNIT, Scale
from tests.oracle import check_reports
from tests.unit.engine.runs import Asked, given, go, rows
from tests.unit.report.test_missing_scores import judged
from tests.unit.report.test_weighing import line, side, side_of

GRADES = Scale("range", 1.0, 5.0)
SAME: list[tuple[int, float, Any, Scale | None]] = [
    (3, 0.0, True, None),
    (20, 0.001, True, None),
    (20, 0.001, False, BOOL),
    (20, 0.001, 0.7, None),
    (20, 0.001, 0.7, UNIT),
    (200, 0.001, 3.0, GRADES),
    (5000, 0.0, True, BOOL),
]


@pytest.mark.parametrize(("n", "margin", "value", "scale"), SAME)
def test_identical_scores_are_unsure_and_pass_knowingly(n: int, margin: float, value: Any, scale: Scale | None) -> None:
    one, other = side(*[value] * n, scale=scale), side(*[value] * n, scale=scale)
    found = judged(one, GateRule(margin=margin), other)
    assert (found.outcome, found.passed, found.identical, found.depends_on_missing) == ("unsure", False, True, False)
    found = judged(one, GateRule(margin=margin, identical_passes=True), other)
    assert (found.outcome, found.passed, found.identical) == ("passed", True, True)
    assert judged(one, GateRule(margin=margin, unsure_passes=True), other).passed


def test_identical_passes_only_what_is_identical() -> None:
    rule = GateRule(margin=0.001, identical_passes=True)
    found = judged(side(*[True] * 19, False), rule, side(*[True] * 20))
    assert (found.outcome, found.identical) == ("unsure", False)
    found = judged(side(*[True] * 19, False), rule, side(*[True] * 18, False, True))  # means alone are the same
    assert (found.outcome, found.identical) == ("unsure", False)
    swapped = [line("x", True, 1), line("x", False, 2), line("y", True, 1), line("y", True, 2)]
    found = judged(side_of(swapped), rule, side_of([*swapped[2:], *swapped[:2]]))
    assert (found.outcome, found.identical) == ("passed", True)
    assert not judged(side(*[True] * 20), GateRule(at_least=0.9, identical_passes=True)).identical


@pytest.mark.parametrize(("margin", "enough"), [(0.05, 76), (0.1, 38), (0.3, 12)])
def test_enough_ties_pass_a_margin(margin: float, enough: int) -> None:
    """The interval of n ties ends at t^2 / (n + t^2)."""
    for n, expected in ((enough - 1, "unsure"), (enough, "passed")):
        t = float(scipy_stats.t.ppf(0.975, n - 1))
        assert (t**2 / (n + t**2) <= margin) is (expected == "passed")
        assert judged(side(*[True] * n), GateRule(margin=margin), side(*[True] * n)).outcome == expected


def test_ties_need_about_as_many_samples_as_a_gate_says() -> None:
    found = judged(side(*[True] * 20), GateRule(margin=0.05), side(*[True] * 20))
    assert found.samples_needed == pytest.approx(76, abs=2)
    again = judged(side(*[True] * 80), GateRule(margin=0.05), side(*[True] * 80))
    assert (again.outcome, again.samples_needed) == ("passed", None)


@pytest.mark.parametrize("n", [10, 20, 100])
def test_a_loss_equal_to_the_margin_rarely_passes(n: int) -> None:
    """5 % losses, no gains, exactly: before, 60, 37 and 12 of 100 such runs passed."""
    passed = 0.0
    for losses in range(n + 1):
        found = judged(side(*[False] * losses, *[True] * (n - losses)), GateRule(margin=0.05), side(*[True] * n))
        passed += float(scipy_stats.binom.pmf(losses, n, 0.05)) * found.passed
        if not found.passed and losses > 2:
            break
    assert passed <= 0.025


@pytest.mark.parametrize("scale", [None, NUMBER, GRADES])
def test_two_equal_grades_do_not_reach_a_score_surely(scale: Scale | None) -> None:
    found = judged(side(4.9, 4.9, scale=scale), GateRule(at_least=4.8))
    assert (found.outcome, found.mean) == ("unsure", 4.9)
    expected = 1 + 3.9 * 0.025**0.5 if scale == GRADES else None
    assert found.interval.low == (None if expected is None else pytest.approx(expected))


def test_the_exact_interval_decides_on_right_or_wrong() -> None:
    """98 of 100: Wilson's interval begins at 0.9300, Clopper and Pearson's at 0.9296."""
    found = judged(side(*[True] * 98, False, False), GateRule(at_least=0.93))
    low = scipy_stats.beta.ppf(0.025, 98, 3)
    assert found.interval.low == pytest.approx(low, rel=1e-9)
    assert (found.interval.method, found.outcome) == ("exact", "unsure")
    assert judged(side(*[True] * 98, False, False), GateRule(at_least=0.9295)).outcome == "passed"


@pytest.mark.parametrize("share", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("n", [20, 50])
def test_a_run_at_the_bound_passes_at_most_at_the_nominal_rate(n: int, share: float) -> None:
    chances: dict[str, float] = {"passed": 0.0, "worse": 0.0, "unsure": 0.0}
    for right in range(n + 1):
        found = judged(side(*[True] * right, *[False] * (n - right)), GateRule(at_least=share))
        chances[found.outcome] += float(scipy_stats.binom.pmf(right, n, share))
    assert max(chances["passed"], chances["worse"]) <= 0.025


def test_equal_grades_have_an_interval_on_their_scale(tmp_path: Path) -> None:
    """All grades are 1 of 1 to 5. They are no right answers, though every one of them is 1."""

    def lowest(sample: Sample, answer: Answer) -> float:
        return 1

    scorers = [scorer(lowest, name="declared", scale=(1, 5)), scorer(lowest, name="unknown")]
    go(tmp_path, given([Asked(rows=rows(20), scorers=scorers, fields={"repeats": 2, "reduce": ["mean", "max"]})]))
    place = find_run(str(tmp_path), "run-1")
    assert check_reports(place).differences == []
    with Run(place) as run:
        declared, unknown = run.report().cells[0].scorers
    high = 5 - 4 * 0.025 ** (1 / 20)  # were the mean higher, 20 grades of 1 would be too unlikely
    for summary in (declared.summary, declared.reduced[0].summary):
        assert (summary.mean, summary.low, summary.method) == (1.0, 1.0, "equal")
        assert summary.high == pytest.approx(high, abs=1e-12)
    for summary in (unknown.summary, unknown.reduced[0].summary):
        assert (summary.mean, summary.low, summary.high, summary.method) == (1.0, None, None, "")


@pytest.mark.parametrize("values", [([True, False], [False, True]), ([True, True], [False, False])])
def test_a_difference_between_two_samples_stays_on_its_scale(values: tuple[list[bool], list[bool]]) -> None:
    """Before: -6.85 .. +5.85."""
    (found,) = compare_sides(side(*values[0]), side(*values[1]))
    assert found.difference is not None
    assert found.difference.low is not None
    assert found.difference.high is not None
    assert -1 <= found.difference.low < found.difference.high <= 1


def test_a_reduced_chance_is_not_tested_as_right_or_wrong() -> None:
    """pass@2 of three repeats is 0, 2/3 or 1: McNemar's test would count a gain of 2/3 as one of 1."""

    def lines(rights: list[int]) -> list[Any]:
        return [line(f"x{i}", repeat <= right, repeat) for i, right in enumerate(rights) for repeat in (1, 2, 3)]

    first, second = lines([0, 0, 0, 0, 0, 3, 3, 0]), lines([1, 1, 1, 1, 1, 0, 0, 0])
    (found,) = compare_sides(side_of(first, reduce="pass@2"), side_of(second, reduce="pass@2"))
    assert found.difference is not None
    assert found.difference.mean == pytest.approx((5 * 2 / 3 - 2) / 8)
    assert found.test == "permutation"
    steps = [2 / 3] * 5 + [-1.0, -1.0, 0.0]
    sums = [sum(map(math.prod, zip(steps, signs, strict=True))) for signs in itertools.product((1, -1), repeat=8)]
    assert found.p == pytest.approx(sum(abs(each) >= 4 / 3 - 1e-9 for each in sums) / 2**8)
    assert found.p != pytest.approx(scipy_stats.binomtest(2, 7).pvalue)
