"""Durable steps: every call that a solver makes is recorded before it is told, and told again after a crash.

Identity: the digest of the request and how often it was made before in this scope. Replay hands out recorded steps
one at a time, in the order in which they were recorded, and lets the sample run until it waits again; so races inside
a sample come out as they did. Nothing goes live while the sample asks for something recorded. A call that the solver
cancelled is recorded as cancelled and never answered. What was recorded and is not asked for is orphaned: counted,
and told.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from holdfast.errors import HoldfastError
from holdfast.journal.marks import Position
from holdfast.records import Draft, draft
from holdfast.records.exchange import Usage
from holdfast.records.facts import Failure, Spent, Step

_SETTLED_ROUNDS = 10
"""A sample counts as waiting when so many rounds of the event loop brought no new request from it."""
_HOLD_SECONDS = 30.0
"""How much longer than it took then a call that the solver cancelled is held back, before it goes live after all."""
_BRANCH_SECONDS = 3.0
"""How long a recorded step is kept back for an earlier one that the sample has not asked for yet."""

Identity = tuple[str, int]
T = TypeVar("T")


class Journal(Protocol):
    """What steps need of a journal."""

    async def append(self, record: Draft) -> Position: ...

    def append_soon(self, record: Draft) -> None: ...


class StepFailedError(HoldfastError):
    """A call failed, and the solver sees it: live, and again at every replay."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure = failure


class Recorded(msgspec.Struct, frozen=True):
    """A step that an earlier attempt at this key left in the journal."""

    n: int
    step: Step


class Scope(msgspec.Struct, frozen=True):
    """Where steps belong: `solve/<attempt>` or `score/<evaluation>/<attempt>` of one key."""

    o: int
    key: str
    name: str


