"""Gathers requests to one model into jobs of a batch API, and delivers their answers to the samples.

Durability order: a job is announced in the journal, with the step of each request, before it is submitted under a token
of our own; its id is recorded before Holdfast waits for it. After a crash:

- A job that may or may not have been submitted is searched for by its token. Only if the server does not list it after
  the settling time is it given up, and its requests go into another job.
- A sample that repeats a request which is in a job receives that job's answer.
- Results are kept in a temporary file; if the process dies, they are downloaded again.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from holdfast.errors import JournalError, describe_error
from holdfast.models.batch.jobs import NEVER_SENT, BatchSetup, JobRunner, ServerJob, parse_outcome
from holdfast.models.call import HeldInJob, wait_to_send
from holdfast.models.provider import AskFailedError, ModelError, Request
from holdfast.records import Answer, BatchJob, Failure, StepId, draft

_GATHERING_MAX = 10
"""A job is submitted after at most this many times `quiet_seconds`, even if requests keep arriving."""
_AT_ONCE = 100
"""How many answers are delivered in one round of the event loop."""

Single = Callable[[], Awaitable[tuple[Answer, int]]]


class PendingJobs(msgspec.Struct, frozen=True):
    """Jobs at the server."""

    jobs: int = 0
    requests: int = 0
    since: float = 0.0
    """When the oldest job was announced; 0 if there is none."""


class UnansweredError(AskFailedError):
    """A request failed, and its job has no answer at all: the request may not be the cause."""

    def __init__(self, error: ModelError, tries: int) -> None:
        super().__init__(Failure(error.kind, error.message), tries)
        self.error = error


class _Item(msgspec.Struct, frozen=True):
    """A request that waits for a job."""

    body: bytes
    joined: "asyncio.Future[ServerJob]"


class Batches:
    """The jobs of one model. It belongs to the event loop that first uses it."""

    def __init__(self, desk: BatchSetup) -> None:
        self._desk = desk
        self._runner = JobRunner(desk)
        self._jobs: dict[StepId, ServerJob] = {}
        self._pending: dict[StepId, _Item] = {}
        self._bytes = 0
        self._first = self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._active: set[ServerJob] = set()
        self._draining = False
        self.sending = 0
        """How many jobs are being submitted."""

    @property
    def line(self) -> str:
        return self._desk.line

    def begin(self, jobs: Iterable[ServerJob]) -> None:
        """Take over the jobs of earlier processes, the oldest first. They are polled when a sample needs them."""
        for job in jobs:
            for step in job.left:
                self._jobs[step] = job  # a request without an answer in an earlier job may be in a later one

    def waiting(self) -> PendingJobs:
        jobs = [job for job in self._active if not job.ended]
        if not jobs:
            return PendingJobs()
        return PendingJobs(len(jobs), sum(len(job.waiters) for job in jobs), min(job.at for job in jobs))

    def drain(self) -> None:
        """Submit no more jobs; a submission in progress may finish."""
        self._draining = True
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Stop waiting. Jobs at the server stay there."""
        self.drain()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for job in {*self._jobs.values(), *self._active}:
            job.close()
        await self._desk.api.close()

    def has(self, step: StepId) -> bool:
        """Whether the step is already in a job, and so paid for."""
        return step in self._jobs

    async def ask(self, step: StepId, request: Request, single: Single) -> tuple[Answer, int, str]:
        """The answer, the number of tries, and the token of its job ("" if it was sent singly); or AskFailedError. A
        request that a completed job did not answer is sent singly; one that an expired job left goes into the next.
        """
        tries = 0
        while True:
            job = self._jobs.get(step)
            if job is None and self._desk.batch is None:
                answer, more = await single()
                return answer, tries + more, ""
            with HeldInJob():
                if job is None:
                    job = await self._join(step, request)
                if not job.ended:
                    await self._wait_for(job, step)
            found = self._take(job, step)
            tries += job.status != NEVER_SENT
            if isinstance(found, Answer):
                return found, tries, job.token
            if isinstance(found, ModelError):
                if not job.answered:
                    raise UnansweredError(found, tries)
                raise AskFailedError(Failure(found.kind, found.message), tries)
            if job.whole:
                self._desk.retried(f"sent singly, because in its job: {found}")
                answer, more = await single()
                return answer, tries + more, ""
            if tries > self._desk.retries:
                raise AskFailedError(Failure("timeout", f"{tries} jobs did not answer it; the last: {found}"), tries)

    async def _wait_for(self, job: ServerJob, step: StepId) -> None:
        if not job.followed:
            self._follow(job, self._runner.carry(job))
        waiter = job.waiters[step] = asyncio.get_running_loop().create_future()
        self._desk.changed()
        try:
            await waiter
        finally:
            job.waiters.pop(step, None)

    def _take(self, job: ServerJob, step: StepId) -> Answer | ModelError | str:
        if self._jobs.get(step) is job:
            del self._jobs[step]
        line = job.take(step)
        if job.refusal is not None:
            return job.refusal
        if line is None:
            return job.detail or f"the job is {job.status}, without a result for it"
        return parse_outcome(line, self._desk.api)

    # Gathering.

    async def _join(self, step: StepId, request: Request) -> ServerJob:
        """Wait until a job with this request is announced."""
        try:
            body = self._desk.api.body(request)
        except ModelError as error:
            raise UnansweredError(error, 0) from error  # nothing was sent
        loop, settings = asyncio.get_running_loop(), self._desk.settings
        if self._bytes + len(body) > settings.megabytes * 1_000_000:
            self._flush()
        item = self._pending[step] = _Item(body, loop.create_future())
        self._bytes += len(body)
        self._last = loop.time()
        if len(self._pending) == 1:
            self._first = self._last
            self._wake_in(settings.quiet_seconds)
        if len(self._pending) >= settings.requests:
            self._flush()
        try:
            return await item.joined
        finally:
            if self._pending.get(step) is item:  # its sample was cancelled
                del self._pending[step]
                self._bytes -= len(body)

    def _wake_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._draining:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._flush_if_quiet)

    def _flush_if_quiet(self) -> None:
        now, quiet = asyncio.get_running_loop().time(), self._desk.settings.quiet_seconds
        left = min(self._last + quiet, self._first + _GATHERING_MAX * quiet) - now
        if left > 0:
            self._wake_in(left)
        else:
            self._flush()

    def _flush(self) -> None:
        """Turn the gathered requests into a job; not while the run ends: they wait for the next start."""
        if not self._pending or self._draining:
            return
        items, self._pending, self._bytes = self._pending, {}, 0
        job = ServerJob(f"hf{uuid.uuid4().hex[:20]}", tuple(items), time.time())
        self._follow(job, self._send(job, items))

    # One job.

    async def _send(self, job: ServerJob, items: dict[StepId, _Item]) -> None:
        await wait_to_send(self._desk.may_send)
        if self._draining:
            return
        self.sending += 1
        try:
            await self._announce(job, items)
            bodies = [item.body for item in items.values()]
            for step, item in items.items():
                self._jobs[step] = job
                if not item.joined.done():
                    item.joined.set_result(job)
            items.clear()
            await self._runner.submit(job, bodies, self._wait_while_sending)
        finally:
            self.sending -= 1
        if not job.ended:
            await self._runner.carry(job)

    async def _wait_while_sending(self) -> None:
        """Meanwhile the job is not being submitted: a run that ends does not wait for it."""
        self.sending -= 1
        try:
            await wait_to_send(self._desk.may_send)
        finally:
            self.sending += 1

    async def _announce(self, job: ServerJob, items: dict[StepId, _Item]) -> None:
        """Record the job before it is submitted. A stopped journal fails the waiting samples, and so ends the run."""
        try:
            await self._desk.journal.append(draft("batch", BatchJob(job.token, self._desk.line, job.requests)))
        except JournalError as error:
            for item in items.values():
                if not item.joined.done():
                    item.joined.set_exception(error)
            raise

    def _follow(self, job: ServerJob, work: Awaitable[None]) -> None:
        job.followed = True
        self._active.add(job)
        task = asyncio.ensure_future(self._supervise(job, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supervise(self, job: ServerJob, work: Awaitable[None]) -> None:
        try:
            await work
        except JournalError as error:
            for waiter in job.waiters.values():
                if not waiter.done():
                    waiter.set_exception(error)
        except Exception as error:  # noqa: BLE001 - a full disk or a bug: the consequence is the same
            # Its requests may be paid for: its waiters must not send them in another way.
            why = str(error) if isinstance(error, ModelError) else describe_error(error)
            what = "collected" if job.id else "made"
            self._desk.stop(f"job {job.id or job.token} of {self._desk.line} cannot be {what}: {why}")
        finally:
            self._active.discard(job)
            self._desk.changed()
        await self._release(job)

    async def _release(self, job: ServerJob) -> None:
        """Wake the waiting samples, some at a time, so that the event loop stays responsive."""
        if not job.ended:
            return
        for number, waiter in enumerate(list(job.waiters.values()), 1):
            if not waiter.done():
                waiter.set_result(None)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
