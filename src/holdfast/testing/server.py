"""The test server in an event loop. It listens on the loopback interface only and serves any model name:

`POST …/chat/completions`, `POST …/completions`, `POST …/responses`, `POST …/messages`,
`POST …/models/MODEL:generateContent` and `:streamGenerateContent`, `GET …/models`, `GET /stats`, `GET /requests`.
It uses aiohttp's low-level server, without routing, so that benchmarks do not measure the server.
"""

import asyncio
import socket
import struct
import time
from collections import deque
from email.utils import formatdate
from typing import Any, Self

import msgspec
import xxhash
from aiohttp import web

from holdfast.testing.anthropic import MessagesServer
from holdfast.testing.batch import AnthropicBatchRoutes, Jobs, OpenAIBatchRoutes
from holdfast.testing.behaviour import (
    ENDINGS,
    SHAPES,
    Arrival,
    Behaviour,
    Fault,
    LoadState,
    RequestCounts,
    Seen,
    Stats,
    fault_for,
    latency_for,
)
from holdfast.testing.chat import ChatServer, ResponsesServer
from holdfast.testing.completions import CompletionServer
from holdfast.testing.google import GenerateContentServer
from holdfast.testing.protocols import (
    BadRequestError,
    Refusal,
    ServerAnswer,
    ServerProtocol,
    ServerRequest,
    answer_for,
    digest_of,
    encode,
    reshape,
)

_HOST = "127.0.0.1"
_CLOSING_SECONDS = 0.05
_RESET = struct.pack("ii", 1, 0)  # linger for zero seconds: the peer receives a reset, not a normal end
_MODELS = (
    b'{"object":"list","data":[{"id":"test-model","object":"model","owned_by":"holdfast"}],'
    b'"models":[{"name":"models/test-model"}]}'
)
_EVENTS = "text/event-stream"
_STATUSES = {"broken-off": 503, "429-retry-date": 429}
_PIECE_SECONDS = 0.02

_BODIES: dict[str, tuple[bytes, str]] = {
    "malformed": (b'{"choices": [{"message": {"role": "assist', "application/json"),
    "empty": (b"", "application/json"),
    "other-json": (b'["an", "answer", 42]', "application/json"),
    "html": (b"<!doctype html><html><body><h1>Bad gateway</h1></body></html>", "text/html"),
}

_CHAT = ChatServer()
_PROTOCOLS: dict[str, ServerProtocol] = {
    "/responses": ResponsesServer(),
    "/messages": MessagesServer(),
    ":generateContent": GenerateContentServer(),
    ":streamGenerateContent": GenerateContentServer(),
}


