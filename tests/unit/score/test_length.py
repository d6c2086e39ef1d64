"""length, length_difference."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.samples import Answer, Usage
from holdfast.score import resolve, score_answer
from tests.unit.score.answers import sample, value


@pytest.mark.parametrize(("unit", "wanted"), [("words", 3), ("characters", 9), ("lines", 2)])
def test_length(unit: str, wanted: int) -> None:
    assert value({"length": {"unit": unit}}, None, "one\nto be") == wanted


def test_length_in_tokens_is_what_the_server_counted() -> None:
    made = resolve({"length": {"unit": "tokens"}}, "here")
    said = asyncio.run(score_answer(made, sample(None), Answer("x", usage=Usage(output_tokens=7))))
    assert said["length"].value == 7
    assert value({"length": {"unit": "tokens"}}, None, "x") is None


@pytest.mark.parametrize(
    ("target", "relative", "wanted"),
    [
        ("a b", False, 1),
        ("a b c d", False, -1),
        (["a", "a b c d"], False, -1),
        ("a b", True, 0.5),
        ("", True, None),
        (None, False, None),
    ],
)
def test_length_difference(target: Any, relative: bool, wanted: float | None) -> None:
    assert value({"length_difference": {"relative": relative}}, target, "x y z") == wanted


@given(st.text())
def test_a_text_is_as_long_as_itself(text: str) -> None:
    for unit in ("words", "characters", "lines"):
        assert value({"length_difference": {"unit": unit}}, text, text) == 0
