"""Durable steps: the result of every call of a solver is in the journal before the solver sees it. After a crash it is
delivered again.

A step is identified by the digest of its request and by how often that request was made before in its scope. Recorded
steps are delivered in the order of the journal (`replay`). A call that the solver cancelled is recorded as cancelled
and is not answered in a replay. Recorded steps that the sample does not request again are orphaned: they are counted
and reported. A crash between a response and its record loses that response only.
"""

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from holdfast.errors import BadRecordError, HoldfastError
from holdfast.journal import Journal
from holdfast.models import AskFailedError, ModelCall, Stopwatch, clock_of, current_call
from holdfast.records import (
    Answer,
    Failure,
    FileChanges,
    RoleSpent,
    Spent,
    Step,
    StepId,
    StepStarted,
    StoredRequest,
    ToolCall,
    as_stored,
    checked,
    draft,
    rounded,
)
from holdfast.solve.conversations import RequestMessages
from holdfast.solve.replay import Identity, RecordedStep, ReplayOrder

_REFUSALS = 3
"""How often a closed scope raises CancelledError; later callers wait forever."""

_NO_USAGE = Spent().saved  # the default itself, which is not written
_encode = msgspec.json.Encoder().encode
_step = msgspec.json.Decoder(Step)


class StepFailedError(HoldfastError):
    """A call failed. The solver sees it live and at every replay."""

    def __init__(self, failure: Failure, seconds: float = 0.0) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure = failure
        self.seconds = seconds
        """How long it took."""


class UnrepeatableCall(msgspec.Struct, frozen=True):
    """A call that must not be made twice. `recover` finds out the result if it may have been made already."""

    called: ToolCall
    recover: Callable[[], Awaitable[Step]]
    ready: Callable[[], Awaitable[None]]
    """Returns when it may be announced."""


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


class StepMeter:
    """Counts what the steps of an attempt, or of one part of it, have used."""

    steps = 0
    tokens = 0
    seconds = 0.0
    dollars = 0.0


class GenerateCall(ModelCall):
    """A call to a model that becomes a step."""

    stored: StoredRequest | None = None
    """The request as it is recorded; set when the call goes live."""

    def __init__(
        self,
        request: RequestMessages,
        params: dict[str, Any],
        tools: list[dict[str, Any]],
        key: str,
        store: Callable[[RequestMessages], StoredRequest],
    ) -> None:
        super().__init__(request.messages, params, tools, key)
        self.request = request
        self._store = store

    def begin(self, now: float, watch: Stopwatch) -> None:
        """The call goes live."""
        self.began, self.watch = now, watch
        self.stored = self._store(self.request)
        current_call.set(self)


