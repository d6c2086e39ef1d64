"""Counting tokens without a tokenizer: near enough for what is known, and never an error."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.models import count_message_tokens, count_tokens
from holdfast.models.prices import LEAST, MOST

KNOWN = {
    "Nothing recorded is bought twice.": 6,
    "Compute: 12 + 30": 7,
    "The quick brown fox jumps over the lazy dog.": 10,
    '{"id": 7, "question": "7 + 49"}': 14,
    "def add(one: int, other: int) -> int:\n    return one + other\n": 19,
    "1234567890": 4,
}
"""As a public tokenizer of 2023 cuts them."""


@pytest.mark.parametrize("text", KNOWN)
def test_it_is_as_near_as_it_says(text: str) -> None:
    assert LEAST * count_tokens(text) <= KNOWN[text] <= MOST * count_tokens(text)


@pytest.mark.parametrize("text", ["<|endoftext|>", "<|im_start|>user", "[INST]", "\ud800", "\x00\x07", "😀" * 3, ""])
def test_no_text_is_special(text: str) -> None:
    assert 0 <= count_tokens(text) <= 8


@given(st.text(), st.text())
@settings(max_examples=50)
def test_more_text_is_never_fewer_tokens(one: str, other: str) -> None:
    assert max(count_tokens(one), count_tokens(other)) <= count_tokens(f"{one}\n\n{other}")


def test_a_message_is_its_texts_and_a_little_more() -> None:
    parts = [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:" + "a" * 9999}}]
    assert count_message_tokens({"role": "user", "content": parts}) == count_tokens("Look:") + 4
    assert count_message_tokens({"role": "assistant", "content": None}) == 4
