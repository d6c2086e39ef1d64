"""vLLM inside this process: no server, no network. `options` are its engine's arguments (`tensor_parallel_size: 2`).

Written to the documented API of vLLM 0.11 and later (`AsyncLLM`, `AsyncEngineArgs`, `SamplingParams`). It needs a GPU
and is too large for Holdfast's own tests, which run it against a small module of the same shape.

The weights are loaded when the first request is made, in a thread. `model: org/name@revision` takes that revision.
Conversations of text only, without tools: who needs more starts `vllm serve` and asks it with `provider: openai`.
"""

import asyncio
import importlib
import inspect
import itertools
from typing import Any, NoReturn

import msgspec

from holdfast.errors import told
from holdfast.models.bodies import Values, clean, texts
from holdfast.models.extras import need
from holdfast.models.failures import BadConnectionError, Kind, ModelError
from holdfast.models.provider import Connection, Request
from holdfast.models.statuses import kind_of, shorten
from holdfast.records.exchange import Answer, Message, Usage

_INSTEAD = "start `vllm serve` and ask it with provider: openai; nothing was asked"
_OWN = {"response_format", "logprobs", "top_logprobs", "max_completion_tokens", "chat_template_kwargs", "n"}


def make_vllm(connection: Connection) -> "VllmProvider":
    need("vllm", "vllm")
    if connection.base_url:
        raise BadConnectionError(
            "provider vllm runs in this process and has no base_url: a server is asked with provider: openai"
        )
    return VllmProvider(connection)


