"""The provider interface: a connection to open it with, one request in, one answer or one ModelError out."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgspec

from holdfast.records.samples import Answer, Message

Headers = list[tuple[bytes, bytes]]
"""Response headers as received, with names in lower case."""


class Request(msgspec.Struct, frozen=True):
    """One request to a model. The provider knows which model, and where it is."""

    messages: list[Message]
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    affinity: str = ""
    """Requests with equal affinity go to the same server, if there are several: its prompt cache helps."""


class Connection(msgspec.Struct, frozen=True):
    """How to reach a model. It holds the name of the variable with the API key, never the key itself."""

    provider: str
    model: str
    base_url: str | list[str] = ""
    """A list: several servers of the same model."""
    api_key_env: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    timeout_seconds: float = 600
    """For the whole response; with `stream`, for the time between two chunks."""
    stream: bool = False
    record_raw: bool = False
    max_connections: int = 64
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Secret values in headers or URL, besides those that are recognised by their names: never shown."""
    listen: Callable[[int, Headers], None] = lambda status, headers: None
    """Called with the status and the headers of every response: servers report their rate limits there."""
    tell: Callable[[str, str], None] = lambda event, message: None
    """Called with an event name and a sentence for the run's log, for what no answer reports."""


class Provider(Protocol):
    """Sends a request once; `ask` retries. It belongs to the event loop that first used it."""

    async def generate(self, request: Request) -> Answer: ...

    async def close(self) -> None: ...


@runtime_checkable
class Listing(Protocol):
    """A provider that can list the models of its server, without a request to a model."""

    async def served(self, seconds: float) -> list[str] | None:
        """The names of its models; None if it lists none. ModelError if it is unreachable or rejects the key."""
