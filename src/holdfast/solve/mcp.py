"""MCP servers as sources of tools.

Each attempt at a sample has one session, opened by the first live call and closed when the attempt ends; a replay opens
none. The list of tools is requested once and is a durable step, so that the model sees the same list after a crash. A
server that we start ends when its standard input is closed, which also happens when we are killed. What it kept in
memory is lost then; the recorded steps are not.

A message of a server is limited to the size of a model server's response. The client of the `mcp` package reads a
whole message into memory first, so the limit is below it: in the byte stream of HTTP, and in the lines from a process.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import IO, Annotated, Any, cast

import msgspec

from holdfast.errors import HoldfastError, SpecError, describe_error
from holdfast.models.http import connection
from holdfast.records import Failure, Redactor, is_credential_name, is_unmistakable
from holdfast.solve.context import Context, ToolFailedError
from holdfast.solve.tools.tool import Tool
from holdfast.solve.tools.workplace import Workplace
from holdfast.spec import expand, variables_in


def bounding_hook(http: Any) -> Callable[[Any], Awaitable[None]]:
    """Return a response hook for a client of `http`, which is httpx or a compatible package."""

    class TooLargeError(http.SSEError, http.StreamError):  # type: ignore[misc] # the package is imported on use
        """Both base classes are needed: the `mcp` package turns only these into results; else a call would wait
        forever.
        """

    class Bounded(http.AsyncByteStream):  # type: ignore[misc] # as above
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            received = 0
            async for piece in self._stream:
                received += len(piece)
                if received > connection.BODY_BYTES_MAX:
                    raise TooLargeError(f"the response has more than {connection.BODY_BYTES_MAX >> 20} MiB")
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: Any) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise TooLargeError("the response is compressed, though it was asked for as it is")
        response.stream = Bounded(response.stream)

    return bound


_LISTING = "mcp.tools"
"""The step that lists the tools of a server. The dot keeps users' tools from having this name."""
_CONNECTION_FIELDS = ("command", "env", "url", "headers")
_NAME_MAX = 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_STDERR_MAX = 500
_PAGES_MAX = 1000
_OPENING_SECONDS = 60.0
_ENDING_SECONDS = 2.0
"""How long a server may take to end after its input is closed, and again after SIGTERM, before SIGKILL."""
_QUIET = logging.NullHandler()


class ServerError(HoldfastError):
    """A server cannot be used, or reports that a call failed. The text is for the model."""


class McpServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An MCP server in a spec. `${VAR}` is filled in when it is opened, and is in no record."""

    command: list[str] = []
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    tools: list[str] | None = None
    """The tools to offer; None is all."""
    prefix: str = ""
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    repeatable: bool = True

    @property
    def label(self) -> str:
        """The server as written in the spec."""
        return self.url or " ".join(self.command)

    def check(self, place: str) -> None:
        """Raise SpecError if a package or a variable is missing. Opens nothing."""
        if importlib.util.find_spec("mcp") is None:
            raise SpecError(f"{place}: MCP servers need one more package: pip install 'holdfast[mcp]'")
        for text in (*self.command, *self.env.values(), self.url, *self.headers.values()):
            expand(text, os.environ, place)

    async def offered(self, ctx: Context) -> list[Tool]:
        """Return the tools that the spec chooses. ToolFailedError if the server does not answer or lacks one of them.
        The whole list is recorded, so that a fork may choose others.
        """
        listing = Tool(_LISTING, "", {}, self._list, None)
        found = await ctx.call(listing, {"server": self.label})
        return [self._tool(each) for each in self._chosen(found)]

    async def _list(self, ctx: Workplace, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        async with self._session(ctx, "it was asked for its tools") as session:
            for _ in range(_PAGES_MAX):
                page = await session.client.list_tools(cursor=cursor)
                found += [
                    {"name": each.name, "description": each.description or "", "parameters": each.input_schema}
                    for each in page.tools
                ]
                cursor = page.next_cursor
                if cursor is None:
                    break
        return cast("list[dict[str, Any]]", self._without_credentials(found))

    def _without_credentials(self, value: Any) -> Any:
        """Remove credentials that the spec passes to the server: the value is recorded, and models see it."""
        parts = {"command": self.command, "env": self.env, "url": self.url, "headers": self.headers}
        named = {name for field, name in variables_in(parts) if is_credential_name(field) or is_credential_name(name)}
        return Redactor(filter(is_unmistakable, (os.environ.get(name, "") for name in named))).value(value)

    def _chosen(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.tools is None:
            return found
        named = {each["name"]: each for each in found}
        for name in self.tools:
            if name not in named:
                known = ", ".join(named) or "none"
                missing = f"the MCP server {self.label} has no tool {name!r}; it has: {known}"
                raise ToolFailedError(Failure("tool", missing))
        return [named[name] for name in self.tools]

    def _tool(self, described: dict[str, Any]) -> Tool:
        own = described["name"]

        async def call(ctx: Workplace, arguments: dict[str, Any]) -> Any:
            async with self._session(ctx, f"{own} was called") as session:
                result = await session.client.call_tool(own, arguments)
            return self._without_credentials(_value(result))

        name = _NOT_IN_NAMES.sub("_", f"{self.prefix}{own}")[:_NAME_MAX]
        description, parameters = described["description"], described["parameters"]
        return Tool(name, description, parameters, call, None, repeatable=self.repeatable)

    @contextlib.asynccontextmanager
    async def _session(self, ctx: Workplace, doing: str) -> "AsyncIterator[_Session]":
        """Yield the attempt's session for one call, within its time limit; opening does not count. Errors become
        ServerError, and a dead session is removed.
        """
        key = msgspec.json.encode([self.command, self.env, self.url, self.headers])
        try:
            async with asyncio.timeout(_OPENING_SECONDS):
                session = await ctx.keep(key, self._open)
        except TimeoutError as error:
            raise ServerError(f"the MCP server {self.label} did not open within {_OPENING_SECONDS:g} s") from error
        except Exception as error:
            raise ServerError(f"the MCP server {self.label} cannot be used: {_message_of(error)}") from error
        try:
            async with asyncio.timeout(self.seconds):
                yield session
        except TimeoutError as error:
            raise ServerError(f"the MCP server {self.label} took longer than {self.seconds} s while {doing}") from error
        except Exception as error:
            if not _is_lost(error):
                raise ServerError(_message_of(error)) from error
            ctx.forget(key)
            if session.problem:
                ended = f"the MCP server {self.label} was ended while {doing}: {session.problem}"
                raise ServerError(f"{ended}; the next call starts it again") from error
            lost = f"the MCP server {self.label} ended, or was lost, while {doing}; the next call opens it anew"
            raise ServerError(lost + session.stderr_tail()) from error

    @contextlib.asynccontextmanager
    async def _open(self) -> "AsyncIterator[_Session]":
        mcp = await asyncio.to_thread(importlib.import_module, "mcp.client")  # in a thread: the import takes a second
        logging.getLogger("mcp").addHandler(_QUIET)  # errors are recorded and go to the model
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            session = _Session(None, errors)
            try:
                async with self._transport(session, errors) as transport, mcp.Client(transport) as client:
                    session.client = client
                    yield session
            except Exception as error:
                if session.client is not None:
                    raise
                raise ServerError(f"{session.problem or _message_of(error)}{session.stderr_tail()}") from error

    @contextlib.asynccontextmanager
    async def _transport(self, session: "_Session", errors: IO[str]) -> AsyncIterator[Any]:
        if self.url:
            http, wire = map(importlib.import_module, ("httpx2", "mcp.client.streamable_http"))
            seconds = http.Timeout(30.0, read=self.seconds or 300.0)
            # Not compressed: so the limit on received bytes is a limit on memory.
            headers = {"accept-encoding": "identity", **_filled(self.headers)}
            hooks = {"response": [bounding_hook(http)]}
            async with http.AsyncClient(headers=headers, timeout=seconds, event_hooks=hooks) as client:
                yield wire.streamable_http_client(_fill(self.url), http_client=client)
            return
        stdio = importlib.import_module("mcp.client.stdio")
        process = await asyncio.create_subprocess_exec(
            *map(_fill, self.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**stdio.get_default_environment(), **_filled(self.env)},
            limit=connection.BODY_BYTES_MAX,
            start_new_session=True,  # so that what it starts can be killed with it
        )
        yield _exchange_lines(process, session)


ToolSource = Tool | McpServer
"""A tool, or a server whose tools are offered."""


def read_server(given: Any, place: str) -> McpServer:
    """Read a server from a spec. SpecError if it is invalid."""
    try:
        server = msgspec.convert(given, McpServer)
    except msgspec.ValidationError as error:
        raise SpecError(f"{place}: {str(error).replace('Expected', 'expected')}") from error
    if bool(server.command) == bool(server.url):
        raise SpecError(f"{place}: give either a command, as in command: [python, server.py], or a url")
    return server


def servers_in(solver: Any) -> list[dict[str, Any]]:
    """Return the connection fields of all servers in a solver's arguments, also in those that only its code reads."""
    if isinstance(solver, list):
        return [server for each in solver for server in servers_in(each)]
    if not isinstance(solver, dict):
        return []
    if list(solver) == ["mcp"] and isinstance(given := solver["mcp"], dict):
        return [{name: given[name] for name in _CONNECTION_FIELDS if given.get(name)}]
    return servers_in(list(solver.values()))


