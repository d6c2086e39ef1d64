"""One model behind several URLs.

A request goes where its affinity went before, so that a server finds the beginning of a conversation, or of the other
repeats of a sample, in its cache; else to the server with the fewest requests under way. A server that cannot be
reached, is overloaded, does not answer or answers with an error of its own rests for a moment, and its requests go to
the others: one that fails fast would else draw all of them. Nothing is sent twice from here, whoever tries again comes
back and is sent elsewhere. If all of them rest, the one that has rested longest is asked.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from holdfast.models.failures import BadConnectionError, ModelError
from holdfast.models.http.endpoint import parse_url
from holdfast.models.provider import Connection, Listing, Provider, Request
from holdfast.records.samples import Answer

_REST_SECONDS = 1.0
_REST_SECONDS_MAX = 30.0
_PINS_MAX = 100_000
"""So many conversations are remembered; the one that was silent for longest is forgotten."""
_TIRED = ("connection", "overload", "server", "timeout")


def make_routing(
    connection: Connection, urls: Sequence[str], make: Callable[[Connection], Provider]
) -> "RoutingProvider":
    """BadConnectionError if there is no URL, or one stands there twice."""
    if not urls:
        raise BadConnectionError("base_url is an empty list: name at least one URL, or leave it out")
    if len(set(urls)) < len(urls):
        raise BadConnectionError("base_url names a URL twice: name each of them once")
    shown = [str(parse_url(url).with_query(None).with_user(None)) for url in urls]
    made = [make(msgspec.structs.replace(connection, base_url=url)) for url in urls]
    return RoutingProvider(list(map(Place, shown, made)), connection.tell)


class Place:
    """One URL: its provider, and how it is doing."""

    def __init__(self, url: str, provider: Provider) -> None:
        self.url = url
        self.provider = provider
        self.under_way = 0
        self.rests_until = 0.0
        self.failures = 0
        """In a row."""


class RoutingProvider:
    """Several providers of one model as one. Belongs to the event loop that first asks; close it there."""

    def __init__(
        self,
        places: Sequence[Place],
        tell: Callable[[str, str], None] = lambda event, message: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = list(places)
        self._tell = tell
        self._clock = clock
        self._pins: OrderedDict[str, Place] = OrderedDict()

    async def generate(self, request: Request) -> Answer:
        """Ask once, at one of them. What is raised is what it raised."""
        place = self._choose(request.affinity)
        place.under_way += 1
        try:
            answer = await place.provider.generate(request)
        except ModelError as error:
            if error.kind in _TIRED:
                self._rest(place, error)
            raise
        finally:
            place.under_way -= 1
        if place.failures:
            place.failures, place.rests_until = 0, 0.0
            self._tell("model.back", f"{place.url} answers again")
        return answer

    async def served(self, seconds: float) -> list[str] | None:
        """The names of the models that all of them have; None if one does not say."""
        found: list[str] | None = None
        for place in self._places:
            names = await place.provider.served(seconds) if isinstance(place.provider, Listing) else None
            if names is None:
                return None
            found = names if found is None else [name for name in found if name in names]
        return found

    async def close(self) -> None:
        for place in self._places:
            await place.provider.close()

    def _choose(self, affinity: str) -> Place:
        now = self._clock()
        pinned = self._pins.get(affinity) if affinity else None
        if pinned is not None and pinned.rests_until <= now:
            self._pins.move_to_end(affinity)
            return pinned
        awake = [place for place in self._places if place.rests_until <= now]
        if awake:
            chosen = min(awake, key=lambda place: place.under_way)
        else:
            chosen = min(self._places, key=lambda place: place.rests_until)
        if affinity:
            self._pins[affinity] = chosen
            self._pins.move_to_end(affinity)
            if len(self._pins) > _PINS_MAX:
                self._pins.popitem(last=False)
        return chosen

    def _rest(self, place: Place, error: ModelError) -> None:
        """The requests that were under way with the one that failed first fail too: that is one failure, not many."""
        now = self._clock()
        if place.rests_until > now:
            return
        place.failures += 1
        seconds = min(_REST_SECONDS * 2.0 ** min(place.failures - 1, 10), _REST_SECONDS_MAX)
        seconds = max(seconds, error.retry_after or 0.0)
        place.rests_until = now + seconds
        others = sum(each.rests_until <= now for each in self._places)
        self._tell("model.rests", f"{place.url} rests for {seconds:g} s, {others} other(s) go on: {error}")
