"""Means and intervals, against scipy, against hand-computed values, and against how often they hold the truth."""

import math
import subprocess
import sys
from collections.abc import Callable, Hashable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types
from statsmodels.regression.linear_model import OLS  # type: ignore[import-untyped]  # no types
from statsmodels.stats.proportion import proportion_confint  # type: ignore[import-untyped]  # no types

from holdfast.stats import (
    BOOL,
    COUNT,
    NUMBER,
    UNIT,
    Scale,
    Summary,
    student,
    sum_groups,
    summarise,
    summarise_sums,
    wilson,
)
from holdfast.stats.intervals import student_quantile

CLOSE = 1e-9
REAL = st.floats(-1e6, 1e6)


def known(value: float | None) -> float:
    assert value is not None
    return value


def test_nothing_has_no_mean() -> None:
    assert summarise([]) == Summary(0, None, None, None, None)
    assert summarise([], []) == Summary(0)


@pytest.mark.parametrize("value", [0, 1, 0.3, -7])
def test_one_value_has_a_mean_and_no_uncertainty(value: float) -> None:
    assert summarise([value]) == Summary(1, value, None, None, None)


def test_one_group_has_no_uncertainty_however_many_repeats_it_has() -> None:
    assert summarise([1, 0, 1, 1], ["a"] * 4) == Summary(4, 0.75, None, None, None)


def test_hand_computed_t_interval() -> None:
    """1, 2, 3, 4: s = sqrt(5/3), s/2 = 0.6454972243679028, t(3, .975) = 3.182446305284263."""
    found = summarise([1, 2, 3, 4])
    assert found.mean == 2.5
    assert known(found.standard_error) == pytest.approx(0.6454972243679028, abs=CLOSE)
    assert known(found.low) == pytest.approx(2.5 - 3.182446305284263 * 0.6454972243679028, abs=CLOSE)
    assert known(found.high) == pytest.approx(2.5 + 3.182446305284263 * 0.6454972243679028, abs=CLOSE)


def test_hand_computed_wilson_interval() -> None:
    """8 of 10 with z^2 = 3.8414588206941254: (0.8 + z^2/20 -/+ z*sqrt(0.016 + z^2/400)) / (1 + z^2/10)."""
    found = summarise([1] * 8 + [0] * 2)
    assert found.mean == 0.8
    assert known(found.standard_error) == pytest.approx(math.sqrt(0.8 * 0.2 / 9), abs=CLOSE)
    assert known(found.low) == pytest.approx(0.4901624715, abs=CLOSE)
    assert known(found.high) == pytest.approx(0.9433178485, abs=CLOSE)


def test_hand_computed_clustered_error() -> None:
    """Deviations from 0.5 sum to 1, -0.5, -0.5 in three groups: sqrt(1.5 * 3/2) / 6."""
    values, groups = [1, 1, 0, 0.5, 0, 0.5], ["a", "a", "b", "b", "c", "c"]
    found = summarise(values, groups)
    assert found.mean == 0.5
    assert known(found.standard_error) == pytest.approx(math.sqrt(1.5 * 3 / 2) / 6, abs=CLOSE)
    assert known(found.high) == pytest.approx(0.5 + 4.302652729911275 * 0.25, abs=CLOSE)


@given(st.lists(REAL, min_size=2, max_size=60))
def test_ungrouped_numbers_agree_with_scipy(values: list[float]) -> None:
    found = summarise([*values, 0.5])
    array = np.array([*values, 0.5])
    error = scipy_stats.sem(array)
    scale = CLOSE * max(1.0, float(np.abs(array).max()))
    assert known(found.mean) == pytest.approx(float(array.mean()), abs=scale)
    assert known(found.standard_error) == pytest.approx(float(error), abs=scale)
    if error > scale:
        low, high = scipy_stats.t.interval(0.95, len(array) - 1, loc=array.mean(), scale=error)
        assert known(found.low) == pytest.approx(float(low), abs=20 * scale)
        assert known(found.high) == pytest.approx(float(high), abs=20 * scale)


