"""`holdfast view` in a process of its own, and what tests send to it over plain HTTP."""

import http.client
import json
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from tests.e2e.commands import Done, finish, start

PATIENCE_SECONDS = 120.0
"""Only a failing test waits so long."""


class Reply(NamedTuple):
    """A response of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class Viewer:
    """One server. `kill` and `restart` keep its port."""

    def __init__(self, *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self._arguments, self._cwd, self._env = arguments, cwd, env
        self._process = self._start(0)

    def _start(self, port: int) -> "subprocess.Popen[str]":
        process = start("view", *self._arguments, "--port", str(port), "--no-open", cwd=self._cwd, env=self._env)
        assert process.stdout is not None
        self.link = process.stdout.readline().strip()
        if not self.link:
            raise AssertionError(f"the server did not start: {finish(process)}")
        self.port = urlsplit(self.link).port or 0
        self.token = parse_qs(urlsplit(self.link).query)["token"][0]
        return process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        finish(self._process, signal.SIGKILL)

    def close_output(self) -> None:
        """As `| head -1` does."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Done:
        return finish(self._process, number)

    def restart(self) -> None:
        self._process = self._start(self.port)

    def get(
        self, path: str, headers: Mapping[str, str] | None = None, *, method: str = "GET", body: str | None = None
    ) -> Reply:
        """With the token, unless headers are given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            sent = {"Authorization": f"Bearer {self.token}"} if headers is None else dict(headers)
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(PATIENCE_SECONDS)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


class Event(NamedTuple):
    """One event of a stream."""

    id: str
    name: str
    data: Any


@contextmanager
def stream(viewer: Viewer, address: str, last_id: str = "") -> Iterator[Iterator[Event]]:
    """The events of an address, read from a plain socket. It ends when the connection does."""
    with socket.create_connection(("127.0.0.1", viewer.port), timeout=PATIENCE_SECONDS) as connection:
        last = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
        connection.sendall(
            f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1:{viewer.port}\r\nAuthorization: Bearer {viewer.token}\r\n"
            f"{last}\r\n".encode()
        )
        with connection.makefile("rb") as file:
            status = file.readline()
            assert b" 200 " in status, status
            while file.readline() not in (b"\r\n", b""):
                pass
            yield _events(file)


def _events(file: Any) -> Iterator[Event]:
    """Events are separated by empty lines. The lengths of chunks are lines too; they have no colon."""
    found: dict[str, str] = {}
    while True:
        try:
            line = file.readline()
        except ConnectionResetError:
            return
        if not line.endswith(b"\n") or line == b"0\r\n":
            return  # cut off (what is not whole does not count), or ended by a chunk of length 0
        text = line.decode().rstrip("\r\n")
        name, colon, value = text.partition(": ")
        if colon:
            found[name] = value
        elif not text and line == b"\n":
            if "event" in found:
                yield Event(found.get("id", ""), found["event"], json.loads(found["data"]))
            found = {}
