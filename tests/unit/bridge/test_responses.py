"""The Responses API over chat completions: what is asked, and what is said."""

import json
from typing import Any

import pytest

from holdfast.bridge.openai import (
    BadBodyError,
    ServedAnswer,
    parse_response_request,
    response_body,
    response_events,
)
from holdfast.records.samples import Answer, Usage

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
BOTH = Answer(
    "so", {"role": "assistant", "content": "so", "tool_calls": [CALL]}, [CALL], "tool_calls", Usage(5, 3, 2, 1)
)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "hi", **fields}).encode()


def test_a_text_is_what_the_user_says_after_the_instructions() -> None:
    wanted = parse_response_request(body(instructions="Be brief.", temperature=None))
    assert wanted.messages == [{"role": "user", "content": "hi"}]
    assert wanted.before == [{"role": "system", "content": "Be brief."}]
    assert (wanted.model, wanted.params, wanted.stream, wanted.previous) == ("m", {}, False, "")


def test_items_become_messages_and_calls_belong_to_the_message_before_them() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "add"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"role": "user", "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "u"}]},
    ]
    call = {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    assert parse_response_request(body(input=items)).messages == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": "so", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
    ]


def test_what_has_another_name_in_a_chat_request_gets_it() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {}, "strict": True}
    wanted = parse_response_request(
        body(
            tools=[{"type": "function", "name": "add", "parameters": {}, "strict": True}],
            tool_choice={"type": "function", "name": "add"},
            text={"format": schema},
            reasoning={"effort": "low", "summary": "auto"},
            max_output_tokens=9,
            top_p=0.5,
            store=False,
            include=[],
            stream=True,
        )
    )
    assert wanted.tools == [{"type": "function", "function": {"name": "add", "parameters": {}, "strict": True}}]
    assert wanted.params == {
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}},
        "reasoning_effort": "low",
        "max_tokens": 9,
        "top_p": 0.5,
    }
    assert wanted.stream


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"input": None}, "input must be a text or a list"),
        ({"input": ["hi"]}, "input must be a list of objects"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "there is no item_reference"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "a part input_file"),
        ({"tools": [{"type": "web_search"}]}, "web_search is not supported here"),
        ({"conversation": "c"}, "conversation: not supported here"),
        ({"background": True}, "background: not supported here"),
    ],
)
def test_what_cannot_be_asked_as_a_chat_request_is_refused_in_a_sentence(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadBodyError, match=said):
        parse_response_request(body(**fields))


def test_an_answer_is_a_message_and_its_calls() -> None:
    said = json.loads(response_body(ServedAnswer("resp_1", "m", BOTH)))
    message, call = said["output"]
    assert (said["id"], said["status"], message["content"][0]["text"]) == ("resp_1", "completed", "so")
    assert (call["call_id"], call["name"], call["arguments"]) == ("c1", "add", '{"a": 1}')
    assert said["usage"]["total_tokens"] == 8
    cut = json.loads(response_body(ServedAnswer("resp_1", "m", Answer("ye", finish_reason="length"))))
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_a_stream_ends_with_the_same_response() -> None:
    said = ServedAnswer("resp_1", "m", BOTH)
    events = [
        json.loads(event.partition(b"\ndata: ")[2]) for event in response_events(said, parse_response_request(body()))
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"] == json.loads(response_body(said))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == "so"
