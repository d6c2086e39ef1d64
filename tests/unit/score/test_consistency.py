"""consistency."""

import asyncio
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.score import resolve
from holdfast.score.results import score_group
from tests.unit.score.answers import answer, sample


def agreement(texts: list[str], entry: Any = "consistency") -> Any:
    said = asyncio.run(score_group(resolve(entry, "here"), sample(None), [answer(text) for text in texts]))
    (value,) = {each["consistency"].value for each in said}
    assert len(said) == len(texts)
    return value


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=8))
def test_consistency_is_the_share_of_pairs_that_agree(texts: list[str]) -> None:
    pairs = [one == other for one, other in combinations(texts, 2)]
    assert agreement(texts) == pytest.approx(sum(pairs) / len(pairs))


def test_one_answer_has_no_consistency() -> None:
    assert agreement(["a"]) is None


def test_what_is_compared_can_be_extracted() -> None:
    texts = ["it is 4", "I think 4.", "five"]
    assert agreement(texts) == 0
    assert agreement(texts, {"consistency": {"extract": "number"}}) == pytest.approx(1 / 3)


def test_case_counts_only_if_asked() -> None:
    assert agreement(["Yes", "yes "]) == 1
    assert agreement(["Yes", "yes "], {"consistency": {"ignore_case": False}}) == 0
