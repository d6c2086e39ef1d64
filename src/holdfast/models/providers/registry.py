"""From a connection to a provider: a row of `PROVIDERS`, an installed package's entry point, or `module:function`.

Raises before anything is sent: an unknown name is an `UnknownProviderError` with the nearest known name. Modules of
providers are imported only when one of their providers is opened.
"""

import difflib
import importlib
import importlib.metadata
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from holdfast.models.likelihood import likelihood_texts
from holdfast.models.provider import BadConnectionError, Connection, ModelError, Provider, Request, UnknownProviderError
from holdfast.records import Answer
from holdfast.spec import PROVIDERS

GROUP = "holdfast.providers"
"""The entry point group where installed packages offer providers."""


def make_provider(connection: Connection) -> Provider:
    """Open the provider of a connection. A `module:function`, named so or by an entry point, is either a callable that
    takes the Connection and returns a Provider, or an async function that takes a Request and returns a string or an
    Answer.
    """
    if isinstance(connection.base_url, list):
        from holdfast.models.http.endpoint import make_routing

        return make_routing(connection, connection.base_url, make_provider)
    name = connection.provider
    info = PROVIDERS.get(name)
    if info is not None and info.factory:
        provider: Provider = load_factory(info.factory)(connection)
        return provider
    if info is not None and info.removed:
        raise UnknownProviderError(f"provider {name} was removed: {info.removed}")
    return _from_function(load_factory(name if ":" in name else _entry_point(name)), connection)


def _entry_point(name: str) -> str:
    """The `module:function` that an installed package offers under a name; names in `PROVIDERS` are taken."""
    offered = {point.name: point.value for point in importlib.metadata.entry_points(group=GROUP)}
    if name in offered and name not in PROVIDERS:
        return offered[name]
    known = sorted({*(each for each, info in PROVIDERS.items() if info.factory), *offered})
    hint = _suggest(name, known) or f"; use {', '.join(known)} or module:function"
    raise UnknownProviderError(f"provider {name!r} is not known{hint}")


class FunctionProvider:
    """An async function as a provider. Its errors pass through, except that TimeoutError and ConnectionError become
    ModelErrors, so that they are retried. It may raise ModelError itself.
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
        if likelihood_texts(request.messages) is not None and not (isinstance(answer, Answer) and answer.logprobs):
            raise ModelError(
                "unsupported",
                f"{self._name} returned no log-probabilities: for a message with the role `continuation`, return an "
                "Answer with `logprobs`",
            )
        if isinstance(answer, str):
            return Answer(answer, {"role": "assistant", "content": answer}, finish_reason="stop")
        if isinstance(answer, Answer):
            return answer
        raise ModelError("malformed", f"{self._name} returned {type(answer).__name__}: return a string or an Answer")

    async def close(self) -> None:
        """Nothing to close."""


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


def load_factory(name: str) -> Any:
    """Import `module:function`. UnknownProviderError if it does not exist."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise UnknownProviderError(
            f"provider {name}: module {module_name!r} cannot be imported ({error}): check its name, and that its "
            "folder is on PYTHONPATH"
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
