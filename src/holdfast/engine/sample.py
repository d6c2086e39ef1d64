"""One sample: attempts until it has an answer, the answer into the journal, then its scores.

Invariant: whatever the user's code does, the sample ends as finished or failed, with a kind, and other samples are not
affected. Only a stop of the engine or of the cell leaves it unfinished; then, as after a crash, its steps are in the
journal and the next process continues the same attempt. After a failure of infrastructure the next attempt replays the
steps that succeeded; after an error of the solver it sends its requests again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.engine.failures import FailedAttempt, failure_in, pop_stall, undo_cancel
from holdfast.engine.in_flight import InFlightSample
from holdfast.engine.schedule import Ticket
from holdfast.engine.scoring import (
    NO_JUDGE_HISTORY,
    AnswerToScore,
    JudgeHistory,
    Member,
    RepeatGroups,
    ScoreRecords,
    ScoringSetup,
    score_all,
    score_quickly,
)
from holdfast.errors import BadRecordError
from holdfast.journal import Journal, Position
from holdfast.models import clock_of
from holdfast.plan import PreparedTask
from holdfast.records import (
    Answer,
    Failure,
    SampleFailed,
    SampleFinished,
    Spent,
    as_stored,
    checked,
    draft,
    draft_group,
)
from holdfast.score import ANOMALIES_VERSION, AnswerExpectations, find_anomalies
from holdfast.solve import (
    AttemptResources,
    Context,
    LimitError,
    RecordedStep,
    Scope,
    StepFailedError,
    Steps,
    UnconfirmedCall,
    is_kept,
)

T = TypeVar("T")
_ENDING_SECONDS = 2.0
"""How long to wait for calls that were under way when an attempt ended."""
_SOLVER_KINDS = {"solver", "cancelled", "record", "too_large", "tool", "sandbox"}
"""Failures after which the next attempt sends its requests again: the recorded responses may have caused them."""


class KeyHistory(msgspec.Struct, frozen=True):
    """What the journal holds of a key: its steps, and how its attempts ended."""

    steps: tuple[RecordedStep, ...] = ()
    failures: dict[int, str] = msgspec.field(default_factory=dict)
    begun: tuple[UnconfirmedCall, ...] = ()
    """Announcements of calls that must not be made twice."""

    def next_attempt(self) -> int:
        """Return the attempt to continue: the one that was cut off, or the one after the last that failed."""
        if not self.steps and not self.failures and not self.begun:
            return 1
        cut_off = max(map(_attempt_in, self._scopes()), default=1)
        return max(cut_off, max(self.failures, default=0) + 1)

    def last_attempt(self) -> int:
        """Return the last attempt with a record: it was cut off, or it failed."""
        return max((*map(_attempt_in, self._scopes()), *self.failures), default=1)

    def recorded(self, attempt: int) -> list[RecordedStep]:
        """Return the steps that an attempt replays: its own, those that succeeded before failures of infrastructure,
        and calls that must not be made twice.
        """
        if not self.steps:
            return []
        carried: list[RecordedStep] = []
        for each in self.steps:
            number = _attempt_in(each.step.scope)
            infrastructure = self.failures.get(number, "solver") not in _SOLVER_KINDS
            if number == attempt or each.step.once or (infrastructure and is_kept(each.step)):
                carried.append(each)
        restarted_after = max((number for number, kind in self.failures.items() if kind in _SOLVER_KINDS), default=0)
        return [each for each in carried if each.step.once or _attempt_in(each.step.scope) > restarted_after]

    def with_attempt(self, steps: Steps, failure: dict[int, str]) -> "KeyHistory":
        """Return this history with one more attempt, which failed."""
        return KeyHistory((*self.steps, *steps.succeeded), {**self.failures, **failure}, (*self.begun, *steps.begun))

    def unsure(self) -> list[UnconfirmedCall]:
        """Return the calls that were announced in any attempt and have no recorded result."""
        if not self.begun:
            return []
        done = {(each.step.scope, each.step.q, each.step.c) for each in self.steps if not each.step.cancelled}
        return [each for each in self.begun if (each.started.scope, each.started.q, each.started.c) not in done]

    def _scopes(self) -> Iterator[str]:
        yield from (each.step.scope for each in self.steps)
        yield from (each.started.scope for each in self.begun)


NO_HISTORY = KeyHistory()


class TaskSetup(msgspec.Struct, frozen=True):
    """What all samples of a task share: how they are solved and scored."""

    work: PreparedTask
    resources: Mapping[str, AttemptResources]
    """By evaluated model."""
    scoring: ScoringSetup
    seconds: float | None
    seed: int
    secrets: tuple[str, ...] = ()
    """Removed from recorded failures."""
    expected: Mapping[str, AnswerExpectations] | None = None
    """By evaluated model, what answers should look like; None if anomalies are not looked for."""
    groups: RepeatGroups | None = None
    """Only for tasks with a scorer that needs all repeats of a sample at once."""
    trusted: bool = False
    """The solver is built in: its answers have the right types, and need not be read back before they are saved."""


class Outcome(msgspec.Struct, frozen=True):
    """How a sample ended."""

    failure: Failure | None
    spent: Spent
    anomalies: int = 0
    scores: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Of quick scorers, by name; a Failure if one failed. All others come later."""


