"""Reduces the scores of a sample's repeats to one number.

A score is a number; None or NaN is missing and left out. A reducer with too few scores returns None: a failed repeat is
never counted as a wrong one.

- `mean` and `median` of the scores that are present.
- `maximum`, if no score is missing: the best of fewer repeats is lower.
- `mode` is the most frequent value. With ties: for numbers the mean of the tied values (a random choice gives that on
  average), for labels None. (`majority` is another name for it in a spec.)
- `at_least(k)` is 1 if k repeats are right, else 0, if no score is missing: fewer repeats are right less often.
- `pass@k`, the chance that one of k repeats drawn without replacement is right, and `pass^k`, that all are: both by
  counting subsets, so without bias for any k up to the number of scores there are; None beyond.
- `cons@k`, the chance that the most frequent answer of k drawn repeats is right; equally frequent
  answers share it. It needs the answers themselves, not only their scores.

"Right" is a score of at least `threshold`.
"""

import functools
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar

from holdfast.stats.values import require_at_least, require_pairs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Value = TypeVar("Value", bound=Hashable)
Reducer = Callable[[Sequence[float | None]], float | None]

THRESHOLD = 1.0
_SURE = 1e-10
"""A chance this close to 0 or 1 is rounded: it is a sum of logarithms, and a certain result must show as certain."""


def reducer(name: str, threshold: float = THRESHOLD) -> Reducer:
    """The reducer with the name that specs and tables use: `mean`, `median`, `mode`, `majority`, `max`, `at_least_2`,
    `pass@5`, `pass^5`.
    """
    if name in _PLAIN:
        return _PLAIN[name]
    parts = re.fullmatch(r"(at_least_|pass@|pass\^)([1-9][0-9]*)", name)
    if parts is None:
        known = ", ".join([*_PLAIN, *(f"{each}K" for each in _COUNTING)])
        raise ValueError(f"no reducer is called {name!r}: one of {known}, with a whole number from 1 for K")
    return functools.partial(_COUNTING[parts[1]], k=int(parts[2]), threshold=threshold)


def mean(values: Sequence[float | None]) -> float | None:
    found = _present(values)
    return math.fsum(found) / len(found) if found else None


def median(values: Sequence[float | None]) -> float | None:
    found = _present(values)
    return float(statistics.median(found)) if found else None


def mode(values: Sequence[float | None]) -> float | None:
    most = _most_frequent(_present(values))
    return math.fsum(most) / len(most) if most else None


def mode_label(labels: Sequence[str | None]) -> str | None:
    """None also where several labels are equally frequent: nothing lies between two labels."""
    most = _most_frequent([label for label in labels if label is not None])
    return most[0] if len(most) == 1 else None


def maximum(values: Sequence[float | None]) -> float | None:
    found = _present(values)
    return max(found, default=None) if len(found) == len(values) else None


def at_least(values: Sequence[float | None], k: int, threshold: float = THRESHOLD) -> float | None:
    require_at_least(k, 1, "k")
    found = _present(values)
    if not found or len(found) < len(values):
        return None
    return float(sum(value >= threshold for value in found) >= k)


def pass_at_k(values: Sequence[float | None], k: int, threshold: float = THRESHOLD) -> float | None:
    """1 - C(wrong, k) / C(n, k)."""
    n, right = _count(values, k, threshold)
    return 1.0 - math.comb(n - right, k) / math.comb(n, k) if n >= k else None


def pass_power_k(values: Sequence[float | None], k: int, threshold: float = THRESHOLD) -> float | None:
    """C(right, k) / C(n, k)."""
    n, right = _count(values, k, threshold)
    return math.comb(right, k) / math.comb(n, k) if n >= k else None


