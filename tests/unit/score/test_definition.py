"""The decorator: a function stays callable and becomes a scorer."""

import functools
from typing import Any

import pytest

from holdfast.errors import ScorerError
from holdfast.records.samples import Answer, Sample
from holdfast.score import Scorer, scorer
from holdfast.stats import BOOL
from tests.unit.score.answers import answer, sample


def close(sample: Sample, answer: Answer, within: float = 1.0) -> bool:
    return abs(float(answer.text) - float(sample.target)) < within


def test_the_decorator_works_with_and_without_arguments() -> None:
    assert scorer(close) == Scorer("close", close, {}, False, scale=BOOL)
    assert scorer(name="near")(close) == Scorer("near", close, {}, False, scale=BOOL)
    assert scorer()(close) == scorer(close)


def test_a_decorated_function_is_still_called() -> None:
    made = scorer(close)
    assert made(sample("4"), answer("4.5")) is True
    assert made(sample("4"), answer("4.5"), within=0.1) is False
    assert Scorer("c", close, {"within": 0.1})(sample("4"), answer("4.5")) is False


def test_a_scorer_can_be_renamed() -> None:
    assert scorer(scorer(close), name="other") == Scorer("other", close, scale=BOOL)
    assert scorer(scorer(close)) == scorer(close)


class Near:
    def __call__(self, sample: Sample, answer: Answer, ctx: Any) -> bool:
        return True

    def method(self, sample: Sample, answer: Answer) -> bool:
        return True


def test_whatever_can_be_called_has_a_name() -> None:
    assert scorer(Near()).name == "Near"
    assert scorer(Near().method).name == "method"
    assert scorer(functools.partial(close, within=2)).name == "close"
    assert scorer(lambda sample, answer: True).name == "lambda"


def test_a_third_parameter_called_ctx_is_the_context() -> None:
    def asks(sample: Sample, answer: Answer, ctx: Any, weight: int = 1) -> bool:
        return True

    def asks_not(sample: Sample, answer: Answer, context: Any = None) -> bool:
        return True

    assert scorer(asks).needs_ctx
    assert scorer(Near()).needs_ctx
    assert not scorer(asks_not).needs_ctx
    assert not scorer(close).needs_ctx


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: True, "takes (); a scorer takes (sample, answer)"),
        (lambda answer: True, "takes (answer)"),
        (lambda sample, answer, *, ctx: True, "ctx must be the third parameter"),
        (lambda sample, answer, weight, ctx: True, "ctx must be the third parameter"),
        (dict, "parameters cannot be inspected"),
        (4, "parameters cannot be inspected"),
    ],
)
def test_a_function_that_cannot_be_a_scorer_is_refused(function: Any, said: str) -> None:
    with pytest.raises(ScorerError) as caught:
        scorer(function)
    assert said in str(caught.value)


def test_a_function_of_any_arguments_is_a_scorer() -> None:
    assert scorer(lambda *both: True)(sample("4"), answer("4")) is True
