"""The test server in its own process: for tests that kill processes, and for code without an event loop.

Invariant: the server ends when its parent process ends, even if that is killed: it watches a pipe that only the parent
holds open.
"""

import http.client
import subprocess
import sys
from typing import Self
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import HoldfastError
from holdfast.testing.behaviour import BatchStats, Behaviour, Seen, Stats

_STOP_SECONDS = 10.0
_STATS_SECONDS = 30.0


class ServerStartError(HoldfastError):
    """The server's process ended before it printed its base URL."""


def start_server_process(behaviour: Behaviour | None = None, port: int = 0) -> "ServerProcess":
    """Start it and wait until it listens. Use it in a `with`, or close it. `reply` must be None: it cannot be sent to
    another process.
    """
    chosen = behaviour or Behaviour()
    if chosen.reply is not None:
        raise ServerStartError("a reply function cannot be sent to another process: use ModelServer instead")
    settings = {name: getattr(chosen, name) for name in chosen.__struct_fields__ if name != "reply"}
    encoded = msgspec.json.encode(settings).decode()
    process = _start(["--port", str(port), "--while-stdin-is-open", "--behaviour", encoded])
    assert process.stdout is not None
    base_url = process.stdout.readline().strip()
    server = ServerProcess(process, base_url)
    if not base_url:
        server.close()
        raise ServerStartError(f"the test server could not start on port {port}: see its message on standard error")
    return server


def _start(arguments: list[str]) -> "subprocess.Popen[str]":
    """Our own end-to-end tests replace it: a fork starts ten times as fast."""
    command = [sys.executable, "-m", "holdfast.testing", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class ServerProcess:
    """A running test server."""

    def __init__(self, process: "subprocess.Popen[str]", base_url: str) -> None:
        self.base_url = base_url
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def stats(self) -> Stats:
        """The counts so far, over HTTP."""
        return msgspec.json.decode(self._get("/stats"), type=Stats)

    def batches(self) -> BatchStats:
        """The counts of batch jobs."""
        return msgspec.json.decode(self._get("/batch-stats"), type=BatchStats)

    def requests(self) -> list[Seen]:
        """The latest requests, oldest first: as many as `Behaviour.kept`."""
        return msgspec.json.decode(self._get("/requests"), type=list[Seen])

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(urlsplit(self.base_url).netloc, timeout=_STATS_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def close(self) -> None:
        """Idempotent. A server that does not end by itself is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
