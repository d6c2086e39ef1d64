"""Asking a model: providers that send one request, and the one layer that tries again.

`make_provider` turns a connection into a provider, `ask` asks it with retries. Invariant: every request ends in an
answer or in a `ModelError` with a kind and a message; never in an empty answer that stands for a failure. Importing
this room imports no HTTP client: that happens when an `openai` provider is made.
"""

from holdfast.models.factory import make_provider
from holdfast.models.failures import BadConnectionError, Kind, ModelError, UnknownProviderError
from holdfast.models.provider import Connection, Listing, Provider, Request
from holdfast.models.retries import Retries, ask
from holdfast.models.tokens import count_message_tokens, count_tokens

__all__ = [
    "BadConnectionError",
    "Connection",
    "Kind",
    "Listing",
    "ModelError",
    "Provider",
    "Request",
    "Retries",
    "UnknownProviderError",
    "ask",
    "count_message_tokens",
    "count_tokens",
    "make_provider",
]