@given(st.integers(0, 400), st.integers(0, 400))
def test_ungrouped_zeros_and_ones_agree_with_scipys_wilson(ones: int, zeros: int) -> None:
    values = [True] * ones + [False] * zeros
    if len(values) < 2:
        return
    found = summarise(values)
    wanted = scipy_stats.binomtest(ones, len(values)).proportion_ci(method="wilson")
    assert known(found.low) == pytest.approx(float(wanted.low), abs=CLOSE)
    assert known(found.high) == pytest.approx(float(wanted.high), abs=CLOSE)
    assert 0 <= known(found.low) <= known(found.mean) <= known(found.high) <= 1


@given(st.lists(REAL, min_size=2, max_size=40))
def test_groups_of_one_change_nothing(values: list[float]) -> None:
    assert summarise(values, range(len(values))) == summarise(values)


@given(st.lists(st.tuples(REAL, REAL, REAL), min_size=2, max_size=20))
def test_equal_groups_have_the_error_of_their_means(groups: list[tuple[float, float, float]]) -> None:
    values = [value for group in groups for value in group]
    names = [index for index in range(len(groups)) for _ in range(3)]
    error = scipy_stats.sem([math.fsum(group) / 3 for group in groups])
    scale = max(1.0, *map(abs, values))
    assert known(summarise(values, names).standard_error) == pytest.approx(float(error), abs=CLOSE * scale)


@given(st.lists(st.tuples(REAL, st.integers(0, 5)), max_size=40), st.randoms(use_true_random=False))
def test_the_order_of_values_does_not_matter(pairs: list[tuple[float, int]], random: Random) -> None:
    mixed = list(pairs)
    random.shuffle(mixed)
    first, second = (summarise([v for v, _ in each], [g for _, g in each]) for each in (pairs, mixed))
    assert first == second


@pytest.mark.parametrize("repeats", [2, 5])
def test_repeating_a_deterministic_model_adds_no_certainty(repeats: int) -> None:
    once = [1.0, 1.0, 0.0, 1.0, 0.0]
    values = [value for value in once for _ in range(repeats)]
    groups = [index for index in range(5) for _ in range(repeats)]
    one, many = summarise(once), summarise(values, groups)
    assert many.n == 5 * repeats
    assert (many.mean, many.low, many.high) == (one.mean, one.low, one.high)
    assert known(many.standard_error) == pytest.approx(known(one.standard_error), abs=CLOSE)


def test_always_right_is_not_certain() -> None:
    found = summarise([1] * 20, [index // 2 for index in range(20)])
    assert (found.mean, found.standard_error, found.high) == (1.0, 0.0, 1.0)
    assert known(found.low) == pytest.approx(0.7224672, abs=1e-6)  # Wilson, 10 of 10


def test_values_that_only_sum_to_zero_or_one_are_not_proportions() -> None:
    found = summarise([-1.0, 1.0, 0.5, 1.5], ["a", "a", "b", "b"])
    assert known(found.high) > 1


def test_an_interval_of_repeated_zeros_and_ones_stays_a_proportion() -> None:
    found = summarise([1, 1, 1, 1, 1, 0], ["a", "a", "b", "b", "c", "c"])
    assert known(found.high) < 1.0
    assert 0.0 <= known(found.low) < known(found.mean)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_has_no_value_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        summarise([1.0, bad])


def test_values_without_a_group_are_refused() -> None:
    groups: list[Hashable] = ["a"]
    with pytest.raises(ValueError, match="2 values, but 1 groups"):
        summarise([1.0, 2.0], groups)


def test_the_clustered_error_is_that_of_a_regression_on_a_constant() -> None:
    random = np.random.default_rng(11)
    groups = np.repeat(np.arange(30), random.integers(1, 7, 30))
    values = random.normal(size=30)[groups] + random.normal(size=len(groups))
    fit = OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds={"groups": groups})
    found = summarise(values.tolist(), groups.tolist())
    assert known(found.standard_error) == pytest.approx(float(fit.bse[0]), abs=CLOSE)


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (0, 30), (17, 30), (30, 30), (3, 4000)])
def test_a_counted_share_has_statsmodels_wilson_interval(right: int, n: int) -> None:
    found = wilson(right, n, confidence=0.9)
    assert (found.low, found.high) == pytest.approx(proportion_confint(right, n, 0.1, "wilson"), abs=CLOSE)
    assert found.mean == right / n
    if n > 1:
        values = summarise([1] * right + [0] * (n - right), confidence=0.9)
        assert (found.low, found.high) == (values.low, values.high)
        assert found.standard_error == pytest.approx(values.standard_error, abs=CLOSE)
    else:
        assert found.standard_error is None


