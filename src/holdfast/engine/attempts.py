"""One sample's way: attempts until it has an answer, the answer into the journal, then its scores.

Invariant: whatever the user's code does, the sample ends as finished or failed, with a kind, and its siblings go on.
Only the engine's own shutdown leaves it unfinished. After a failure of infrastructure the next attempt replays what
had succeeded; after an error of the solver it asks anew.
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.engine.flights import Flight
from holdfast.engine.places import Places
from holdfast.engine.tickets import Ticket
from holdfast.engine.tracebacks import failure_of, own_lines, redacted
from holdfast.errors import BadRecordError, JournalError
from holdfast.plan import Work
from holdfast.records import Draft, draft
from holdfast.records.exchange import Answer, Sample
from holdfast.records.facts import Failure, SampleFailed, SampleFinished, ScoreGiven, Spent, checked
from holdfast.score import Scorer, ScoringFailed, judge
from holdfast.solve import (
    Allowance,
    Asking,
    Context,
    LimitError,
    Recorded,
    Scope,
    Solver,
    StepFailedError,
    Steps,
)
from holdfast.solve.steps import Journal

_FINAL_KINDS = {"auth", "bad_request", "unknown_model", "context_too_long", "content_filter", "limit"}
_SOLVER_KINDS = {"solver", "cancelled", "record"}


class Past(msgspec.Struct, frozen=True):
    """What the journal holds of a key from before this process: its steps, and how its attempts ended."""

    steps: tuple[Recorded, ...] = ()
    failures: dict[int, str] = msgspec.field(default_factory=dict)

    def attempt(self) -> int:
        """The attempt to go on with: the one that was cut off, or the one after the last that failed."""
        if not self.steps and not self.failures:
            return 1
        cut_off = max((_attempt_of(each) for each in self.steps), default=1)
        return max(cut_off, max(self.failures, default=0) + 1)

    def recorded(self, attempt: int) -> list[Recorded]:
        """The steps that an attempt replays: its own, and those that succeeded before failures of infrastructure."""
        if not self.steps:
            return []
        carried: list[Recorded] = []
        for each in self.steps:
            number = _attempt_of(each)
            infrastructure = self.failures.get(number, "solver") not in _SOLVER_KINDS
            if number == attempt or (infrastructure and each.step.answer is not None):
                carried.append(each)
        asked_anew = max((number for number, kind in self.failures.items() if kind in _SOLVER_KINDS), default=0)
        return [each for each in carried if _attempt_of(each) > asked_anew]


NO_PAST = Past()


class Kit(msgspec.Struct, frozen=True):
    """What every sample of a task is answered and scored with."""

    work: Work
    models: Mapping[str, Mapping[str, Asking]]
    """By evaluated model: what a solver may ask, the evaluated model itself under the empty role."""
    scorers: Sequence[Scorer]
    evaluation: str
    allowance: Allowance
    seconds: float | None
    seed: int
    scoring: Places
    secrets: tuple[str, ...] = ()
    """What must not be in a record of what went wrong."""


class Outcome(msgspec.Struct, frozen=True):
    """How a sample ended."""

    failure: Failure | None
    spent: Spent


class Sampler:
    """Answers samples, one call each."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._closing = False
        self._draining = False
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

    async def answer(self, ticket: Ticket, kit: Kit, past: Past) -> Outcome:
        flight = Flight(ticket.key, _task(), asyncio.get_running_loop().time(), kit.seconds)
        self.flights.add(flight)
        try:
            return await self._answer(ticket, kit, past, flight)
        finally:
            self.flights.discard(flight)

    async def _answer(self, ticket: Ticket, kit: Kit, past: Past, flight: Flight) -> Outcome:
        first = attempt = past.attempt()
        while True:
            steps = Steps(Scope(ticket.o, ticket.key, f"solve/{attempt}"), self._journal, past.recorded(attempt))
            flight.steps, flight.doing = steps, "solving"
            if self._draining:
                steps.drain()
            result = await self._attempt(ticket, kit, flight, attempt)
            flight.doing = "saving"
            if isinstance(result, Answer):
                finished = SampleFinished(ticket.o, attempt, result, steps.spent(), len(kit.scorers))
                return await self._finish(ticket, kit, finished, flight)
            final = result.kind in _FINAL_KINDS or attempt - first >= kit.work.task.sample_retries
            failed = SampleFailed(ticket.o, attempt, result, final, steps.spent())
            await self._journal.append(draft("sample.failed", failed, ticket.key))
            if final:
                return Outcome(result, failed.spent)
            past = Past((*past.steps, *steps.succeeded), {**past.failures, attempt: result.kind})
            attempt += 1
            flight.since = asyncio.get_running_loop().time()

    async def _attempt(self, ticket: Ticket, kit: Kit, flight: Flight, attempt: int) -> Answer | Failure:
        work, steps = kit.work, flight.steps
        assert steps is not None
        seed = f"{kit.seed}/{ticket.key}/{attempt}"
        try:
            messages = work.renderer.messages(ticket.sample)
            models = kit.models[ticket.cell.model]
            ctx = Context(ticket.sample, messages, steps, models, seed, kit.allowance)
            answer = await _solve(work.solver, ticket.sample, ctx, _seconds_left(kit, steps))
            if _task().cancelling():  # the solver asked for it and did not wait for it: meet it here
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._closing:
                raise
            _undo_cancel()
            return _stalled(flight) or Failure("cancelled", "the solver cancelled itself")
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            return _failure(error, kit.secrets)
        finally:
            steps.close()
        if self._closing:
            raise asyncio.CancelledError  # the solver made an answer of being interrupted: it is none
        return answer

    async def _finish(self, ticket: Ticket, kit: Kit, finished: SampleFinished, flight: Flight) -> Outcome:
        try:
            record, _ = checked("sample.finished", finished, ticket.key)
        except BadRecordError as error:
            failed = SampleFailed(ticket.o, finished.attempt, Failure("record", str(error)), True, finished.spent)
            await self._journal.append(draft("sample.failed", failed, ticket.key))
            return Outcome(failed.failure, failed.spent)
        position = await self._journal.append(record)
        if kit.scorers:
            flight.doing, flight.since = "scoring", asyncio.get_running_loop().time()
            for score in await self._scores(ticket, kit, finished.answer, position.n, flight):
                self._journal.append_soon(score)  # lost with the process, they are made again
        return Outcome(None, finished.spent)

    async def score(self, ticket: Ticket, kit: Kit, answer: Answer, of: int) -> list[Draft]:
        """The scores of an answer that an earlier process recorded."""
        flight = Flight(ticket.key, _task(), asyncio.get_running_loop().time(), None)
        flight.doing = "scoring"
        self.flights.add(flight)
        try:
            return await self._scores(ticket, kit, answer, of, flight)
        finally:
            self.flights.discard(flight)

    async def _scores(self, ticket: Ticket, kit: Kit, answer: Answer, of: int, flight: Flight) -> list[Draft]:
        """A scorer that hangs, or that cancels the task that it runs in, has failed; its answer stays."""
        try:
            scores = await _judge_all(ticket, kit, answer, of, flight)
            if not self._closing:
                _undo_cancel()  # a scorer that asked for it and did not wait for it
            return scores
        except asyncio.CancelledError:
            if self._closing:
                raise
            _undo_cancel()
        failure = _stalled(flight) or Failure("cancelled", "a scorer cancelled itself")
        names = [scorer.name for scorer in kit.scorers]
        given = [ScoreGiven(ticket.o, of, kit.evaluation, name, failure=failure) for name in names]
        given[-1] = msgspec.structs.replace(given[-1], last=True)
        return [draft("score", each, ticket.key) for each in given]


