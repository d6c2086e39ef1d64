"""How well judges agree on the same answers. 1 is full agreement; 0 is agreement by chance.

A unit is one answer with the ratings of its judges. A missing rating is None and is left out. If all ratings have the
same value, disagreement was impossible, and chance-corrected agreement is None.

- Krippendorff's alpha, for any number of judges, also with missing ratings: 1 - observed / expected disagreement
  between ratings of one unit. Disagreement is 1 for different labels (nominal), the squared difference (interval), or
  the squared difference of mean ranks among all ratings (ordinal).
- Cohen's kappa, for two judges with their own base rates. Weighted: a disagreement counts by the distance between the
  categories (linear) or its square (quadratic).
- Percent agreement: the share of pairs of judges that gave a unit the same rating, averaged over units. Not corrected
  for chance.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

from holdfast.stats.values import require_finite, require_pairs

Unit = Sequence[Hashable]
Level = Literal["nominal", "ordinal", "interval"]
Weights = Literal["none", "linear", "quadratic"]


def krippendorff_alpha(units: Sequence[Unit], level: Level = "nominal") -> float | None:
    """`units[u]` holds the ratings of unit u, in any order. Ordinal and interval ratings are numbers."""
    if level not in ("nominal", "ordinal", "interval"):
        raise ValueError(f"no level is called {level!r}: nominal, ordinal or interval")
    rated = _rated(units)
    if level == "nominal":
        return _alpha(rated, _unlike_pairs)
    for unit in rated:
        if not all(isinstance(rating, int | float) for rating in unit):
            raise ValueError("a rating is not a number: labels agree on the nominal level only")
        require_finite(unit)
    numbers = [[float(rating) for rating in unit] for unit in rated]
    return _alpha(numbers if level == "interval" else _mean_ranks(numbers), _squared_pairs)


def cohens_kappa(
    first: Sequence[Any],
    second: Sequence[Any],
    weights: Weights = "none",
    categories: Sequence[Any] | None = None,
) -> float | None:
    """`categories` in their order, for weights; without, the values that occur, sorted."""
    require_pairs(first, second)
    if weights not in ("none", "linear", "quadratic"):
        raise ValueError(f"no weights are called {weights!r}: none, linear or quadratic")
    pairs = [(one, two) for one, two in zip(first, second, strict=True) if one is not None and two is not None]
    seen = {value for pair in pairs for value in pair}
    if categories is None:
        categories = sorted(seen) if weights != "none" else list(seen)
    if not seen <= set(categories):
        raise ValueError(f"{sorted(map(str, seen - set(categories)))}: ratings that are none of the categories")
    place = {category: index for index, category in enumerate(categories)}

    def weight(one: Any, two: Any) -> float:
        steps = abs(place[one] - place[two])
        return float(steps > 0) if weights == "none" else float(steps ** (1 if weights == "linear" else 2))

    mine, theirs = Counter(one for one, _ in pairs), Counter(two for _, two in pairs)
    expected = math.fsum(mine[one] * theirs[two] * weight(one, two) for one in mine for two in theirs)
    observed = math.fsum(weight(one, two) for one, two in pairs)
    return 1 - observed * len(pairs) / expected if expected > 0 else None


def percent_agreement(units: Sequence[Unit]) -> float | None:
    """The share of agreeing pairs of judges, from 0 to 1; None without a unit that two judges rated."""
    rated = _rated(units)
    if not rated:
        return None
    return math.fsum(1 - _unlike_pairs(unit) / (len(unit) * (len(unit) - 1)) for unit in rated) / len(rated)


def _rated(units: Sequence[Unit]) -> list[list[Any]]:
    """Units with at least two ratings, without the missing ones."""
    present = ([rating for rating in unit if rating is not None] for unit in units)
    return [unit for unit in present if len(unit) > 1]


def _alpha(units: Sequence[list[Any]], disagreement: Callable[[Sequence[Any]], float]) -> float | None:
    everything = [rating for unit in units for rating in unit]
    expected = disagreement(everything)
    if not units or len(set(everything)) < 2:
        return None
    observed = math.fsum(disagreement(unit) / (len(unit) - 1) for unit in units)
    return 1 - (len(everything) - 1) * observed / expected


def _unlike_pairs(ratings: Sequence[Hashable]) -> float:
    """How many ordered pairs of ratings differ."""
    return len(ratings) ** 2 - sum(count**2 for count in Counter(ratings).values())


def _squared_pairs(ratings: Sequence[float]) -> float:
    """The squared differences of all ordered pairs: 2n times the squares about the mean."""
    if not ratings:
        return 0.0
    centre = math.fsum(ratings) / len(ratings)
    return 2 * len(ratings) * math.fsum((rating - centre) ** 2 for rating in ratings)


def _mean_ranks(units: Sequence[Sequence[float]]) -> list[list[float]]:
    """Each rating by its mean rank among all: on that scale ordinal disagreement is interval disagreement."""
    counts = Counter(rating for unit in units for rating in unit)
    ranks, below = {}, 0
    for rating in sorted(counts):
        ranks[rating] = below + counts[rating] / 2
        below += counts[rating]
    return [[ranks[rating] for rating in unit] for unit in units]
