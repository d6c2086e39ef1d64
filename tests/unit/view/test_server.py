"""Requests and responses: independent of the names and tables of this machine, and of what a browser does."""

import asyncio
import mimetypes
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from holdfast.view import Sources
from holdfast.view.page import FilePage, FileReply
from holdfast.view.web.access import Access
from holdfast.view.web.server import Viewer


async def answer(_: web.Request) -> web.StreamResponse:
    return web.Response(text="shown")


def test_a_request_without_a_host_is_refused_without_asking_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_: object) -> str:
        pytest.fail("a name was looked up")

    monkeypatch.setattr(socket, "getfqdn", look_up)
    app = web.Application()
    Access("secret", 7707).protect(app)
    request = make_mocked_request("GET", "/", headers={"Authorization": "Bearer secret"}, app=app)
    check = cast("Callable[[web.Request, Any], Coroutine[Any, Any, web.StreamResponse]]", app.middlewares[0])
    assert asyncio.run(check(request, answer)).status == 421


def test_the_type_of_a_script_does_not_depend_on_the_tables_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mimetypes, "guess_type", lambda *_: ("text/plain", None))  # a browser would refuse to run it
    viewer = Viewer(Sources([str(tmp_path)], ""), Access("secret", 7707))
    for name, expected in (("view.js", "text/javascript"), ("view.css", "text/css")):
        request = make_mocked_request("GET", f"/static/{name}", match_info={"name": name})
        assert asyncio.run(viewer._file(request)).content_type == expected  # noqa: SLF001


@pytest.mark.parametrize("error", [ConnectionResetError("gone away"), OSError("the disk is gone")])
def test_only_errors_of_a_file_are_logged_not_a_browser_that_goes_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, error: OSError
) -> None:
    async def fail(*_: object) -> None:
        raise error

    viewer = Viewer(Sources([str(tmp_path)], ""), Access("secret", 7707))
    monkeypatch.setattr(web.StreamResponse, "write", fail)
    file = FilePage("/file", lambda _: FileReply(iter([b"one", b"two"])))
    asyncio.run(viewer._send(file, make_mocked_request("GET", "/file")))  # noqa: SLF001
    assert [each.getMessage() for each in caplog.records] == [str(error)] * (type(error) is OSError)
