"""Asking a model: providers that send one request, and the one layer that tries again.

`make_provider` turns a connection into a provider, `ask` asks it with retries. Invariant: every request ends in an
answer or in a `ModelError` with a kind and a message; never in an empty answer that stands for a failure. Importing
this room imports no HTTP client and no extra: that happens when a provider is made that needs it.
"""

from holdfast.models.batch.api import BatchApi, Found, Mark, Result, open_batches
from holdfast.models.batch.api import Standing as JobStanding
from holdfast.models.failures import BadConnectionError, Kind, ModelError, UnknownProviderError
from holdfast.models.pacing.retries import Retries, ask
from holdfast.models.provider import Connection, Listing, Provider, Request
from holdfast.models.providers.registry import make_provider
from holdfast.models.tokens import count_message_tokens, count_tokens

__all__ = [
    "BadConnectionError",
    "BatchApi",
    "Connection",
    "Found",
    "JobStanding",
    "Kind",
    "Listing",
    "Mark",
    "ModelError",
    "Provider",
    "Request",
    "Result",
    "Retries",
    "UnknownProviderError",
    "ask",
    "count_message_tokens",
    "count_tokens",
    "make_provider",
    "open_batches",
]
