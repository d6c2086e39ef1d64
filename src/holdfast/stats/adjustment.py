"""p-values of several comparisons made at once.

Holm keeps the chance of any false finding below alpha, whatever hangs together. Benjamini-Hochberg keeps the expected
share of false findings below alpha, if the tests are independent or positively dependent. An adjusted p is compared
with alpha as it is. A test without a p (None) has no part, and stays None.
"""

from collections.abc import Callable, Sequence

from holdfast.stats.checks import require_pairs, require_probability


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """The i-th smallest of m times m - i + 1, and never less than a smaller one's."""

    def adjust(ordered: list[float]) -> list[float]:
        most, found = 0.0, []
        for index, p in enumerate(ordered):
            most = max(most, min(1.0, p * (len(ordered) - index)))
            found.append(most)
        return found

    return _adjusted(ps, adjust)


def benjamini_hochberg(ps: Sequence[float | None]) -> list[float | None]:
    """The i-th smallest of m times m / i, and never more than a larger one's."""

    def adjust(ordered: list[float]) -> list[float]:
        least, found = 1.0, []
        for rank in range(len(ordered), 0, -1):
            least = min(least, ordered[rank - 1] * (len(ordered) / rank))  # so that rounding never lowers a p
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
