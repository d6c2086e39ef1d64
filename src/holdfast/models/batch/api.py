"""The interface of batch APIs: many requests in one job, answered within a day, for half the price.

A job is submitted once, polled until it has ended, and its results are read line by line. Invariant: whatever a server
omits, duplicates or garbles in its results becomes a result without an answer, never another request's answer. Nothing
here retries or waits: `jobs.py` does, because that depends on what is recorded.

A batch API for providers that run in this process (the mock, a user's function), to try out batches.

`submit` processes all requests of a job, one after the other. Jobs live in memory: after a crash they are gone, and
their requests are sent again.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import BinaryIO, Literal, Protocol

import msgspec

from holdfast.models.provider import BadConnectionError, Connection, Kind, ModelError, Request
from holdfast.models.providers.registry import load_factory, make_provider
from holdfast.records import Answer
from holdfast.spec import LOCAL_BATCHES, PROVIDERS

TOKEN_NAME = "holdfast"
"""The name of the token in a job's metadata, where jobs have metadata."""


Ready = Callable[[], Awaitable[None]]
"""Returns when this process may send."""


class JobMark(msgspec.Struct, frozen=True):
    """What identifies a job that may have been submitted before a crash, and whose id was not recorded."""

    token: str
    requests: int
    since: float
    """When it was announced in the journal, in seconds since 1970."""


class FoundJob(msgspec.Struct, frozen=True):
    """The result of a search for a job. `undecided`: a candidate exists, but cannot be inspected yet."""

    id: str = ""
    undecided: bool = False


class JobStatus(msgspec.Struct, frozen=True):
    """The status of a job."""

    id: str
    state: Literal["waiting", "ended", "gone"]
    status: str = ""
    """The server's own status."""
    detail: str = ""
    """Why it failed, if the server reports it."""
    results: tuple[str, ...] = ()
    """Where its results are; only the BatchApi that returned it understands this."""
    whole: bool = True
    """All its requests were processed: it did not expire, fail or get cancelled."""


class BatchResult(msgspec.Struct, frozen=True):
    """The outcome of one request. Neither an answer nor an error: it was not processed."""

    name: str
    answer: Answer | None = None
    error: ModelError | None = None


class BatchApi(Protocol):
    """One model's batch API. Every method raises ModelError, and nothing else but a cancellation."""

    def body(self, request: Request) -> bytes:
        """The JSON body that a single request would have."""
        ...

    def line(self, name: str, body: bytes) -> bytes:
        """One line of the job's input, with its newline."""
        ...

    async def submit(self, token: str, lines: BinaryIO, ready: Ready) -> str:
        """Create a job from these lines and return its id; await `ready` right before each request that costs. After a
        retryable or `malformed` error, the server may have created the job all the same.
        """
        ...

    async def find(self, mark: JobMark) -> FoundJob: ...

    async def look(self, job: str) -> JobStatus: ...

    def results(self, job_status: JobStatus) -> AsyncIterator[bytes]:
        """The lines of all results, in any order."""
        ...

    def parse(self, line: bytes) -> BatchResult | None:
        """The result in a line; None if it cannot be parsed."""
        ...

    async def close(self) -> None: ...


def open_batches(connection: Connection) -> BatchApi:
    """The batch API of a connection's provider. BadConnectionError if it has none."""
    info = PROVIDERS.get(connection.provider)
    factory = LOCAL_BATCHES if info is None else info.batch_factory
    if not factory:
        hosted = [name for name, each in PROVIDERS.items() if each.batch_factory not in ("", LOCAL_BATCHES)]
        advice = f"remove `batch`, or use {' or '.join(hosted)}"
        raise BadConnectionError(f"batch: the provider {connection.provider!r} has no batch API; {advice}")
    api: BatchApi = load_factory(factory)(connection)
    return api


class _Line(msgspec.Struct, frozen=True):
    name: str
    request: Request


class _Done(msgspec.Struct, frozen=True):
    name: str
    answer: Answer | None = None
    kind: Kind | None = None
    message: str = ""


_line = msgspec.json.Decoder(_Line)
_done = msgspec.json.Decoder(_Done)


class LocalBatches:
    """The jobs of one provider."""

    def __init__(self, connection: Connection) -> None:
        self._provider = make_provider(connection)
        self._jobs: dict[str, list[bytes]] = {}

    def body(self, request: Request) -> bytes:
        try:
            return msgspec.json.encode(request)
        except (TypeError, ValueError, RecursionError) as error:
            raise ModelError("bad_request", f"the request cannot be written as JSON ({error})") from None

    def line(self, name: str, body: bytes) -> bytes:
        return msgspec.json.encode({"name": name, "request": msgspec.Raw(body)}) + b"\n"

    async def submit(self, token: str, lines: BinaryIO, ready: Ready) -> str:
        lines.seek(0)
        done = []
        for line in lines:
            await ready()
            done.append(msgspec.json.encode(await self._process(_line.decode(line))))
        self._jobs[token] = done
        return token

    async def find(self, mark: JobMark) -> FoundJob:
        return FoundJob(mark.token if mark.token in self._jobs else "")

    async def look(self, job: str) -> JobStatus:
        if job not in self._jobs:
            return JobStatus(job, "gone", "gone", "the process that ran it has ended", whole=False)
        return JobStatus(job, "ended", "completed", results=(job,))

    async def results(self, job_status: JobStatus) -> AsyncIterator[bytes]:
        for job in job_status.results:
            for line in self._jobs[job]:
                yield line

    def parse(self, line: bytes) -> BatchResult | None:
        done = _done.decode(line)
        error = None if done.kind is None else ModelError(done.kind, done.message)
        return BatchResult(done.name, done.answer, error)

    async def close(self) -> None:
        await self._provider.close()

    async def _process(self, line: _Line) -> _Done:
        try:
            return _Done(line.name, await self._provider.generate(line.request))
        except ModelError as error:
            return _Done(line.name, kind=error.kind, message=error.message)
