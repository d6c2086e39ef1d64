"""OpenAI's Responses API over chat completions: from its items to messages, and from an answer to its items. Pure.

Newer SDKs and agents ask this way. Servers of models seldom do, so what is asked, recorded and replayed is a chat
request. What has no counterpart there is refused in a sentence, or, where it only concerns how OpenAI keeps things
(`store`, `include`, `metadata`), left out. Reasoning items stay behind.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.bridge.chat_completions import (
    Said,
    Wanted,
    decode_body,
    encoded_event,
    message_of,
    objects,
    refuse,
    typed,
)
from holdfast.records.samples import Message

_LEFT_OUT = {"store", "include", "metadata", "truncation", "background", "prompt_cache_key", "service_tier", "user"}
_OWN = {"model", "input", "instructions", "tools", "stream", "stream_options", "previous_response_id"}
_RENAMED = {"max_output_tokens": "max_tokens"}
_REFUSED = {"conversation": "send the items", "prompt": "send the instructions"}
_TEXT_PARTS = {"input_text", "output_text", "text", "refusal"}


def parse_response_request(body: bytes) -> Wanted:
    """BadBodyError, in one sentence, for what cannot be asked as a chat request."""
    given = decode_body(body)
    for name, instead in _REFUSED.items():
        if name in given:
            refuse(f"{name}: not known here; {instead}")
    if given.get("background") is True:
        refuse("background: every request here is waited for")
    asked = given.get("input", [])
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else objects(given, "input")
    instructions, previous = typed(given, "instructions", str, ""), typed(given, "previous_response_id", str, "")
    if not items and not previous:
        refuse("input must be a text or a list of objects, at least one")
    return Wanted(
        model=typed(given, "model", str, ""),
        messages=_messages(items),
        tools=[_tool(each) for each in objects(given, "tools")],
        params=_params(given),
        stream=typed(given, "stream", bool, False),
        before=[{"role": "system", "content": instructions}] if instructions else [],
        previous=previous,
    )


def response_body(said: Said) -> bytes:
    return msgspec.json.encode(_response(said, _items(said), "completed"))


def response_events(said: Said, wanted: Wanted) -> Iterator[bytes]:
    """As a stream: each item comes, is filled, and is done."""
    number = -1

    def event(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return b"event: %b\n" % kind.encode() + encoded_event({"type": kind, "sequence_number": number, **fields})

    begun = _response(said, [], "in_progress")
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    items = _items(said)
    for index, item in enumerate(items):
        where = {"item_id": item["id"], "output_index": index}
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield event("response.output_item.added", output_index=index, item={**item, **empty, "status": "in_progress"})
        if item["type"] == "message":
            (part,) = item["content"]
            where["content_index"] = 0
            yield event("response.content_part.added", **where, part={**part, "text": ""})
            yield event("response.output_text.delta", **where, delta=part["text"], logprobs=[])
            yield event("response.output_text.done", **where, text=part["text"], logprobs=[])
            yield event("response.content_part.done", **where, part=part)
        else:
            yield event("response.function_call_arguments.delta", **where, delta=item["arguments"])
            yield event("response.function_call_arguments.done", **where, **_named(item))
        yield event("response.output_item.done", output_index=index, item=item)
    ended = _response(said, items, "completed")
    yield event(f"response.{ended['status']}", response=ended)


def _messages(items: list[dict[str, Any]]) -> list[Message]:
    """Calls of functions belong to the message of the assistant that they follow."""
    made: list[Message] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            made.append({"role": item.get("role", "user"), "content": _content(item.get("content"))})
        elif kind == "function_call":
            if not made or made[-1]["role"] != "assistant":
                made.append({"role": "assistant", "content": None})
            called = {"name": item.get("name", ""), "arguments": item.get("arguments", "")}
            call = {"id": item.get("call_id", ""), "type": "function", "function": called}
            made[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            content = _content(item.get("output"))
            made.append({"role": "tool", "tool_call_id": item.get("call_id", ""), "content": content})
        elif kind != "reasoning":
            refuse(f"input: there is no {kind} in a chat request")
    return made


def _content(content: Any) -> Any:
    """Texts as one text; parts only where something else is among them."""
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content if isinstance(part, dict)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        return {"type": "text", "text": str(part.get("text") or part.get("refusal") or "")}
    if kind != "input_image" or not isinstance(part.get("image_url"), str):
        refuse(f"input: a part {kind} cannot be put into a chat request")
    detail = {"detail": part["detail"]} if part.get("detail") else {}
    return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        refuse(f"tools: {tool.get('type')} is OpenAI's own; only functions can be asked for here")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _params(given: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for name, value in given.items():
        if name in _OWN or name in _LEFT_OUT:
            continue
        if name == "reasoning" and isinstance(value, dict):
            params |= {"reasoning_effort": value["effort"]} if value.get("effort") else {}
        elif name == "text" and isinstance(value, dict):
            params |= _format(value)
        elif name == "tool_choice" and isinstance(value, dict) and "name" in value:
            params[name] = {"type": "function", "function": {"name": value["name"]}}
        else:
            params[_RENAMED.get(name, name)] = value
    return params


def _format(text: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {"verbosity": text["verbosity"]} if text.get("verbosity") else {}
    wanted = text.get("format")
    if not isinstance(wanted, dict) or wanted.get("type") == "text":
        return kept
    if wanted.get("type") != "json_schema":
        return {**kept, "response_format": wanted}
    schema = {name: value for name, value in wanted.items() if name != "type"}
    return {**kept, "response_format": {"type": "json_schema", "json_schema": schema}}


def _items(said: Said) -> list[dict[str, Any]]:
    """What the model said, then what it called."""
    message = message_of(said.answer)
    calls = message.get("tool_calls") or []
    items: list[dict[str, Any]] = []
    if said.answer.text or not calls:
        part = {"type": "output_text", "text": said.answer.text, "annotations": [], "logprobs": []}
        own = {"id": f"msg_{said.id}", "type": "message", "role": "assistant", "content": [part]}
        items.append({**own, "status": "completed"})
    for index, call in enumerate(calls):
        function = call.get("function") or {}
        named = {"name": function.get("name", ""), "arguments": function.get("arguments", "")}
        own = {"id": f"fc_{said.id}_{index}", "type": "function_call", "call_id": call.get("id", "")}
        items.append({**own, **named, "status": "completed"})
    return items


def _named(item: dict[str, Any]) -> dict[str, Any]:
    return {"name": item["name"], "arguments": item["arguments"]}


def _response(said: Said, items: list[dict[str, Any]], status: str) -> dict[str, Any]:
    usage, why = said.answer.usage, said.answer.finish_reason
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(why) if items else None
    return {
        "id": said.id,
        "object": "response",
        "created_at": 0,
        "status": "incomplete" if cut else status,
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "model": said.model,
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
        if items
        else None,
    }
