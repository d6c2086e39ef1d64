"""Letters as models pick them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.samples import Score
from holdfast.score import choice, extract_letter
from holdfast.score.letters import extract_labelled
from tests.unit.score.answers import answer, sample

PICKED: dict[str, str | None] = {
    "B": "B",
    "b": "B",
    " (B) ": "B",
    "B.": "B",
    "**B**": "B",
    "Answer: (B)": "B",
    "Answer: B": "B",
    "answer: b.": "B",
    "answer: b) Paris": "B",
    "Answer:\n\nB": "B",
    "**Answer:** C": "C",
    "**Answer**: C": "C",
    "The final answer is: **(D)**": "D",
    "The answer is 'B'": "B",
    "The answer is therefore D": "D",
    "The answer is B because A is wrong": "B",
    "The answer is A because B is wrong": "A",
    "First I thought the answer is A. But the answer is C.": "C",
    "The correct option is (D).": "D",
    "Correct choice: A": "A",
    "I choose option A": "A",
    "I'd go with B": "B",
    "B is correct, A is not": "B",
    "(C) is the best answer; D looks like it": "C",
    r"\boxed{B}": "B",
    r"So \boxed{\text{C}} and not A": "C",
    "答案是B。": "B",
    "所以选C": "C",
    "B. Because A is wrong": "B",
    "B) Paris": "B",
    "B: Paris, not A": "B",
    "A) x\nB) y\nC) z\nI go with B": "B",
    "A. x\nB. y\nC. z\nSo it must be option C": "C",
    "Let me see. It is **B**, and A is close": "B",
    "**B. Paris**\nA would be wrong": "B",
    "Option A is wrong. Option B is right": "B",
    "I think it could be D": "D",
    "I'm sure it's C": "C",
    "A good guess would be D": "D",
    "Answer: I think B": "B",
    "C++ is for D": "D",
    "The U.S. picked C": "C",
    "I would choose A over B.": "A",
    "Looking at these, option A fits best.": "A",
    "The correct answer is A mitochondria": "A",
    "My final answer is A though B is close": "A",
    "The answer is b because a is wrong": "B",
    "Answer:\uff22": "B",
    "b) because a is wrong": "B",
    "(c) Paris": "C",
    "I take option b.": "B",
    "the option a user picks": None,
    "a) x\nb) y": None,
    "**Answer: C**": "C",
    "Answer: $C$": "C",
    "Step by step.\nANSWER: C": "C",
    r"$\boxed{\textbf{(C)}}$": "C",
    "I think B": "B",
    "A lone dog": None,
    "ANSWER: $LETTER": None,
    "The answer is (J).": "J",
    "Answer: A cat": None,
    "The answer is a matter of taste": None,
    "A cat and I agree": None,
    "none of these": None,
    "": None,
    "42": None,
}


@pytest.mark.parametrize("text", PICKED, ids=lambda text: ascii(text)[:40])
def test_the_letter_that_a_text_picks(text: str) -> None:
    assert extract_letter(text) == PICKED[text]


@pytest.mark.parametrize(
    "text",
    [
        "It could be A, B, C or D",
        "Answer: A or B",
        "Answer: A/D",
        "Answer: A & B",
        "Answer: A, B",
        "Answer: (A) and (B)",
        "**Answer:** **A** or **B**",
        "Answer: A, or possibly option B",
        "Answer: A OR B",
        "answer: a or b.",
        "A or B is correct",
        "First the answer is C. Answer: A or B",
        r"\boxed{A, B}",
        r"\boxed{A \text{ or } B}",
        r"\boxed{A} or \boxed{B}",
        "**A** or **B**",
        "a) or b)",
        "I take option b, c.",
        "\u7b54\u6848\u662fA\u6216B",
    ],
    ids=ascii,
)
def test_a_letter_that_is_joined_to_another_choice_is_no_answer(text: str) -> None:
    assert extract_letter(text, "ABCD") is None
    assert extract_letter(text, "ABCD", mentions=False) is None


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is D, and A, B, and C are wrong.", "D"),
        ("The answer is B, and A isn't right", "B"),
        ("The answer is A, since B or C would be odd", "A"),
        ("The answer is A or X", "A"),
        ("Of A and B, B is correct", "B"),
        ("A or B? The answer is B.", "B"),
        ("A, B and C are wrong. **D**", "D"),
        ("Answer: B, a type of cell", "B"),
    ],
)
def test_other_letters_beside_a_decision_do_not_undo_it(text: str, letter: str) -> None:
    assert extract_letter(text, "ABCD", mentions=False) == letter


@pytest.mark.parametrize(
    "text",
    [
        "I cannot answer; hepatitis B needs a doctor.",
        "Vitamin C is the best known remedy.",
        "Vitamin C is right for you.",
        "C is the best known remedy.",
        "I think D",
    ],
)
def test_the_mere_mention_of_a_letter_can_be_excluded(text: str) -> None:
    assert extract_letter(text, "ABCD") is not None
    assert extract_letter(text, "ABCD", mentions=False) is None


@pytest.mark.parametrize(
    "text",
    [
        "So B is correct",
        "I believe (B) is right because",
        "B is the best answer",
        "**B**",
        "B because A is wrong",
        "B - Paris",
    ],
)
def test_verdicts_count_without_mentions(text: str) -> None:
    assert extract_letter(text, "ABCD", mentions=False) == "B"


@pytest.mark.parametrize(
    "text",
    [
        "Answer: B\n\n- A is true, but it does not explain this.",
        "Answer: B\n\nMany students choose A, because it is near.",
        "**Final Answer: B**\n\nIf x were 2, the answer would be C.",
        "**Answer:** (B) A is true, C is false",
        "The correct answer is **(B) A is true** and C is false.",
        "$\\boxed{B}$\n\nD is true only for gases.",
        "Answer: D\nWait.\nAnswer: B\nC is right for others.",
    ],
)
def test_an_explanation_after_the_answer_does_not_change_it(text: str) -> None:
    assert extract_letter(text, "ABCD", mentions=False) == "B"


@pytest.mark.parametrize(
    "text",
    [
        "Answer: A is close, but B is correct.",
        "Answer: A, C and D are wrong; B is correct.",
        "First the answer is C. B is correct.",
        "Answer: A or B?\nI choose B.",
        "In the answer: A. No, B is correct.",
        "<think>\nAnswer: A?\nNo, x.\n</think>\nSo B is correct.",
    ],
)
def test_a_later_sentence_decides_if_no_line_states_the_answer(text: str) -> None:
    assert extract_letter(text, "ABCD", mentions=False) == "B"


@pytest.mark.parametrize(
    "text",
    [
        r"Answer: \(B\)",
        r"The answer is \(\text{B}\).",
        "<answer>B</answer>",
        '{"reason": "because", "answer": "B"}',
        "The answer is most likely B.",
        "The answer must therefore be (B).",
        "(B) is the most appropriate answer.",
        "It is x, which is option B.",
        "So it must be **option (B)**",
    ],
)
def test_other_forms_of_a_clear_choice(text: str) -> None:
    assert extract_letter(text, "ABCD", mentions=False) == "B"


def test_letters_that_are_no_choice_are_passed_over() -> None:
    assert extract_letter("B or X", "ABCD") == "B"
    assert extract_letter("X", "ABCD") is None
    assert extract_letter("Answer: E. No, B", "ABCD") == "B"


@pytest.mark.parametrize(
    "text", ["A is wrong, B too. The answer is (E).", r"(A) or (B)? \boxed{J}", "Answer: E", "B is close. Answer: k."]
)
def test_an_answer_that_is_none_of_the_choices_is_not_replaced_by_another(text: str) -> None:
    assert extract_letter(text, "ABCD") is None


def test_a_letter_for_a_number_is_no_answer() -> None:
    assert extract_letter("B. We choose K as 3", "ABCD") == "B"
    assert extract_letter("B. The answer is V = IR", "ABCD") == "B"


@given(
    st.sampled_from("ABCDEFGHIJ"), st.sampled_from(["{}", "({})", "**{}**", "Answer: {}", "The answer is ({}).", "{}."])
)
def test_a_clear_pick_is_always_read(letter: str, form: str) -> None:
    assert extract_letter(form.format(letter)) == letter


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    found = extract_letter(text, "ABCD")
    assert found is None or found in "ABCD"


@pytest.mark.parametrize(
    "piece",
    [" ", "\n", "* ", "answer is ", "A ", "**", "(", "A, B, ", "answer A, ", "A is the best ", r"A\or ", "a or b "],
)
def test_a_rambling_answer_does_not_take_for_ever(piece: str) -> None:
    assert extract_letter("answer" + piece * 20_000 + "\nAnswer: B") == "B"


NUMBERED = {"choices": {"text": ["Rome", "Paris", "Oslo", "Bern"], "label": ["1", "2", "3", "4"]}}
LETTERED = {"choices": {"text": ["Rome", "Paris", "Oslo"], "label": ["A", "B", "C"]}}
OPTIONS = {"choices": ["Rome", "Paris", "Oslo"]}


@pytest.mark.parametrize(
    ("target", "row", "text", "wanted"),
    [
        ("B", {}, "B", True),
        ("b", {}, "(B)", True),
        ("(B)", {}, "B", True),
        ("B", {}, "C", False),
        (1, {}, "B", True),
        (0, {}, "A", True),
        ("1", {}, "B", True),
        ("Paris", OPTIONS, "B", True),
        ("Paris", {"options": ["Rome", "Paris"]}, "A", False),
        ("Paris", {"choices": {"text": ["Rome", "Paris"], "label": ["A", "B"]}}, "B", True),
        (["A", "C"], {}, "C", True),
        ("B", {}, "", False),
        ("B", OPTIONS, "D", False),
        (None, {}, "B", None),
        ("1", NUMBERED, "A", True),
        ("4", NUMBERED, "The answer is 4.", True),
        ("2", NUMBERED, "2) because", True),
        ("2", NUMBERED, "The answer is (1).", False),
        ("Oslo", NUMBERED, "3", True),
        (0, NUMBERED, "1", True),
        ("C", LETTERED, "C", True),
        ("C", {"options": ["w", "x"] * 5}, "The answer is (C).", True),
        ("J", {"options": ["w", "x"] * 5}, "The answer is (J).", True),
    ],
)
def test_choice(target: Any, row: dict[str, Any], text: str, wanted: bool | None) -> None:
    assert choice(sample(target, row), answer(text)).value is wanted


NUMBERS: dict[str, str | None] = {
    "2": "B",
    "(2)": "B",
    "The answer is 3.": "C",
    "2. Paris": "B",
    "1. First point\nAnswer: B": "B",
    "Vitamin C. The answer is 2": "B",
    "1. a\n2. b\nThe answer is 2.": "B",
    r"\boxed{4}": "D",
    "**3**": "C",
    "Answer: 1 or 2": None,
    "Answer: 1, 2": None,
    "The answer is 3. Answer: 1 & 2": None,
    "Answer: 2.5": None,
    "Answer: 12": None,
    "Answer: 7": None,
    "There are 2 cells": None,
    "<think>The answer is 4.</think>3": "C",
    "": None,
}


@pytest.mark.parametrize("text", NUMBERS)
def test_choices_may_be_labelled_by_numbers(text: str) -> None:
    assert extract_labelled(text, "ABCD") == NUMBERS[text]


def test_choice_says_what_it_read() -> None:
    assert choice(sample("B"), answer("(C)")) == Score(False, "read C")
    assert choice(sample("B"), answer("?")) == Score(False, "no choice in the answer", unreadable=True)


def test_choice_may_ignore_mere_mentions() -> None:
    unreadable = Score(False, "no choice in the answer", unreadable=True)
    assert choice(sample("B"), answer("Hepatitis B needs a doctor.")).value is True
    assert choice(sample("B"), answer("Hepatitis B needs a doctor."), mentions=False) == unreadable
    assert choice(sample("1", NUMBERED), answer("Vitamin A helps."), mentions=False) == unreadable


def test_how_many_choices_there_are_can_be_said() -> None:
    assert choice(sample("B"), answer("B, plan X"), choices=4).value is True
    assert choice(sample("B"), answer("B, plan X")).value is False


@pytest.mark.parametrize(
    ("target", "row"),
    [
        ("", {}),
        ("Paris", {}),
        (7, OPTIONS),
        (-1, {}),
        ("D", OPTIONS),
        (True, {}),
        ({"a": 1}, {}),
        ("1", {"choices": ["1", "2", "3"]}),
        ("A", {"choices": ["B", "A"]}),
    ],
)
def test_a_target_that_is_no_choice_or_two_raises(target: Any, row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"means (none|several) of the choices"):
        choice(sample(target, row), answer("A"))