class VllmProvider:
    """One engine in this process. Belongs to the event loop that first asks; close it there."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loading: asyncio.Task[Any] | None = None
        self._numbers = itertools.count(1)

    async def generate(self, request: Request) -> Answer:
        """Ask once. Raises ModelError, and nothing else but a cancellation. A cancelled request is given up by vLLM."""
        if request.tools:
            self._fail("bad_request", f"vllm in this process knows no tools: {_INSTEAD}")
        messages = [_plain(message) for message in request.messages]
        if None in messages:
            self._fail("bad_request", f"vllm in this process takes text only: {_INSTEAD}")
        engine = await self._engine()
        vllm = importlib.import_module("vllm")
        failures = importlib.import_module("vllm.v1.engine.exceptions")
        try:
            async with asyncio.timeout(self._connection.timeout_seconds):
                sampling = _sampling(vllm, request.params)
                prompt = await _prompt(engine, messages, request.params.get("chat_template_kwargs") or {})
                output = await self._last(engine.generate(prompt, sampling, f"holdfast-{next(self._numbers)}"))
        except TimeoutError:
            self._fail("timeout", f"no answer within {self._connection.timeout_seconds:g} s")
        except (ValueError, TypeError) as error:
            self._fail(kind_of(400, str(error)), told(error))
        except (failures.EngineDeadError, failures.EngineGenerateError) as error:
            self._fail("server", told(error))
        return self._answer(output)

    async def close(self) -> None:
        """Frees the GPU. Idempotent; a later request loads the weights again."""
        loading, self._loading = self._loading, None
        if loading is not None and loading.done() and not loading.cancelled() and loading.exception() is None:
            await asyncio.to_thread(loading.result().shutdown)
        elif loading is not None:
            loading.cancel()

    async def _engine(self) -> Any:
        """Whoever comes while it is loaded waits for the same one; who gives up waiting does not stop the loading."""
        if self._loading is None:
            self._loading = asyncio.ensure_future(asyncio.to_thread(_load, self._connection))
        try:
            return await asyncio.shield(self._loading)
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            self._fail("bad_request", f"vllm cannot load the model: {told(error)}")

    async def _last(self, outputs: Any) -> Any:
        last = None
        async for output in outputs:
            last = output
        if last is None or not getattr(last, "finished", False) or not getattr(last, "outputs", None):
            self._fail("server", "vllm gave up the request")
        return last

    def _answer(self, output: Any) -> Answer:
        try:
            return self._read(output)
        except ModelError as error:
            self._fail(error.kind, error.message)
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            self._fail("malformed", f"vllm's output is not what it documents: {told(error)}")

    def _read(self, output: Any) -> Answer:
        said, values = output.outputs[0], Values()
        if said.finish_reason not in ("stop", "length"):
            self._fail("server", f"vllm ended the request with {said.finish_reason}")
        text = clean(said.text)
        if not isinstance(text, str):
            self._fail("malformed", "vllm's output has no text")
        cached = values.count(clean({"num_cached_tokens": output.num_cached_tokens}), "num_cached_tokens")
        usage = Usage(len(output.prompt_token_ids), len(said.token_ids), cached)
        message: Message = {"role": "assistant", "content": text}
        logprobs = clean(_logprobs(said))
        answer = Answer(text, message, [], said.finish_reason, usage, logprobs, dropped=values.dropped)
        if not self._connection.record_raw:
            return answer
        ids = {"prompt_token_ids": list(output.prompt_token_ids), "token_ids": list(said.token_ids)}
        raw = {**ids, "text": text, "finish_reason": said.finish_reason, "stop_reason": said.stop_reason}
        return msgspec.structs.replace(answer, raw=clean(raw))

    def _fail(self, kind: Kind, what: str) -> NoReturn:
        raise ModelError(kind, f"{shorten(what)} ({self._connection.model} in this process)") from None


def _load(connection: Connection) -> Any:
    arguments = importlib.import_module("vllm.engine.arg_utils")
    engines = importlib.import_module("vllm.v1.engine.async_llm")
    name, _, revision = connection.model.partition("@")
    pinned = {"revision": revision} if revision else {}
    return engines.AsyncLLM.from_engine_args(arguments.AsyncEngineArgs(model=name, **pinned, **connection.options))


def _plain(message: Message) -> Message | None:
    """With its content as text; None if it is not only text."""
    parts = texts(message.get("content"))
    if any(part.get("type") != "text" for part in parts):
        return None
    return {**message, "content": "".join(part["text"] for part in parts)}


async def _prompt(engine: Any, messages: list[Any], settings: dict[str, Any]) -> dict[str, Any]:
    """As tokens: a text would get the tokens of its beginning a second time."""
    found = engine.get_tokenizer()
    tokenizer = await found if inspect.isawaitable(found) else found
    given = {"add_generation_prompt": True, "tokenize": True, "return_dict": False, **settings}
    return {"prompt_token_ids": await asyncio.to_thread(tokenizer.apply_chat_template, messages, **given)}


def _sampling(vllm: Any, params: dict[str, Any]) -> Any:
    kinds = importlib.import_module("vllm.sampling_params")
    given = {name: value for name, value in params.items() if name not in _OWN}
    given["output_kind"] = kinds.RequestOutputKind.FINAL_ONLY
    if "max_completion_tokens" in params:
        given["max_tokens"] = params["max_completion_tokens"]
    if params.get("logprobs"):
        given["logprobs"] = params.get("top_logprobs", 0)
    wanted = params.get("response_format") or {}
    if wanted.get("type") == "json_schema":
        given["structured_outputs"] = kinds.StructuredOutputsParams(json=wanted["json_schema"].get("schema", {}))
    elif wanted.get("type") == "json_object":
        given["structured_outputs"] = kinds.StructuredOutputsParams(json_object=True)
    return vllm.SamplingParams(**given)


def _logprobs(said: Any) -> list[dict[str, Any]]:
    if not said.logprobs:
        return []
    made = []
    for token, every in zip(said.token_ids, said.logprobs, strict=True):
        told = {number: {"token": each.decoded_token or "", "logprob": each.logprob} for number, each in every.items()}
        tops = sorted(told.values(), key=lambda each: -each["logprob"])
        made.append({**told[token], "top_logprobs": tops})
    return made
