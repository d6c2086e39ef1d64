"""When the next request to one model may be sent. Pure: time is a parameter, in seconds of any monotonic clock.

Four things decide: the number of requests in flight (`Window`), pauses that the server requested, requests and tokens
per minute (from the spec and from the server's headers), and whether the server is up (`Breaker`). Invariant: `wait` is
0 exactly when a request may be sent, and infinite when only a response can change that.

Rate limit headers of servers. Pure.

OpenAI and compatible servers: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, the reset as `6m0s` or `17ms`.
Anthropic: `anthropic-ratelimit-{requests,tokens,…}-{limit,remaining,reset}`, the reset as a date. Others omit what is
counted, which is then requests. Headers are only hints: whatever cannot be parsed is ignored.
"""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from holdfast.models.pacing.retries import Breaker
from holdfast.models.pacing.window import UNHEARD_SECONDS, Window
from holdfast.models.provider import ModelError

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


_BURST_SECONDS = 0.1
"""Up to this much unused time is made up for: timers fire late."""
_STRIKE_SECONDS = 0.25
_STRIKE_SECONDS_MAX = 30.0
_STRIKES_MAX = 10
_WEIGHT = 0.1
"""Weight of the latest answer in the moving average of output tokens."""


class PaceLimits(msgspec.Struct, frozen=True):
    """The spec's limits for one model."""

    ceiling: int = 64
    adaptive: bool = True
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    patience_seconds: float = 0.0
    first_contact_seconds: float | None = None
    """The patience with a server that has never answered; None: the same."""


class Pace:
    """The limiter of one model. For each request call `sent`, then one of `answered`, `failed` and `dropped`."""

    def __init__(self, limits: PaceLimits) -> None:
        self.in_flight = 0
        self.window = Window(limits.ceiling, limits.adaptive)
        self.breaker = Breaker(limits.patience_seconds, limits.first_contact_seconds)
        self._own = {"requests": _Meter(), "tokens": _Meter()}
        """Limits from the spec."""
        self._reported: dict[str, _Meter] = {}
        """Limits from the server's headers, one meter per thing that it counts: each of them can run out alone."""
        self._paused_until = -math.inf
        self._not_before = -math.inf
        self._metered: list[tuple[str, _Meter]] = []
        """The meters that can delay requests now."""
        self._strikes = 0
        self._output_tokens = 0.0
        self.change(limits)

    def change(self, limits: PaceLimits) -> None:
        """Replace the spec's limits."""
        self.window.change(limits.ceiling, limits.adaptive)
        self.breaker.patience_seconds = limits.patience_seconds
        self.breaker.first_contact_seconds = limits.first_contact_seconds
        self._own["requests"].change(limits.requests_per_minute)
        self._own["tokens"].change(limits.tokens_per_minute)
        self._collect_meters()

    def is_free(self, now: float) -> bool:
        """Whether a request may be sent at once: the fast path of `wait() == 0`."""
        return self.in_flight < self.window.size and now >= self._not_before and not self.breaker.is_open

    def wait(self, now: float) -> float:
        """Seconds until a request may be sent."""
        held = max(self._not_before - now, self.breaker.wait(now))
        if held > 0:
            return held
        # A probe may be sent although older requests still hang.
        if self.in_flight < self.window.size or self.breaker.is_open:
            return 0.0
        seconds = self.window.seconds_until_growth(now)
        return seconds if seconds > 0 or self.in_flight < self.window.size else UNHEARD_SECONDS

    def held_seconds(self, now: float) -> float:
        """How long a rate limit delays the next request. The window's limit does not count."""
        return max(0.0, self._not_before - now)

    def guess(self, characters: int) -> float:
        """Estimated tokens of a request: the input by its length, the output by the average so far."""
        return max(1.0, characters / 4) + self._output_tokens

    def sent(self, now: float, tokens: float = 0.0) -> bool:
        """Record that a request is sent. True if it is the breaker's probe."""
        self.in_flight += 1
        for of, meter in self._metered:
            meter.take(now, self._amount(of, tokens))
            self._not_before = max(self._not_before, meter.next_at)
        return self.breaker.is_open and self.breaker.sent()

    def dropped(self, was_probe: bool) -> None:
        """A request was abandoned: nothing is known about the server."""
        self.in_flight -= 1
        if was_probe:
            self.breaker.drop_probe()

    def answered(self, now: float, sent_at: float) -> bool:
        """Record an answer. True if that closed the breaker."""
        self.in_flight -= 1
        self._strikes = 0
        self.breaker.has_contact = True
        self.window.answered(now, sent_at)
        return self.breaker.failures > 0 and self._close_breaker(sent_at)

    def used(self, input_tokens: int, output_tokens: int, guessed: float) -> None:
        """Correct the estimate with the tokens that an answer really used."""
        self._output_tokens += _WEIGHT * (output_tokens - self._output_tokens)
        self._own["tokens"].correct(input_tokens + output_tokens - guessed)
        self._update_delay()

    def failed(self, now: float, sent_at: float, error: ModelError, was_probe: bool, request: int = 0) -> bool:
        """Record a failure. True if that opened or closed the breaker. `request`: a number, equal for all its tries."""
        policy, in_flight = error.policy, self.in_flight
        self.in_flight -= 1
        if policy.is_free or not policy.breaks:
            self.breaker.has_contact = True  # a refusal, also a temporary one, is a response
        if policy.slows:
            self.window.refused(now, sent_at, in_flight)
        if error.retry_after and error.retryable:
            self._pause(now + error.retry_after)
        elif policy.is_free and self.window.size == 1 and in_flight <= 1:
            # One at a time is the minimum: only pauses can slow it down further.
            self._strikes = min(self._strikes + 1, _STRIKES_MAX)
            self._pause(now + min(_STRIKE_SECONDS * 2.0 ** (self._strikes - 1), _STRIKE_SECONDS_MAX))
        if policy.breaks:
            is_unheard = error.kind == "connection"
            return self.breaker.failed(now, str(error), request, is_unheard=is_unheard, was_probe=was_probe)
        return self._close_breaker(sent_at)

    def update_quotas(self, now: float, quotas: Sequence[Quota]) -> None:
        """Apply the quotas from the headers of a response."""
        for quota in quotas:
            meter = self._reported.setdefault(quota.of, _Meter())
            meter.update(now, quota, max(1.0, self._amount(quota.of, self._output_tokens)))
        self._collect_meters()

    def _amount(self, of: str, tokens: float) -> float:
        """How much of a counted thing (`requests`, `input-tokens`, …) a request of so many tokens uses."""
        if "token" not in of:
            return 1.0
        output = min(tokens, self._output_tokens)
        return output if "output" in of else tokens - output if "input" in of else tokens

    def _collect_meters(self) -> None:
        """Collect the active meters, so that `sent` looks only at those."""
        self._metered = [each for each in (*self._own.items(), *self._reported.items()) if each[1].is_on]
        self.counts_tokens = any("token" in of for of, _ in self._metered)
        self._update_delay()

    def _update_delay(self) -> None:
        every = (*self._own.values(), *self._reported.values())
        self._not_before = max(self._paused_until, *(meter.next_at for meter in every))

    def _pause(self, until: float) -> None:
        self._paused_until = max(self._paused_until, until)
        self._not_before = max(self._not_before, until)

    def _close_breaker(self, sent_at: float) -> bool:
        if not self.breaker.record_response(sent_at):
            return False
        self.window.restart()
        self._strikes = 0
        return True


