"""Watching the heartbeat of a holder, before and after another process takes its run over.

A holder whose heartbeat does not change for one expiry counts as dead. Two things make that safe for a holder that is
alive:

- Only time in which this process watched counts. It may be stopped itself, and so may its machine or the store: then a
  look that comes late would take its own pause for that of the holder. So the time between two looks counts for at most
  half an expiry, and a takeover needs a look after the time is up.
- The holder may wake up between that look and the claim. It notices the claim at its next heartbeat, and until then
  relies on what it wrote. So the taker looks again after its claim, and waits for a holder that has moved.

Clocks of two machines are never compared. Nothing is stored: after a crash the watch starts again.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

_GAP_SHARE = 1 / 2
"""Of an expiry. In the other half, a living holder beats several times (a term) or at least once (a claim)."""
_PAUSES_PER_EXPIRY = 10

Beat = TypeVar("Beat")


class Watch(Generic[Beat]):
    """For how long this process has seen the same heartbeat."""

    def __init__(
        self,
        read: Callable[[], Beat],
        is_ended: Callable[[Beat], bool],
        expiry_seconds: float,
        clock: Callable[[], float],
        beat: Beat,
    ) -> None:
        """`is_ended`: whether this heartbeat is a last one, or its process is known to be dead. `beat`: from `read`, a
        moment ago.
        """
        self._read = read
        self._is_ended = is_ended
        self.expiry_seconds = expiry_seconds
        self._clock = clock
        self.beat = beat
        self._at = clock()
        self._seconds = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the holder has ended, is dead, or has been silent for one expiry, up to the last look."""
        return self._is_ended(self.beat) or self._seconds >= self.expiry_seconds

    def look(self) -> bool:
        """Look once. Returns whether the heartbeat is still the same."""
        now = self._clock()  # before it is read: this process may be stopped in between
        beat = self._read()
        if beat != self.beat:
            self.beat, self._seconds, self._at = beat, 0.0, self._clock()
            return False
        self._seconds += min(now - self._at, _GAP_SHARE * self.expiry_seconds)
        self._at = now
        return True

    def wait_until_over(self, sleep: Callable[[float], None], pause_max: float) -> bool:
        """Block until it is over. Returns False at the first sign of life."""
        while not self.is_over:
            sleep(min(pause_max, self.expiry_seconds / _PAUSES_PER_EXPIRY))
            if not self.look() and not self._is_ended(self.beat):
                return False
        return True

    def wait_until_noticed(self, sleep: Callable[[float], None], pause_max: float) -> None:
        """Call this after the claim. If the holder has moved since it was declared dead, wait until it has noticed.

        It was paused and woke up. If it looked for a greater number just before our claim, it relies on what it wrote
        until its next look, which comes within one expiry. Only after that do we see all that it relies on.
        """
        if self.look() or self._is_ended(self.beat):
            return
        end = self._clock() + self.expiry_seconds
        while self._clock() < end and not self._is_ended(self.beat):
            sleep(min(pause_max, self.expiry_seconds / _PAUSES_PER_EXPIRY))
            self.look()
