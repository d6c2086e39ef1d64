"""The scale of a score: what values are possible, whatever values were seen.

Intervals follow the scale. Ten grades of 1 say nothing about shares of right answers if grades go from 1 to 5, and they
say nothing at all if the ends of the scale are unknown.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

ScaleKind = Literal["bool", "range", "count", "label", "number"]


class Scale(msgspec.Struct, frozen=True):
    """`bool`: right or wrong, 0 or 1. `range`: from `lowest` to `highest`. `count`: from 0. `label`: a text. `number`:
    any number.
    """

    kind: ScaleKind = "number"
    lowest: float | None = None
    highest: float | None = None

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def width(self) -> float | None:
        """Highest minus lowest, the largest possible difference; None if there is none."""
        return None if self.lowest is None or self.highest is None else self.highest - self.lowest

    def declared(self) -> Any:
        """As a user declares it and an evaluation records it: a name, or [lowest, highest]."""
        return [self.lowest, self.highest] if self.kind == "range" else self.kind


BOOL = Scale("bool", 0.0, 1.0)
UNIT = Scale("range", 0.0, 1.0)
COUNT = Scale("count", 0.0)
LABEL = Scale("label")
NUMBER = Scale()
_NAMED = {each.kind: each for each in (BOOL, COUNT, LABEL, NUMBER)}


def parse_scale(declared: Any) -> Scale:
    """From `"bool"`, `"count"`, `"label"`, `"number"` or `(lowest, highest)`. ValueError for anything else."""
    if isinstance(declared, Scale):
        return declared
    if isinstance(declared, str) and declared in _NAMED:
        return _NAMED[declared]
    if isinstance(declared, Sequence) and not isinstance(declared, str) and len(declared) == 2:
        ends = [float(each) for each in declared if isinstance(each, int | float) and math.isfinite(each)]
        if len(ends) == 2 and ends[0] < ends[1]:
            return Scale("range", *ends)
    raise ValueError(f"scale {declared!r}: one of {', '.join(_NAMED)}, or (lowest, highest), for example (1, 5)")
