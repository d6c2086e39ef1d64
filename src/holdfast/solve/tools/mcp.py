"""MCP servers as sources of tools.

One session for each attempt at a sample, opened by the first call that is really made and closed when the attempt ends;
a replay opens none. What a server offers is asked once and is a durable step: the model is told the same after a crash.
A server that we start is a process of its own: its standard input is closed at the end, also when we are killed, and
that ends it. What it kept in memory is then gone; the steps are not.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import IO, Annotated, Any, cast

import msgspec

from holdfast.errors import HoldfastError, SpecError, told
from holdfast.records.facts import Failure
from holdfast.records.redaction import Redactor, is_credential_name, is_unmistakable
from holdfast.solve.context import Context, ToolFailedError
from holdfast.solve.tools.response_bounds import bounding_hook
from holdfast.solve.tools.tool import Tool
from holdfast.solve.tools.workplace import Workplace
from holdfast.spec.source.variables import variables_in
from holdfast.spec.source.yaml import expand

_LISTING = "mcp.tools"
"""The step that asks a server what it has. No tool of a user can be called so."""
_LEADING = ("command", "env", "url", "headers")
_NAME_MAX = 64
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_SAID_MAX = 500
_PAGES_MAX = 1000
_OPENING_SECONDS = 60.0
_QUIET = logging.NullHandler()


class ServerError(HoldfastError):
    """A server cannot be used, or says that a call went wrong. The text is for the model."""


class McpServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A server, as a spec names it. `${VAR}` is filled in when it is opened, and stands in no record."""

    command: list[str] = []
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    tools: list[str] | None = None
    """Those to offer; all, if none are named."""
    prefix: str = ""
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    repeatable: bool = True

    @property
    def label(self) -> str:
        """As the spec writes it."""
        return self.url or " ".join(self.command)

    def check(self, place: str) -> None:
        """Whether it could be opened here, without opening it. SpecError if a package or a variable is missing."""
        if importlib.util.find_spec("mcp") is None:
            raise SpecError(f"{place}: MCP servers need one more package: pip install 'holdfast[mcp]'")
        for text in (*self.command, *self.env.values(), self.url, *self.headers.values()):
            expand(text, os.environ, place)

    async def offered(self, ctx: Context) -> list[Tool]:
        """Those of its tools that the spec chooses. ToolFailedError if it cannot be asked, or has one of them not. All
        that it has is recorded, so that a fork may choose others.
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
        """What the server said, without what it was entrusted with: it would stand in records, and models see it."""
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

        name = _NO_NAME.sub("_", f"{self.prefix}{own}")[:_NAME_MAX]
        description, parameters = described["description"], described["parameters"]
        return Tool(name, description, parameters, call, None, repeatable=self.repeatable)

    @contextlib.asynccontextmanager
    async def _session(self, ctx: Workplace, doing: str) -> "AsyncIterator[_Session]":
        """The attempt's session, for no longer than a call may take; opening it does not count. What goes wrong is told
        in words, and a dead session is forgotten.
        """
        key = msgspec.json.encode([self.command, self.env, self.url, self.headers])
        try:
            async with asyncio.timeout(_OPENING_SECONDS):
                session = await ctx.keep(key, self._open)
        except TimeoutError as error:
            raise ServerError(f"the MCP server {self.label} did not open within {_OPENING_SECONDS:g} s") from error
        except Exception as error:
            raise ServerError(f"the MCP server {self.label} cannot be used: {_said(error)}") from error
        try:
            async with asyncio.timeout(self.seconds):
                yield session
        except TimeoutError as error:
            raise ServerError(f"the MCP server {self.label} took longer than {self.seconds} s while {doing}") from error
        except Exception as error:
            if not _is_lost(error):
                raise ServerError(_said(error)) from error
            ctx.forget(key)
            lost = f"the MCP server {self.label} ended, or was lost, while {doing}; the next call opens it anew"
            raise ServerError(lost + session.last_words()) from error

    @contextlib.asynccontextmanager
    async def _open(self) -> "AsyncIterator[_Session]":
        mcp = await asyncio.to_thread(importlib.import_module, "mcp.client")  # it takes a second
        logging.getLogger("mcp").addHandler(_QUIET)  # what goes wrong is told to the model and recorded
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            session = _Session(None, errors)
            try:
                async with self._transport(errors) as transport, mcp.Client(transport) as client:
                    session.client = client
                    yield session
            except Exception as error:
                if session.client is not None:
                    raise
                raise ServerError(f"{_said(error)}{session.last_words()}") from error

    @contextlib.asynccontextmanager
    async def _transport(self, errors: IO[str]) -> AsyncIterator[Any]:
        if self.url:
            http, wire = map(importlib.import_module, ("httpx2", "mcp.client.streamable_http"))
            seconds = http.Timeout(30.0, read=self.seconds or 300.0)
            # not compressed, so that what is received is what is held in memory
            headers = {"accept-encoding": "identity", **_filled(self.headers)}
            hooks = {"response": [bounding_hook(http)]}
            async with http.AsyncClient(headers=headers, timeout=seconds, event_hooks=hooks) as client:
                yield wire.streamable_http_client(_fill(self.url), http_client=client)
            return
        stdio = importlib.import_module("mcp.client.stdio")
        program, *arguments = map(_fill, self.command)
        wanted = stdio.StdioServerParameters(command=program, args=arguments, env=_filled(self.env))
        yield stdio.stdio_client(wanted, errlog=errors)


ToolSource = Tool | McpServer
"""What a model may be offered: a tool, or all that a server has."""


def read_server(given: Any, place: str) -> McpServer:
    """SpecError if it is none."""
    try:
        server = msgspec.convert(given, McpServer)
    except msgspec.ValidationError as error:
        raise SpecError(f"{place}: {str(error).replace('Expected', 'expected')}") from error
    if bool(server.command) == bool(server.url):
        raise SpecError(f"{place}: give either a command, as in command: [python, server.py], or a url")
    return server


def servers_in(solver: Any) -> list[dict[str, Any]]:
    """What leads to the servers that a solver names in a spec, also in arguments that only its own code reads."""
    if isinstance(solver, list):
        return [server for each in solver for server in servers_in(each)]
    if not isinstance(solver, dict):
        return []
    if list(solver) == ["mcp"] and isinstance(given := solver["mcp"], dict):
        return [{name: given[name] for name in _LEADING if given.get(name)}]
    return servers_in(list(solver.values()))


async def offered(ctx: Context, offers: Sequence[ToolSource]) -> dict[str, Tool]:
    """All tools by name. SpecError for two of one name: a model could not tell them apart."""
    found: dict[str, Tool] = {}
    for offer in offers:
        for each in await offer.offered(ctx) if isinstance(offer, McpServer) else [offer]:
            if each.name in found:
                raise SpecError(f"there are two tools called {each.name!r}; give the server a prefix")
            found[each.name] = each
    return found


class _Session:
    """A connection, and what the server's process says of itself on standard error."""

    def __init__(self, client: Any, errors: IO[str]) -> None:
        self.client = client
        self._errors = errors

    def last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0)
            said = self._errors.read().strip()
            if said:
                return f"; it said last: {said[-_SAID_MAX:]}"
        return ""


def _fill(text: str) -> str:
    return expand(text, os.environ, "mcp")[0]


def _filled(texts: dict[str, str]) -> dict[str, str]:
    return {name: _fill(text) for name, text in texts.items()}


def _value(result: Any) -> Any:
    """What a result comes to, as text: of a picture or a sound, what it is. ServerError if it is an error."""
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
    """Whether nothing more can come of this session: not what a server says, but that it says nothing."""
    from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST  # the latter: it does not know this session any more

    code = getattr(_leaf(error), "code", None)
    return code is None or code in (CONNECTION_CLOSED, INVALID_REQUEST)


def _said(error: BaseException) -> str:
    leaf = _leaf(error)
    ours = isinstance(leaf, HoldfastError) or getattr(leaf, "code", None) is not None
    return str(leaf) if ours else told(leaf)


def _leaf(error: BaseException) -> BaseException:
    """What is at the bottom of groups of one: task groups wrap what happens in them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
