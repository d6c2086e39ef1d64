"""The viewer as a user starts it, and a client that speaks plain HTTP to it."""

import http.client
import json
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.commands import start


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


class Viewer(NamedTuple):
    """A server that runs."""

    port: int
    token: str

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **headers: str) -> Reply:
        return self.request("GET", path, None, headers)

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Reply:
        """A form. `Origin` is that of the server unless another is given; an empty one is left out."""
        given = {"Origin": self.origin, "Content-Type": "application/x-www-form-urlencoded", **headers}
        body = urllib.parse.urlencode(fields).encode()
        return self.request("POST", path, body, {name: value for name, value in given.items() if value})

    def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {self.token}", **headers})
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()


@contextmanager
def viewing(store: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Viewer]:
    """The command `view` on a store, ended with the block."""
    arguments: tuple[str | Path, ...] = ("view", store, "--port", "0", "--no-open", *options)
    state = {"XDG_STATE_HOME": str(store.parent / "state"), "USER": "tester", **(env or {})}
    process = start(*arguments, cwd=store.parent, env=state, fresh=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, process.communicate()[1]
        where, _, token = address.partition("/?token=")
        yield Viewer(int(where.rpartition(":")[2]), token)
    finally:
        process.kill()
        process.communicate()
