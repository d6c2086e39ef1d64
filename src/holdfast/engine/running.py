"""The engine: joins a plan, models, solvers and scorers with one journal, and keeps them busy.

Each cell has workers of its own, so that a slow model does not hold up a fast one; the run, each task and each model
have limits that all of them share. Totals always add up: finished + failed + unfinished = planned.
"""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from holdfast.engine.asking import Line
from holdfast.engine.attempts import NO_PAST, Kit, Past, Sampler, judge_all
from holdfast.engine.places import Places
from holdfast.engine.tickets import Ticket, Tickets
from holdfast.journal import Entry, Position, Reader, Writer
from holdfast.plan import Work
from holdfast.records.exchange import Usage
from holdfast.records.facts import Cell, SampleFinished, Step
from holdfast.score import Scorer
from holdfast.solve import Allowance, Recorded
from holdfast.spec import Spec
from holdfast.state import Fold, Trail

_COLLECT_AFTER = 50_000
_step = msgspec.json.Decoder(Step)
_finished = msgspec.json.Decoder(SampleFinished)


class Job(msgspec.Struct, frozen=True):
    """Everything that a run needs beside its journal."""

    run: str
    journal_folder: str
    uid: str
    spec: Spec
    works: Mapping[str, Work]
    scorers: Mapping[str, Sequence[Scorer]]
    evaluation: str
    cells: Sequence[Cell]


class Progress(msgspec.Struct):
    """How far a run is; replaced in place, for whoever shows it."""

    planned: int
    finished: int = 0
    failed: int = 0
    before: int = 0
    """Finished before this process began, or failed and left so."""
    retried: int = 0
    """Requests that were made again."""
    live: int = 0
    replayed: int = 0
    usage: Usage = Usage()
    in_flight: int = 0
    started: float = 0.0
    last_failure: str = ""