class Sampler:
    """Answers and scores samples; one call of `answer` or `score` for each."""

    def __init__(
        self,
        journal: Journal,
        ended: Callable[[Ticket, Outcome], None],
        read: Callable[[Position], Answer | None] = lambda position: None,
        scored: Callable[[Ticket, Mapping[str, Any]], None] = lambda ticket, scores: None,
    ) -> None:
        """`ended` is called as soon as the record that ends a sample is durable, before its scores. `read` returns an
        answer that an earlier process recorded. `scored` receives the scores of an answer by name, unless they were in
        its outcome.
        """
        self._journal = journal
        self._ended = ended
        self._read = read
        self._scored = scored
        self._closing = False
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None  # kept: get_running_loop is a system call (getpid)
        self.flights: set[InFlightSample] = set()

    def drain(self) -> None:
        """Send no new requests; those under way may end."""
        self._draining = True
        for flight in self.flights:
            if flight.steps is not None:
                flight.steps.drain()

    def close(self) -> None:
        """From now on a cancellation comes from the engine, not from the user's code."""
        self._closing = True
        for flight in self.flights:
            if flight.steps is not None:
                flight.steps.close()

    def leave(self, task: str, model: str) -> None:
        """Cancel the samples of a cell that are being solved: they stay unfinished. Those that have their answer are
        saved and scored.
        """
        for flight in list(self.flights):
            its = flight.cell is not None and flight.cell.task == task and flight.cell.model == model
            if its and flight.doing == "solving" and flight.steps is not None and not flight.left:
                flight.left = True
                flight.steps.close()
                flight.task.cancel()

    async def answer(self, ticket: Ticket, setup: TaskSetup, history: KeyHistory) -> None:
        flight = self._register_in_flight(ticket, setup.seconds)
        try:
            first = attempt = 1 if history is NO_HISTORY else history.next_attempt()
            before: FailedAttempt | None = None
            while True:
                scope = Scope(ticket.o, ticket.key, f"solve/{attempt}")
                if history is NO_HISTORY:
                    steps = Steps(scope, self._journal, loop=self._loop)
                else:
                    steps = Steps(scope, self._journal, history.recorded(attempt), history.unsure(), self._loop)
                flight.steps, flight.doing = steps, "solving"
                if self._draining:
                    steps.drain()
                result = await self._attempt(ticket, setup, flight, attempt)
                flight.doing = "saving"
                if isinstance(result, Answer):
                    await self._finish(ticket, setup, attempt, result, flight)
                    return
                spent = steps.spent()
                # Neither counts as one of the sample's retries: a sandbox that a resume could not restore, and an
                # attempt that only replayed what an earlier process had recorded.
                restarts = result.failure.kind == "sandbox" and spent.replayed > 0
                first += restarts or (not spent.live and spent.replayed > 0)
                is_same = result.is_repeatable and result == before
                final = not restarts and (result.final or is_same or attempt - first >= setup.work.task.sample_retries)
                failed = SampleFailed(ticket.o, attempt, result.failure, final, spent)
                await self._journal.append(draft("sample.failed", failed, ticket.key))
                if final:
                    await self._give_up(ticket, setup, failed, flight)
                    return
                history = history.with_attempt(steps, {attempt: result.failure.kind})
                attempt += 1
                before = result
                flight.since = flight.task.get_loop().time()
        finally:
            self.flights.discard(flight)

    async def _attempt(
        self, ticket: Ticket, setup: TaskSetup, flight: InFlightSample, attempt: int
    ) -> Answer | FailedAttempt:
        solver, steps, sample = setup.work.solver, flight.steps, ticket.sample
        assert steps is not None
        ctx: Context | None = None
        try:
            messages = setup.work.renderer.messages(sample)
            seed = f"{setup.seed}/{ticket.key}/{attempt}"
            ctx = Context(sample, messages, steps, seed, setup.resources[ticket.cell.model])
            try:
                solving = solver.function(sample, ctx, **solver.given)
                result = await (solving if setup.seconds is None else _within_time_limit(solving, ctx, setup.seconds))
            except StepFailedError as error:
                await _finish_others(error, steps, setup.seconds)
                raise
            finally:
                steps.close()  # tasks that the solver left running may send nothing more
                if steps.is_busy or ctx.is_open:
                    await steps.ended(_ENDING_SECONDS)
                    await ctx.close()
            if flight.task.cancelling():  # the solver cancelled its own task and returned: take it here
                await asyncio.sleep(0)
            if self._closing or flight.left:
                raise asyncio.CancelledError  # the solver swallowed the cancellation: its answer does not count
            if ctx.failed_outside is not None:  # the agent's last request failed: its output is no answer
                return failure_in(ctx.failed_outside, setup.secrets)
            return solver.as_answer(result)
        except asyncio.CancelledError:
            if self._closing or flight.left:
                raise
            undo_cancel(flight.task)
            return FailedAttempt(pop_stall(flight) or Failure("cancelled", "the solver cancelled itself"))
        except BaseException as error:  # user code may raise anything
            if flight.left:
                raise asyncio.CancelledError from error  # the solver turned the cancellation into another error
            return failure_in(error, setup.secrets, ctx.failed_outside if ctx is not None else None)

    async def _finish(
        self, ticket: Ticket, setup: TaskSetup, attempt: int, answer: Answer, flight: InFlightSample
    ) -> None:
        """Save an answer, then its scores."""
        assert flight.steps is not None
        kept = answer if answer.raw is None else msgspec.structs.replace(answer, raw=None)  # the step holds it
        found, looked = _find_anomalies(ticket, setup, kept)
        finished = SampleFinished(
            ticket.o, attempt, kept, flight.steps.spent(), len(setup.scoring.scorers), found, looked
        )
        scores = None
        try:
            if setup.trusted:
                record = draft("sample.finished", as_stored(finished), ticket.key)
            else:
                record = checked("sample.finished", finished, ticket.key)[0]
            marks = kept.marks
            if setup.scoring.quick and not marks:  # `counts` may say how a marked answer counts
                scores = score_quickly(ticket, setup.scoring, kept, setup.secrets)
        except BadRecordError as error:
            failed = SampleFailed(ticket.o, finished.attempt, Failure(error.kind, str(error)), True, finished.spent)
            await self._journal.append(draft("sample.failed", failed, ticket.key))
            await self._give_up(ticket, setup, failed, flight)
            return
        position = await self._journal.append(draft_group(record, scores.records) if scores else record)
        anomalies = 0 if setup.expected is None else len(found) + len(marks)
        self._ended(ticket, Outcome(None, finished.spent, anomalies, scores.values[0] if scores else {}))
        if scores is not None or not setup.scoring.scorers:
            return
        if setup.groups is None:
            members = [Member(ticket.o, ticket.key, position.n, finished.answer)]
        else:
            members = setup.groups.ended(ticket, finished.answer, position.n)
        await self._score_soon(ticket, setup, members, flight)

    async def _give_up(self, ticket: Ticket, setup: TaskSetup, failed: SampleFailed, flight: InFlightSample) -> None:
        """Report a failed sample, whose record is durable, and score the other repeats if they waited for it."""
        self._ended(ticket, Outcome(failed.failure, failed.spent))
        if setup.groups is not None:
            await self._score_soon(ticket, setup, setup.groups.ended(ticket), flight)

    async def _score_soon(
        self, ticket: Ticket, setup: TaskSetup, members: Sequence[Member], flight: InFlightSample
    ) -> None:
        scores = await self._scores(ticket, setup, members, flight, NO_JUDGE_HISTORY)
        for record in scores.records:
            self._journal.append_soon(record)  # without waiting: scores lost in a crash are computed again

    async def score(
        self,
        ticket: Ticket,
        setup: TaskSetup,
        members: Sequence[Member],
        judge_history: JudgeHistory = NO_JUDGE_HISTORY,
    ) -> ScoreRecords:
        """Score answers that an earlier process recorded: that of a ticket, or all of its group. The scores are durable
        when it returns.
        """
        flight = self._register_in_flight(ticket, None)
        try:
            scores = await self._scores(ticket, setup, members, flight, judge_history)
            for record in scores.records[:-1]:
                self._journal.append_soon(record)
            for last in scores.records[-1:]:
                await self._journal.append(last)  # records become durable in order: so are all before it
        finally:
            self.flights.discard(flight)
        return scores

    async def _scores(
        self,
        ticket: Ticket,
        setup: TaskSetup,
        members: Sequence[Member],
        flight: InFlightSample,
        judge_history: JudgeHistory,
    ) -> ScoreRecords:
        """Return the records of all scores. `ticket`: that of any member; all have the same sample."""
        judged: list[AnswerToScore] = []
        for each in members:
            answer = each.answer
            if answer is None and each.position is not None:
                answer = await asyncio.to_thread(self._read, each.position)
            if answer is not None:
                its = ticket if each.o == ticket.o else msgspec.structs.replace(ticket, o=each.o, key=each.key)
                judgement = AnswerToScore(
                    its, answer, each.n, setup.scoring.evaluation, setup.secrets, setup.work.task.counts
                )
                judged.append(judgement)
        if not judged:
            return ScoreRecords()
        if not setup.scoring.needs_judges:
            scores = await score_all(judged, setup.scoring, flight, lambda: self._closing, None)
        else:
            async with setup.scoring.context(judged[0], self._journal, judge_history) as ctx:
                scores = await score_all(judged, setup.scoring, flight, lambda: self._closing, ctx)
        for what, values in zip(judged, scores.values, strict=True):
            self._scored(what.ticket, values)
        return scores

    def _register_in_flight(self, ticket: Ticket, seconds: float | None) -> InFlightSample:
        """Make the sample visible to the watchdog."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        flight = InFlightSample(ticket.key, task, clock_of(loop)(), seconds)
        flight.cell = ticket.cell
        self.flights.add(flight)
        return flight


def _find_anomalies(ticket: Ticket, setup: TaskSetup, answer: Answer) -> tuple[dict[str, str], int]:
    """Return the anomalies of an answer, and the version of the checks. They are part of the answer's own record, so
    that a crash cannot separate the two.
    """
    if setup.expected is None:
        return {}, 0
    try:
        return find_anomalies(ticket.sample, answer, setup.expected[ticket.cell.model]), ANOMALIES_VERSION
    except (AttributeError, TypeError):  # a solver's answer may hold anything: saving rejects it
        return {}, 0


async def _finish_others(error: StepFailedError, steps: Steps, seconds: float | None) -> None:
    """After a request failed, wait for those that run beside it, up to the sample's time limit: they are paid for, and
    the next attempt replays the ones that succeed.
    """
    if error.failure.kind not in _SOLVER_KINDS:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await steps.finish()


async def _within_time_limit(solving: Awaitable[T], ctx: Context, seconds: float) -> T:
    """The recorded durations of replayed steps count against the limit; waiting for rate limits does not."""
    limit = asyncio.timeout(max(seconds - ctx.steps.recorded_seconds, 0.001))
    try:
        async with limit:
            ctx.steps.watch.set_limit(limit)
            return await solving
    except TimeoutError:
        if limit.expired():
            raise LimitError(f"the sample took longer than its limit of {seconds:g} s", "timeout") from None
        raise
    finally:
        ctx.steps.watch.set_limit(None)


def _attempt_in(scope: str) -> int:
    """The attempt of a scope such as `solve/2`; 0 if it has none: anyone can forge a record."""
    number = scope.partition("/")[2].partition("/")[0]
    return int(number) if number.isdecimal() and len(number) < 10 else 0
