"""From an HTTP error response to a kind and a message. Pure.

Servers agree on little but the status number: the meaning of a 400 must be found in its text. The server's own message
is kept, shortened to a length that fits into a record.
"""

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from holdfast.models.provider import Kind

RETRY_AFTER_SECONDS_MAX = 3600.0
"""The longest wait that a server can request: a wrong date must not stop a run for years."""
_RETRY_AFTER_CHARACTERS_MAX = 100

_DETAIL_CHARACTERS_MAX = 1000

_KINDS: dict[int, Kind] = {
    401: "auth",
    402: "billing",
    403: "auth",
    404: "unknown_model",
    407: "auth",
    408: "timeout",
    429: "rate_limit",
    503: "overload",
    529: "overload",
}

_UNPAID_TEXTS = (
    "insufficient_quota",
    "billing_not_active",
    "billing_hard_limit_reached",
    "billing_error",
    "credit balance is too low",
    "specified api usage limits",
    "used all available credits",
    "key limit exceeded",
    "free-models-per-day",
    "perdayperproject",
)
"""OpenAI reports an account without credit as a rate limit, Anthropic as a bad request. A used-up daily limit is here
too: waiting minutes does not help. "Exceeded your current quota" is not: Google sends it for limits per minute.
"""
_TOO_LONG_TEXTS = (
    "context length",
    "context_length",
    "context window",
    "context size",
    "context limit",
    "maximum context",
    "maximum prompt length",
    "maximum model length",
    "max_model_len",
    "max_new_tokens",
    "prompt is too long",
    "input is too long",
    "too many tokens",
    "reduce the length",
    "input token count",
)
_TOO_LARGE_TEXTS = ("request too large for",)
"""One request exceeds the tokens per minute: OpenAI reports that as a rate limit."""
_KEY_TEXTS = ("api_key_invalid", "api key not valid", "api key expired", "incorrect api key provided")
"""Google and xAI report a wrong key as a bad request."""
_FILTER_TEXTS = (
    "content_filter",
    "content filter",
    "content_policy",
    "content policy",
    "content filtering policy",
    "content management policy",
    "content exists risk",
    "flagged as potentially violating",
    "responsibleaipolicyviolation",
    "safety system",
)
_FLAGGED_TEXTS = ("flagged_input", "input was flagged")
"""OpenRouter reports a filtered prompt as forbidden (403)."""
_BY_TEXT: tuple[tuple[tuple[int, ...], tuple[str, ...], Kind], ...] = (
    ((400, 403, 429), _UNPAID_TEXTS, "billing"),
    ((400, 413, 422), _TOO_LONG_TEXTS, "context_too_long"),
    ((413, 429), _TOO_LARGE_TEXTS, "context_too_long"),
    ((400,), _FILTER_TEXTS, "content_filter"),
    ((403,), _FLAGGED_TEXTS, "content_filter"),
    ((400,), _KEY_TEXTS, "auth"),
)
"""Kinds by status and text, where the status alone is ambiguous: the first match wins."""
_ERROR_CODES: dict[str, int] = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "server_error": 500,
    "api_error": 500,
    "internal_server_error": 500,
    "timeout_error": 504,
    "server_is_overloaded": 503,
    "service_unavailable": 503,
    "overloaded_error": 529,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
}
"""Servers' error codes inside a 200 response, and the HTTP status that each would have."""


def kind_of(status: int, body: str) -> Kind:
    """The kind of a failed response; `body` is its whole text."""
    text = body.lower()
    for statuses, texts, kind in _BY_TEXT:
        if status in statuses and any(each in text for each in texts):
            return kind
    return _KINDS.get(status, "server" if status >= 500 else "bad_request")


def status_in(error: Any) -> int | None:
    """The HTTP status of an error inside a 200 response, by its code or its type; None if neither is known."""
    if not isinstance(error, dict):
        return None
    for code in (error.get("code"), error.get("type")):
        number = int(code) if isinstance(code, str) and code.isdecimal() else code
        if isinstance(number, int) and 400 <= number <= 599:
            return number
        if isinstance(code, str) and code.lower() in _ERROR_CODES:
            return _ERROR_CODES[code.lower()]
    return None


def detail_of(body: str) -> str:
    """The server's error message, without the JSON around it. An HTML page is only mentioned."""
    try:
        found = _message_in(msgspec.json.decode(body))
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
    """The wait that the server requests: retry-after-ms, or Retry-After as seconds or as a date.

    A date is compared with the server's Date header if it sent one: the local clock may be wrong.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return _bounded(milliseconds / 1000)
    value = headers.get("Retry-After", "")[:_RETRY_AFTER_CHARACTERS_MAX]
    seconds = _number(value)
    if seconds is None:
        until = _timestamp(value)
        if until is None:
            return None
        there = _timestamp(headers.get("Date", ""))
        seconds = until - (now if there is None else there)
    return _bounded(seconds)


def retry_delay_seconds(body: str) -> float | None:
    """The wait in the body of a failure, as Google's servers send it: `details` with a `retryDelay` of "34s"."""
    try:
        decoded = msgspec.json.decode(body, type=_Delayed | list[_Delayed])
    except (msgspec.DecodeError, RecursionError):
        return None
    every = decoded if isinstance(decoded, list) else [decoded]
    for each in (detail for failed in every for detail in failed.error.details):
        seconds = _number(each.retry_delay.removesuffix("s"))
        if seconds is not None:
            return _bounded(seconds)
    return None


class _Detail(msgspec.Struct):
    """One of the details of a failure; most have no delay."""

    retry_delay: str = msgspec.field(name="retryDelay", default="")


class _Failed(msgspec.Struct):
    """A failure with details."""

    details: list[_Detail] = []


class _Delayed(msgspec.Struct):
    """The body of a failure, as far as it may hold a delay."""

    error: _Failed


def _message_in(body: Any) -> str:
    """The error message in a decoded body; empty if none is found. OpenAI: error.message; others: error, message or
    detail, of any type. Google's OpenAI-compatible server sends a list of one. OpenRouter sends "Provider returned
    error" with the real message in `metadata.raw`.
    """
    if isinstance(body, list) and len(body) == 1:
        return _message_in(body[0])
    if not isinstance(body, dict):
        return ""
    for name in ("error", "message", "detail"):
        value = body.get(name)
        if isinstance(value, dict):
            beside = value.get("metadata")
            raw = beside.get("raw") if isinstance(beside, dict) else None
            value = value.get("message") or value
            value = f"{_text(value)}: {_text(raw)}" if raw else value
        if value:
            return _text(value)
    return ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


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
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):  # numbers outside of the range of dates
        return None
