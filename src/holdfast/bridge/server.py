"""The bridge: an OpenAI-compatible server on the loopback interface, for agents that know nothing of Holdfast.

One server per run, started by the first sample that needs it. Each attempt has its own base URL with a random token;
the URL becomes invalid when the attempt ends. Invariants:

- Each request is one durable step. It runs in its own task, so a client that disconnects does not lose it. If the
  client, or its retry, sends the same request again, it receives the response of that step.
- Failures carry `x-should-retry: false`: Holdfast has already retried whatever is worth a retry.

A crash leaves nothing behind but the steps in the journal: the agent runs again, and recorded steps are replayed.
"""

import asyncio
import contextlib
import contextvars
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import xxhash

from holdfast.bridge.openai import (
    BadBodyError,
    ClientRequest,
    ServedAnswer,
    completion_body,
    completion_chunks,
    message_of,
    models_body,
    parse_request,
    parse_response_request,
    refusal_body,
    refusal_of,
    response_body,
    response_events,
)
from holdfast.errors import HoldfastError
from holdfast.records import LINE_BYTES_MAX, Message
from holdfast.solve import BridgeBackend, BridgeRequest, LimitError, StepFailedError

if TYPE_CHECKING:
    from aiohttp import web

_HOST = "127.0.0.1"
_WAITING_CLIENTS = 1024
_CLOSING_SECONDS = 0.05
_KEPT_ALIVE_SECONDS = 3600
_TOKEN_BYTES = 16
_PIECE_BYTES = 1 << 18
_RETRY_COUNT = "x-stainless-retry-count"
"""The header with which OpenAI's SDKs mark a retry."""
_ENDED = "the attempt that this address belonged to has ended"
_PATHS = "use POST chat/completions or POST responses, with or without stream: true, or GET models"


class AttemptOverError(HoldfastError):
    """The attempt ended while a request was in flight. Nothing waits for the response any more."""


class Bridge:
    """The server of one run. It belongs to the event loop in which `open` is first called; close it there."""

    def __init__(self) -> None:
        self._endpoints: dict[str, AttemptEndpoint] = {}
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[asyncio.Server] | None = None
        self._web: web.Server | None = None

    def open(self, host: BridgeBackend) -> "AttemptEndpoint":
        """The endpoint of one attempt. Clients may connect at once: until the server runs, the socket queues them."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise HoldfastError(
                "ctx.openai_base_url was read in a thread: read it in the solver, and pass the text to the thread"
            ) from None
        if self._socket is None:
            self._socket = socket.create_server((_HOST, 0), backlog=_WAITING_CLIENTS)
            self._socket.setblocking(False)
            # An empty context: the server must not inherit the context variables of the sample that comes first.
            self._serving = loop.create_task(self._serve(self._socket), context=contextvars.Context())
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        url = f"http://{_HOST}:{self._socket.getsockname()[1]}/{token}/v1"
        endpoint = self._endpoints[token] = AttemptEndpoint(url, host, lambda: self._endpoints.pop(token, None))
        return endpoint

    @property
    def is_open(self) -> bool:
        return self._serving is not None

    async def close(self) -> None:
        """Disconnect all clients, also those that wait for a response. Idempotent."""
        for endpoint in self._endpoints.values():
            for step in endpoint.steps():
                step.task.cancel()
        self._endpoints.clear()
        serving, self._serving = self._serving, None
        if serving is None or self._socket is None:
            return
        with contextlib.suppress(asyncio.CancelledError):
            listener = await serving
            listener.close()
            if self._web is not None:
                await self._web.shutdown(_CLOSING_SECONDS)
            await listener.wait_closed()
        self._socket.close()

    async def _serve(self, listening: socket.socket) -> asyncio.Server:
        from aiohttp import web

        # Keep idle connections for an hour: an agent may work for long between two requests, and a closed connection
        # would cost it a retry.
        self._web = web.Server(
            self._handle, handler_cancellation=True, access_log=None, keepalive_timeout=_KEPT_ALIVE_SECONDS
        )
        return await asyncio.get_running_loop().create_server(self._web, sock=listening, backlog=_WAITING_CLIENTS)

    async def _handle(self, request: "web.BaseRequest") -> "web.StreamResponse":
        token, *path = [part for part in request.rel_url.path.split("/") if part] or [""]
        endpoint = self._endpoints.get(token)
        if endpoint is None:
            return _refusal(410, refusal_body(f"{_ENDED}; use the address of a running attempt", "attempt_ended"))
        asked = f"{request.method} {'/'.join(path)}"
        if asked in _FORMATS:
            return await _complete(endpoint, request, _FORMATS[asked])
        if asked == "GET v1/models":
            return _json(200, models_body([endpoint.host.model, *endpoint.host.roles]))
        return _refusal(404, refusal_body(f"{asked}: no such path at this address; {_PATHS}", "not_found"))


class AttemptEndpoint:
    """The base URL of one attempt, and the steps that were requested through it."""

    def __init__(self, url: str, host: BridgeBackend, forget: Callable[[], object]) -> None:
        self.url = url
        self.host = host
        self.failed: BaseException | None = None
        """Why the last request failed; None if it succeeded."""
        self._forget = forget
        # The context of the sample: a user's own provider may read its context variables.
        self._context = contextvars.copy_context()
        self._steps: dict[str, list[BridgeStep]] = {}
        self._conversations: dict[str, list[Message]] = {}  # by the id of the response that ends each of them

    def close(self) -> None:
        """Make the URL invalid. Steps in flight are cancelled by the owner of the attempt's steps."""
        self._forget()

    def step_for(self, body: bytes, asked: ClientRequest, format_: "WireFormat", *, is_retry: bool) -> "BridgeStep":
        """The step of a request. The step of an identical earlier request is reused if its response was never
        delivered (the client disconnected), or if the client marks this request as a retry; else a new one starts.
        """
        same = self._steps.setdefault(xxhash.xxh3_128_hexdigest(format_.prefix.encode() + body), [])
        for each in same:
            if not each.waiting and not each.delivered:
                return each
        if not same or not is_retry:
            loop = asyncio.get_running_loop()
            same.append(BridgeStep(loop.create_task(self._ask(asked, format_), context=self._context.copy())))
        return same[-1]

    def steps(self) -> list["BridgeStep"]:
        """All steps, in no particular order."""
        return [each for same in self._steps.values() for each in same]

    async def _ask(self, asked: ClientRequest, format_: "WireFormat") -> "ServedAnswer | BaseException":
        """Run the step. Errors are returned, not raised: the client may be gone, and its retry must get them too."""
        role = asked.model if asked.model in self.host.roles else ""
        if asked.previous and asked.previous not in self._conversations:
            return BadBodyError(f"previous_response_id: no answer of this attempt is called {asked.previous}")
        conversation = [*self._conversations.get(asked.previous, ()), *asked.messages]
        try:
            answered = await self.host.ask(
                BridgeRequest([*asked.before, *conversation], role, asked.tools, asked.params)
            )
        except asyncio.CancelledError:
            return AttemptOverError(_ENDED)
        except BaseException as error:  # noqa: BLE001 - a provider may be user code that raises anything
            self.failed = error
            return error
        self.failed = None
        served = ServedAnswer(f"{format_.prefix}{answered.id}", asked.model, answered.answer)
        if format_.is_stateful:
            self._conversations[served.id] = [*conversation, message_of(answered.answer)]
        return served


