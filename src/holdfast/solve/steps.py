"""Durable steps: every call that a solver makes is recorded before it is told, and told again after a crash.

Identity: the digest of the request and how often it was made before in this scope. Replay hands out recorded steps
one at a time, in the order in which they were recorded, and lets the sample run until it waits again; so races inside
a sample come out as they did. Nothing goes live while the sample asks for something recorded. A call that the solver
cancelled is recorded as cancelled and never answered. What was recorded and is not asked for is orphaned: counted,
and told.
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
from holdfast.journal.positions import Journal
from holdfast.models.pacing.stopwatch import Stopwatch, running
from holdfast.records import draft
from holdfast.records.durations import rounded
from holdfast.records.facts import (
    Called,
    Failure,
    Files,
    RoleSpent,
    Spent,
    Step,
    StepId,
    StepStarted,
    as_stored,
    checked,
)

_SETTLED_ROUNDS = 10
"""A sample counts as waiting when so many rounds of the event loop brought no new request from it."""
_HOLD_SECONDS = 30.0
"""How much longer than it took then a call that the solver cancelled is held back, before it goes live after all."""
_BRANCH_SECONDS = 0.25
"""How long a recorded step is kept back for an earlier one that the sample has not asked for yet."""
_OUTSIDE_SECONDS = 0.02
"""How long code outside of this event loop may take from an answer to its next request, while others wait."""
_REFUSALS = 3
"""So often a closed scope says no; then it keeps whoever asks."""

_NO_USAGE = Spent().saved  # the default itself, which is not written
_encode = msgspec.json.Encoder().encode
_step = msgspec.json.Decoder(Step)

Identity = tuple[str, int]
T = TypeVar("T")


class StepFailedError(HoldfastError):
    """A call failed, and the solver sees it: live, and again at every replay."""

    def __init__(self, failure: Failure, seconds: float = 0.0) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure = failure
        self.seconds = seconds
        """How long it took."""


class Recorded(msgspec.Struct, frozen=True):
    """A step that an earlier attempt at this key left in the journal. `at`: when it had ended, in seconds."""

    n: int
    step: Step
    at: float = 0.0


class Once(msgspec.Struct, frozen=True):
    """A call that must not be made twice, and what to do where it may have been made already."""

    called: Called
    recover: Callable[[], Awaitable[Step]]


class Unsure(msgspec.Struct, frozen=True):
    """A call that must not be made twice was begun by an earlier process, and nothing says what came of it."""

    n: int
    started: StepStarted


class Taken(msgspec.Struct, frozen=True):
    """A step as it is recorded, and a copy that the solver may change."""

    n: int
    step: Step
    told: Step


class Scope(msgspec.Struct, frozen=True):
    """Where steps belong: `solve/<attempt>` or `score/<evaluation>/<attempt>` of one key."""

    o: int
    key: str
    name: str


class Steps:
    """The steps of one scope, live and replayed."""

    note_files: Callable[[Files], None] | None = None
    """Is told what a step changed in the sandbox, when it is delivered, live or replayed."""
    calling = 0
    """Tools that are being called."""
    # What most samples never change stands here: each of them makes one of these, and Python makes an object of more
    # than 30 attributes the slow way.
    _begun = 0
    _in_flight = 0
    _programs = 0
    _turn: asyncio.Lock | None = None  # made when two calls are in flight
    _asked = 0  # grows whenever the sample asks for something or stops waiting for it
    _news: asyncio.Event | None = None  # made when there is something to replay
    _driver: asyncio.Task[None] | None = None
    _outside = False
    _handed_at = -math.inf
    _closing = False
    _refused = 0
    _draining = False
    _quiet: asyncio.Future[None] | None = None  # made by who waits for the last call to end
    _live = 0
    _replayed = 0
    _usage = _NO_USAGE
    _saved = _NO_USAGE
    _seconds = 0.0

    def __init__(
        self,
        scope: Scope,
        journal: Journal,
        recorded: Sequence[Recorded] = (),
        unsure: Sequence[Unsure] = (),
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`loop`: the one that runs; whoever knows it saves asking for it, which is a system call."""
        self._scope = scope
        self._journal = journal
        self._loop = loop or asyncio.get_running_loop()
        self._clock = self._loop.time
        self.watch = Stopwatch(self._clock)
        self._made: dict[str, int] = {}
        self._left = _last_of_each(recorded) if recorded else []
        self._unsure = {(each.started.q, each.started.c) for each in unsure}
        self.recorded_seconds = working_seconds(self._left) if recorded else 0.0
        self._orphans: list[Recorded] = []
        self._asked_at: dict[Identity, float] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._callers: set[asyncio.Task[object]] = set()
        self._waiting: dict[Identity, asyncio.Future[Recorded | None]] = {}
        self.moved = self._clock()
        """When this scope last asked for something or was answered."""
        self._wall = time.time() - self.moved
        self.succeeded: list[Recorded] = []  # asked live in this scope, for a further attempt
        self.begun: list[Unsure] = []  # announced in this scope
        self._roles: dict[str, RoleSpent] = {}

    async def take(self, request: str, ask: Callable[[], Awaitable[Step]], once: "Once | None" = None) -> Taken:
        """The step for a request: recorded, or asked live and made durable. StepFailedError if it failed."""
        if self._closing:
            self._refused += 1
            if self._refused > _REFUSALS:  # code that asks again and again must not keep the loop from everything else
                await asyncio.get_running_loop().create_future()
            raise asyncio.CancelledError
        count = self._made.get(request, 0)
        self._made[request] = count + 1
        self._begun += 1
        caller = asyncio.current_task(self._loop)
        assert caller is not None
        self._callers.add(caller)
        try:
            recorded = await self._replay((request, count)) if self._left else None
            if recorded is None:
                live = ask if once is None else functools.partial(self._ask_once, ask, once, request, count)
                recorded, told = await self._ask(live, request, count)
                usage = recorded.step.usage
                self._usage += usage
                self._note_role(recorded.step, RoleSpent(usage=usage))
                if is_kept(recorded.step):
                    self.succeeded.append(recorded)
            else:
                told = _copy(recorded.step)
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
        return Taken(recorded.n, recorded.step, told)

    @property
    def scope(self) -> Scope:
        return self._scope

    def next_id(self, request: str) -> StepId:
        """What the step will be named that is taken next for a request."""
        return StepId(self._scope.o, self._scope.name, request, self._made.get(request, 0))

    def spent(self) -> Spent:
        """What this scope has used so far; what is still recorded and not asked for counts as orphaned."""
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
        """Most steps ask the evaluated model, and are no role's."""
        if step.asked is not None and step.asked.role:
            self._roles[step.asked.role] = self._roles.get(step.asked.role, RoleSpent()) + part

    @property
    def calls(self) -> int:
        """How many are under way: asked and not answered, or waiting for their turn in a replay."""
        held_back = self._draining  # is our doing
        return self._in_flight + len(self._waiting) + self._programs + held_back

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """While a tool is being called: who stops a run lets it end, if it can wait so long."""
        self.calling += 1
        try:
            yield
        finally:
            self.calling -= 1

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """While a program works for the sample, of which nothing is seen until it asks."""
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
        """From here on requests may come from threads and processes, of which the event loop sees nothing before they
        ask: a quiet loop alone does not mean that the sample waits.
        """
        self._outside = True

    def drain(self) -> None:
        """From here on nothing new is asked: what is under way may end, the rest waits for the end."""
        self._draining = True

    async def finish(self) -> None:
        """Ask nothing new, and let what is under way end and be recorded: it is paid for."""
        self.drain()
        if self._in_flight:
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet

    def close(self) -> None:
        """From here on a cancelled call is our doing, not the solver's, and is not recorded."""
        self._closing = True
        self.note_files = None  # whoever is told holds us: let go, or both live until a collection
        if self._driver is not None:
            self._driver.cancel()
        for caller in (*self._callers, *self._settling):
            caller.cancel()

    @property
    def is_busy(self) -> bool:
        """Whether somebody has asked, and is not through."""
        return bool(self._callers)

    async def ended(self, seconds: float) -> None:
        """Until what was under way when this was closed has ended, for at most so long: it may still use what belongs
        to the attempt.
        """
        others = self._callers - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=seconds)

    async def _ask(self, ask: Callable[[], Awaitable[Step]], request: str, count: int) -> tuple[Recorded, Step]:
        if self._draining:
            await asyncio.get_running_loop().create_future()  # until the engine closes us
        self._live += 1
        self._in_flight += 1
        started = self.moved = self._clock()
        running.set(self.watch)
        self.watch.begin()
        try:
            answered = await ask()
            scope = self._scope
            self.moved = self._clock()
            seconds = answered.seconds or rounded(self.moved - started)  # who had to wait knows better
            step = msgspec.structs.replace(answered, o=scope.o, scope=scope.name, q=request, c=count, seconds=seconds)
            record, copy = checked("step", step, scope.key)
            position = await self._journal.append(record)
            if self._in_flight > 1 or self._turn is not None:
                await self._wait_for_turn()
        except asyncio.CancelledError:
            # An answer that came in the same moment may already be on its way to the journal: the later record counts.
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
        return Recorded(position.n, step, self._wall + self.moved), copy

    async def _ask_once(self, ask: Callable[[], Awaitable[Step]], once: "Once", request: str, count: int) -> Step:
        """Dying behind the announcement leaves it without a step: then the call is never made blindly again."""
        if (request, count) in self._unsure:
            return await once.recover()
        scope = self._scope
        started = StepStarted(scope.o, scope.name, request, count, once.called)
        position = await self._journal.append(checked("step.started", started, scope.key)[0])
        self.begun.append(Unsure(position.n, started))
        return await ask()

    async def _wait_for_turn(self) -> None:
        """Of several answers, one at a time, as a replay hands them out; the next when the sample waits again."""
        turn = self._turn = self._turn or asyncio.Lock()
        await turn.acquire()
        settling = asyncio.ensure_future(self._pass_on(turn))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    async def _pass_on(self, turn: asyncio.Lock) -> None:
        try:
            await self._settle()
            if self._outside:
                await self._is_quiet_outside()
        finally:
            turn.release()

    async def _replay(self, identity: Identity) -> Recorded | None:
        """Wait for this request's turn; None means that it was not recorded and may go live."""
        waiting: asyncio.Future[Recorded | None] = asyncio.get_running_loop().create_future()
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
                self._left.remove(each)  # it cannot be asked for again
                self._orphans.append(each)
            raise
        finally:
            del self._waiting[identity]
            self._touch()

    def _touch(self) -> None:
        self._asked += 1
        if self._news is not None:
            self._news.set()

    async def _drive(self) -> None:
        """Let happen what is recorded, in its order, then let the rest go live."""
        news = self._news = asyncio.Event()
        while self._left:
            await self._settle()
            news.clear()
            wanted = [each for each in self._left if self._awaited(_identity(each.step))]
            if self._is_hasty(wanted) and not await self._is_quiet_outside():
                continue
            if not wanted:
                self._let_live()
                if self._left:
                    await news.wait()
            elif (wanted[0] is self._left[0] or wanted[0].step.origin) and not wanted[0].step.cancelled:
                self._hand_out(wanted[0])  # what a fork took over has no order to keep
            else:
                await self._wait_for_first(wanted, news)
        await self._settle()
        self._let_live()

    def _is_hasty(self, wanted: list[Recorded]) -> bool:
        """Whether code outside, which is slower than the loop, could still ask for something that comes first: where
        something would go live, or two answers would reach it at once.
        """
        if not self._outside:
            return False
        if wanted:
            return self._asked_at[_identity(wanted[0].step)] <= self._handed_at
        return any(not waiting.done() for waiting in self._waiting.values())

    async def _is_quiet_outside(self) -> bool:
        seen = self._asked
        await asyncio.sleep(_OUTSIDE_SECONDS)
        return self._asked == seen

    def _hand_out(self, found: Recorded) -> None:
        """What was passed over goes to the end: it may still be asked for."""
        index = self._left.index(found)
        self._left = self._left[index + 1 :] + self._left[:index]
        self._handed_at = asyncio.get_running_loop().time()
        self._waiting[_identity(found.step)].set_result(None if found.step.cancelled else found)

    def _let_live(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    async def _wait_for_first(self, wanted: list[Recorded], news: asyncio.Event) -> None:
        """Something comes first: a call that the solver will cancel, or one that a sleeping branch will ask for.

        It came before each of `wanted` was answered: so wait for it no longer than the first of these took then.
        """
        due, found = min(((self._due(each), each) for each in wanted), key=lambda pair: pair[0])
        try:
            await asyncio.wait_for(news.wait(), max(0.0, due - asyncio.get_running_loop().time()))
        except TimeoutError:
            if self._awaited(_identity(found.step)):
                self._hand_out(found)

    def _due(self, each: Recorded) -> float:
        slack = _HOLD_SECONDS if each.step.cancelled else _BRANCH_SECONDS
        return self._asked_at[_identity(each.step)] + each.step.seconds + slack

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


def is_kept(step: Step) -> bool:
    """Whether the next attempt gets a step after a failure of infrastructure: an answer, and whatever a call came to,
    because that is what the model was told.
    """
    return not step.cancelled and (step.failure is None or step.kind != "generate")


def working_seconds(recorded: Sequence[Recorded]) -> float:
    """How long the steps took: what went on at the same time counts once, if it is known when that was."""
    total, until = sum(each.step.seconds for each in recorded if not each.at), -math.inf
    for began, ended in sorted((each.at - each.step.seconds, each.at) for each in recorded if each.at):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def _identity(step: Step) -> Identity:
    return step.q, step.c


def _last_of_each(recorded: Sequence[Recorded]) -> list[Recorded]:
    """Of one request the later record counts."""
    last = {_identity(each.step): each for each in recorded}
    return [each for each in recorded if last[_identity(each.step)] is each]


def _with_orphan(roles: dict[str, RoleSpent], step: Step) -> dict[str, RoleSpent]:
    role = step.asked.role if step.asked is not None else ""
    return {**roles, role: roles.get(role, RoleSpent()) + RoleSpent(orphaned_usage=step.usage)} if role else roles


def _copy(step: Step) -> Step:
    return _step.decode(_encode(as_stored(step)))
