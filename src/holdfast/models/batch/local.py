"""A batch API for providers that run in this process (the mock, a user's function), to try out batches.

`submit` processes all requests of a job, one after the other. Jobs live in memory: after a crash they are gone, and
their requests are sent again.
"""

from collections.abc import AsyncIterator
from typing import BinaryIO

import msgspec

from holdfast.models.batch.api import BatchResult, FoundJob, JobMark, JobStatus
from holdfast.models.failures import Kind, ModelError
from holdfast.models.provider import Connection, Request
from holdfast.models.providers.registry import make_provider
from holdfast.records.samples import Answer


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

    async def submit(self, token: str, lines: BinaryIO) -> str:
        lines.seek(0)
        self._jobs[token] = [msgspec.json.encode(await self._process(_line.decode(line))) for line in lines]
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
