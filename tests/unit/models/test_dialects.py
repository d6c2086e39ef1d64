"""What each dialect makes of what only some requests hold. What all have in common is in the contract."""

from typing import Any

import msgspec
import pytest
from yarl import URL

from holdfast.models import BadConnectionError, Connection, ModelError, Request, make_provider
from holdfast.models.http.bodies import SseEvent
from holdfast.models.http.statuses import retry_delay_seconds
from holdfast.models.providers.anthropic import Messages
from holdfast.models.providers.chat_completions import join_chunks
from holdfast.models.providers.google import GenerateContent
from holdfast.models.providers.openai import Chat, Responses
from holdfast.records.samples import Usage

ASKED = [{"role": "user", "content": "x"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "2"}


def anthropic(messages: list[Any], **params: Any) -> dict[str, Any]:
    return Messages().body("m", Request(messages, params), stream=False)


def google(messages: list[Any], **params: Any) -> dict[str, Any]:
    return GenerateContent().body("m", Request(messages, params), stream=False)


def responses(messages: list[Any], **params: Any) -> dict[str, Any]:
    return Responses().body("m", Request(messages, params), stream=False)


def events(*chunks: Any) -> list[SseEvent]:
    return [SseEvent("", each if isinstance(each, str) else msgspec.json.encode(each).decode()) for each in chunks]


def test_chat_sends_what_it_was_given() -> None:
    body = Chat().body("m", Request(ASKED, {"min_p": 0.1}, [{"type": "function"}]), stream=True)
    assert body == {
        "model": "m",
        "messages": ASKED,
        "min_p": 0.1,
        "tools": [{"type": "function"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_server_that_refuses_options_of_a_stream_can_be_spared_them() -> None:
    for stream in (True, False):
        assert "stream_options" not in Chat().body("m", Request(ASKED, {"stream_options": None}), stream=stream)


def test_chunks_of_two_calls_that_alternate_are_distinguished() -> None:
    def piece(index: int, **call: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, **call}]}}]}

    body = join_chunks(
        events(
            piece(0, id="a", function={"name": "f", "arguments": ""}),
            piece(1, id="b", function={"name": "g", "arguments": "{"}),
            piece(0, function={"arguments": "{}"}),
            piece(1, id="", function={"name": None, "arguments": "}"}),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
            "[DONE]",
        )
    )
    calls = body["choices"][0]["message"]["tool_calls"]
    assert [(each["id"], each["function"]) for each in calls] == [
        ("a", {"name": "f", "arguments": "{}"}),
        ("b", {"name": "g", "arguments": "{}"}),
    ]


def delta(**said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said}]}


def streamed(*deltas: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = join_chunks(events(*deltas, "[DONE]"))["choices"][0]["message"]
    return message


def test_calls_that_share_a_number_are_distinguished_by_their_ids() -> None:
    """Ollama numbers all of them 0."""
    first = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":1}'}}
    second = {"index": 0, "id": "b", "function": {"name": "f", "arguments": '{"x":2}'}}
    calls = streamed(delta(tool_calls=[first]), delta(tool_calls=[second]))["tool_calls"]
    assert [(each["id"], each["function"]["arguments"]) for each in calls] == [("a", '{"x":1}'), ("b", '{"x":2}')]


def test_pieces_of_one_call_belong_together_also_under_an_id_each() -> None:
    """Older vLLM draws a new one for every piece."""
    named = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}
    more = {"index": 0, "id": "b", "function": {"arguments": ":1}"}}
    (call,) = streamed(delta(tool_calls=[named]), delta(tool_calls=[more]))["tool_calls"]
    assert (call["id"], call["function"]) == ("a", {"name": "f", "arguments": '{"x":1}'})


def test_content_that_streams_in_parts_is_whole() -> None:
    """Mistral's, which thinks in parts."""
    thought = [{"type": "thinking", "thinking": [{"type": "text", "text": each}]} for each in ("Hm", ".")]
    said = [{"type": "text", "text": "4"}]
    chunks = [delta(content=[each]) for each in thought]
    body = join_chunks(events(*chunks, delta(content=said), delta(content="2"), "[DONE]"))
    answer = Chat().answer(body)
    assert answer.text == "42"
    assert [part["type"] for part in answer.message["content"]] == ["thinking", "text"]
    assert [each["text"] for each in answer.message["content"][0]["thinking"]] == ["Hm", "."]


