"""Any model that LiteLLM supports. LiteLLM is imported with the first request, in a thread: that takes seconds.

Its own retries are off: Holdfast has one retry layer. Its exceptions are mapped to our kinds. It reads API keys from
its own variables, or gets the one that `api_key_env` names; no error message holds one of them.
"""

import asyncio
import importlib.util
import os
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from holdfast.errors import describe_error
from holdfast.models.http.bodies import clean
from holdfast.models.http.endpoint import read_key, secrets_of
from holdfast.models.http.statuses import kind_of, retry_after_seconds, shorten
from holdfast.models.likelihood import likelihood_texts
from holdfast.models.provider import BadConnectionError, Connection, Kind, ModelError, Request
from holdfast.models.providers.chat_completions import answer_of
from holdfast.records import Answer, redact

_KINDS: dict[str, Kind] = {
    "Timeout": "timeout",
    "APITimeoutError": "timeout",
    "APIConnectionError": "connection",
    "ContextWindowExceededError": "context_too_long",
    "ContentPolicyViolationError": "content_filter",
    "ServiceUnavailableError": "overload",
    "APIResponseValidationError": "malformed",
    "JSONDecodeError": "malformed",
}
"""Kinds by the name of an exception; others are mapped by their status."""
_CAUSES_MAX = 10


def make_litellm(connection: Connection) -> "LitellmProvider":
    if importlib.util.find_spec("litellm") is None:  # only look it up: importing it takes seconds
        raise BadConnectionError(
            "provider litellm needs the package litellm, which is not installed: pip install 'holdfast[litellm]'"
        )
    return LitellmProvider(connection)


class LitellmProvider:
    """One model behind LiteLLM."""

    def __init__(self, connection: Connection) -> None:
        if connection.stream:
            raise BadConnectionError(
                "provider litellm cannot stream: LiteLLM returns a truncated stream as an answer; remove `stream`"
            )
        if not connection.model:
            raise BadConnectionError("provider litellm needs a model with LiteLLM's name for it: model: bedrock/…")
        key = read_key(connection)
        self._connection = connection
        self._secrets = secrets_of(connection, key.value) | _credentials(os.environ)
        self._arguments: dict[str, Any] = {**connection.options, "num_retries": 0, "max_retries": 0}
        self._arguments |= {"timeout": connection.timeout_seconds}
        self._arguments |= {"api_key": key.value} if key.value else {}
        self._arguments |= {"api_base": str(connection.base_url)} if connection.base_url else {}
        self._arguments |= {"extra_headers": dict(connection.headers)} if connection.headers else {}
        self._litellm: Any = None

    async def generate(self, request: Request) -> Answer:
        """Send once. Raises ModelError, and nothing else but a cancellation or a bug in LiteLLM."""
        if likelihood_texts(request.messages) is not None:
            self._raise("unsupported", "LiteLLM returns no log-probabilities of a prompt; use the provider openai")
        litellm = self._litellm = self._litellm or await asyncio.to_thread(_import)
        request_fields: dict[str, Any] = {
            "model": self._connection.model,
            "messages": request.messages,
            **request.params,
        }
        if request.tools:
            request_fields["tools"] = request.tools
        try:
            completion = (await litellm.acompletion(**request_fields, **self._arguments)).model_dump(exclude_none=True)
            body = clean(completion)  # LiteLLM accepts NaN and lone surrogates
            answer = answer_of(body)
        except litellm.exceptions.openai.OpenAIError as error:
            self._fail(error)
        except ModelError as error:
            self._raise(error.kind, error.message, error.status)
        return msgspec.structs.replace(answer, raw=body) if self._connection.record_raw else answer

    async def close(self) -> None:
        """LiteLLM keeps its connections for the whole process."""

    def _fail(self, error: Exception) -> NoReturn:
        kind, status = _kind_of(error), getattr(error, "status_code", None)
        wait = retry_after_seconds(getattr(error, "litellm_response_headers", None) or {}, time.time())
        self._raise(
            kind, describe_error(error), None if kind in ("timeout", "connection", "malformed") else status, wait
        )

    def _raise(self, kind: Kind, message: str, status: int | None = None, retry_after: float | None = None) -> NoReturn:
        """Raise a ModelError with secrets redacted. `from None`: another library's error may hold secrets."""
        text = shorten(redact(message, self._secrets))
        raise ModelError(kind, f"{text} ({self._connection.model} through litellm)", retry_after, status) from None


def _import() -> Any:
    """Import LiteLLM without its network request for prices, and without its printed messages."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    return litellm


def _kind_of(error: BaseException) -> Kind:
    """The kind by the names of the exception and its causes: LiteLLM raises InternalServerError for many things."""
    here: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if here is None:
            break
        named = next((_KINDS[each.__name__] for each in type(here).__mro__ if each.__name__ in _KINDS), None)
        if named is not None:
            return named
        here = here.__cause__ or here.__context__
    if "missing credentials" in str(error).lower():
        return "auth"
    status = getattr(error, "status_code", None)
    return kind_of(status, str(error)) if isinstance(status, int) else "server"


def _credentials(environ: Mapping[str, str]) -> set[str]:
    """Values in the environment that LiteLLM may have sent: it reads keys by itself."""
    return {value for name, value in environ.items() if name.upper().endswith(("_KEY", "_TOKEN", "_SECRET"))}
