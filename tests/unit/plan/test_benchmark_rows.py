"""Conversions of benchmarks in the layouts of several copies, and their scorers besides the headline one."""

import asyncio
from typing import Any

import pytest

from holdfast.plan import all_benchmarks, resolve_benchmarks
from holdfast.records import Answer, Row, Sample
from holdfast.score import resolve
from holdfast.score.results import score_answer
from holdfast.spec import SpecFile


def convert(name: str, row: Row) -> Row:
    conversion = all_benchmarks()[name].convert
    assert conversion is not None
    made = conversion(row)
    assert isinstance(made, dict)
    return made


def is_right(name: str, scorer: str, row: Row, text: str) -> bool:
    """What one scorer of a benchmark says about an answer to a row of the source."""
    entries = (resolve(entry, "") for entry in all_benchmarks()[name].task["scorers"])
    (entry,) = (each for each in entries if each.name == scorer)
    made = convert(name, row)
    (score,) = asyncio.run(score_answer(entry, Sample("1", "", made["target"], made), Answer(text))).values()
    assert isinstance(score.value, bool)
    return score.value


def test_the_question_and_answer_of_gsm8k_keep_their_bytes() -> None:
    row = {"question": " Two  spaces? ", "answer": "So <<1+1=2>>2.\n#### 2"}
    made = convert("gsm8k:5shot", row)
    assert (made["question"], made["answer"]) == (row["question"], row["answer"])
    assert made["solution"] == "So 2.\n#### 2"
    with pytest.raises(ValueError, match="####"):
        convert("gsm8k", {"question": "?", "answer": "2"})


GSM8K = {"question": "?", "answer": "#### 1,166"}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gsm8k", "#### 1166 and then 3", True),
        ("gsm8k", "1166", False),
        ("gsm8k:5shot", "#### 1166\n#### 3", True),
        ("gsm8k:5shot", "It is 1166.\n\nQuestion: ?\nAnswer: #### 1166", False),
    ],
)
def test_strict_extraction_needs_the_mark(name: str, text: str, expected: bool) -> None:
    assert is_right(name, "strict", GSM8K, text) is expected


def test_rows_of_gsm_symbolic_have_a_group_and_no_canary() -> None:
    row = {"id": 3, "instance": 0, "question": "?", "answer": "#### 2", "original_id": 77, "canary": "secret"}
    made = convert("gsm_symbolic", {**row, "original_question": "?", "original_answer": "#### 1"})
    assert (made["id"], made["original_id"], made["instance"]) == ("3-0", "77", "0")
    assert set(made) == {"id", "question", "target", "solution", "answer", "instance", "original_id"}


def mgsm(language: str = "de", number: int = 4, answer: Any = 20) -> Row:
    row = {"question": "10 + 10?", "answer": None, "answer_number": answer, "equation_solution": None}
    return {"config": language, "config_row": number, **row}


def test_translations_of_a_problem_are_one_group() -> None:
    made = [convert("mgsm", mgsm(language)) for language in ("de", "th")]
    assert [each["id"] for each in made] == ["de-4", "th-4"]
    assert [each["question_index"] for each in made] == [4, 4]
    assert made[0]["instruction"] != made[1]["instruction"]
    assert [each["target"] for each in made] == ["20", "20"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 mal 10\n20", True),
        ("**20**", True),
        ("20,00", True),
        ("๒๐", True),
        ("20 €", False),
        ("Es sind 20", False),
        ("20\nEnde", False),
    ],
)
def test_strict_extraction_of_mgsm_needs_the_number_alone(text: str, expected: bool) -> None:
    assert is_right("mgsm", "strict", mgsm(), text) is expected


@pytest.mark.parametrize(
    ("solution", "target"),
    [
        (r"$\boxed{1}$, no: $\boxed{\frac{\sqrt{2}}{2}}$.", r"\frac{\sqrt{2}}{2}"),
        (r"It is $\boxed 2$.", "2"),
        (r"It is $\boxed\frac12$.", r"\frac12"),
        (r"It is \fbox{7}.", "7"),
    ],
)
def test_the_target_of_a_solution_is_its_last_box(solution: str, target: str) -> None:
    row = {"problem": "?", "level": "Level 5", "type": "Algebra", "solution": solution}
    made = convert("competition_math", row)
    assert (made["target"], made["level"]) == (f"\\boxed{{{target}}}", 5)


