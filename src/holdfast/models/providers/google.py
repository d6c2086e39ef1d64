"""Google's Gemini API: messages in OpenAI's format to its contents, and its candidates to an answer.

- `max_tokens`, `temperature`, `top_p`, `top_k`, `stop`, `seed`, `presence_penalty`, `frequency_penalty`, `logprobs`,
  `response_format`, `tools` and `tool_choice` are written as for chat completions.
- Everything else (`safetySettings`, `generationConfig: {thinkingConfig: …}`) is sent unchanged.
- The signature of a thought is kept in `extra_content`, where Google's own OpenAI-compatible server puts it, and sent
  back with the part that it belongs to.
"""

import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from yarl import URL

from holdfast.models.http.bodies import (
    SseEvent,
    Values,
    as_object,
    check_tool_calls,
    cut_off,
    decode,
    failure_in_success,
    filtered,
    malformed,
    mapping,
    objects,
    parse_names,
    split_data_url,
    texts,
)
from holdfast.models.http.endpoint import HttpProvider, parse_url, read_key
from holdfast.models.provider import BadConnectionError, Connection, Request
from holdfast.records import COUNT_MAX, Answer, Message, Usage
from holdfast.spec import PROVIDERS

INFO = PROVIDERS["google"]
_CONFIG = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "stop": "stopSequences",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "logprobs": "responseLogprobs",
    "top_logprobs": "logprobs",
}
_REASONS = {"STOP": "stop", "MAX_TOKENS": "length"}
_FILTERED = {"SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"}
_CHOICES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}


def make_google(connection: Connection) -> HttpProvider:
    if connection.options:
        named = ", ".join(connection.options)
        raise BadConnectionError(f"google has no options; fields of a request ({named}) belong in `params`")
    base = parse_url(str(connection.base_url or INFO.base_url))
    return HttpProvider(connection, GenerateContent(), base, read_key(connection, *INFO.key_variables))


