"""Batch APIs: many requests in one job, answered within a day, for half the price.

A job is submitted once, looked at until it has ended, and its results are read line by line. Invariant: whatever a
server leaves out, doubles or garbles in its results is a result without an answer, never another request's answer.
Nothing here tries again or waits: that is the engine's part, which knows what is recorded.
"""

from collections.abc import AsyncIterator
from typing import BinaryIO, Literal, Protocol

import msgspec

from holdfast.models.failures import BadConnectionError, ModelError
from holdfast.models.provider import Connection, Request
from holdfast.models.providers.registry import load_factory
from holdfast.records.samples import Answer
from holdfast.spec.providers import LOCAL_BATCHES, PROVIDERS

TOKEN_NAME = "holdfast"
"""Under this name a job's metadata hold its token, where jobs have metadata."""


class Mark(msgspec.Struct, frozen=True):
    """What is known of a job that may have been submitted, and whose id was not recorded."""

    token: str
    requests: int
    since: float
    """It was announced at this time, in seconds since 1970."""


class Found(msgspec.Struct, frozen=True):
    """A job that was looked for. `undecided`: there is one that could be it, and that cannot be seen yet."""

    id: str = ""
    undecided: bool = False


class Standing(msgspec.Struct, frozen=True):
    """How a job stands."""

    id: str
    state: Literal["waiting", "ended", "gone"]
    status: str = ""
    """The server's own word."""
    detail: str = ""
    """Why it failed, as far as the server says."""
    results: tuple[str, ...] = ()
    """Where its results are, for who made this."""
    whole: bool = True
    """It ended because all its requests were done, not because of time, a refusal or a cancellation."""


class Result(msgspec.Struct, frozen=True):
    """What became of one request. Neither an answer nor an error: it was not done."""

    name: str
    answer: Answer | None = None
    error: ModelError | None = None


class BatchApi(Protocol):
    """One model's batch API. Every method raises ModelError, and nothing else but a cancellation."""

    def body(self, request: Request) -> bytes:
        """A request as a single one would be sent: JSON."""
        ...

    def line(self, name: str, body: bytes) -> bytes:
        """A line of a job, with its newline."""
        ...

    async def submit(self, token: str, lines: BinaryIO) -> str:
        """Create the job of these lines. Its id. After an error of a kind that can be tried again, and after one that
        is `malformed`, the server may have it all the same.
        """
        ...

    async def find(self, mark: Mark) -> Found: ...

    async def look(self, job: str) -> Standing: ...

    def results(self, standing: Standing) -> AsyncIterator[bytes]:
        """The lines of all results, in any order."""
        ...

    def parse(self, line: bytes) -> Result | None:
        """None: it is no result that can be read."""
        ...

    async def close(self) -> None: ...


def open_batches(connection: Connection) -> BatchApi:
    """The batch API of a connection's provider. BadConnectionError if it has none."""
    info = PROVIDERS.get(connection.provider)
    factory = LOCAL_BATCHES if info is None else info.batch_factory
    if not factory:
        hosted = [name for name, each in PROVIDERS.items() if each.batch_factory not in ("", LOCAL_BATCHES)]
        advice = f"remove `batch`, or use {' or '.join(hosted)}"
        raise BadConnectionError(f"batch: the provider {connection.provider!r} has no batch API; {advice}")
    api: BatchApi = load_factory(factory)(connection)
    return api