@pytest.mark.parametrize(("right", "n"), [(-1, 3), (4, 3), (0, -1)])
def test_more_successes_than_tries_are_refused(right: int, n: int) -> None:
    with pytest.raises(ValueError, match=r"successes of|n -1: at least 0"):
        wilson(right, n)


def test_no_tries_have_no_share() -> None:
    assert wilson(0, 0) == Summary(0)


def test_students_interval_can_be_had_of_zeros_and_ones() -> None:
    values = [1.0, 0.0, 1.0, 1.0, 1.0]
    found = student(values)
    low, high = scipy_stats.t.interval(0.95, 4, loc=0.8, scale=scipy_stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), abs=CLOSE)
    assert student([1.0, 1.0, 1.0]) == Summary(3, 1.0, 0.0, None, None)


@pytest.mark.parametrize("n", range(2, 12))
def test_equal_values_do_not_vary_by_the_noise_of_floats(n: int) -> None:
    found = summarise([0.1] * n)
    assert found.mean == pytest.approx(0.1, abs=CLOSE)
    assert (found.standard_error, found.low, found.high) == (0.0, None, None)
    assert student([0.1] * n) == found
    assert summarise([0.1, 0.2, 0.2, 0.1], ["a", "a", "b", "b"]).low is None


def test_large_offsets_do_not_drown_the_differences() -> None:
    found = summarise([1e9 + 1, 1e9 + 2, 1e9 + 3, 1e9 + 4])
    assert known(found.standard_error) == pytest.approx(0.6454972243679028, abs=1e-6)


def coverage(draw: Callable[[], tuple[list[float], list[int] | None]], truth: float, times: int) -> float:
    held = 0
    for _ in range(times):
        values, groups = draw()
        found = summarise(values, groups)
        held += known(found.low) <= truth <= known(found.high)
    return held / times


def test_wilson_holds_the_truth_95_times_in_100() -> None:
    random = np.random.default_rng(20240501)
    found = coverage(lambda: ((random.random(80) < 0.85).astype(float).tolist(), None), 0.85, 3000)
    assert 0.93 < found < 0.97


def test_student_holds_the_truth_95_times_in_100() -> None:
    random = np.random.default_rng(20240502)
    found = coverage(lambda: (random.normal(3, 2, 12).tolist(), None), 3, 2000)
    assert 0.935 < found < 0.965


