"""Durable steps: the result of every call of a solver is in the journal before the solver sees it. After a crash it is
delivered again.

A step is identified by the digest of its request and by how often that request was made before in its scope. A replay
delivers recorded steps one at a time, in journal order, and lets the sample run until it waits again; so races inside a
sample come out as they did. No request goes live while the sample waits for a recorded one. A call that the solver
cancelled is recorded as cancelled and is not answered in a replay. Recorded steps that the sample does not request
again are orphaned: they are counted and reported. A crash between a response and its record loses that response only.
"""

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from holdfast.errors import HoldfastError
from holdfast.journal import Journal
from holdfast.models import Stopwatch, running
from holdfast.records import (
    Failure,
    FileChanges,
    RoleSpent,
    Spent,
    Step,
    StepId,
    StepStarted,
    ToolCall,
    as_stored,
    checked,
    draft,
    rounded,
)

_SETTLED_ROUNDS = 10
"""A sample counts as waiting after this many rounds of the event loop without a new request."""
_HOLD_SECONDS = 30.0
"""How long, beyond its recorded duration, a call that was cancelled then is held back before it goes live."""
_BRANCH_SECONDS = 0.25
"""How long a recorded step waits for an earlier one that the sample has not requested yet."""
_OUTSIDE_SECONDS = 0.02
"""How long code outside this event loop may take from a response to its next request, while others wait."""
_REFUSALS = 3
"""How often a closed scope raises CancelledError; later callers wait forever."""

_NO_USAGE = Spent().saved  # the default itself, which is not written
_encode = msgspec.json.Encoder().encode
_step = msgspec.json.Decoder(Step)

Identity = tuple[str, int]
T = TypeVar("T")


class StepFailedError(HoldfastError):
    """A call failed. The solver sees it live and at every replay."""

    def __init__(self, failure: Failure, seconds: float = 0.0) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure = failure
        self.seconds = seconds
        """How long it took."""


class RecordedStep(msgspec.Struct, frozen=True):
    """A step in the journal. `at`: when it ended, in seconds since 1970; 0 if unknown."""

    n: int
    step: Step
    at: float = 0.0


class UnrepeatableCall(msgspec.Struct, frozen=True):
    """A call that must not be made twice. `recover` finds out the result if it may have been made already."""

    called: ToolCall
    recover: Callable[[], Awaitable[Step]]


class UnconfirmedCall(msgspec.Struct, frozen=True):
    """A call that must not be made twice and that an earlier process announced without recording a result."""

    n: int
    started: StepStarted


class TakenStep(msgspec.Struct, frozen=True):
    """A recorded step, and a copy that the solver may change."""

    n: int
    step: Step
    copy: Step


class Scope(msgspec.Struct, frozen=True):
    """What steps belong to: `solve/<attempt>` or `score/<evaluation>/<attempt>` of one key."""

    o: int
    key: str
    name: str


