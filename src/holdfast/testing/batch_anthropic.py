"""The test server's endpoints for Anthropic's message batches: no files, no metadata, one URL of results."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from aiohttp import web

from holdfast.testing.anthropic import MessagesServer
from holdfast.testing.batch import Complete, Jobs, SimulatedJob, as_json, line_fault, send_lines
from holdfast.testing.protocols import Refusal

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
            return _refuse(status, f"test server: no job, {status}")
        requests = [(each["custom_id"], each["params"]) for each in job_request["requests"]]
        if not requests or len({name for name, _ in requests}) < len(requests):
            return _refuse(400, "requests: custom_id must be unique within a batch")
        job = self._jobs.create("msgbatch", requests, {}, _PATH)
        await self._jobs.hang_at("create")
        return as_json(_describe(job))

    def _look(self, name: str) -> web.StreamResponse:
        job = self._jobs.looked_at(name)
        return as_json(_describe(job)) if isinstance(job, SimulatedJob) else _refuse(job.status, job.text)

    def _list(self, request: web.BaseRequest) -> web.StreamResponse:
        query = request.rel_url.query
        jobs, limit = self._jobs.listed(query.get("after_id")), int(query.get("limit", "20"))
        for job in jobs:  # without metadata, a client must wait for the end of a job to see whose it is
            self._jobs.look(job)
        page = jobs[:limit]
        last = page[-1].id if page else None
        return as_json({"data": list(map(_describe, page)), "has_more": len(jobs) > limit, "last_id": last})

    async def _results(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        job = self._jobs.jobs.get(name)
        if job is None or job.status == "in_progress":
            return _refuse(404, f"no results of {name}")
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


def _describe(job: SimulatedJob) -> dict[str, Any]:
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


def _refuse(status: int, text: str) -> web.Response:
    return as_json(_MESSAGES.error_body(Refusal(status, text)), status)
