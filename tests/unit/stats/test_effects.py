"""Effect sizes, against statsmodels, scipy and values worked out by hand."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types
from statsmodels.stats.contingency_tables import Table2x2  # type: ignore[import-untyped]  # no types
from statsmodels.stats.proportion import proportion_effectsize  # type: ignore[import-untyped]  # no types

from holdfast.stats import cliffs_delta, cohens_d, cohens_dz, cohens_h, odds_ratio, paired_odds_ratio

CLOSE = 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_d_and_dz_are_the_t_statistics_without_the_sample_size(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, second = random.normal(0, 1, 25), random.normal(0.5, 2, 25)
    apart = scipy_stats.ttest_ind(second, first).statistic * math.sqrt(2 / 25)
    within = scipy_stats.ttest_rel(second, first).statistic / math.sqrt(25)
    assert cohens_d(first.tolist(), second.tolist()) == pytest.approx(apart, abs=CLOSE)
    assert cohens_dz((second - first).tolist()) == pytest.approx(within, abs=CLOSE)


def test_sides_of_several_sizes_share_a_pooled_deviation() -> None:
    """Means 2 and 5; squares 2 and 10 over 3 + 5 - 2 degrees of freedom: 3 / sqrt(2)."""
    assert cohens_d([1, 2, 3], [3, 4, 5, 6, 7]) == pytest.approx(3 / math.sqrt(12 / 6), abs=CLOSE)


def test_repeats_are_averaged_first() -> None:
    assert cohens_dz([1, 3, 0, 0, 1, 1], ["a", "a", "b", "b", "c", "c"]) == cohens_dz([2, 0, 1])
    groups = ["a", "a", "b", "b"]
    assert cohens_d([0, 2, 3, 3], [4, 4, 1, 3], groups) == cohens_d([1, 3], [4, 2])


@pytest.mark.parametrize("seed", range(4))
def test_cliffs_delta_is_that_of_mann_and_whitney(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, second = random.integers(0, 6, 30), random.integers(1, 8, 21)
    u = scipy_stats.mannwhitneyu(second, first).statistic
    assert cliffs_delta(first.tolist(), second.tolist()) == pytest.approx(2 * u / (30 * 21) - 1, abs=CLOSE)


@pytest.mark.parametrize(("first", "second"), [(0.2, 0.7), (0.0, 1.0), (0.5, 0.5), (0.9, 0.31)])
def test_h_is_statsmodels(first: float, second: float) -> None:
    assert cohens_h(first, second) == pytest.approx(float(proportion_effectsize(second, first)), abs=CLOSE)


def test_an_odds_ratio_is_statsmodels() -> None:
    found, table = odds_ratio((12, 30), (25, 14)), Table2x2([[25, 14], [12, 30]])
    assert found.mean == pytest.approx(table.oddsratio, abs=CLOSE)
    assert found.standard_error == pytest.approx(table.log_oddsratio_se, abs=CLOSE)
    assert (found.low, found.high) == pytest.approx(table.oddsratio_confint(), abs=CLOSE)


@pytest.mark.parametrize(("gains", "losses"), [(3, 9), (20, 5), (1, 1)])
def test_a_paired_odds_ratio_has_the_exact_binomial_interval(gains: int, losses: int) -> None:
    found = paired_odds_ratio(gains, losses)
    share = scipy_stats.binomtest(gains, gains + losses).proportion_ci(method="exact")
    assert found.mean == pytest.approx(gains / losses, abs=CLOSE)
    assert found.low == pytest.approx(share.low / (1 - share.low), rel=CLOSE)
    assert found.high == pytest.approx(share.high / (1 - share.high), rel=CLOSE)


def test_what_cannot_be_told_is_none() -> None:
    assert cohens_d([1.0], [2.0, 3.0]) is None
    assert cohens_d([1.0, 1.0], [2.0, 2.0]) is None
    assert cohens_dz([]) is None
    assert cohens_dz([0.1] * 7) is None
    assert cliffs_delta([], [1.0]) is None
    assert odds_ratio((0, 3), (1, 2)).mean is None
    one_sided = paired_odds_ratio(4, 0)
    assert (one_sided.mean, one_sided.standard_error, one_sided.high) == (None, None, None)
    assert one_sided.low == pytest.approx(0.025**0.25 / (1 - 0.025**0.25), abs=CLOSE)
    nothing = paired_odds_ratio(0, 0)
    assert (nothing.mean, nothing.low, nothing.high) == (None, None, None)


def test_nonsense_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"share 1.5: a probability"):
        cohens_h(0.5, 1.5)
    with pytest.raises(ValueError, match="a count of -1: at least 0"):
        odds_ratio((-1, 2), (3, 4))
    with pytest.raises(ValueError, match="gains -1"):
        paired_odds_ratio(-1, 2)
    with pytest.raises(ValueError, match="pairs need as many of each"):
        cohens_d([1.0], [1.0, 2.0], ["a", "b"])
    with pytest.raises(ValueError, match="NaN or infinite"):
        cliffs_delta([math.nan], [1.0])
