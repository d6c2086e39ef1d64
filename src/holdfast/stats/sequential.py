"""Always-valid intervals: they may be checked after every answer, and a run may be stopped because of them.

An ordinary 95% interval covers the true mean at one moment chosen in advance. If it is checked again and again until it
shows the desired result, it is wrong far more often. These intervals cover the mean at all moments together with 95%.

- `BoundedMean`, for scores that lie between known bounds: right or wrong, shares, or differences within pairs from -1
  to 1. Provably valid for any number of values: for each possible mean one bet says that the values are above it and
  one that they are below; a mean against which a gambler would have become 1/alpha times richer is ruled out (the
  hedged capital of Waudby-Smith and Ramdas, 2024; Ville's inequality).
- `NormalMixture`, for scores without bounds: asymptotically valid, from about `first` values on, by the normal mixture
  with an estimated variance (Robbins; Waudby-Smith and others, 2024). Narrowest at about `aim` values.

Assumed by both: each value has the same mean given those before it. So one value for one sample (the mean of its
repeats), in an order that is independent of the score: the plan's order after a shuffle, never the order of finishing,
because fast answers are often the easy ones. Values that finish early wait until those before them are there.
"""

import math

import numpy as np

from holdfast.stats.intervals import LEVEL, Summary
from holdfast.stats.units import Floats
from holdfast.stats.values import require_at_least, require_confidence

GRID = 1000
_STAKE = 0.5  # of the capital at most, on one value


class BoundedMean:
    """The mean of values from `lowest` to `highest`, one after the other. The interval never widens again."""

    def __init__(self, lowest: float = 0.0, highest: float = 1.0, confidence: float = LEVEL, grid: int = GRID) -> None:
        require_confidence(confidence)
        require_at_least(grid, 2, "grid")
        if not (lowest < highest and math.isfinite(highest - lowest)):
            raise ValueError(f"bounds {lowest} and {highest}: two finite numbers, the lower one first")
        self._lowest, self._highest = lowest, highest
        self._alpha = 1 - confidence
        self._means: Floats = np.linspace(0.0, 1.0, grid + 1)
        self._above: Floats = np.zeros(grid + 1)  # log of the capital won by betting on "above this mean"
        self._below: Floats = np.zeros(grid + 1)
        self._n = 0
        self._total = 0.0
        self._guess, self._variance, self._squares = 0.5, 0.25, 0.25
        self._low, self._high = 0.0, 1.0

    def add(self, value: float) -> None:
        if not self._lowest <= value <= self._highest:
            raise ValueError(f"value {value}: outside of the bounds {self._lowest} to {self._highest}")
        share = min(1.0, max(0.0, (value - self._lowest) / (self._highest - self._lowest)))
        self._bet(share)
        self._n += 1
        self._total += value
        self._guess += (share - self._guess) / (self._n + 1)
        self._squares += (share - self._guess) ** 2
        self._variance = self._squares / (self._n + 1)
        self._narrow()

    @property
    def summary(self) -> Summary:
        """No standard error: the interval does not come from one. None before the first value."""
        if self._n == 0:
            return Summary(0)
        width = self._highest - self._lowest
        low, high = self._lowest + width * self._low, self._lowest + width * self._high
        return Summary(self._n, self._total / self._n, None, low, min(high, self._highest))

    def _bet(self, share: float) -> None:
        """The stake depends only on earlier values: that makes the capital a martingale, and the interval valid."""
        moment = self._n + 1
        stake = math.sqrt(2 * math.log(2 / self._alpha) / (self._variance * moment * math.log(1 + moment)))
        with np.errstate(divide="ignore"):
            up = np.minimum(stake, _STAKE / self._means)
            down = np.minimum(stake, _STAKE / (1 - self._means))
        away = share - self._means
        self._above += np.log1p(up * away)
        self._below += np.log1p(-down * away)

    def _narrow(self) -> None:
        """A bet on "above" wins less the higher the mean is, so the means it rules out are all below one of them.

        If all means are ruled out, which happens with probability below alpha, the interval stays as it was.
        """
        won = math.log(2 / self._alpha)  # half of the capital on each side
        lower, upper = int((self._above >= won).sum()), int((self._below >= won).sum())
        low = max(self._low, float(self._means[lower - 1])) if lower else self._low
        high = min(self._high, float(self._means[-upper])) if upper else self._high
        if low < high:
            self._low, self._high = low, high


class NormalMixture:
    """The mean of values without bounds, one after the other. No interval before `first`, or if all are equal."""

    def __init__(self, confidence: float = LEVEL, aim: int = 500, first: int = 30) -> None:
        require_confidence(confidence)
        require_at_least(aim, 1, "aim")
        require_at_least(first, 2, "first")
        self._alpha, self._first = 1 - confidence, first
        wide = -2 * math.log(self._alpha)
        self._precision = (wide + math.log(wide) + 1) / aim if wide > 1 else 1 / aim
        self._n = 0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, value: float) -> None:
        if not math.isfinite(value):
            raise ValueError(f"value {value}: a finite number")
        self._n += 1
        away = value - self._mean
        self._mean += away / self._n
        self._squares += away * (value - self._mean)

    @property
    def summary(self) -> Summary:
        if self._n == 0:
            return Summary(0)
        if self._n < self._first or self._squares <= 0:
            return Summary(self._n, self._mean)
        deviation = math.sqrt(self._squares / (self._n - 1))
        weight = self._n * self._precision
        half = math.sqrt(2 * (weight + 1) / (self._n * weight) * math.log(math.sqrt(weight + 1) / self._alpha))
        error = deviation / math.sqrt(self._n)
        return Summary(self._n, self._mean, error, self._mean - deviation * half, self._mean + deviation * half)
