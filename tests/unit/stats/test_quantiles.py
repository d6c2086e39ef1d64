"""Quantiles, against numpy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stats import quantile


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.floats(0, 1))
def test_a_quantile_is_numpys(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)), abs=1e-6, rel=1e-9)


def test_quantiles_of_little() -> None:
    assert quantile([], 0.5) is None
    assert quantile([7], 0.99) == 7.0
    assert quantile([3, 1, 2], 0.5) == 2.0
    assert quantile([1, 2], 0.25) == 1.25
    assert (quantile([5, 1, 9], 0), quantile([5, 1, 9], 1)) == (1.0, 9.0)


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_a_quantile_outside_0_to_1_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile([1.0], q)


def test_a_value_without_order_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        quantile([1.0, math.nan], 0.5)
