"""Word by word: what both texts have, what was deleted, what was inserted."""

import time

from hypothesis import given
from hypothesis import strategies as st

from holdfast.view.diff import word_diff

TEXTS = st.text(alphabet="ab ,\n<é", max_size=200) | st.text(max_size=60)


def parts(before: str, after: str) -> list[tuple[str, str]]:
    return [(part.kind, part.text) for part in word_diff(before, after)]


def test_the_words_that_differ_are_marked() -> None:
    assert parts("The answer is 8.", "The answer is 9.") == [
        ("same", "The answer is "),
        ("deleted", "8"),
        ("inserted", "9"),
        ("same", "."),
    ]


def test_equal_texts_and_empty_texts() -> None:
    assert parts("a b", "a b") == [("same", "a b")]
    assert parts("", "") == []
    assert parts("", "x") == [("inserted", "x")]
    assert parts("x", "") == [("deleted", "x")]


@given(TEXTS, TEXTS)
def test_the_parts_make_up_both_texts(before: str, after: str) -> None:
    found = parts(before, after)
    assert "".join(text for kind, text in found if kind != "inserted") == before
    assert "".join(text for kind, text in found if kind != "deleted") == after


def test_texts_that_would_take_long_are_one_deletion_and_one_insertion() -> None:
    before, after = "a b " * 5000, "b b a " * 5000
    began = time.process_time()
    found = parts(before, after)
    assert time.process_time() - began < 1.0
    assert {kind for kind, _ in found} <= {"same", "deleted", "inserted"}
    assert "".join(text for kind, text in found if kind != "inserted") == before
