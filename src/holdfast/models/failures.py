"""Why a model gave no answer: kinds that a policy can act on, and texts that hold no secrets.

HoldfastError
├── AskFailedError           a request failed for good: its retries are used up, or retrying cannot help
├── ModelError               one request failed; `kind` says how, `retryable` whether to ask again
└── BadConnectionError       a connection that cannot be used; refused before anything is sent
    └── UnknownProviderError   no provider has that name
"""

from typing import Literal

import msgspec

from holdfast.errors import HoldfastError
from holdfast.records.facts import Failure

Kind = Literal[
    "rate_limit",
    "overload",
    "timeout",
    "connection",
    "server",
    "bad_request",
    "unknown_model",
    "content_filter",
    "auth",
    "billing",
    "context_too_long",
    "malformed",
]


class Policy(msgspec.Struct, frozen=True):
    """What a failure of one kind leads to."""

    again: Literal["request", "sample", "never"]
    """Who asks again: the request itself, only another attempt at the sample, or nobody: it would fail the same way."""
    is_free: bool = False
    """The server has only said "later": within the model's patience that uses up no retry of the request."""
    slows: bool = False
    """The server has too much to do: half as many requests at a time."""
    breaks: bool = False
    """So many of these in a row mean that the server is down: the circuit breaker."""
    stops_new: int = 0
    """So many in a row stop a cell that has had no answer yet; 0: none do."""
    stops_working: int = 0
    """The same for one that has had answers."""
    is_of_line: bool = False
    """It is about the connection, so requests of all cells of the model count together; else each cell for itself."""


POLICIES: dict[Kind, Policy] = {
    "rate_limit": Policy("request", is_free=True, slows=True),
    "overload": Policy("request", is_free=True, slows=True, breaks=True),
    "timeout": Policy("request", slows=True, breaks=True),
    "connection": Policy("request", breaks=True),
    "server": Policy("request", breaks=True),
    "bad_request": Policy("never", stops_new=5),
    "unknown_model": Policy("never", stops_new=1, stops_working=5, is_of_line=True),
    "content_filter": Policy("never"),
    "auth": Policy("never", stops_new=1, stops_working=5, is_of_line=True),
    "billing": Policy("never", stops_new=1, stops_working=1, is_of_line=True),
    "context_too_long": Policy("never"),
    "malformed": Policy("sample"),  # the answer was made, and maybe paid for
}
"""One row for each kind. Rows without a mark are answers of a server that works."""


class BadConnectionError(HoldfastError):
    """A connection is refused when its provider is made: no request has been sent."""


class UnknownProviderError(BadConnectionError):
    """Neither a built-in provider nor module:function."""


class ModelError(HoldfastError):
    """One request failed. `tries` is set by `ask`: how often it was sent before giving up."""

    def __init__(self, kind: Kind, message: str, retry_after: float | None = None, status: int | None = None) -> None:
        super().__init__(kind, message, retry_after, status)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after
        self.status = status
        self.tries = 1

    @property
    def policy(self) -> Policy:
        return POLICIES[self.kind]

    @property
    def retryable(self) -> bool:
        return self.policy.again == "request"

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class AskFailedError(HoldfastError):
    """A request failed for good: after its retries, or because retrying cannot help."""

    def __init__(self, failure: Failure, tries: int) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.tries = tries
