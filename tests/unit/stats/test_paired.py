"""Differences within pairs, against scipy."""

import random

import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types

from holdfast.stats import paired_difference


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_interval_of_the_paired_t_test(seed: int) -> None:
    chance = random.Random(seed)
    before = [chance.random() for _ in range(40)]
    after = [value + chance.gauss(0.1, 0.3) for value in before]
    found = paired_difference([two - one for one, two in zip(before, after, strict=True)])
    expected = scipy_stats.ttest_rel(after, before).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_differences_of_0_and_1_may_lie_on_either_side_of_0() -> None:
    found = paired_difference([0, 0, 0, 0, 1])
    assert found.low is not None
    assert found.low < 0


def test_repeats_of_a_sample_are_one_group() -> None:
    alone = paired_difference([1.0, 0.0, -1.0, 1.0])
    twice = paired_difference([1.0, 1.0, 0.0, 0.0, -1.0, -1.0, 1.0, 1.0], ["a", "a", "b", "b", "c", "c", "d", "d"])
    assert (twice.mean, twice.low, twice.high) == pytest.approx((alone.mean, alone.low, alone.high))


@pytest.mark.parametrize("differences", [[], [1.0], [0.0, 0.0, 0.0], [1.0, 1.0]])
def test_where_nothing_is_known_of_how_they_vary_there_is_no_interval(differences: list[float]) -> None:
    found = paired_difference(differences)
    assert (found.low, found.high) == (None, None)
