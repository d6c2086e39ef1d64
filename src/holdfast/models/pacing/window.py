"""How many requests may be under way to one model at a time: found by trying. Pure: time is given.

It begins low and doubles, round trip by round trip, until the server refuses or answers no faster for it; then it grows
in small steps that become larger as long as nothing goes wrong. A refusal halves it, once in a round trip; from the
number of refusals it learns how much the server bears, and is soon back there. Invariant: 1 <= size <= ceiling; what
nobody wanted to use does not grow.
"""

import math

import msgspec

START = 16
UNHEARD_MAX = 64
"""So many are sent without a single answer: refusals come fast, and answers may take minutes."""
UNHEARD_SECONDS = 0.25
"""For so long nothing was refused: twice as many may be sent."""
_GAIN_MIN = 1.1
"""Twice as many at a time must bring so many times the answers a second; else it was the server's queue that grew."""
_LEVEL_ROUNDS = 16
_ROUNDS_MAX = 16
_ALIKE = 0.15
"""Two refusals at sizes that differ by no more than this share tell the same of the server."""
_ROOM = 0.95
_STEP_GROWTH = 1.5


class _Mark(msgspec.Struct, frozen=True):
    """What a size brought, in answers a second."""

    size: float
    rate: float


class Window:
    """One model's. Without `adaptive` it is always the ceiling."""

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
        """Nothing is known of the server: a new one, or one that was down."""
        self._threshold = math.inf
        self._full_since = None
        self._set(START if self._adaptive else self._ceiling)
        self._learn_anew(-math.inf)

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
        """The server has too much to do. `in_flight`: with the one that was refused."""
        if not self._adaptive:
            return
        is_first = sent_at >= self._cut_at  # what was sent before the last cut says nothing about what came after it
        if is_first:
            self._cut(now, min(self._size, float(max(in_flight, 1))))
        self._refusals += 1
        self._threshold = max(1.0, float(math.ceil(_ROOM * (self._cut_from - self._refusals))))
        self._set(min(self._cut_from / 2 if is_first else self._size, self._threshold))
        self._full_since = now
        self._learn_anew(now)
        self._level = self._patience

    def _cut(self, now: float, size: float) -> None:
        """The oftener the server refuses at the same size, the longer it is left alone below it."""
        alike = abs(size - self._cut_from) <= max(1.0, _ALIKE * self._cut_from)
        self._patience = min(2 * max(self._patience, 1), _ROUNDS_MAX) if alike else 0
        self._cut_at, self._cut_from, self._refusals = now, size, 0

    def unheard_seconds(self, now: float) -> float:
        """All places are taken, and somebody wants one: how long until there are more of them, without any answer.
        0: there are now; infinite: only an answer makes one free.
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
        """As many answers have come as are under way at a time: about one round trip."""
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
            if rate < _GAIN_MIN * mark.rate and mark.size >= UNHEARD_MAX:  # one slow round trip must not cost much
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

    def _learn_anew(self, now: float) -> None:
        """What was measured is of another time."""
        self._began, self._answers, self._is_full = now, 0, False
        self._mark, self._level, self._step = None, 0, 1.0

    def _set(self, size: float) -> None:
        self._size = min(max(size, 1.0), float(self._ceiling))
        self.size = int(self._size)
