"""The bridge: an OpenAI-compatible server on the loopback, through which agents that know nothing of Holdfast ask.

One server for a run, begun by the first sample that wants it. Each attempt has a door of its own: an address with a
token that nobody can guess and that is nobody's when the attempt ends. Invariants: each request is one durable step,
made by a task that does not depend on whoever waits for it; a client that goes away loses no step, and when it, or its
retry, asks the same again, it gets that one. Failures are told with `x-should-retry: false`: what is worth a retry was
retried.
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

from holdfast.bridge.chat_completions import (
    BadBodyError,
    Said,
    Wanted,
    completion_body,
    completion_chunks,
    message_of,
    models_body,
    parse_request,
    refusal_body,
    refusal_of,
)
from holdfast.bridge.responses import parse_response_request, response_body, response_events
from holdfast.errors import HoldfastError
from holdfast.records import LINE_BYTES_MAX
from holdfast.records.samples import Message
from holdfast.solve import LimitError, StepFailedError
from holdfast.solve.resources import Host, Wish

if TYPE_CHECKING:
    from aiohttp import web

_HOST = "127.0.0.1"
_WAITING_CLIENTS = 1024
_CLOSING_SECONDS = 0.05
_KEPT_ALIVE_SECONDS = 3600
_TOKEN_BYTES = 16
_PIECE_BYTES = 1 << 18
_RETRY_COUNT = "x-stainless-retry-count"
"""How the SDKs of OpenAI say that they ask again."""
_ENDED = "the attempt that this address belonged to has ended"
_PATHS = "there are POST chat/completions and POST responses, both also with stream: true, and GET models"


class AttemptOverError(HoldfastError):
    """A request was under way when its attempt ended. Nobody waits for the answer any more."""


class Bridge:
    """Belongs to the event loop in which the first door is opened; close it there."""

    def __init__(self) -> None:
        self._doors: dict[str, AttemptDoor] = {}
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[asyncio.Server] | None = None
        self._web: web.Server | None = None

    def open(self, host: Host) -> "AttemptDoor":
        """Clients may connect at once; until the server has begun, they wait in the socket's queue."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise HoldfastError(
                "ctx.openai_base_url was looked at in a thread: look at it in the solver, and hand the thread the text"
            ) from None
        listening = self._socket or self._listen()
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        url = f"http://{_HOST}:{listening.getsockname()[1]}/{token}/v1"
        door = self._doors[token] = AttemptDoor(url, host, lambda: self._doors.pop(token, None))
        return door

    @property
    def is_open(self) -> bool:
        return self._serving is not None

    async def close(self) -> None:
        """Whoever still waits for an answer is disconnected. Idempotent."""
        for door in self._doors.values():
            for errand in door.errands():
                errand.asking.cancel()
        self._doors.clear()
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

    def _listen(self) -> socket.socket:
        listening = self._socket = socket.create_server((_HOST, 0), backlog=_WAITING_CLIENTS)
        listening.setblocking(False)
        # What serves all samples must not inherit the context of the first that came.
        self._serving = asyncio.get_running_loop().create_task(self._serve(listening), context=contextvars.Context())
        return listening

    async def _serve(self, listening: socket.socket) -> asyncio.Server:
        from aiohttp import web

        # A client whose agent works for a while must not find its connection closed: that costs it a retry.
        self._web = web.Server(
            self._handle, handler_cancellation=True, access_log=None, keepalive_timeout=_KEPT_ALIVE_SECONDS
        )
        return await asyncio.get_running_loop().create_server(self._web, sock=listening, backlog=_WAITING_CLIENTS)

    async def _handle(self, request: "web.BaseRequest") -> "web.StreamResponse":
        token, *path = [part for part in request.rel_url.path.split("/") if part] or [""]
        door = self._doors.get(token)
        if door is None:
            return _refusal(410, refusal_body(f"{_ENDED}; ask under the address of a live one", "attempt_ended"))
        asked = f"{request.method} {'/'.join(path)}"
        if asked in _DIALECTS:
            return await _complete(door, request, _DIALECTS[asked])
        if asked == "GET v1/models":
            return _json(200, models_body([door.host.model, *door.host.roles]))
        return _refusal(404, refusal_body(f"{asked}: no such path behind this address; {_PATHS}", "not_found"))


