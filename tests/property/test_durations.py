"""Durations in buckets: never further from the truth than they say, however they are put together."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.durations import RELATIVE_ERROR, Durations

seconds = st.floats(0.0, 1e6)
many = st.lists(seconds, max_size=60)


def of(values: list[float]) -> Durations:
    durations = Durations()
    for value in values:
        durations.add(value)
    return durations


@given(many.filter(bool), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_within_the_stated_error_of_the_exact_one(values: list[float], share: float) -> None:
    exact = sorted(values)[max(math.ceil(share * len(values)), 1) - 1]
    found = of(values).quantile(share)
    assert found == pytest.approx(exact, rel=RELATIVE_ERROR) if exact >= 1e-4 else found == 0.0


@given(many, many)
def test_merging_comes_to_the_same_as_counting_all_at_once(some: list[float], others: list[float]) -> None:
    merged, whole = of(some), of(some + others)
    merged.merge(of(others))
    assert (merged.counts, merged.longest) == (whole.counts, whole.longest)
    assert merged.seconds == pytest.approx(whole.seconds)


@given(many)
def test_what_is_recorded_reads_back_as_it_was(values: list[float]) -> None:
    durations = of(values)
    assert msgspec.json.decode(msgspec.json.encode(durations), type=Durations) == durations


@given(st.lists(st.floats(0.0, 1e300), max_size=400))
def test_the_buckets_stay_few_whatever_a_clock_says(values: list[float]) -> None:
    assert len(of(values).counts) <= 701
