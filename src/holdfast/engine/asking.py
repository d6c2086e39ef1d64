"""Models as samples ask them: a provider behind its connection limit and the one retry layer."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from holdfast.models import Connection, ModelError, Provider, Request, Retries, ask, make_provider
from holdfast.records.exchange import Answer, Message
from holdfast.records.facts import Failure
from holdfast.solve import AskFailedError, Asking
from holdfast.spec import Model
from holdfast.spec.reading import expand


class Line:
    """One model's line: at most `max_connections` requests at a time, over all tasks that share it."""

    def __init__(self, model: Model, everywhere: asyncio.Semaphore | None) -> None:
        self.provider = open_provider(model)
        self._model = model
        self._everywhere = everywhere
        self._places = asyncio.Semaphore(model.max_connections)
        self._retries = Retries(count=model.request_retries)

    def asking(self) -> Asking:
        identity = {"provider": self._model.provider, "model": self._model.model, "options": self._model.options}
        return Asking(identity, self._model.params, self._ask)

    async def _ask(
        self, messages: list[Message], params: dict[str, Any], tools: list[dict[str, Any]]
    ) -> tuple[Answer, int]:
        if self._everywhere is None:
            async with self._places:
                return await self._send(Request(messages, params, tools))
        async with self._everywhere, self._places:
            return await self._send(Request(messages, params, tools))

    async def _send(self, request: Request) -> tuple[Answer, int]:
        try:
            return await ask(self.provider, request, self._retries)
        except ModelError as error:
            raise AskFailedError(Failure(error.kind, error.message), error.tries) from error


def open_provider(model: Model, environ: Mapping[str, str] = os.environ) -> Provider:
    headers = {name: expand(value, environ) for name, value in model.headers.items()}
    return make_provider(
        Connection(
            provider=model.provider,
            model=model.model,
            base_url=model.base_url,
            api_key_env=model.api_key_env,
            headers=headers,
            timeout_seconds=model.timeout_seconds,
            max_connections=model.max_connections,
            options=model.options,
        )
    )