class GenerateContent:
    """`POST …/models/MODEL:generateContent`."""

    def url(self, base: URL, model: str, *, stream: bool) -> URL:
        named = model if "/" in model else f"models/{model}"
        url = base.joinpath(*named.split("/")[:-1], f"{named.split('/')[-1]}:{_METHODS[stream]}")
        return url.with_query(alt="sse") if stream else url

    def models_url(self, base: URL) -> URL:
        return (base / "models").with_query(pageSize=1000)

    def headers(self, key: str) -> Mapping[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def body(self, model: str, request: Request, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {"contents": _contents(request.messages), **_params(request.params)}
        system = [
            {"text": part.get("text", "")}
            for each in request.messages
            if each.get("role") in ("system", "developer")
            for part in texts(each.get("content"))
        ]
        if system:
            body["systemInstruction"] = {"parts": system}
        if request.tools:
            functions = [_function(tool["function"]) for tool in request.tools if "function" in tool]
            own = [tool for tool in request.tools if "function" not in tool]
            body["tools"] = [*([{"functionDeclarations": functions}] if functions else []), *own]
        return body

    def answer(self, body: Any) -> Answer:
        if not isinstance(body, dict):
            raise malformed("the body is not an object", body)
        if body.get("error"):
            raise failure_in_success(body["error"])
        candidates, feedback = objects(body.get("candidates")), body.get("promptFeedback")
        if not candidates and isinstance(feedback, dict) and feedback.get("blockReason"):
            raise filtered(f"the prompt was blocked: {feedback['blockReason']}")
        if not candidates:
            raise malformed("the body has no candidates", body)
        return _answer(body, candidates[0])

    def joined(self, events: Sequence[SseEvent]) -> Any:
        """The end of a stream is a candidate with a finish reason, or a blocked prompt."""
        body: dict[str, Any] = {}
        candidate: dict[str, Any] = {}
        parts: list[dict[str, Any]] = []
        logprobs: dict[str, list[Any]] = {}
        for event in events:
            data = decode(event.data.encode())
            if not isinstance(data, dict) or data.get("error"):
                return data
            body |= {name: value for name, value in data.items() if name != "candidates"}
            for each in objects(data.get("candidates"))[:1]:
                candidate |= {name: value for name, value in each.items() if name != "content"}
                _add_parts(parts, each.get("content"))
                for name, entries in mapping(each.get("logprobsResult")).items():
                    logprobs.setdefault(name, []).extend(objects(entries))
        if not candidate.get("finishReason") and not mapping(body.get("promptFeedback")).get("blockReason"):
            raise cut_off("a finishReason")
        made = {"content": {"role": "model", "parts": parts}, "logprobsResult": logprobs}
        whole = [{**candidate, **made}] if candidate else []
        return {**body, "candidates": whole}

    def models(self, body: bytes) -> list[str] | None:
        names = parse_names(body, "models", "name")
        return None if names is None else [name.removeprefix("models/") for name in names]


_METHODS = {False: "generateContent", True: "streamGenerateContent"}


def _contents(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as alternating turns: tool results become part of the user's turn, and messages in a row are joined."""
    names: dict[str, str] = {}
    contents: list[dict[str, Any]] = []
    for message in messages:
        if message.get("role") in ("system", "developer"):
            continue
        role = "model" if message.get("role") == "assistant" else "user"
        parts = list(_parts(message, names))
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": role, "parts": parts})
    return contents


def _parts(message: Message, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """`names`: function names by the id of the call, filled here; Google requires the name in a function's result."""
    if message.get("role") == "tool":
        called, parts = str(message.get("tool_call_id", "")), texts(message.get("content"))
        text = "".join(str(part.get("text") or "") for part in parts)
        response = {"id": called, "name": names.get(called, called), "response": {"result": text}}
        yield {"functionResponse": response}
        yield from (_part(part) for part in parts if part.get("type") != "text")
        return
    for part in texts(message.get("content")):
        if part.get("text") != "":
            yield {**_part(part), **_signature(message)}
    for call in objects(message.get("tool_calls")):
        function = call.get("function") or {}
        names[str(call.get("id", ""))] = function.get("name", "")
        args = as_object(function.get("arguments"))
        yield {
            "functionCall": {"id": call.get("id", ""), "name": function.get("name", ""), "args": args},
            **_signature(call),
        }


def _signature(kept: Mapping[str, Any]) -> dict[str, Any]:
    extra = kept.get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    signature = google.get("thought_signature") if isinstance(google, dict) else None
    return {"thoughtSignature": signature} if signature else {}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"text": part.get("text", "")}
    image = part.get("image_url")
    if part.get("type") != "image_url" or not isinstance(image, dict):
        return part
    url = str(image.get("url", ""))
    data = split_data_url(url)
    if data is not None:
        return {"inlineData": {"mimeType": data[0], "data": data[1]}}
    kind, _ = mimetypes.guess_type(url.partition("?")[0])
    return {"fileData": {"fileUri": url, **({"mimeType": kind} if kind else {})}}


def _params(params: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    config: dict[str, Any] = dict(params.get("generationConfig") or {})
    for name, value in params.items():
        if name == "stop":
            config[_CONFIG[name]] = [value] if isinstance(value, str) else value
        elif name in _CONFIG:
            config[_CONFIG[name]] = value
        elif name == "response_format":
            config |= _response_format(value)
        elif name == "tool_choice" and value is not None:
            made["toolConfig"] = {"functionCallingConfig": _choice(value)}
        elif name != "generationConfig":
            made[name] = value
    return {**made, "generationConfig": config} if config else made


def _response_format(form: Any) -> dict[str, Any]:
    if not isinstance(form, dict) or form.get("type") == "text":
        return {}
    schema = form.get("json_schema")
    given = {"responseJsonSchema": schema.get("schema", {})} if isinstance(schema, dict) else {}
    return {"responseMimeType": "application/json", **given}


def _choice(value: Any) -> Any:
    if isinstance(value, str):
        return {"mode": _CHOICES.get(value, value)}
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        return {"mode": "ANY", "allowedFunctionNames": [value["function"].get("name")]}
    return value


def _function(function: dict[str, Any]) -> dict[str, Any]:
    made = {"name": function.get("name", ""), "description": function.get("description", "")}
    parameters = function.get("parameters")
    return {**made, "parametersJsonSchema": parameters} if parameters else made


def _add_parts(parts: list[dict[str, Any]], content: Any) -> None:
    """Append stream pieces: pieces of a text become one part; a signature ends it."""
    for part in objects(content.get("parts")) if isinstance(content, dict) else ():
        last = parts[-1] if parts else {}
        are_texts = isinstance(part.get("text"), str) and isinstance(last.get("text"), str)
        continues = are_texts and bool(part.get("thought")) == bool(last.get("thought"))
        if continues and ("thoughtSignature" not in last or part.get("thoughtSignature") == last["thoughtSignature"]):
            parts[-1] = {**last, **part, "text": last["text"] + part["text"]}
        elif part.get("text") != "" or "thoughtSignature" in part:
            parts.append(part)


def _answer(body: dict[str, Any], candidate: dict[str, Any]) -> Answer:
    content = candidate.get("content")
    parts = objects(content.get("parts")) if isinstance(content, dict) else []
    visible = [part for part in parts if not part.get("thought")]
    text = "".join(str(part.get("text") or "") for part in visible)
    called = [part for part in visible if isinstance(part.get("functionCall"), dict)]
    calls = [_call(part, f"call_{body.get('responseId', '')}_{index}") for index, part in enumerate(called)]
    check_tool_calls(len(calls))
    values = Values()
    reason = _reason(candidate, bool(calls), values)
    if reason == "content_filter" and not text and not calls:
        raise filtered(f"finishReason: {candidate.get('finishReason')}")
    if reason not in ("stop", "length", "tool_calls") and not text and not calls:
        raise malformed(f"the candidate ended with {reason} and has no content", candidate)
    message: Message = {"role": "assistant", "content": text or (None if calls else "")}
    thought = "".join(str(part.get("text") or "") for part in parts if part.get("thought"))
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    signed = [
        part["thoughtSignature"] for part in visible if "functionCall" not in part and part.get("thoughtSignature")
    ]
    if signed:
        message["extra_content"] = {"google": {"thought_signature": signed[-1]}}
    usage, logprobs = _usage(body, values), _logprobs(candidate.get("logprobsResult"))
    return Answer(text, message, calls, reason, usage, logprobs, dropped=values.dropped)


def _call(part: dict[str, Any], name: str) -> dict[str, Any]:
    call = part["functionCall"]
    function = {"name": call.get("name", ""), "arguments": msgspec.json.encode(call.get("args") or {}).decode()}
    made = {"id": call.get("id") or name, "type": "function", "function": function}
    signature = part.get("thoughtSignature")
    return {**made, "extra_content": {"google": {"thought_signature": signature}}} if signature else made


def _reason(candidate: dict[str, Any], calls: bool, values: Values) -> str:
    finish_reason = values.word(candidate, "finishReason") or "STOP"
    if finish_reason in _FILTERED or finish_reason.startswith("IMAGE_"):
        return "content_filter"
    reason = _REASONS.get(finish_reason, finish_reason.lower())
    return "tool_calls" if calls and reason == "stop" else reason


def _usage(body: dict[str, Any], values: Values) -> Usage:
    """Reasoning tokens are not part of `candidatesTokenCount`: add them."""
    count, usage = values.count, body.get("usageMetadata")
    thought = count(usage, "thoughtsTokenCount")
    prompt = count(usage, "promptTokenCount") + count(usage, "toolUsePromptTokenCount")
    output = count(usage, "candidatesTokenCount") + thought
    return Usage(min(prompt, COUNT_MAX), min(output, COUNT_MAX), count(usage, "cachedContentTokenCount"), thought)


def _logprobs(result: Any) -> list[dict[str, Any]]:
    if not isinstance(result, dict):
        return []
    chosen, tops = objects(result.get("chosenCandidates")), objects(result.get("topCandidates"))
    made = [{**_logprob(each), "top_logprobs": []} for each in chosen]
    for each, top in zip(made, tops, strict=False):
        each["top_logprobs"] = [_logprob(other) for other in objects(top.get("candidates"))]
    return made


def _logprob(each: dict[str, Any]) -> dict[str, Any]:
    return {"token": each.get("token", ""), "logprob": each.get("logProbability", 0.0)}
