"""Credentials of models: filled in where a request leaves, taken out where a response comes in.

Invariant: between these two places, in solvers, records and logs, `${VAR}` represents a value of `params`, and no
response holds a credential that the server repeated, in any usual encoding. An answer is cleaned before a solver sees
it, so that a replay, which gets the recorded one, sees the same.
"""

import copy
import os
from collections.abc import AsyncIterator, Mapping
from typing import BinaryIO

import msgspec
from yarl import URL

from holdfast.models.batch.api import BatchApi, Found, Mark, Result
from holdfast.models.batch.api import Standing as JobStanding
from holdfast.models.failures import ModelError
from holdfast.models.provider import Provider, Request
from holdfast.records.redaction import Redactor, is_credential_name, is_unmistakable
from holdfast.records.samples import Answer
from holdfast.spec import Model
from holdfast.spec.api_keys import key_variables
from holdfast.spec.source.variables import fill_params, variables_in
from holdfast.spec.source.yaml import VARIABLE


class Guard:
    """What one model's requests are sent with, and what its responses must not hold."""

    def __init__(self, model: Model, place: str, environ: Mapping[str, str] = os.environ) -> None:
        filled = fill_params(model.params, environ, place)
        self._params = {name: (raw, filled[name]) for name, raw in model.params.items() if filled[name] != raw}
        self._redactor = Redactor(filter(is_unmistakable, credentials_of(model, environ)))

    @property
    def is_needed(self) -> bool:
        """False for a model without credentials: its requests and responses then pass no guard."""
        return bool(self._params or self._redactor)

    def outgoing(self, request: Request) -> Request:
        """With the spec's own variables filled in. A solver's or an agent's `${VAR}` is an ordinary text: else a
        program that asks through the bridge could read the environment.
        """
        mine = {name: now for name, (raw, now) in self._params.items() if request.params.get(name) == raw}
        return msgspec.structs.replace(request, params={**request.params, **copy.deepcopy(mine)}) if mine else request

    def incoming(self, answer: Answer) -> Answer:
        text, message, calls, reason = (
            self._redactor.value(each)
            for each in (answer.text, answer.message, answer.tool_calls, answer.finish_reason)
        )
        raw = answer.raw if answer.raw is None else self._redactor.json(answer.raw)
        if (text, message, calls, reason) == (answer.text, answer.message, answer.tool_calls, answer.finish_reason):
            return answer if raw is answer.raw else msgspec.structs.replace(answer, raw=raw)
        if isinstance(raw, list):
            raw = None  # the events of a stream hold the text in pieces, and so do logprobs: both spell the credential
        return msgspec.structs.replace(
            answer, text=text, message=message, tool_calls=calls, finish_reason=reason, logprobs=[], raw=raw
        )

    def failed(self, error: ModelError) -> ModelError:
        """The same error, cleaned in place: others hold it too."""
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

    async def submit(self, token: str, lines: BinaryIO) -> str:
        return await self._api.submit(token, lines)

    async def find(self, mark: Mark) -> Found:
        return await self._api.find(mark)

    async def look(self, job: str) -> JobStanding:
        standing = await self._api.look(job)
        return msgspec.structs.replace(standing, detail=self._guard.text(standing.detail))

    def results(self, standing: JobStanding) -> AsyncIterator[bytes]:
        return self._api.results(standing)

    def parse(self, line: bytes) -> Result | None:
        result = self._api.parse(line)
        if result is None:
            return None
        answer = None if result.answer is None else self._guard.incoming(result.answer)
        error = None if result.error is None else self._guard.failed(result.error)
        return msgspec.structs.replace(result, answer=answer, error=error)

    async def close(self) -> None:
        await self._api.close()


def credentials_of(model: Model, environ: Mapping[str, str]) -> set[str]:
    """Values that are certainly credentials: the key, and the values of variables and fields with such names."""
    found = {environ.get(name, "").strip() for name in key_variables(model)}
    parts = {"headers": model.headers, "options": model.options, "params": model.params, "base_url": model.base_url}
    for field, variable in variables_in(parts):
        if is_credential_name(field) or is_credential_name(variable):
            found.add(environ.get(variable, ""))
    for name, value in model.headers.items():
        if is_credential_name(name):
            whole = _filled(value, environ)
            found |= {whole, whole.split(" ")[-1]}
    for each in [model.base_url] if isinstance(model.base_url, str) else model.base_url:
        found |= _in_url(_filled(each, environ))
    return found - {""}


def _filled(text: str, environ: Mapping[str, str]) -> str:
    """A variable that is not set is reported elsewhere; here it only holds no secret."""
    return VARIABLE.sub(lambda match: environ.get(match[1], match[2] or ""), text)


def _in_url(text: str) -> set[str]:
    try:
        url = URL(text)
    except ValueError:
        return set()  # reported where the connection is made
    named = {value for name, value in url.query.items() if is_credential_name(name)}
    return {url.password or "", url.raw_password or "", *named}