class Engine:
    """One process's work on one run."""

    def __init__(self, job: Job, writer: Writer, fold: Fold, clock: Callable[[], float] = time.monotonic) -> None:
        self.progress = Progress(
            planned=fold.planned,
            finished=fold.finished.count,
            failed=fold.failed.count,
            before=fold.finished.count + fold.failed.count,
            started=clock(),
        )
        self._job = job
        self._fold = fold
        self._reader = Reader(job.journal_folder, job.uid)
        self._reading = threading.Lock()
        self._writer = writer
        self._sampler = Sampler(writer)
        self._samples = Places(job.spec.concurrency.samples)
        self._tasks = {task.name: Places(task.max_samples) if task.max_samples else None for task in job.spec.tasks}
        self._scoring = Places(job.spec.concurrency.score)
        generate = job.spec.concurrency.generate
        everywhere = Places(generate) if generate else None
        told = self._count_retry
        self._lines = {each.name: Line(each, f"models.{each.name}", everywhere, told) for each in job.spec.models}
        self._roles = {name: Line(each, f"roles.{name}", everywhere, told) for name, each in job.spec.roles.items()}
        self._kits = {name: self._kit(work) for name, work in job.works.items()}
        self._workers: list[asyncio.Task[None]] = []
        self._stopping = False

    async def run(self) -> None:
        """Answer and score everything that is not. Raises what stops the whole run; a sample's failure does not."""
        with _fewer_collections():
            try:
                await self._score_left_over()
                for cell in self._job.cells if not self._stopping else ():
                    self._start_workers(cell)
                if self._workers:
                    await self._wait()
            finally:
                await self._end()

    def stop(self) -> None:
        """Stop now: what is in flight is left unfinished, with its steps recorded."""
        self._stopping = True
        self._sampler.close()
        for worker in self._workers:
            worker.cancel()

    @property
    def stopped(self) -> bool:
        return self._stopping

    async def _wait(self) -> None:
        done, _ = await asyncio.wait(self._workers, return_when=asyncio.FIRST_EXCEPTION)
        for worker in done:
            if not worker.cancelled() and worker.exception() is not None:
                self.stop()
                raise worker.exception() or AssertionError("unreachable")
        if self._stopping:
            await asyncio.wait(self._workers)

    async def _end(self) -> None:
        self._sampler.close()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for line in (*self._lines.values(), *self._roles.values()):
            await line.provider.close()
        self._reader.close()

    def _start_workers(self, cell: Cell) -> None:
        model = next(model for model in self._job.spec.models if model.name == cell.model)
        done, failed = self._fold.finished, self._fold.failed
        work = self._job.works[cell.task]
        tickets = Tickets(
            self._job.run, cell, self._job.spec, work, lambda ordinal: ordinal not in done and ordinal not in failed
        )
        for _ in range(min(cell.count, self._job.spec.concurrency.samples, model.max_connections)):
            self._workers.append(asyncio.create_task(self._work(cell, tickets)))

    async def _work(self, cell: Cell, tickets: Tickets) -> None:
        kit, task = self._kits[cell.task], self._tasks[cell.task]
        more = True
        while more:
            if task is None:
                more = await self._answer_next(tickets, kit)
                continue
            if not task.take():  # whoever waits for its task must not hold a place of the run
                await task.wait()
            try:
                more = await self._answer_next(tickets, kit)
            finally:
                task.give_back()

    async def _answer_next(self, tickets: Tickets, kit: Kit) -> bool:
        if not self._samples.take():
            await self._samples.wait()
        try:
            ticket = tickets.at_hand() or await tickets.next()
            if ticket is not None:
                await self._answer(ticket, kit)
            return ticket is not None
        finally:
            self._samples.give_back()

    async def _answer(self, ticket: Ticket, kit: Kit) -> None:
        progress = self.progress
        progress.in_flight += 1
        try:
            trail = self._fold.trails.pop(ticket.o, None)
            past = NO_PAST if trail is None else await asyncio.to_thread(self._read_past, trail)
            outcome = await self._sampler.answer(ticket, kit, past)
        finally:
            progress.in_flight -= 1
        if outcome.failure is None:
            progress.finished += 1
        else:
            progress.failed += 1
            progress.last_failure = f"{ticket.key}: {outcome.failure.kind}: {outcome.failure.message}"
        progress.live += outcome.spent.live
        progress.replayed += outcome.spent.replayed
        progress.usage += outcome.spent.usage

    def _count_retry(self) -> None:
        self.progress.retried += 1

    def _read_past(self, trail: Trail) -> Past:
        """A key's old steps, read when it is dispatched."""
        entries = [self._record_at(position) for position in trail.steps]
        steps = [Recorded(entry.line.n, _step.decode(entry.line.d)) for entry in entries if entry is not None]
        return Past(tuple(steps), dict(trail.failures))

    def _record_at(self, position: Position) -> Entry | None:
        """One record, from any thread."""
        with self._reading:
            entry = self._reader.record_at(position.segment, position.offset)
        return entry if entry is not None and entry.line.n == position.n else None

    async def _score_left_over(self) -> None:
        """Answers that were recorded by a process that died before it had scored them."""
        if not self._fold.unscored:
            return
        wanted = self._fold.unscored
        for cell in self._job.cells:
            kit = self._kits[cell.task]
            if not kit.scorers:
                continue
            tickets = Tickets(self._job.run, cell, self._job.spec, kit.work, lambda ordinal: ordinal in wanted)
            while not self._stopping and (ticket := await tickets.next()) is not None:
                position = wanted[ticket.o]
                entry = await asyncio.to_thread(self._record_at, position)
                if entry is not None:
                    answer = _finished.decode(entry.line.d).answer
                    for score in await judge_all(ticket, kit, answer, position.n):
                        await self._writer.append(score)

    def _kit(self, work: Work) -> Kit:
        spec = self._job.spec
        roles = {name: line.asking() for name, line in self._roles.items()}
        limits = spec.limits.sample
        return Kit(
            work=work,
            models={name: {"": line.asking(), **roles} for name, line in self._lines.items()},
            scorers=self._job.scorers.get(work.task.name, ()),
            evaluation=self._job.evaluation,
            allowance=Allowance(limits.steps, limits.tokens),
            seconds=limits.seconds,
            seed=spec.seed,
            scoring=self._scoring,
        )


@contextlib.contextmanager
def _fewer_collections() -> Iterator[None]:
    """Hundreds of samples in flight are many objects and hardly a cycle: looking for cycles after every 700 new ones
    took a sixth of the time of a run over HTTP.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _COLLECT_AFTER) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