class Steps:
    """The steps of one scope, live and replayed."""

    def __init__(
        self,
        scope: Scope,
        journal: Journal,
        recorded: Sequence[Recorded] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scope = scope
        self._journal = journal
        self._clock = clock
        self._made: dict[str, int] = {}
        self._cancelled = {_identity(each.step): each.step for each in recorded if each.step.cancelled}
        self._left = [each for each in recorded if _identity(each.step) not in self._cancelled]
        self._waiting: dict[Identity, asyncio.Future[Recorded | None]] = {}
        self._held: set[Identity] = set()
        self._asked = 0  # grows whenever the sample asks for something or stops waiting for it
        self._news: asyncio.Event | None = None  # made when there is something to replay
        self._driver: asyncio.Task[None] | None = None
        self._closing = False
        self.succeeded: list[Recorded] = []  # asked live in this scope, for a further attempt
        self._live = 0
        self._replayed = 0
        self._usage = Usage()
        self._saved = Usage()
        self._seconds = 0.0

    async def take(self, request: str, ask: Callable[[], Awaitable[Step]]) -> Recorded:
        """The step for a request: recorded, or asked live and made durable. StepFailedError if it failed."""
        count = self._made.get(request, 0)
        self._made[request] = count + 1
        recorded = await self._replay((request, count)) if self._left or self._cancelled else None
        if recorded is None:
            recorded = await self._ask(ask, request, count)
            self._usage += _usage(recorded.step)
            if recorded.step.failure is None:
                self.succeeded.append(recorded)
        else:
            self._replayed += 1
            self._saved += _usage(recorded.step)
        self._seconds += recorded.step.seconds
        if recorded.step.failure is not None:
            raise StepFailedError(recorded.step.failure)
        return recorded

    def spent(self) -> Spent:
        """What this scope has used so far; what is still recorded and not asked for counts as orphaned."""
        return Spent(
            live=self._live,
            replayed=self._replayed,
            orphaned=len(self._left),
            usage=self._usage,
            saved=self._saved,
            seconds=round(self._seconds, 6),
        )

    @property
    def tokens(self) -> int:
        """Used by this attempt, live or replayed: limits count both."""
        used = self._usage + self._saved
        return used.input_tokens + used.output_tokens

    @property
    def count(self) -> int:
        return self._live + self._replayed

    def close(self) -> None:
        """From here on a cancelled call is our doing, not the solver's, and is not recorded."""
        self._closing = True
        if self._driver is not None:
            self._driver.cancel()

    async def _ask(self, ask: Callable[[], Awaitable[Step]], request: str, count: int) -> Recorded:
        self._live += 1
        started = self._clock()
        try:
            answered = await ask()
            step = msgspec.structs.replace(
                answered,
                o=self._scope.o,
                scope=self._scope.name,
                q=request,
                c=count,
                seconds=round(self._clock() - started, 6),
            )
            position = await self._journal.append(draft("step", step, self._scope.key))
        except asyncio.CancelledError:
            # An answer that came in the same moment may already be on its way to the journal: the later record counts.
            if not self._closing:
                seconds = round(self._clock() - started, 6)
                gone = Step(self._scope.o, self._scope.name, request, count, cancelled=True, seconds=seconds)
                self._journal.append_soon(draft("step", gone, self._scope.key))
            raise
        return Recorded(position.n, step)

    async def _replay(self, identity: Identity) -> Recorded | None:
        """Wait for this request's turn; None means that it was not recorded and may go live."""
        waiting: asyncio.Future[Recorded | None] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = waiting
        if identity in self._cancelled:
            self._hold(identity, waiting)
        self._touch()
        if self._driver is None:
            self._driver = asyncio.ensure_future(self._drive())
        try:
            return await waiting
        finally:
            del self._waiting[identity]
            self._held.discard(identity)
            self._cancelled.pop(identity, None)
            self._touch()

    def _hold(self, identity: Identity, waiting: "asyncio.Future[Recorded | None]") -> None:
        """The solver cancelled this one: do not answer, it will again. Should it not, ask live after a while."""
        self._held.add(identity)
        seconds = self._cancelled[identity].seconds + _HOLD_SECONDS

        def release() -> None:
            if not waiting.done():
                waiting.set_result(None)

        timer = asyncio.get_running_loop().call_later(seconds, release)
        waiting.add_done_callback(lambda _: timer.cancel())

    def _touch(self) -> None:
        self._asked += 1
        if self._news is not None:
            self._news.set()

    async def _drive(self) -> None:
        """Hand out what is recorded until the sample has it all, then let the rest go live."""
        news = self._news = asyncio.Event()
        while True:
            await self._settle()
            news.clear()
            found = next((each for each in self._left if self._awaited(_identity(each.step))), None)
            if found is not None:
                if found is self._left[0] or await self._nothing_comes_first(found, news):
                    self._left.remove(found)
                    self._waiting[_identity(found.step)].set_result(found)
                continue
            for identity, waiting in self._waiting.items():
                if identity not in self._held and not waiting.done():
                    waiting.set_result(None)
            if not self._left and not self._cancelled:
                return
            await news.wait()

    async def _nothing_comes_first(self, found: Recorded, news: asyncio.Event) -> bool:
        """An earlier step may still be asked for, by a branch that sleeps. Wait for it once, then pass it over."""
        try:
            await asyncio.wait_for(news.wait(), _BRANCH_SECONDS)
        except TimeoutError:
            index = self._left.index(found)
            self._left = self._left[index:] + self._left[:index]
            return self._awaited(_identity(found.step))
        return False

    def _awaited(self, identity: Identity) -> bool:
        waiting = self._waiting.get(identity)
        return waiting is not None and not waiting.done()

    async def _settle(self) -> None:
        """Return when the sample has had time to run on and asks for nothing new."""
        quiet = 0
        seen = self._asked
        while quiet < _SETTLED_ROUNDS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._asked == seen else 0
            seen = self._asked


def _identity(step: Step) -> Identity:
    return step.q, step.c


def _usage(step: Step) -> Usage:
    return step.answer.usage if step.answer is not None else Usage()
