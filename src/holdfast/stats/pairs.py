"""Pairs the values of two sides by key, for paired tests and differences.

A key without a value on one side is left out and counted. Keys in one group are not independent: repeats of one sample
share a group.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import msgspec

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
