# ruff: noqa: RUF001 - signs of other languages are meant
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.samples import Answer, Sample
from holdfast.score.anomalies import KINDS, AnswerExpectations, expect_answers, find_anomalies

ENGLISH = expect_answers({"prompt": "Answer the question: {question}", "solver": "chat"}, {})
PLAIN = expect_answers({"solver": "chat"}, {})
JSON = expect_answers({"solver": "chat"}, {"response_format": {"type": "json_object"}})
JSON_SCORED = expect_answers({"solver": "chat", "scorers": ["exact_match", {"json_schema": {"schema": {}}}]}, {})


def kinds(
    text: str, asked: str = "How many are there?", expected: AnswerExpectations = PLAIN, **about: Any
) -> list[str]:
    sample = Sample("1", asked, about.pop("target", ""), {"question": asked})
    return list(find_anomalies(sample, Answer(text, **about), expected))


ORDINARY = {
    "a number": "42",
    "a letter": "B",
    "English prose": "The capital of France is Paris. It lies on the Seine, and about two million people live in it. "
    * 2,
    "code": "```python\n" + "".join(f"def f{i}(x):\n    return x + {i}\n\n" for i in range(40)) + "```",
    "code with a filler": "<tr>\n" + "  <td>0</td>\n" * 40 + "</tr>\n" * 3,
    "a table": "| day | open | by whom |\n|---|---|---|\n" + "".join(f"| {i} | yes | Anna |\n" for i in range(60)),
    "a table of equal rows": "| ok | yes | no |\n" * 30,
    "a rule": "Title\n" + "=" * 300 + "\nThe text below it is a sentence of its own.\n" + "-" * 300,
    "a long product": "The result is 1" + "0" * 500 + ".",
    "a matrix": "[" + ", ".join(["[0, 0, 0, 0]"] * 40) + "]",
    "a list of equal items": "\n".join(["- yes"] * 40),
    "numbered equal items": "\n".join(f"{i}. the same thing once more, please" for i in range(60)),
    "letters of many questions": "\n".join(["B"] * 100),
    "a refrain": "".join(f"Verse {i} tells of something new.\nAnd we all sing along, my friends.\n" for i in range(12)),
    "mathematics": "$$\\sum_{i=1}^{n} \\frac{1}{i^2} = \\frac{\\pi^2}{6}$$ so $\\alpha + \\beta = \\gamma$ and " * 3,
    "an answer that cannot": "I cannot find an error in this code; it does what its comment says.",
    "a helpless one": "I can't help but notice that both numbers are even, so the sum is even: 8.",
    "an unknown": "That cannot be known from the text.",
    "an apology": "Sorry for the mistake above: the right answer is 12.",
    "a German sentence": "Ich kann die Zahl nicht genau nennen, aber es sind etwa zwölf; gezählt wurden sie nicht.",
    "a quoted refusal": "The clerk said: no refunds. " * 3 + "He added, 'I cannot help with that.'",
}


@pytest.mark.parametrize("text", ORDINARY.values(), ids=ORDINARY)
def test_an_ordinary_answer_is_not_odd(text: str) -> None:
    assert kinds(text) == []
    assert kinds(text, expected=ENGLISH) == []


@pytest.mark.parametrize(
    "text",
    [
        "The answer is that the " * 60,
        "First I thought of it. " + "I need to check the sum once more. " * 20,
        "I need to check the sum once more. " * 200 + "So it is eight, as was said at the very beginning of this.",
        "no " * 300,
        "我需要再检查一次这个答案。" * 40,
        "нужно проверить это ещё раз. " * 40,
        "".join(f"{word} of the long paragraph, " for word in ("one", "two", "three", "four", "five", "six", "seven"))
        * 8,
    ],
)
def test_the_same_phrase_again_and_again_is_a_loop(text: str) -> None:
    assert "loop" in kinds(text, asked="我 need ещё")


def test_signs_without_letters_are_a_loop_only_if_they_went_on_until_the_answer_was_cut() -> None:
    zeros = "1" + "0" * 3000
    assert kinds(zeros, finish_reason="stop") == []
    assert kinds(zeros, finish_reason="length") == ["loop"]


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't assist with that.",
        "I\u2019m sorry, but I can\u2019t help with that request.",
        "I cannot provide instructions for that.",
        "Sorry, I'm not able to discuss this topic.",
        "I won't create content that harms people.",
        "Es tut mir leid, aber dabei kann ich dir nicht helfen.",
        "Ich kann Ihnen bei dieser Anfrage leider nicht helfen.",
        "Je suis désolé, mais je ne peux pas vous aider avec cette demande.",
        "Lo siento, pero no puedo ayudar con eso.",
        "Desculpe, mas não posso ajudar com isso.",
        "Mi dispiace, ma non posso aiutarti con questo.",
        "Извините, но я не могу помочь с этим.",
        "很抱歉，我无法提供这方面的帮助。",
        "申し訳ありませんが、そのご依頼にはお答えできません。",
        "죄송합니다. 그 요청은 도와드릴 수 없습니다.",
    ],
)
def test_what_models_decline_with_is_a_refusal_in_several_languages(text: str) -> None:
    asked = "Say it. Скажи. 说吧。言って。말해."
    assert kinds(text, asked) == ["refusal"]


def test_a_long_answer_that_begins_with_a_doubt_is_no_refusal() -> None:
    assert kinds("I can't provide an exact figure, but here is how it is found. " + "Count them one by one. " * 60) == [
        "loop"
    ]
    assert kinds("I can't provide an exact figure. " + "".join(f"In {y} it was {y % 7}. " for y in range(90))) == []


