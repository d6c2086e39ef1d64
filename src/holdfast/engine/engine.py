"""The scheduler: runs the samples of one plan with its models, solvers and scorers, and records to one journal.

Each cell has its own workers, so that a slow model does not hold up a fast one. The limits of the run, of each task and
of each model are shared by all workers. Invariant: finished + failed + unfinished = planned.

A crash leaves only records: steps of samples in flight, and answers without scores. The next process replays the former
(`_answer`) and scores the latter (`_start_scoring`).
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.bridge import Bridge
from holdfast.engine.anomaly_scan import AnomalyScan, expected_by_model
from holdfast.engine.attachments import Attachments, blobs_of
from holdfast.engine.budget import Budget, Grants, prices_of
from holdfast.engine.client import CellHealth, ModelClient, attempt_limits
from holdfast.engine.failures import contain_exits, inside, secrets_of
from holdfast.engine.history import read_history, read_jobs, read_judged
from holdfast.engine.in_flight import InFlightSample
from holdfast.engine.progress import Progress, RunCounts
from holdfast.engine.sample import NO_HISTORY, Outcome, Sampler, TaskSetup
from holdfast.engine.schedule import LoadLimit, Ticket, Tickets
from holdfast.engine.scoring import NO_JUDGE_HISTORY, EarlierScores, Member, RepeatGroups, ScoreSources, ScoringSetup
from holdfast.errors import BadRecordError, HoldfastError, RecordTooLargeError
from holdfast.garbage import fewer_collections
from holdfast.journal import Entry, Position, Reader, Writer
from holdfast.models import Slots, open_batch_api
from holdfast.models.batch.jobs import BatchSetup
from holdfast.models.batch.queue import Batches
from holdfast.plan import PreparedTask, scoring_roles
from holdfast.records import Answer, Cell, FactDecoder, SampleFinished, cell_names
from holdfast.sandbox.box import Sandboxes
from holdfast.score import Scorer, is_quick
from holdfast.solve import AttemptLimits, AttemptResources, ModelHandle, sandboxes_of
from holdfast.spec import Model, Spec
from holdfast.state import Fold

_UNLIMITED = 1 << 40
_DRAIN_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 1.0
_COUNT_SECONDS = 10.0
"""How often the live workers of a sharded run are counted."""
_STUBBORN_SECONDS = 2.0
"""How long to wait for code that ignores its cancellation; then the run ends without it."""
_UNSAVED = {BadRecordError.kind, RecordTooLargeError.kind}
_finished = FactDecoder(SampleFinished)
_log = logging.getLogger("holdfast")


class RunJob(msgspec.Struct, frozen=True):
    """Everything that a run needs besides its journal."""

    run: str
    journal_folder: str
    uid: str
    spec: Spec
    works: Mapping[str, PreparedTask]
    scorers: Mapping[str, Sequence[Scorer]]
    evaluation: str
    cells: Sequence[Cell]
    tell: Callable[..., None] = lambda event, message, **facts: None
    """Receives a dotted event name, a message, and fields for the log."""
    answers: bool = True
    """False: only score existing answers; send nothing to the evaluated models."""
    sources: Mapping[str, ScoreSources] = msgspec.field(default_factory=dict)
    """By task: which scorers have not changed since earlier evaluations, so that their scores are copied."""
    given: Mapping[str, str] = msgspec.field(default_factory=dict)
    """By role whose model was given for this evaluation: its name in bills."""
    grants: Grants | None = None
    """For a shard: what it may spend of the budget of its run."""


class Engine:
    """One process's work on one run."""

    def __init__(self, job: RunJob, writer: Writer, fold: Fold, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts = RunCounts(fold, job.cells, job.works, job.scorers, clock(), only_scores=not job.answers)
        self._progress = self._counts.progress
        self._clock = clock
        self._job = job
        self._fold = fold
        self._reader = Reader(job.journal_folder, job.uid)
        self._reading = threading.Lock()
        self._loads = LoadLimit()
        self._writer = writer
        self._sampler = Sampler(writer, self._count, self._answer_at, self._count_scores)
        self._samples = Slots(job.spec.concurrency.samples)
        self._tasks = {task.name: Slots(task.max_samples or _UNLIMITED) for task in job.spec.tasks}
        self._scoring = Slots(job.spec.concurrency.score)
        everywhere = self._everywhere = Slots(job.spec.concurrency.generate or _UNLIMITED)
        answered = _answered_before(fold)

        def open_client(model: Model, place: str, name: tuple[str, str]) -> ModelClient:
            client = ModelClient(model, place, everywhere, self._count_retry, self.tell, has_answers=name in answered)
            client.may_send = writer.may_send
            return client

        self._clients = {
            each.name: open_client(each, f"models.{each.name}", (each.name, "")) for each in job.spec.models
        }
        self._roles = {
            name: open_client(each, f"roles.{name}", ("", job.given.get(name, name)))
            for name, each in job.spec.roles.items()
        }
        self._batched = {each.name: Slots(each.batch.samples) for each in job.spec.models if each.batch is not None}
        self._open_batches()
        prices = prices_of(job.spec, fold.story, job.given)
        self.budget = Budget(job.spec.limits.run, fold.story, prices, self._stop_at_budget, job.grants)
        if not job.answers:
            self.budget.clear_accounts()
        self._live_workers = 1
        self._counting: asyncio.Task[None] | None = None
        self._attachments = Attachments(job.run)
        self._groups = RepeatGroups({name: job.works[name].task.repeats for name in _grouped(job.scorers)})
        self._earlier = EarlierScores(job.run, job.evaluation, job.sources)
        self._bridge = Bridge()
        self._sandboxes = Sandboxes(job.uid, blobs_of(job.run), job.tell)
        self._judges = scoring_roles(job.spec, job.works)
        self._setups = {name: self._task_setup(work) for name, work in job.works.items()}
        self._workers: list[asyncio.Task[None]] = []
        writer.on_failure(self.stop_now)  # do not pay for answers that cannot be recorded
        self._tickets: dict[int, Tickets] = {}  # by the cell's first ordinal
        self._worker_counts: dict[int, int] = {}
        self._stopping = False
        self._draining: asyncio.Task[None] | None = None
        self._stopped_at: float | None = None
        self.reason = ""
        """Why the run was stopped."""
        self.cancelled = False
        self.over_budget = ""
        """The budget that stopped the run, as a message; empty if none did."""
        self.stopped_cells: dict[tuple[str, str], str] = {}
        """By task and model: cells whose model cannot be used, and why. Their samples stay unfinished."""

    @property
    def progress(self) -> Progress:
        clients, progress = self._all_clients(), self._progress
        progress.sending = sum(client.sending for client in clients)
        progress.at_once = sum(client.pace.window.size for client in clients if client.sending or client.turns.waiting)
        progress.held = "; ".join(filter(None, (*(client.wait_reason() for client in clients), self.budget.waits_for)))
        if progress.scoring:
            progress.in_flight = len(self._sampler.flights)
        self._counts.sum_usage()
        return progress

    def progress_by_model(self) -> Progress:
        """The progress, with everything about single models: for displays, because it goes through all cells."""
        progress = self.progress
        self._counts.sum_cells(self.stopped_cells)
        for name, model in progress.models.items():
            client, account = self._clients[name], self.budget.account(name)
            model.sending, model.waiting = client.sending, client.turns.waiting
            model.dollars, model.has_unpriced = account.dollars, account.has_unpriced
        return progress

    def _all_clients(self) -> tuple[ModelClient, ...]:
        return (*self._clients.values(), *self._roles.values())

    async def run(self) -> None:
        """Answer and score everything that is missing. Raises only what stops the whole run, not a sample's failure."""
        with fewer_collections(), contain_exits():
            try:
                job = self._job
                await asyncio.to_thread(self._groups.restore_groups, job.run, job.cells, self._fold, self._reader)
                await self._earlier.open()
                await self.budget.open(shares_rates=self._has_rates)
                if job.grants is not None:
                    await self._count_workers(job.grants)
                    self._counting = asyncio.create_task(self._keep_counting(job.grants))
                await self._begin_batches()
                if job.answers:
                    await self._sandboxes.begin(sandboxes_of(job.spec))
                self._start_looking()
                for cell in job.cells if not self._stopping else ():
                    self._start_scoring(cell)
                    if job.answers:
                        self._start_workers(cell)
                await self._wait()
            finally:
                await self._end()

    def stop(self, reason: str = "stopped", *, cancelled: bool = False, grace_seconds: float | None = None) -> None:
        """Begin nothing new, wait up to the grace period for requests under way, then stop.

        A second call shortens the wait of a run that reached its budget: there requests may otherwise end in their own
        time, because they are paid for.
        """
        grace = self._job.spec.grace_seconds if grace_seconds is None else grace_seconds
        self.reason = self.reason or reason
        if self._stopping:
            if self.over_budget and self._draining is not None:
                self._draining.cancel()
                self._draining = asyncio.ensure_future(self._drain(grace))
            return
        self._stopping, self.cancelled = True, cancelled
        self._sampler.drain()
        for client in self._all_clients():
            client.drain()
        self._draining = asyncio.ensure_future(self._drain(grace))

    def _stop_at_budget(self, reason: str, grace_seconds: float | None) -> None:
        if not self._stopping:
            self.over_budget = self.budget.reached
            self._job.tell("run.budget_reached", reason)
            self.stop(reason, grace_seconds=grace_seconds)

    async def _drain(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (any(client.is_busy for client in self._all_clients()) or self._is_calling()) and loop.time() < end:  # noqa: ASYNC110 - no event on the hot path for this
            await asyncio.sleep(_DRAIN_PAUSE_SECONDS)
        if self._sampler.flights and seconds:
            await asyncio.sleep(_DRAIN_PAUSE_SECONDS)  # let samples that have their answer save it
        self.stop_now()

    def _is_calling(self) -> bool:
        """Whether a tool is being called. Wait for it: a call that must not be repeated would fail its sample."""
        return any(flight.steps is not None and flight.steps.calling for flight in self._sampler.flights)

    def stop_now(self) -> None:
        """Cancel all samples in flight. They stay unfinished; their steps are recorded."""
        self._stopping = True
        self._stopped_at = self._stopped_at or time.monotonic()
        self._sampler.close()
        for worker in self._workers:
            worker.cancel()

    def leave(self) -> None:
        """Stop now, and skip work at the end of the journal that the next start can do."""
        self.stop_now()
        self._writer.stop_waiting()

    def tell(self, event: str, message: str) -> None:
        """Write to the run's log."""
        self._job.tell(event, message)

    @property
    def flights(self) -> Collection[InFlightSample]:
        """Samples that are being answered or scored."""
        return self._sampler.flights

    @property
    def stopped(self) -> bool:
        return self._stopping

    @property
    def spec(self) -> Spec:
        """The spec with the limits in force now: a live run can be tuned."""
        return self._job.spec

    async def _wait(self) -> None:
        """Wait for all workers; for those that ignore their cancellation only a short time. `tune` may add workers."""
        done: set[asyncio.Task[None]] = set()
        while len(done) < len(self._workers):
            workers = list(self._workers)
            done, _ = await asyncio.wait(workers, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
            for worker in done:
                if not worker.cancelled() and worker.exception() is not None:
                    self.stop_now()
                    raise worker.exception() or AssertionError("unreachable")
            if len(done) < len(self._workers):
                self.budget.look_at_clock(self._clock() - self.progress.started)
            if self._stopped_at is not None and time.monotonic() - self._stopped_at > _STUBBORN_SECONDS:
                return

    async def _end(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
        self._sampler.close()
        for worker in self._workers:
            worker.cancel()
        left = [worker for worker in self._workers if not worker.done()]
        if left:
            await asyncio.wait(left, timeout=_STUBBORN_SECONDS if self._stopped_at is None else _LOOK_SECONDS)
        if self._counting is not None:
            self._counting.cancel()
        await self.budget.close()
        await self._earlier.close()
        await self._bridge.close()
        self._sandboxes.close()
        for client in self._all_clients():
            await client.close()
        self._reader.close()

    def _start_workers(self, cell: Cell) -> None:
        done, failed = self._fold.finished, self._fold.failed
        is_open = None  # all are, in a new run
        if done.count or failed.count:
            is_open = lambda ordinal: ordinal not in done and ordinal not in failed  # noqa: E731
        work = self._job.works[cell.task]
        self._tickets[cell.first] = Tickets(self._job.run, cell, self._job.spec, work, is_open)
        self._worker_counts[cell.first] = 0
        self._spawn_workers(cell)

    def _spawn_workers(self, cell: Cell) -> None:
        """Start as many workers as could be busy. What they do at once is limited by `Slots`."""
        model = next(model for model in self._job.spec.models if model.name == cell.model)
        count = min(cell.count, self._job.spec.concurrency.samples, model.max_connections)
        if model.batch is not None:  # a sample that waits for a batch job holds no connection
            count = min(cell.count, model.batch.samples)
        for _ in range(count - self._worker_counts[cell.first]):
            self._worker_counts[cell.first] += 1
            self._workers.append(asyncio.create_task(self._work(cell, self._tickets[cell.first])))

    def tune(self, spec: Spec) -> None:
        """Apply the limits of `spec` at once. Nothing else in it differs from the spec in force."""
        self._job = msgspec.structs.replace(self._job, spec=spec)
        self._samples.change(spec.concurrency.samples)
        self._scoring.change(spec.concurrency.score)
        self._everywhere.change(spec.concurrency.generate or _UNLIMITED)
        self.budget.change(spec.limits.run)
        self._tune_clients()
        for task in spec.tasks:
            self._tasks[task.name].change(task.max_samples or _UNLIMITED)
        for cell in self._job.cells if not self._stopping else ():
            if cell.first in self._tickets:
                self._spawn_workers(cell)

    def _tune_clients(self) -> None:
        for model in self._job.spec.models:
            self._clients[model.name].tune(model, self._live_workers)
        for name, model in self._job.spec.roles.items():
            self._roles[name].tune(model, self._live_workers)

    @property
    def _has_rates(self) -> bool:
        models = (*self._job.spec.models, *self._job.spec.roles.values())
        return any(each.requests_per_minute is not None or each.tokens_per_minute is not None for each in models)

    async def _count_workers(self, grants: Grants) -> None:
        """Divide requests and tokens per minute by the number of live workers."""
        if not self._has_rates:
            return
        workers = self._live_workers
        with contextlib.suppress(HoldfastError, OSError):  # the ledger cannot be read now
            workers = await asyncio.to_thread(grants.count_workers)
        if workers != self._live_workers:
            self._live_workers = workers
            self._tune_clients()
            _log.warning("requests and tokens per minute are divided by %d live workers", workers)

    async def _keep_counting(self, grants: Grants) -> None:
        while True:
            await asyncio.sleep(_COUNT_SECONDS)
            await self._count_workers(grants)

    async def _work(self, cell: Cell, tickets: Tickets) -> None:
        setup, task = self._setups[cell.task], self._tasks[cell.task]
        places = self._batched.get(cell.model, self._samples)
        trails, progress = self._fold.trails, self._progress
        inside.set(True)  # from here on the user's code may run in this task
        more = True
        while more:
            if not task.take():  # before the place of the run: a worker that waits here must not hold one
                await task.wait()
            try:
                if not places.take():
                    await places.wait()
                try:
                    is_over = self._stopping or (cell.task, cell.model) in self.stopped_cells
                    ticket = None if is_over else tickets.at_hand() or await tickets.next()
                    if ticket is None:
                        more = False
                        continue
                    progress.in_flight += 1  # not while it waits for a ticket: there may be none left
                    try:
                        if ticket.o in trails:
                            await self._continue(ticket, setup)
                        else:
                            await self._sampler.answer(ticket, setup, NO_HISTORY)
                    finally:
                        progress.in_flight -= 1
                finally:
                    places.give_back()
            finally:
                task.give_back()

    def _stop_cell(self, task: str, model: str, why: str) -> None:
        """Begin nothing more in a cell whose model cannot be used, and leave its samples unfinished. Samples that were
        just beginning call this again.
        """
        is_new = (task, model) not in self.stopped_cells
        self.stopped_cells.setdefault((task, model), why)
        self._sampler.leave(task, model)
        if is_new:
            self._job.tell(
                "cell.stopped", f"task {task} with model {model} is stopped, its other samples stay unfinished: {why}"
            )

    async def _continue(self, ticket: Ticket, setup: TaskSetup) -> None:
        """Continue a sample that an earlier process began."""
        trail = self._fold.trails.pop(ticket.o)
        async with self._loads.hold(self._fold.large.pop(ticket.o, 0)):
            past = await asyncio.to_thread(read_history, trail, self._record_at)
            await self._sampler.answer(ticket, setup, past)

    def _count(self, ticket: Ticket, outcome: Outcome) -> None:
        progress, cell = self._progress, self._counts.cells[ticket.cell.first]
        cell.left -= 1
        if outcome.failure is None:
            progress.finished += 1
            cell.of.finished += 1
        else:
            progress.failed += 1
            cell.of.failed += 1
            progress.last_failure = f"{ticket.key}: {outcome.failure.kind}: {outcome.failure.message}"
            event = "sample.save_failed" if outcome.failure.kind in _UNSAVED else "sample.failed"
            self._job.tell(event, progress.last_failure, key=ticket.key, kind=outcome.failure.kind)
        progress.anomalies += outcome.anomalies
        progress.live += outcome.spent.live
        progress.replayed += outcome.spent.replayed
        counts, usage = self._counts, outcome.spent.usage
        if usage.batched is not None:
            progress.usage += usage
        else:  # plain additions: a sum of usages costs two calls
            counts.input_tokens += usage.input_tokens
            counts.output_tokens += usage.output_tokens
            counts.cached_tokens += usage.cached_tokens
            counts.reasoning_tokens += usage.reasoning_tokens
            counts.cache_write_tokens += usage.cache_write_tokens
            counts.requests += usage.requests
        if outcome.scores:
            cell.scores.add(ticket.key, outcome.scores)

    def _count_scores(self, ticket: Ticket, scores: Mapping[str, Any]) -> None:
        """Count scores that were made after the answer was saved."""
        self._counts.cells[ticket.cell.first].scores.add(ticket.key, scores)

    def _open_batches(self) -> None:
        """Open the batch APIs of models that use them now, or that have open jobs of an earlier process."""
        named = {f"models.{each.name}": (each, self._clients[each.name]) for each in self._job.spec.models}
        named |= {f"roles.{name}": (each, self._roles[name]) for name, each in self._job.spec.roles.items()}
        with_open_jobs = {each.line for each in self._fold.story.jobs.values()} if self._job.answers else ()
        for place, (model, client) in named.items():
            if model.batch is None and place not in with_open_jobs:
                continue
            desk = BatchSetup(
                line=place,
                api=open_batch_api(model, place, tell=self.tell),
                batch=model.batch,
                journal=self._writer,
                folder=self._job.run,
                retries=model.request_retries,
                tell=self._job.tell,
                retried=self._count_retry,
                stop=self._stop_for_batch,
                refuse=client.close_to_requests,
                changed=self._count_batches,
                may_send=client.may_send,
            )
            client.batches = Batches(desk)

    async def _begin_batches(self) -> None:
        """Collect the jobs that earlier processes left at the servers; if only answers are scored, those of judges."""
        for client in self._all_clients() if self._job.answers else self._roles.values():
            if client.batches is not None:
                its = [each for each in self._fold.story.jobs.values() if each.line == client.batches.line]
                client.batches.begin(await asyncio.to_thread(read_jobs, its, self._record_at))

    def _stop_for_batch(self, why: str) -> None:
        self._job.tell("batch.failed", why)
        self.stop(why)

    def _count_batches(self) -> None:
        every = [client.batches.waiting() for client in self._all_clients() if client.batches is not None]
        self._progress.batch_jobs = sum(each.jobs for each in every)
        self._progress.batch_requests = sum(each.requests for each in every)
        oldest = min((each.since for each in every if each.jobs), default=0.0)
        self._progress.batch_since = self._clock() - (time.time() - oldest) if oldest else 0.0

    def _count_retry(self, why: str) -> None:
        self._progress.retried += 1
        self._progress.last_retry = why

    def _record_at(self, position: Position) -> Entry | None:
        """Read one record, in any thread; None if another record is there now."""
        with self._reading:
            entry = self._reader.record_at(position.segment, position.offset)
        return entry if entry is not None and entry.line.n == position.n else None

    def _answer_at(self, position: Position) -> Answer | None:
        entry = self._record_at(position)
        return None if entry is None else _finished.decode(entry.line).answer

    def _start_scoring(self, cell: Cell) -> None:
        """Start workers for answers whose process died before it had scored them."""
        unscored, setup = self._fold.unscored, self._setups[cell.task]
        if not unscored or not setup.scoring.scorers:
            return
        tickets = Tickets(self._job.run, cell, self._job.spec, setup.work, lambda ordinal: ordinal in unscored)
        for _ in range(min(len(unscored), cell.count, self._job.spec.concurrency.score)):
            self._workers.append(asyncio.create_task(self._score_left_over(tickets, setup)))

    async def _score_left_over(self, tickets: Tickets, setup: TaskSetup) -> None:
        inside.set(True)
        while not self._stopping and (ticket := await tickets.next()) is not None:
            position = self._fold.unscored[ticket.o]
            members = [Member(ticket.o, ticket.key, position.n, position=position)]
            if setup.groups is not None:
                members = setup.groups.pop_unscored_group(ticket)
            steps = self._fold.judged.pop(ticket.o, None)
            async with self._loads.hold(sum(self._fold.large.pop(each.o, 0) for each in members)):
                history = NO_JUDGE_HISTORY
                if steps is not None:
                    history = await asyncio.to_thread(read_judged, steps, self._record_at)
                done = await self._sampler.score(ticket, setup, members, history)
            self._progress.taken += done.taken
            if done.records:
                self._counts.count_scored(ticket.cell, sum(each.o in self._fold.unscored for each in members))

    def _start_looking(self) -> None:
        """Scan answers that were checked with an older list of anomalies, or with none."""
        job = self._job
        if job.answers and job.spec.anomalies and self._fold.unlooked.count and not self._stopping:
            scan = AnomalyScan(job.run, job.spec, job.works, job.cells)
            self._workers.append(asyncio.create_task(scan.look(job.journal_folder, self._writer)))

    def _task_setup(self, work: PreparedTask) -> TaskSetup:
        spec = self._job.spec
        files = self._attachments if work.task.dataset.files else None
        secrets, scorers = secrets_of(spec), self._job.scorers.get(work.task.name, ())
        resources = AttemptResources(
            models={},
            allowance=attempt_limits(spec),
            read_file=None if files is None else files.read,
            secrets=secrets,
            open_endpoint=self._bridge.open,
            may_send=self._writer.may_send,
            open_box=self._sandboxes.opener(work.task.sandbox, None if files is None else files.read),
        )
        return TaskSetup(
            work=work,
            resources={
                model: msgspec.structs.replace(resources, models=self._models(work.task.name, model, files))
                for model in self._clients
            },
            scoring=ScoringSetup(
                scorers=scorers,
                evaluation=self._job.evaluation,
                places=self._scoring,
                resources={model: self._judge_resources(resources, model, files) for model in self._clients},
                earlier=self._earlier if work.task.name in self._job.sources else None,
                seed=spec.seed,
                quick=bool(scorers) and work.task.name not in self._job.sources and all(map(is_quick, scorers)),
            ),
            seconds=spec.limits.sample.seconds,
            seed=spec.seed,
            secrets=secrets,
            expected=expected_by_model(spec, work.task) if spec.anomalies else None,
            groups=self._groups if work.task.name in _grouped(self._job.scorers) else None,
            trusted=work.solver.is_built_in,
        )

    def _judge_resources(self, resources: AttemptResources, model: str, files: Attachments | None) -> AttemptResources:
        """Return what the scorers of one model's answers may use. Each has its own handles, so that the budget knows
        whose answers the judges cost money for.
        """
        limited = self.budget.limit
        named = self._job.given
        roles = {
            name: limited(("", named.get(name, name)), client.handle(files), model)
            for name, client in self._roles.items()
        }
        return msgspec.structs.replace(resources, models=roles, allowance=AttemptLimits())

    def _models(self, task: str, model: str, files: Attachments | None) -> dict[str, ModelHandle]:
        """Return the models that the samples of one cell may use, by role. Judges are left to the scorers."""
        cells = (each for each in self._job.cells if (each.task, each.model) == (task, model))
        has_answers = any(self._fold.finished.has_any(each.first, each.count) for each in cells)
        health = CellHealth(partial(self._stop_cell, task, model), has_answers)
        limited = self.budget.limit
        models = {"": limited((model, ""), self._clients[model].handle(files, health), model)}
        for role, client in self._roles.items():
            if role not in self._judges:
                models[role] = limited(("", role), client.handle(files, health), model)
        return models


def _answered_before(fold: Fold) -> set[tuple[str, str]]:
    """Return the models, as (evaluated model, role), that answered in earlier processes of the run."""
    return {
        ("", role) if role else (cell_names(cell)[1], "")
        for cell, roles in fold.story.bills.items()
        for role, bill in roles.items()
        if bill.usage.requests
    }


def _grouped(scorers: Mapping[str, Sequence[Scorer]]) -> list[str]:
    """Return the tasks with a scorer that needs all repeats of a sample at once."""
    return [task for task, each in scorers.items() if any(scorer.group for scorer in each)]
