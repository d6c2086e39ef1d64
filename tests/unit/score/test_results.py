"""Asking a scorer: many kinds of results, one kind of score, and failures that show the user's own lines."""

import asyncio
import math
import pickle
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError, StoppedError
from holdfast.records.facts import Failure
from holdfast.records.samples import Answer, Sample, Score
from holdfast.score import SCORERS, ScoringFailed, as_number, resolve, score_answer, scorer
from holdfast.score.definition import requires
from tests.unit.score import answers
from tests.unit.score.answers import answer, sample


def said(result: Any) -> dict[str, Score]:
    """What `judge` makes of a scorer that returns `result`."""
    return asyncio.run(score_answer(scorer(lambda sample, answer: result, name="s"), sample("4"), answer("4")))


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        (True, True),
        (False, False),
        (3, 3),
        (0.5, 0.5),
        ("good", "good"),
        ("", ""),
        (None, None),
        (math.nan, None),
        (np.float64(0.5), 0.5),
        (np.bool_(True), True),
        (np.int64(3), 3),
        (np.float32("nan"), None),
        (np.array(2.0), 2.0),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 2), 0.5),
    ],
)
def test_a_plain_result_is_the_scorers_value(result: Any, wanted: Any) -> None:
    scores = said(result)
    assert scores == {"s": Score(wanted)}
    assert type(scores["s"].value) is type(wanted)


def test_a_dict_gives_a_score_for_each_key() -> None:
    assert said({"a": True, "b": 0.5, "": "label", "c": None, "d": Score(1, "why")}) == {
        "s.a": Score(True),
        "s.b": Score(0.5),
        "s": Score("label"),
        "s.c": Score(None),
        "s.d": Score(1, "why"),
    }


def test_a_score_is_kept_with_its_reason() -> None:
    given = Score(0.5, "half right", {"seen": [1, 2]})
    assert said(given) == {"s": given}
    assert said(Score(math.nan, "no idea")) == {"s": Score(None, "no idea")}
    assert said(Score({"a": 1, "b": math.nan}, "both")) == {"s.a": Score(1, "both"), "s.b": Score(None, "both")}


@pytest.mark.parametrize(
    ("result", "what"),
    [
        ([1], "a list"),
        ({}, "an empty dict"),
        ({"a": {"b": 1}}, "a dict"),
        ({1: 2}, "key 1"),
        (object(), "a object"),
        (math.inf, "an infinite number"),
        (1j, "a complex"),
        (Fraction(10**400), "out of range"),
        (np.array([1.0]), "a ndarray"),
        (Score([1]), "a list"),  # type: ignore[arg-type]  # what a user may do
        (Score(1, "", {"a": object()}), "metadata that cannot be stored"),
    ],
)
def test_what_is_no_score_is_a_failure_and_names_the_function(result: Any, what: str) -> None:
    with pytest.raises(ScoringFailed, match="scorer 's': returned") as caught:
        said(result)
    assert what in str(caught.value)
    assert f'File "{__file__}", line' in caught.value.detail


def checked(depth: int) -> bool:
    if depth:
        return checked(depth - 1)
    raise ValueError("the data is odd")


@scorer
def raises(sample: Sample, answer: Answer) -> bool:
    return checked(2)


@scorer
async def raises_later(sample: Sample, answer: Answer) -> bool:
    await asyncio.sleep(0)
    return checked(1)


@pytest.mark.parametrize("failing", [raises, raises_later])
def test_an_exception_shows_the_users_own_lines(failing: Any) -> None:
    with pytest.raises(ScoringFailed) as caught:
        asyncio.run(score_answer(failing, sample("4"), answer("4")))
    error = caught.value
    assert isinstance(error, HoldfastError)
    assert error.kind == "scorer"
    assert str(error) == f"scorer {failing.name!r}: ValueError: the data is odd"
    lines = error.detail.splitlines()
    assert lines[0].startswith(f'  File "{__file__}", line ')
    assert lines[0].endswith(f"in {failing.name}")
    assert 'raise ValueError("the data is odd")' in error.detail
    assert lines[-1] == "ValueError: the data is odd"
    assert "src/holdfast" not in error.detail
    assert error.failure == Failure("scorer", str(error), error.detail)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_failure_does_not_store_a_whole_answer_again() -> None:
    parse = scorer(lambda sample, answer: float(answer.text), name="parse")
    with pytest.raises(ScoringFailed) as caught:
        asyncio.run(score_answer(parse, sample("4"), answer("x" * 1_000_000)))
    assert len(str(caught.value)) + len(caught.value.detail) < 10_000


