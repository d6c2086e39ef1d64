"""Conversions of multiple-choice benchmarks: hidden answers, padding, canaries, layouts that are not known."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.plan import all_benchmarks
from holdfast.records import Row
from tests.e2e.benchmarks import cases_commonsense, cases_exams, cases_medicine, cases_science

CASES = cases_commonsense.CASES | cases_exams.CASES | cases_medicine.CASES | cases_science.CASES


def raw(name: str, **changes: Any) -> Row:
    """The first row of a benchmark's source, with changes."""
    return {**next(iter(CASES[name].files.values()))[0], **changes}


def convert(name: str, **changes: Any) -> Row:
    conversion: Callable[[Row], Any] | None = all_benchmarks()[name].convert
    assert conversion is not None
    made = conversion(raw(name, **changes))
    assert isinstance(made, dict)
    return made


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("arc_easy", {"answerKey": ""}),
        ("commonsense_qa", {"answerKey": ""}),
        ("hellaswag", {"label": ""}),
        ("winogrande", {"answer": ""}),
        ("piqa", {"label": -1}),
        ("piqa", {"label": "-1"}),
        ("social_iqa", {"label": None}),
        ("medqa", {"label": -1}),
        ("medmcqa", {"cop": -1}),
        ("mmlu", {"answer": None}),
    ],
)
def test_a_hidden_answer_is_refused(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="its split hides the answers"):
        convert(name, **changes)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("mmlu", {"answer": 4}, "there are 4 choices"),
        ("mmlu", {"answer": True}, "no number"),
        ("mmlu", {"choices": ["a", "b", None, "d"]}, "a choice is empty"),
        ("mmlu_pro", {"answer": "A"}, "its index is 9"),
        ("mmlu_pro", {"options": ["a", "", "c", "N/A"], "answer": "C", "answer_index": 2}, "a choice is empty"),
        ("gpqa_diamond", {"Record ID": ""}, "no Record ID"),
        ("supergpqa", {"answer_letter": ""}, "no letter"),
        ("supergpqa", {"answer_letter": "AB"}, "no letter"),
        ("supergpqa", {"answer_letter": "J", "options": ["a", "b"]}, "there are 2 choices"),
        ("winogrande", {"answer": "0"}, "the correct choice is -1"),
        ("winogrande", {"answer": "3"}, "there are 2 choices"),
        ("winogrande", {"sentence": "no gap"}, "no underscore"),
        ("social_iqa", {"label": "4"}, "there are 3 choices"),
        ("piqa", {"sol2": " "}, "a choice is empty"),
        ("truthfulqa", {"mc1_targets": {"choices": ["a", "b"], "labels": [1, 1]}}, "exactly one choice"),
        ("truthfulqa", {"mc1_targets": {"choices": ["a", "b"], "labels": [1]}}, "the labels must be 1 or 0"),
        ("truthfulqa_mc2:likelihood", {"mc2_targets": {"choices": ["a", "b"], "labels": [0, 0]}}, "must be 1 or 0"),
        ("sciq", {"distractor2": ""}, "a choice is empty"),
        ("pubmedqa", {"final_decision": ""}, "must be one of yes, no, maybe"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(name: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        convert(name, **changes)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_missing_column_is_a_key_error(name: str) -> None:
    benchmark = all_benchmarks()[name]
    assert benchmark.convert is not None
    for column in benchmark.columns:
        with pytest.raises(KeyError, match=column):
            benchmark.convert({key: value for key, value in raw(name).items() if key != column})


def test_a_row_of_gpqa_has_no_canary_and_no_other_column() -> None:
    made = convert("gpqa_diamond")
    assert [*made] == ["id", "question", "domain", "choices", "options", "letter", "index"]
    assert "CANARY" not in str(made)


@pytest.mark.parametrize("name", ["gpqa_diamond", "truthfulqa", "sciq"])
def test_shuffled_choices_have_the_correct_one_in_every_place(name: str) -> None:
    column = {"gpqa_diamond": "Record ID"}.get(name, "question")
    letters = [convert(name, **{column: f"row {number}"})["letter"] for number in range(40)]
    assert {*letters} == {*convert(name)["choices"]["label"]}
    assert letters == [convert(name, **{column: f"row {number}"})["letter"] for number in range(40)]


def test_padding_is_removed_only_behind_the_correct_choice() -> None:
    made = convert("mmlu_pro", options=["a", "N/A", "c", None, "", "N/A"], answer="B", answer_index=1)
    assert made["choices"]["text"] == ["a", "N/A", "c"]
    made = convert("mmlu_pro", options=["a", "N/A", "N/A"], answer="B", answer_index=1)
    assert made["options"] == "A. a\nB. N/A"


def test_an_empty_choice_of_mmlu_keeps_its_letter() -> None:
    made = convert("mmlu", choices=["", "b", "c", "d"], answer=3)
    assert (made["options"], made["letter"]) == ("A. \nB. b\nC. c\nD. d", "D")
