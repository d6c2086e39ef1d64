"""What servers say in headers about how much they will still take. Pure.

OpenAI and those like it: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, the reset as `6m0s` or `17ms`.
Anthropic: `anthropic-ratelimit-{requests,tokens,…}-{limit,remaining,reset}`, the reset as a date. Others: the same
without a name for what is counted, which is requests. Anything that cannot be read is passed over: these are hints.
"""

import math
import re
from collections.abc import Iterable
from datetime import datetime

import msgspec

_NEEDLE = b"ratelimit-"
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_FIELDS = ("limit", "remaining", "reset")
_EPOCH_SECONDS_MIN = 1e9
_EPOCH_MILLISECONDS_MIN = 1e12
_SECONDS_MAX = 3600.0
_CHARACTERS_MAX = 100
"""Longer values are no hints, and patterns take quadratic time for them."""


class Quota(msgspec.Struct, frozen=True):
    """Of one thing that is counted: how much is left, of how much (0: unknown), and when it is all there again."""

    remaining: float
    reset_seconds: float
    limit: float = 0.0
    of: str = "requests"
    """As the server calls it: `tokens`, `input-tokens`, …"""


def quotas_in(headers: Iterable[tuple[bytes, bytes]], wall: float) -> list[Quota]:
    """Every quota that the headers, with names in lower case, tell of completely enough to act on. `wall`: the time of
    day, in seconds.
    """
    found: dict[str, dict[str, str]] = {}
    for name, value in headers:
        if _NEEDLE in name and len(value) <= _CHARACTERS_MAX:
            _take(found, name.decode("latin-1"), value.decode("latin-1").strip())
    if not found:
        return []
    return [quota for what, fields in found.items() if (quota := _quota(what, fields, wall)) is not None]


def _take(found: dict[str, dict[str, str]], name: str, value: str) -> None:
    words = name.partition("ratelimit-")[2].split("-")
    field = next((word for word in (words[0], words[-1]) if word in _FIELDS), None)
    if field is not None:
        what = "-".join(word for word in words if word != field)
        found.setdefault(what, {})[field] = value


def _quota(what: str, fields: dict[str, str], wall: float) -> Quota | None:
    remaining, reset = _number(fields.get("remaining", "")), _seconds(fields.get("reset", ""), wall)
    if remaining is None or reset is None:
        return None
    return Quota(max(0.0, remaining), reset, _number(fields.get("limit", "")) or 0.0, what or "requests")


def _seconds(text: str, wall: float) -> float | None:
    """From now on. A number is seconds, or, if it is that large, a moment; others write durations or dates."""
    number = _number(text)
    if number is not None:
        if number >= _EPOCH_MILLISECONDS_MIN:
            number = number / 1000 - wall
        elif number >= _EPOCH_SECONDS_MIN:
            number -= wall
        return min(max(number, 0.0), _SECONDS_MAX)
    parts = _PART.findall(text)
    if parts and "".join(map("".join, parts)) == text:
        return min(sum(float(amount) * _UNITS[unit] for amount, unit in parts), _SECONDS_MAX)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return min(max(moment.timestamp() - wall, 0.0), _SECONDS_MAX) if moment.tzinfo else None


def _number(text: str) -> float | None:
    number = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else math.inf
    return number if math.isfinite(number) else None