def test_errors_of_holdfast_and_cancelling_pass_through() -> None:
    for error in (StoppedError("the journal is closed"), asyncio.CancelledError()):

        async def ask(sample: Sample, answer: Answer, ctx: Any, error: BaseException = error) -> bool:
            raise error

        with pytest.raises(type(error)):
            asyncio.run(score_answer(scorer(ask), sample("4"), answer("4")))


def test_a_judge_gets_its_context_and_its_arguments() -> None:
    async def ask(sample: Sample, answer: Answer, ctx: Any, weight: float = 1.0) -> float:
        await asyncio.sleep(0)
        return float(ctx) * weight

    made = resolve(ask, "place")
    assert made.needs_ctx
    assert asyncio.run(score_answer(made, sample("4"), answer("4"), ctx=2)) == {"ask": Score(2.0)}


def test_arguments_reach_the_function() -> None:
    made = resolve({"numeric": {"tolerance": 1.0}}, "place")
    assert asyncio.run(score_answer(made, sample("4"), answer("4.9")))["numeric"].value is True


@pytest.mark.parametrize(
    "name",
    [
        *("exact_match", "includes", "numeric", "choice", "maths", "json_field", "token_f1", "edit_similarity", "bleu"),
        *("chrf", "rouge", "meteor", "codebleu", "length_difference", "taxonomy"),
    ],
)
def test_a_sample_without_target_has_no_score(name: str) -> None:
    assert asyncio.run(score_answer(SCORERS[name], sample(None), answer("4")))[name].value is None


def test_a_target_that_cannot_be_used_is_a_failure_not_a_zero() -> None:
    with pytest.raises(ScoringFailed, match="the target 'four' contains no number"):
        asyncio.run(score_answer(SCORERS["numeric"], sample("four"), answer("4")))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (True, 1.0),
        (False, 0.0),
        (3, 3.0),
        (0.5, 0.5),
        ("1", None),
        ("", None),
        (None, None),
        ({}, None),
        (math.nan, None),
        (math.inf, None),
        (10**400, None),
        (-1e200, None),
        (1e150, 1e150),
    ],
)
def test_as_number(value: Any, wanted: float | None) -> None:
    assert as_number(value) == wanted


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.integers())


@given(PLAIN | st.dictionaries(st.text() | st.integers(), PLAIN))
def test_any_result_is_a_score_or_a_failure(result: Any) -> None:
    try:
        scores = said(result)
    except ScoringFailed:
        return
    assert scores
    for score in scores.values():
        assert (
            score.value is None or isinstance(score.value, bool | int | str) or math.isfinite(float(str(score.value)))
        )


def test_a_scorer_that_works_with_a_heavy_package_does_not_hold_up_the_event_loop() -> None:
    """To import one takes seconds."""

    def where(sample: Any, answer: Any) -> str:
        return threading.current_thread().name

    made = requires("text", "rapidfuzz")(scorer(where))
    assert asyncio.run(score_answer(made, sample("4"), answer("4")))["where"].value != threading.main_thread().name
    assert all(SCORERS[name].slow for name in ("edit_similarity", "bleu", "chrf", "rouge", "meteor"))


SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    ("entry", "target", "text", "unreadable"),
    [
        ("numeric", "4", "no idea", True),
        ("numeric", "4", "5", False),
        ("choice", "A", "no idea", True),
        ("choice", "A", "B", False),
        ("json_field", "4", "no idea", True),
        ({"json_schema": {"schema": SCHEMA}}, None, "no idea", True),
        ({"json_schema": {"schema": SCHEMA}}, None, "[1]", False),
        ("maths", "4", "", True),
        ("maths", "4", "5", False),
        ({"exact_match": {"extract": {"after": {"marker": "Answer:"}}}}, "4", "no idea", True),
        ({"exact_match": {"extract": {"after": {"marker": "Answer:"}}}}, "4", "Answer: 5", False),
        ({"token_f1": {"extract": {"after": {"marker": "Answer:"}}}}, "4", "no idea", True),
        ({"length": {"extract": {"after": {"marker": "Answer:"}}}}, None, "no idea", False),
        ("exact_match", "4", "no idea", False),
        ({"when": {"test": {"row_is": {"column": "k", "equals": 1}}, "then": "numeric"}}, "4", "no idea", True),
    ],
)
def test_what_a_scorer_cannot_read_is_marked(entry: Any, target: Any, text: str, unreadable: bool) -> None:
    found = answers.score(entry, target, text, {"k": 1})
    assert (found.unreadable, not found.value) == (unreadable, True)


def test_a_mark_of_a_score_without_a_number_is_dropped() -> None:
    assert said(Score(False, unreadable=True))["s"].unreadable
    assert not said(Score(None, unreadable=True))["s"].unreadable
    assert not said(Score("label", unreadable=True))["s"].unreadable
