"""The circuit breaker of one model's line: a server that is down is waited for, with one request now and then.

Pure: time is given. Invariant: while it is open at most one request is under way as a probe, at growing intervals; any
answer to what was sent since the failures began closes it: what a server sent before it died may come later. It opens
only after failures of several kinds in a row that speak of the server, never because of one that an answer came
between. Where nothing was heard of the server at all (a connection that failed) a few are enough; an error or a
time-out may be the request's own doing, so those must be of many requests: what is left at the end of a run may be just
the samples that no server can answer.
"""

import math

from holdfast.models.failures import Policy

TRIPS_AFTER = 5
"""So many failed connections in a row open it."""
TRIPS_AFTER_REQUESTS = 16
"""So many requests, of which each failed and none was answered meanwhile, open it."""
_FIRST_SECONDS = 0.5
_SECONDS_MAX = 30.0
_HEARD_SECONDS_MAX = 5.0
"""Between probes of a server that does answer, if only with errors."""


class Breaker:
    """Closed, or open since a moment with a reason. With no patience it never opens."""

    def __init__(self, patience_seconds: float) -> None:
        self.patience_seconds = patience_seconds
        self.is_open = False
        self.why = ""
        """The last failure."""
        self.probe_at = math.inf
        """When the next probe may be sent."""
        self._is_probing = False
        self.failures = 0
        """In a row."""
        self._unheard = 0
        self._requests: set[int] = set()
        self._since = 0.0
        self._interval = _FIRST_SECONDS

    def wait(self, now: float) -> float:
        """Seconds until a request may be sent; infinite while a probe is under way."""
        if not self.is_open:
            return 0.0
        return math.inf if self._is_probing else max(0.0, self.probe_at - now)

    def sent(self) -> bool:
        """A request is sent. Whether it is a probe."""
        self._is_probing = self.is_open
        return self._is_probing

    def failed(self, now: float, why: str, request: int, *, is_unheard: bool, was_probe: bool = False) -> bool:
        """A failure that may speak of the server; `is_unheard`: nothing came from it. True if it opened the breaker."""
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
            self.probe_at = now + self._interval
        is_down = self._unheard >= TRIPS_AFTER or len(self._requests) >= TRIPS_AFTER_REQUESTS
        if self.is_open or not is_down or not self.patience_seconds:
            return False
        self.is_open = True
        self._interval = _FIRST_SECONDS
        self.probe_at = now + self._interval
        return True

    def drop_probe(self) -> None:
        """The probe came to nothing, in whatever way: another may be sent."""
        self._is_probing = False

    def heard(self, sent_at: float) -> bool:
        """The server has answered, whatever it said, a request of that time. True if that closed the breaker."""
        if self.is_open and sent_at < self._since:
            return False
        was_open, self.is_open = self.is_open, False
        self.failures = 0
        self._unheard = 0
        self._requests.clear()
        self._is_probing = False
        return was_open

    def open_seconds(self, now: float) -> float:
        """How long the server has not answered."""
        return now - self._since if self.is_open else 0.0

    def is_over(self, now: float) -> bool:
        """Whether its patience is."""
        return self.is_open and now - self._since >= self.patience_seconds


class Streak:
    """Of one line, or of one cell. `has_answers`: whether it has ever had one, in an earlier process too."""

    def __init__(self, has_answers: bool = False) -> None:
        self.has_answers = has_answers
        self._in_a_row = 0
        self._samples: set[str] = set()

    def answered(self) -> None:
        self.has_answers = True
        self._in_a_row = 0
        self._samples.clear()

    def refused(self, policy: Policy, sample: str = "") -> bool:
        """True if that is enough. `sample`: whose request it was, if that may be the reason."""
        if not sample or sample not in self._samples:
            self._in_a_row += 1
        if sample:
            self._samples.add(sample)
        enough = policy.stops_working if self.has_answers else policy.stops_new
        return 0 < enough <= self._in_a_row
