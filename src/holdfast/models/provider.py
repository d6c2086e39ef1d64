"""What a provider is given and what it must do: one request in, one answer or one ModelError out."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgspec

from holdfast.records.samples import Answer, Message

Headers = list[tuple[bytes, bytes]]
"""As they came over the wire, but for their names, which are in lower case."""


class Request(msgspec.Struct, frozen=True):
    """One question to a model. Which model, and where it is, belongs to the provider."""

    messages: list[Message]
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    affinity: str = ""
    """Requests with the same one go to the same server, if there are several: it has the beginning in its cache."""


class Connection(msgspec.Struct, frozen=True):
    """How to reach a model. The key itself is never here, only the name of the variable that holds it."""

    provider: str
    model: str
    base_url: str | list[str] = ""
    """Several: one model behind all of them."""
    api_key_env: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    timeout_seconds: float = 600
    """For the whole answer; with `stream`, for the time between two pieces of it."""
    stream: bool = False
    record_raw: bool = False
    max_connections: int = 64
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Values in headers or URL that must never be shown, beside those that are recognised by their names."""
    listen: Callable[[int, Headers], None] = lambda status, headers: None
    """Hears the status and the headers of every response: servers say there how much they still bear."""
    tell: Callable[[str, str], None] = lambda event, message: None
    """Hears what a person should know and no answer says: an event's name, and a sentence."""


class Provider(Protocol):
    """Asks once; trying again is `ask`'s work. Belongs to the event loop that first used it."""

    async def generate(self, request: Request) -> Answer: ...

    async def close(self) -> None: ...


@runtime_checkable
class Listing(Protocol):
    """A provider that can be asked which models it has, without asking a model."""

    async def served(self, seconds: float) -> list[str] | None:
        """None if it does not say. ModelError if it is not there or refuses us."""
