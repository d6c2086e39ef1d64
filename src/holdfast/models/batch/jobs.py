"""One job of a batch API on its way: submitted once, looked at until it has ended, its results read.

Nothing is lost by waiting, and money is by asking twice: what can be tried again is tried until it works, visibly. A
submission of which nobody knows whether it arrived is looked for before it is made again.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import BinaryIO, TypeVar

import msgspec

from holdfast.journal.positions import Journal
from holdfast.models.batch.api import BatchApi, Mark
from holdfast.models.batch.api import Standing as JobStanding
from holdfast.models.failures import ModelError
from holdfast.records import draft
from holdfast.records.facts import BatchJob, StepId
from holdfast.records.samples import Answer
from holdfast.spec import Batch

NEVER_SENT = "never sent"
_REFUSED = "refused"
_GONE = "gone"
_NOT_FOUND = 404
_FIRST_LOOK = 12
"""The first pause between two looks at a job is this part of `poll_seconds`; each next one is longer."""
_LOOKS_GROW = 1.5
_SECONDS_BASE = 0.5
_DOUBLINGS_MAX = 20

T = TypeVar("T")


class Desk(msgspec.Struct, frozen=True):
    """What the jobs of a model are done with."""

    line: str
    """The field of the spec that the model stands in."""
    api: BatchApi
    batch: Batch | None
    """None: what is in jobs already is collected, everything else is asked alone."""
    journal: Journal
    folder: str
    retries: int
    tell: Callable[..., None]
    """Into the run's log."""
    retried: Callable[[str], None]
    stop: Callable[[str], None]
    """Ends the run: what is in jobs cannot be had, and must not be bought again."""
    refuse: Callable[[ModelError], None]
    """Is told that the server makes no jobs of this model: that is the fault of no request."""
    changed: Callable[[], None] = lambda: None

    @property
    def settings(self) -> Batch:
        return self.batch or Batch()


class ServerJob:
    """One job: its requests, who waits for them, and what came of it."""

    def __init__(
        self, token: str, requests: Sequence[StepId], at: float, id: str = "", collected: bool = False
    ) -> None:
        """`at`: when it was announced. `collected`: the journal says already that it has ended."""
        self.token = token
        self.requests = tuple(requests)
        self.at = at
        self.id = id
        self.collected = collected
        self.left = {step: number for number, step in enumerate(self.requests)}
        """Requests that nobody has taken the answer of yet."""
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
        """Its results: a file, and where the line of each request is in it."""
        self._file, self._places = file, places

    def take(self, step: StepId) -> bytes | None:
        """The line of one request; None if it has none. Asked for once."""
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


