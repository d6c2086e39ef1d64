"""Scores of likelihoods against values computed by hand, as lm-eval defines them."""

import asyncio
import math
from typing import Any

import pytest

from holdfast.records.samples import Answer, Score
from holdfast.score import ScoringFailed, resolve, score_answer
from tests.unit.score.answers import sample


def scored(*choices: tuple[str, float], labels: str = "ABCDEFGH") -> Answer:
    """An answer as the solver makes it."""
    details = [
        {
            "text": text,
            "label": label,
            "logprob": logprob,
            "tokens": 1,
            "characters": len(text),
            "bytes": len(text.encode()),
        }
        for (text, logprob), label in zip(choices, labels, strict=False)
    ]
    return Answer("A", {"role": "assistant", "content": "A", "likelihood": {"best": 0, "choices": details}})


def score(name: str, target: Any, answer: Answer) -> Score:
    (found,) = asyncio.run(score_answer(resolve(name, "here"), sample(target), answer)).values()
    return found


TABLE = [
    # choices and sums                     acc  acc_norm  acc_bytes
    ((("yes", -3.0), ("certainly not", -6.5)), "A", "B", "B"),  # -1.0 or -0.5 for each character
    ((("ééé", -3.6), ("abcd", -4.0)), "A", "B", "A"),  # characters: -1.2, -1.0; bytes: -0.6, -1.0
    ((("世界", -4.0), ("world", -5.0)), "A", "B", "A"),  # characters: -2.0, -1.0; bytes: -0.67, -1.0
    ((("a", -2.0), ("b", -2.0)), "A", "A", "A"),  # the first wins a tie
    ((("b", -5.0), ("cc", -4.0), ("dddd", -4.5)), "B", "C", "C"),
]


@pytest.mark.parametrize(("choices", "plain", "by_characters", "by_bytes"), TABLE)
def test_each_normalisation_picks_its_choice(
    choices: tuple[tuple[str, float], ...], plain: str, by_characters: str, by_bytes: str
) -> None:
    answer = scored(*choices)
    for name, expected in (("acc", plain), ("acc_norm", by_characters), ("acc_bytes", by_bytes)):
        for label in "ABC"[: len(choices)]:
            found = score(name, label, answer)
            assert found.value is (label == expected), (name, label)
            assert found.reason.startswith(f"chose {expected} (-")


@pytest.mark.parametrize(
    ("target", "is_right"),
    [
        *(("B", True), (1, True), ("blue", True), (" blue ", True), ("1", True), (["A", "B"], True), ([0, 1], True)),
        *(("A", False), (0, False), ([1, 0], False), (True, True), (False, False), ({"labels": [0, 1]}, True)),
    ],
)
def test_a_target_is_a_label_a_text_an_index_or_a_mark_for_each_choice(target: Any, is_right: bool) -> None:
    assert score("acc", target, scored(("red", -2.0), ("blue", -1.0))).value is is_right


def test_a_label_counts_before_an_index() -> None:
    """ARC has rows with the labels 1 to 4."""
    answer = scored(("red", -1.0), ("blue", -2.0), labels="12")
    assert score("acc", "1", answer).value is True
    assert score("acc", "2", answer).value is False


@pytest.mark.parametrize("target", ["C", 2, -1, "", {}, [], [0, 0], 1.0])
def test_a_target_that_is_no_choice_is_an_error_in_the_data(target: Any) -> None:
    with pytest.raises(ScoringFailed, match=r"(the target .* is none of the choices|names no correct choice)"):
        score("acc", target, scored(("red", -2.0), ("blue", -1.0)))


def test_the_error_shows_the_target_as_the_data_has_it() -> None:
    with pytest.raises(ScoringFailed, match="the target 'C' is none of the choices: use a label \\(A, B\\)"):
        score("acc", "C", scored(("red", -2.0), ("blue", -1.0)))


def test_mc2_is_the_share_of_the_correct_choices_in_all_probability() -> None:
    answer = scored(("a", math.log(0.5)), ("b", math.log(0.2)), ("c", math.log(0.05)))
    for target in ([1, 0, 1], {"choices": ["a", "b", "c"], "labels": [1, 0, 1]}, ["A", "C"]):
        assert score("mc2", target, answer).value == pytest.approx(0.55 / 0.75)
    assert score("mc2", "B", answer).value == pytest.approx(0.2 / 0.75)
    assert score("mc2", [1, 1, 1], answer).value == 1.0


def test_mc2_does_not_underflow() -> None:
    answer = scored(("a", -2000.0), ("b", -2000.0 - math.log(3)))
    assert score("mc2", "A", answer).value == pytest.approx(0.75)


def test_other_answers_are_refused_with_the_solver_to_use() -> None:
    with pytest.raises(ScoringFailed, match="use the solver choice_likelihood"):
        score("acc", "A", Answer("A"))


@pytest.mark.parametrize("name", ["acc", "acc_norm", "acc_bytes", "mc2"])
def test_a_sample_without_a_target_has_no_score(name: str) -> None:
    assert score(name, None, scored(("a", -1.0), ("b", -2.0))).value is None
