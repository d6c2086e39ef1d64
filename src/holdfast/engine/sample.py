"""One sample's way: attempts until it has an answer, the answer into the journal, then its scores.

Invariant: whatever the user's code does, the sample ends as finished or failed, with a kind, and its siblings go on.
Only the engine's own shutdown leaves it unfinished. After a failure of infrastructure the next attempt replays what
had succeeded; after an error of the solver it asks anew.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from holdfast.engine.client import group
from holdfast.engine.failures import Failed, failure_in, inside, stalled, undo_cancel
from holdfast.engine.in_flight import Flight
from holdfast.engine.schedule import Ticket
from holdfast.engine.scoring import NOTHING, Bench, Groups, Heard, Judgement, Member, Said, score_all
from holdfast.errors import BadRecordError
from holdfast.journal import Position
from holdfast.journal.positions import Journal
from holdfast.plan import Work
from holdfast.records import draft
from holdfast.records.facts import Failure, SampleFailed, SampleFinished, Spent, checked
from holdfast.records.samples import Answer, Sample
from holdfast.score.anomalies import VERSION, Expected, look_at
from holdfast.solve import Context, LimitError, Means, Recorded, Scope, Solver, StepFailedError, Steps, Unsure
from holdfast.solve.steps import is_kept

_ENDING_SECONDS = 2.0
"""What calls that were under way when an attempt ended may take to end."""
_SOLVER_KINDS = {"solver", "cancelled", "record", "too_large", "tool", "sandbox"}


class Past(msgspec.Struct, frozen=True):
    """What the journal holds of a key from before this process: its steps, and how its attempts ended."""

    steps: tuple[Recorded, ...] = ()
    failures: dict[int, str] = msgspec.field(default_factory=dict)
    begun: tuple[Unsure, ...] = ()
    """Calls that must not be made twice and were announced."""

    def attempt(self) -> int:
        """The attempt to go on with: the one that was cut off, or the one after the last that failed."""
        if not self.steps and not self.failures and not self.begun:
            return 1
        cut_off = max(map(_attempt_in, self._scopes()), default=1)
        return max(cut_off, max(self.failures, default=0) + 1)

    def last(self) -> int:
        """The last attempt that left anything: it was cut off, or it failed."""
        return max((*map(_attempt_in, self._scopes()), *self.failures), default=1)

    def recorded(self, attempt: int) -> list[Recorded]:
        """The steps that an attempt replays: its own, those that succeeded before failures of infrastructure, and calls
        that must not be made twice.
        """
        if not self.steps:
            return []
        carried: list[Recorded] = []
        for each in self.steps:
            number = _attempt_in(each.step.scope)
            infrastructure = self.failures.get(number, "solver") not in _SOLVER_KINDS
            if number == attempt or each.step.once or (infrastructure and is_kept(each.step)):
                carried.append(each)
        asked_anew = max((number for number, kind in self.failures.items() if kind in _SOLVER_KINDS), default=0)
        return [each for each in carried if each.step.once or _attempt_in(each.step.scope) > asked_anew]

    def and_then(self, steps: Steps, failure: dict[int, str]) -> "Past":
        """With one more attempt, which failed."""
        return Past((*self.steps, *steps.succeeded), {**self.failures, **failure}, (*self.begun, *steps.begun))

    def unsure(self) -> list[Unsure]:
        """What was announced in any attempt, and has no step that says what came of it."""
        if not self.begun:
            return []
        done = {(each.step.scope, each.step.q, each.step.c) for each in self.steps if not each.step.cancelled}
        return [each for each in self.begun if (each.started.scope, each.started.q, each.started.c) not in done]

    def _scopes(self) -> Iterator[str]:
        yield from (each.step.scope for each in self.steps)
        yield from (each.started.scope for each in self.begun)


NO_PAST = Past()


class Kit(msgspec.Struct, frozen=True):
    """What every sample of a task is answered and scored with."""

    work: Work
    means: Mapping[str, Means]
    """By evaluated model."""
    bench: Bench
    seconds: float | None
    seed: int
    secrets: tuple[str, ...] = ()
    """What must not be in a record of what went wrong."""
    expected: Mapping[str, Expected] | None = None
    """By evaluated model, how answers should look; None if nobody looks for anomalies."""
    groups: Groups | None = None
    """Where a scorer asks for all repeats of a sample at once."""


class Outcome(msgspec.Struct, frozen=True):
    """How a sample ended."""

    failure: Failure | None
    spent: Spent
    anomalies: int = 0


class Sampler:
    """Answers samples, one call each."""

    def __init__(
        self,
        journal: Journal,
        ended: Callable[[Ticket, Outcome], None],
        read: Callable[[Position], Answer | None] = lambda position: None,
    ) -> None:
        """`ended` is told as soon as the record that ends a sample is durable; its scores may still be to come. `read`
        gives the answer that an earlier process recorded.
        """
        self._journal = journal
        self._ended = ended
        self._read = read
        self._closing = False
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None  # the engine's; asking for it is a system call
        self.flights: set[Flight] = set()

    def drain(self) -> None:
        """Nothing new is asked from now on; what is under way may end."""
        self._draining = True
        for flight in self.flights:
            if flight.steps is not None:
                flight.steps.drain()

    def close(self) -> None:
        """Cancellations that come from now on are ours."""
        self._closing = True
        for flight in self.flights:
            if flight.steps is not None:
                flight.steps.close()

    def leave(self, task: str, model: str) -> None:
        """The samples of a cell that are being solved stay unfinished, with their steps recorded; those that have their
        answer go on.
        """
        for flight in list(self.flights):
            its = flight.cell is not None and flight.cell.task == task and flight.cell.model == model
            if its and flight.doing == "solving" and flight.steps is not None and not flight.left:
                flight.left = True
                flight.steps.close()
                flight.task.cancel()

    async def answer(self, ticket: Ticket, kit: Kit, past: Past) -> None:
        flight = self._take_off(ticket, kit.seconds)
        try:
            await self._answer(ticket, kit, past, flight)
        finally:
            self.flights.discard(flight)

    async def _answer(self, ticket: Ticket, kit: Kit, past: Past, flight: Flight) -> None:
        first = attempt = past.attempt()
        while True:
            scope = Scope(ticket.o, ticket.key, f"solve/{attempt}")
            loop = flight.task.get_loop()
            steps = Steps(scope, self._journal, past.recorded(attempt), past.unsure(), loop)
            flight.steps, flight.doing = steps, "solving"
            if self._draining:
                steps.drain()
            result = await self._attempt(ticket, kit, flight, attempt)
            flight.doing = "saving"
            if isinstance(result, Answer):
                kept = result if result.raw is None else msgspec.structs.replace(result, raw=None)  # its step has it
                finished = SampleFinished(ticket.o, attempt, kept, steps.spent(), len(kit.bench.scorers))
                await self._finish(ticket, kit, _looked_at(ticket, kit, finished), flight)
                return
            spent = steps.spent()
            begins_anew = result.failure.kind == "sandbox" and spent.replayed > 0  # our loss, not the sample's attempt
            first += begins_anew or (not spent.live and spent.replayed > 0)  # this process has spent nothing on it
            final = not begins_anew and (result.final or attempt - first >= kit.work.task.sample_retries)
            failed = SampleFailed(ticket.o, attempt, result.failure, final, spent)
            await self._journal.append(draft("sample.failed", failed, ticket.key))
            if final:
                await self._give_up(ticket, kit, failed, flight)
                return
            past = past.and_then(steps, {attempt: result.failure.kind})
            attempt += 1
            flight.since = loop.time()

    async def _attempt(self, ticket: Ticket, kit: Kit, flight: Flight, attempt: int) -> Answer | Failed:
        work, steps = kit.work, flight.steps
        assert steps is not None
        seed = f"{kit.seed}/{ticket.key}/{attempt}"
        ctx: Context | None = None
        try:
            messages = work.renderer.messages(ticket.sample)
            ctx = Context(ticket.sample, messages, steps, seed, kit.means[ticket.cell.model])
            try:
                answer = await _solve(work.solver, ticket.sample, ctx, kit.seconds)
            finally:
                steps.close()  # who still asks in the background asks nothing more, and uses nothing that is closed
                if steps.is_busy:
                    await steps.ended(_ENDING_SECONDS)
                await ctx.close()
            if flight.task.cancelling():  # the solver asked for it and did not wait for it: meet it here
                await asyncio.sleep(0)
            if ctx.failed_outside is not None:  # the agent's last request failed: what it said then is no answer
                return failure_in(ctx.failed_outside, kit.secrets)
        except asyncio.CancelledError:
            if self._closing or flight.left:
                raise
            undo_cancel(flight.task)
            return Failed(stalled(flight) or Failure("cancelled", "the solver cancelled itself"))
        except BaseException as error:  # user code may raise anything
            if flight.left:
                raise asyncio.CancelledError from error  # whatever it made of that: the sample stays unfinished
            return failure_in(error, kit.secrets, ctx.failed_outside if ctx is not None else None)
        finally:
            steps.close()
        if self._closing or flight.left:
            raise asyncio.CancelledError  # the solver made an answer of being interrupted: it is none
        return answer

    async def _finish(self, ticket: Ticket, kit: Kit, finished: SampleFinished, flight: Flight) -> None:
        try:
            record = checked("sample.finished", finished, ticket.key)[0]
        except BadRecordError as error:
            failed = SampleFailed(ticket.o, finished.attempt, Failure(error.kind, str(error)), True, finished.spent)
            await self._journal.append(draft("sample.failed", failed, ticket.key))
            await self._give_up(ticket, kit, failed, flight)
            return
        position = await self._journal.append(record)
        odd = 0 if kit.expected is None else len(finished.anomalies) + len(finished.answer.marks)
        self._ended(ticket, Outcome(None, finished.spent, odd))
        if not kit.bench.scorers:
            return
        if kit.groups is None:
            members = [Member(ticket.o, ticket.key, position.n, finished.answer)]
        else:
            members = kit.groups.ended(ticket, finished.answer, position.n)
        await self._score_soon(ticket, kit, members, flight)

    async def _give_up(self, ticket: Ticket, kit: Kit, failed: SampleFailed, flight: Flight) -> None:
        """Its record is durable. The other repeats may have waited for it to be scored."""
        self._ended(ticket, Outcome(failed.failure, failed.spent))
        if kit.groups is not None:
            await self._score_soon(ticket, kit, kit.groups.ended(ticket), flight)

    async def _score_soon(self, ticket: Ticket, kit: Kit, members: Sequence[Member], flight: Flight) -> None:
        said = await self._scores(ticket, kit, members, flight, NOTHING)
        for record in said.records:
            self._journal.append_soon(record)  # lost with the process, they are made again

    async def score(self, ticket: Ticket, kit: Kit, members: Sequence[Member], heard: Heard = NOTHING) -> Said:
        """Score answers that an earlier process recorded: that of a ticket, or all of its group. When it returns they
        are durable.
        """
        flight = self._take_off(ticket, None)
        try:
            said = await self._scores(ticket, kit, members, flight, heard)
            for record in said.records[:-1]:
                self._journal.append_soon(record)
            for last in said.records[-1:]:
                await self._journal.append(last)  # what was queued before it is durable before it
        finally:
            self.flights.discard(flight)
        return said

    async def _scores(self, ticket: Ticket, kit: Kit, members: Sequence[Member], flight: Flight, heard: Heard) -> Said:
        """`ticket`: of one of them; they have the same sample."""
        judged: list[Judgement] = []
        for each in members:
            answer = each.answer
            if answer is None and each.position is not None:
                answer = await asyncio.to_thread(self._read, each.position)
            if answer is not None:
                its = ticket if each.o == ticket.o else msgspec.structs.replace(ticket, o=each.o, key=each.key)
                judgement = Judgement(its, answer, each.n, kit.bench.evaluation, kit.secrets, kit.work.task.counts)
                judged.append(judgement)
        if not judged:
            return Said()
        if not kit.bench.asks:
            return await score_all(judged, kit.bench, flight, lambda: self._closing, None)
        async with kit.bench.context(judged[0], self._journal, heard) as ctx:
            return await score_all(judged, kit.bench, flight, lambda: self._closing, ctx)

    def _take_off(self, ticket: Ticket, seconds: float | None) -> Flight:
        """From here on the worker's code may be the user's."""
        inside.set(True)
        group.set(ticket.key.rpartition("/")[0])
        loop = self._loop = self._loop or asyncio.get_running_loop()
        flight = Flight(ticket.key, _task(loop), loop.time(), seconds)
        flight.cell = ticket.cell
        self.flights.add(flight)
        return flight


def _looked_at(ticket: Ticket, kit: Kit, finished: SampleFinished) -> SampleFinished:
    """With what is odd about the answer: durable with it, so that no crash comes between the two."""
    if kit.expected is None:
        return finished
    try:
        found = look_at(ticket.sample, finished.answer, kit.expected[ticket.cell.model])
    except (AttributeError, TypeError):  # a solver's answer may hold anything: it is refused when it is to be saved
        return finished
    return msgspec.structs.replace(finished, anomalies=found, looked=VERSION)


async def _solve(solver: Solver, sample: Sample, ctx: Context, seconds: float | None) -> Answer:
    """If a request fails, those that were asked at the same time end first: they are paid for, and the next attempt
    replays what has succeeded. They have as long as all of the sample has.
    """
    try:
        return await _solve_in_time(solver, sample, ctx, seconds)
    except StepFailedError as error:
        if error.failure.kind not in _SOLVER_KINDS:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ctx.steps.finish()
        raise


async def _solve_in_time(solver: Solver, sample: Sample, ctx: Context, seconds: float | None) -> Answer:
    """What the steps that it replays took counts; what requests were held back for does not."""
    if seconds is None:
        return await solver.solve(sample, ctx)
    limit = asyncio.timeout(max(seconds - ctx.steps.recorded_seconds, 0.001))
    try:
        async with limit:
            ctx.steps.watch.obey(limit)
            return await solver.solve(sample, ctx)
    except TimeoutError:
        if limit.expired():
            raise LimitError(f"the sample took longer than its limit of {seconds:g} s", "timeout") from None
        raise
    finally:
        ctx.steps.watch.obey(None)


def _task(loop: asyncio.AbstractEventLoop) -> "asyncio.Task[object]":
    task = asyncio.current_task(loop)
    assert task is not None
    return task


def _attempt_in(scope: str) -> int:
    return int(scope.split("/")[1])