class Carrier:
    """Brings jobs to the server, and their results back."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def submit(self, job: ServerJob, bodies: list[bytes]) -> None:
        """The server has it and its id is recorded, or it has refused it. Dying on the way, the next start looks for
        the job by its token. If it takes nothing from us the model is asked no more: no request is to blame for that.
        """
        with await asyncio.to_thread(self._write, job, bodies) as lines:
            bodies.clear()
            tries = 0
            while not job.id:
                try:
                    job.id = await self._desk.api.submit(job.token, lines)
                except ModelError as error:
                    if not _may_pass(error):
                        await self._refuse(job, ModelError(error.kind, f"no job can be made: {error.message}"))
                        return
                    self._desk.retried(f"a job is submitted again: {error}")
                    tries += 1
                    await self._pause(tries, error)
                    if error.kind != "rate_limit":  # the one refusal after which it is certain that there is none
                        job.id = await self._search(job, time.time())
        await self._desk.journal.append(draft("batch", BatchJob(job.token, id=job.id)))

    async def carry(self, job: ServerJob) -> None:
        """From wherever an earlier process or `submit` left it to its end."""
        if not job.id:
            job.id = await self._search(job, time.time())  # who died may have tried until then
            if not job.id:
                await self._end(job, NEVER_SENT, 0)
                return
            await self._desk.journal.append(draft("batch", BatchJob(job.token, id=job.id)))
        standing = await self._wait(job)
        try:
            answered = await self._persist(lambda: self._collect(job, standing), missing=True)
        except ModelError as error:
            if error.status != _NOT_FOUND:
                raise
            job.detail = "the server does not keep its results any more"
            await self._end(job, _GONE, 0)
            return
        job.whole, job.detail = standing.whole, standing.detail
        await self._end(job, standing.status, answered)

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
            told = f"job {job.id or job.token} is {status}, with {answered} of {len(job.requests)} answers{reason}"
            self._desk.tell("batch.incomplete", told)

    async def _search(self, job: ServerJob, tried: float) -> str:
        """Its id at the server; empty if the server does not have it though it has had time to settle since it was last
        tried.
        """
        settings, mark = self._desk.settings, Mark(job.token, len(job.requests), job.at)
        while True:
            looked = time.time()
            found = await self._persist(lambda: self._desk.api.find(mark))
            if found.id:
                return found.id
            left = tried + settings.settle_seconds - looked
            if not found.undecided and not 0 < left <= settings.settle_seconds:  # the clock may have been set
                return ""
            await asyncio.sleep(settings.poll_seconds if found.undecided else min(left, settings.poll_seconds))

    async def _wait(self, job: ServerJob) -> JobStanding:
        settings = self._desk.settings
        began, pause = time.monotonic(), settings.poll_seconds / _FIRST_LOOK
        while True:
            standing = await self._persist(lambda: self._desk.api.look(job.id))
            is_gone = standing.state == "gone" and time.monotonic() - began > settings.settle_seconds
            if standing.state == "ended" or is_gone:
                return standing
            await asyncio.sleep(pause)
            pause = min(pause * _LOOKS_GROW, settings.poll_seconds)

    async def _collect(self, job: ServerJob, standing: JobStanding) -> int:
        """Keep the results in a file, and where each is there. How many are answers. Of two for one request the first
        counts; what is none, or nobody's, is told and passed over.
        """
        names = {job.name(number): number for number in range(len(job.requests))}
        places: dict[int, tuple[int, int]] = {}
        at = answered = strange = 0
        file = await asyncio.to_thread(_nameless, self._desk.folder)
        try:
            async for line in self._desk.api.results(standing):
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
            told = f"{strange} of its lines are no results, or of no request, or a second time there"
            self._desk.tell("batch.strange_lines", f"job {job.id}: {told}; they are passed over")
        job.keep(file, places)
        return answered

    async def _persist(self, call: Callable[[], Awaitable[T]], *, missing: bool = False) -> T:
        """Until it works. ModelError if trying again cannot help. What is `missing` may come, in `settle_seconds`."""
        tries, began = 0, time.monotonic()
        while True:
            try:
                return await call()
            except ModelError as error:
                settles = time.monotonic() - began < self._desk.settings.settle_seconds
                if not _may_pass(error) and not (missing and settles and error.status == _NOT_FOUND):
                    raise
                self._desk.retried(str(error))
                tries += 1
                await self._pause(tries, error)

    async def _pause(self, tries: int, error: ModelError) -> None:
        longest = max(self._desk.settings.poll_seconds, _SECONDS_BASE)
        seconds = min(longest, _SECONDS_BASE * 2.0 ** min(tries - 1, _DOUBLINGS_MAX))
        await asyncio.sleep(max(seconds, error.retry_after or 0.0))

    def _write(self, job: ServerJob, bodies: Sequence[bytes]) -> BinaryIO:
        """The job's lines, in a file without a name."""
        file = _nameless(self._desk.folder)
        for number, body in enumerate(bodies):
            file.write(self._desk.api.line(job.name(number), body))
        file.flush()
        return file


def usable(line: bytes, api: BatchApi) -> Answer | ModelError | str:
    """What a line of results says: an answer, a failure that trying again does not mend, or why it is neither. What
    speaks of the account or the model is none of the request's: asked alone, it stops whatever it concerns.
    """
    result = api.parse(line)
    if result is not None and result.answer is not None:
        return result.answer
    if result is None or result.error is None:
        return "it has no result"
    if result.error.retryable or result.error.policy.is_of_line:
        return str(result.error)
    return result.error


def _nameless(folder: str) -> BinaryIO:
    """A file that goes away with us."""
    return tempfile.TemporaryFile(dir=folder)


def _may_pass(error: ModelError) -> bool:
    """`malformed`: what was asked for may have been done, only the word of it was lost."""
    return error.retryable or error.kind == "malformed"
