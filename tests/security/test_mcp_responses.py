"""An MCP server cannot fill the memory: its messages have the same bound as the responses of model servers."""

import contextlib
import gzip
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.models.http import connection
from tests.e2e.agents import serving, write
from tests.e2e.commands import call, exported
from tests.e2e.test_mcp import calling, command, over_http, pids, react

LIMIT = 1 << 20


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BODY_BYTES_MAX", LIMIT)


def outputs(folder: Path, source: dict[str, Any]) -> list[str]:
    with serving(calling("talk", "note")) as model:
        spec = write(folder, model.base_url, react({"mcp": {"seconds": 30, **source}}))
        done = call("run", spec, "--id", "r", "--store", folder / "runs", cwd=folder)
        assert done.code in (0, 1), done.said
    (line,) = exported("r", folder / "runs")
    return [str(line["error"]["message"])] if line["error"] else json.loads(line["output"])


def test_a_streamed_response_that_is_too_large_is_an_error_and_the_sample_continues(tmp_path: Path) -> None:
    with over_http(tmp_path) as url:
        first, second = outputs(tmp_path, {"url": url})
    assert "the response has more than 1 MiB" in first
    assert second == "noted 1"


def test_with_a_larger_bound_the_same_response_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr(connection, "BODY_BYTES_MAX", 64 << 20)
    with over_http(tmp_path) as url:
        first, _ = outputs(tmp_path, {"url": url})
    assert first.startswith("xxx")


class _Endless(BaseHTTPRequestHandler):
    """Answers every request with JSON that never ends, or that is compressed."""

    protocol_version = "HTTP/1.1"
    compressed = False
    sent = 0

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        if self.compressed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        with contextlib.suppress(OSError):
            if self.compressed:
                self.wfile.write(gzip.compress(b" " * (16 << 20)))
                return
            while True:
                type(self).sent += self.wfile.write(b" " * 65536)

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextlib.contextmanager
def endless(compressed: bool) -> Iterator[str]:
    handler = type("Handler", (_Endless,), {"compressed": compressed})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("compressed", "why"),
    [(False, "the response has more than 1 MiB"), (True, "the response is compressed")],
)
def test_a_response_that_never_ends_or_unpacks_to_much_fails_in_one_sentence(
    tmp_path: Path, compressed: bool, why: str
) -> None:
    with endless(compressed) as url:
        (said,) = outputs(tmp_path, {"url": url})
    assert why in said
    assert len(said.splitlines()) == 1


def test_a_line_of_a_process_that_is_too_long_is_an_error_and_the_next_call_starts_it_again(tmp_path: Path) -> None:
    first, second = outputs(tmp_path, {"command": command(tmp_path)})
    assert (
        "was ended while talk was called: it sent a message of more than 1 MiB; the next call starts it again" in first
    )
    assert second == "noted 1"
    assert len(pids(tmp_path, "started.txt")) == 2


def test_with_a_larger_bound_the_same_line_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr(connection, "BODY_BYTES_MAX", 64 << 20)
    first, _ = outputs(tmp_path, {"command": command(tmp_path)})
    assert first.startswith("xxx")


def test_a_process_that_never_ends_its_line_fails_in_one_sentence(tmp_path: Path) -> None:
    endless = "import itertools, sys; [sys.stdout.write('x' * 65536) for _ in itertools.count()]"
    (said,) = outputs(tmp_path, {"command": [sys.executable, "-c", endless]})
    assert "cannot be used: it sent a message of more than 1 MiB" in said
    assert len(said.splitlines()) == 1
