"""The web server: routes pages and their JSON twins, the event stream, and the viewer's own files.

Pages are loaded in threads, so a slow one does not hold up the others. Every page has a twin below `/api`. Errors of
users (no such run, a damaged file) are a page with one sentence; nothing of a request is ever shown as HTML.
"""

import asyncio
import functools
import importlib.resources
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from aiohttp import web

from holdfast.errors import DamagedError, HoldfastError, StaleCursorError, UsageError
from holdfast.view.computations import Computations
from holdfast.view.layout import render_page
from holdfast.view.links import Links
from holdfast.view.markup import h
from holdfast.view.page import Body, FilePage, FileReply, Page, PageRequest
from holdfast.view.pages import PAGES
from holdfast.view.sources import NotFoundError, Sources
from holdfast.view.web.access import TOKEN, Access
from holdfast.view.web.events import EventStreams
from holdfast.view.web.files import FILES
from holdfast.view.web.hand_scores import SCORES, RefusedError, editing_with, save_score
from holdfast.view.web.shared import SharedWork

_THREADS = 4
THREAD_NAME = "holdfast-view"
_EVERY_INTERFACE = frozenset({"0.0.0.0", "::"})
_FILES = importlib.resources.files("holdfast.view") / "static"
_log = logging.getLogger("holdfast")


class ViewSettings(msgspec.Struct, frozen=True):
    """How the server listens. `exposed`: it may listen on other interfaces than the loopback."""

    host: str = "127.0.0.1"
    port: int = 7707
    hosts: tuple[str, ...] = ()
    exposed: bool = False
    edit: bool = False


class Viewer:
    """One server."""

    def __init__(self, sources: Sources, access: Access, *, edit: bool = False) -> None:
        self._sources = sources
        self._access = access
        self._links = Links()
        if edit:
            self._links.editing = editing_with(access)
        self._pool = ThreadPoolExecutor(_THREADS, THREAD_NAME)
        self._streams = EventStreams(sources, self._pool)
        self._computations = Computations()
        self._shown = SharedWork[str]()

    def app(self) -> web.Application:
        app = web.Application()
        self._access.protect(app)
        for page in PAGES:
            app.router.add_get(page.path, functools.partial(self._show, page))
            data = "/api/runs" if page.path == "/" else f"/api{page.path}"
            app.router.add_get(data, functools.partial(self._answer, page))
        for file in FILES:
            app.router.add_get(file.path, functools.partial(self._send, file))
        app.router.add_post(SCORES, self._save)
        app.router.add_get("/api/runs/{experiment}/{run}/events", self._stream, allow_head=False)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_get("/{rest:.*}", self._lost)
        app.on_shutdown.append(self._end_streams)  # before the server waits for requests to end
        app.on_cleanup.append(self._close)
        return app

    async def _show(self, page: Page, request: web.Request) -> web.StreamResponse:
        try:
            work = functools.partial(self._run, _rendered, page, self._request(request), self._links)
            return web.Response(text=await self._shown.get(request.path_qs, work), content_type="text/html")
        except (HoldfastError, OSError) as error:
            return self._show_problem(error)

    def _show_problem(self, error: Exception) -> web.Response:
        status, sentence = _problem(error)
        body = Body("Problem", h("p", sentence, class_="problem", role="alert"))
        return web.Response(status=status, text=render_page(body, self._links), content_type="text/html")

    async def _send(self, file: FilePage, request: web.Request) -> web.StreamResponse:
        """A file. Its pieces are read in threads; an error in the middle cuts the connection."""
        try:
            found: FileReply = await self._run(file.load, self._request(request))
        except (HoldfastError, OSError) as error:
            return self._show_problem(error)
        headers = {"Content-Type": found.type}
        if found.name:
            headers["Content-Disposition"] = f'attachment; filename="{found.name}"'
        if isinstance(found.content, bytes):
            return web.Response(body=found.content, headers=headers)
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        try:
            while piece := await self._run(next, found.content, b""):
                await response.write(piece)
        except (HoldfastError, OSError) as error:
            if not isinstance(error, ConnectionError):  # the browser has gone away
                _log.warning("%s", error)
            if request.transport is not None:
                request.transport.abort()  # not a normal end: the browser must not take it for the whole file
        return response

    async def _save(self, request: web.Request) -> web.StreamResponse:
        try:
            address = await save_score(request, self._request(request), self._access, self._links)
        except (HoldfastError, OSError) as error:
            return self._show_problem(error)
        return web.Response(status=303, headers={"Location": address})

    async def _answer(self, page: Page, request: web.Request) -> web.StreamResponse:
        try:
            page.require_known(request.query)
            content = await self._run(_encoded, page, self._request(request, is_data=True))
        except (HoldfastError, OSError) as error:
            return _data_problem(*_problem(error))
        return web.Response(body=content, content_type="application/json")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._streams.serve(request, self._request(request).run)
        except (HoldfastError, OSError) as error:
            status, sentence = _problem(error)
            return web.Response(status=status, text=f"{sentence}\n")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in _file_names():
            return await self._lost(request)
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return web.Response(body=(_FILES / name).read_bytes(), content_type=kind)

    async def _lost(self, request: web.Request) -> web.StreamResponse:
        if f"{request.path}/".startswith("/api/"):
            return _data_problem(404, "there is no such address")
        body = Body("Not found", h("p", "There is no such page.", class_="problem", role="alert"))
        return web.Response(status=404, text=render_page(body, self._links), content_type="text/html")

    def _request(self, request: web.Request, *, is_data: bool = False) -> PageRequest:
        lists = {name: request.query.getall(name) for name in request.query}
        query = {name: ",".join(values) for name, values in lists.items()}  # boxes of a form share a name
        return PageRequest(self._sources, dict(request.match_info), query, lists, is_data, self._computations)

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    async def _end_streams(self, _: web.Application) -> None:
        self._streams.close()

    async def _close(self, _: web.Application) -> None:
        self._computations.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._sources.close()