def test_reasoning_details_that_stream_are_whole_and_keep_their_signature() -> None:
    """OpenRouter wants them back as they were."""
    text = {"type": "reasoning.text", "index": 0}
    hidden = {"type": "reasoning.encrypted", "index": 1, "data": "xyz"}
    pieces = [{**text, "text": "I sh"}, {**text, "text": "ould."}, {**text, "signature": "s"}, hidden, hidden]
    found = streamed(*(delta(reasoning_details=[each]) for each in pieces))["reasoning_details"]
    assert found == [{**text, "text": "I should.", "signature": "s"}, hidden, hidden]


def test_only_the_first_choice_of_a_stream_counts() -> None:
    first, second = ({"choices": [{"index": index, "delta": {"content": "ab"[index]}}]} for index in (0, 1))
    assert join_chunks(events(first, second, "[DONE]"))["choices"][0]["message"]["content"] == "a"


def test_anthropic_has_a_default_for_max_tokens_and_no_seed() -> None:
    assert anthropic(ASKED, seed=7) == {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        "max_tokens": 8192,
    }
    assert anthropic(ASKED, max_tokens=5)["max_tokens"] == 5
    assert anthropic(ASKED, max_completion_tokens=6)["max_tokens"] == 6


def test_anthropic_gets_its_own_parameters_as_they_are() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    body = anthropic(ASKED, thinking=thinking, top_k=3, stop="END", output_config={"effort": "low"})
    assert (body["thinking"], body["top_k"], body["stop_sequences"]) == (thinking, 3, ["END"])
    assert body["output_config"] == {"effort": "low"}


