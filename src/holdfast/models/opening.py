"""From a model in a spec to its provider or batch API, and the guard of its credentials.

Opening sends nothing. A model that cannot be used is a SpecError that names the field; values that came from variables
are passed along as secrets, so that no message of a provider shows them.

Credentials are filled in just before a request is sent, and removed as soon as a response arrives. Invariant:
everywhere else (solvers, records, logs) `params` hold `${VAR}` instead of a value, and no response holds a credential
that the server repeated, in any usual encoding. An answer is cleaned before a solver sees it, because a replay delivers
the recorded, cleaned answer and must not differ.
"""

import copy
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, BinaryIO, TypeVar

import msgspec
from yarl import URL

from holdfast.errors import SpecError
from holdfast.models.batch.api import BatchApi, BatchResult, FoundJob, JobMark, JobStatus, Ready, open_batches
from holdfast.models.provider import (
    BadConnectionError,
    Connection,
    Headers,
    ModelError,
    Provider,
    Request,
    UnknownProviderError,
)
from holdfast.models.providers.registry import make_provider
from holdfast.records import Answer, Redactor, is_credential_name, is_unmistakable
from holdfast.spec import VARIABLE, Model, expand, fill_options, fill_params, key_variables, variables_in


class Guard:
    """The credentials of one model: inserted into its requests, removed from its responses."""

    def __init__(self, model: Model, place: str, environ: Mapping[str, str] = os.environ) -> None:
        filled = fill_params(model.params, environ, place)
        self._params = {name: (raw, filled[name]) for name, raw in model.params.items() if filled[name] != raw}
        self._redactor = Redactor(filter(is_unmistakable, credentials_of(model, environ)))

    @property
    def is_needed(self) -> bool:
        """False for a model without credentials: its provider needs no guard."""
        return bool(self._params or self._redactor)

    def outgoing(self, request: Request) -> Request:
        """The request with the spec's own variables filled in. A `${VAR}` from a solver or an agent stays plain text:
        otherwise a program could read the environment through the bridge.
        """
        mine = {name: now for name, (raw, now) in self._params.items() if request.params.get(name) == raw}
        return msgspec.structs.replace(request, params={**request.params, **copy.deepcopy(mine)}) if mine else request

    def incoming(self, answer: Answer) -> Answer:
        """The answer without credentials; the same object if it holds none."""
        text, message, calls, reason = (
            self._redactor.value(each)
            for each in (answer.text, answer.message, answer.tool_calls, answer.finish_reason)
        )
        raw = answer.raw if answer.raw is None else self._redactor.json(answer.raw)
        if (text, message, calls, reason) == (answer.text, answer.message, answer.tool_calls, answer.finish_reason):
            return answer if raw is answer.raw else msgspec.structs.replace(answer, raw=raw)
        if isinstance(raw, list):
            raw = None  # stream events and logprobs hold the text in pieces, so redaction cannot find it there
        return msgspec.structs.replace(
            answer, text=text, message=message, tool_calls=calls, finish_reason=reason, logprobs=[], raw=raw
        )

    def failed(self, error: ModelError) -> ModelError:
        """The same error, cleaned in place: other code may hold a reference to it."""
        error.message = self._redactor.text(error.message)
        error.args = (error.kind, error.message, error.retry_after, error.status)
        return error

    def text(self, text: str) -> str:
        return self._redactor.text(text)


class GuardedProvider:
    """A provider behind a guard."""

    def __init__(self, provider: Provider, guard: Guard) -> None:
        self._provider = provider
        self._guard = guard

    async def generate(self, request: Request) -> Answer:
        try:
            return self._guard.incoming(await self._provider.generate(self._guard.outgoing(request)))
        except ModelError as error:
            self._guard.failed(error)
            raise

    async def close(self) -> None:
        await self._provider.close()


class GuardedBatches:
    """A batch API behind a guard."""

    def __init__(self, api: BatchApi, guard: Guard) -> None:
        self._api = api
        self._guard = guard

    def body(self, request: Request) -> bytes:
        return self._api.body(self._guard.outgoing(request))

    def line(self, name: str, body: bytes) -> bytes:
        return self._api.line(name, body)

    async def submit(self, token: str, lines: BinaryIO, ready: Ready) -> str:
        return await self._api.submit(token, lines, ready)

    async def find(self, mark: JobMark) -> FoundJob:
        return await self._api.find(mark)

    async def look(self, job: str) -> JobStatus:
        status = await self._api.look(job)
        return msgspec.structs.replace(status, detail=self._guard.text(status.detail))

    def results(self, status: JobStatus) -> AsyncIterator[bytes]:
        return self._api.results(status)

    def parse(self, line: bytes) -> BatchResult | None:
        result = self._api.parse(line)
        if result is None:
            return None
        answer = None if result.answer is None else self._guard.incoming(result.answer)
        error = None if result.error is None else self._guard.failed(result.error)
        return msgspec.structs.replace(result, answer=answer, error=error)

    async def close(self) -> None:
        await self._api.close()


def credentials_of(model: Model, environ: Mapping[str, str]) -> set[str]:
    """Values that are certainly credentials: the key, and values of variables and fields with a credential's name."""
    found = {environ.get(name, "").strip() for name in key_variables(model)}
    parts = {"headers": model.headers, "options": model.options, "params": model.params, "base_url": model.base_url}
    for field, variable in variables_in(parts):
        if is_credential_name(field) or is_credential_name(variable):
            found.add(environ.get(variable, ""))
    for name, value in model.headers.items():
        if is_credential_name(name):
            whole = _fill(value, environ)
            found |= {whole, whole.split(" ")[-1]}
    for each in [model.base_url] if isinstance(model.base_url, str) else model.base_url:
        found |= _credentials_in_url(_fill(each, environ))
    return found - {""}


def _fill(text: str, environ: Mapping[str, str]) -> str:
    """The text with variables filled in. Unset variables become empty: another check reports them."""
    return VARIABLE.sub(lambda match: environ.get(match[1], match[2] or ""), text)


def _credentials_in_url(text: str) -> set[str]:
    try:
        url = URL(text)
    except ValueError:
        return set()  # reported when the connection is opened
    named = {value for name, value in url.query.items() if is_credential_name(name)}
    return {url.password or "", url.raw_password or "", *named}


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