async def offered(ctx: Context, offers: Sequence[ToolSource]) -> dict[str, Tool]:
    """Return all tools by name. SpecError for two with one name: a model could not tell them apart."""
    found: dict[str, Tool] = {}
    for offer in offers:
        for each in await offer.offered(ctx) if isinstance(offer, McpServer) else [offer]:
            if each.name in found:
                raise SpecError(f"there are two tools called {each.name!r}; give the server a prefix")
            found[each.name] = each
    return found


class _Session:
    """A connection, and the standard error of the server's process."""

    def __init__(self, client: Any, errors: IO[str]) -> None:
        self.client = client
        self.problem = ""
        """Why we ended the server."""
        self._errors = errors

    def stderr_tail(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0)
            text = self._errors.read().strip()
            if text:
                return f"; it said last: {text[-_STDERR_MAX:]}"
        return ""


@contextlib.asynccontextmanager
async def _exchange_lines(process: asyncio.subprocess.Process, session: _Session) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams of messages from and to a process, one JSON text per line, and end it at the end.

    `mcp.client.stdio` does the same, but reads lines of any length.
    """
    anyio, wire, types = map(importlib.import_module, ("anyio", "mcp.shared.message", "mcp_types"))
    received, messages = anyio.create_memory_object_stream(0)
    outbox, to_send = anyio.create_memory_object_stream(0)
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    async def next_line() -> bytes:
        try:
            return await stdout.readline()
        except ValueError:  # longer than the limit of the stream
            session.problem = f"it sent a message of more than {connection.BODY_BYTES_MAX >> 20} MiB"
            _signal_group(process, signal.SIGKILL)
            return b""

    async def receive() -> None:
        async with received:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session has ended
                while line := await next_line():
                    try:
                        message = wire.SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
                    except ValueError as error:
                        message = error
                    await received.send(message)
        while await stdout.read(1 << 16):  # a server that cannot write its last words would not end
            pass

    async def send() -> None:
        try:
            async with to_send:
                async for each in to_send:
                    stdin.write(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                    await stdin.drain()
        finally:  # without an end of the messages, a call would wait forever
            received.close()

    sender, receiver = asyncio.create_task(send()), asyncio.create_task(receive())
    try:
        yield messages, outbox
        outbox.close()
        await asyncio.wait([sender], timeout=_ENDING_SECONDS)
    finally:
        sender.cancel()
        for each in (messages, received, outbox, to_send):
            each.close()
        stdin.close()
        await _end(process, receiver)


async def _end(process: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> None:
    """Wait until the process ends, or end it, with everything in its process group."""
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _ENDING_SECONDS)
                break
            _signal_group(process, number)
    finally:
        _signal_group(process, signal.SIGKILL)  # also what the server started and left behind
        await asyncio.wait([reading], timeout=_ENDING_SECONDS)
        reading.cancel()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
        os.killpg(process.pid, number)


def _fill(text: str) -> str:
    return expand(text, os.environ, "mcp")[0]


def _filled(texts: dict[str, str]) -> dict[str, str]:
    return {name: _fill(text) for name, text in texts.items()}


def _value(result: Any) -> Any:
    """Return a result as text; images and sounds are only described. ServerError if it is an error."""
    text = "\n".join(_texts(result.content))
    if result.is_error:
        raise ServerError(text or "the tool failed and did not say why")
    return result.structured_content if not text and result.structured_content is not None else text


def _texts(content: Sequence[Any]) -> Iterator[str]:
    for part in content:
        if part.type == "text":
            yield part.text
        elif part.type == "resource":
            yield getattr(part.resource, "text", f"[{part.resource.uri}]")
        elif part.type == "resource_link":
            yield f"[{part.name}: {part.uri}]"
        else:
            yield f"[{part.type}, {part.mime_type}, {len(part.data) * 3 // 4 - part.data.count('=')} bytes]"


def _is_lost(error: BaseException) -> bool:
    """Whether the session is dead: the error did not come from the server as a reply."""
    from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST  # the latter: it does not know this session any more

    code = getattr(_leaf(error), "code", None)
    return code is None or code in (CONNECTION_CLOSED, INVALID_REQUEST)


def _message_of(error: BaseException) -> str:
    leaf = _leaf(error)
    ours = isinstance(leaf, HoldfastError) or getattr(leaf, "code", None) is not None
    return str(leaf) if ours else describe_error(leaf)


def _leaf(error: BaseException) -> BaseException:
    """Return the innermost error: task groups wrap errors in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