def test_a_refusal_is_known_from_the_server_too() -> None:
    assert kinds("", finish_reason="refusal") == ["refusal"]
    assert kinds("No.", message={"role": "assistant", "content": None, "refusal": "No."}) == ["refusal"]


RUSSIAN = "Столица Франции — Париж, он стоит на реке Сене."
CHINESE = "法国的首都是巴黎，它位于塞纳河畔。"
ARABIC = "عاصمة فرنسا هي باريس وتقع على نهر السين"
PROSE = "The capital of France is Paris, and it is on the river that is called the Seine in all the books."


@pytest.mark.parametrize("text", [RUSSIAN, CHINESE, ARABIC])
def test_an_answer_all_in_another_script_than_the_question_is_in_the_wrong_language(text: str) -> None:
    assert kinds(text, "What is the capital of France?") == ["language"]
    assert kinds(text, "What is the capital of France?", ENGLISH) == ["language"]
    assert kinds(text, text) == []


def test_prose_in_latin_letters_answers_a_question_without_them_in_the_wrong_language() -> None:
    assert kinds(PROSE, "法国的首都是什么？") == ["language"]
    assert kinds(PROSE, "Какая столица у Франции?") == ["language"]


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (CHINESE, "Translate: The capital of France is Paris."),
        (RUSSIAN, "Answer in Russian: what is the capital of France?"),
        (PROSE, "把这句话翻译成英文：法国的首都是巴黎。"),
        ("def quick(values):\n    return sorted(values)\n" * 3, "请写一个快速排序"),
        ("A", "法国的首都是什么？"),
        ('{"capital": "Paris", "river": "Seine"}', "法国的首都是什么？"),
        ("Paris", "Какая столица у Франции?"),
        ("Αθήνα", "What is the capital of Greece?"),
        ("パリはフランスの首都であり、セーヌ川のほとりにあります。", "法国的首都是什么？"),
        (f"{PROSE} In Russian books: {RUSSIAN}", "What is the capital of France?"),
        ("La capitale est Paris, où vivent deux millions d'habitants, dit-on à l'école. " * 2, "Which city is it?"),
    ],
)
def test_another_script_is_no_anomaly_if_it_was_asked_for_is_short_or_is_code(text: str, asked: str) -> None:
    assert kinds(text, asked) == []


def test_the_script_of_the_target_is_as_good_as_that_of_the_question() -> None:
    assert kinds(RUSSIAN, "Capital of France?", target="Париж") == []


def test_an_answer_that_is_no_json_is_odd_only_where_json_was_asked_for() -> None:
    assert kinds("It is 4.", expected=JSON) == ["format"]
    assert kinds("It is 4.", expected=JSON_SCORED) == ["format"]
    assert kinds("It is 4.") == []
    for text in ('{"a": 4}', "[4]", "4", ' {"a": {"b": null}} \n'):
        assert kinds(text, expected=JSON) == []


def test_where_a_scorer_takes_json_it_may_stand_in_a_text() -> None:
    fenced = 'Here it is:\n```json\n{"a": 4}\n```\nThat is all.'
    assert kinds(fenced, expected=JSON_SCORED) == []
    assert kinds('So {"a": 4} it is.', expected=JSON_SCORED) == []
    assert kinds(fenced, expected=JSON) == ["format"]


def test_an_answer_that_was_cut_off_or_calls_a_tool_is_not_blamed_for_its_format() -> None:
    assert kinds('{"a": ', expected=JSON, finish_reason="length") == []
    assert kinds("I call it.", expected=JSON, tool_calls=[{"id": "1"}]) == []
    assert kinds("", expected=JSON) == []


def test_a_format_is_not_asked_of_what_another_solver_makes_of_the_model() -> None:
    other = expect_answers({"solver": "my.module:solve"}, {"response_format": {"type": "json_object"}})
    assert kinds("It is 4.", expected=other) == []


@given(st.text(), st.text(), st.sampled_from([PLAIN, ENGLISH, JSON, JSON_SCORED]), st.sampled_from(["stop", "length"]))
def test_looking_never_raises_and_finds_only_kinds_that_are_listed(
    text: str, asked: str, expected: AnswerExpectations, reason: str
) -> None:
    assert set(kinds(text, asked, expected, finish_reason=reason)) <= set(KINDS)


@given(st.text(min_size=1, max_size=30), st.integers(1, 400))
def test_repeated_texts_of_any_kind_can_be_looked_at(text: str, times: int) -> None:
    assert set(kinds(text * times, text, JSON_SCORED, finish_reason="length")) <= set(KINDS)


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_row_can_be_asked_about(row: Any) -> None:
    found = find_anomalies(Sample("1", row, row, {"row": row}), Answer(RUSSIAN), PLAIN)
    assert set(found) <= {"language"}


def test_what_is_read_of_a_very_long_answer_is_bounded() -> None:
    """Its length is not: a text that must not be read whole would be, if it were sliced or searched as one."""
    letters = random.Random(7).choices("abcdefgh ijklmno é", k=100_000)

    class Watched(str):
        __slots__ = ()

        def count(self, *_: Any) -> int:
            raise AssertionError("the whole of it is searched")

        def lower(self) -> str:
            raise AssertionError("the whole of it is copied")

        def split(self, *_: Any, **__: Any) -> list[str]:
            raise AssertionError("the whole of it is split")

    assert kinds(Watched("".join(letters))) == []