def _rendered(page: Page, request: PageRequest, links: Links) -> str:
    return render_page(page.render(page.load(request), links), links)


def _encoded(page: Page, request: PageRequest) -> bytes:
    return msgspec.json.encode(page.load(request))


def _data_problem(status: int, sentence: str) -> web.Response:
    body = msgspec.json.encode({"error": sentence})
    return web.Response(status=status, body=body, content_type="application/json")


def _problem(error: Exception) -> tuple[int, str]:
    """The status code and the sentence of an expected error."""
    if isinstance(error, NotFoundError | StaleCursorError):
        return 404, str(error)
    if isinstance(error, RefusedError):
        return 403, str(error)
    if isinstance(error, DamagedError):
        return 422, str(error)
    return (400 if isinstance(error, UsageError) else 500), str(error)


@functools.cache
def _file_names() -> frozenset[str]:
    return frozenset(each.name for each in _FILES.iterdir() if each.is_file())


async def serve(sources: Sources, settings: ViewSettings, token: str, ready: Callable[[str, str], None]) -> None:
    """Serve until cancelled. `ready` gets the address with the token, and one that works once."""
    listening = _listen(settings.host, settings.port)
    port = listening.getsockname()[1]
    access = Access(token, port, settings.hosts, exposed=settings.exposed)
    runner = web.AppRunner(Viewer(sources, access, edit=settings.edit).app(), access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, listening, shutdown_timeout=1.0).start()
        name = socket.gethostname() if settings.host in _EVERY_INTERFACE else settings.host
        address = f"http://{f'[{name}]' if ':' in name else name}:{port}/?{TOKEN}="
        ready(f"{address}{token}", f"{address}{access.single_use_token()}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens on the port; 0 means any free one. UsageError if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror}; use --port 0 for any free port"
        ) from error
    return listening
