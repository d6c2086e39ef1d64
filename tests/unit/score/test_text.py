"""exact_match, includes, regex."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.score import exact_match, includes, regex
from tests.unit.score.answers import answer, sample, value


@pytest.mark.parametrize(
    ("target", "text", "wanted"),
    [
        ("4", "4", True),
        ("4", " 4\n", True),
        ("4", "4.", False),
        ("caf\u00e9", "cafe\u0301", True),
        ("Paris", "paris", False),
        (4, "4", True),
        (True, "true", True),
        (False, "False", True),
        (["4", "four"], "four", True),
        (["4", "four"], "five", False),
        ("", "", True),
        ("4", "", False),
        (None, "4", None),
        ([], "4", None),
        ([None], "4", None),
    ],
)
def test_exact_match(target: Any, text: str, wanted: bool | None) -> None:
    assert exact_match(sample(target), answer(text)) is wanted


def test_exact_match_can_ignore_case_and_keep_blanks() -> None:
    assert exact_match(sample("STRASSE"), answer("straße"), ignore_case=True) is True
    assert exact_match(sample("4"), answer(" 4"), strip=False) is False


@given(st.text())
def test_a_text_matches_and_includes_itself(text: str) -> None:
    assert exact_match(sample(text), answer(text)) is True
    assert includes(sample(text), answer(f"so: {text}!")) is (True if text.strip() else None)


@pytest.mark.parametrize(
    ("target", "text", "wanted"),
    [
        ("Paris", "It is PARIS.", True),
        ("Paris", "London", False),
        (["London", "Paris"], "in paris", True),
        ("", "anything", None),
        (" ", "any thing", None),
        ("Paris\n", "It is Paris.", True),
        ("caf\u00e9", "a cafe\u0301", True),
        (["", "x"], "y", False),
        (None, "anything", None),
        (4, "24", True),
        ("x", "", False),
    ],
)
def test_includes(target: Any, text: str, wanted: bool | None) -> None:
    assert includes(sample(target), answer(text)) is wanted


def test_includes_can_heed_case() -> None:
    assert includes(sample("Paris"), answer("paris"), ignore_case=False) is False


def test_regex_without_group_only_has_to_be_found() -> None:
    assert regex(sample(None), answer("id-42"), pattern=r"\d+") is True
    assert regex(sample(None), answer("none"), pattern=r"\d+") is False
    assert regex(sample(None), answer("YES"), pattern="yes", ignore_case=True) is True


@pytest.mark.parametrize(
    ("target", "text", "wanted"),
    [
        ("42", "answer: 7 ... answer: 42", True),
        ("7", "answer: 7 ... answer: 42", False),
        (["1", 42], "answer: 42", True),
        ("42", "nothing", False),
        ("42", "answer: x", False),
        (None, "answer: 42", None),
        (None, "nothing", None),
    ],
)
def test_regex_with_a_group_compares_its_last_find(target: Any, text: str, wanted: bool | None) -> None:
    assert regex(sample(target), answer(text), pattern=r"answer: (?:(\d+)|x)", group=1) is wanted
    assert regex(sample(target), answer(text), pattern=r"answer: (?:(?P<n>\d+)|x)", group="n") is wanted


@pytest.mark.parametrize("scorer", [exact_match, includes])
def test_a_target_that_is_no_text_raises(scorer: Any) -> None:
    with pytest.raises(TypeError, match="the target is a dict"):
        scorer(sample({"a": 1}), answer("a"))


SQUAD = {"exact_match": {"extract": "normalized", "extract_target": "normalized"}}


@pytest.mark.parametrize(
    ("target", "text", "exact", "f1"),
    [
        ("The Eiffel Tower", "eiffel tower!", True, 1.0),
        (["Paris", "The City of Light"], "city of light", True, 1.0),  # aliases of TriviaQA
        (["in 1990", "1990"], "1990.", True, 1.0),  # additional answers of CoQA
        ("a cat", "a dog", False, 0.0),
        ("black cat", "the cat", False, 2 / 3),
        ("the", "an", True, 1.0),
        ("cat", "", False, 0.0),
        ("U.S.", "US", True, 1.0),
        ("theatre", "atre", False, 0.0),
        (["cat cat", "dog"], "cat", False, 2 / 3),
    ],
)
def test_answers_are_compared_as_in_squad(target: Any, text: str, exact: bool, f1: float) -> None:
    assert value(SQUAD, target, text) is exact
    assert value("token_f1", target, text) == pytest.approx(f1)
