"""Why a request to a model failed: kinds that a policy acts on, and messages without secrets.

HoldfastError
├── AskFailedError           a request failed for good: its retries are used up, or retrying cannot help
├── ModelError               one request failed; `kind` is its kind, `retryable` whether a retry may help
└── BadConnectionError       an unusable connection; raised before anything is sent
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