class BridgeStep:
    """One step that a client requested: its task, and whether its response was delivered to a client."""

    __slots__ = ("delivered", "task", "waiting")

    def __init__(self, task: "asyncio.Task[ServedAnswer | BaseException]") -> None:
        self.task = task
        self.waiting = 0
        self.delivered = False


class WireFormat(msgspec.Struct, frozen=True):
    """One API that the bridge serves: how to parse its requests, and how to write its responses, whole or streamed."""

    prefix: str
    """The prefix of its response ids."""
    parse: Callable[[bytes], ClientRequest]
    body: Callable[[ServedAnswer], bytes]
    chunks: Callable[[ServedAnswer, ClientRequest], Iterator[bytes]]
    is_stateful: bool = False
    """A request may name a previous response (`previous_response_id`) instead of sending the whole conversation."""


_FORMATS = {
    "POST v1/chat/completions": WireFormat("chatcmpl-", parse_request, completion_body, completion_chunks),
    "POST v1/responses": WireFormat("resp_", parse_response_request, response_body, response_events, is_stateful=True),
}


async def _complete(endpoint: AttemptEndpoint, request: "web.BaseRequest", format_: WireFormat) -> "web.StreamResponse":
    received = bytearray()
    while piece := await request.content.read(_PIECE_BYTES):  # not `request.read()`: aiohttp limits that to 1 MiB
        received += piece
        if len(received) > LINE_BYTES_MAX:
            most = f"{LINE_BYTES_MAX >> 20} MiB"
            return _refusal(413, refusal_body(f"the request has more than {most}, and could not be saved", "too_large"))
    body = bytes(received)
    try:
        asked = format_.parse(body)
    except BadBodyError as error:
        return _refusal(*_status_and_body(error))
    count = request.headers.get(_RETRY_COUNT, "0")
    step = endpoint.step_for(body, asked, format_, is_retry=count.isdecimal() and count.strip("0") != "")
    step.waiting += 1
    try:
        outcome = await asyncio.shield(step.task)
        if isinstance(outcome, ServedAnswer):
            response = await _send_answer(request, asked, format_, outcome)
        else:
            response = await _send(request, _refusal(*_status_and_body(outcome)))
        step.delivered = True
        return response
    finally:
        step.waiting -= 1


async def _send_answer(
    request: "web.BaseRequest", asked: ClientRequest, format_: WireFormat, served: ServedAnswer
) -> "web.StreamResponse":
    """Return when the whole response has been handed to the socket."""
    from aiohttp import web

    if not asked.stream:
        return await _send(request, _json(200, format_.body(served)))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in format_.chunks(served, asked):
        await response.write(chunk)
    await response.write_eof()
    return response


async def _send(request: "web.BaseRequest", response: "web.Response") -> "web.Response":
    await response.prepare(request)
    await response.write_eof()
    return response


def _status_and_body(error: BaseException) -> tuple[int, bytes]:
    if isinstance(error, StepFailedError):
        return refusal_of(error.failure)
    if isinstance(error, BadBodyError):
        return 400, refusal_body(str(error), "invalid_request")
    if isinstance(error, LimitError):
        return 403, refusal_body(str(error), "limit")
    if isinstance(error, AttemptOverError):
        return 410, refusal_body(str(error), "attempt_ended")
    return 500, refusal_body(f"{type(error).__name__}: {error}", "error")


def _json(status: int, body: bytes, **headers: str) -> "web.Response":
    from aiohttp import web

    return web.Response(body=body, status=status, headers={"Content-Type": "application/json", **headers})


def _refusal(status: int, body: bytes) -> "web.Response":
    return _json(status, body, **{"x-should-retry": "false"})