class AttemptDoor:
    """The requests of one attempt."""

    def __init__(self, url: str, host: Host, forget: Callable[[], object]) -> None:
        self.url = url
        self.host = host
        self.failed: BaseException | None = None
        """Why the last request had no answer."""
        self._forget = forget
        self._context = contextvars.copy_context()  # the sample's: a provider of the user's may look at it
        self._errands: dict[str, list[Errand]] = {}
        self._talks: dict[str, list[Message]] = {}  # by the id of the answer that each ends with

    def close(self) -> None:
        """From here on the address is nobody's. Whoever closes the attempt's steps ends what is under way."""
        self._forget()

    def errand(self, body: bytes, wanted: Wanted, dialect: "Dialect", *, is_retry: bool) -> "Errand":
        """The step for a request: a new one, unless it is the same again and its answer has reached nobody, or the
        client says that it asks again.
        """
        same = self._errands.setdefault(xxhash.xxh3_128_hexdigest(dialect.prefix.encode() + body), [])
        for each in same:
            if not each.waiting and not each.delivered:
                return each
        if not same or not is_retry:
            loop = asyncio.get_running_loop()
            same.append(Errand(loop.create_task(self._ask(wanted, dialect), context=self._context.copy())))
        return same[-1]

    def errands(self) -> list["Errand"]:
        """All of them, in no order that means anything."""
        return [each for same in self._errands.values() for each in same]

    async def _ask(self, wanted: Wanted, dialect: "Dialect") -> "Said | BaseException":
        """What came of it, also if nobody is left to hear it."""
        role = wanted.model if wanted.model in self.host.roles else ""
        if wanted.previous and wanted.previous not in self._talks:
            return BadBodyError(f"previous_response_id: no answer of this attempt is called {wanted.previous}")
        talk = [*self._talks.get(wanted.previous, ()), *wanted.messages]
        try:
            told = await self.host.ask(Wish([*wanted.before, *talk], role, wanted.tools, wanted.params))
        except asyncio.CancelledError:
            return AttemptOverError(_ENDED)
        except BaseException as error:  # noqa: BLE001 - a provider may be the user's code; the attempt ends with it
            self.failed = error
            return error
        self.failed = None
        said = Said(f"{dialect.prefix}{told.id}", wanted.model, told.answer)
        if dialect.goes_on:
            self._talks[said.id] = [*talk, message_of(told.answer)]
        return said


class Errand:
    """One step that was asked for through a door, and whether its answer has reached a client."""

    __slots__ = ("asking", "delivered", "waiting")

    def __init__(self, asking: "asyncio.Task[Said | BaseException]") -> None:
        self.asking = asking
        self.waiting = 0
        self.delivered = False


class Dialect(msgspec.Struct, frozen=True):
    """One way to ask: how a request is read, and how an answer is said, at once or as a stream."""

    prefix: str
    """Of the ids of its answers."""
    parse: Callable[[bytes], Wanted]
    body: Callable[[Said], bytes]
    chunks: Callable[[Said, Wanted], Iterator[bytes]]
    goes_on: bool = False
    """A request may name the answer that it goes on from, in place of all that was said before."""


_DIALECTS = {
    "POST v1/chat/completions": Dialect("chatcmpl-", parse_request, completion_body, completion_chunks),
    "POST v1/responses": Dialect("resp_", parse_response_request, response_body, response_events, goes_on=True),
}


async def _complete(door: AttemptDoor, request: "web.BaseRequest", dialect: Dialect) -> "web.StreamResponse":
    body = await _read_body(request)
    if body is None:
        most = f"{LINE_BYTES_MAX >> 20} MiB"
        return _refusal(413, refusal_body(f"the request has more than {most}, and could not be saved", "too_large"))
    try:
        wanted = dialect.parse(body)
    except BadBodyError as error:
        return _refusal(*_status_and_body(error))
    count = request.headers.get(_RETRY_COUNT, "0")
    errand = door.errand(body, wanted, dialect, is_retry=count.isdecimal() and count.strip("0") != "")
    errand.waiting += 1
    try:
        came = await asyncio.shield(errand.asking)
        if isinstance(came, Said):
            response = await _say(request, wanted, dialect, came)
        else:
            response = await _send(request, _refusal(*_status_and_body(came)))
        errand.delivered = True
        return response
    finally:
        errand.waiting -= 1


async def _read_body(request: "web.BaseRequest") -> bytes | None:
    """None if it is longer than a record may be. Not `request.read()`: that has a limit of 1 MiB."""
    body = bytearray()
    while piece := await request.content.read(_PIECE_BYTES):
        body += piece
        if len(body) > LINE_BYTES_MAX:
            return None
    return bytes(body)


async def _say(request: "web.BaseRequest", wanted: Wanted, dialect: Dialect, said: Said) -> "web.StreamResponse":
    """Returns when all of it is on its way."""
    from aiohttp import web

    if not wanted.stream:
        return await _send(request, _json(200, dialect.body(said)))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in dialect.chunks(said, wanted):
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
