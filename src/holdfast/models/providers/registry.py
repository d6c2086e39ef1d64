"""From a connection to a provider: built in by name, or anybody's `module:function`.

Refuses a name that it does not know, with the nearest one that it does, before anything is sent.
"""

import difflib
import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from holdfast.models.failures import BadConnectionError, ModelError, UnknownProviderError
from holdfast.models.provider import Connection, Provider, Request
from holdfast.records.samples import Answer


def make_provider(connection: Connection) -> Provider:
    """`module:function` is either a callable that takes the Connection and returns a Provider, or an async function
    that takes a Request and returns a string or an Answer.
    """
    if isinstance(connection.base_url, list):
        from holdfast.models.http.routing import make_routing

        return make_routing(connection, connection.base_url, make_provider)
    name = connection.provider
    if ":" in name:
        return _from_function(_load(name), connection)
    if name in _REMOVED:
        raise UnknownProviderError(f"provider {name} was removed: {_REMOVED[name]}")
    if name not in _BUILT_IN:
        known = ", ".join(sorted(_BUILT_IN))
        raise UnknownProviderError(
            f"provider {name!r} is not known{_suggest(name, _BUILT_IN)}; use {known} or module:function"
        )
    return _BUILT_IN[name](connection)


class FunctionProvider:
    """An async function as a provider. What it raises passes through, except that a time-out and a lost connection
    are given their kinds, so that they are tried again; it may raise ModelError itself.
    """

    def __init__(self, name: str, function: Callable[[Request], Awaitable[Any]]) -> None:
        self._name = name
        self._function = function

    async def generate(self, request: Request) -> Answer:
        try:
            answer = await self._function(request)
        except TimeoutError as error:
            raise ModelError("timeout", f"{self._name} timed out: {error}") from error
        except ConnectionError as error:
            raise ModelError("connection", f"{self._name} lost its connection: {error}") from error
        if isinstance(answer, str):
            return Answer(answer, {"role": "assistant", "content": answer}, finish_reason="stop")
        if isinstance(answer, Answer):
            return answer
        raise ModelError("malformed", f"{self._name} returned {type(answer).__name__}: return a string or an Answer")

    async def close(self) -> None:
        """A function holds nothing open."""


def _openai(connection: Connection) -> Provider:
    from holdfast.models.providers.openai import make_openai

    return make_openai(connection)


def _anthropic(connection: Connection) -> Provider:
    from holdfast.models.providers.anthropic import make_anthropic

    return make_anthropic(connection)


def _google(connection: Connection) -> Provider:
    from holdfast.models.providers.google import make_google

    return make_google(connection)


def _litellm(connection: Connection) -> Provider:
    from holdfast.models.providers.litellm import make_litellm

    return make_litellm(connection)


def _mock(connection: Connection) -> Provider:
    from holdfast.models.providers.mock import make_mock

    return make_mock(connection)


_BUILT_IN: dict[str, Callable[[Connection], Provider]] = {
    "anthropic": _anthropic,
    "google": _google,
    "litellm": _litellm,
    "mock": _mock,
    "openai": _openai,
}
_REMOVED = {
    "vllm": "serve the model with `vllm serve MODEL`, then use provider: openai with its base_url, or the short name "
    "vllm/MODEL for http://127.0.0.1:8000/v1",
}


def _from_function(function: Any, connection: Connection) -> Provider:
    if inspect.iscoroutinefunction(function):
        return FunctionProvider(connection.provider, function)
    provider: Provider = function(connection)
    if not inspect.iscoroutinefunction(getattr(provider, "generate", None)):
        raise BadConnectionError(
            f"provider {connection.provider} returned {type(provider).__name__}, which has no async generate(request): "
            "return a Provider, or make the function itself async"
        )
    return provider


def _load(name: str) -> Any:
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise UnknownProviderError(
            f"provider {name}: module {module_name!r} cannot be imported ({error}): check its name, and that it can "
            "be found from here"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        callables = [each for each in vars(module) if callable(getattr(module, each))]
        raise UnknownProviderError(
            f"provider {name}: {module_name} has no function {function_name!r}{_suggest(function_name, callables)}"
        )
    return function


def _suggest(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
