"""What the scorers of benchmarks read in answers, headline and strict: the forms that models write, and traps."""

import asyncio
from typing import Any

import pytest

from holdfast.plan import all_benchmarks
from holdfast.records import Answer, Row, Sample, Score
from holdfast.score import resolve
from holdfast.score.results import score_answer

MMLU = {"question": "?", "subject": "s", "choices": ["w", "x", "y", "z"], "answer": 1}
TRIVIA = {"question_id": "q", "question": "?", "answer": {"value": "Paris", "aliases": [], "normalized_aliases": []}}
COQA = {
    "source": "s",
    "story": "t",
    "questions": ["?"],
    "answers": {"input_text": ["a red kite"], "answer_start": [0], "answer_end": [1]},
}
AIME = {"id": 1, "problem": "?", "answer": 26}


def drop(number: str) -> Row:
    return {"query_id": "d", "passage": "p", "question": "?", "answer": {"number": number, "spans": []}}


def boolq(answer: bool) -> Row:
    return {"passage": "p", "question": "?", "answer": answer}


def bbh(target: str, question: str = "?") -> Row:
    return {"config": "task", "config_row": 1, "input": question, "target": target}


def read(name: str, scorer: str, row: Row, text: str) -> Score:
    """What one scorer of a benchmark says about an answer to a row of the source."""
    benchmark = all_benchmarks()[name]
    (entry,) = (each for each in (resolve(entry, "") for entry in benchmark.task["scorers"]) if each.name == scorer)
    assert benchmark.convert is not None
    made = benchmark.convert(row)
    found: Any = made if isinstance(made, dict) else next(iter(made or ()))
    target = found[benchmark.task["dataset"]["target"]]
    (score,) = asyncio.run(score_answer(entry, Sample("1", "", target, found), Answer(text))).values()
    return score


def value(name: str, scorer: str, row: Row, text: str) -> float:
    found = read(name, scorer, row, text).value
    assert isinstance(found, bool | int | float)
    return float(found)


@pytest.mark.parametrize("name", [name for name, each in all_benchmarks().items() if each.metric == "choice"])
def test_multiple_choice_has_a_headline_and_a_strict_reading(name: str) -> None:
    assert [resolve(entry, "").name for entry in all_benchmarks()[name].task["scorers"]] == ["choice", "strict"]


@pytest.mark.parametrize(
    "text",
    [
        "It could be A, B, C or D",
        "I cannot answer; hepatitis B needs a doctor.",
        "Vitamin B is the best known remedy.",
        "Answer: B or A",
        "Answer: B/D",
        "The answer is B. Answer: A or D",
    ],
)
def test_no_choice_is_read_into_an_answer_that_makes_none(text: str) -> None:
    for scorer in ("choice", "strict"):
        found = read("mmlu", scorer, MMLU, text)
        assert (found.value, found.unreadable) == (False, True)


@pytest.mark.parametrize(
    ("text", "strict"),
    [
        ("Because.\nAnswer: B", True),
        ("**Answer: B**", True),
        ("**Answer:** (B).", True),
        ("### Answer: **B**\n", True),
        ("ANSWER: $B$", True),
        ("The answer is B.", False),
        ("Answer: B\nI hope this helps.", False),
        ("Answer: B. x", False),
        ("B", False),
    ],
)
def test_strict_multiple_choice_needs_the_last_line(text: str, strict: bool) -> None:
    assert value("mmlu", "choice", MMLU, text) == 1
    assert value("mmlu", "strict", MMLU, text) == strict


STATED = [
    "**Answer**: {}",
    "**Final Answer**: {}",
    "**Final Answer:** {}",
    "*Answer*: {}",
    "Answer : {}",
    "### Answer\n{}",
    "## Final Answer\n\n**{}**",
    "The answer is {}.",
    "The answer is **{}**. It is in the text.",
    "Answer: {}\nThe answer is based on the text.",
    "Answer: x\n**Answer**: {}",
    'Answer: "{}".',
]


@pytest.mark.parametrize("form", STATED)
def test_answers_in_other_forms_than_the_one_that_was_asked_for_are_read(form: str) -> None:
    assert value("drop", "drop_f1", drop("12.5"), form.format("12.5")) == 1
    assert value("drop", "drop_em", drop("12.5"), form.format("12.5")) == 1
    assert value("triviaqa", "exact", TRIVIA, form.format("Paris")) == 1
    assert value("coqa", "token_f1", COQA, form.format("a red kite")) == 1
    assert value("coqa", "exact", COQA, form.format("a red kite")) == 1


@pytest.mark.parametrize("text", ["Answer: Paris", "Answer: Paris.", "**Answer:** **Paris**"])
def test_strict_reading_comprehension_needs_the_label_as_asked_for(text: str) -> None:
    number, kite = text.replace("Paris", "12.5"), text.replace("Paris", "a red kite")
    assert value("triviaqa", "strict", TRIVIA, text) == value("triviaqa", "exact", TRIVIA, text) == 1
    assert value("drop", "strict", drop("12.5"), number) == value("coqa", "strict", COQA, kite) == 1
    assert not value("triviaqa", "strict", TRIVIA, text.replace(":", " :").replace("**", ""))
    assert not value("triviaqa", "strict", TRIVIA, "The answer is Paris.")


