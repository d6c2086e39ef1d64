"""The test server in an event loop. Bound to the loopback only; any model name is served.

`POST …/chat/completions`, `GET …/models`, `GET /stats`, `GET /requests`. Built on aiohttp's low-level server,
without routing, so that it is not what a benchmark measures.
"""

import asyncio
import socket
import struct
import time
from collections import deque
from typing import Any, Self

import msgspec
import xxhash
from aiohttp import web

from holdfast.records.exchange import Message
from holdfast.testing.bearing import Bearing
from holdfast.testing.behaviour import SHAPES, Arrival, Behaviour, Fault, fault_for, latency_for
from holdfast.testing.counts import Counts, Seen, Stats
from holdfast.testing.replies import completion, error_body, reshape

_HOST = "127.0.0.1"
_CLOSING_SECONDS = 0.05
_RESET = struct.pack("ii", 1, 0)  # linger for zero seconds: the peer gets a reset, not an end
_MODELS = b'{"object":"list","data":[{"id":"test-model","object":"model","owned_by":"holdfast"}]}'

_BODIES: dict[str, tuple[bytes, str]] = {
    "malformed": (b'{"choices": [{"message": {"role": "assist', "application/json"),
    "empty": (b"", "application/json"),
    "no-choices": (b'{"object":"chat.completion","choices":[]}', "application/json"),
    "html": (b"<!doctype html><html><body><h1>Bad gateway</h1></body></html>", "text/html"),
}

_REFUSALS: dict[str, tuple[int, str, str]] = {
    "429-retry-after": (429, "Rate limit reached", "rate_limit_exceeded"),
    "context-too-long": (
        400,
        "This model's maximum context length is 8 tokens, your messages have more",
        "context_length_exceeded",
    ),
    "content-filter": (400, "The prompt was refused by the content management policy", "content_filter"),
}


class _Body(msgspec.Struct):
    """What the server looks at in a request."""

    messages: list[Message]
    model: str = ""


_decoder = msgspec.json.Decoder(_Body)
_canonical = msgspec.json.Encoder(order="deterministic")


class ModelServer:
    """`async with ModelServer(behaviour) as server`. `behaviour` may be replaced while it runs."""

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self._port = port
        self._counts = Counts()
        self._bearing = Bearing()
        self._kept: deque[Seen] = deque()
        self._closing = asyncio.Event()
        self._web: web.Server | None = None
        self._listener: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        return f"http://{_HOST}:{self._port}/v1"

    def stats(self) -> Stats:
        return self._counts.stats()

    def requests(self) -> list[Seen]:
        """The last ones, oldest first: as many as the behaviour says are kept."""
        return list(self._kept)

    async def start(self) -> None:
        self._web = web.Server(self._handle, handler_cancellation=True, access_log=None)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._accept, _HOST, self._port, backlog=4096)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends every connection; requests that hang or wait get no answer."""
        if self._listener is None or self._web is None:
            return
        self._closing.set()
        self._listener.close()
        await self._web.shutdown(_CLOSING_SECONDS)
        await self._listener.wait_closed()
        self._listener = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _accept(self) -> asyncio.Protocol:
        assert self._web is not None
        self._counts.connections += 1
        return self._web()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.path
        if request.method == "POST" and path.endswith("/chat/completions"):
            return await self._complete(request)
        if request.method == "GET" and path == "/stats":
            return _json(msgspec.json.encode(self.stats()))
        if request.method == "GET" and path == "/requests":
            return _json(msgspec.json.encode(self.requests()))
        if request.method == "GET" and path.endswith("/models"):
            return _json(_MODELS)
        return _json(error_body(404, f"no such path: {request.method} {path}"), 404)

    async def _complete(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await request.content.read()  # not request.read(): that has a limit of 1 MiB
        try:
            body = _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._refuse_bad(raw, error)
        self._keep(request, raw)
        digest = _digest(_canonical.encode([body.model, body.messages]))
        arrival = self._counts.arrive(digest)
        try:
            if not self._bearing.takes(self.behaviour.load, self._counts.in_flight, time.monotonic()):
                return self._refuse_more()
            await self._bearing.enter(self.behaviour.load)
            try:
                seconds = latency_for(self.behaviour, arrival)
                if seconds:
                    await asyncio.sleep(seconds)
                response = await self._respond(request, body, arrival)
            finally:
                self._bearing.leave(self.behaviour.load)
            if self.behaviour.load.tells:
                response.headers.update(self._bearing.headers(self.behaviour.load))
            return response
        finally:
            self._counts.leave()

    def _refuse_more(self) -> web.StreamResponse:
        """At once: whatever bears no more takes no time over saying so."""
        load = self.behaviour.load
        self._counts.faults[str(load.status)] += 1
        response = _json(error_body(load.status, "more than the test server bears"), load.status)
        if load.retry_after:
            response.headers["Retry-After"] = load.retry_after
        response.headers.update(self._bearing.headers(load))
        return response

    def _keep(self, request: web.BaseRequest, raw: bytes) -> None:
        if self.behaviour.kept:
            self._kept.append(Seen(dict(request.headers), msgspec.json.decode(raw)))
            while len(self._kept) > self.behaviour.kept:
                self._kept.popleft()

    def _refuse_bad(self, raw: bytes, error: Exception) -> web.StreamResponse:
        self._counts.arrive(_digest(raw))
        self._counts.leave()
        return _json(error_body(400, f"the body is no chat request: {error}"), 400)

    async def _respond(self, request: web.BaseRequest, body: _Body, arrival: Arrival) -> web.StreamResponse:
        fault = fault_for(self.behaviour, arrival)
        if fault is not None:
            self._counts.faults[fault.kind] += 1
            if fault.kind not in SHAPES:
                return await self._misbehave(request, body, fault, arrival.digest)
        self._counts.answered += 1
        answer = self._answer(body, arrival.digest)
        return _json(msgspec.json.encode(reshape(answer, fault.kind) if fault else answer))

    async def _misbehave(self, request: web.BaseRequest, body: _Body, fault: Fault, digest: str) -> web.StreamResponse:
        if fault.kind == "hang":
            await self._closing.wait()
            return _abort(request)
        if fault.kind == "reset":
            return _abort(request)
        if fault.kind == "cut":
            return await _cut(request)
        if fault.kind == "filtered":
            return _json(msgspec.json.encode(reshape(self._answer(body, digest), "filtered")))
        if fault.kind in _BODIES:
            content, content_type = _BODIES[fault.kind]
            return _json(content, content_type=content_type)
        return _refuse(request, fault)

    def _answer(self, body: _Body, digest: str) -> dict[str, Any]:
        return completion(self.behaviour, body.model, body.messages, digest)


def _digest(content: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(content)


def _json(body: bytes, status: int = 200, content_type: str = "application/json") -> web.Response:
    return web.Response(body=body, status=status, headers={"Content-Type": content_type})


def _refuse(request: web.BaseRequest, fault: Fault) -> web.Response:
    """A status. Like some real servers it repeats the key that it was given."""
    if fault.kind in _REFUSALS:
        status, text, code = _REFUSALS[fault.kind]
    else:
        status, code = int(fault.kind), ""
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        text = f"test server fault {status}" + (f", incorrect API key provided: {key}" if status == 401 else "")
    response = _json(error_body(status, text, code), status)
    if fault.kind == "429-retry-after":
        response.headers["Retry-After"] = fault.retry_after
    return response


def _abort(request: web.BaseRequest) -> web.Response:
    transport = request.transport
    if transport is not None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()
    return web.Response()


async def _cut(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    if request.transport is not None:
        request.transport.close()
    return response
