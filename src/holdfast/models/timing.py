"""Where the time of one request goes. Whoever asks begins it; who holds the request back or sends it finds it in
`under_way`. A request outside of any step has none.
"""

from contextvars import ContextVar

from holdfast.records.facts import Timing

_PER_SECOND = 10_000  # tenths of a millisecond: more is noise, and every step pays for it

_NOTHING = Timing()
"""Its zeros are left out when it is written: msgspec knows a default by being the very object."""


class Timer:
    """Of one request, over all of its tries."""

    __slots__ = ("connect", "first", "limited", "lost", "queue")

    def __init__(self) -> None:
        self.queue = 0.0
        self.limited = 0.0
        self.connect = 0.0
        self.first = 0.0
        self.lost = 0.0

    def held(self, seconds: float, limited: float) -> None:
        """It was not sent for so long; so much of that because of a rate limit."""
        self.queue += seconds
        self.limited += min(limited, seconds)

    def failed(self, seconds: float) -> None:
        """A try came to nothing: what it took is no part of the next."""
        self.lost += seconds
        self.connect = self.first = 0.0

    def timing(self) -> Timing:
        """To be recorded: what was nothing is left out, so that the usual step pays for one number."""
        if not (self.first or self.queue or self.lost):
            return _NOTHING
        return Timing(
            queue=_rounded(self.queue) or _NOTHING.queue,
            limited=_rounded(self.limited) or _NOTHING.limited,
            connect=_rounded(self.connect) or _NOTHING.connect,
            first=_rounded(self.first) or _NOTHING.first,
            lost=_rounded(self.lost) or _NOTHING.lost,
        )


under_way: ContextVar[Timer | None] = ContextVar("under_way", default=None)


def begin_timing() -> Timer:
    """For the request that this task makes next."""
    timer = Timer()
    under_way.set(timer)
    return timer


def _rounded(seconds: float) -> float:
    """`round(seconds, 4)` makes a text of it and reads that, also of nothing."""
    return round(seconds * _PER_SECOND) / _PER_SECOND if seconds else 0.0
