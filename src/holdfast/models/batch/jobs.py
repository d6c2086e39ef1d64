"""One job of a batch API: submitted once, polled until it has ended, its results collected.

Waiting costs nothing, but sending twice costs money. So transient failures are retried until they pass, with a message
in the log, and after a submission with an unknown outcome the server is searched for the job before it is submitted
again. A crash leaves the job at the server; the journal has its token, and its id if it was known.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import BinaryIO, TypeVar

import msgspec

from holdfast.journal import Journal
from holdfast.models.batch.api import BatchApi, JobMark, Ready
from holdfast.models.batch.api import JobStatus as JobStatus
from holdfast.models.call import MaySend
from holdfast.models.provider import ModelError
from holdfast.records import Answer, BatchJob, StepId, draft
from holdfast.spec import Batch

NEVER_SENT = "never sent"
_REFUSED = "refused"
_GONE = "gone"
_NOT_FOUND = 404
_FIRST_LOOK = 12
"""The first pause between two polls is `poll_seconds` divided by this; each later pause is longer."""
_LOOKS_GROW = 1.5
_SECONDS_BASE = 0.5
_DOUBLINGS_MAX = 20

T = TypeVar("T")


class BatchSetup(msgspec.Struct, frozen=True):
    """Everything that the jobs of one model need."""

    line: str
    """The model's place in the spec: `models[0]`."""
    api: BatchApi
    batch: Batch | None
    """None: existing jobs are collected, all other requests are sent singly."""
    journal: Journal
    folder: str
    retries: int
    tell: Callable[..., None]
    """Writes to the run's log."""
    retried: Callable[[str], None]
    stop: Callable[[str], None]
    """Ends the run: the results of a job are unavailable, and its requests must not be paid for twice."""
    refuse: Callable[[ModelError], None]
    """Called when the server rejects jobs of this model: no single request is to blame."""
    changed: Callable[[], None] = lambda: None
    may_send: MaySend | None = None
    """If it says no, jobs wait before they are announced and before they are submitted."""

    @property
    def settings(self) -> Batch:
        return self.batch or Batch()


