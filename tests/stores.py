"""Object stores for tests: one in memory that remembers every change, wrappers that misbehave, and the real kinds.

A moto server on the loopback simulates S3, obstore's own folder store for everything that is mounted.
"""

import contextlib
import functools
import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from holdfast.errors import StoreError
from holdfast.journal.object_store import ObjectInfo, Objects

PATIENCE_SECONDS = 30.0
EVERY_KIND = ("s3", "folder", "azure", "google")
"""Those of the fixture `bucket`; it takes the first two unless a test's file requests all."""


class Change(NamedTuple):
    """A put, or, without data, a delete."""

    name: str
    data: bytes | None


class MemoryObjects:
    """Keeps objects, and every change in order."""

    def __init__(self, held: dict[str, bytes] | None = None, url: str = "memory://store") -> None:
        self.url = url
        self.held = dict(held or {})
        self.changes: list[Change] = []
        self._guard = threading.Lock()

    def put(self, name: str, data: bytes) -> None:
        with self._guard:
            self.held[name] = bytes(data)
            self.changes.append(Change(name, bytes(data)))

    def put_file(self, name: str, path: str) -> None:
        with open(path, "rb") as file:
            self.put(name, file.read())

    def create(self, name: str, data: bytes) -> bool:
        with self._guard:
            if name in self.held:
                return False
            self.held[name] = bytes(data)
            self.changes.append(Change(name, bytes(data)))
            return True

    def get(self, name: str, first: int = 0, last: int | None = None) -> bytes | None:
        data = self.held.get(name)
        return None if data is None else data[first:last]

    def pieces(self, name: str) -> Iterator[bytes]:
        data = self.held.get(name)
        if data is None:
            raise StoreError(f"{self.url}: cannot get {name!r}: it is not there")
        yield data

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._guard:
            found = [ObjectInfo(name, len(data)) for name, data in sorted(self.held.items())]
        return (each for each in found if not prefix or each.name.startswith(f"{prefix}/"))

    def folders(self, prefix: str) -> list[str]:
        start = f"{prefix}/" if prefix else ""
        below = (name[len(start) :] for name in self.held if name.startswith(start))
        return sorted({name.split("/")[0] for name in below if "/" in name})

    def delete(self, name: str) -> None:
        with self._guard:
            self.held.pop(name, None)
            self.changes.append(Change(name, None))


def states(before: dict[str, bytes], changes: list[Change]) -> Iterator[dict[str, bytes]]:
    """What a store held before the first change and after each."""
    held = dict(before)
    yield dict(held)
    for change in changes:
        if change.data is None:
            held.pop(change.name, None)
        else:
            held[change.name] = change.data
        yield dict(held)


class Broken:
    """A store between us and another one, which does what it likes with every call that changes or reads something.

    `before(verb, name)` may raise, wait or count; what it returns says how the call continues: `do` it, `lie` (do
    nothing and say that it was done), or `mumble` (do it, and say that it failed).
    """

    def __init__(self, objects: Objects, before: Callable[[str, str], str]) -> None:
        self._objects = objects
        self._before = before

    @property
    def url(self) -> str:
        return self._objects.url

    def put(self, name: str, data: bytes) -> None:
        self._do("put", name, lambda: self._objects.put(name, data))

    def put_file(self, name: str, path: str) -> None:
        self._do("put", name, lambda: self._objects.put_file(name, path))

    def create(self, name: str, data: bytes) -> bool:
        made: list[bool] = []
        self._do("create", name, lambda: made.append(self._objects.create(name, data)))
        return made[0] if made else True

    def get(self, name: str, first: int = 0, last: int | None = None) -> bytes | None:
        self._before("get", name)
        return self._objects.get(name, first, last)

    def pieces(self, name: str) -> Iterator[bytes]:
        self._before("get", name)
        yield from self._objects.pieces(name)

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        self._before("list", prefix)
        return self._objects.listed(prefix)

    def folders(self, prefix: str) -> list[str]:
        self._before("list", prefix)
        return self._objects.folders(prefix)

    def delete(self, name: str) -> None:
        self._do("delete", name, lambda: self._objects.delete(name))

    def _do(self, verb: str, name: str, call: Callable[[], None]) -> None:
        how = self._before(verb, name)
        if how != "lie":
            call()
        if how == "mumble":
            raise StoreError(f"{self.url}: cannot {verb} {name!r}: the answer got lost")


class Crash(BaseException):
    """The process dies here: nothing catches it."""


def failing_every(
    count: int, verbs: tuple[str, ...] = ("put",), how: str = "fail", chance: random.Random | None = None
) -> Callable[[str, str], str]:
    """Every so many-th call of these verbs, or with a chance one of so many, fails, or mumbles if `how` says so."""
    seen = 0

    def before(verb: str, name: str) -> str:
        nonlocal seen
        if verb not in verbs:
            return "do"
        seen += 1
        if chance.randrange(count) if chance else seen % count:
            return "do"
        if how == "mumble":
            return "mumble"
        raise StoreError(f"memory://store: cannot {verb} {name!r}: out of order")

    return before


class Outage:
    """Everything fails while it lasts."""

    def __init__(self) -> None:
        self.now = False
        self.refused = 0
        self._felt = threading.Condition()

    def wait(self, times: int) -> None:
        """Until so many calls were refused."""
        with self._felt:
            assert self._felt.wait_for(lambda: self.refused >= times, PATIENCE_SECONDS)

    def __call__(self, verb: str, name: str) -> str:
        if self.now:
            with self._felt:
                self.refused += 1
                self._felt.notify_all()
            raise StoreError(f"memory://store: cannot {verb} {name!r}: no route to host")
        return "do"


def lying(verb: str, name: str) -> str:
    """The negative control: it says yes to every put, and keeps nothing."""
    return "lie" if verb in ("put", "delete") else "do"


def crashing_after(count: int, verbs: tuple[str, ...]) -> Callable[[str, str], str]:
    left = count

    def before(verb: str, name: str) -> str:
        nonlocal left
        if verb in verbs:
            left -= 1
            if left < 0:
                raise Crash
        return "do"

    return before


class Bucket(NamedTuple):
    """A place in a real store, and the environment that reaches it."""

    url: str
    env: dict[str, str]


_PUTTING = threading.Lock()


@functools.cache
def make_moto_atomic() -> None:
    """Let moto check for an object and create it in one step, as S3 does. Its server handles each request in a thread
    of its own: of two that create the same object at once, both may succeed (seen in 3 of 400 races of four threads).
    """
    from moto.s3.responses import S3Response

    put = S3Response.put_object

    def put_alone(self: S3Response) -> Any:
        with _PUTTING:
            return put(self)

    S3Response.put_object = put_alone  # type: ignore[method-assign]


class S3:
    """A moto server of its own: stopping it is an outage, starting it again on the same port the end of it."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        make_moto_atomic()
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.port = self._server.get_host_and_port()[1]

    def close(self) -> None:
        self._server.stop()

    def stop(self) -> None:
        """What is stored stays, in this process."""
        self._server.stop()

    def go_on(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def bucket(self) -> Bucket:
        """A new one, empty."""
        import urllib.request

        name = f"b-{uuid.uuid4().hex}"
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{name}", method="PUT")
        with contextlib.closing(urllib.request.urlopen(request)) as answer:
            assert answer.status == 200
        return Bucket(f"s3://{name}", self.env)
