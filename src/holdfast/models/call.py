"""One request of a sample to a model, on its way from the solver to the wire and back.

A `ModelCall` holds what is sent, measures each phase over all tries, and collects what came of it. It is passed down as
an argument. Code that only delays or measures a request (a queue, the HTTP connection) finds it in the context variable
`current_call`; a request outside of any step has none.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from holdfast.records import Message, StepId, Timing, rounded

if TYPE_CHECKING:
    from holdfast.models.pacing.stopwatch import Stopwatch

_TENTHS_OF_MS = 10_000  # finer digits are noise, and every record would store them
_SHORTEST_SECONDS = 1e-6
_OWNERSHIP_PAUSE_SECONDS = 0.1
_NOTHING = Timing()
"""Its zeros are omitted when it is encoded: msgspec knows a default by its identity, so `timing` uses these."""

MaySend = Callable[[], bool]
"""Whether this process certainly owns the run: no other can have taken it over."""


async def wait_to_send(may_send: MaySend | None) -> None:
    """Return when this process may send. Every path to a server waits here: requests, batch jobs, calls of tools.

    If another process has taken the run over, this one finds that out while it waits, and stops before it has paid for
    anything. None: no other process can take the run over.
    """
    while may_send is not None and not may_send():  # noqa: ASYNC110 - set by a thread that knows no event loop
        await asyncio.sleep(_OWNERSHIP_PAUSE_SECONDS)


class ModelCall:
    """One request, and all of its tries."""

    # Class attributes are the defaults. Most calls never wait, fail or join a batch job, so they never set these, and
    # an object with few attributes is created faster.
    began = 0.0
    """When it was started, by the event loop's clock."""
    queue = 0.0
    limited = 0.0
    connect = 0.0
    first = 0.0
    lost = 0.0
    in_job = 0.0
    tries = 1
    """How many requests were sent for it."""
    job = ""
    """The batch job that answered it; empty if it was sent alone."""
    step: StepId | None = None
    """The step that it belongs to; only for models with batch jobs, which find earlier jobs by it."""
    watch: "Stopwatch | None" = None
    """The clock of its sample, which stops while all requests of the sample wait."""

    def __init__(
        self, messages: list[Message], params: dict[str, Any], tools: list[dict[str, Any]], key: str = ""
    ) -> None:
        self.messages = messages
        self.params = params
        self.tools = tools
        self.key = key
        """The key of its sample."""

    @property
    def sample(self) -> str:
        """The sample: equal for all its repeats and steps, which go to the same server if there are several."""
        return self.key.rpartition("/")[0]

    def held(self, seconds: float, limited: float = 0.0) -> None:
        """Add seconds that it waited before it was sent; `limited` of them because of a rate limit."""
        self.queue += seconds
        self.limited += min(limited, seconds)

    def was_in_job(self, seconds: float) -> None:
        """Add seconds that it waited for a batch job. They say nothing about the model and belong to no phase."""
        self.in_job += seconds

    def failed(self, seconds: float) -> None:
        """A try failed: its time counts as lost, and the phases of the next try start at 0."""
        self.lost += seconds
        self.connect = self.first = 0.0

    def seconds(self, now: float) -> float:
        """How long it was in flight, by the clock that it began with. Never 0, which would mean "not measured"."""
        return max(rounded(now - self.began - self.queue - self.in_job), _SHORTEST_SECONDS)

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


current_call: ContextVar[ModelCall | None] = ContextVar("current_call", default=None)
"""The call that this task makes. A task that is created meanwhile inherits it."""


class Held:
    """The wait of a request before it is sent. A class, not a generator function: thousands wait at a time."""

    __slots__ = ("_began", "_call", "_clock", "_watch")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._call = current_call.get()
        self._watch = self._call.watch if self._call is not None else None
        self._began = 0.0

    def __enter__(self) -> None:
        if self._watch is not None:
            self._watch.hold()
        self._began = self._clock()

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.let_go()
        if self._call is not None:
            self._count(self._call, self._began, self._clock())

    def _count(self, call: ModelCall, began: float, now: float) -> None:
        call.held(now - began)


class HeldByLimiter(Held):
    """A wait for the model's limiter. `limited_seconds` says how much of it is due to a rate limit."""

    __slots__ = ("_limited", "_limited_seconds")

    def __init__(self, clock: Callable[[], float], limited_seconds: Callable[[float], float]) -> None:
        super().__init__(clock)
        self._limited_seconds = limited_seconds
        self._limited = limited_seconds(clock())

    def _count(self, call: ModelCall, began: float, now: float) -> None:
        call.held(now - began, self._limited_seconds(now) - self._limited)


class HeldInJob(Held):
    """A wait in a job of a batch API, or in one that is being gathered."""

    __slots__ = ()

    def _count(self, call: ModelCall, began: float, now: float) -> None:
        call.was_in_job(now - began)
