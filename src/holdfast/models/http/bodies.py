"""Response bodies of all protocols: JSON decoding, checks of values, server-sent events, errors inside a 200. Pure.

This module also checks single values. Servers send counts that cannot be right and texts that cannot be stored. Such
a value is dropped here, before it is recorded, and `Answer.dropped` names it: the response itself was paid for.
"""

import io
import json
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.models.http.statuses import detail_of, kind_of, shorten, status_in
from holdfast.models.provider import ModelError
from holdfast.records import COUNT_MAX

TOOL_CALLS_MAX = 1000
"""A response with more tool calls is refused as malformed: each call would be made and recorded."""
_WORD_CHARACTERS_MAX = 200
_SHOWN_CHARACTERS = 60
_DROPPED_MAX = 20


def decode(body: bytes) -> Any:
    """The JSON of a body. ModelError if it is not JSON.

    Python's own encoder writes lone surrogates (half of an emoji, where `max_tokens` cut it) and NaN, which are not
    valid. Such a body is read all the same: a lone surrogate becomes U+FFFD, NaN and
    infinities become texts.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        decoded = _decode_loosely(body)
        if decoded is not None:
            return decoded
        text = body.decode(errors="replace")
        raise ModelError("malformed", f"the body is not JSON ({error}): {shorten(detail_of(text))}") from None


def clean(value: Any) -> Any:
    """Another library's value as plain JSON values. ModelError if it cannot be written as JSON."""
    try:
        return decode(json.dumps(value, default=str).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelError("malformed", f"the response cannot be written as JSON ({error})") from None


def _decode_loosely(body: bytes) -> Any:
    """None if this body is not JSON even so."""
    try:
        decoded = json.loads(body, parse_constant=str, parse_int=_whole_number, parse_float=_finite_number)
        return msgspec.json.decode(replace_surrogates(json.dumps(decoded, ensure_ascii=False)))
    except (ValueError, RecursionError):  # of both modules, and of the text's encoding
        return None


def _whole_number(digits: str) -> int | str:
    """Python refuses to convert thousands of digits."""
    return int(digits) if len(digits) <= 100 else digits[:_SHOWN_CHARACTERS]


def _finite_number(written: str) -> float | str:
    number = float(written)
    return number if math.isfinite(number) else written


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD in place of each lone surrogate, which UTF-8 cannot encode."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def failure_in_success(error: Any) -> ModelError:
    """The ModelError for an error in the body of a 200: gateways send those, and streams that have already begun."""
    status = status_in(error)
    text = msgspec.json.encode({"error": error}).decode()
    detail = f"status 200, but the body says: {shorten(detail_of(text))}"
    if status is not None:
        return ModelError(kind_of(status, text), detail, status=status)
    return ModelError("malformed", detail)


def malformed(what: str, body: Any) -> ModelError:
    return ModelError("malformed", f"{shorten(what)}: {shorten(msgspec.json.encode(body).decode())}")


def cut_off(end: str) -> ModelError:
    """A stream without its end marker: how much of the answer is missing is unknown, so it is a lost connection."""
    return ModelError("connection", f"the stream ended without {end}")


def filtered(why: str) -> ModelError:
    return ModelError("content_filter", f"the server's content filter removed the whole answer ({shorten(why)})")


class Values:
    """Reads values out of one response, and collects those that had to be dropped."""

    def __init__(self) -> None:
        self._dropped: list[str] = []

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(self._dropped)

    def count(self, counts: Any, name: str) -> int:
        """A whole number from 0 to COUNT_MAX; 0 if it is missing, null or anything else. 3.0 is 3."""
        value = counts.get(name) if isinstance(counts, dict) else None
        if type(value) is int and 0 <= value <= COUNT_MAX:
            return value
        if value is None:
            return 0
        if type(value) is float and 0 <= value <= COUNT_MAX and value.is_integer():
            return int(value)
        self._drop(name, value)
        return 0

    def word(self, holder: dict[str, Any], name: str) -> str:
        """A short text, such as the reason for the end; empty if it is missing, null or anything else."""
        value = holder.get(name)
        if isinstance(value, str) and len(value) <= _WORD_CHARACTERS_MAX:
            return value
        if value is not None:
            self._drop(name, value)
        return ""

    def _drop(self, name: str, value: Any) -> None:
        if len(self._dropped) < _DROPPED_MAX:
            text = value if isinstance(value, str) else repr(value)
            shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
            self._dropped.append(f"{name}: {shown}")


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; empty if it is not a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def check_tool_calls(count: int) -> None:
    if count > TOOL_CALLS_MAX:
        raise ModelError("malformed", f"the response has {count} tool calls, more than {TOOL_CALLS_MAX}")


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is an object; else an empty one."""
    return value if isinstance(value, dict) else {}


def texts(value: Any) -> list[dict[str, Any]]:
    """The content of a message as parts."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}] if value else []
    return [{"type": "text", "text": each} if isinstance(each, str) else each for each in value or ()]


def parse_names(body: bytes, listed: str, name: str) -> list[str] | None:
    """The names in a list of models; None if it is not such a list. That is no failure: servers need not have one."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    entries = decoded.get(listed) if isinstance(decoded, dict) else None
    if not isinstance(entries, list):
        return None
    return [str(each[name]) for each in entries if isinstance(each, dict) and name in each]


def split_data_url(url: str) -> tuple[str, str] | None:
    """The media type and the base64 of a `data:` URL; None if it is another URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head.removeprefix("data:").removesuffix(";base64").partition(";")[0], data


def as_object(arguments: Any) -> dict[str, Any]:
    """The arguments of a tool call, for protocols where they are an object. Invalid JSON from the model is sent back
    unchanged under the name `arguments`: the model was sent an error about it, and must see its own text.
    """
    if isinstance(arguments, dict):
        return arguments
    try:
        decoded = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, TypeError, RecursionError):
        decoded = None
    return decoded if isinstance(decoded, dict) else {"arguments": arguments}


EVENTS_MAX = 1_000_000
"""Far more chunks than any answer has: a small compressed response could hold more events than fit into memory."""
END = "[DONE]"
"""The last data of a stream in OpenAI's format."""


class SseEvent(msgspec.Struct, frozen=True):
    """One server-sent event: its name, empty if it has none, and its data."""

    name: str
    data: str


def parse_events(body: bytes) -> Iterator[SseEvent]:
    """Parse server-sent events. Comments, ids and events without data are skipped. ModelError above EVENTS_MAX."""
    name, data = "", list[str]()
    text = body.decode(errors="replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    count = 0
    for ended in io.StringIO(text, newline="\n"):
        line = ended.removesuffix("\n")
        if not line:
            if data:
                yield SseEvent(name, "\n".join(data))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            count += 1
            if count > EVENTS_MAX:
                raise ModelError("malformed", f"the stream has more than {EVENTS_MAX} events")
            data.append(value)
        elif field == "event":
            name = value
    # A last event without its blank line counts only if it is complete: the stream may have been cut inside it.
    if data and _is_whole("\n".join(data)):
        yield SseEvent(name, "\n".join(data))


def _is_whole(data: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except (msgspec.DecodeError, RecursionError):
        return data.strip() == END
