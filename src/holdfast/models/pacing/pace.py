"""When the next request to one model may be sent. Pure: time is given, in seconds of any clock that never goes back.

Four things decide: how many are under way (`Window`), pauses that the server asked for, how many requests and tokens a
minute may have (the spec's word, and what the server's headers leave), and whether the server is there at all
(`Breaker`). Invariant: `wait` is 0 exactly when a request may be sent, and infinite when only an answer changes that.
"""

import math
from collections.abc import Sequence

import msgspec

from holdfast.models.failures import ModelError
from holdfast.models.pacing.breaker import Breaker
from holdfast.models.pacing.rate_limits import Quota
from holdfast.models.pacing.window import UNHEARD_SECONDS, Window

_BURST_SECONDS = 0.1
"""What was not sent for so long is made up for: timers come late."""
_STRIKE_SECONDS = 0.25
_STRIKE_SECONDS_MAX = 30.0
_STRIKES_MAX = 10
_WEIGHT = 0.1
"""Of the last answer, in what an answer takes on average."""


class Limits(msgspec.Struct, frozen=True):
    """What the spec says of one model's pace."""

    ceiling: int = 64
    adaptive: bool = True
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    patience_seconds: float = 0.0


class Pace:
    """One model's. Whoever sends calls `sent`, then one of `answered`, `failed` and `dropped`."""

    def __init__(self, limits: Limits) -> None:
        self.in_flight = 0
        self.window = Window(limits.ceiling, limits.adaptive)
        self.breaker = Breaker(limits.patience_seconds)
        self._own = {"requests": _Meter(), "tokens": _Meter()}
        """What the spec says of each."""
        self._told: dict[str, _Meter] = {}
        """What the server says, of as many things as it counts: a plenty of one makes no other less scarce."""
        self._paused_until = -math.inf
        self._not_before = -math.inf
        self._metered: list[tuple[str, _Meter]] = []
        """Those that hold requests back."""
        self._strikes = 0
        self._output_tokens = 0.0
        self.change(limits)

    def change(self, limits: Limits) -> None:
        """Other limits, from now on."""
        self.window.change(limits.ceiling, limits.adaptive)
        self.breaker.patience_seconds = limits.patience_seconds
        self._own["requests"].change(limits.requests_per_minute)
        self._own["tokens"].change(limits.tokens_per_minute)
        self._measure()

    def is_free(self, now: float) -> bool:
        """Whether a request may be sent at once: `wait`, where nothing has to be found out."""
        return self.in_flight < self.window.size and now >= self._not_before and not self.breaker.is_open

    def wait(self, now: float) -> float:
        """Seconds until a request may be sent."""
        held = max(self._not_before - now, self.breaker.wait(now))
        if held > 0:
            return held
        if self.in_flight < self.window.size or self.breaker.is_open:  # a probe goes beside what still hangs
            return 0.0
        seconds = self.window.unheard_seconds(now)
        return seconds if seconds > 0 or self.in_flight < self.window.size else UNHEARD_SECONDS

    def held_seconds(self, now: float) -> float:
        """How long nothing is sent because of a rate limit; not because enough is under way."""
        return max(0.0, self._not_before - now)

    def guess(self, characters: int) -> float:
        """Tokens that a request will use: what goes in by its length, what comes out by what came so far."""
        return max(1.0, characters / 4) + self._output_tokens

    def sent(self, now: float, tokens: float = 0.0) -> bool:
        """A request goes out. Whether it is the breaker's probe."""
        self.in_flight += 1
        for of, meter in self._metered:
            meter.take(now, self._amount(of, tokens))
            self._not_before = max(self._not_before, meter.next_at)
        return self.breaker.is_open and self.breaker.sent()

    def dropped(self, was_probe: bool) -> None:
        """A request was given up: nothing is known."""
        self.in_flight -= 1
        if was_probe:
            self.breaker.drop_probe()

    def answered(self, now: float, sent_at: float) -> bool:
        """True if that closed the breaker."""
        self.in_flight -= 1
        self._strikes = 0
        self.window.answered(now, sent_at)
        return self.breaker.failures > 0 and self._hear(sent_at)

    def used(self, input_tokens: int, output_tokens: int, guessed: float) -> None:
        """What an answer took: the guess is put right."""
        self._output_tokens += _WEIGHT * (output_tokens - self._output_tokens)
        self._own["tokens"].correct(input_tokens + output_tokens - guessed)
        self._hold()

    def failed(self, now: float, sent_at: float, error: ModelError, was_probe: bool, request: int = 0) -> bool:
        """True if that opened the breaker, or closed it. `request`: the same for all tries of one."""
        policy, in_flight = error.policy, self.in_flight
        self.in_flight -= 1
        if policy.slows:
            self.window.refused(now, sent_at, in_flight)
        if error.retry_after and error.retryable:
            self._pause(now + error.retry_after)
        elif policy.is_free and self.window.size == 1 and in_flight <= 1:  # it cannot become less in any other way
            self._strikes = min(self._strikes + 1, _STRIKES_MAX)
            self._pause(now + min(_STRIKE_SECONDS * 2.0 ** (self._strikes - 1), _STRIKE_SECONDS_MAX))
        if policy.breaks:
            is_unheard = error.kind == "connection"
            return self.breaker.failed(now, str(error), request, is_unheard=is_unheard, was_probe=was_probe)
        return self._hear(sent_at)

    def heard(self, now: float, quotas: Sequence[Quota]) -> None:
        """What the server says it still takes."""
        for quota in quotas:
            meter = self._told.setdefault(quota.of, _Meter())
            meter.heard(now, quota, max(1.0, self._amount(quota.of, self._output_tokens)))
        self._measure()

    def _amount(self, of: str, tokens: float) -> float:
        """How much of a thing a request of so many tokens takes."""
        if "token" not in of:
            return 1.0
        said = min(tokens, self._output_tokens)
        return said if "output" in of else tokens - said if "input" in of else tokens

    def _measure(self) -> None:
        """Which meters there are to look at."""
        self._metered = [each for each in (*self._own.items(), *self._told.items()) if each[1].is_on]
        self.counts_tokens = any("token" in of for of, _ in self._metered)
        self._hold()

    def _hold(self) -> None:
        every = (*self._own.values(), *self._told.values())
        self._not_before = max(self._paused_until, *(meter.next_at for meter in every))

    def _pause(self, until: float) -> None:
        self._paused_until = max(self._paused_until, until)
        self._not_before = max(self._not_before, until)

    def _hear(self, sent_at: float) -> bool:
        if not self.breaker.heard(sent_at):
            return False
        self.window.restart()
        self._strikes = 0
        return True


class _Meter:
    """So many a minute, spread evenly; fewer while the server says that little is left."""

    def __init__(self) -> None:
        self.next_at = -math.inf
        """When the next may go."""
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

    def heard(self, now: float, quota: Quota, each: float) -> None:
        """Above half of what there can be nothing changes, so a short run is not held up. Below, what is left is spread
        over the time until all is there again: a bucket that fills steadily is then used just as fast as it fills.
        """
        self._most = max(self._most, quota.limit or quota.remaining)
        self._spacing = 0.0
        if not quota.reset_seconds:
            return  # all is there again, or will be at once
        if quota.remaining < each:
            self.next_at = max(self.next_at, now + quota.reset_seconds)
        elif 2 * quota.remaining < self._most:
            self._spacing = quota.reset_seconds / quota.remaining
            self._spaced_until = now + quota.reset_seconds