@pytest.mark.parametrize("solution", ["It is 2.", r"\boxed{", r"\boxed{}"])
def test_a_solution_without_a_box_is_refused(solution: str) -> None:
    with pytest.raises(ValueError, match=r"box|empty"):
        convert("competition_math", {"problem": "?", "level": "Level ?", "type": "Algebra", "solution": solution})


@pytest.mark.parametrize(("text", "expected"), [(r"So \boxed{\frac12}.", True), ("So $\\frac{1}{2}$.", False)])
def test_strict_extraction_of_mathematics_needs_a_box(text: str, expected: bool) -> None:
    row = {"problem": "?", "answer": r"\frac{1}{2}", "subject": "Algebra", "level": 1, "unique_id": "x"}
    assert is_right("math_500", "strict", row, text) is expected
    assert is_right("math_500", "flexible", row, text)


@pytest.mark.parametrize("name", ["aime_2024", "aime_2025"])
@pytest.mark.parametrize("answer", [25, "025", "25", "25^\\circ"])
def test_both_layouts_of_aime_are_read(name: str, answer: Any) -> None:
    small, capital = {"id": 3, "problem": "?", "answer": answer}, {"ID": "3", "Problem": "?", "Answer": answer}
    assert convert(name, small) == convert(name, capital) == {"id": "3", "question": "?", "target": "25"}


@pytest.mark.parametrize("answer", ["1000", "", None, "m+n", "2.5"])
def test_an_answer_that_aime_cannot_have_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match="0 to 999"):
        convert("aime_2025", {"id": 3, "problem": "?", "answer": answer})


def bbh(target: str, question: str = "?", **more: Any) -> Row:
    return {"config": "task", "config_row": 1, "input": question, "target": target, **more}


def test_bbh_reads_a_copy_with_choices_of_their_own() -> None:
    row = {"config": "task", "config_row": 1, "question": "Which?", "target": "B"}
    made = convert("bbh", {**row, "choices": {"label": ["A", "B"], "text": ["one", "two"]}})
    assert made["question"] == "Which?\nOptions:\n(A) one\n(B) two"
    assert (made["kind"], made["target"], made["choices"]) == ("choice", "(B)", ["one", "two"])
    assert convert("bbh", {**row, "target": "No", "choices": None})["kind"] == "verdict"


@pytest.mark.parametrize(
    ("row", "text", "expected"),
    [
        (bbh("(A)", "?\n(A) x\n(B) y"), "Answer: (A)", True),
        (bbh("(A)", "?\n(A) x\n(B) y"), "Answer: A", False),
        (bbh("(A)", "?\n(A) x\n(B) y"), "The answer is (A).", False),
        (bbh("No"), "Answer: no.", True),
        (bbh("No"), "Answer: no\nAnswer: yes", False),
        (bbh("12"), "Answer: 12", True),
        (bbh("12"), "Answer: 12 apples", False),
        (bbh("] )"), "Answer: ])", True),
        (bbh("a b"), "Answer: a, b", True),
        (bbh("a b"), "a b", False),
    ],
)
def test_strict_extraction_of_bbh_needs_the_line(row: Row, text: str, expected: bool) -> None:
    assert is_right("bbh", "strict", row, text) is expected


def test_a_subset_is_a_list_of_configs_or_a_condition() -> None:
    def dataset_of(name: str, subset: Any) -> Any:
        raw = {"models": ["mock"], "tasks": [{"benchmark": name, "subset": subset}]}
        return resolve_benchmarks(SpecFile("", raw)).spec.tasks[0].dataset

    assert dataset_of("mgsm", "de").config == ["de"]
    assert dataset_of("bbh", ["navigate", "snarks"]).config == ["navigate", "snarks"]
    assert dataset_of("competition_math", "Algebra").where == "type in ['Algebra']"