class Steps:
    """The steps of one scope, live and replayed."""

    note_files: Callable[[FileChanges], None] | None = None
    """Called with the changes of a step in the sandbox when it is delivered, live or replayed."""
    calling = 0
    """Number of tool calls under way."""
    recorded_seconds = 0.0
    """How long the recorded steps took."""
    # Class attributes are the defaults: every sample creates a Steps, most samples never change these, and an object
    # with few attributes is created faster.
    begun: Sequence[UnconfirmedCall] = ()
    """Announcements made in this scope."""
    _replay: ReplayOrder | None = None
    _unsure: Collection[Identity] = ()
    _programs = 0
    _turn: asyncio.Lock | None = None  # created when two calls are in flight
    _settling: "set[asyncio.Task[None]] | None" = None
    _closing = False
    _refused = 0
    _draining = False
    _quiet: asyncio.Future[None] | None = None  # created by `finish`
    _live = 0
    _replayed = 0
    _usage = _NO_USAGE
    _saved = _NO_USAGE
    _seconds = 0.0
    _roles: Mapping[str, RoleSpent] = MappingProxyType({})

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
        self.key = scope.key
        self._journal = journal
        self._loop = loop or asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self.watch = Stopwatch(self._clock)
        self._counts: dict[str, int] = {}
        self._callers: set[asyncio.Task[object]] = set()
        self.moved = self._clock()
        """When this scope last made a request or received a response, by the loop's clock."""
        self.succeeded: list[RecordedStep] = []  # live in this scope; the next attempt may replay them
        if recorded:
            self._replay = ReplayOrder(recorded)
            self.recorded_seconds = working_seconds(self._replay.left)
        if unsure:
            self._unsure = {(each.started.q, each.started.c) for each in unsure}

    def take(
        self,
        request: str,
        make: Callable[[], Awaitable[Any]],
        call: GenerateCall | None = None,
        once: UnrepeatableCall | None = None,
        meters: Sequence[StepMeter] = (),
    ) -> Coroutine[Any, Any, TakenStep]:
        """Return the step of a request: recorded, or made live and recorded. StepFailedError if it failed.

        `make` makes it live: for a `call` to a model it returns the answer, otherwise the step. `meters` count its
        duration, live or not. Not `async`, only to be one frame less on the way of every request; await it at once.
        """
        if self._closing:
            return self._refuse()
        count = self._counts.get(request, 0)
        self._counts[request] = count + 1
        if once is not None:
            make = functools.partial(self._make_once, make, once, request, count)
        if self._replay is not None and self._replay.left:
            return self._take_recorded(request, count, make, call, meters)
        return self._make(request, count, make, call, meters)

    async def _take_recorded(
        self,
        request: str,
        count: int,
        make: Callable[[], Awaitable[Any]],
        call: GenerateCall | None,
        meters: Sequence[StepMeter],
    ) -> TakenStep:
        """Wait for the turn of a recorded step; make it live if it was not recorded."""
        assert self._replay is not None
        caller = self._register()
        try:
            found = await self._replay.take((request, count))
        finally:
            self._callers.discard(caller)
        if found is None:
            return await self._make(request, count, make, call, meters)
        step = found.step
        self._replayed += 1
        self._saved += step.usage
        if step.asked is not None and step.asked.role:
            self._note_role(step.asked.role, RoleSpent(saved=step.usage))
        copy = _step.decode(_encode(as_stored(step)))  # the solver may change what it gets
        return self._deliver(found.n, step, copy, meters)

    async def _make(
        self,
        request: str,
        count: int,
        make: Callable[[], Awaitable[Any]],
        call: GenerateCall | None,
        meters: Sequence[StepMeter],
    ) -> TakenStep:
        """Make a call and record it."""
        caller = self._register()
        is_live, started = False, 0.0
        try:
            if self._draining:
                await self._loop.create_future()  # until `close` cancels it
            is_live = True
            self._live += 1
            self.watch.asked += 1
            if self.watch.holding:
                self.watch.update()
            started = self.moved = self._clock()
            if call is not None:
                call.begin(started, self.watch)
            try:
                made = await make()
            except AskFailedError as error:
                made = error
            step = self._as_step(made, call, request, count, started)
            record, copy = checked("step", step, self._scope.key)
            # Durable when this returns. Only then may the solver see it.
            position = await self._journal.append(record)
            if self.watch.asked > 1 or self._turn is not None:
                await self._wait_for_turn()
        except asyncio.CancelledError:
            if is_live:
                self._note_cancelled(request, count, started)
            raise
        finally:
            self._callers.discard(caller)
            if is_live:
                self._end_call()
        self._note_live(position.n, step)
        return self._deliver(position.n, step, copy, meters)

    def _note_live(self, n: int, step: Step) -> None:
        if step.answer is not None:
            usage = step.usage
            self._usage = usage if self._usage is _NO_USAGE else self._usage + usage
            if step.asked is not None and step.asked.role:
                self._note_role(step.asked.role, RoleSpent(usage=usage))
        if is_kept(step):
            self.succeeded.append(RecordedStep(n, step, time.time()))

    def _register(self) -> "asyncio.Task[object]":
        """Note that the current task waits for a step: `close` cancels it."""
        caller = asyncio.current_task(self._loop)
        assert caller is not None
        self._callers.add(caller)
        return caller

    def _end_call(self) -> None:
        self.watch.asked -= 1
        if self.watch.holding:
            self.watch.update()
        if self._quiet is not None and not self.watch.asked and not self._quiet.done():
            self._quiet.set_result(None)

    def _deliver(self, n: int, step: Step, copy: Step, meters: Sequence[StepMeter]) -> TakenStep:
        self._seconds += step.seconds
        for meter in meters:
            meter.seconds += step.seconds
        if step.files is not None and self.note_files is not None:
            self.note_files(step.files)
        if step.failure is not None:
            raise StepFailedError(step.failure, step.seconds)
        return TakenStep(n, step, copy)

    def _as_step(self, made: Any, call: GenerateCall | None, request: str, count: int, started: float) -> Step:
        """Return what was made as the step to record: an answer or an error of a `call`, or a step of a tool."""
        scope = self._scope
        now = self.moved = self._clock()
        if call is None:
            seconds = made.seconds or rounded(now - started)  # a step that waited for its turn has measured itself
            step: Step = msgspec.structs.replace(made, o=scope.o, scope=scope.name, q=request, c=count, seconds=seconds)
            return step
        failure = None
        if isinstance(made, AskFailedError):
            call.tries, failure, made = made.tries, made.failure, None
        elif not isinstance(made, Answer):
            raise BadRecordError(f"the model's provider returned {type(made).__name__}, not an answer")
        return Step(
            scope.o,
            scope.name,
            request,
            count,
            asked=call.stored,
            answer=made,
            failure=failure,
            seconds=call.seconds(now),
            timing=call.timing(),
            tries=call.tries,
            batch=call.job,
        )

    def _note_cancelled(self, request: str, count: int, started: float) -> None:
        """Record that the solver cancelled a call. A response that arrived at the same moment may already be queued for
        the journal: the later record counts.
        """
        if not self._closing:
            scope, seconds = self._scope, rounded(self._clock() - started)
            gone = Step(scope.o, scope.name, request, count, cancelled=True, seconds=seconds)
            self._journal.append_soon(draft("step", gone, scope.key))

    async def _refuse(self) -> TakenStep:
        """The scope is closed: nothing more is sent."""
        self._refused += 1
        if self._refused > _REFUSALS:  # code that retries in a loop must not block the event loop
            await self._loop.create_future()
        raise asyncio.CancelledError

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
        if self._replay is None or not (self._replay.orphans or self._replay.left):
            return spent
        left = (*self._replay.orphans, *self._replay.left)
        orphans = [each.step for each in left if not each.step.cancelled and not each.step.origin]
        usage = sum((each.usage for each in orphans), _NO_USAGE)
        roles = functools.reduce(_with_orphan, orphans, spent.roles)
        return msgspec.structs.replace(spent, orphaned=len(orphans), orphaned_usage=usage, roles=roles)

    def _note_role(self, role: str, part: RoleSpent) -> None:
        """Add to the use of a role; steps of the evaluated model have none."""
        self._roles = {**self._roles, role: self._roles.get(role, RoleSpent()) + part}

    @property
    def calls(self) -> int:
        """How many calls are under way or wait for their turn in a replay. While draining at least one, so that the
        watchdog does not take the wait for a stall.
        """
        replayed = 0 if self._replay is None else self._replay.waiting
        return self.watch.asked + replayed + self._programs + self._draining

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

    def be_patient(self) -> None:
        """Expect requests from threads and other processes."""
        self._replay = self._replay or ReplayOrder()
        self._replay.outside = True

    def drain(self) -> None:
        """Start no new calls; those under way may end. New ones wait until the scope is closed."""
        self._draining = True

    async def finish(self) -> None:
        """Start no new calls, and wait until those under way are recorded: they are paid for."""
        self.drain()
        if self.watch.asked:
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet

    def close(self) -> None:
        """Cancel all calls. From here on a cancellation is not the solver's own, so it is not recorded."""
        self._closing = True
        self.note_files = None  # breaks a reference cycle: else both live until a garbage collection
        if self._replay is not None:
            self._replay.close()
        for caller in (*self._callers, *(self._settling or ())):
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

    async def _make_once(
        self, make: Callable[[], Awaitable[Step]], once: "UnrepeatableCall", request: str, count: int
    ) -> Step:
        """Announce the call durably, then make it. A crash in between leaves an announcement without a step: then the
        call is not repeated, and `recover` decides.
        """
        if (request, count) in self._unsure:
            return await once.recover()
        await once.ready()
        scope = self._scope
        started = StepStarted(scope.o, scope.name, request, count, once.called)
        position = await self._journal.append(checked("step.started", started, scope.key)[0])
        self.begun = (*self.begun, UnconfirmedCall(position.n, started))
        return await make()

    async def _wait_for_turn(self) -> None:
        """Deliver concurrent responses one at a time, each after the sample has settled, as a replay does."""
        turn = self._turn = self._turn or asyncio.Lock()
        await turn.acquire()
        settling = asyncio.ensure_future(self._release_when_settled(turn))
        tasks = self._settling = self._settling or set()
        tasks.add(settling)
        settling.add_done_callback(tasks.discard)

    async def _release_when_settled(self, turn: asyncio.Lock) -> None:
        replay = self._replay = self._replay or ReplayOrder()
        try:
            await replay.settle()
            if replay.outside:
                await replay.is_quiet_outside()
        finally:
            turn.release()


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


def _with_orphan(roles: dict[str, RoleSpent], step: Step) -> dict[str, RoleSpent]:
    role = step.asked.role if step.asked is not None else ""
    return {**roles, role: roles.get(role, RoleSpent()) + RoleSpent(orphaned_usage=step.usage)} if role else roles
