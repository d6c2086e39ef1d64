"""From a model in a spec to its provider or batch API: fills in `${VAR}`, collects secrets, maps errors to spec fields.

Opening sends nothing. A model that cannot be used is a SpecError that names the field; values that came from variables
are passed along as secrets, so that no message of a provider shows them.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.errors import SpecError
from holdfast.models.batch.api import BatchApi, open_batches
from holdfast.models.credentials import Guard, GuardedBatches
from holdfast.models.provider import BadConnectionError, Connection, Headers, Provider, UnknownProviderError
from holdfast.models.providers.registry import make_provider
from holdfast.spec import Model, expand, fill_options, variables_in

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
