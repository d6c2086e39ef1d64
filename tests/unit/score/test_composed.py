"""Scorers that are made of others."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ScorerError
from holdfast.records.samples import Answer, Score
from holdfast.score import Scorer, ScoringFailed, resolve, score_answer, scorer
from tests.unit.score.answers import answer, sample, score, value

VALUES = st.none() | st.booleans() | st.floats(0, 1)


def says(what: Any) -> Scorer:
    return scorer(lambda sample, answer: what, name="s")


def of(name: str, *values: Any) -> Any:
    return value({name: {"of": [says(each) for each in values]}}, "4", "4")


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("all_of", [True, True], True),
        ("all_of", [True, False], False),
        ("all_of", [True, None], None),
        ("all_of", [None, False], False),
        ("all_of", [0.5, 0.75], 0.5),
        ("all_of", [True, 0.5], 0.5),
        ("all_of", [-1, -3, 2], -3),
        ("any_of", [2, 5], 5),
        ("any_of", [False, True], True),
        ("any_of", [False, False], False),
        ("any_of", [False, None], None),
        ("any_of", [None, True], True),
        ("any_of", [0.5, 0.75], 0.75),
        ("none_of", [False, False], True),
        ("none_of", [False, True], False),
        ("none_of", [None], None),
        ("none_of", [0.25], 0.75),
    ],
)
def test_all_any_and_none(name: str, values: list[Any], wanted: Any) -> None:
    found = of(name, *values)
    assert found == wanted
    assert isinstance(found, bool) == isinstance(wanted, bool)


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_none_of_is_what_any_of_is_not_and_all_is_never_more_than_any(values: list[Any]) -> None:
    some, none, every = of("any_of", *values), of("none_of", *values), of("all_of", *values)
    assert none == (None if some is None else 1 - some)
    assert None in (some, every) or every <= some
    known = [each for each in values if each is not None]
    assert every in (*known, None)


def test_no_more_parts_are_asked_than_needed() -> None:
    asked = []

    def part(name: str, result: Any) -> Scorer:
        def said(sample: Any, answer: Any) -> Any:
            asked.append(name)
            return result

        return scorer(said, name=name)

    assert value({"all_of": {"of": [part("a", True), part("b", False), part("c", True)]}}, "4", "4") is False
    assert value({"any_of": {"of": [part("d", None), part("e", True), part("f", True)]}}, "4", "4") is True
    assert asked == ["a", "b", "d", "e"]


@pytest.mark.parametrize(
    ("entry", "scores", "wanted"),
    [
        ("all_of", {"a": True, "b": False}, {"all_of": False}),
        ("all_of", {"a": 4, "b": 2}, {"all_of": 2}),
        ("any_of", {"a": 4, "b": 2}, {"any_of": 4}),
        ("any_of", {"a": 4, "b": None}, {"any_of": None}),
        ("all_of", {"": 3, "a": 4, "b": 2}, {"all_of": 3}),
        ({"weighted": {"weights": [1]}}, {"a": 4, "b": 2}, {"weighted": 3}),
        ({"weighted": {"weights": [1]}}, {"a": 4, "b": None}, {"weighted": None}),
        ({"at_least": {"value": 3}}, {"a": 4, "b": 2}, {"at_least": False}),
        ({"at_least": {"value": 3}}, {"a": 4, "b": 3}, {"at_least": True}),
        ({"at_least": {"value": 3}}, {"a": 4, "b": None}, {"at_least": None}),
        ({"at_least": {"value": 3}}, {"a": 2, "b": None}, {"at_least": False}),
        ({"when": {"test": says({"a": True, "b": False}), "otherwise": "numeric"}}, {"a": 1}, {"when": True}),
        ({"when": {"test": says({"a": True, "b": 1})}}, {"a": 1, "b": "x"}, {"when.a": 1, "when.b": "x"}),
    ],
)
def test_a_part_with_several_scores_counts_with_all_of_them_a_panel_with_the_joint_one(
    entry: Any, scores: dict[str, Any], wanted: dict[str, Any]
) -> None:
    name, args = next(iter(entry.items())) if isinstance(entry, dict) else (entry, {})
    part = "then" if name == "when" else "of"
    given = says(scores) if name in ("when", "at_least") else [says(scores)]
    said = asyncio.run(score_answer(resolve({name: {**args, part: given}}, "here"), sample("4"), answer("4")))
    assert {each: score.value for each, score in said.items()} == wanted


def test_the_reason_tells_what_each_part_said() -> None:
    said = score({"all_of": {"of": ["exact_match", {"regex": {"pattern": "5", "name": "five"}}]}}, "4", "4")
    assert (said.value, said.reason) == (False, "exact_match: True; five: False")


def test_weighted_is_the_weighted_mean() -> None:
    entry = {"weighted": {"of": [says(True), says(0.5), says(0)], "weights": [2, 1, 1]}}
    assert value(entry, "4", "4") == 0.625
    assert value({"weighted": {"of": [says(True), says(None)], "weights": [1, 1]}}, "4", "4") is None


def test_when_chooses_by_the_row_or_by_the_answer() -> None:
    entry = {
        "when": {
            "test": {"row_is": {"column": "kind", "equals": "number"}},
            "then": {"numeric": {"tolerance": 0.5}},
            "otherwise": "exact_match",
        }
    }
    assert value(entry, "4", "about 4.2", {"kind": "number"}) is True
    assert value(entry, "4", "about 4.2", {"kind": "text"}) is False
    only = {"when": {"test": {"regex": {"pattern": r"\d"}}, "then": "numeric"}}
    assert value(only, "4", "4") is True
    assert score(only, "4", "four") == Score(None, "regex does not hold")
    assert value({"when": {"test": says(None), "then": "numeric"}}, "4", "4") is None


def test_at_least_makes_a_number_true_or_false() -> None:
    assert value({"at_least": {"of": "token_f1", "value": 0.5}}, "cat dog", "cat") is True
    assert value({"at_least": {"of": "token_f1", "value": 0.9}}, "cat dog", "cat") is False
    assert value({"at_least": {"of": says(None), "value": 0.9}}, "cat dog", "cat") is None


def test_parts_may_have_parts_and_extractors_and_be_async() -> None:
    async def slow(sample: Any, answer: Answer) -> bool:
        await asyncio.sleep(0)
        return answer.text == "4"

    entry = {
        "any_of": {
            "of": [
                {"all_of": {"of": [slow, {"regex": {"pattern": "x"}}]}},
                {"exact_match": {"extract": "last_line"}},
            ],
            "extract": "without_thinking",
        }
    }
    assert value(entry, "4", "<think>4</think>so\n4") is True


def test_in_python_parts_are_given_with_using() -> None:
    from holdfast.score.scorers.composed import all_of

    made = all_of.using(of=["exact_match", says(True)], name="both")
    assert asyncio.run(score_answer(resolve(made, "here"), sample("4"), answer("4")))["both"].value is True


@pytest.mark.parametrize(
    ("text", "finish_reason", "wanted"),
    [
        ("4", "stop", "correct"),
        ("", "stop", "empty"),
        ("5 and then", "length", "truncated"),
        ("I'm sorry, but I cannot help with that.", "stop", "refused"),
        ("I can't assist with this", "stop", "refused"),
        ("I\u2019m unable to help with that.", "stop", "refused"),
        ("5", "stop", "wrong"),
        ("five", "stop", "in words"),
        ("5" * 400 + " I cannot say more", "stop", "wrong"),
    ],
)
def test_a_taxonomy_gives_each_answer_one_label(text: str, finish_reason: str, wanted: str) -> None:
    entry = {"taxonomy": {"correct": "numeric", "labels": {"in words": {"regex": {"pattern": "^[a-z]+$"}}}}}
    made = resolve(entry, "here")
    said = asyncio.run(score_answer(made, sample("4"), Answer(text, finish_reason=finish_reason)))
    assert said["taxonomy"].value == wanted


def test_a_part_that_fails_fails_the_whole() -> None:
    def broken(sample: Any, answer: Any) -> bool:
        raise LookupError("gone")

    with pytest.raises(ScoringFailed, match="scorer 'broken': LookupError: gone"):
        value({"any_of": {"of": [broken, says(True)]}}, "4", "4")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"all_of": {"of": [says("label")]}}, "s gives 'label', not a number"),
        ({"all_of": {"of": [says({"a": 1, "b": "x"})]}}, "s.b gives 'x', not a number"),
        (
            {"when": {"test": says(0.5), "then": "exact_match"}},
            "s gives 0.5, which is neither true nor false",
        ),
        ({"row_is": {"column": "kind", "equals": 1}}, "the row has no column 'kind'"),
    ],
)
def test_what_cannot_be_combined_is_a_failure_that_says_so(entry: Any, problem: str) -> None:
    with pytest.raises(ScoringFailed) as caught:
        value(entry, "4", "4")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"all_of": {"of": ["exact_match", "exact_mach"]}}, "here.of[1]: unknown scorer 'exact_mach'; did you m"),
        ({"all_of": {"of": [{"regex": {"patern": "x"}}]}}, "here.of[0]: regex has no argument 'patern'; did you mean"),
        ({"all_of": {"off": []}}, "here: all_of has no argument 'off'; did you mean 'of'?"),
        ({"all_of": {"of": []}}, "here: of: give at least one scorer"),
        ("all_of", "here: all_of needs the argument 'of'"),
        ({"all_of": {"of": ["consistency"]}}, "consistency scores groups of repeats and cannot be a part"),
        ({"weighted": {"of": ["exact_match"], "weights": [1, 2]}}, "2 weights for 1 scorers"),
        ({"weighted": {"of": ["exact_match"], "weights": [0]}}, "weights must not be negative, and not all 0"),
        ({"weighted": {"of": ["exact_match"], "weights": ["x"]}}, "argument 'weights' is ['x']"),
        ({"when": {"test": "nope", "then": "numeric"}}, "here.test: unknown scorer 'nope'"),
        ({"taxonomy": {"labels": ["numeric"]}}, "here.labels: expected {label: scorer}"),
        ({"taxonomy": {"labels": {"a": "numerc"}}}, "here.labels.a: unknown scorer 'numerc'; did you mean 'numer"),
    ],
)
def test_a_wrong_part_is_refused_with_its_place(entry: Any, problem: str) -> None:
    with pytest.raises(ScorerError) as caught:
        resolve(entry, "here")
    assert problem in str(caught.value)


def test_a_scorer_takes_ctx_if_one_of_its_parts_does() -> None:
    def judged(sample: Any, answer: Any, ctx: Any) -> bool:
        return bool(ctx == "means")

    made = resolve({"all_of": {"of": ["exact_match", judged]}}, "here")
    assert made.needs_ctx
    assert not resolve({"all_of": {"of": ["exact_match"]}}, "here").needs_ctx
    assert asyncio.run(score_answer(made, sample("4"), answer("4"), "means"))["all_of"].value is True


def test_a_scorer_asks_the_judges_that_its_parts_ask() -> None:
    part = {"at_least": {"of": {"rubric": {"criteria": "Is it kind?", "role": "critic"}}, "value": 3}}
    made = resolve({"all_of": {"of": ["exact_match", part, {"pairwise": {"roles": ["a", "critic"]}}]}}, "here")
    assert made.needs_ctx
    assert made.roles() == ["critic", "a"]