def test_anthropic_joins_effort_and_format() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    made = {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    for order in (("output_config", "response_format"), ("response_format", "output_config")):
        given = {"output_config": {"effort": "low"}, "response_format": wanted}
        assert anthropic(ASKED, **{name: given[name] for name in order})["output_config"] == made


def test_anthropic_refuses_a_format_that_it_does_not_have() -> None:
    with pytest.raises(ModelError, match="json_schema; nothing was sent") as raised:
        anthropic(ASKED, response_format={"type": "json_object"})
    assert raised.value.kind == "bad_request"


def test_anthropic_keeps_marks_for_its_cache() -> None:
    part = {"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}
    body = anthropic([{"role": "system", "content": [part]}, {"role": "user", "content": [part]}])
    assert body["system"] == [part]
    assert body["messages"][0]["content"] == [part]


def test_anthropic_can_be_limited_to_one_tool_call_at_a_time() -> None:
    assert anthropic(ASKED, parallel_tool_calls=False)["tool_choice"] == {
        "type": "auto",
        "disable_parallel_tool_use": True,
    }


@pytest.mark.parametrize("build", [anthropic, google])
def test_messages_in_a_row_become_one_turn_and_empty_ones_none(build: Any) -> None:
    talk = [*ASKED, {"role": "assistant", "content": ""}, *ASKED, {"role": "assistant", "tool_calls": [CALL]}, RESULT]
    body = build(talk)
    turns = body.get("messages") or body["contents"]
    assert [turn["role"] for turn in turns] == ["user", "assistant" if "messages" in body else "model", "user"]


@pytest.mark.parametrize("build", [anthropic, google])
def test_arguments_that_are_no_json_go_back_as_they_were(build: Any) -> None:
    bad = {**CALL, "function": {"name": "add", "arguments": '{"a": '}}
    body = build([*ASKED, {"role": "assistant", "tool_calls": [bad]}, RESULT])
    assert '"arguments":"{\\"a\\": "' in msgspec.json.encode(body).decode()


def test_a_refusal_of_anthropic_with_some_text_is_marked() -> None:
    answer = Messages().answer({"content": [{"type": "text", "text": "I was"}], "stop_reason": "refusal"})
    assert (answer.text, answer.finish_reason) == ("I was", "content_filter")


def test_redacted_thinking_goes_back_too() -> None:
    hidden = {"type": "redacted_thinking", "data": "abc"}
    answer = Messages().answer({"content": [hidden, {"type": "text", "text": "x"}], "stop_reason": "end_turn"})
    assert answer.reasoning == ""
    assert anthropic([*ASKED, answer.message])["messages"][1]["content"][0] == hidden


def use(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "add", "input": {"a": 1}}


def thought(words: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": f"signed {words}"}


SEARCH = [
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
]


@pytest.mark.parametrize(
    "blocks",
    [
        [thought("one"), use("c1"), thought("two"), use("c2")],
        [thought("one"), {"type": "text", "text": "First"}, thought("two"), {"type": "text", "text": "then"}],
        [thought("one"), *SEARCH, thought("two"), {"type": "text", "text": "found"}],
        [thought("one"), {"type": "text", "text": "so"}, use("c1")],
    ],
    ids=["calls", "texts", "search", "plain"],
)
def test_anthropic_gets_its_blocks_back_in_their_order(blocks: list[dict[str, Any]]) -> None:
    answer = Messages().answer({"content": blocks, "stop_reason": "end_turn"})
    assert anthropic([*ASKED, answer.message])["messages"][1]["content"] == blocks
    assert answer.reasoning.startswith("one")


def test_a_message_that_was_changed_goes_back_as_it_is_now() -> None:
    blocks = [thought("one"), use("c1"), thought("two"), use("c2")]
    answer = Messages().answer({"content": blocks, "stop_reason": "tool_use"})
    fewer = {**answer.message, "tool_calls": answer.message["tool_calls"][:1]}
    sent = anthropic([*ASKED, fewer])["messages"][1]["content"]
    assert [block.get("id") for block in sent if block["type"] == "tool_use"] == ["c1"]


def test_a_call_that_max_tokens_cut_off_is_a_piece_of_an_answer() -> None:
    started = {"type": "content_block_start", "index": 0, "content_block": {**use("c1"), "input": {}}}
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": '}}
    end = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 9}}
    answer = Messages().answer(Messages().joined(events(started, piece, end, {"type": "message_stop"})))
    assert (answer.finish_reason, answer.tool_calls[0]["function"]["arguments"]) == ("length", '{"a": ')
    assert anthropic([*ASKED, answer.message])["messages"][1]["content"][0]["input"] == {"arguments": '{"a": '}


def test_a_turn_that_anthropic_pauses_is_not_at_its_end() -> None:
    answer = Messages().answer({"content": [{"type": "text", "text": "I look"}], "stop_reason": "pause_turn"})
    assert answer.marks == ("truncated",)


def test_what_anthropic_does_not_say_again_of_its_usage_still_counts() -> None:
    begun = {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 10, "output_tokens": 1}}}
    end = {"type": "message_delta", "delta": {}, "usage": {"input_tokens": None, "output_tokens": 7}}
    answer = Messages().answer(Messages().joined(events(begun, end, {"type": "message_stop"})))
    assert answer.usage == Usage(10, 7)


def test_a_text_that_is_null_is_none() -> None:
    said = [Messages().answer({"content": [{"type": "text", "text": None}]})]
    said.append(GenerateContent().answer({"candidates": [{"content": {"parts": [{"text": None}]}}]}))
    assert [each.text for each in said] == ["", ""]


def test_an_error_that_is_null_is_none() -> None:
    assert Messages().answer({"content": [{"type": "text", "text": "x"}], "error": None}).text == "x"


def test_anthropic_keeps_marks_for_its_cache_in_results_and_tools() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    part = {"type": "text", "text": "long", **mark}
    tool = {"type": "function", "function": {"name": "add"}, **mark}
    body = Messages().body("m", Request([{**RESULT, "content": [part]}], {}, [tool]), stream=False)
    assert body["messages"][0]["content"][0]["content"] == [part]
    assert body["tools"] == [{"name": "add", "input_schema": {"type": "object"}, **mark}]


def test_a_stream_of_google_that_is_cut_off_is_none_whatever_it_says_of_the_prompt() -> None:
    chunk = {"candidates": [{"content": {"parts": [{"text": "4"}]}}], "promptFeedback": {"safetyRatings": []}}
    with pytest.raises(ModelError, match="without a finishReason") as raised:
        GenerateContent().joined(events(chunk))
    assert raised.value.kind == "connection"