async def _judge_all(ticket: Ticket, kit: Kit, answer: Answer, of: int, flight: Flight) -> list[Draft]:
    """The scores of the answer in record `of`. A scorer that fails gives a failure, and the others go on."""
    given: list[ScoreGiven] = []
    if not kit.scoring.take():
        flight.doing = "waiting to be scored"
        await kit.scoring.wait()
        flight.doing, flight.since = "scoring", asyncio.get_running_loop().time()
    try:
        for scorer in kit.scorers:
            given += await _judged(scorer, ticket, answer, of, kit)
    finally:
        kit.scoring.give_back()
    given[-1] = msgspec.structs.replace(given[-1], last=True)
    return [_drafted(each, ticket.key) for each in given]


async def _solve(solver: Solver, sample: Sample, ctx: Context, seconds: float | None) -> Answer:
    if seconds is None:
        return await solver.solve(sample, ctx)
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await solver.solve(sample, ctx)
    except TimeoutError:
        if limit.expired():
            raise LimitError(f"the sample took longer than its limit of {seconds:g} s", "timeout") from None
        raise


async def _judged(scorer: Scorer, ticket: Ticket, answer: Answer, of: int, kit: Kit) -> list[ScoreGiven]:
    try:
        scores = await judge(scorer, ticket.sample, answer)
    except ScoringFailed as error:
        return [ScoreGiven(ticket.o, of, kit.evaluation, scorer.name, failure=redacted(error.failure, kit.secrets))]
    except JournalError:
        raise  # the journal has stopped: so does the run
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        failure = failure_of("scorer", error, kit.secrets)
        return [ScoreGiven(ticket.o, of, kit.evaluation, scorer.name, failure=failure)]
    return [
        ScoreGiven(ticket.o, of, kit.evaluation, name, score.value, score.reason, score.metadata)
        for name, score in scores.items()
    ]


