"""Adjusted p-values, against statsmodels."""

import math

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests  # type: ignore[import-untyped]  # no types

from holdfast.stats import benjamini_hochberg, holm

CLOSE = 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_they_are_those_of_statsmodels(seed: int) -> None:
    random = np.random.default_rng(seed)
    ps = np.concatenate([random.random(20) ** 4, [0.03, 0.03, 1.0, 0.0]])
    assert holm(ps.tolist()) == pytest.approx(multipletests(ps, method="holm")[1].tolist(), abs=CLOSE)
    assert benjamini_hochberg(ps.tolist()) == pytest.approx(multipletests(ps, method="fdr_bh")[1].tolist(), abs=CLOSE)


def test_a_test_without_a_p_has_no_part() -> None:
    assert holm([0.01, None, 0.04]) == pytest.approx([0.02, None, 0.04])
    assert benjamini_hochberg([None, 0.01, 0.04]) == pytest.approx([None, 0.02, 0.04])
    assert holm([]) == benjamini_hochberg([]) == []
    assert holm([None]) == [None]


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_what_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="a probability"):
        holm([0.5, p])
