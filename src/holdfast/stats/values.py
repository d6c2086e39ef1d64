"""Values: checks of arguments, pairs by key, and quantiles, shared by all functions of this package.

Invariant of the package: an unknown number is None, never 0. Invalid arguments raise a ValueError that names what was
given and what is expected.

`pair_up` pairs the values of two sides, for paired tests and differences. A key without a value on one side is left out
and counted. Keys in one group are not independent: repeats of one sample share a group.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import msgspec


def require_finite(values: Sequence[float]) -> None:
    if not all(map(math.isfinite, values)):
        raise ValueError("a value is NaN or infinite: leave out what has no score before summarising")


def require_groups(values: Sequence[float], groups: Sequence[Hashable] | None) -> None:
    if groups is not None and len(groups) != len(values):
        raise ValueError(f"{len(values)} values, but {len(groups)} groups: each value needs one")


def group_values(values: Sequence[float], groups: Sequence[Hashable]) -> dict[Hashable, list[float]]:
    """The values of each group, in the order of the groups' first values."""
    members: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        members.setdefault(group, []).append(value)
    return members


def require_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: between 0 and 1, for example 0.95")


def require_probability(value: float, name: str) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} {value}: a probability, from 0 to 1")


def require_at_least(value: int, least: int, name: str) -> None:
    if value < least:
        raise ValueError(f"{name} {value}: at least {least}")


def require_pairs(first: Sequence[object], second: Sequence[object]) -> None:
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values against {len(second)}: pairs need as many of each")


Key = TypeVar("Key", bound=Hashable)


class Pairs(msgspec.Struct, frozen=True):
    """`first[i]` and `second[i]` are of one key, which is in `groups[i]`."""

    first: list[float]
    second: list[float]
    groups: list[Hashable]
    only_first: int = 0
    only_second: int = 0

    @property
    def differences(self) -> list[float]:
        """Second minus first."""
        return [after - before for before, after in zip(self.first, self.second, strict=True)]


def pair_up(
    first: Mapping[Key, float | None],
    second: Mapping[Key, float | None],
    group_of: Callable[[Key], Hashable] = lambda key: key,
) -> Pairs:
    """Pairs in the order of the first side. None and NaN count as missing."""
    mine, theirs = _present(first), _present(second)
    common = [key for key in mine if key in theirs]
    return Pairs(
        [mine[key] for key in common],
        [theirs[key] for key in common],
        [group_of(key) for key in common],
        only_first=len(mine) - len(common),
        only_second=len(theirs) - len(common),
    )


def _present(values: Mapping[Key, float | None]) -> dict[Key, float]:
    return {key: value for key, value in values.items() if value is not None and value == value}


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
