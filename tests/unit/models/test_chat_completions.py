"""Bodies of chat completions: tolerant where it does not matter, strict where it does."""

from typing import Any

import msgspec
import pytest

from holdfast.models import ModelError
from holdfast.models.http.bodies import decode
from holdfast.models.providers.chat_completions import answer_of
from holdfast.records.samples import Answer, Usage

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def parsed(message: Any, finish_reason: Any = "stop", **body: Any) -> Answer:
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return answer_of(decode(msgspec.json.encode({"choices": [choice], **body})))


def failed(body: Any) -> ModelError:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    with pytest.raises(ModelError) as raised:
        answer_of(decode(raw))
    return raised.value


def test_a_plain_answer() -> None:
    message = {"role": "assistant", "content": "four"}
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert parsed(message, usage=usage) == Answer("four", message, [], "stop", Usage(10, 5, 3, 2))


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        5,
        [],
        {"prompt_tokens": None},
        {"prompt_tokens": "many"},
        {"prompt_tokens": -1},
        {"prompt_tokens_details": None, "completion_tokens_details": 3},
    ],
)
def test_missing_or_strange_usage_is_no_usage(usage: Any) -> None:
    assert parsed({"content": "x"}, usage=usage).usage == Usage()


def test_nulls_are_not_kept_and_unknown_fields_are() -> None:
    answer = parsed(
        {
            "content": "x",
            "tool_calls": None,
            "function_call": None,
            "audio": None,
            "reasoning_content": "hm",
            "y": {"z": 1},
        }
    )
    assert answer.tool_calls == []
    assert answer.message == {"role": "assistant", "content": "x", "reasoning_content": "hm", "y": {"z": 1}}


@pytest.mark.parametrize("tool_calls", [None, [], [None], ["x"]])
def test_tool_calls_that_are_none_are_not_kept(tool_calls: Any) -> None:
    answer = parsed({"role": "assistant", "content": "x", "tool_calls": tool_calls})
    assert (answer.tool_calls, answer.message) == ([], {"role": "assistant", "content": "x"})


def test_tool_calls_come_with_null_content() -> None:
    answer = parsed({"role": "assistant", "content": None, "tool_calls": [CALL]}, "tool_calls")
    assert (answer.text, answer.tool_calls, answer.finish_reason) == ("", [CALL], "tool_calls")
    assert answer.message == {"role": "assistant", "content": None, "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "image"}, "a", None, {"type": "text", "text": None}], "a"),
    ],
)
def test_content_is_text_parts_or_null(content: Any, text: str) -> None:
    assert parsed({"content": content}).text == text


def test_a_refusal_is_what_the_model_said() -> None:
    assert parsed({"content": None, "refusal": "I will not"}).text == "I will not"


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_empty_answer_is_an_answer_and_keeps_its_reason(reason: str) -> None:
    answer = parsed({"role": "assistant", "content": None}, reason)
    assert (answer.text, answer.finish_reason, answer.message["content"]) == ("", reason, "")


def test_a_missing_finish_reason_is_empty() -> None:
    assert parsed({"content": "x"}, None).finish_reason == ""


def test_an_answer_that_the_filter_took_whole_is_a_failure() -> None:
    choice = {"message": {"content": ""}, "finish_reason": "content_filter"}
    assert failed({"choices": [choice]}).kind == "content_filter"
    assert parsed({"content": "partly"}, "content_filter").text == "partly"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b"null",
        b"[]",
        b"3",
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": {"a": 1}},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": 3}}]},
        {"error": {"message": "no"}},
        {"error": "no"},
    ],
)
def test_a_body_without_an_answer_is_malformed(body: Any) -> None:
    assert failed(body).kind == "malformed"


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": 429, "message": "slow down"}},
        {"choices": [{"error": {"code": 429, "message": "slow down"}, "message": {"content": ""}}]},
    ],
)
def test_a_failure_inside_a_success_has_the_kind_of_its_status(body: Any) -> None:
    error = failed(body)
    assert (error.kind, error.status) == ("rate_limit", 429)
    assert "slow down" in error.message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "429"}, "rate_limit"),
        ({"code": "server_error"}, "server"),
        ({"code": None, "type": "server_error"}, "server"),
        ({"code": "rate_limit_exceeded", "type": "tokens"}, "rate_limit"),
        ({"code": "insufficient_quota", "type": "insufficient_quota"}, "billing"),
        ({"code": 402}, "billing"),
        ({"code": "context_length_exceeded"}, "context_too_long"),
        ({"code": "invalid_api_key", "type": "invalid_request_error"}, "auth"),
        ({"code": "never_heard_of"}, "malformed"),
        ({"code": 200}, "malformed"),
    ],
)
def test_a_failure_inside_a_success_has_the_kind_of_its_word(error: dict[str, Any], kind: str) -> None:
    assert failed({"error": {"message": "no", **error}}).kind == kind


@pytest.mark.parametrize(
    ("reason", "kind"), [("error", "server"), ("abort", "server"), ("insufficient_system_resource", "overload")]
)
def test_what_the_server_broke_off_is_no_answer(reason: str, kind: str) -> None:
    choice = {"message": {"content": "The answer is 4"}, "finish_reason": reason}
    assert failed({"choices": [choice]}).kind == kind


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}, Usage(12, 5)),
        ({"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 117}, Usage(12, 105)),
        ({"total_tokens": 17}, Usage()),
    ],
)
def test_what_is_only_in_the_total_was_said_too(usage: dict[str, int], expected: Usage) -> None:
    assert parsed({"content": "x"}, usage=usage).usage == expected


def test_xais_thoughts_are_a_part_of_what_came_out() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 317}}
    usage = {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 331, **details}
    assert parsed({"content": "x"}, usage=usage).usage == Usage(12, 319, reasoning_tokens=317)