def _drafted(given: ScoreGiven, key: str) -> Draft:
    """A score that cannot be saved is the scorer's failure."""
    try:
        return checked("score", given, key)[0]
    except BadRecordError as error:
        failure = Failure("record", str(error))
        return draft("score", msgspec.structs.replace(given, value=None, reason="", metadata={}, failure=failure), key)


def _failure(error: BaseException, secrets: Sequence[str]) -> Failure:
    """What a solver's exception means, also inside a group. A journal that has stopped stops the run."""
    for known in (JournalError, LimitError, StepFailedError, BadRecordError):
        found = _first(error, known)
        if isinstance(found, StepFailedError):
            return redacted(msgspec.structs.replace(found.failure, detail=own_lines(found)), secrets)
        if isinstance(found, LimitError):
            return redacted(Failure(found.kind, str(found), own_lines(found)), secrets)
        if isinstance(found, BadRecordError):
            return redacted(Failure("record", str(found), own_lines(found)), secrets)
        if found is not None:
            raise found
    return failure_of("solver", error, secrets)


def _first(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, (_first(each, kind) for each in error.exceptions)), None)
    return error if isinstance(error, kind) else None


def _stalled(flight: Flight) -> Failure | None:
    """If the watch has cancelled it: once, then its next attempt begins anew."""
    if not flight.stalled:
        return None
    flight.stalled = False
    return Failure("stalled", f"nothing moved while {flight.doing}; cancelled by on_stall: cancel-sample")


def _task() -> "asyncio.Task[object]":
    task = asyncio.current_task()
    assert task is not None
    return task


def _undo_cancel() -> None:
    """A solver that cancelled the task that it runs in must not take the worker with it."""
    task = _task()
    while task.cancelling():
        task.uncancel()


def _seconds_left(kit: Kit, steps: Steps) -> float | None:
    """What an attempt may still take: what its recorded steps took counts."""
    return None if kit.seconds is None else max(kit.seconds - steps.recorded_seconds, 0.001)


def _attempt_of(recorded: Recorded) -> int:
    return int(recorded.step.scope.split("/")[1])
