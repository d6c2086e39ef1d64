"""Which shard a sample belongs to: the rule is part of the format."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records import SHARDS_MAX, Shard, parse_shard, shard_index


def test_the_rule_never_changes() -> None:
    assert [shard_index(each, 1000) for each in ("a/b/c", "a/b/d", "ü/%2F/☃")] == [111, 194, 219]


@given(st.text(), st.integers(1, SHARDS_MAX))
def test_every_sample_belongs_to_exactly_one_shard(sample: str, count: int) -> None:
    index = shard_index(sample, count)
    assert 0 <= index < count
    assert Shard(index + 1, count).has(sample)
    assert not Shard((index + 1) % count + 1, count).has(sample) or count == 1


def test_samples_are_spread_evenly() -> None:
    sizes = Counter(shard_index(f"task/model/{number}", 16) for number in range(16_000))
    assert len(sizes) == 16
    assert all(900 < size < 1100 for size in sizes.values())


@pytest.mark.parametrize("text", ["3/8", "3-of-8"])
def test_both_spellings_are_read(text: str) -> None:
    shard = parse_shard(text)
    assert (shard, str(shard), shard.folder) == (Shard(3, 8), "3/8", "3-of-8")


@pytest.mark.parametrize(
    "text", ["", "0/8", "9/8", "3", "3/", "/8", "3/0", "-1/8", "3/8/9", "a/b", "3 / 8", "1/100001"]
)
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a shard"):
        parse_shard(text)
