"""Ranks that respect ties."""

import pytest

from holdfast.stats import ranks_of_intervals, ranks_of_tests, tied_ranks


def test_a_rank_is_one_more_than_the_number_of_better_ones() -> None:
    assert tied_ranks(3, lambda one, other: one < other) == [1, 2, 3]
    assert tied_ranks(3, lambda one, other: False) == [1, 1, 1]
    assert tied_ranks(0, lambda one, other: True) == []


def test_intervals_that_overlap_share_a_rank() -> None:
    assert ranks_of_intervals([0.5, 0.4, 0.1], [0.7, 0.6, 0.3]) == [1, 1, 3]
    assert ranks_of_intervals([0.5, None, 0.1], [0.7, None, 0.3]) == [1, 1, 2]


def test_tests_are_adjusted_for_their_number() -> None:
    """0.03 alone would be significant; beside two others it is not."""
    ps = {(1, 0): 0.03, (2, 0): 0.01, (2, 1): None}
    assert ranks_of_tests([0.9, 0.5, 0.4], lambda one, other: ps[one, other]) == [1, 2, 2]
    ps = {(1, 0): 0.03, (2, 0): 0.04, (2, 1): 0.5}
    assert ranks_of_tests([0.9, 0.5, 0.4], lambda one, other: ps[one, other]) == [1, 1, 1]
    assert ranks_of_tests([0.9, 0.5], lambda one, other: 0.03) == [1, 2]


def test_ends_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs need as many of each"):
        ranks_of_intervals([0.1], [])
