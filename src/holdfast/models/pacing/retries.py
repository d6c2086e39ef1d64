"""The one retry layer: `generate_with_retries` is the only loop that sends a request again. Providers never retry by
themselves, so the recorded number of tries is the number of requests that were sent.

Where a retry is decided: whether an error is retryable at all is in the table `POLICIES` (`holdfast.models.provider`);
how many retries there are is `request_retries` of the model; whether a try counts, and who waits, is the
`RetryDecision` that `Admission.failed` returns. In a run the admission is `PacedRequest` in `holdfast.engine.client`.

The admission does all the waiting: for its turn, and for the pause before a retry. Pauses grow exponentially with full
jitter, so that requests that failed together do not come back together. Cancellation passes straight through.

The circuit breaker (`Breaker`): when a server is down, Holdfast waits for it and sends a probe now and then. Pure: time
is a parameter. Invariants:

- While it is open, at most one request is in flight as a probe, at growing intervals.
- It opens only after failures in a row, with no response in between. A few failed connections are enough, because the
  server sent nothing. An error or a time-out may be caused by the request, so those must come from many different
  requests: the last samples of a run may be exactly the ones that no server can answer.
- A server that has never answered gets less time (`first_contact_seconds`) than one that has (`patience_seconds`): a
  wrong address must not hold a run up for minutes. Refusals and "too busy" count as contact, other errors do not: a
  gateway sends those for a server that does not exist.
- Any response to a request that was sent after the failures began closes it. Responses to earlier requests do not: they
  may have been sent before the server died.
"""

import math
import random
from collections.abc import Callable
from typing import Protocol

import msgspec

from holdfast.models.provider import FailurePolicy, ModelError, Provider, Request
from holdfast.records import Answer

_DOUBLINGS_MAX = 60  # any sensible maximum is reached long before; more would overflow a float


class Retries(msgspec.Struct, frozen=True):
    """How often to retry, and how long to wait before each retry. `random` returns numbers in [0, 1)."""

    count: int = 5
    random: Callable[[], float] = random.random
    seconds_base: float = 0.5
    seconds_max: float = 30.0
    on_retry: Callable[[ModelError], None] = lambda error: None
    """Called with the error before each retry."""


class RetryDecision(msgspec.Struct, frozen=True):
    """How a failed try is retried."""

    counts: bool = True
    """It uses up one of the retries."""
    waits: bool = True
    """The request pauses by itself before it queues again; else the limiter delays all requests of the model."""


class Admission(Protocol):
    """Decides when each try of one request may be sent, and learns its outcome."""

    async def enter(self, seconds: float) -> None:
        """Return when it may be sent, after at least so many seconds."""

    def answered(self, answer: Answer) -> None: ...

    async def failed(self, error: ModelError) -> RetryDecision:
        """How to retry. Raises if the request must not be retried; may never return if its result is not needed."""

    def dropped(self) -> None:
        """The try ended without a result: a cancellation, or a bug in a provider."""


async def generate_with_retries(
    provider: Provider, request: Request, retries: Retries, gate: Admission
) -> tuple[Answer, int]:
    """The answer and the number of tries. Raises the last ModelError, with its `tries`, when no retry is left."""
    tries, used, wait = 1, 0, 0.0
    while True:
        await gate.enter(wait)
        try:
            answer = await provider.generate(request)
        except ModelError as error:
            error.tries = tries
            again = await gate.failed(error)
            used += again.counts
            if used > retries.count or not error.retryable:
                raise
            retries.on_retry(error)
            wait = _wait_seconds(error, tries, retries) if again.waits else 0.0
        except BaseException:
            gate.dropped()
            raise
        else:
            gate.answered(answer)
            return answer, tries
        tries += 1


def _wait_seconds(error: ModelError, tries: int, retries: Retries) -> float:
    longest = min(retries.seconds_max, retries.seconds_base * 2.0 ** min(tries - 1, _DOUBLINGS_MAX))
    return max(retries.random() * longest, error.retry_after or 0.0)


TRIPS_AFTER = 5
"""This many failed connections in a row open it."""
TRIPS_AFTER_REQUESTS = 16
"""This many different requests that failed in a row open it."""
_FIRST_SECONDS = 0.5
_SECONDS_MAX = 30.0
_HEARD_SECONDS_MAX = 5.0
"""The longest interval between probes of a server that does respond, if only with errors."""