def test_logprobs_of_all_pieces_of_googles_stream_count() -> None:
    def chunk(token: str) -> dict[str, Any]:
        told = {"chosenCandidates": [{"token": token, "logProbability": -1.0}], "topCandidates": [{"candidates": []}]}
        parts = {"parts": [{"text": token}]}
        return {"candidates": [{"content": parts, "logprobsResult": told, "finishReason": "STOP"}]}

    answer = GenerateContent().answer(GenerateContent().joined(events(chunk("4"), chunk("2"))))
    assert [each["token"] for each in answer.logprobs] == ["4", "2"]


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def test_a_picture_that_a_tool_returns_reaches_google() -> None:
    body = google([*ASKED, {"role": "assistant", "tool_calls": [CALL]}, {**RESULT, "content": [PICTURE]}])
    assert body["contents"][-1]["parts"][1] == {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}


def test_a_picture_that_a_tool_returns_reaches_the_responses_api() -> None:
    body = responses([*ASKED, {**RESULT, "content": [{"type": "text", "text": "see"}, PICTURE]}])
    assert [part["type"] for part in body["input"][-1]["output"]] == ["input_text", "input_image"]
    assert responses([RESULT])["input"][-1]["output"] == "2"


def test_a_blocked_prompt_of_google_is_a_content_filter() -> None:
    with pytest.raises(ModelError, match="SAFETY") as raised:
        GenerateContent().answer({"promptFeedback": {"blockReason": "SAFETY"}})
    assert raised.value.kind == "content_filter"


def test_a_call_that_google_could_not_make_is_malformed() -> None:
    with pytest.raises(ModelError, match="malformed_function_call") as raised:
        GenerateContent().answer({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]})
    assert raised.value.kind == "malformed"


def test_googles_calls_get_names_where_they_have_none() -> None:
    part = {"functionCall": {"name": "add", "args": {"a": 1}}}
    body = {"candidates": [{"content": {"parts": [part, part]}, "finishReason": "STOP"}], "responseId": "r"}
    answer = GenerateContent().answer(body)
    assert [call["id"] for call in answer.tool_calls] == ["call_r_0", "call_r_1"]
    assert answer.finish_reason == "tool_calls"


def test_google_gets_the_name_of_the_function_with_its_result() -> None:
    body = google([*ASKED, {"role": "assistant", "tool_calls": [CALL]}, RESULT])
    (part,) = body["contents"][-1]["parts"]
    assert part == {"functionResponse": {"id": "c1", "name": "add", "response": {"result": "2"}}}


def test_googles_parameters() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    given = {"generationConfig": {"thinkingConfig": {"thinkingBudget": 9}}, "safetySettings": [1]}
    body = google(ASKED, max_tokens=5, top_k=2, stop="E", seed=3, response_format=wanted, **given)
    assert body["generationConfig"] == {
        "thinkingConfig": {"thinkingBudget": 9},
        "maxOutputTokens": 5,
        "topK": 2,
        "stopSequences": ["E"],
        "seed": 3,
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object"},
    }
    assert body["safetySettings"] == [1]


@pytest.mark.parametrize(
    ("model", "path"),
    [("gemini-x", "models/gemini-x"), ("tunedModels/a", "tunedModels/a"), ("models/b", "models/b")],
)
def test_googles_address_holds_the_model(model: str, path: str) -> None:
    made = GenerateContent().url(URL("http://host/v1beta"), model, stream=True)
    assert str(made) == f"http://host/v1beta/{path}:streamGenerateContent?alt=sse"


def test_googles_quota_says_how_long_to_wait_in_its_body() -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    body = msgspec.json.encode({"error": {"code": 429, "details": [{"@type": "other"}, detail]}}).decode()
    assert retry_delay_seconds(body) == 34.5
    assert retry_delay_seconds("<html>") is None


def test_the_responses_api_gets_its_own_names() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    choice = {"type": "function", "function": {"name": "add"}}
    body = responses(
        ASKED,
        max_tokens=5,
        reasoning_effort="low",
        verbosity="low",
        response_format=wanted,
        tool_choice=choice,
        logprobs=True,
        include=["a"],
        store=False,
    )
    assert body == {
        "model": "m",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}],
        "max_output_tokens": 5,
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        "tool_choice": {"type": "function", "name": "add"},
        "include": ["a", "message.output_text.logprobs"],
        "store": False,
    }


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"status": "failed", "error": {"code": "server_error", "message": "x"}}, "server"),
        ({"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "x"}}, "rate_limit"),
        ({"status": "in_progress", "output": []}, "malformed"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}, "output": []}, "content_filter"),
    ],
)
def test_a_response_that_did_not_complete_has_a_kind(body: dict[str, Any], kind: str) -> None:
    with pytest.raises(ModelError) as raised:
        Responses().answer(body)
    assert raised.value.kind == kind


