"""maths."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import parse, verify

from holdfast.score import ScoringFailed
from tests.unit.score.answers import score, value

CASES = [
    ("$\\frac{1}{2}$", "so $0.5$"),
    ("$\\frac{1}{2}$", "\\boxed{1/2}"),
    ("$x+1$", "$1+x$"),
    ("$x+1$", "$x+2$"),
    ("$\\{1,2\\}$", "$\\{2,1\\}$"),
    ("$(1,2)$", "$(2,1)$"),
    ("$\\sqrt{8}$", "it is $2\\sqrt{2}$."),
    ("$10$", "first 3, then $10$"),
    ("$10$", "eleven"),
    ("$\\frac{3}{4}$", "75%"),
]


@pytest.mark.parametrize(("target", "text"), CASES)
def test_maths_says_what_math_verify_says(target: str, text: str) -> None:
    assert value("maths", target, text) is verify(parse(target), parse(text))


def test_bare_latex_is_read_as_it_stands_in_a_box() -> None:
    assert value({"maths": {"extract": "boxed"}}, "\\frac{1}{2}", "so \\boxed{\\frac12}") is True
    assert value("maths", ["1/3", "0.5"], "$\\frac12$") is True


def test_a_target_that_is_no_expression_is_a_failure() -> None:
    with pytest.raises(ScoringFailed, match="the target '' is not a mathematical expression"):
        score("maths", "", "5")


def test_an_answer_without_an_expression_is_wrong() -> None:
    said = score("maths", "5", "")
    assert (said.value, said.reason) == (False, "no expression in the answer")


@settings(max_examples=8, deadline=None)
@given(st.text(max_size=50))
def test_any_text_can_be_an_answer(text: str) -> None:
    assert value("maths", "5", text) in (True, False)


def test_an_expression_that_cannot_be_worked_out_is_a_failure_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.score.scorers.numeric._SECONDS_MAX", 0.5)
    with pytest.raises(ScoringFailed, match=r"took longer than|died"):
        score("maths", "9", "$9^{9^{9^{9}}}$")
