"""Ranks that respect ties: 1 + the number of those that are significantly better.

Several may share rank 1; a rank says nothing that the numbers do not. What is "significantly better" is for the caller
to say: tests on common samples, adjusted for their number, see more than intervals that do not overlap.
"""

from collections.abc import Callable, Sequence

from holdfast.stats.adjusting import holm
from holdfast.stats.refusals import require_pairs


def tied_ranks(count: int, is_better: Callable[[int, int], bool]) -> list[int]:
    """`is_better(i, j)`: whether i is significantly better than j."""
    return [1 + sum(is_better(other, one) for other in range(count) if other != one) for one in range(count)]


def ranks_of_tests(scores: Sequence[float], p_of: Callable[[int, int], float | None], alpha: float = 0.05) -> list[int]:
    """Each is tested against each other one, and the tests adjusted with Holm's method. `p_of(i, j)` is two-sided."""
    pairs = [(one, other) for one in range(len(scores)) for other in range(one)]
    adjusted = dict(zip(pairs, holm([p_of(*pair) for pair in pairs]), strict=True))

    def is_better(one: int, other: int) -> bool:
        p = adjusted[max(one, other), min(one, other)]
        return p is not None and p <= alpha and scores[one] > scores[other]

    return tied_ranks(len(scores), is_better)


def ranks_of_intervals(lows: Sequence[float | None], highs: Sequence[float | None]) -> list[int]:
    """Better is whoever's interval lies wholly above the other's. What has no interval is better than nobody."""
    require_pairs(lows, highs)

    def is_better(one: int, other: int) -> bool:
        low, high = lows[one], highs[other]
        return low is not None and high is not None and low > high

    return tied_ranks(len(lows), is_better)