class Breaker:
    """Closed, or open since some time for a reason. With a patience of 0 it never opens."""

    def __init__(self, patience_seconds: float, first_contact_seconds: float | None = None) -> None:
        self.patience_seconds = patience_seconds
        self.first_contact_seconds = first_contact_seconds
        self.has_contact = False
        """Whether the server has ever answered, maybe in an earlier process of the run."""
        self.is_open = False
        self.why = ""
        """The message of the last failure."""
        self.probe_at = math.inf
        """When the next probe may be sent."""
        self._is_probing = False
        self.failures = 0
        """Failures in a row."""
        self._unheard = 0
        self._requests: set[int] = set()
        self._since = 0.0
        self._interval = _FIRST_SECONDS

    @property
    def seconds_max(self) -> float:
        """How long it may be open."""
        if self.has_contact or self.first_contact_seconds is None:
            return self.patience_seconds
        return self.first_contact_seconds

    def wait(self, now: float) -> float:
        """Seconds until a request may be sent; infinite while a probe is in flight."""
        if not self.is_open:
            return 0.0
        return math.inf if self._is_probing else max(0.0, self.probe_at - now)

    def sent(self) -> bool:
        """Record that a request is sent. True if it is a probe."""
        self._is_probing = self.is_open
        return self._is_probing

    def failed(self, now: float, why: str, request: int, *, is_unheard: bool, was_probe: bool = False) -> bool:
        """Record a failure that may mean a dead server; `is_unheard`: it sent nothing. True if the breaker opened."""
        self.why = why
        if not self.failures:
            self._since = now
        self.failures += 1
        self._unheard += is_unheard
        if len(self._requests) < TRIPS_AFTER_REQUESTS:
            self._requests.add(request)
        if was_probe:
            self.drop_probe()
            self._interval = min(2 * self._interval, _SECONDS_MAX if is_unheard else _HEARD_SECONDS_MAX)
            self.probe_at = self._next_probe(now)
        is_down = self._unheard >= TRIPS_AFTER or len(self._requests) >= TRIPS_AFTER_REQUESTS
        if self.is_open or not is_down or not self.patience_seconds:
            return False
        self.is_open = True
        self._interval = _FIRST_SECONDS
        self.probe_at = self._next_probe(now)
        return True

    def _next_probe(self, now: float) -> float:
        """After the interval, and at the latest when the patience ends: the failure of that probe closes the model."""
        end = self._since + self.seconds_max
        return min(now + self._interval, end) if now < end else now + self._interval

    def drop_probe(self) -> None:
        """The probe ended without a result: another may be sent."""
        self._is_probing = False

    def record_response(self, sent_at: float) -> bool:
        """Record any response to a request that was sent at `sent_at`. True if that closed the breaker."""
        if self.is_open and sent_at < self._since:
            return False
        was_open, self.is_open = self.is_open, False
        self.failures = 0
        self._unheard = 0
        self._requests.clear()
        self._is_probing = False
        return was_open

    def open_seconds(self, now: float) -> float:
        """For how long the server has not responded; 0 while closed."""
        return now - self._since if self.is_open else 0.0

    def is_over(self, now: float) -> bool:
        """Whether it has been open for longer than it may be."""
        return self.is_open and now - self._since >= self.seconds_max


class Streak:
    """Permanent failures in a row, of a model or a cell. `has_answers`: it had one, maybe in an earlier process."""

    def __init__(self, has_answers: bool = False) -> None:
        self.has_answers = has_answers
        self._in_a_row = 0
        self._samples: set[str] = set()

    def answered(self) -> None:
        if self._in_a_row or not self.has_answers:
            self.has_answers = True
            self._in_a_row = 0
            self._samples.clear()

    def refused(self, policy: FailurePolicy, sample: str = "") -> bool:
        """Record a failure; True if it must stop now. `sample`: the sample that may be the cause; each counts once."""
        if not sample or sample not in self._samples:
            self._in_a_row += 1
        if sample:
            self._samples.add(sample)
        enough = policy.stops_working if self.has_answers else policy.stops_new
        return 0 < enough <= self._in_a_row
