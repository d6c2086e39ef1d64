"""What a client of the bridge may send, and what it is sent."""

import json
from typing import Any

import pytest

from holdfast.bridge.openai import (
    BadBodyError,
    ServedAnswer,
    completion_body,
    completion_chunks,
    models_body,
    parse_request,
    refusal_of,
)
from holdfast.models.http.bodies import decode
from holdfast.models.providers.chat_completions import answer_of
from holdfast.records.facts import Failure
from holdfast.records.samples import Answer, Usage

CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
    {"id": "c2", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
]
ANSWERS = {
    "text": Answer("yes", {"role": "assistant", "content": "yes"}, finish_reason="stop", usage=Usage(5, 3, 2, 1)),
    "calls": Answer("", {"role": "assistant", "content": None, "tool_calls": CALLS}, CALLS, "tool_calls", Usage(1, 1)),
    "both, and a reason": Answer(
        "so", {"role": "assistant", "content": "so", "tool_calls": CALLS, "reasoning_content": "x"}, CALLS, "tool_calls"
    ),
    "cut off": Answer("ye", {"role": "assistant", "content": "ye"}, finish_reason="length"),
    "empty": Answer("", {"role": "assistant", "content": ""}, finish_reason="stop"),
}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


USAGE = parse_request(body(stream_options={"include_usage": True}))


def test_what_concerns_only_the_way_is_no_parameter_of_the_request() -> None:
    wanted = parse_request(
        body(stream=True, stream_options={"include_usage": True}, n=1, temperature=0.5, tools=[{"type": "function"}])
    )
    assert (wanted.model, wanted.messages) == ("m", [{"role": "user", "content": "hi"}])
    assert wanted.params == {"temperature": 0.5}
    assert wanted.tools == [{"type": "function"}]
    assert wanted.stream
    assert wanted.include_usage


def test_a_null_is_not_said() -> None:
    wanted = parse_request(body(tools=None, stream=None, stream_options=None, n=None, temperature=None, stop=None))
    assert (wanted.tools, wanted.params, wanted.stream, wanted.include_usage) == ([], {}, False, False)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "must be an object"),
        (b"{}", "messages must be a list of objects, at least one"),
        (body(messages="hi"), "messages must be a list"),
        (body(messages=["hi"]), "messages must be a list"),
        (body(tools={}), "tools must be a list"),
        (body(model=7), "model must be a str"),
        (body(stream="yes"), "stream must be a bool"),
        (body(n=3), "n: a request returns one answer"),
    ],
)
def test_a_body_that_is_no_chat_request_is_refused_in_a_sentence(sent: bytes, said: str) -> None:
    with pytest.raises(BadBodyError, match=said):
        parse_request(sent)


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_said_is_read_as_the_answer_that_it_was(name: str) -> None:
    answer = ANSWERS[name]
    assert answer_of(decode(completion_body(ServedAnswer("id", "m", answer)))) == answer


@pytest.mark.parametrize("name", ANSWERS)
def test_the_events_of_a_stream_make_the_same_message(name: str) -> None:
    answer = ANSWERS[name]
    *events, last = completion_chunks(ServedAnswer("id", "m", answer), USAGE)
    assert last == b"data: [DONE]\n\n"
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert all(event.endswith(b"\n\n") for event in events)
    *said, usage = chunks
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == answer.usage.input_tokens + answer.usage.output_tokens
    message: dict[str, Any] = {}
    for chunk in said:
        for field, value in chunk["choices"][0]["delta"].items():
            if field == "tool_calls":
                (call,) = value
                assert call.pop("index") == len(message.setdefault("tool_calls", []))
                message["tool_calls"].append(call)
            elif field == "content" and message.get("content") is not None:
                message["content"] += value
            else:
                message[field] = value
    assert message == answer.message
    assert [chunk["choices"][0]["finish_reason"] for chunk in said] == [None] * (len(said) - 1) + [answer.finish_reason]
    assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks}) == 1


def test_without_being_asked_for_usage_a_stream_has_none() -> None:
    events = b"".join(completion_chunks(ServedAnswer("id", "m", ANSWERS["text"]), parse_request(body())))
    assert b"usage" not in events


def test_an_answer_that_is_only_a_text_is_said_as_a_message_that_has_ended() -> None:
    said = json.loads(completion_body(ServedAnswer("id", "m", Answer("yes"))))
    assert said["choices"][0]["message"] == {"role": "assistant", "content": "yes"}
    assert said["choices"][0]["finish_reason"] == "stop"
    called = json.loads(completion_body(ServedAnswer("id", "m", Answer("", tool_calls=CALLS))))
    assert called["choices"][0]["message"]["tool_calls"] == CALLS
    assert called["choices"][0]["finish_reason"] == "tool_calls"


def test_a_failure_has_the_code_that_agents_act_on() -> None:
    status, said = refusal_of(Failure("context_too_long", "too many tokens"))
    assert (status, json.loads(said)["error"]["code"]) == (400, "context_length_exceeded")
    assert json.loads(said)["error"]["message"] == "context_too_long: too many tokens"
    assert refusal_of(Failure("rate_limit", "slow down"))[0] == 429
    assert refusal_of(Failure("file", "gone"))[0] == 500


def test_models_are_listed() -> None:
    assert [each["id"] for each in json.loads(models_body(["m", "judge"]))["data"]] == ["m", "judge"]
