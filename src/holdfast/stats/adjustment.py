"""Adjusts the p-values of several comparisons made at once, and turns pairwise tests into ranks.

Holm keeps the chance of any false finding below alpha, however the tests depend on each other. Benjamini-Hochberg keeps
the expected share of false findings below alpha, if the tests are independent or positively dependent. Compare an
adjusted p directly with alpha. A test without a p-value (None) is left out and stays None.

`report.compare.comparison.adjusted` applies these to a table of comparisons, `report.compare.leaderboard` to a board.
"""

from collections.abc import Callable, Sequence

from holdfast.stats.values import require_pairs, require_probability


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm: multiply the i-th smallest of m p-values by m - i + 1, then make the results non-decreasing."""

    def adjust(ordered: list[float]) -> list[float]:
        most, found = 0.0, []
        for index, p in enumerate(ordered):
            most = max(most, min(1.0, p * (len(ordered) - index)))
            found.append(most)
        return found

    return _adjusted(ps, adjust)


def benjamini_hochberg(ps: Sequence[float | None]) -> list[float | None]:
    """Benjamini-Hochberg: multiply the i-th smallest of m p-values by m / i, then make the results non-decreasing."""

    def adjust(ordered: list[float]) -> list[float]:
        least, found = 1.0, []
        for rank in range(len(ordered), 0, -1):
            # The factor is computed first, so that rounding never lowers a p.
            least = min(least, ordered[rank - 1] * (len(ordered) / rank))
            found.append(least)
        return found[::-1]

    return _adjusted(ps, adjust)


def _adjusted(ps: Sequence[float | None], adjust: Callable[[list[float]], list[float]]) -> list[float | None]:
    known = [(p, index) for index, p in enumerate(ps) if p is not None]
    for p, _ in known:
        require_probability(p, "p")
    known.sort()
    found: list[float | None] = [None] * len(ps)
    for (_, index), p in zip(known, adjust([p for p, _ in known]), strict=True):
        found[index] = p
    return found


def tied_ranks(count: int, is_better: Callable[[int, int], bool]) -> list[int]:
    """Rank = 1 + how many are significantly better. `is_better(i, j)`: whether i is significantly better than j."""
    return [1 + sum(is_better(other, one) for other in range(count) if other != one) for one in range(count)]


def ranks_of_tests(scores: Sequence[float], p_of: Callable[[int, int], float | None], alpha: float = 0.05) -> list[int]:
    """Ranks from all pairwise tests, adjusted with Holm's method. `p_of(i, j)` returns a two-sided p-value."""
    pairs = [(one, other) for one in range(len(scores)) for other in range(one)]
    adjusted = dict(zip(pairs, holm([p_of(*pair) for pair in pairs]), strict=True))

    def is_better(one: int, other: int) -> bool:
        p = adjusted[max(one, other), min(one, other)]
        return p is not None and p <= alpha and scores[one] > scores[other]

    return tied_ranks(len(scores), is_better)


def ranks_of_intervals(lows: Sequence[float | None], highs: Sequence[float | None]) -> list[int]:
    """Ranks from intervals: better means that the whole interval is above the other. Without an interval, never
    better.
    """
    require_pairs(lows, highs)

    def is_better(one: int, other: int) -> bool:
        low, high = lows[one], highs[other]
        return low is not None and high is not None and low > high

    return tied_ranks(len(lows), is_better)