@pytest.mark.parametrize(
    "text",
    ["Paris", "The answer is not Paris.", "The answer is Rome. Not Paris.", "Answer: Rome\nThe answer is Paris."],
)
def test_other_places_are_no_answer(text: str) -> None:
    assert value("triviaqa", "exact", TRIVIA, text) == 0


def test_a_dot_inside_an_answer_stays() -> None:
    assert value("drop", "drop_f1", drop("12.5"), "The answer is 12.5.") == 1
    assert value("drop", "drop_f1", drop("12"), "The answer is 12.5.") == 0
    louis = {**TRIVIA, "answer": {"value": "St. Louis"}}
    assert value("triviaqa", "exact", louis, "The answer is St. Louis. It is in Missouri.") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes it does.", True),
        ("Based on the passage, yes.", True),
        ("The answer is yes because it says so.", True),
        ("**Yes**, it does.", True),
        ("Yes \u2014 the passage says so.", True),
        ("Answer: no (the passage says so)", False),
        ("The answer would be no.", False),
        ("<answer>yes</answer>", True),
        (r"So \boxed{\text{No}}", False),
        ("No. Wait. Yes, it does.", True),
        ("No it does not.", False),
        ("Based on the passage, no.", False),
        ("Yes, it is old. But it is not for cars, no.", False),
        ("The answer is yes. Answer: no", False),
        ("There is no doubt", None),
        ("No doubt it is", None),
        ("The answer is no doubt hidden", None),
        ("**Yes** or **no**", None),
        ("The options are: yes, no.", None),
        ("Yes and no.", None),
        ("Answer: yes/no", None),
    ],
)
def test_yes_and_no_are_read_in_sentences(text: str, expected: bool | None) -> None:
    for target in (True, False):
        found = read("boolq", "flexible", boolq(target), text)
        assert (found.value, found.unreadable) == (expected is target, expected is None)


@pytest.mark.parametrize(
    ("target", "text", "expected"),
    [
        ("Yes", "Answer: Yes. There is no doubt", True),
        ("No", "Answer: Yes. There is no doubt", False),
        ("No", "**Answer:** no", True),
        ("allegra answer beta", "Answer: allegra answer beta", True),
        ("beta", "Answer: allegra answer beta", False),
        ("invalid", "So it is valid. No: the answer is invalid.", True),
        ("-70", "**Final Answer**: -70", True),
    ],
)
def test_bbh_is_read_after_the_last_label(target: str, text: str, expected: bool) -> None:
    assert value("bbh", "flexible", bbh(target), text) == expected


@pytest.mark.parametrize("text", ["**Answer: (A)**", "### Answer: (A)", "**Answer:** (A).", "> Answer: (A)"])
def test_strict_bbh_allows_emphasis(text: str) -> None:
    assert value("bbh", "strict", bbh("(A)", "?\n(A) x\n(B) y"), text) == 1


def test_bbh_reads_no_choice_from_a_mere_mention() -> None:
    assert value("bbh", "flexible", bbh("(B)", "?\n(A) x\n(B) y"), "Hepatitis B is common.") == 0


@pytest.mark.parametrize(
    ("target", "text"),
    [("18", "#### **18**"), ("18", r"#### \$18"), ("18", r"#### $\$18$"), ("-5", "#### \u22125"), ("-5", "#### -$5")],
)
def test_strict_gsm8k_allows_emphasis_currency_and_a_minus(target: str, text: str) -> None:
    assert value("gsm8k", "strict", {"question": "?", "answer": f"#### {target}"}, text) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{26}", True),
        (r"\fbox{26}", True),
        (r"\boxed{3} no, \fbox{026}", True),
        (r"\boxed{m + n = 26}", True),
        (r"\boxed{m + n = 9 + 17 = 26}", True),
        (r"\boxed{a = b = 9, 26}", False),
        (r"\boxed{\text{26}}", True),
        (r"\boxed{26\text{ degrees}}", True),
        (r"\boxed{25, 26}", False),
        (r"\boxed{25 \text{ or } 26}", False),
        (r"\boxed{a = 25, b = 26}", False),
        (r"\boxed{\sqrt{26}}", False),
    ],
)
def test_the_box_of_aime_has_one_number(text: str, expected: bool) -> None:
    assert value("aime_2025", "strict", AIME, text) == expected


@pytest.mark.parametrize(
    "piece", ["\n", " ", "answer is ", "answer: .\n", "# ", "\n#", "*", "yes or ", "####", "not ", ",*"]
)
def test_long_answers_are_read_in_linear_time(piece: str) -> None:
    """A pattern that takes longer than its limit is a failure, not a score."""
    for name, row in (("drop", drop("12.5")), ("boolq", boolq(True)), ("bbh", bbh("Yes")), ("mmlu", MMLU)):
        for entry in all_benchmarks()[name].task["scorers"]:
            read(name, resolve(entry, "").name, row, piece * 20_000)
