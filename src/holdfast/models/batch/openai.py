"""The batch API of OpenAI and compatible servers: upload a file, create a job from it, download files of results.

The job's metadata hold a token of our own: after a crash, the list of jobs is searched for it.
"""

import contextlib
import math
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

import msgspec
from yarl import URL

from holdfast.models.batch.api import TOKEN_NAME, BatchResult, FoundJob, JobMark, JobStatus, Ready
from holdfast.models.batch.transfer import BatchTransport, FileName, JobName, JobPage, chunks, decode_line, url_of
from holdfast.models.http.bodies import decode
from holdfast.models.http.endpoint import Endpoint, build, read_key
from holdfast.models.http.statuses import detail_of, kind_of, shorten
from holdfast.models.likelihood import likelihood_texts
from holdfast.models.provider import Connection, ModelError, Request
from holdfast.models.providers.openai import INFO, make_dialect

_WINDOW = "24h"
_ENDED = {"completed", "failed", "expired", "cancelled"}


class OpenAIBatches:
    """The jobs of one model behind one URL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._dialect = make_dialect(connection)
        self._request_path = str(self._dialect.url(URL("/v1"), connection.model, stream=False))
        self._base = url_of(connection, INFO.base_url)
        key = read_key(connection, *INFO.key_variables)
        self._endpoint = Endpoint(connection, self._url("batches"), key, self._dialect.headers(key.value))
        self._transport = BatchTransport(self._endpoint)

    def body(self, request: Request) -> bytes:
        if likelihood_texts(request.messages) is not None:
            raise ModelError(
                "unsupported", "a batch job cannot hold likelihood requests: remove `batch` from the model"
            )
        return self._endpoint.encode(build(self._dialect, self._connection.model, request, stream=False))

    def line(self, name: str, body: bytes) -> bytes:
        line = {"custom_id": name, "method": "POST", "url": self._request_path, "body": msgspec.Raw(body)}
        return msgspec.json.encode(line) + b"\n"

    async def submit(self, token: str, lines: BinaryIO, ready: Ready) -> str:
        opening, closing = _form(token)
        size = len(opening) + lines.seek(0, 2) + len(closing)
        parts = _around(opening, lines, closing)
        kind = f"multipart/form-data; boundary={token}"
        uploaded = await self._transport.send(self._url("files"), parts, kind, size, _Named)
        body = {
            "input_file_id": uploaded.id,
            "endpoint": self._request_path,
            "completion_window": _WINDOW,
            "metadata": {TOKEN_NAME: token},
        }
        await ready()  # the upload may have taken long, and cost nothing
        made = await self._transport.post(self._url("batches"), body, _Batch)
        if not made.is_marked(token):
            problem = "the server does not keep the metadata of jobs: a job that a crash interrupts cannot be found"
            self._connection.tell("batch.unmarked", f"job {made.id}: {problem}, and its requests are sent again")
        return made.id

    async def find(self, mark: JobMark) -> FoundJob:
        async with contextlib.aclosing(
            self._transport.jobs(self._url("batches"), "after", JobPage[_Batch], mark.since)
        ) as jobs:
            async for each in jobs:
                if each.is_marked(mark.token):
                    return FoundJob(each.id)
        return FoundJob()

    async def look(self, job: str) -> JobStatus:
        found = await self._transport.get(self._url("batches", job), _Batch)
        if found is None:
            return JobStatus(job, "gone", "gone", "the server has no such job", whole=False)
        if found.status not in _ENDED:
            return JobStatus(job, "waiting", found.status)
        files = tuple(each for each in (found.output_file_id, found.error_file_id) if each)
        return JobStatus(job, "ended", found.status, _detail(found.errors), files, found.status == "completed")

    async def results(self, job_status: JobStatus) -> AsyncIterator[bytes]:
        for file in job_status.results:
            async for line in self._transport.lines(self._url("files", file, "content")):
                yield line

    def parse(self, line: bytes) -> BatchResult | None:
        found = decode_line(line, _line)
        if found is None:
            return None
        if found.response is None:
            return BatchResult(found.custom_id)  # not processed: the job expired
        status, body = found.response.status_code, bytes(found.response.body)
        if not 200 <= status < 300:
            text = body.decode(errors="replace")
            detail = f"HTTP {status}: {shorten(detail_of(text))}"
            return BatchResult(found.custom_id, error=ModelError(kind_of(status, text), detail, status=status))
        try:
            decoded = decode(body)
            answer = self._dialect.answer(decoded)
        except ModelError as error:
            return BatchResult(found.custom_id, error=error)
        raw = decoded if self._connection.record_raw else None
        return BatchResult(found.custom_id, msgspec.structs.replace(answer, raw=raw) if raw else answer)

    async def close(self) -> None:
        await self._endpoint.close()

    def _url(self, *parts: str) -> URL:
        url = self._base
        for part in parts:
            url /= part
        return url.with_query(self._base.query)


class _Named(msgspec.Struct, frozen=True):
    """An uploaded file."""

    id: JobName


class _Batch(msgspec.Struct, frozen=True):
    """A job, as the server describes it."""

    id: JobName
    status: str = ""
    created_at: Any = None
    metadata: Any = None
    output_file_id: FileName | None = None
    error_file_id: FileName | None = None
    errors: Any = None

    def is_marked(self, token: str) -> bool:
        return isinstance(self.metadata, dict) and self.metadata.get(TOKEN_NAME) == token

    @property
    def created(self) -> float:
        """Infinite if it is no number, as on some compatible servers: the job may be of any time."""
        return self.created_at if isinstance(self.created_at, int | float) else math.inf


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    body: msgspec.Raw = msgspec.Raw(b"")


class _Line(msgspec.Struct, frozen=True):
    """One line of a file of results or of errors."""

    custom_id: str
    response: _Response | None = None


_line = msgspec.json.Decoder(_Line)


def _form(token: str) -> tuple[bytes, bytes]:
    """The multipart form before and after the uploaded file."""
    opening = (
        f'--{token}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{token}\r\nContent-Disposition: form-data; name="file"; filename="{token}.jsonl"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    )
    return opening.encode(), f"\r\n--{token}--\r\n".encode()


async def _around(opening: bytes, lines: BinaryIO, closing: bytes) -> AsyncIterator[bytes]:
    yield opening
    async for part in chunks(lines):
        yield part
    yield closing


def _detail(errors: Any) -> str:
    """The first of the errors that made a job fail; empty if there is none."""
    listed = errors.get("data") if isinstance(errors, dict) else errors
    first = listed[0] if isinstance(listed, list) and listed else listed
    if isinstance(first, dict):
        first = first.get("message") or first.get("code")
    return shorten(str(first)) if first else ""
