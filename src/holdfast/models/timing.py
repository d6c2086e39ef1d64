"""Where the time of one request goes. Whoever asks begins it; who holds the request back or sends it finds it in
`under_way`. A request outside of any step has none.
"""

from contextvars import ContextVar

from holdfast.records.durations import rounded
from holdfast.records.facts import Timing

_TENTHS_OF_MS = 10_000  # more is noise, and every step pays for it
_SHORTEST_SECONDS = 1e-6
_NOTHING = Timing()
"""Its zeros are left out when it is written: msgspec knows a default by being the very object."""


class Timer:
    """Of one request, over all of its tries."""

    __slots__ = ("began", "connect", "first", "in_job", "limited", "lost", "queue")

    def __init__(self, began: float = 0.0) -> None:
        self.began = began
        self.queue = 0.0
        self.limited = 0.0
        self.connect = 0.0
        self.first = 0.0
        self.lost = 0.0
        self.in_job = 0.0

    def held(self, seconds: float, limited: float = 0.0) -> None:
        """It was not sent for so long; so much of that because of a rate limit."""
        self.queue += seconds
        self.limited += min(limited, seconds)

    def was_in_job(self, seconds: float) -> None:
        """It waited for a job of a batch API: that says nothing of the model, and is in no phase."""
        self.in_job += seconds

    def seconds(self, now: float) -> float:
        """How long it was under way, by the clock that it began with. Never nothing: that would be no time at all."""
        return max(rounded(now - self.began - self.queue - self.in_job), _SHORTEST_SECONDS)

    def failed(self, seconds: float) -> None:
        """A try came to nothing: what it took is no part of the next."""
        self.lost += seconds
        self.connect = self.first = 0.0

    def timing(self) -> Timing:
        """To be recorded: what was nothing is left out, so that the usual step pays for one number."""
        if not (self.first or self.queue or self.lost):
            return _NOTHING
        return Timing(
            queue=rounded(self.queue, _TENTHS_OF_MS) or _NOTHING.queue,
            limited=rounded(self.limited, _TENTHS_OF_MS) or _NOTHING.limited,
            connect=rounded(self.connect, _TENTHS_OF_MS) or _NOTHING.connect,
            first=rounded(self.first, _TENTHS_OF_MS) or _NOTHING.first,
            lost=rounded(self.lost, _TENTHS_OF_MS) or _NOTHING.lost,
        )


under_way: ContextVar[Timer | None] = ContextVar("under_way", default=None)


def begin_timing(now: float = 0.0) -> Timer:
    """For the request that this task makes next."""
    timer = Timer(now)
    under_way.set(timer)
    return timer