class ServerJob:
    """One job: its requests, the futures that wait for them, and its outcome."""

    def __init__(
        self, token: str, requests: Sequence[StepId], at: float, id: str = "", collected: bool = False
    ) -> None:
        """`at`: when it was announced. `collected`: the journal already records its end."""
        self.token = token
        self.requests = tuple(requests)
        self.at = at
        self.id = id
        self.collected = collected
        self.left = {step: number for number, step in enumerate(self.requests)}
        """Requests whose answers have not been taken yet, by number."""
        self.waiters: dict[StepId, asyncio.Future[None]] = {}
        self.followed = False
        self.ended = False
        self.status = ""
        self.detail = ""
        self.answered = 0
        self.whole = False
        self.refusal: ModelError | None = None
        self._file: BinaryIO | None = None
        self._places: dict[int, tuple[int, int]] = {}

    def name(self, number: int) -> str:
        return f"{self.token}-{number}"

    def keep(self, file: BinaryIO, places: dict[int, tuple[int, int]]) -> None:
        """Store its results: a file, and the offset and length of each request's line in it."""
        self._file, self._places = file, places

    def take(self, step: StepId) -> bytes | None:
        """The result line of one request; None if it has none. Call it once per request."""
        number = self.left.pop(step)
        place = self._places.pop(number, None)
        line = None if place is None or self._file is None else os.pread(self._file.fileno(), place[1], place[0])
        if not self.left:
            self.close()
        return line

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class JobRunner:
    """Submits jobs to the server and collects their results."""

    def __init__(self, desk: BatchSetup) -> None:
        self._desk = desk

    async def submit(self, job: ServerJob, bodies: list[bytes], ready: Ready) -> None:
        """Submit a job when this process is `ready` for it, and record its id, or its rejection. After a crash in
        between, the next start searches for the job by its token. If the server rejects the job, the model is stopped:
        no single request is to blame.
        """
        with await asyncio.to_thread(self._write, job, bodies) as lines:
            bodies.clear()
            tries = 0
            while not job.id:
                try:
                    job.id = await self._desk.api.submit(job.token, lines, ready)
                except ModelError as error:
                    if not _is_transient(error):
                        await self._refuse(job, ModelError(error.kind, f"the server rejects the job: {error.message}"))
                        return
                    self._desk.retried(f"the submission of a job is retried: {error}")
                    tries += 1
                    await self._pause(tries, error)
                    if error.kind != "rate_limit":  # only after a 429 is it certain that no job was created
                        job.id = await self._search(job, time.time())
        await self._desk.journal.append(draft("batch", BatchJob(job.token, id=job.id)))

    async def carry(self, job: ServerJob) -> None:
        """Continue a job from where `submit` or an earlier process left it, to its end."""
        if not job.id:
            job.id = await self._search(job, time.time())  # a dead process may have submitted it until just now
            if not job.id:
                await self._end(job, NEVER_SENT, 0)
                return
            await self._desk.journal.append(draft("batch", BatchJob(job.token, id=job.id)))
        job_status = await self._wait(job)
        try:
            answered = await self._retry_until_done(lambda: self._collect(job, job_status), missing=True)
        except ModelError as error:
            if error.status != _NOT_FOUND:
                raise
            job.detail = "the server has deleted its results"
            await self._end(job, _GONE, 0)
            return
        job.whole, job.detail = job_status.whole, job_status.detail
        await self._end(job, job_status.status, answered)

    async def _refuse(self, job: ServerJob, error: ModelError) -> None:
        job.refusal, job.detail = error, error.message
        self._desk.refuse(error)
        await self._end(job, _REFUSED, 0)

    async def _end(self, job: ServerJob, status: str, answered: int) -> None:
        job.status, job.answered = status, answered
        if not job.collected:
            ended = BatchJob(job.token, id=job.id, status=status, answered=answered)
            await self._desk.journal.append(draft("batch", ended))
        job.ended = True
        if answered < len(job.requests) and status != NEVER_SENT:
            reason = f": {job.detail}" if job.detail else ""
            summary = f"job {job.id or job.token} is {status}, with {answered} of {len(job.requests)} answers{reason}"
            self._desk.tell("batch.incomplete", summary)

    async def _search(self, job: ServerJob, tried: float) -> str:
        """The job's id at the server; empty if the server does not list it `settle_seconds` after the last submission.
        Lists lag behind: a new job may not be listed at once.
        """
        settings, mark = self._desk.settings, JobMark(job.token, len(job.requests), job.at)
        while True:
            looked = time.time()
            found = await self._retry_until_done(lambda: self._desk.api.find(mark))
            if found.id:
                return found.id
            left = tried + settings.settle_seconds - looked
            # More than `settle_seconds` left: the clock was changed.
            if not found.undecided and not 0 < left <= settings.settle_seconds:
                return ""
            await asyncio.sleep(settings.poll_seconds if found.undecided else min(left, settings.poll_seconds))

    async def _wait(self, job: ServerJob) -> JobStatus:
        settings = self._desk.settings
        began, pause = time.monotonic(), settings.poll_seconds / _FIRST_LOOK
        while True:
            job_status = await self._retry_until_done(lambda: self._desk.api.look(job.id))
            is_gone = job_status.state == "gone" and time.monotonic() - began > settings.settle_seconds
            if job_status.state == "ended" or is_gone:
                return job_status
            await asyncio.sleep(pause)
            pause = min(pause * _LOOKS_GROW, settings.poll_seconds)

    async def _collect(self, job: ServerJob, job_status: JobStatus) -> int:
        """Save the results in a temporary file with an index, and return the number of answers. The first of two
        results for one request counts. Invalid and unknown lines are reported and skipped.
        """
        names = {job.name(number): number for number in range(len(job.requests))}
        places: dict[int, tuple[int, int]] = {}
        at = answered = strange = 0
        file = await asyncio.to_thread(_temporary_file, self._desk.folder)
        try:
            async for line in self._desk.api.results(job_status):
                result = self._desk.api.parse(line) if line.strip() else None
                number = None if result is None else names.get(result.name)
                if number is None or number in places:
                    strange += bool(line.strip())
                elif result is not None and not (result.answer is None and result.error is None):
                    file.write(line)
                    places[number] = (at, len(line))
                    at += len(line)
                    answered += result.answer is not None
            file.flush()
        except BaseException:
            file.close()
            raise
        if strange:
            summary = f"{strange} result line(s) are invalid, duplicate or of unknown requests"
            self._desk.tell("batch.strange_lines", f"job {job.id}: {summary}; they are skipped")
        job.keep(file, places)
        return answered

    async def _retry_until_done(self, call: Callable[[], Awaitable[T]], *, missing: bool = False) -> T:
        """Retry a call until it succeeds. ModelError if a retry cannot help. With `missing`, a 404 is retried for
        `settle_seconds`: results may appear late.
        """
        tries, began = 0, time.monotonic()
        while True:
            try:
                return await call()
            except ModelError as error:
                settles = time.monotonic() - began < self._desk.settings.settle_seconds
                if not _is_transient(error) and not (missing and settles and error.status == _NOT_FOUND):
                    raise
                self._desk.retried(str(error))
                tries += 1
                await self._pause(tries, error)

    async def _pause(self, tries: int, error: ModelError) -> None:
        longest = max(self._desk.settings.poll_seconds, _SECONDS_BASE)
        seconds = min(longest, _SECONDS_BASE * 2.0 ** min(tries - 1, _DOUBLINGS_MAX))
        await asyncio.sleep(max(seconds, error.retry_after or 0.0))

    def _write(self, job: ServerJob, bodies: Sequence[bytes]) -> BinaryIO:
        """The job's lines in a temporary file."""
        file = _temporary_file(self._desk.folder)
        for number, body in enumerate(bodies):
            file.write(self._desk.api.line(job.name(number), body))
        file.flush()
        return file


def parse_outcome(line: bytes, api: BatchApi) -> Answer | ModelError | str:
    """The outcome in a result line: an answer, a permanent failure, or a text that explains why it is neither. A
    failure of the account or the model is such a text: the request is then sent singly, and that stops the model.
    """
    result = api.parse(line)
    if result is not None and result.answer is not None:
        return result.answer
    if result is None or result.error is None:
        return "it has no result"
    if result.error.retryable or result.error.policy.is_of_line:
        return str(result.error)
    return result.error


def _temporary_file(folder: str) -> BinaryIO:
    """A file without a name: it disappears with the process."""
    return tempfile.TemporaryFile(dir=folder)


def _is_transient(error: ModelError) -> bool:
    """Whether a retry may help. After a `malformed` response the server may have done its work all the same."""
    return error.retryable or error.kind == "malformed"
