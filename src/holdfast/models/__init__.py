"""Requests to models: providers that send one request, and the one layer that retries.

`make_provider` opens the provider of a connection; `ask` sends a request with retries. Invariant: every request ends
in an answer or in a `ModelError` with a kind and a message, never in an empty answer that hides a failure. Importing
this package imports no HTTP client and no optional dependency; opening a provider that needs one does.
"""

from holdfast.models.batch.api import BatchApi, BatchResult, FoundJob, JobMark, JobStatus, open_batches
from holdfast.models.opening import make_provider
from holdfast.models.pacing.retries import Retries, ask
from holdfast.models.prices import count_message_tokens, count_tokens
from holdfast.models.provider import (
    BadConnectionError,
    Connection,
    Kind,
    Listing,
    ModelError,
    Provider,
    Request,
    UnknownProviderError,
)

__all__ = [
    "BadConnectionError",
    "BatchApi",
    "BatchResult",
    "Connection",
    "FoundJob",
    "JobMark",
    "JobStatus",
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
    "open_batches",
]
