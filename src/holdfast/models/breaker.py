"""The circuit breaker of one model's line: a server that is down is waited for, with one request now and then.

Pure: time is given. Invariant: while it is open at most one request is under way as a probe, at growing intervals; any
answer of the server closes it. It opens only after failures of several kinds in a row that speak of the server, never
because of one that an answer came between.
"""

import math

TRIPS_AFTER = 5
"""So many failures in a row open it."""
_FIRST_SECONDS = 0.5
_SECONDS_MAX = 30.0


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

    def failed(self, now: float, why: str, *, was_probe: bool = False) -> bool:
        """A failure that speaks of the server. True if it opened the breaker."""
        self.why = why
        if not self.failures:
            self._since = now
        self.failures += 1
        if was_probe:
            self.drop_probe()
            self._interval = min(2 * self._interval, _SECONDS_MAX)
            self.probe_at = now + self._interval
        if self.is_open or self.failures < TRIPS_AFTER or not self.patience_seconds:
            return False
        self.is_open = True
        self._interval = _FIRST_SECONDS
        self.probe_at = now + self._interval
        return True

    def drop_probe(self) -> None:
        """The probe came to nothing, in whatever way: another may be sent."""
        self._is_probing = False

    def heard(self) -> bool:
        """The server has answered, whatever it said. True if that closed the breaker."""
        was_open, self.is_open = self.is_open, False
        self.failures = 0
        self._is_probing = False
        return was_open

    def open_seconds(self, now: float) -> float:
        """How long the server has not answered."""
        return now - self._since if self.is_open else 0.0

    def is_over(self, now: float) -> bool:
        """Whether its patience is."""
        return self.is_open and now - self._since >= self.patience_seconds
