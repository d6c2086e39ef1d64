"""Anthropic's message batches: one request creates a job, one URL has its results.

Jobs have no metadata: only the custom ids in a job's results show whose job it is. So after a crash, the results of
every job of the right size and time are inspected. A candidate that has not ended is waited for before the search
concludes that the job was never created.
"""

import contextlib
import math
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, BinaryIO

import msgspec
from yarl import URL

from holdfast.models.batch.api import BatchResult, FoundJob, JobMark, JobStatus, Ready
from holdfast.models.batch.transfer import SKEW_SECONDS, BatchTransport, JobName, JobPage, decode_line, url_of
from holdfast.models.http.bodies import Values, decode, mapping
from holdfast.models.http.endpoint import Endpoint, build, read_key
from holdfast.models.http.statuses import detail_of, shorten
from holdfast.models.provider import Connection, ModelError, Request
from holdfast.models.providers.anthropic import INFO, Messages

_OPENING, _CLOSING = b'{"requests":[', b"]}"
_PART_BYTES = 256 * 1024


class AnthropicBatches:
    """The jobs of one model behind one URL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._dialect = Messages()
        base = url_of(connection, INFO.base_url)
        self._url = (base / "messages" / "batches").with_query(base.query)
        key = read_key(connection, *INFO.key_variables)
        self._endpoint = Endpoint(connection, self._url, key, self._dialect.headers(key.value))
        self._transport = BatchTransport(self._endpoint)

    def body(self, request: Request) -> bytes:
        return self._endpoint.encode(build(self._dialect, self._connection.model, request, stream=False))

    def line(self, name: str, body: bytes) -> bytes:
        return msgspec.json.encode({"custom_id": name, "params": msgspec.Raw(body)}) + b"\n"

    async def submit(self, token: str, lines: BinaryIO, ready: Ready) -> str:
        size = len(_OPENING) + lines.seek(0, 2) - 1 + len(_CLOSING)  # commas replace the newlines, except the last
        await ready()
        return (await self._transport.send(self._url, _array(lines), "application/json", size, _Batch)).id

    async def find(self, mark: JobMark) -> FoundJob:
        undecided = False
        async with contextlib.aclosing(
            self._transport.jobs(self._url, "after_id", JobPage[_Batch], mark.since)
        ) as jobs:
            async for each in jobs:
                if each.size != mark.requests or each.created < mark.since - SKEW_SECONDS:
                    continue
                if each.processing_status != "ended":
                    undecided = True
                elif await self._is_of(each.id, mark.token):
                    return FoundJob(each.id)
        return FoundJob(undecided=undecided)

    async def look(self, job: str) -> JobStatus:
        found = await self._transport.get(self._of(job), _Batch)
        if found is None:
            return JobStatus(job, "gone", "gone", "the server has no such job", whole=False)
        if found.processing_status != "ended":
            return JobStatus(job, "waiting", found.processing_status)
        undone = {name: found.count(name) for name in ("expired", "canceled")}
        status = next((name for name, count in undone.items() if count), "ended")
        return JobStatus(job, "ended", status, results=(job,), whole=status == "ended")

    async def results(self, job_status: JobStatus) -> AsyncIterator[bytes]:
        """Read from our own base URL, never from the URL in the response: the key must not go to another server."""
        for job in job_status.results:
            async for line in self._transport.lines(self._of(job, "results")):
                yield line

    def parse(self, line: bytes) -> BatchResult | None:
        found = decode_line(line, _line)
        if found is None:
            return None
        if found.result.type in ("expired", "canceled"):
            return BatchResult(found.custom_id)
        try:
            body = decode(bytes(found.result.message or found.result.error))
            answer = self._dialect.answer(body)
        except ModelError as error:
            detail = (
                error.message
                if found.result.message
                else shorten(detail_of(bytes(found.result.error).decode(errors="replace")))
            )
            return BatchResult(found.custom_id, error=ModelError(error.kind, detail, status=error.status))
        raw = body if self._connection.record_raw else None
        return BatchResult(found.custom_id, msgspec.structs.replace(answer, raw=raw) if raw else answer)

    async def close(self) -> None:
        await self._endpoint.close()

    async def _is_of(self, job: str, token: str) -> bool:
        """Whether an ended job is ours: its first result has our token in its custom id."""
        async with contextlib.aclosing(self._transport.lines(self._of(job, "results"))) as lines:
            async for line in lines:
                result = self.parse(line)
                if result is not None:
                    return result.name.rpartition("-")[0] == token
        return False

    def _of(self, job: str, *parts: str) -> URL:
        url = self._url / job
        for part in parts:
            url /= part
        return url.with_query(self._url.query)


class _Batch(msgspec.Struct, frozen=True):
    """A job, as the server describes it."""

    id: JobName
    processing_status: str = ""
    created_at: Any = None
    request_counts: Any = None

    def count(self, name: str) -> int:
        """How many of its requests are in this state; 0 if that is not a valid count."""
        return Values().count(self.request_counts, name)

    @property
    def size(self) -> int:
        return sum(map(self.count, mapping(self.request_counts)))

    @property
    def created(self) -> float:
        """Infinite if it cannot be parsed: the job may be of any time."""
        try:
            return datetime.fromisoformat(self.created_at).timestamp()
        except (TypeError, ValueError, OverflowError):
            return math.inf


class _Outcome(msgspec.Struct, frozen=True):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


class _Line(msgspec.Struct, frozen=True):
    """One line of results."""

    custom_id: str
    result: _Outcome


_line = msgspec.json.Decoder(_Line)


async def _array(lines: BinaryIO) -> AsyncIterator[bytes]:
    """The lines of a file as the JSON object that creates a job."""
    lines.seek(0)
    part = _OPENING
    for number, line in enumerate(lines):
        part += (b"," if number else b"") + line.rstrip(b"\n")
        if len(part) > _PART_BYTES:
            yield part
            part = b""
    yield part + _CLOSING