class _Meter:
    """A rate per minute, spread evenly; slower while the server reports that little is left."""

    def __init__(self) -> None:
        self.next_at = -math.inf
        """When the next request may be sent."""
        self._own = 0.0
        self._spacing = 0.0
        self._spaced_until = -math.inf
        self._most = 0.0

    def change(self, per_minute: float | None) -> None:
        self._own = 60.0 / per_minute if per_minute else 0.0
        if not self._own and not self._spacing:
            self.next_at = -math.inf

    @property
    def is_on(self) -> bool:
        return bool(self._own or self._spacing)

    def take(self, now: float, amount: float) -> None:
        each = max(self._own, self._spacing if now < self._spaced_until else 0.0)
        if each:
            self.next_at = max(self.next_at, now - _BURST_SECONDS) + amount * each

    def correct(self, amount: float) -> None:
        self.next_at += amount * self._own

    def update(self, now: float, quota: Quota, each: float) -> None:
        """Apply a quota. While more than half of it is left nothing changes, so that a short run is not delayed. Below
        that, the rest is spread over the time until the reset: a token bucket is then used as fast as it refills.
        """
        self._most = max(self._most, quota.limit or quota.remaining)
        self._spacing = 0.0
        if not quota.reset_seconds:
            return  # it is full again, or will be at once
        if quota.remaining < each:
            self.next_at = max(self.next_at, now + quota.reset_seconds)
        elif 2 * quota.remaining < self._most:
            self._spacing = quota.reset_seconds / quota.remaining
            self._spaced_until = now + quota.reset_seconds
