"""The provider interface: a connection to open it with, one request in, one answer or one ModelError out.

A `ModelError` has a kind, on which the retry policy acts, and a message without secrets.

HoldfastError
├── AskFailedError           a request failed for good: its retries are used up, or retrying cannot help
├── ModelError               one request failed; `kind` is its kind, `retryable` whether a retry may help
└── BadConnectionError       an unusable connection; raised before anything is sent
    └── UnknownProviderError   no provider has that name
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from holdfast.errors import HoldfastError
from holdfast.records import Answer, Failure, Message

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


_MODELS_LISTED_MAX = 8


def describe_models(model: str, names: Sequence[str]) -> str:
    """The models of a server for a user who named one that it does not have, the nearest first."""
    import difflib

    near = difflib.get_close_matches(model, names, n=1, cutoff=0.5)
    shown = ", ".join(names[:_MODELS_LISTED_MAX]) or "no model"
    more = f" and {len(names) - _MODELS_LISTED_MAX} more" if len(names) > _MODELS_LISTED_MAX else ""
    return f"did you mean {near[0]!r}? The server lists {shown}{more}" if near else f"the server lists {shown}{more}"


Kind = Literal[
    "rate_limit",
    "overload",
    "timeout",
    "connection",
    "server",
    "bad_request",
    "unknown_model",
    "unsupported",
    "content_filter",
    "auth",
    "billing",
    "context_too_long",
    "malformed",
]


class FailurePolicy(msgspec.Struct, frozen=True):
    """How failures of one kind are handled."""

    again: Literal["request", "sample", "never"]
    """What is retried: the request; only the whole sample, in another attempt; or nothing, as it would fail again."""
    is_free: bool = False
    """The server only asked to wait: within `patience_seconds` this uses up none of the request's retries."""
    slows: bool = False
    """The server is overloaded: halve the number of requests in flight."""
    breaks: bool = False
    """Counts towards the circuit breaker: many in a row mean that the server is down."""
    stops_new: int = 0
    """This many in a row stop a cell that has had no answer yet; 0: never."""
    stops_working: int = 0
    """This many in a row stop a cell that has had answers; 0: never."""
    is_of_line: bool = False
    """It concerns the connection: failures of all cells of the model are counted together, else per cell."""


POLICIES: dict[Kind, FailurePolicy] = {
    "rate_limit": FailurePolicy("request", is_free=True, slows=True),
    "overload": FailurePolicy("request", is_free=True, slows=True, breaks=True),
    "timeout": FailurePolicy("request", slows=True, breaks=True),
    "connection": FailurePolicy("request", breaks=True),
    "server": FailurePolicy("request", breaks=True),
    "bad_request": FailurePolicy("never", stops_new=5),
    "unknown_model": FailurePolicy("never", stops_new=1, stops_working=5, is_of_line=True),
    "unsupported": FailurePolicy("never", stops_new=1, stops_working=5),
    "content_filter": FailurePolicy("never"),
    "auth": FailurePolicy("never", stops_new=1, stops_working=5, is_of_line=True),
    "billing": FailurePolicy("never", stops_new=1, stops_working=1, is_of_line=True),
    "context_too_long": FailurePolicy("never"),
    "malformed": FailurePolicy("sample"),  # the response was generated, and maybe paid for
}
"""One row per kind. Rows without a flag come from a server that works."""


class BadConnectionError(HoldfastError):
    """The connection cannot be used. Raised when its provider is opened, before any request is sent."""


class UnknownProviderError(BadConnectionError):
    """No provider has this name: it is not in the table, not installed, and not module:function."""


class ModelError(HoldfastError):
    """One request failed. `ask` sets `tries`: how often the request was sent."""

    def __init__(self, kind: Kind, message: str, retry_after: float | None = None, status: int | None = None) -> None:
        super().__init__(kind, message, retry_after, status)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after
        self.status = status
        self.tries = 1

    @property
    def policy(self) -> FailurePolicy:
        return POLICIES[self.kind]

    @property
    def retryable(self) -> bool:
        return self.policy.again == "request"

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class AskFailedError(HoldfastError):
    """A request failed for good: its retries are used up, or a retry cannot help."""

    def __init__(self, failure: Failure, tries: int) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.tries = tries
