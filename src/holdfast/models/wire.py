"""HTTP/1.1 to one server: whole requests out, whole responses in, connections kept and used again.

Every sample passes here, so it does only what asking a model needs. It sends once, follows no redirect, keeps no cookie
and asks for no compression (what comes compressed all the same is undone). The bytes are parsed by llhttp. Invariant: a
connection carries one request at a time, and one that is in any doubt (cancelled, late, out of step) is never used
again. A response is held whole, so it is bounded. A proxy is `tunnel`'s business.
"""

import asyncio
import functools
import ipaddress
import re
import ssl
import zlib
from collections.abc import Mapping

import httptools
import msgspec
from yarl import URL

from holdfast.errors import HoldfastError
from holdfast.models.timing import under_way
from holdfast.models.tunnel import Proxy, basic, connect_through

BODY_BYTES_MAX = 64 * 1024 * 1024
"""A longer answer could not be saved anyway."""
_HEAD_BYTES_MAX = 256 * 1024
_CONNECT_SECONDS_MAX = 30.0
_IDLE_SECONDS_MAX = 15.0
"""Servers close idle connections: one that was idle for longer is not trusted with a request that costs money."""
_EYEBALLS_SECONDS = 0.25
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class BadResponseError(HoldfastError):
    """What came back is no HTTP response that can be used."""


class Response(msgspec.Struct, frozen=True):
    """One response, whole."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """Their names are in lower case."""
    body: bytes

    def header(self, name: bytes) -> str:
        """The first header of a lower-case name; empty if there is none."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return ""


class Wire:
    """The connections to one URL. Belongs to the event loop that first uses it."""

    def __init__(
        self,
        url: URL,
        headers: Mapping[str, str],
        timeout_seconds: float,
        method: str = "POST",
        proxy: Proxy | None = None,
    ) -> None:
        """ValueError if a header cannot be sent."""
        self._url = url
        self._proxy = proxy
        self._head = _head_of(method, url, headers, proxy)
        self._timeout_seconds = timeout_seconds
        self._eyeballs_seconds = None if _is_address(url.host) else _EYEBALLS_SECONDS  # one address races with none
        self._free: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._waiting: dict[_Connection, float] = {}  # for an answer, since when; who waits longest comes first
