"""Rate limit headers of servers. Pure.

OpenAI and compatible servers: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, the reset as `6m0s` or `17ms`.
Anthropic: `anthropic-ratelimit-{requests,tokens,…}-{limit,remaining,reset}`, the reset as a date. Others omit what is
counted, which is then requests. Headers are only hints: whatever cannot be parsed is ignored.
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
"""Longer values are ignored: the pattern would take quadratic time on them."""


class Quota(msgspec.Struct, frozen=True):
    """One thing that a server counts: how much is left, of how much (0: unknown), and when it is full again."""

    remaining: float
    reset_seconds: float
    limit: float = 0.0
    of: str = "requests"
    """The server's name for it: `tokens`, `input-tokens`, …"""


def quotas_in(headers: Iterable[tuple[bytes, bytes]], wall: float) -> list[Quota]:
    """The quotas in headers (names in lower case) that are complete enough to act on. `wall`: seconds since 1970."""
    found: dict[str, dict[str, str]] = {}
    for name, value in headers:
        if _NEEDLE in name and len(value) <= _CHARACTERS_MAX:
            _collect(found, name.decode("latin-1"), value.decode("latin-1").strip())
    if not found:
        return []
    return [quota for what, fields in found.items() if (quota := _quota(what, fields, wall)) is not None]


def _collect(found: dict[str, dict[str, str]], name: str, value: str) -> None:
    parts = name.partition("ratelimit-")[2].split("-")
    field = next((part for part in (parts[0], parts[-1]) if part in _FIELDS), None)
    if field is not None:
        what = "-".join(part for part in parts if part != field)
        found.setdefault(what, {})[field] = value


def _quota(what: str, fields: dict[str, str], wall: float) -> Quota | None:
    remaining, reset = _number(fields.get("remaining", "")), _seconds(fields.get("reset", ""), wall)
    if remaining is None or reset is None:
        return None
    return Quota(max(0.0, remaining), reset, _number(fields.get("limit", "")) or 0.0, what or "requests")


def _seconds(text: str, wall: float) -> float | None:
    """Seconds from now. A number is seconds or, if it is large, a Unix time; other servers send durations or dates."""
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