class ModelServer:
    """`async with ModelServer(behaviour) as server`. `behaviour` may be replaced while it runs."""

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self._port = port
        self._counts = RequestCounts()
        self._load_state = LoadState()
        self._kept: deque[Seen] = deque()
        self._closing = asyncio.Event()
        jobs = Jobs(self.behaviour.batch, self._closing)
        self._routes = (OpenAIBatchRoutes(jobs, self._complete_line), AnthropicBatchRoutes(jobs, self._complete_line))
        self._web: web.Server | None = None
        self._listener: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """The base URL, for a provider of any protocol."""
        return f"http://{_HOST}:{self._port}/v1"

    def stats(self) -> Stats:
        return self._counts.stats()

    def requests(self) -> list[Seen]:
        """The latest requests, oldest first: as many as `Behaviour.kept`."""
        return list(self._kept)

    async def start(self) -> None:
        self._web = web.Server(self._handle, handler_cancellation=True, access_log=None)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._accept, _HOST, self._port, backlog=4096)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close every connection; requests that hang or wait get no response."""
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
        if request.method == "POST":
            protocol = _CHAT if path.endswith("/chat/completions") else self._protocol_at(path)
            if protocol is not None:
                return await self._complete(request, protocol, path)
        if request.method == "GET" and path == "/stats":
            return _json(encode(self.stats()))
        if request.method == "GET" and path == "/requests":
            return _json(encode(self.requests()))
        if request.method == "GET" and path.endswith("/models"):
            return _json(_MODELS)
        for routes in self._routes:
            if (reply := await routes.handle(request)) is not None:
                return reply
        return _json(_CHAT.error_body(Refusal(404, f"no such path: {request.method} {path}")), 404)

    def _protocol_at(self, path: str) -> ServerProtocol | None:
        if path.endswith("/completions") and self.behaviour.completions.exists:
            return CompletionServer(self.behaviour.completions)
        return _protocol_at(path)

    async def _complete(self, request: web.BaseRequest, protocol: ServerProtocol, path: str) -> web.StreamResponse:
        raw = await request.content.read()  # not request.read(): that has a limit of 1 MiB
        try:
            parsed = protocol.read(raw, path)
        except (msgspec.DecodeError, UnicodeDecodeError, BadRequestError) as error:
            self._counts.arrive(xxhash.xxh3_64_hexdigest(raw))
            self._counts.leave()
            return _json(protocol.error_body(Refusal(400, f"the request is invalid: {error}")), 400)
        if self.behaviour.kept:
            self._kept.append(Seen(dict(request.headers), msgspec.json.decode(raw)))
            while len(self._kept) > self.behaviour.kept:
                self._kept.popleft()
        digest = digest_of(parsed.model, parsed.messages)
        arrival = self._counts.arrive(digest)
        load = self.behaviour.load
        try:
            if not self._load_state.takes(load, self._counts.in_flight, time.monotonic()):
                # At once, without latency: an overloaded server does that too.
                self._counts.faults[str(load.status)] += 1
                body = protocol.error_body(Refusal(load.status, "more than the test server accepts"))
                refused = _json(body, load.status)
                if load.retry_after:
                    refused.headers["Retry-After"] = load.retry_after
                refused.headers.update(self._load_state.headers(load))
                return refused
            await self._load_state.enter(self.behaviour.load)
            try:
                seconds = latency_for(self.behaviour, arrival)
                if seconds:
                    await asyncio.sleep(seconds)
                response = await self._respond(request, protocol, parsed, arrival)
            finally:
                self._load_state.leave(self.behaviour.load)
            if self.behaviour.load.tells:
                response.headers.update(self._load_state.headers(self.behaviour.load))
            return response
        finally:
            self._counts.leave()

    def _complete_line(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The response body of one request of a job."""
        protocol = _protocol_at(path) or _CHAT
        parsed = protocol.read(encode(body), path)
        digest = digest_of(parsed.model, parsed.messages)
        return protocol.body(ServerAnswer(digest, parsed.model, answer_for(self.behaviour, parsed.messages, digest)))

    async def _respond(
        self, request: web.BaseRequest, protocol: ServerProtocol, parsed: ServerRequest, arrival: Arrival
    ) -> web.StreamResponse:
        fault = fault_for(self.behaviour, arrival)
        if fault is not None:
            self._counts.faults[fault.kind] += 1
            if (
                fault.kind not in _ANSWERED
                and fault.kind not in _WHOLE
                and not (parsed.stream and fault.kind in _BREAKS)
            ):
                return await self._misbehave(request, protocol, fault)
        answer = answer_for(self.behaviour, parsed.messages, arrival.digest)
        if isinstance(protocol, CompletionServer):
            choice = protocol.choice(parsed.messages[0]["asked"], answer.text)
            answer = msgspec.structs.replace(answer, message={"choice": choice})
        reply = ServerAnswer(arrival.digest, parsed.model, answer if fault is None else reshape(answer, fault.kind))
        if fault is not None and fault.kind == "wrong-type":
            return _json(encode(protocol.body(reply)), content_type="text/plain")
        if fault is not None and fault.kind == "trickle":
            response = await _trickle(request, encode(protocol.body(reply)))
            self._counts.answer(arrival.digest)
            return response
        if fault is not None and fault.kind not in _ANSWERED:
            return await self._break(request, protocol, reply, fault)
        if fault is None or fault.kind in SHAPES or fault.kind in ENDINGS:
            self._counts.answer(arrival.digest)
        if parsed.stream:
            return await _stream(request, [self._rewrite(parsed, b"".join(protocol.events(reply)))])
        body = protocol.body(reply)
        return _json(self._rewrite(parsed, encode(body if fault is None else _misshape(body, fault))))

    def _rewrite(self, parsed: ServerRequest, content: bytes) -> bytes:
        rewrite = self.behaviour.rewrite
        return content if rewrite is None else rewrite(parsed.messages, content)

    async def _misbehave(self, request: web.BaseRequest, protocol: ServerProtocol, fault: Fault) -> web.StreamResponse:
        if fault.kind == "hang":
            await self._closing.wait()
            return _abort(request)
        if fault.kind == "reset":
            return _abort(request)
        if fault.kind in ("cut", "unended", "stall"):
            response = await _begin(request, {"Content-Type": "application/json", "Content-Length": "1000"})
            await response.write(b'{"choices": [')
            if fault.kind == "stall":
                await self._closing.wait()
            return _cut(request, response)
        if fault.kind == "no-choices":
            return _json(protocol.empty_body)
        if fault.kind in _BODIES:
            content, content_type = _BODIES[fault.kind]
            return _json(content, content_type=content_type)
        return _refuse(request, protocol, fault)

    async def _break(
        self, request: web.BaseRequest, protocol: ServerProtocol, reply: ServerAnswer, fault: Fault
    ) -> web.StreamResponse:
        """A stream that fails after it has begun."""
        events = list(protocol.events(reply))
        if fault.kind == "unended":
            return await _stream(request, events[:-1])
        if fault.kind == "malformed":
            return await _stream(request, [events[0], b'data: {"choi\n\n'])
        if fault.kind in ("empty", "no-choices"):
            return await _stream(request, [])
        if fault.kind == "broken-off":
            return await _stream(
                request, [events[0], protocol.error_event(Refusal(503, "test server fault: overloaded"))]
            )
        response = await _begin(request, {"Content-Type": _EVENTS})
        await response.write(events[0] + events[1][:-2])
        if fault.kind == "stall":
            await self._closing.wait()
        return _cut(request, response)


