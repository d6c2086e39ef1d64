"""What the test server says by itself."""

from fractions import Fraction

import pytest

from holdfast.records.samples import Answer, Message
from holdfast.testing import Behaviour
from holdfast.testing.protocols import answer_for, compute


def say(text: str, behaviour: Behaviour | None = None, digest: str = "d") -> str:
    messages = [{"role": "system", "content": "1 + 1"}, {"role": "user", "content": text}]
    return answer_for(behaviour or Behaviour(), messages, digest).text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12 + 30", 42),
        ("What is 7 * 6?", 42),
        ("7*6=", 42),
        ("50-8", 42),
        ("-8 + 50", 42),
        ("2 - -3", 5),
        ("84 / 2", 42),
        ("1 + 2 * 3 - 4", 3),
        ("1 + 1, then 2 + 2", 4),
        ("0.5 * 4", 2),
        ("1 / 3", Fraction(1, 3)),
        ("1 / 0", None),
        ("no sum, only 5", None),
        ("", None),
    ],
)
def test_the_last_sum_of_a_text_is_computed(text: str, value: int | Fraction | None) -> None:
    assert compute(text) == value


def test_sums_are_answered_and_everything_else_is_echoed() -> None:
    assert say("12 + 30") == "42"
    assert say("1 / 4") == "0.25"
    assert say("hello there") == "hello there"


def test_a_share_of_the_sums_is_wrong_and_always_the_same_ones() -> None:
    def answers(behaviour: Behaviour) -> list[str]:
        return [say("1 + 1", behaviour, f"digest {number}") for number in range(200)]

    some = answers(Behaviour(wrong_rate=0.25))
    assert 25 <= some.count("3") <= 75
    assert answers(Behaviour(wrong_rate=0.25)) == some
    assert answers(Behaviour(wrong_rate=0.25, seed=1)) != some
    assert set(answers(Behaviour(wrong_rate=1.0))) == {"3"}
    assert set(answers(Behaviour())) == {"2"}


def test_a_reply_may_be_a_text_a_message_or_an_answer() -> None:
    def text(messages: list[Message]) -> str:
        return f"{len(messages)} messages"

    def message(messages: list[Message]) -> Message:
        return {"content": "x", "tool_calls": [{"id": "1"}]}

    def answer(messages: list[Message]) -> Answer:
        return Answer("x", finish_reason="length")

    assert say("", Behaviour(reply=text)) == "2 messages"
    called = answer_for(Behaviour(reply=message), [], "d")
    assert (called.finish_reason, called.tool_calls, called.text) == ("tool_calls", [{"id": "1"}], "x")
    told = answer_for(Behaviour(reply=answer), [], "d")
    assert (told.finish_reason, told.message) == ("length", {"content": "x"})
