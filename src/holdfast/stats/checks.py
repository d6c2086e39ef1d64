"""Checks of arguments, shared by all functions of this package.

Invariant of the package: an unknown number is None, never 0. Invalid arguments raise a ValueError that names what was
given and what is expected.
"""

import math
from collections.abc import Hashable, Sequence


def require_finite(values: Sequence[float]) -> None:
    if not all(map(math.isfinite, values)):
        raise ValueError("a value is NaN or infinite: leave out what has no score before summarising")


def require_groups(values: Sequence[float], groups: Sequence[Hashable] | None) -> None:
    if groups is not None and len(groups) != len(values):
        raise ValueError(f"{len(values)} values, but {len(groups)} groups: each value needs one")


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
