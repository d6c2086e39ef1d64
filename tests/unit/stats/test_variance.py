"""The split of variance, against scipy's analysis of variance, statsmodels' mixed model and published values."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types
from statsmodels.regression.mixed_linear_model import MixedLM  # type: ignore[import-untyped]  # no types

from holdfast.stats import VarianceSplit, split_variance, summarise

CLOSE = 1e-9


def drawn(seed: int, sizes: list[int]) -> tuple[list[float], list[int]]:
    random = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    values = random.normal(0, 2, len(sizes))[groups] + random.normal(size=len(groups))
    return values.tolist(), groups.tolist()


@pytest.mark.parametrize("sizes", [[3] * 12, [1, 2, 3, 4, 5, 6, 7, 2]])
def test_it_follows_from_scipys_f(sizes: list[int]) -> None:
    values, groups = drawn(1, sizes)
    split = split_variance(values, groups)
    members = [[v for v, g in zip(values, groups, strict=True) if g == group] for group in range(len(sizes))]
    ratio = scipy_stats.f_oneway(*members).statistic
    n = len(values)
    within = sum(np.var(each) * len(each) for each in members) / (n - len(sizes))
    usual_size = (n - sum(size**2 for size in sizes) / n) / (len(sizes) - 1)
    assert split.within == pytest.approx(within, abs=CLOSE)
    assert split.between == pytest.approx((ratio - 1) * within / usual_size, abs=CLOSE)


def test_a_balanced_split_is_that_of_a_mixed_model() -> None:
    """REML of statsmodels; its optimiser ends within 1e-4 of the solution."""
    values, groups = drawn(2, [4] * 40)
    split = split_variance(values, groups)
    model = MixedLM(np.array(values), np.ones((160, 1)), np.array(groups)).fit(reml=True)
    assert split.within == pytest.approx(model.scale, rel=1e-4)
    assert split.between == pytest.approx(float(model.cov_re[0, 0]), rel=1e-3)


def test_published_intraclass_correlation() -> None:
    """Shrout and Fleiss (1979), table 2: six targets, four judges; ICC(1,1) = .17, mean squares 11.24 and 6.26."""
    ratings = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    split = split_variance(
        [rating for row in ratings for rating in row], [index for index in range(6) for _ in range(4)]
    )
    assert split.within is not None
    assert split.between_share is not None
    assert round(split.within, 2) == 6.26
    assert round(split.between_share, 2) == 0.17


def test_the_error_it_expects_of_the_same_design_is_the_clustered_one() -> None:
    values, groups = drawn(3, [5] * 30)
    split = split_variance(values, groups)
    assert split.expected_error(30, 5) == pytest.approx(summarise(values, groups).standard_error, rel=1e-9)


def test_more_repeats_help_only_down_to_what_samples_vary() -> None:
    split = VarianceSplit(10, 20, 0.5, between=4.0, within=12.0)
    assert split.between_share == 0.25
    assert split.expected_error(16, 1) == 1.0
    assert split.expected_error(16, 3) == pytest.approx(math.sqrt(0.5))
    assert split.expected_error(16, math.inf) == 0.5
    assert split.expected_error(64, 1) == 0.5


def test_repeats_that_differ_more_than_samples_leave_nothing_between() -> None:
    split = split_variance([0, 1, 0, 1, 0, 1], ["a", "a", "b", "b", "c", "c"])
    assert (split.between, split.within) == (0.0, 0.5)


@pytest.mark.parametrize(
    ("values", "groups"),
    [([], []), ([1.0], ["a"]), ([1.0, 0.0], ["a", "a"]), ([1.0, 0.0], ["a", "b"]), ([0.1] * 4, ["a", "a", "b", "b"])],
)
def test_what_cannot_be_told_apart_is_none(values: list[float], groups: list[str]) -> None:
    split = split_variance(values, groups)
    assert (split.between, split.within, split.between_share) == (None, None, None)
    assert split.expected_error(10, 2) is None


def test_nonsense_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        split_variance([math.nan], ["a"])
    with pytest.raises(ValueError, match="1 values, but 0 groups"):
        split_variance([1.0], [])
    with pytest.raises(ValueError, match="samples 0: at least 1"):
        VarianceSplit(1, 1).expected_error(0, 1)
    with pytest.raises(ValueError, match="repeats nan: at least 1"):
        VarianceSplit(1, 1).expected_error(1, math.nan)