def cons_at_k(
    answers: Sequence[Hashable], values: Sequence[float | None], k: int, threshold: float = THRESHOLD
) -> float | None:
    """Exact over all subsets of k. `answers[i]` is what repeat i answered, `values[i]` its score; a repeat of which
    either is missing is left out. Several answers may be right.
    """
    require_at_least(k, 1, "k")
    require_pairs(answers, values)
    counts: Counter[Hashable] = Counter()
    right: dict[Hashable, bool] = {}
    for answer, value in zip(answers, values, strict=True):
        if answer is None or not _present([value]):
            continue
        is_right = value is not None and value >= threshold
        if right.setdefault(answer, is_right) != is_right:
            raise ValueError(f"the answer {answer!r} is scored right and wrong: cons@k needs one score for an answer")
        counts[answer] += 1
    if counts.total() < k:
        return None
    shares = (
        _share_of_wins(counts[answer], tuple(sorted(counts[other] for other in counts if other != answer)), k)
        for answer in counts
        if right[answer]
    )
    found = math.fsum(shares)
    return float(round(found)) if abs(found - round(found)) < _SURE else found


def _present(values: Sequence[float | None]) -> list[float]:
    found = [float(value) for value in values if value is not None and not math.isnan(value)]
    if any(map(math.isinf, found)):
        raise ValueError("a score is infinite: a score is a finite number, or missing")
    return found


def _most_frequent(values: Sequence[Value]) -> list[Value]:
    counts = Counter(values)
    most = max(counts.values(), default=0)
    return [value for value, count in counts.items() if count == most]


def _count(values: Sequence[float | None], k: int, threshold: float) -> tuple[int, int]:
    require_at_least(k, 1, "k")
    found = _present(values)
    return len(found), sum(value >= threshold for value in found)


@functools.lru_cache(maxsize=4096)  # the samples of a data set have few different patterns of counts
def _share_of_wins(own: int, others: tuple[int, ...], k: int) -> float:
    """How often an answer given `own` times is the most frequent of k drawn repeats, ties shared.

    For each number of its own draws: the chance that the rest is drawn so that no other answer occurs more often, split
    by how many answers tie. Repeats are drawn independently with chance about k/n, given that k are drawn in all: the
    same distribution as subsets of k, without numbers beyond a float. No term is negative, so nothing cancels.
    """
    import numpy as np

    n = own + sum(others)
    chance = k / (n + 1)
    wins = 0.0
    for drawn in range(1, min(own, k) + 1):
        ways = _ways(others, k - drawn, drawn, chance)[k - drawn]
        shared = float((ways / np.arange(1, len(ways) + 1)).sum())
        wins += shared * _chance_of(drawn, own, chance)
    return wins / _chance_of(k, n, chance)


def _ways(others: tuple[int, ...], rest: int, most: int, chance: float) -> "npt.NDArray[np.float64]":
    """ways[d, t]: the weight of drawing d from these answers, none more than `most` times, t of them exactly that
    often.
    """
    import numpy as np

    ways = np.zeros((rest + 1, rest // most + 1))
    ways[0, 0] = 1.0
    for count in others:
        after = np.zeros_like(ways)
        for drawn in range(min(count, most, rest) + 1):
            chosen = _chance_of(drawn, count, chance)
            if drawn < most:
                after[drawn:] += chosen * ways[: rest + 1 - drawn]
            else:
                after[drawn:, 1:] += chosen * ways[: rest + 1 - drawn, :-1]
        ways = after
    return ways


def _chance_of(drawn: int, count: int, chance: float) -> float:
    """The binomial probability."""
    ways = math.lgamma(count + 1) - math.lgamma(drawn + 1) - math.lgamma(count - drawn + 1)
    return math.exp(ways + drawn * math.log(chance) + (count - drawn) * math.log1p(-chance))


_PLAIN: dict[str, Reducer] = {"mean": mean, "median": median, "mode": mode, "majority": mode, "max": maximum}
_COUNTING: dict[str, Callable[..., float | None]] = {
    "at_least_": at_least,
    "pass@": pass_at_k,
    "pass^": pass_power_k,
}
