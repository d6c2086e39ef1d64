"""How many requests may be in flight to one model: found by trial. Pure: time is a parameter.

It starts low and doubles each round trip until the server rejects requests or gets no faster. Then it grows in small
steps that become larger while nothing fails. A rejection (429, overload) halves it, once per round trip; from the
number of rejections it estimates the server's capacity, and soon returns to it. Invariants: 1 <= size <= ceiling; a
window that was not full does not grow.
"""

import math

import msgspec

START = 16
UNHEARD_MAX = 64
"""Up to this many are sent before the first answer: rejections come fast, and answers may take minutes."""
UNHEARD_SECONDS = 0.25
"""After this long without a rejection, twice as many may be sent."""
_GAIN_MIN = 1.1
"""Doubling the window must multiply answers per second by this; otherwise only the server's queue grew."""
_LEVEL_ROUNDS = 16
_ROUNDS_MAX = 16
_ALIKE = 0.15
"""Rejections at sizes that differ by no more than this share mean the same capacity."""
_ROOM = 0.95
_STEP_GROWTH = 1.5


class _Mark(msgspec.Struct, frozen=True):
    """A window size and the answers per second that it brought."""

    size: float
    rate: float


class Window:
    """The window of one model. Without `adaptive` it is always the ceiling."""

    def __init__(self, ceiling: int, adaptive: bool) -> None:
        self.size = 0
        self._ceiling = ceiling
        self._adaptive = adaptive
        self._cut_at = -math.inf
        self._cut_from = 0.0
        self._refusals = 0
        self._began = -math.inf
        self._answers = 0
        self._is_full = False
        self._full_since: float | None = None
        self._mark: _Mark | None = None
        self._level = 0
        self._patience = 0
        self._step = 1.0
        self.restart()

    def restart(self) -> None:
        """Start over: the server is new, or was down."""
        self._threshold = math.inf
        self._full_since = None
        self._set(START if self._adaptive else self._ceiling)
        self._forget_measurements(-math.inf)

    def change(self, ceiling: int, adaptive: bool) -> None:
        self._ceiling, was_adaptive, self._adaptive = ceiling, self._adaptive, adaptive
        self._set(self._size if adaptive and was_adaptive else START if adaptive else ceiling)

    @property
    def ceiling(self) -> int:
        return self._ceiling

    @property
    def is_adaptive(self) -> bool:
        return self._adaptive

    def answered(self, now: float, sent_at: float) -> None:
        self._answers += 1
        if self._began == -math.inf:
            self._began = sent_at
        if self._answers >= self.size and sent_at >= self._began and self._adaptive:
            self._end_round(now)

    def refused(self, now: float, sent_at: float, in_flight: int) -> None:
        """The server rejected a request as too much. `in_flight` includes that request."""
        if not self._adaptive:
            return
        is_first = sent_at >= self._cut_at  # requests sent before the last cut say nothing about the window after it
        if is_first:
            self._cut(now, min(self._size, float(max(in_flight, 1))))
        self._refusals += 1
        self._threshold = max(1.0, float(math.ceil(_ROOM * (self._cut_from - self._refusals))))
        self._set(min(self._cut_from / 2 if is_first else self._size, self._threshold))
        self._full_since = now
        self._forget_measurements(now)
        self._level = self._patience

    def _cut(self, now: float, size: float) -> None:
        """The more often the server rejects at the same size, the longer the window stays below it."""
        alike = abs(size - self._cut_from) <= max(1.0, _ALIKE * self._cut_from)
        self._patience = min(2 * max(self._patience, 1), _ROUNDS_MAX) if alike else 0
        self._cut_at, self._cut_from, self._refusals = now, size, 0

    def seconds_until_growth(self, now: float) -> float:
        """The window is full and a request waits: seconds until it grows without any answer. 0: it has just grown;
        infinite: only an answer frees a slot.
        """
        self._is_full = True
        if self._full_since is None:
            self._full_since = now
        larger = min(2 * self._size, self._threshold, float(UNHEARD_MAX), float(self._ceiling))
        if not self._adaptive or int(larger) <= self.size:
            return math.inf
        due = self._full_since + UNHEARD_SECONDS - now
        if due > 0:
            return due
        self._set(larger)
        self._full_since = now
        return 0.0

    def _end_round(self, now: float) -> None:
        """As many answers have arrived as fit into the window: about one round trip."""
        rate = self._answers / max(now - self._began, 1e-9)
        if self._is_full:
            self._grow(rate)
        if not self._is_full:
            self._full_since = None
        self._began, self._answers, self._is_full = now, 0, False

    def _grow(self, rate: float) -> None:
        mark, is_known = self._mark, self._size >= self._threshold
        if is_known and self._level:
            self._level -= 1
            return
        if mark is not None and self._size >= 1.9 * mark.size:
            # Not for small windows: one slow round trip must not cost much.
            if rate < _GAIN_MIN * mark.rate and mark.size >= UNHEARD_MAX:
                self._threshold = mark.size
                self._set(mark.size)
                self._mark, self._level, self._step = None, _LEVEL_ROUNDS, 1.0
                return
            mark = None
        mark = self._mark = mark or _Mark(self._size, rate)
        if is_known:
            self._set(min(self._size + self._step, 2 * mark.size))
            self._step *= _STEP_GROWTH
        else:
            self._set(min(2 * self._size, self._threshold))

    def _forget_measurements(self, now: float) -> None:
        """Drop measurements: they belong to an earlier state of the server."""
        self._began, self._answers, self._is_full = now, 0, False
        self._mark, self._level, self._step = None, 0, 1.0

    def _set(self, size: float) -> None:
        self._size = min(max(size, 1.0), float(self._ceiling))
        self.size = int(self._size)
