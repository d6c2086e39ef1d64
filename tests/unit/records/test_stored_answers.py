"""A long text of an answer is stored once in a record, and read back whole."""

import msgspec
import pytest

from holdfast.errors import RecordTooLargeError
from holdfast.records import draft
from holdfast.records.facts import SampleFinished, Step, as_stored, checked
from holdfast.records.samples import TEXT_ONCE_CHARACTERS, Answer, Usage

LONG = "a line\n" * TEXT_ONCE_CHARACTERS


def answer(text: str, content: object = None) -> Answer:
    message = {"content": text if content is None else content, "role": "assistant", "refusal": None}
    return Answer(text, message, finish_reason="stop", usage=Usage(3, 4), dropped=("usage.total: -1",))


@pytest.mark.parametrize("kind", ["step", "sample.finished"])
def test_a_long_text_is_stored_once_and_read_back_whole(kind: str) -> None:
    given = answer(LONG)
    fact = Step(1, "solve/1", "q", answer=given) if kind == "step" else SampleFinished(1, 1, given)
    record, copy = checked(kind, fact, "t/m/s/1")
    assert record.size < 1.2 * len(msgspec.json.encode(LONG))
    assert copy == fact
    assert copy.answer is not None
    assert list(copy.answer.message) == list(given.message)  # digests of later requests depend on the order
    assert given.message["content"] == LONG


def test_the_text_is_in_memory_once_when_it_was_read() -> None:
    _, copy = checked("step", Step(1, "solve/1", "q", answer=answer(LONG)), "t/m/s/1")
    assert copy.answer is not None
    assert copy.answer.message["content"] is copy.answer.text


@pytest.mark.parametrize(
    "given", [answer("short"), answer(LONG, f"{LONG}!"), answer(LONG, [{"type": "text", "text": LONG}]), Answer(LONG)]
)
def test_other_answers_are_stored_as_they_are(given: Answer) -> None:
    fact = SampleFinished(1, 1, given)
    assert as_stored(fact) == fact
    assert checked("sample.finished", fact, "t/m/s/1")[1].answer == given


def test_a_record_of_an_older_version_that_has_the_text_twice_is_read() -> None:
    old = msgspec.json.encode({"text": LONG, "message": {"role": "assistant", "content": LONG}})
    assert msgspec.json.decode(old, type=Answer).message["content"] == LONG


def test_a_record_that_is_too_large_names_the_limit_and_what_to_do() -> None:
    with pytest.raises(RecordTooLargeError, match=r"has 65\.0 MiB, .* at most 64 MiB.*max_tokens"):
        draft("sample.finished", SampleFinished(1, 1, Answer("x" * (65 << 20))), "t/m/s/1")
