"""How long each phase of one request takes.

The caller starts a `Timer` with `begin_timing`. Code that queues or sends the request finds it in the context variable
`under_way`. A request outside of any step has no timer.
"""

from contextvars import ContextVar

from holdfast.records import Timing, rounded

_TENTHS_OF_MS = 10_000  # finer digits are noise, and every record would store them
_SHORTEST_SECONDS = 1e-6
_NOTHING = Timing()
"""Its zeros are omitted when it is encoded: msgspec knows a default by its identity, so `timing` uses these."""


class Timer:
    """The phases of one request, over all of its tries."""

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
        """Add seconds that it waited before it was sent; `limited` of them because of a rate limit."""
        self.queue += seconds
        self.limited += min(limited, seconds)

    def was_in_job(self, seconds: float) -> None:
        """Add seconds that it waited for a batch job. They say nothing about the model and belong to no phase."""
        self.in_job += seconds

    def seconds(self, now: float) -> float:
        """How long it was in flight, by the clock that it began with. Never 0, which would mean "not measured"."""
        return max(rounded(now - self.began - self.queue - self.in_job), _SHORTEST_SECONDS)

    def failed(self, seconds: float) -> None:
        """A try failed: its time counts as lost, and the phases of the next try start at 0."""
        self.lost += seconds
        self.connect = self.first = 0.0

    def timing(self) -> Timing:
        """For the record. Zeros are omitted, so that the usual step stores one number."""
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
    """Start a timer for the next request of this task."""
    timer = Timer(now)
    under_way.set(timer)
    return timer