class Steps:
    """The steps of one scope, live and replayed."""

    note_files: Callable[[FileChanges], None] | None = None
    """Called with the changes of a step in the sandbox when it is delivered, live or replayed."""
    calling = 0
    """Number of tool calls under way."""
    # Class attributes, because most samples never change them: every sample creates a Steps, and CPython creates
    # objects with more than 30 instance attributes much more slowly.
    _begun = 0
    _in_flight = 0
    _programs = 0
    _turn: asyncio.Lock | None = None  # created when two calls are in flight
    _asked = 0  # grows with every request of the sample, and when it stops waiting for one
    _changed: asyncio.Event | None = None  # created when there is something to replay
    _driver: asyncio.Task[None] | None = None
    _outside = False
    _delivered_at = -math.inf
    _closing = False
    _refused = 0
    _draining = False
    _quiet: asyncio.Future[None] | None = None  # created by `finish`
    _live = 0
    _replayed = 0
    _usage = _NO_USAGE
    _saved = _NO_USAGE
    _seconds = 0.0

    def __init__(
        self,
        scope: Scope,
        journal: Journal,
        recorded: Sequence[RecordedStep] = (),
        unsure: Sequence[UnconfirmedCall] = (),
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`loop`: the running one, if the caller knows it; get_running_loop is a system call (getpid)."""
        self._scope = scope
        self._journal = journal
        self._loop = loop or asyncio.get_running_loop()
        self._clock = self._loop.time
        self.watch = Stopwatch(self._clock)
        self._counts: dict[str, int] = {}
        self._left = _last_of_each(recorded) if recorded else []
        self._unsure = {(each.started.q, each.started.c) for each in unsure}
        self.recorded_seconds = working_seconds(self._left) if recorded else 0.0
        self._orphans: list[RecordedStep] = []
        self._asked_at: dict[Identity, float] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._callers: set[asyncio.Task[object]] = set()
        self._waiting: dict[Identity, asyncio.Future[RecordedStep | None]] = {}
        self.moved = self._clock()
        """When this scope last made a request or received a response, by the loop's clock."""
        self._wall = time.time() - self.moved
        self.succeeded: list[RecordedStep] = []  # live in this scope; the next attempt may replay them
        self.begun: list[UnconfirmedCall] = []  # announcements made in this scope
        self._roles: dict[str, RoleSpent] = {}

    async def take(
        self, request: str, ask: Callable[[], Awaitable[Step]], once: "UnrepeatableCall | None" = None
    ) -> TakenStep:
        """Return the step of a request: recorded, or made live and recorded. StepFailedError if it failed."""
        if self._closing:
            self._refused += 1
            if self._refused > _REFUSALS:  # code that retries in a loop must not block the event loop
                await asyncio.get_running_loop().create_future()
            raise asyncio.CancelledError
        count = self._counts.get(request, 0)
        self._counts[request] = count + 1
        self._begun += 1
        caller = asyncio.current_task(self._loop)
        assert caller is not None
        self._callers.add(caller)
        try:
            recorded = await self._replay((request, count)) if self._left else None
            if recorded is None:
                live = ask if once is None else functools.partial(self._ask_once, ask, once, request, count)
                recorded, copy = await self._ask(live, request, count)
                usage = recorded.step.usage
                self._usage += usage
                self._note_role(recorded.step, RoleSpent(usage=usage))
                if is_kept(recorded.step):
                    self.succeeded.append(recorded)
            else:
                copy = _copy(recorded.step)
                self._replayed += 1
                saved = recorded.step.usage
                self._saved += saved
                self._note_role(recorded.step, RoleSpent(saved=saved))
        finally:
            self._callers.discard(caller)
        self._seconds += recorded.step.seconds
        if recorded.step.files is not None and self.note_files is not None:
            self.note_files(recorded.step.files)
        if recorded.step.failure is not None:
            raise StepFailedError(recorded.step.failure, recorded.step.seconds)
        return TakenStep(recorded.n, recorded.step, copy)

    @property
    def scope(self) -> Scope:
        return self._scope

    def next_id(self, request: str) -> StepId:
        """Return the id that the next step with this request will get."""
        return StepId(self._scope.o, self._scope.name, request, self._counts.get(request, 0))

    def spent(self) -> Spent:
        """Return what this scope has used so far. Recorded steps that were not requested yet count as orphaned."""
        spent = Spent(
            live=self._live,
            replayed=self._replayed,
            usage=self._usage,
            saved=self._saved,
            seconds=rounded(self._seconds),
            roles=dict(self._roles),
        )
        if not self._orphans and not self._left:
            return spent
        left = (*self._orphans, *self._left)
        orphans = [each.step for each in left if not each.step.cancelled and not each.step.origin]
        usage = sum((each.usage for each in orphans), _NO_USAGE)
        roles = functools.reduce(_with_orphan, orphans, spent.roles)
        return msgspec.structs.replace(spent, orphaned=len(orphans), orphaned_usage=usage, roles=roles)

    def _note_role(self, step: Step, part: RoleSpent) -> None:
        """Add to the use of a role; steps of the evaluated model have none."""
        if step.asked is not None and step.asked.role:
            self._roles[step.asked.role] = self._roles.get(step.asked.role, RoleSpent()) + part

    @property
    def calls(self) -> int:
        """How many calls are under way or wait for their turn in a replay. While draining at least one, so that the
        watchdog does not take the wait for a stall.
        """
        held_back = self._draining
        return self._in_flight + len(self._waiting) + self._programs + held_back

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """While a tool is being called. A stopping run waits for it within its grace period."""
        self.calling += 1
        try:
            yield
        finally:
            self.calling -= 1

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """While an external program works for the sample, which may make no request for long."""
        self._programs += 1
        try:
            yield
        finally:
            self._programs -= 1
            self.moved = self._clock()

    @property
    def key(self) -> str:
        return self._scope.key

    def be_patient(self) -> None:
        """Expect requests from threads and other processes. Then a quiet event loop does not mean that the sample
        waits: the loop sees nothing of them before the request arrives.
        """
        self._outside = True

    def drain(self) -> None:
        """Start no new calls; those under way may end. New ones wait until the scope is closed."""
        self._draining = True

    async def finish(self) -> None:
        """Start no new calls, and wait until those under way are recorded: they are paid for."""
        self.drain()
        if self._in_flight:
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet

    def close(self) -> None:
        """Cancel all calls. From here on a cancellation is not the solver's own, so it is not recorded."""
        self._closing = True
        self.note_files = None  # breaks a reference cycle: else both live until a garbage collection
        if self._driver is not None:
            self._driver.cancel()
        for caller in (*self._callers, *self._settling):
            caller.cancel()

    @property
    def is_busy(self) -> bool:
        """Whether a caller is still waiting."""
        return bool(self._callers)

    async def ended(self, seconds: float) -> None:
        """Wait, at most so long, for callers that `close` cancelled: they may still use the attempt's resources."""
        others = self._callers - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=seconds)

    async def _ask(self, ask: Callable[[], Awaitable[Step]], request: str, count: int) -> tuple[RecordedStep, Step]:
        if self._draining:
            await asyncio.get_running_loop().create_future()  # until `close` cancels it
        self._live += 1
        self._in_flight += 1
        started = self.moved = self._clock()
        running.set(self.watch)
        self.watch.begin()
        try:
            answered = await ask()
            scope = self._scope
            self.moved = self._clock()
            seconds = answered.seconds or rounded(
                self.moved - started
            )  # a step that waited for its turn has measured itself
            step = msgspec.structs.replace(answered, o=scope.o, scope=scope.name, q=request, c=count, seconds=seconds)
            record, copy = checked("step", step, scope.key)
            position = await self._journal.append(record)  # durable from here on; only then may the solver see it
            if self._in_flight > 1 or self._turn is not None:
                await self._wait_for_turn()
        except asyncio.CancelledError:
            # A response that arrived at the same moment may already be queued for the journal: the later record counts.
            if not self._closing:
                seconds = rounded(self._clock() - started)
                gone = Step(self._scope.o, self._scope.name, request, count, cancelled=True, seconds=seconds)
                self._journal.append_soon(draft("step", gone, self._scope.key))
            raise
        finally:
            self.watch.end()
            self._in_flight -= 1
            if self._quiet is not None and not self._in_flight and not self._quiet.done():
                self._quiet.set_result(None)
        return RecordedStep(position.n, step, self._wall + self.moved), copy

    async def _ask_once(
        self, ask: Callable[[], Awaitable[Step]], once: "UnrepeatableCall", request: str, count: int
    ) -> Step:
        """Announce the call durably, then make it. A crash in between leaves an announcement without a step: then the
        call is not repeated, and `recover` decides.
        """
        if (request, count) in self._unsure:
            return await once.recover()
        scope = self._scope
        started = StepStarted(scope.o, scope.name, request, count, once.called)
        position = await self._journal.append(checked("step.started", started, scope.key)[0])
        self.begun.append(UnconfirmedCall(position.n, started))
        return await ask()

    async def _wait_for_turn(self) -> None:
        """Deliver concurrent responses one at a time, each after the sample has settled, as a replay does."""
        turn = self._turn = self._turn or asyncio.Lock()
        await turn.acquire()
        settling = asyncio.ensure_future(self._release_when_settled(turn))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    async def _release_when_settled(self, turn: asyncio.Lock) -> None:
        try:
            await self._settle()
            if self._outside:
                await self._is_quiet_outside()
        finally:
            turn.release()

    async def _replay(self, identity: Identity) -> RecordedStep | None:
        """Wait for this request's turn; return None if it was not recorded and may go live."""
        waiting: asyncio.Future[RecordedStep | None] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = waiting
        self._asked_at[identity] = asyncio.get_running_loop().time()
        self._touch()
        if self._driver is None:
            self._driver = asyncio.ensure_future(self._drive())
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and (found := waiting.result()) is not None:
                self._orphans.append(found)
            for each in [each for each in self._left if _identity(each.step) == identity]:
                self._left.remove(each)  # the same identity cannot come again
                self._orphans.append(each)
            raise
        finally:
            del self._waiting[identity]
            self._touch()

    def _touch(self) -> None:
        self._asked += 1
        if self._changed is not None:
            self._changed.set()

    async def _drive(self) -> None:
        """Deliver the recorded steps in their order, then let all other requests go live."""
        changed = self._changed = asyncio.Event()
        while self._left:
            await self._settle()
            changed.clear()
            awaited = [each for each in self._left if self._is_awaited(_identity(each.step))]
            if self._may_come_first(awaited) and not await self._is_quiet_outside():
                continue
            if not awaited:
                self._release_to_live()
                if self._left:
                    await changed.wait()
            elif (awaited[0] is self._left[0] or awaited[0].step.origin) and not awaited[0].step.cancelled:
                self._deliver(awaited[0])  # steps copied by a fork have no order
            else:
                await self._wait_for_first(awaited, changed)
        await self._settle()
        self._release_to_live()

    def _may_come_first(self, awaited: list[RecordedStep]) -> bool:
        """Whether external code, which is slower than the loop, could still make a request that comes first. Matters
        where a request would go live, or where two responses would be delivered at once.
        """
        if not self._outside:
            return False
        if awaited:
            return self._asked_at[_identity(awaited[0].step)] <= self._delivered_at
        return any(not waiting.done() for waiting in self._waiting.values())

    async def _is_quiet_outside(self) -> bool:
        seen = self._asked
        await asyncio.sleep(_OUTSIDE_SECONDS)
        return self._asked == seen

    def _deliver(self, found: RecordedStep) -> None:
        """Deliver a recorded step. Steps before it that were skipped move to the end: they may still be requested."""
        index = self._left.index(found)
        self._left = self._left[index + 1 :] + self._left[:index]
        self._delivered_at = asyncio.get_running_loop().time()
        self._waiting[_identity(found.step)].set_result(None if found.step.cancelled else found)

    def _release_to_live(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    async def _wait_for_first(self, awaited: list[RecordedStep], changed: asyncio.Event) -> None:
        """An earlier step is not requested yet: the solver will cancel it, or a sleeping branch will request it.

        It was recorded before each of `awaited`, so wait no longer than the first of these took then.
        """
        due, found = min(((self._due(each), each) for each in awaited), key=lambda pair: pair[0])
        try:
            await asyncio.wait_for(changed.wait(), max(0.0, due - asyncio.get_running_loop().time()))
        except TimeoutError:
            if self._is_awaited(_identity(found.step)):
                self._deliver(found)

    def _due(self, each: RecordedStep) -> float:
        slack = _HOLD_SECONDS if each.step.cancelled else _BRANCH_SECONDS
        return self._asked_at[_identity(each.step)] + each.step.seconds + slack

    def _is_awaited(self, identity: Identity) -> bool:
        waiting = self._waiting.get(identity)
        return waiting is not None and not waiting.done()

    async def _settle(self) -> None:
        """Return when the sample has run until it makes no new requests."""
        quiet = 0
        seen = self._asked
        while quiet < _SETTLED_ROUNDS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._asked == seen else 0
            seen = self._asked


def is_kept(step: Step) -> bool:
    """Whether the next attempt replays a step after a failure of infrastructure: answers, and the results of tools even
    if they failed, because the model has seen them.
    """
    return not step.cancelled and (step.failure is None or step.kind != "generate")


def working_seconds(recorded: Sequence[RecordedStep]) -> float:
    """Return how long the steps took. Steps that overlapped count once, if their end times are known."""
    total, until = sum(each.step.seconds for each in recorded if not each.at), -math.inf
    for began, ended in sorted((each.at - each.step.seconds, each.at) for each in recorded if each.at):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def _identity(step: Step) -> Identity:
    return step.q, step.c


def _last_of_each(recorded: Sequence[RecordedStep]) -> list[RecordedStep]:
    """Keep the last record of each identity."""
    last = {_identity(each.step): each for each in recorded}
    return [each for each in recorded if last[_identity(each.step)] is each]


def _with_orphan(roles: dict[str, RoleSpent], step: Step) -> dict[str, RoleSpent]:
    role = step.asked.role if step.asked is not None else ""
    return {**roles, role: roles.get(role, RoleSpent()) + RoleSpent(orphaned_usage=step.usage)} if role else roles


def _copy(step: Step) -> Step:
    return _step.decode(_encode(as_stored(step)))
