"""Requests to models: providers that send one request, and the one layer that retries.

`make_provider` opens the provider of a connection; `ask` sends a request with retries. Invariant: every request ends
in an answer or in a `ModelError` with a kind and a message, never in an empty answer that hides a failure. Importing
this package imports no HTTP client and no optional dependency; opening a provider that needs one does.
"""

from holdfast.models.batch.api import BatchApi, BatchResult, FoundJob, JobMark, JobStatus, open_batches
from holdfast.models.call import Held, HeldByLimiter, MaySend, ModelCall, current_call, wait_to_send
from holdfast.models.likelihood import Likelihood, PromptToken, likelihood_messages, likelihood_of
from holdfast.models.opening import Guard, GuardedProvider, credentials_of, identity_of, open_batch_api, open_provider
from holdfast.models.pacing.pace import Pace, PaceLimits, quotas_in
from holdfast.models.pacing.queue import RequestQueue, Slots
from holdfast.models.pacing.retries import Retries, RetryDecision, Streak, generate_with_retries
from holdfast.models.pacing.stopwatch import Stopwatch, clock_of
from holdfast.models.prices import LEAST, MOST, PACKAGE, count_message_tokens, count_tokens, find_rates, is_installed
from holdfast.models.provider import (
    POLICIES,
    AskFailedError,
    BadConnectionError,
    Connection,
    Headers,
    Kind,
    Listing,
    ModelError,
    Provider,
    Request,
    UnknownProviderError,
    describe_models,
)
from holdfast.models.providers.registry import make_provider
from holdfast.models.toy_model import score_toy_tokens, split_toy_tokens

__all__ = [
    "LEAST",
    "MOST",
    "PACKAGE",
    "POLICIES",
    "AskFailedError",
    "BadConnectionError",
    "BatchApi",
    "BatchResult",
    "Connection",
    "FoundJob",
    "Guard",
    "GuardedProvider",
    "Headers",
    "Held",
    "HeldByLimiter",
    "JobMark",
    "JobStatus",
    "Kind",
    "Likelihood",
    "Listing",
    "MaySend",
    "ModelCall",
    "ModelError",
    "Pace",
    "PaceLimits",
    "PromptToken",
    "Provider",
    "Request",
    "RequestQueue",
    "Retries",
    "RetryDecision",
    "Slots",
    "Stopwatch",
    "Streak",
    "UnknownProviderError",
    "clock_of",
    "count_message_tokens",
    "count_tokens",
    "credentials_of",
    "current_call",
    "describe_models",
    "find_rates",
    "generate_with_retries",
    "identity_of",
    "is_installed",
    "likelihood_messages",
    "likelihood_of",
    "make_provider",
    "open_batch_api",
    "open_batches",
    "open_provider",
    "quotas_in",
    "score_toy_tokens",
    "split_toy_tokens",
    "wait_to_send",
]
