"""Models as samples ask them: a provider behind its connection limit and the one retry layer."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.engine.attaching import Attachments
from holdfast.engine.batching import Batches
from holdfast.engine.places import Places
from holdfast.errors import SpecError
from holdfast.models import (
    BadConnectionError,
    BatchApi,
    Connection,
    ModelError,
    Provider,
    Request,
    Retries,
    UnknownProviderError,
    ask,
    make_provider,
    open_batches,
)
from holdfast.plan import BlobError
from holdfast.records.exchange import Answer, Message
from holdfast.records.facts import Failure, StepId
from holdfast.solve import Allowance, AskFailedError, Asking
from holdfast.spec import Model, Spec
from holdfast.spec.reading import expand

T = TypeVar("T")
group: ContextVar[str] = ContextVar("group", default="")
"""The sample that is being answered: all of its repeats and steps had better go to the same server, if there are
several.
"""


class Line:
    """One model's line: at most `max_connections` requests at a time, over all tasks that share it."""

    def __init__(
        self,
        model: Model,
        place: str,
        everywhere: Places,
        retried: Callable[[str], None] = lambda why: None,
        tell: Callable[[str, str], None] = lambda event, message: None,
    ) -> None:
        """`retried` is told why, whenever a request is made again; `tell` hears what belongs into the run's log."""
        self.provider = open_provider(model, place, tell=lambda event, what: tell(event, f"{model.name}: {what}"))
        self._model = model
        self._is_foreign = ":" in model.provider
        self._everywhere = everywhere
        self._places = Places(model.max_connections)
        self._retries = Retries(
            count=model.request_retries, told=lambda error: retried(f"{error.kind}: {error.message}")
        )
        self._draining = False
        self.sending = 0
        """Requests that are under way."""
        self.batches: Batches | None = None
        """Where requests wait for others, if they are sent in jobs."""

    def drain(self) -> None:
        """Requests that still wait for their turn are not sent any more."""
        self._draining = True
        if self.batches is not None:
            self.batches.drain()

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that had better end before the run does. A job that is waited for is not."""
        return self.sending > 0 or (self.batches is not None and self.batches.sending > 0)

    async def close(self) -> None:
        if self.batches is not None:
            await self.batches.close()
        await self.provider.close()

    def tune(self, model: Model) -> None:
        """Another number of connections, from now on."""
        self._places.change(model.max_connections)

    def asking(self, attachments: Attachments | None = None) -> Asking:
        """`attachments`: for tasks with files; requests of other tasks are sent as they are."""
        ask = self._ask if attachments is None else partial(self._ask, attachments=attachments)
        batched = None if self.batches is None else partial(self._ask_in_batch, attachments=attachments)
        return Asking(identity_of(self._model), self._model.params, ask, self._model.price, batched)

    async def _ask_in_batch(
        self,
        step: StepId,
        messages: list[Message],
        params: dict[str, Any],
        tools: list[dict[str, Any]],
        attachments: Attachments | None,
    ) -> tuple[Answer, int, str]:
        assert self.batches is not None
        try:
            filled = messages if attachments is None else await attachments.put_into(messages)
        except BlobError as error:
            raise AskFailedError(Failure("file", str(error)), 0) from error
        single = partial(self._ask, messages, params, tools, attachments)
        return await self.batches.ask(step, Request(filled, params, tools), single)

    async def _ask(
        self,
        messages: list[Message],
        params: dict[str, Any],
        tools: list[dict[str, Any]],
        attachments: Attachments | None = None,
    ) -> tuple[Answer, int]:
        """Wait for a connection, then ask: the provider's time-out does not run while a request waits here."""
        if not self._places.take():
            await self._places.wait()
        try:
            if not self._everywhere.take():
                await self._everywhere.wait()
            if self._draining:
                self._everywhere.give_back()
                await asyncio.get_running_loop().create_future()  # until the engine ends
            self.sending += 1
            try:
                if attachments is not None:
                    messages = await attachments.put_into(messages)
                request = Request(messages, params, tools, group.get())
                return await ask(self.provider, _copy(request) if self._is_foreign else request, self._retries)
            finally:
                self.sending -= 1
                self._everywhere.give_back()
        except ModelError as error:
            raise AskFailedError(Failure(error.kind, error.message), error.tries) from error
        except BlobError as error:
            raise AskFailedError(Failure("file", str(error)), 0) from error
        finally:
            self._places.give_back()


def allowance_of(spec: Spec) -> Allowance:
    limits = spec.limits.sample
    return Allowance(limits.steps, limits.tokens, limits.cost_usd)


def _copy(request: Request) -> Request:
    """For anybody's provider: it may change what it is given, which the next turn and the record hold too."""
    return msgspec.json.decode(msgspec.json.encode(request), type=Request)


def identity_of(model: Model) -> dict[str, Any]:
    """What makes a request to one model another than to a second: not where it is."""
    return {"provider": model.provider, "model": model.model, "options": model.options}


def open_provider(
    model: Model,
    place: str,
    environ: Mapping[str, str] = os.environ,
    tell: Callable[[str, str], None] = lambda event, message: None,
) -> Provider:
    """The provider of a model. SpecError with the place if it cannot be used; nothing is sent."""
    return _open(make_provider, model, place, environ, tell)


def open_batch_api(
    model: Model,
    place: str,
    environ: Mapping[str, str] = os.environ,
    tell: Callable[[str, str], None] = lambda event, message: None,
) -> BatchApi:
    """Likewise, the batch API of its server."""
    return _open(open_batches, model, place, environ, tell)


def _open(
    make: Callable[[Connection], T],
    model: Model,
    place: str,
    environ: Mapping[str, str],
    tell: Callable[[str, str], None],
) -> T:
    secrets: list[str] = []

    def filled(text: str, where: str) -> str:
        value, found = expand(text, environ, f"{place}.{where}")
        if where != "base_url" or found != [
            value
        ]:  # a whole URL is needed to understand an error; its parts may be secret
            secrets.extend(found)
        return value

    headers = {name: filled(value, f"headers.{name}") for name, value in model.headers.items()}
    base_url: str | list[str] = (
        filled(model.base_url, "base_url")
        if isinstance(model.base_url, str)
        else [filled(url, "base_url") for url in model.base_url]
    )
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
                options=model.options,
                secrets=tuple(secrets),
            )
        )
    except UnknownProviderError as error:
        raise SpecError(f"{place}.provider: {error}") from error
    except BadConnectionError as error:
        field = next((each for each in ("base_url", "options", "batch") if each in str(error)), "provider")
        raise SpecError(f"{place}.{field}: {error}") from error
