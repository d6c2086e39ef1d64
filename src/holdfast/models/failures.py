"""Why a model gave no answer: kinds that a policy can act on, and texts that hold no secrets.

HoldfastError
├── ModelError               one request failed; `kind` says how, `retryable` whether to ask again
└── BadConnectionError       a connection that cannot be used; refused before anything is sent
    └── UnknownProviderError   no provider has that name
"""

from collections.abc import Iterable
from typing import Literal

from holdfast.errors import HoldfastError

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
    "context_too_long",
    "malformed",
]

RETRYABLE: dict[Kind, bool] = {
    "rate_limit": True,
    "overload": True,
    "timeout": True,
    "connection": True,
    "server": True,
    "bad_request": False,
    "unknown_model": False,
    "content_filter": False,
    "auth": False,
    "context_too_long": False,
    "malformed": False,  # the answer was made, and maybe paid for: asking again is for the sample's own retries
}

_SECRET_CHARACTERS_MIN = 4  # anything shorter is no secret, and would blot out ordinary text


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
    def retryable(self) -> bool:
        return RETRYABLE[self.kind]

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def redact(text: str, secrets: Iterable[str]) -> str:
    """Blot out every secret. Must come before any cutting of the text: half a key is no longer found."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SECRET_CHARACTERS_MIN:
            text = text.replace(secret, "[redacted]")
    return text