_ANSWERED = {*SHAPES, *ENDINGS, "filtered"}
_WHOLE = {"wrong-type", "trickle"}
"""Faults that send a whole answer, but in a way that a client may reject."""
_BREAKS = {"unended", "malformed", "empty", "no-choices", "broken-off", "stall", "cut"}
"""Faults that look different in a stream."""


def _protocol_at(path: str) -> ServerProtocol | None:
    return next((protocol for end, protocol in _PROTOCOLS.items() if path.endswith(end)), None)


def _misshape(body: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """The body as a fault changes it, still a valid answer."""
    kind = fault.kind
    if kind == "same-id":
        return {**body, "id": "the-same"}
    if kind == "huge":
        return {**body, "x_unknown": "x" * (fault.megabytes << 20)}
    if kind == "no-usage":
        return {name: value for name, value in body.items() if name not in ("usage", "usageMetadata")}
    if kind == "null-tool-calls":
        for choice in body.get("choices", ()):
            choice["message"] |= {"tool_calls": None, "function_call": None, "x_unknown": {"a": [1]}}
        return {**body, "service_tier": None, "x_unknown": {"a": [1]}}
    return body


def _json(body: bytes, status: int = 200, content_type: str = "application/json") -> web.Response:
    return web.Response(body=body, status=status, headers={"Content-Type": content_type})


def _refuse(request: web.BaseRequest, protocol: ServerProtocol, fault: Fault) -> web.Response:
    """An error response. Like some real servers, a 401 repeats the API key."""
    refusal = protocol.refusals.get(fault.kind)
    if refusal is None:
        status = _STATUSES.get(fault.kind) or int(fault.kind)
        given = [request.headers.get(name, "") for name in ("Authorization", "x-api-key", "x-goog-api-key")]
        key = f", incorrect API key provided: {''.join(given).removeprefix('Bearer ')}" if status == 401 else ""
        refusal = Refusal(status, f"test server fault {status}{key}")
    if fault.kind == "429-retry-after":
        refusal = msgspec.structs.replace(refusal, retry_after=fault.retry_after)
    if fault.kind == "429-retry-date":
        until = formatdate(time.time() + float(fault.retry_after), usegmt=True)
        refusal = msgspec.structs.replace(refusal, retry_after=until)
    response = _json(protocol.error_body(refusal), refusal.status)
    if refusal.retry_after:
        response.headers["Retry-After"] = refusal.retry_after
    return response


def _abort(request: web.BaseRequest) -> web.Response:
    transport = request.transport
    if transport is not None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()
    return web.Response()


async def _begin(request: web.BaseRequest, headers: dict[str, str]) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


async def _stream(request: web.BaseRequest, events: list[bytes]) -> web.StreamResponse:
    response = await _begin(request, {"Content-Type": _EVENTS})
    for each in events:
        await response.write(each)
    await response.write_eof()
    return response


async def _trickle(request: web.BaseRequest, body: bytes) -> web.StreamResponse:
    """Send the body byte by byte, with pauses."""
    response = await _begin(request, {"Content-Type": "application/json", "Content-Length": str(len(body))})
    for place in range(len(body)):
        await response.write(body[place : place + 1])
        await asyncio.sleep(_PIECE_SECONDS)
    await response.write_eof()
    return response


def _cut(request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.close()
    return response
