"""From a model in a spec to its provider or batch API: fills in `${VAR}`, collects secrets, maps errors to spec fields.

Opening sends nothing. A model that cannot be used is a SpecError that names the field; values that came from variables
are passed along as secrets, so that no message of a provider shows them.

From a connection to a provider: a row of `PROVIDERS`, an installed package's entry point, or `module:function`.

Raises before anything is sent: an unknown name is an `UnknownProviderError` with the nearest known name. Modules of
providers are imported only when one of their providers is opened.
"""

import difflib
import importlib
import importlib.metadata
import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.errors import SpecError
from holdfast.models.batch.api import BatchApi, open_batches
from holdfast.models.credentials import Guard, GuardedBatches
from holdfast.models.provider import (
    BadConnectionError,
    Connection,
    Headers,
    ModelError,
    Provider,
    Request,
    UnknownProviderError,
)
from holdfast.records import Answer
from holdfast.spec import Model
from holdfast.spec.providers import PROVIDERS
from holdfast.spec.source.variables import fill_options, variables_in
from holdfast.spec.source.yaml import expand

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
    raise UnknownProviderError(
        f"provider {name!r} is not known{_suggest(name, known)}; use {', '.join(known)} or module:function"
    )


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


T = TypeVar("T")


def _ignore_event(event: str, message: str) -> None: ...


def _ignore_headers(status: int, headers: Headers) -> None: ...


def identity_of(model: Model) -> dict[str, Any]:
    """The part of a model that enters the digest of a request. The server's address does not: it may change."""
    return {"provider": model.provider, "model": model.model, "options": model.options}


def open_provider(
    model: Model,
    place: str,
    environ: Mapping[str, str] = os.environ,
    tell: Callable[[str, str], None] = _ignore_event,
    listen: Callable[[int, Headers], None] = _ignore_headers,
) -> Provider:
    """Return the provider of a model. `place` is its path in the spec, for errors; `listen` receives the status and
    headers of every response.
    """

    def make(connection: Connection) -> Provider:
        return make_provider(msgspec.structs.replace(connection, listen=listen))

    return _open(make, model, place, environ, tell)


def open_batch_api(
    model: Model,
    place: str,
    environ: Mapping[str, str] = os.environ,
    tell: Callable[[str, str], None] = _ignore_event,
) -> BatchApi:
    """Return the batch API of the model's server. Its errors and results are redacted."""
    return GuardedBatches(_open(open_batches, model, place, environ, tell), Guard(model, place, environ))


def _open(
    make: Callable[[Connection], T],
    model: Model,
    place: str,
    environ: Mapping[str, str],
    tell: Callable[[str, str], None],
) -> T:
    secrets: list[str] = []

    def fill(text: str, field: str) -> str:
        value, found = expand(text, environ, f"{place}.{field}")
        # A URL that comes whole from one variable is needed to understand an error; parts of one may be secret.
        if field != "base_url" or found != [value]:
            secrets.extend(found)
        return value

    headers = {name: fill(value, f"headers.{name}") for name, value in model.headers.items()}
    base_url: str | list[str] = (
        fill(model.base_url, "base_url")
        if isinstance(model.base_url, str)
        else [fill(url, "base_url") for url in model.base_url]
    )
    variables = variables_in([model.options, model.params])
    secrets += [environ[name] for _, name in variables if name in environ]
    try:
        return make(
            Connection(
                provider=model.provider,
                model=model.model,
                base_url=base_url,
                api_key_env=model.api_key_env,
                headers=headers,
                timeout_seconds=model.timeout_seconds,
                stream=model.stream,
                record_raw=model.record_raw,
                tell=tell,
                max_connections=model.max_connections,
                options=fill_options(model.options, environ, place),
                secrets=tuple(secrets),
            )
        )
    except UnknownProviderError as error:
        raise SpecError(f"{place}.provider: {error}") from error
    except BadConnectionError as error:
        field = next((each for each in ("base_url", "options", "batch") if each in str(error)), "provider")
        raise SpecError(f"{place}.{field}: {error}") from error