def test_clusters_hold_the_truth_where_ignoring_them_does_not() -> None:
    def draw() -> tuple[list[float], list[int]]:
        chance = random.beta(2, 1, 60)
        return (random.random((60, 6)) < chance[:, None]).astype(float).ravel().tolist(), groups

    groups = [index // 6 for index in range(360)]
    random = np.random.default_rng(20240503)
    assert 0.93 < coverage(draw, 2 / 3, 1500) < 0.97
    assert coverage(lambda: (draw()[0], None), 2 / 3, 1500) < 0.9


@pytest.mark.parametrize("times", [800, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.parametrize(("count", "least"), [(10, 0.90), (40, 0.92)])
def test_passages_with_2_to_8_questions_hold_the_truth_nearly_as_often(count: int, least: float, times: int) -> None:
    random = np.random.default_rng(29)

    def draw() -> tuple[list[float], list[int]]:
        passages = np.repeat(np.arange(count), random.choice([2, 4, 8], count))
        ease = random.beta(2, 1, count)
        return (random.random(len(passages)) < ease[passages]).astype(float).tolist(), passages.tolist()

    assert least < coverage(draw, 2 / 3, times) < 0.99
    assert coverage(lambda: (draw()[0], None), 2 / 3, times) < 0.88


def test_more_confidence_makes_a_wider_interval_around_the_same_mean() -> None:
    for values in ([1, 1, 0, 1], [0.1, 0.5, 0.7, 0.3]):
        narrow, wide = (summarise(values, confidence=each) for each in (0.8, 0.99))
        assert (narrow.mean, narrow.standard_error) == (wide.mean, wide.standard_error)
        assert None not in (narrow.low, narrow.high, wide.low, wide.high)
        assert wide.low < narrow.low < narrow.high < wide.high  # type: ignore[operator] # checked above


@pytest.mark.parametrize("confidence", [0, 1, 95])
def test_a_confidence_that_is_no_probability_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        summarise([1, 0], confidence=confidence)


@pytest.mark.parametrize("n", [10, 40, 150])
def test_wilson_is_right_95_times_in_100_on_average_over_all_shares(n: int) -> None:
    """Exactly, not by drawing; for one share it goes up and down in steps."""
    ends = [wilson(right, n) for right in range(n + 1)]
    held = []
    for share in np.linspace(0.005, 0.995, 199):
        chances = scipy_stats.binom.pmf(np.arange(n + 1), n, share)
        held.append(sum(c for c, end in zip(chances, ends, strict=True) if known(end.low) <= share <= known(end.high)))
    assert 0.95 < np.mean(held) < 0.96
    assert min(held) > 0.83


@pytest.mark.long
@pytest.mark.parametrize("repeats", [1, 6])
def test_student_holds_the_truth_within_binomial_bounds(repeats: int) -> None:
    """10,000 draws of 25 normal groups: between what 95% leaves to chance once in 10,000 times."""
    random = np.random.default_rng(20261121)
    groups = [index // repeats for index in range(25 * repeats)]

    def draw() -> tuple[list[float], list[int]]:
        return (3 + random.normal(size=(25, 1)) + random.normal(size=(25, repeats))).ravel().tolist(), groups

    low, high = scipy_stats.binom.ppf([1e-4, 1 - 1e-4], 10_000, 0.95) / 10_000
    assert low <= coverage(draw, 3, 10_000) <= high


@pytest.mark.parametrize("times", [400, pytest.param(4_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("share", [0.9, 0.95, 0.98])
@pytest.mark.parametrize("samples", [20, 50])
@pytest.mark.parametrize("correlation", [0.1, 0.5, 0.9])
def test_repeats_near_1_hold_the_truth(samples: int, share: float, correlation: float, times: int) -> None:
    """Student's interval held it in 37 to 94 of 100 cases here."""
    random = np.random.default_rng([samples, int(share * 100), int(correlation * 10)])
    weight = (1 - correlation) / correlation
    groups = [index // 5 for index in range(samples * 5)]

    def draw() -> tuple[list[float], list[int]]:
        chance = random.beta(share * weight, (1 - share) * weight, samples)
        return (random.random((samples, 5)) < chance[:, None]).astype(float).ravel().tolist(), groups

    error = math.sqrt(0.95 * 0.05 / times)
    assert coverage(draw, share, times) > 0.93 - 3 * error


def test_equal_grades_follow_the_scale() -> None:
    grades = [1.0] * 20
    assert summarise(grades, scale=NUMBER).low is None
    found = summarise(grades, scale=Scale("range", 1.0, 5.0))
    assert (found.low, found.method) == (1.0, "equal")
    assert known(found.high) == pytest.approx(5 - 4 * 0.025 ** (1 / 20), abs=CLOSE)
    top = summarise(grades, scale=UNIT)
    assert (top.low, top.high) == pytest.approx(proportion_confint(20, 20, 0.05, "beta"), abs=CLOSE)


def test_an_interval_never_leaves_its_scale() -> None:
    found = summarise([5.0, 5.0, 5.0, 4.0], scale=Scale("range", 1.0, 5.0))
    assert found.high == 5.0
    assert known(summarise([0.0, 0.0, 9.0], scale=COUNT).low) == 0.0


@pytest.mark.parametrize(("right", "n"), [(0, 12), (1, 12), (11, 12), (12, 12), (180, 200)])
def test_the_exact_interval_is_that_of_statsmodels(right: int, n: int) -> None:
    found = summarise_sums([sum_groups([1.0] * right + [0.0] * (n - right))], scale=BOOL, exact=True)
    assert (found.low, found.high) == pytest.approx(proportion_confint(right, n, 0.05, "beta"), abs=CLOSE)
    assert found.method == "exact"


@pytest.mark.parametrize("times", [300, pytest.param(4_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("samples", [10, 40])
@pytest.mark.parametrize(("correlation", "repeats"), [(0.1, 5), (0.5, 5), (0.9, 3)])
def test_the_exact_interval_of_repeats_errs_at_most_as_often_as_it_says(
    samples: int, share: float, correlation: float, repeats: int, times: int
) -> None:
    """A gate passes if the truth is below the lower end, and calls a run worse if it is above the upper one."""
    random = np.random.default_rng([samples, int(share * 100), int(correlation * 10)])
    weight, below, above = (1 - correlation) / correlation, 0, 0
    for _ in range(times):
        chances = random.beta(share * weight, (1 - share) * weight, samples)
        sums = sum_groups((random.binomial(repeats, chances) / repeats).tolist())
        found = summarise_sums([sums], scale=BOOL, answers=samples * repeats, exact=True)
        below += share < known(found.low)
        above += share > known(found.high)
    assert max(below, above) / times <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / times)


@pytest.mark.parametrize("tail", [0.5, 0.6, 0.9, 0.975, 0.999, 0.99999, 0.025])
@pytest.mark.parametrize("freedom", [1000, 1001, 12_345, 999_999])
def test_students_quantile_of_many_groups_is_that_of_scipy(freedom: int, tail: float) -> None:
    assert student_quantile(freedom, tail) == pytest.approx(scipy_stats.t.ppf(tail, freedom), rel=1e-11, abs=1e-12)


def test_an_interval_of_many_groups_needs_no_scipy() -> None:
    program = "import sys\nfrom holdfast.stats import student\n"
    program += "print(student([0.1, 0.7] * 1000).method, 'scipy' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert printed.stdout == "student False\n", printed.stderr


def test_a_weighted_mean_is_that_of_equal_values_in_one_group() -> None:
    """A share of w instructions is w values that are right or wrong, and a prompt is a group."""
    shares, weights = [1.0, 0.5, 0.0, 2 / 3], [1, 2, 1, 3]
    parts = [[1.0], [1.0, 0.0], [0.0], [1.0, 1.0, 0.0]]
    values = [value for part in parts for value in part]
    groups = [number for number, part in enumerate(parts) for _ in part]
    weighted = summarise_sums([sum_groups(shares, None, weights)], scale=UNIT)
    whole = summarise_sums([sum_groups(values, groups)], scale=UNIT)
    assert weighted.mean == pytest.approx(4 / 7)
    assert (weighted.mean, weighted.standard_error) == pytest.approx((whole.mean, whole.standard_error))
    assert (weighted.low, weighted.high) == pytest.approx((whole.low, whole.high))
    assert weighted.n == 4
    halves = [sum_groups(shares[:2], None, weights[:2]), sum_groups(shares[2:], None, weights[2:])]
    joined = summarise_sums(halves, scale=UNIT)
    assert (joined.mean, joined.standard_error) == pytest.approx((weighted.mean, weighted.standard_error))
    with pytest.raises(ValueError, match="above 0"):
        sum_groups([1.0], None, [0.0])
