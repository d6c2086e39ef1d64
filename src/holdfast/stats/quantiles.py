"""Quantiles by linear interpolation between neighbours, as numpy's default does."""

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], q: float) -> float | None:
    """The q-th quantile, q from 0 to 1; None without values. ValueError for NaN, which cannot be ordered."""
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"a quantile is between 0 and 1, not {q}")
    if any(math.isnan(value) for value in values):
        raise ValueError("a value is NaN: leave out what has no value before asking for a quantile")
    if not values:
        return None
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    share = position - below
    return float(ordered[below] * (1.0 - share) + ordered[above] * share)
