"""From an HTTP failure to a kind and a text. Pure.

Servers agree on little but the status number; what a 400 is about has to be read from its text. Their own words are
kept, cut at a length that a record can bear.
"""

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from holdfast.models.failures import Kind

RETRY_AFTER_SECONDS_MAX = 3600.0
"""Nobody waits longer than this on a server's word: a wrong date must not stop a run for years."""

_DETAIL_CHARACTERS_MAX = 1000

_KINDS: dict[int, Kind] = {
    401: "auth",
    403: "auth",
    404: "unknown_model",
    408: "timeout",
    429: "rate_limit",
    503: "overload",
    529: "overload",
}

_TOO_LONG_STATUSES = (400, 413, 422)
_TOO_LONG_TEXTS = (
    "context length",
    "context_length",
    "context window",
    "context size",
    "maximum context",
    "maximum model length",
    "max_model_len",
    "max_new_tokens",
    "prompt is too long",
    "input is too long",
    "too many tokens",
    "reduce the length",
    "input token count",
)
_KEY_TEXTS = ("api_key_invalid", "api key not valid", "api key expired")
"""Google calls a wrong key a bad request."""
_FILTER_TEXTS = (
    "content_filter",
    "content filter",
    "content_policy",
    "content policy",
    "content filtering policy",
    "content management policy",
    "responsibleaipolicyviolation",
    "safety system",
)


def kind_of(status: int, body: str) -> Kind:
    """The kind of a failed response; `body` is all that the server wrote."""
    if status in _KINDS:
        return _KINDS[status]
    if status >= 500:
        return "server"
    text = body.lower()
    if status in _TOO_LONG_STATUSES and any(each in text for each in _TOO_LONG_TEXTS):
        return "context_too_long"
    if status == 400 and any(each in text for each in _FILTER_TEXTS):
        return "content_filter"
    if status == 400 and any(each in text for each in _KEY_TEXTS):
        return "auth"
    return "bad_request"


def detail_of(body: str) -> str:
    """What the server said, without its wrapping. An HTML page is only named."""
    try:
        found = _said(msgspec.json.decode(body))
    except (msgspec.DecodeError, RecursionError):
        found = ""
    if found:
        return found
    text = body.strip()
    if text[:1] == "<":
        return "an HTML page"
    return text or "an empty body"


def shorten(text: str) -> str:
    return text if len(text) <= _DETAIL_CHARACTERS_MAX else text[:_DETAIL_CHARACTERS_MAX] + " [...]"


def retry_after_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """How long the server asks us to wait: retry-after-ms, or Retry-After as seconds or as a date.

    A date is compared with the server's own clock if it sent one: ours may be wrong.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return _bounded(milliseconds / 1000)
    value = headers.get("Retry-After", "")
    seconds = _number(value)
    if seconds is None:
        until = _timestamp(value)
        if until is None:
            return None
        there = _timestamp(headers.get("Date", ""))
        seconds = until - (now if there is None else there)
    return _bounded(seconds)


def retry_delay_seconds(body: str) -> float | None:
    """The same in the body of a failure, as Google's servers say it: `details` with a `retryDelay` of "34s"."""
    try:
        decoded = msgspec.json.decode(body, type=_Delayed)
    except (msgspec.DecodeError, RecursionError):
        return None
    for each in decoded.error.details:
        seconds = _number(each.retry_delay.removesuffix("s"))
        if seconds is not None:
            return _bounded(seconds)
    return None


class _Detail(msgspec.Struct):
    """One of the details of a failure; most say something else."""

    retry_delay: str = msgspec.field(name="retryDelay", default="")


class _Failed(msgspec.Struct):
    """A failure with details."""

    details: list[_Detail] = []


class _Delayed(msgspec.Struct):
    """The body of a failure, as far as it may hold a delay."""

    error: _Failed


def _said(body: Any) -> str:
    """OpenAI: error.message; others: error, message or detail, as text or as anything."""
    if not isinstance(body, dict):
        return ""
    for name in ("error", "message", "detail"):
        value = body.get(name)
        if isinstance(value, dict):
            value = value.get("message") or value
        if value:
            return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return ""


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), RETRY_AFTER_SECONDS_MAX)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _timestamp(value: str) -> float | None:
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
