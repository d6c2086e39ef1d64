"""Groups values into independent units: the sum and size of each group, sorted.

Sorted, so that the result for a seed does not depend on the order of the values. Sums are exact (`fsum`), so that
groups with equal values are equal, whatever the order inside them.
"""

import math
from collections.abc import Hashable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.stats.values import group_values, require_finite, require_groups

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

CHUNK = 4_000_000
"""Numbers drawn at a time: 32 MB, whatever the number of values and resamples."""


class Units(msgspec.Struct, frozen=True):
    """`totals[i]` is the sum of a group of `sizes[i]` values."""

    totals: Floats
    sizes: Floats

    @property
    def count(self) -> int:
        return len(self.totals)

    @property
    def mean(self) -> float:
        """Of all values, each counting once."""
        return math.fsum(self.totals) / math.fsum(self.sizes)

    @property
    def vary(self) -> bool:
        """Whether the groups' means differ. If not, their variation is unknown."""
        means = self.totals / self.sizes
        spread = float(means.max() - means.min())
        return spread > 1e-14 * float(np.abs(means).max())


def units_of(values: Sequence[float], groups: Sequence[Hashable] | None) -> Units:
    """Without groups, each value is a unit of its own."""
    require_groups(values, groups)
    require_finite(values)
    if groups is None or len(set(groups)) == len(groups):
        totals = np.sort(np.asarray(values, dtype=float))
        return Units(totals, np.ones(len(totals)))
    found = sorted((math.fsum(each), len(each)) for each in group_values(values, groups).values())
    return Units(np.array([total for total, _ in found], dtype=float), np.array([n for _, n in found], dtype=float))


def batches(resamples: int, width: int) -> Iterator[tuple[int, int]]:
    """Where each batch of resamples begins and ends, so that one batch draws about CHUNK numbers."""
    rows = max(1, CHUNK // max(1, width))
    for first in range(0, resamples, rows):
        yield first, min(first + rows, resamples)
