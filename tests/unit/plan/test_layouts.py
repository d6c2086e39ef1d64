"""Conversions of benchmarks: the layouts that they accept besides that of their own source, and what they refuse."""

from typing import Any

import pytest

from holdfast.plan.benchmarks import find_conversion


def convert(name: str, row: dict[str, Any]) -> Any:
    made: Any = find_conversion(name)(row)
    return made if made is None or isinstance(made, dict) else list(made)


@pytest.mark.parametrize(("label", "target"), [(0, "no"), (1, "yes"), (False, "no"), (True, "yes")])
def test_boolq_reads_the_copy_of_superglue(label: Any, target: str) -> None:
    found = convert("boolq", {"question": "q", "passage": "p", "idx": 1, "label": label})
    assert (found["target"], found["index"]) == (target, int(target == "yes"))


@pytest.mark.parametrize("answer", [-1, None, "yes"])
def test_boolq_refuses_hidden_and_unknown_answers(answer: Any) -> None:
    with pytest.raises(ValueError, match="neither true nor false"):
        convert("boolq", {"question": "q", "passage": "p", "answer": answer})


def test_questions_about_the_same_passage_are_one_group() -> None:
    groups = [
        convert("boolq", {"question": question, "passage": passage, "answer": True})["passage_digest"]
        for question, passage in (("q", "p"), ("r", "p"), ("q", "other"))
    ]
    assert groups[0] == groups[1] != groups[2]


def drop(**fields: Any) -> Any:
    return convert("drop", {"query_id": "d", "passage": "p", "question": "q", **fields})["target"]


NO_DATE = {"day": "", "month": "", "year": ""}
NUMBER = {"number": "12.5", "date": NO_DATE, "spans": []}
SPANS = {"number": "", "date": NO_DATE, "spans": ["Ann", "Bo"]}
DATE = {"number": "", "date": {"day": "", "month": "May", "year": "1900"}, "spans": []}
EMPTY = {"number": "", "date": NO_DATE, "spans": []}


def test_drop_reads_all_validated_answers_as_a_list_and_as_a_mapping_of_lists() -> None:
    every: list[dict[str, Any]] = [SPANS, DATE, NUMBER, EMPTY, {"number": "0", "date": None, "spans": None}]
    together = {name: [answer[name] for answer in every] for name in ("number", "date", "spans")}
    expected = [["12.5"], ["Ann", "Bo"], ["May 1900"], ["0"]]
    assert drop(answer=NUMBER, validated_answers=every) == expected
    assert drop(answer=NUMBER, validated_answers=together) == expected
    assert drop(answer=NUMBER, validated_answers=None) == drop(answer=NUMBER) == [["12.5"]]


def test_drop_gives_the_two_rows_with_the_same_id_different_ids() -> None:
    row = {"query_id": "28553293-d719-441b-8f00-ce3dc6df5398", "passage": "p", "answer": NUMBER}
    ids = [convert("drop", {**row, "question": f"How many{end}"})["id"] for end in "?/"]
    assert ids == [row["query_id"], f"{row['query_id']}-2"]


def test_drop_reads_the_layout_of_ucinlp() -> None:
    assert drop(answers_spans={"spans": ["2", "3", "2"], "types": ["number"] * 3}) == [["2"], ["3"]]
    assert drop(answers_spans={"spans": ["Ann", "Bo", "Ann"], "types": ["span"] * 3}) == [["Ann", "Bo"]]
    assert drop(answers_spans={"spans": ["3 May", "Ann"], "types": ["date", "span"]}) == [["Ann"], ["3 May"]]


def test_drop_leaves_out_a_question_without_an_answer() -> None:
    row = {"query_id": "d", "passage": "p", "question": "q", "answer": EMPTY, "validated_answers": [EMPTY]}
    assert convert("drop", row) is None
    with pytest.raises(KeyError, match="answers_spans"):
        drop(solution="12.5")


STORY = {
    "source": "cnn",
    "story": "A story.",
    "questions": ["Who?", "Why?"],
    "answers": {"input_text": ["Ann", "to win"]},
}


def test_coqa_asks_each_question_after_the_reference_answers_of_the_earlier_ones() -> None:
    first, second = convert("coqa", STORY)
    assert (first["dialogue"], first["question"], first["target"]) == ("", "Who?", ["Ann"])
    assert (second["dialogue"], second["question"], second["target"]) == ("Q: Who?\nA: Ann\n\n", "Why?", ["to win"])
    assert [each["id"] for each in (first, second)] == [f"{first['story_id']}-1", f"{first['story_id']}-2"]
    assert first["story_id"] == second["story_id"] != convert("coqa", {**STORY, "story": "Another."})[0]["story_id"]


def test_coqa_reads_the_copy_with_ids_and_additional_answers() -> None:
    more = {"0": {"input_text": ["Ann Lee", "to win"]}, "1": {"input_text": ["Ann", "for money"]}}
    row = {**STORY, "id": "s9", "questions": {"input_text": STORY["questions"]}, "additional_answers": more}
    found = convert("coqa", row)
    assert [each["id"] for each in found] == ["s9-1", "s9-2"]
    assert [each["target"] for each in found] == [["Ann", "Ann Lee"], ["to win", "for money"]]


def test_coqa_refuses_more_questions_than_answers() -> None:
    with pytest.raises(ValueError, match="shorter"):
        convert("coqa", {**STORY, "questions": ["Who?", "Why?", "When?"]})


def test_triviaqa_refuses_a_question_whose_only_names_are_articles() -> None:
    with pytest.raises(ValueError, match="no answer"):
        convert("triviaqa", {"question_id": "1", "question": "q", "answer": {"value": "The", "aliases": ["a", "..."]}})


def test_ifeval_drops_arguments_that_are_null() -> None:
    row = {"key": 7, "prompt": "p", "instruction_id_list": ["a", "b"], "kwargs": [{"n": None, "m": 0}, None]}
    assert convert("ifeval", row) == {
        "id": "7",
        "prompt": "p",
        "instruction_id_list": ["a", "b"],
        "kwargs": [{"m": 0}, {}],
    }
    with pytest.raises(ValueError, match="same length"):
        convert("ifeval", {**row, "kwargs": [{}]})


@pytest.mark.parametrize(
    ("columns", "topic"),
    [
        ({"metadata": "{'topic': 'Art'}"}, "Art"),
        ({"metadata": {"topic": "Art"}}, "Art"),
        ({"topic": "Art"}, "Art"),
        ({"metadata": "{'topic': "}, "unknown"),
        ({"metadata": "['Art']"}, "unknown"),
        ({"metadata": "__import__('os')"}, "unknown"),
        ({"metadata": "(" * 10_000}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_simpleqa_reads_the_topic_if_it_can(columns: dict[str, Any], topic: str) -> None:
    assert convert("simpleqa", {"problem": "q", "answer": "a", **columns})["topic"] == topic