def test_an_error_in_the_middle_of_anthropics_stream_has_the_kind_of_its_type() -> None:
    failed = {"type": "error", "error": {"type": "rate_limit_error", "message": "x"}}
    with pytest.raises(ModelError) as raised:
        Messages().answer(Messages().joined(events({"type": "message_start", "message": {}}, failed)))
    assert (raised.value.kind, raised.value.status) == ("rate_limit", 429)


def test_deepseeks_words_for_its_cache_are_understood() -> None:
    body = {
        "choices": [{"message": {"content": "x"}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 1, "prompt_cache_hit_tokens": 8},
    }
    assert Chat().answer(body).usage == Usage(10, 1, 8)


def test_reasoning_has_two_names() -> None:
    for name in ("reasoning", "reasoning_content"):
        answer = Chat().answer({"choices": [{"message": {"content": "x", name: "hm"}}]})
        assert (answer.reasoning, answer.message[name]) == ("hm", "hm")


@pytest.mark.parametrize(
    ("provider", "options", "said"),
    [
        ("openai", {"api": "completions"}, "api: chat or responses"),
        ("openai", {"temperature": 1}, "params"),
        ("anthropic", {"x": 1}, "params"),
        ("google", {"x": 1}, "params"),
    ],
)
def test_options_that_are_none_are_refused(provider: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConnectionError, match=said):
        make_provider(Connection(provider, "m", options=options))


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": f"{kind}_1", **fields}


REASONED = item("reasoning", summary=[], encrypted_content="abc")
CALLED = item("function_call", call_id="c1", name="add", arguments="{}")
SPOKEN = item("message", role="assistant", content=[{"type": "output_text", "text": "so"}])


@pytest.mark.parametrize(
    "output",
    [
        [REASONED, SPOKEN, {**REASONED, "id": "rs_2"}, CALLED],
        [REASONED, item("web_search_call", status="completed"), SPOKEN],
        [{**SPOKEN, "phase": "commentary"}, CALLED],
    ],
    ids=["order", "search", "phase"],
)
def test_the_responses_api_gets_its_items_back_in_their_order(output: list[dict[str, Any]]) -> None:
    answer = Responses().answer({"status": "completed", "output": output})
    assert responses([*ASKED, answer.message])["input"][1:] == output
    assert answer.text == "so"


def test_a_response_of_the_usual_order_is_kept_once() -> None:
    answer = Responses().answer({"status": "completed", "output": [REASONED, SPOKEN, CALLED]})
    assert "output_items" not in answer.message
    kinds = [each["type"] for each in responses([*ASKED, answer.message])["input"][1:]]
    assert kinds == ["reasoning", "message", "function_call"]


def test_a_function_is_as_strict_in_one_api_as_in_the_other() -> None:
    loose, strict = {"name": "f", "parameters": {}}, {"name": "g", "strict": True}
    tools = [{"type": "function", "function": each} for each in (loose, strict)]
    body = Responses().body("m", Request(ASKED, {}, tools), stream=False)
    assert [tool["strict"] for tool in body["tools"]] == [False, True]


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_error_in_the_middle_of_a_response_has_the_kind_of_its_code(wrapped: bool) -> None:
    failed = {"code": "rate_limit_exceeded", "message": "x"}
    event = {"type": "error", "error": failed} if wrapped else {"type": "error", **failed}
    with pytest.raises(ModelError) as raised:
        Responses().answer(Responses().joined(events(event)))
    assert raised.value.kind == "rate_limit"


def test_google_may_say_how_long_to_wait_in_a_list() -> None:
    body = [{"error": {"code": 429, "details": [{"retryDelay": "3s"}]}}]
    assert retry_delay_seconds(msgspec.json.encode(body).decode()) == 3.0
