"""A viewer in a process of its own, and its pages as JSON and as text."""

import json
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.commands import finish, start

PATIENCE_SECONDS = 120


class Served(NamedTuple):
    """One server."""

    base: str
    token: str

    def get(self, path: str) -> tuple[int, str]:
        request = urllib.request.Request(self.base + path, headers={"Authorization": f"Bearer {self.token}"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def html(self, path: str) -> str:
        """A page; also its JSON twin exists."""
        status, text = self.get(path)
        assert status == 200, text
        return text

    def json(self, path: str) -> Any:
        status, text = self.get(f"/api{path}")
        assert status == 200, text
        return json.loads(text)


@contextmanager
def serving(store: Path, *more: str | Path) -> Iterator[Served]:
    """`holdfast view STORE`."""
    with start("view", store, *more, "--port", "0", "--no-open", cwd=store) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        base, _, token = link.partition("/?token=")
        assert token, finish(process)
        try:
            yield Served(base, token)
        finally:
            finish(process, signal.SIGTERM)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if tag == "a" and name == "href" and value:
                self.found.append(value)


def links_in(html: str) -> list[str]:
    """Every address on a page."""
    parser = _Links()
    parser.feed(html)
    return parser.found


def query_of(address: str) -> dict[str, list[str]]:
    return urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)
