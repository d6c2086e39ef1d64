"""Batch jobs of the test server, and the endpoints of OpenAI (files, jobs, results) and Anthropic (no files, no
metadata, one URL of results).

Requests in jobs are counted separately from single requests: `GET /batch-stats`. A job ends when it was polled often
enough, so that the test decides when that is, not a clock.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import xxhash
from aiohttp import BodyPartReader, web

from holdfast.testing.anthropic import MessagesServer
from holdfast.testing.behaviour import BatchBehaviour, BatchStats, JobStats
from holdfast.testing.chat import ChatServer
from holdfast.testing.protocols import Refusal

Complete = Callable[[str, dict[str, Any]], dict[str, Any]]
"""From the path and the body of a request to the body of its response."""
Requests = list[tuple[str, dict[str, Any]]]
"""The requests of a job: custom ids and bodies."""
_CHAT = ChatServer()
_OTHER = {"messages": [{"role": "user", "content": "1 + 1"}], "input": "1 + 1"}
"""Replaces a request's prompt, to produce a different answer."""
_canonical = msgspec.json.Encoder(order="deterministic").encode


class SimulatedJob(msgspec.Struct):
    """One job, with its requests in their order."""

    id: str
    number: int
    requests: Requests
    metadata: dict[str, Any]
    created: float
    path: str
    looked: int = 0
    status: str = "in_progress"

    @property
    def token(self) -> str:
        return self.requests[0][0].rpartition("-")[0]


class Jobs:
    """All jobs of a server, of every API, with their counts."""

    def __init__(self, behaviour: BatchBehaviour, closing: asyncio.Event) -> None:
        self.behaviour = behaviour
        self.jobs: dict[str, SimulatedJob] = {}
        self.files: dict[str, Requests] = {}
        self._by_digest: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._closing = closing
        self._hanging = ""

    def stats(self) -> BatchStats:
        jobs = [JobStats(job.id, job.token, len(job.requests), job.status) for job in self.jobs.values()]
        counts = self._counts
        return BatchStats(
            jobs=jobs,
            by_digest=dict(self._by_digest),
            uploads=counts["upload"],
            looks=counts["look"],
            lists=counts["list"],
            downloads=counts["download"],
            hanging=self._hanging,
        )

    def count(self, what: str) -> int:
        self._counts[what] += 1
        return self._counts[what]

    async def hang_at(self, what: str) -> None:
        """Hang at a configured point, once, until the server closes."""
        if self.behaviour.hang == what and not self._hanging:
            self._hanging = what
            await self._closing.wait()

    def refusal(self) -> int:
        """The error status of a submission; 0 if it is accepted."""
        refusals, number = self.behaviour.refusals, self.count("submission")
        return refusals[number - 1] if number <= len(refusals) else 0

    def create(self, name: str, requests: Requests, metadata: dict[str, Any], path: str) -> SimulatedJob:
        number = len(self.jobs) + 1
        job = SimulatedJob(f"{name}_{number}", number, requests, metadata, time.time(), path)
        self.jobs[job.id] = job
        for _, body in requests:
            self._by_digest[xxhash.xxh3_64_hexdigest(_canonical(body))] += 1
        return job

    def is_locked(self) -> bool:
        """Whether this poll is rejected."""
        return self.count("lock") <= self.behaviour.locked

    def look(self, job: SimulatedJob) -> None:
        self.count("look")
        job.looked += 1
        if job.looked >= self.behaviour.polls and job.status == "in_progress":
            ends = self.behaviour.ends
            job.status = ends[job.number - 1] if job.number <= len(ends) else "completed"

    def looked_at(self, name: str) -> SimulatedJob | Refusal:
        """Poll a job: it, or the failure to send."""
        job = self.jobs.get(name)
        if job is None:
            return Refusal(404, f"no such job: {name}")
        if self.is_locked():
            return Refusal(401, "test server: locked")
        self.look(job)
        return job

    def listed(self, after: str | None) -> list[SimulatedJob]:
        """The jobs, newest first; only those after one of them, if given."""
        if self.count("list") <= self.behaviour.unlisted:
            return []
        jobs = list(self.jobs.values())[::-1]
        return jobs if after is None else jobs[[job.id for job in jobs].index(after) + 1 :]


