"""The batch API of OpenAI and of servers like it: a file is uploaded, a job made of it, files of results read.

The job's metadata hold our token: after a crash the list of jobs is searched for it.
"""

import contextlib
import math
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

import msgspec
from yarl import URL

from holdfast.models.batch.api import TOKEN_NAME, Found, Mark, Result, Standing
from holdfast.models.batch.transfer import BatchWire, FileName, JobName, Page, chunks, decode_line, url_of
from holdfast.models.failures import ModelError
from holdfast.models.http.bodies import decode
from holdfast.models.http.endpoint import Endpoint, build, read_key
from holdfast.models.http.statuses import detail_of, kind_of, shorten
from holdfast.models.provider import Connection, Request
from holdfast.models.providers.openai import INFO, make_dialect

_WINDOW = "24h"
_ENDED = {"completed", "failed", "expired", "cancelled"}


class OpenAIBatches:
    """One model's jobs behind one URL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._dialect = make_dialect(connection)
        self._single = str(self._dialect.url(URL("/v1"), connection.model, stream=False))
        self._base = url_of(connection, INFO.base_url)
        key = read_key(connection, *INFO.key_variables)
        self._endpoint = Endpoint(connection, self._url("batches"), key, self._dialect.headers(key.value))
        self._wire = BatchWire(self._endpoint)

    def body(self, request: Request) -> bytes:
        return self._endpoint.encode(build(self._dialect, self._connection.model, request, stream=False))

    def line(self, name: str, body: bytes) -> bytes:
        line = {"custom_id": name, "method": "POST", "url": self._single, "body": msgspec.Raw(body)}
        return msgspec.json.encode(line) + b"\n"

    async def submit(self, token: str, lines: BinaryIO) -> str:
        opening, closing = _form(token)
        size = len(opening) + lines.seek(0, 2) + len(closing)
        parts = _around(opening, lines, closing)
        kind = f"multipart/form-data; boundary={token}"
        uploaded = await self._wire.send(self._url("files"), parts, kind, size, _Named)
        body = {
            "input_file_id": uploaded.id,
            "endpoint": self._single,
            "completion_window": _WINDOW,
            "metadata": {TOKEN_NAME: token},
        }
        made = await self._wire.post(self._url("batches"), body, _Batch)
        if not made.is_marked(token):
            told = (
                "the server does not keep the metadata of jobs: one that is submitted in the moment of a crash is lost"
            )
            self._connection.tell("batch.unmarked", f"job {made.id}: {told}, and its requests are bought again")
        return made.id

    async def find(self, mark: Mark) -> Found:
        async with contextlib.aclosing(
            self._wire.jobs(self._url("batches"), "after", Page[_Batch], mark.since)
        ) as jobs:
            async for each in jobs:
                if each.is_marked(mark.token):
                    return Found(each.id)
        return Found()

    async def look(self, job: str) -> Standing:
        found = await self._wire.get(self._url("batches", job), _Batch)
        if found is None:
            return Standing(job, "gone", "gone", "the server has no such job", whole=False)
        if found.status not in _ENDED:
            return Standing(job, "waiting", found.status)
        files = tuple(each for each in (found.output_file_id, found.error_file_id) if each)
        return Standing(job, "ended", found.status, _detail(found.errors), files, found.status == "completed")

    async def results(self, standing: Standing) -> AsyncIterator[bytes]:
        for file in standing.results:
            async for line in self._wire.lines(self._url("files", file, "content")):
                yield line

    def parse(self, line: bytes) -> Result | None:
        found = decode_line(line, _line)
        if found is None:
            return None
        if found.response is None:
            return Result(found.custom_id)  # not done: the job's time was up
        status, body = found.response.status_code, bytes(found.response.body)
        if not 200 <= status < 300:
            text = body.decode(errors="replace")
            said = f"HTTP {status}: {shorten(detail_of(text))}"
            return Result(found.custom_id, error=ModelError(kind_of(status, text), said, status=status))
        try:
            decoded = decode(body)
            answer = self._dialect.answer(decoded)
        except ModelError as error:
            return Result(found.custom_id, error=error)
        raw = decoded if self._connection.record_raw else None
        return Result(found.custom_id, msgspec.structs.replace(answer, raw=raw) if raw else answer)

    async def close(self) -> None:
        await self._endpoint.close()

    def _url(self, *parts: str) -> URL:
        url = self._base
        for part in parts:
            url /= part
        return url.with_query(self._base.query)


class _Named(msgspec.Struct, frozen=True):
    """What matters of a file."""

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
        """Servers that are only like OpenAI's write other things here: then it may be of any time."""
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
    """What stands before and after a file in the form that uploads it."""
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
    """The first of the reasons for which a server would not do a job."""
    listed = errors.get("data") if isinstance(errors, dict) else errors
    first = listed[0] if isinstance(listed, list) and listed else listed
    if isinstance(first, dict):
        first = first.get("message") or first.get("code")
    return shorten(str(first)) if first else ""
