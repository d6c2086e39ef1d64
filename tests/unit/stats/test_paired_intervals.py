"""Intervals of paired differences: against the definition, and how often they miss a true loss."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types
from scipy.special import gammaln  # type: ignore[import-untyped]

from holdfast.stats import (
    BOOL,
    COUNT,
    NUMBER,
    UNIT,
    Scale,
    Summary,
    paired_difference,
    paired_interval,
    summarise,
    widen_for_unseen,
)
from tests.tango import tango_interval

Floats = npt.NDArray[np.float64]
NOMINAL = 0.025


def known(summary: Summary) -> tuple[float, float]:
    assert summary.low is not None
    assert summary.high is not None
    return summary.low, summary.high


def differences_of(gains: int, losses: int, n: int) -> list[float]:
    return [1.0] * gains + [-1.0] * losses + [0.0] * (n - gains - losses)


@pytest.mark.parametrize(("gains", "losses", "n"), [(3, 9, 40), (0, 4, 60), (7, 0, 25), (12, 12, 100)])
def test_the_ends_are_where_the_score_test_rejects(gains: int, losses: int, n: int) -> None:
    found = known(paired_interval(differences_of(gains, losses, n), scale=BOOL))
    assert found == pytest.approx(tango_interval(gains, losses, n), abs=1e-6)


@pytest.mark.parametrize("n", [3, 20, 100, 1000])
def test_ties_are_not_certainty(n: int) -> None:
    low, high = known(paired_interval([0.0] * n, scale=BOOL))
    quantile = scipy_stats.t.ppf(0.975, n - 1)
    assert high == pytest.approx(-low) == pytest.approx(quantile**2 / (n + quantile**2))
    assert paired_interval([0.0] * n, scale=NUMBER).low is None
    assert paired_interval([0.0] * n, scale=COUNT).low is None
    wide = known(paired_interval([0.0] * n, scale=Scale("range", 1.0, 5.0)))
    assert wide == pytest.approx((4 * low, 4 * high))


def test_differences_never_leave_the_scale() -> None:
    for values in ([1.0, -1.0], [1.0, 1.0, -1.0], [-1.0] * 4, [1.0, 0.0]):
        low, high = known(paired_interval(values, scale=BOOL))
        assert -1 <= low <= sum(values) / len(values) <= high <= 1
    low, high = known(paired_interval([0.9, -0.8], scale=UNIT))
    assert (low, high) == (-1.0, 1.0)


def test_equal_differences_on_a_scale_have_an_honest_interval() -> None:
    found = paired_interval([-0.25] * 10, scale=UNIT)
    assert found.method == "equal"
    low, high = known(found)
    assert low < -0.25 < high
    assert paired_interval([-0.25] * 10, scale=NUMBER).low is None


def test_grades_that_mostly_differ_have_students_interval() -> None:
    values = [0.1, -0.2, 0.3, 0.25, -0.05, 0.4]
    assert known(paired_interval(values, scale=UNIT)) == known(paired_difference(values))
    assert known(paired_interval(values, scale=NUMBER)) == known(paired_difference(values))


def test_few_changes_without_a_scale_have_no_interval() -> None:
    assert paired_interval([0.0] * 30 + [-2.0, 1.0], scale=NUMBER).low is None
    assert paired_interval([0.0] * 30 + [-2.0, 1.0] * 6, scale=NUMBER).low is not None


def test_repeating_a_deterministic_model_adds_no_certainty() -> None:
    once = differences_of(2, 5, 30)
    alone, repeated = (paired_interval(once, scale=BOOL, answers=answers) for answers in (30, 150))
    assert known(repeated) == pytest.approx(known(alone))


def test_groups_widen_the_interval() -> None:
    values = differences_of(0, 10, 40)
    together = [index // 10 if index < 10 else index for index in range(40)]
    alone, grouped = known(paired_interval(values, scale=BOOL)), known(paired_interval(values, together, scale=BOOL))
    assert grouped[0] < alone[0]
    assert grouped[1] > alone[1]


def passes(values: Floats, margin: float, scale: Scale, answers: int) -> bool:
    found = paired_interval(values.tolist(), scale=scale, answers=answers)
    return found.low is not None and found.low >= -margin - 1e-9


@pytest.mark.parametrize("n", [10, 20, pytest.param(40, marks=pytest.mark.long)])
@pytest.mark.parametrize("margin", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_a_loss_equal_to_the_margin_passes_at_most_at_the_nominal_rate(n: int, margin: float) -> None:
    """Exactly, by counting all outcomes of one right-or-wrong answer per sample. Before: up to 0.6."""
    outcomes = [(g, c) for g in range(n + 1) for c in range(n + 1 - g)]
    counts = [(g, c) for g, c in outcomes if passes(np.array(differences_of(g, c, n)), margin, BOOL, n)]
    worst = 0.0
    for losses in (margin + np.array([1e-9, 0.02, 0.05, 0.1, 0.2, 0.3])).tolist():
        shares = np.log([losses - margin + 1e-300, losses, 1 - 2 * losses + margin])
        several = np.array([(g, c, n - g - c) for g, c in counts])
        if len(several):
            ways = gammaln(n + 1) - gammaln(several + 1).sum(axis=1)
            worst = max(worst, float(np.exp(ways + several @ shares).sum()))
    assert worst <= NOMINAL + 0.002


@pytest.mark.parametrize("times", [300, pytest.param(3_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("repeats", [2, 5])
@pytest.mark.parametrize("n", [20, 50])
@pytest.mark.parametrize("lost", [1.0, 0.5])
@pytest.mark.parametrize("margin", [0.05, 0.1])
def test_repeats_do_not_let_a_loss_pass(n: int, repeats: int, margin: float, lost: float, times: int) -> None:
    """Some samples lose all or half of their chance, beside the noise of repeats. Before: up to 0.65."""
    random = np.random.default_rng([n, repeats, int(lost * 10), int(margin * 100)])
    passed = 0
    for _ in range(times):
        before = random.beta(3.6, 0.4, n)
        loses = random.random(n) < margin / lost
        before = np.where(loses, np.maximum(before, lost), before)
        after = before - lost * loses
        values = (random.binomial(repeats, after) - random.binomial(repeats, before)) / repeats
        passed += passes(values, margin, BOOL, n * repeats)
    assert passed / times <= NOMINAL + 3 * math.sqrt(NOMINAL * (1 - NOMINAL) / times)


@pytest.mark.parametrize("times", [300, pytest.param(3_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("n", [20, 100])
@pytest.mark.parametrize("lost", [1.0, 0.3])
def test_rare_losses_of_grades_do_not_pass(n: int, lost: float, times: int) -> None:
    """Grades from 0 to 1 that are mostly tied: 5 % of the samples lose, the others keep their grade."""
    random = np.random.default_rng([n, int(lost * 10)])
    draws = [np.where(random.random(n) < 0.05, -lost, 0.0) for _ in range(times)]
    passed = sum(passes(each, 0.05 * lost, UNIT, n) for each in draws)
    assert passed / times <= NOMINAL + 3 * math.sqrt(NOMINAL * (1 - NOMINAL) / times)


@pytest.mark.parametrize("times", [300, pytest.param(3_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("n", [10, 20, 30, 50, 100, 200])
def test_rare_large_losses_beside_noise_do_not_pass_a_gate(n: int, times: int) -> None:
    """Nothing is tied: every grade moves a little, and 5 % of the samples lose nearly all. Student's own interval
    passes in up to 61 % of these cases.
    """
    random = np.random.default_rng(n)
    passed = 0
    for _ in range(times):
        values = random.normal(0, 0.01, n) - 0.95 * (random.random(n) < 0.05)
        found = widen_for_unseen(paired_interval(values.tolist(), scale=UNIT), Scale("range", -1.0, 1.0), 1.0)
        passed += found.low is not None and found.low >= -0.0475
    assert passed / times <= NOMINAL + 3 * math.sqrt(NOMINAL * (1 - NOMINAL) / times)


def test_an_interval_that_is_widened_stays_on_its_scale_and_others_stay_as_they_are() -> None:
    grades = Scale("range", 1.0, 5.0)
    found = widen_for_unseen(summarise([5.0, 5.0, 4.0, 5.0], scale=grades), grades, 4.0)
    assert (found.high, found.method) == (5.0, "unseen")
    exact = paired_interval(differences_of(1, 2, 30), scale=BOOL)
    assert widen_for_unseen(exact, UNIT, 1.0) == exact
    unknown = summarise([5.0, 4.0, 3.0], scale=NUMBER)
    assert widen_for_unseen(unknown, NUMBER, None) == unknown