class OpenAIBatchRoutes:
    """OpenAI's endpoints for files and jobs."""

    def __init__(self, jobs: Jobs, complete: Complete) -> None:
        self._jobs = jobs
        self._complete = complete

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse | None:
        """The response; None if the path is not about jobs."""
        parts = request.rel_url.path.strip("/").split("/")
        if request.method == "GET" and parts == ["batch-stats"]:
            return as_json(self._jobs.stats())
        match (request.method, parts[1:]):
            case "POST", ["files"]:
                return await self._upload(request)
            case "POST", ["batches"]:
                return await self._create(request)
            case "GET", ["batches"]:
                return self._list(request)
            case "GET", ["batches", name]:
                return self._look(name)
            case "GET", ["files", name, "content"]:
                return await self._download(request, name)
        return None

    async def _upload(self, request: web.BaseRequest) -> web.StreamResponse:
        fields: dict[str, bytes] = {}
        async for part in await request.multipart():
            assert isinstance(part, BodyPartReader)
            pieces: list[bytes] = []
            while piece := await part.read_chunk(1 << 20):
                pieces.append(bytes(piece))
            fields[str(part.name)] = b"".join(pieces)
        self._jobs.count("upload")
        await self._jobs.hang_at("upload")
        if fields.get("purpose") != b"batch" or "file" not in fields:
            return _refuse(400, "purpose must be batch, and there must be a file")
        lines = [msgspec.json.decode(line) for line in fields["file"].splitlines()]
        name = f"file-{len(self._jobs.files) + 1}"
        self._jobs.files[name] = [(line["custom_id"], line["body"]) for line in lines]
        return as_json({"id": name, "object": "file", "purpose": "batch", "bytes": len(fields["file"])})

    async def _create(self, request: web.BaseRequest) -> web.StreamResponse:
        job_request = msgspec.json.decode(await request.content.read())
        if status := self._jobs.refusal():
            return _refuse(status, f"test server: no job, {status}")
        requests = self._jobs.files.get(job_request.get("input_file_id", ""))
        if requests is None or job_request.get("completion_window") != "24h":
            return _refuse(400, "input_file_id must be a file, completion_window must be 24h")
        if job_request.get("endpoint") not in ("/v1/chat/completions", "/v1/responses"):
            return _refuse(400, "endpoint must be /v1/chat/completions or /v1/responses")
        metadata = {} if self._jobs.behaviour.forgets else job_request.get("metadata") or {}
        job = self._jobs.create("batch", requests, metadata, job_request["endpoint"])
        await self._jobs.hang_at("create")
        return as_json(_describe(job))

    def _look(self, name: str) -> web.StreamResponse:
        job = self._jobs.looked_at(name)
        return as_json(_describe(job)) if isinstance(job, SimulatedJob) else _refuse(job.status, job.text)

    def _list(self, request: web.BaseRequest) -> web.StreamResponse:
        jobs, limit = (
            self._jobs.listed(request.rel_url.query.get("after")),
            int(request.rel_url.query.get("limit", "20")),
        )
        return as_json({"object": "list", "data": list(map(_describe, jobs[:limit])), "has_more": len(jobs) > limit})

    async def _download(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        kind, _, job = name.partition("-")
        if kind not in ("output", "error") or job not in self._jobs.jobs:
            return _refuse(404, f"no such file: {name}")
        self._jobs.count("download")
        lines = list(self._lines(self._jobs.jobs[job], kind))
        return await send_lines(request, self._jobs, lines)

    def _lines(self, job: SimulatedJob, chosen_kind: str) -> "itertools.chain[bytes]":
        chosen = (
            line
            for number, (name, body) in enumerate(job.requests, 1)
            for kind, line in self._line(job, number, name, body)
            if kind == chosen_kind
        )
        unknown = [_result(f"nobody-{i}", 200, {}) for i in range(self._jobs.behaviour.unknown)]
        return itertools.chain(unknown if chosen_kind == "output" else [], chosen)

    def _line(self, job: SimulatedJob, number: int, name: str, body: dict[str, Any]) -> list[tuple[str, bytes]]:
        fault = line_fault(self._jobs.behaviour, number)
        if job.status != "completed" and number % 2 == 0:
            error = {"code": "batch_expired", "message": "This request could not be executed in time."}
            return [("error", msgspec.json.encode({"custom_id": name, "response": None, "error": error}))]
        if fault == "missing":
            return []
        if fault == "malformed":
            return [("output", b'{"custom_id": "' + name.encode())]
        if fault == "overloaded":
            return [("error", _result(name, 503, msgspec.Raw(_CHAT.error_body(Refusal(503, "overloaded")))))]
        if fault == "refused":
            return [("error", _result(name, 400, msgspec.Raw(_CHAT.error_body(_CHAT.refusals["content-filter"]))))]
        lines = [("output", _result(name, 200, self._complete(job.path, body)))]
        if fault == "doubled":
            lines.append(("output", _result(name, 200, self._complete(job.path, {**body, **_OTHER}))))
        return lines


def line_fault(behaviour: BatchBehaviour, number: int) -> str:
    """The fault of a line: the first that applies, or empty."""
    for fault in ("missing", "malformed", "overloaded", "refused", "doubled"):
        every = getattr(behaviour, f"{fault}_every")
        if every and number % every == 0:
            return fault
    return ""


async def send_lines(request: web.BaseRequest, jobs: Jobs, lines: list[bytes]) -> web.StreamResponse:
    """Send results as lines, with the configured hangs and cuts."""
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    await response.prepare(request)
    half = len(lines) // 2
    await response.write(b"".join(line + b"\n" for line in lines[:half]))
    await jobs.hang_at("results")
    if jobs.count("cut") <= jobs.behaviour.cuts and request.transport is not None:
        request.transport.close()
        return response
    await response.write(b"".join(line + b"\n" for line in lines[half:]))
    return response


def _result(name: str, status: int, body: Any) -> bytes:
    response = {"status_code": status, "request_id": f"req_{name}", "body": body}
    return msgspec.json.encode({"id": f"batch_req_{name}", "custom_id": name, "response": response, "error": None})


def _describe(job: SimulatedJob) -> dict[str, Any]:
    has_results = job.status in ("completed", "expired", "cancelled")
    why = [{"code": "invalid", "message": "test server: the job failed"}]
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": job.path,
        "errors": {"object": "list", "data": why} if job.status == "failed" else None,
        "completion_window": "24h",
        "status": job.status,
        "output_file_id": f"output-{job.id}" if has_results else None,
        "error_file_id": f"error-{job.id}" if has_results else None,
        "created_at": int(job.created),
        "request_counts": {"total": len(job.requests)},
        "metadata": job.metadata,
    }


