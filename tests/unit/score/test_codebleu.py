"""codebleu."""

import pytest
from codebleu import calc_codebleu

from holdfast.errors import ScorerError
from holdfast.score import resolve
from tests.unit.score.answers import score, value

SUM = "def sum ( first , second ) :\n return second + first"
ADD = "def add ( a , b ) :\n return a + b"


def test_codebleu_against_the_packages_published_example() -> None:
    said = score("codebleu", SUM, ADD)
    assert said.value == pytest.approx(0.5537842627792564, abs=1e-9)
    assert said.metadata["syntax_match_score"] == said.metadata["dataflow_match_score"] == 1.0


@pytest.mark.parametrize("language", ["python", "javascript", "java", "go", "c", "cpp", "rust"])
def test_codebleu_is_that_of_the_package_in_every_language(language: str) -> None:
    one, other = "int f(int a) { return a + 1; }", "int g(int b) { return b + 1; }"
    wanted = calc_codebleu([[one]], [other], language)["codebleu"]
    assert value({"codebleu": {"language": language}}, one, other) == pytest.approx(wanted, abs=1e-12)


def test_code_is_compared_without_what_is_said_around_it() -> None:
    assert value("codebleu", ADD + "\n\nx = add(1, 2)", f"Sure!\n```python\n{ADD}\n\nx = add(1, 2)\n```\nDone.") == 1.0


@pytest.mark.parametrize("text", ["", "((((", "def f(:\n", "\x00", "x" * 5000])
def test_what_is_no_code_has_a_score_between_0_and_1(text: str) -> None:
    assert 0 <= value("codebleu", SUM, text) <= 1


def test_code_that_is_too_long_has_no_score() -> None:
    assert value("codebleu", SUM, "x = 1\n" * 20_000) is None


def test_a_language_without_a_grammar_is_refused() -> None:
    with pytest.raises(ScorerError, match="Invalid enum value 'cobol'"):
        resolve({"codebleu": {"language": "cobol"}}, "here")
