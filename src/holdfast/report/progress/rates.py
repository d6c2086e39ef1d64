"""How fast samples finish, and how long the rest takes. Pure: time is a parameter, in seconds of any monotonic clock.

The rate is that of the last minute, or of the last 20 samples if these took longer, so that it follows a server that
becomes slower and does not jump with every answer. Only samples of this process count. The time left is unknown (None)
while it could only be guessed: before three samples have finished, and when none has finished for long.
"""

from collections import deque

_WINDOW_SECONDS = 60.0
_WINDOW_SAMPLES = 20
_RATE_AFTER_SECONDS = 0.5
_LEFT_AFTER_SECONDS = 2.0
_LEFT_AFTER_SAMPLES = 3
_IDLE_SECONDS = 60.0


class RateWindow:
    """The samples that finished recently, of one model or of a whole run."""

    def __init__(self, started: float, before: int) -> None:
        """`before`: samples that were done when this process began."""
        self._first = (started, before)
        self._points = deque([self._first])
        """Times at which the number of samples that are done had changed, and the number."""

    def note(self, now: float, done: int) -> None:
        """Note how many are done. Call it a few times a second."""
        points = self._points
        if done != points[-1][1]:
            points.append((now, done))
        while len(points) > 1 and now - points[1][0] >= _WINDOW_SECONDS and done - points[1][1] >= _WINDOW_SAMPLES:
            points.popleft()

    def rate(self, now: float) -> float | None:
        """Samples a second; None if nothing is known yet."""
        began, before = self._points[0]
        done = self._points[-1][1] - before
        return done / (now - began) if done and now - began >= _RATE_AFTER_SECONDS else None

    def average(self) -> float | None:
        """Samples a second from the start to the last one that finished."""
        (began, before), (ended, done) = self._first, self._points[-1]
        return (done - before) / (ended - began) if done > before and ended - began >= _RATE_AFTER_SECONDS else None

    def seconds_left(self, left: int, now: float) -> float | None:
        """How long `left` more samples take; None if that is unknown."""
        (began, before), (changed, done) = self._first, self._points[-1]
        rate, idle = self.rate(now), now - changed
        if rate is None or done - before < _LEFT_AFTER_SAMPLES or now - began < _LEFT_AFTER_SECONDS:
            return None
        if idle > _IDLE_SECONDS and 2 * idle > now - self._points[0][0]:  # a server that is down, or a batch job
            return None
        return left / rate