def as_json(content: Any, status: int = 200) -> web.Response:
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return web.Response(body=body, status=status, headers={"Content-Type": "application/json"})


def _refuse(status: int, text: str) -> web.Response:
    return as_json(_CHAT.error_body(Refusal(status, text)), status)


_MESSAGES = MessagesServer()
_PATH = "/v1/messages"
_NOT_DONE = {"expired": "expired", "cancelled": "canceled", "failed": "errored"}


class AnthropicBatchRoutes:
    """Anthropic's endpoints for message batches."""

    def __init__(self, jobs: Jobs, complete: Complete) -> None:
        self._jobs = jobs
        self._complete = complete

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse | None:
        """The response; None if the path is not about jobs."""
        match (request.method, request.rel_url.path.strip("/").split("/")[1:]):
            case "POST", ["messages", "batches"]:
                return await self._create(request)
            case "GET", ["messages", "batches"]:
                return self._list(request)
            case "GET", ["messages", "batches", name]:
                return self._look(name)
            case "GET", ["messages", "batches", name, "results"]:
                return await self._results(request, name)
        return None

    async def _create(self, request: web.BaseRequest) -> web.StreamResponse:
        job_request = msgspec.json.decode(await request.content.read())
        self._jobs.count("upload")
        await self._jobs.hang_at("upload")
        if status := self._jobs.refusal():
            return _refuse_message_batch(status, f"test server: no job, {status}")
        requests = [(each["custom_id"], each["params"]) for each in job_request["requests"]]
        if not requests or len({name for name, _ in requests}) < len(requests):
            return _refuse_message_batch(400, "requests: custom_id must be unique within a batch")
        job = self._jobs.create("msgbatch", requests, {}, _PATH)
        await self._jobs.hang_at("create")
        return as_json(_describe_message_batch(job))

    def _look(self, name: str) -> web.StreamResponse:
        job = self._jobs.looked_at(name)
        return (
            as_json(_describe_message_batch(job))
            if isinstance(job, SimulatedJob)
            else _refuse_message_batch(job.status, job.text)
        )

    def _list(self, request: web.BaseRequest) -> web.StreamResponse:
        query = request.rel_url.query
        jobs, limit = self._jobs.listed(query.get("after_id")), int(query.get("limit", "20"))
        for job in jobs:  # without metadata, a client must wait for the end of a job to see whose it is
            self._jobs.look(job)
        page = jobs[:limit]
        last = page[-1].id if page else None
        return as_json(
            {"data": list(map(_describe_message_batch, page)), "has_more": len(jobs) > limit, "last_id": last}
        )

    async def _results(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        job = self._jobs.jobs.get(name)
        if job is None or job.status == "in_progress":
            return _refuse_message_batch(404, f"no results of {name}")
        self._jobs.count("download")
        lines = [_line(f"nobody-{i}", {"type": "expired"}) for i in range(self._jobs.behaviour.unknown)]
        for number, (custom_id, params) in enumerate(job.requests, 1):
            lines += self._lines(job, number, custom_id, params)
        return await send_lines(request, self._jobs, lines)

    def _lines(self, job: SimulatedJob, number: int, name: str, params: dict[str, Any]) -> list[bytes]:
        fault = line_fault(self._jobs.behaviour, number)
        if job.status == "failed" or (job.status != "completed" and number % 2 == 0):
            return [_line(name, {"type": "expired" if job.status == "failed" else _NOT_DONE[job.status]})]
        if fault == "missing":
            return []
        if fault == "malformed":
            return [b'{"custom_id": "' + name.encode()]
        if fault in ("overloaded", "refused"):
            refusal = Refusal(529, "Overloaded") if fault == "overloaded" else _MESSAGES.refusals["content-filter"]
            return [_line(name, {"type": "errored", "error": msgspec.Raw(_MESSAGES.error_body(refusal))})]
        return [_line(name, {"type": "succeeded", "message": self._complete(_PATH, params)})] * (
            2 if fault == "doubled" else 1
        )


def _line(name: str, result: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"custom_id": name, "result": result})


def _describe_message_batch(job: SimulatedJob) -> dict[str, Any]:
    total, ended = len(job.requests), job.status != "in_progress"
    undone = 0 if job.status in ("completed", "in_progress") else total if job.status == "failed" else total // 2
    created = datetime.fromtimestamp(job.created, UTC)
    return {
        "id": job.id,
        "type": "message_batch",
        "processing_status": "ended" if ended else "in_progress",
        "request_counts": {
            "processing": 0 if ended else total,
            "succeeded": total - undone if ended else 0,
            "errored": 0,
            "canceled": undone if job.status == "cancelled" else 0,
            "expired": undone if job.status != "cancelled" else 0,
        },
        "created_at": created.isoformat(),
        "expires_at": (created + timedelta(days=1)).isoformat(),
        "results_url": f"http://elsewhere.invalid{_PATH}/batches/{job.id}/results" if ended else None,
    }


def _refuse_message_batch(status: int, text: str) -> web.Response:
    return as_json(_MESSAGES.error_body(Refusal(status, text)), status)
