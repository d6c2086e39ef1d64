"""One model behind several URLs.

A request goes to the server that its affinity used before, so that the prompt cache helps with the turns of a
conversation and the repeats of a sample; otherwise to the server with the fewest requests in flight. A server that is
unreachable, overloaded, timed out or failing (5xx) is paused for a while, and its requests go to the others: a server
that fails fast would otherwise attract all of them. Nothing is sent twice here: a retry comes from the retry layer and
is routed again. If all servers are paused, the one whose pause ends first is used.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from holdfast.models.failures import BadConnectionError, ModelError
from holdfast.models.http.endpoint import parse_url
from holdfast.models.provider import Connection, Listing, Provider, Request
from holdfast.records.samples import Answer

_PAUSE_SECONDS = 1.0
_PAUSE_SECONDS_MAX = 30.0
_PINS_MAX = 100_000
"""How many affinities are remembered; the least recently used is forgotten."""
_PAUSED_AFTER = ("connection", "overload", "server", "timeout")


def make_routing(
    connection: Connection, urls: Sequence[str], make: Callable[[Connection], Provider]
) -> "RoutingProvider":
    """BadConnectionError if there is no URL, or one of them is listed twice."""
    if not urls:
        raise BadConnectionError("base_url is an empty list: list at least one URL, or remove it")
    if len(set(urls)) < len(urls):
        raise BadConnectionError("base_url lists a URL twice: list each of them once")
    shown = [str(parse_url(url).with_query(None).with_user(None)) for url in urls]
    made = [make(msgspec.structs.replace(connection, base_url=url)) for url in urls]
    return RoutingProvider(list(map(RoutedServer, shown, made)), connection.tell)


class RoutedServer:
    """One URL: its provider, its load and its failures."""

    def __init__(self, url: str, provider: Provider) -> None:
        self.url = url
        self.provider = provider
        self.in_flight = 0
        self.paused_until = 0.0
        self.failures = 0
        """Failures in a row."""


class RoutingProvider:
    """Several providers of one model as one. It belongs to the event loop that first uses it; close it there."""

    def __init__(
        self,
        servers: Sequence[RoutedServer],
        tell: Callable[[str, str], None] = lambda event, message: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = list(servers)
        self._tell = tell
        self._clock = clock
        self._pins: OrderedDict[str, RoutedServer] = OrderedDict()

    async def generate(self, request: Request) -> Answer:
        """Send once, to one of the servers. Its errors are raised unchanged."""
        server = self._choose(request.affinity)
        server.in_flight += 1
        try:
            answer = await server.provider.generate(request)
        except ModelError as error:
            if error.kind in _PAUSED_AFTER:
                self._pause(server, error)
            raise
        finally:
            server.in_flight -= 1
        if server.failures:
            server.failures, server.paused_until = 0, 0.0
            self._tell("model.back", f"{server.url} responds again")
        return answer

    async def served(self, seconds: float) -> list[str] | None:
        """The names of the models that all servers have; None if one of them does not list its models."""
        found: list[str] | None = None
        for server in self._servers:
            names = await server.provider.served(seconds) if isinstance(server.provider, Listing) else None
            if names is None:
                return None
            found = names if found is None else [name for name in found if name in names]
        return found

    async def close(self) -> None:
        for server in self._servers:
            await server.provider.close()

    def _choose(self, affinity: str) -> RoutedServer:
        now = self._clock()
        pinned = self._pins.get(affinity) if affinity else None
        if pinned is not None and pinned.paused_until <= now:
            self._pins.move_to_end(affinity)
            return pinned
        available = [server for server in self._servers if server.paused_until <= now]
        if available:
            chosen = min(available, key=lambda server: server.in_flight)
        else:
            chosen = min(self._servers, key=lambda server: server.paused_until)
        if affinity:
            self._pins[affinity] = chosen
            self._pins.move_to_end(affinity)
            if len(self._pins) > _PINS_MAX:
                self._pins.popitem(last=False)
        return chosen

    def _pause(self, server: RoutedServer, error: ModelError) -> None:
        """Pause a server. Requests in flight fail together with the first: that counts as one failure."""
        now = self._clock()
        if server.paused_until > now:
            return
        server.failures += 1
        seconds = min(_PAUSE_SECONDS * 2.0 ** min(server.failures - 1, 10), _PAUSE_SECONDS_MAX)
        seconds = max(seconds, error.retry_after or 0.0)
        server.paused_until = now + seconds
        others = sum(each.paused_until <= now for each in self._servers)
        self._tell("model.rests", f"{server.url} is paused for {seconds:g} s, {others} other(s) continue: {error}")
