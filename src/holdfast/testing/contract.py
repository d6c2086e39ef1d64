"""What every provider must do, as tests: Holdfast's own providers pass them, and yours can use them too.

    from holdfast.testing.contract import ProviderContract

    class TestMine(ProviderContract):
        provider = "my_module:make_provider"      # as in a spec; it is made with the test server's base_url
        lacks = frozenset({"logprobs"})           # what the protocol does not have

pytest finds the tests of the subclass. They use the test server on the loopback interface. It serves OpenAI's chat
completions and responses, Anthropic's messages and Google's generateContent, whole and streamed.
"""

import asyncio
import contextlib
import json
import os
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar, TypeVar

import msgspec

from holdfast.models import Connection, ModelError, Provider, Request, likelihood_messages, make_provider
from holdfast.records import Answer, Message, Usage
from holdfast.testing.behaviour import Behaviour, CompletionBehaviour, Fault, Seen
from holdfast.testing.protocols import SIGNATURE
from holdfast.testing.server import ModelServer

KEY = "sk-contract-0123456789"
KEY_VARIABLE = "HOLDFAST_CONTRACT_KEY"
SUM = Request([{"role": "user", "content": "12 + 30"}])
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
_TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}
_SECONDS = 20.0
_SHORT_SECONDS = 0.3
_KINDS: dict[str, tuple[str, int | None]] = {
    "400": ("bad_request", 400),
    "401": ("auth", 401),
    "402": ("billing", 402),
    "403": ("auth", 403),
    "404": ("unknown_model", 404),
    "429": ("rate_limit", 429),
    "500": ("server", 500),
    "502": ("server", 502),
    "503": ("overload", 503),
    "529": ("overload", 529),
    "context-too-long": ("context_too_long", 400),
    "reset": ("connection", None),
    "cut": ("connection", None),
    "html": ("malformed", None),
    "malformed": ("malformed", None),
}
_WHOLE: dict[str, tuple[str, int | None]] = {"empty": ("malformed", None), "no-choices": ("malformed", None)}
_STREAMED: dict[str, tuple[str, int | None]] = {
    "empty": ("connection", None),
    "no-choices": ("connection", None),
    "unended": ("connection", None),
    "broken-off": ("overload", None),
}
T = TypeVar("T")


class ProviderContract:
    """Subclass it and set `provider`. Override `connect` to open the provider in another way."""

    provider: ClassVar[str] = ""
    settings: ClassVar[dict[str, Any]] = {}
    """Fields of the Connection: options, stream, …"""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """What the provider lacks: images, tools, schema, reasoning, signatures, logprobs, likelihood, cache,
    cache_writes.
    """
    kinds: ClassVar[dict[str, tuple[str, int | None]]] = {}
    """By fault: the kind and status to expect, where the provider cannot report as much as the contract requires."""

    def connect(self, base_url: str, **settings: Any) -> Provider:
        given = {"model": "m", "base_url": base_url, "api_key_env": KEY_VARIABLE, **self.settings, **settings}
        return make_provider(Connection(self.provider, **given))

    def test_a_text_comes_back_with_its_end_and_its_usage(self) -> None:
        answer, _ = self._ask(SUM)
        assert (answer.text, answer.finish_reason, answer.tool_calls) == ("42", "stop", [])
        assert answer.message["role"] == "assistant"
        assert answer.message["content"] == "42"
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 1)

    def test_the_key_and_the_model_reach_the_server(self) -> None:
        _, seen = self._ask(SUM)
        assert any(KEY in value for value in seen[0].headers.values())

    def test_system_and_history_reach_the_model_in_order(self) -> None:
        conversation = [
            {"role": "system", "content": "Be exact."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
        ]
        received = self._received(Request(conversation))
        assert [(each["role"], each["content"]) for each in received] == [
            (e["role"], e["content"]) for e in conversation
        ]

    def test_text_of_every_script_survives(self) -> None:
        text = 'Grüße, 世界 🌍 \u2028 "quoted" \\ <|endoftext|> \x00 end'
        answer, _ = self._ask(Request([{"role": "user", "content": text}]))
        assert answer.text == text

    def test_images_reach_the_model(self) -> None:
        if "images" in self.lacks:
            return
        urls = [f"data:image/png;base64,{PIXEL}", "https://example.org/cat.png"]
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        content = [{"type": "text", "text": "What is this?"}, *parts]
        received = self._received(Request([{"role": "user", "content": content}]))
        parts = received[-1]["content"]
        assert [part["text"] for part in parts if part["type"] == "text"] == ["What is this?"]
        assert [part["image_url"]["url"] for part in parts if part["type"] == "image_url"] == urls

    def test_the_usual_parameters_are_taken(self) -> None:
        """The server rejects unknown parameters: so none is sent that the protocol does not have."""
        params = {"max_tokens": 64, "temperature": 0.5, "top_p": 0.9, "seed": 7}
        answer, _ = self._ask(Request(SUM.messages, params))
        assert answer.text == "42"

    def test_tools_make_a_round_trip(self) -> None:
        if "tools" not in self.lacks:
            self._round_trip([_call("c1", '{"a":1}')])

    def test_parallel_tools_make_a_round_trip(self) -> None:
        if "tools" not in self.lacks:
            self._round_trip([_call("c1", '{"a":1}'), _call("c2", '{"a":2,"b":"ü"}')])

    def test_a_tool_can_be_demanded(self) -> None:
        if "tools" in self.lacks:
            return
        for choice in ("auto", "required", "none", {"type": "function", "function": {"name": "add"}}):
            answer, _ = self._ask(Request(SUM.messages, {"tool_choice": choice}, [_TOOL]))
            assert answer.text == "42", choice

    def test_structured_output_is_asked_for_with_its_schema(self) -> None:
        if "schema" in self.lacks:
            return
        wanted = {"type": "json_schema", "json_schema": {"name": "sum", "schema": _SCHEMA}}

        def reply(messages: list[Message]) -> str:
            return '{"sum": 42}'

        answer, seen = self._ask(Request(SUM.messages, {"response_format": wanted}), Behaviour(reply=reply, kept=1))
        assert answer.json() == {"sum": 42}
        assert _contains(seen[0].body, _SCHEMA)

    def test_reasoning_is_kept_apart_and_goes_back_with_its_signature(self) -> None:
        if "reasoning" in self.lacks:
            return
        call = _call("c1", '{"a":1}')

        def reply(messages: list[Message]) -> Answer:
            if messages[-1]["role"] == "tool":
                return Answer("3", finish_reason="stop")
            message = {"content": None, "reasoning_content": "I should add.", "tool_calls": [call]}
            return Answer("", message, [call], "tool_calls", Usage(5, 9, reasoning_tokens=4))

        first, _ = self._ask(Request(SUM.messages, {}, [_TOOL]), Behaviour(reply=reply))
        assert first.reasoning == "I should add."
        assert (first.text, first.usage.reasoning_tokens, first.usage.output_tokens) == ("", 4, 9)
        conversation = [*SUM.messages, first.message, {"role": "tool", "tool_call_id": "c1", "content": "3"}]
        second, seen = self._ask(Request(conversation, {}, [_TOOL]), Behaviour(reply=reply, kept=1))
        assert second.text == "3"
        assert "signatures" in self.lacks or SIGNATURE in msgspec.json.encode(seen[0].body).decode()

    def test_logprobs_come_through(self) -> None:
        if "logprobs" in self.lacks:
            return
        logprobs = [{"token": "42", "logprob": -0.5, "top_logprobs": [{"token": "43", "logprob": -1.5}]}]
        behaviour = Behaviour(reply=lambda messages: Answer("42", finish_reason="stop", logprobs=logprobs))
        answer, _ = self._ask(Request(SUM.messages, {"logprobs": True, "top_logprobs": 1}), behaviour)
        assert answer.logprobs == logprobs

    def test_a_likelihood_has_the_tokens_of_the_continuation_alone(self) -> None:
        if "likelihood" in self.lacks:
            return
        for bos in (0, 1):
            behaviour = Behaviour(completions=CompletionBehaviour(bos=bos), kept=9)
            answer, seen = self._ask(Request(likelihood_messages("Grüße: red or", " red 世界")), behaviour)
            assert answer.logprobs == [{"token": " red", "logprob": -0.5}, {"token": " 世界", "logprob": -1.5}]
            assert (answer.text, answer.finish_reason, len(seen)) == ("-2.0000", "stop", 1)
            assert answer.usage.output_tokens == 1

    def test_a_server_without_likelihoods_is_refused_in_one_sentence(self) -> None:
        if "likelihood" in self.lacks:
            return

        async def use(server: ModelServer, provider: Provider) -> ModelError:
            return await _fails(provider, Request(likelihood_messages("a", " b")))

        for settings in (
            CompletionBehaviour(exists=False),
            CompletionBehaviour(echo="ignored", prompt_logprobs="refused"),
        ):
            error = self._with(Behaviour(completions=settings), use, model="test-model")
            assert (error.kind, error.retryable) == ("unsupported", False)
            assert "test-model at http" in error.message

    def test_cached_tokens_are_part_of_the_input(self) -> None:
        if "cache" in self.lacks:
            return
        written = 0 if "cache_writes" in self.lacks else 5
        usage = Usage(100, 7, 80, 0, written)
        answer, _ = self._ask(SUM, Behaviour(reply=lambda messages: Answer("x", finish_reason="stop", usage=usage)))
        assert answer.usage == usage

    def test_every_end_has_its_reason(self) -> None:
        for reason in ("stop", "length", "content_filter"):
            behaviour = Behaviour(reply=lambda messages, reason=reason: Answer("some", finish_reason=reason))  # type: ignore[misc] # mypy cannot infer it
            answer, _ = self._ask(SUM, behaviour)
            assert (answer.text, answer.finish_reason) == ("some", reason)

    def test_a_filter_that_leaves_nothing_is_a_failure(self) -> None:
        for fault in ("filtered", "content-filter"):
            error = self._failure(fault)
            assert error.kind == "content_filter", fault

    def test_every_failure_has_its_kind_and_its_status(self) -> None:
        expected = {**_KINDS, **(_STREAMED if self._streams else _WHOLE), **self.kinds}
        found = {}
        for fault in expected:
            error = self._failure(fault)
            found[fault] = (error.kind, expected[fault][1] if fault == "broken-off" else error.status)
        assert found == expected

    def test_retry_after_is_reported(self) -> None:
        error = self._failure("429-retry-after", Fault("429-retry-after", retry_after="7"))
        assert (error.kind, error.retry_after) == ("rate_limit", 7.0)

    def test_other_shapes_of_a_right_answer_are_taken(self) -> None:
        for shape in ("null-tool-calls", "no-usage", "empty-answer"):
            answer, _ = self._ask(SUM, Behaviour(faults=[Fault(shape)]))
            assert (answer.text, answer.finish_reason) == ("" if shape == "empty-answer" else "42", "stop"), shape

    def test_silence_is_a_timeout(self) -> None:
        for fault in ("hang", "stall"):
            error = self._failure(fault, timeout_seconds=_SHORT_SECONDS)
            assert error.kind == "timeout", fault

    def test_a_server_that_is_not_there_is_a_connection_failure(self) -> None:
        async def ask() -> ModelError:
            async with ModelServer() as server:
                gone = server.base_url
            return await _fails(self.connect(gone, timeout_seconds=_SECONDS))

        with _key():
            assert asyncio.run(ask()).kind == "connection"

    def test_the_key_is_in_no_text_even_if_the_server_repeats_it(self) -> None:
        error = self._failure("401")
        everything = "".join(traceback.format_exception(error)) + repr(error.args) + repr(error.__cause__)
        assert KEY not in everything

    def test_a_cancelled_request_leaves_no_connection_in_doubt(self) -> None:
        async def use(server: ModelServer, provider: Provider) -> list[str]:
            task = asyncio.create_task(provider.generate(SUM))
            while not server.stats().in_flight:  # noqa: ASYNC110 - of the server
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            server.behaviour = Behaviour()
            asked = [Request([{"role": "user", "content": f"{number} + 1"}]) for number in range(4)]
            return [answer.text for answer in await asyncio.gather(*map(provider.generate, asked))]

        assert self._with(Behaviour(faults=[Fault("hang", first=1)]), use) == ["1", "2", "3", "4"]

    def test_closing_twice_or_unused_is_harmless(self) -> None:
        async def use(server: ModelServer, provider: Provider) -> str:
            await provider.close()
            answer = await provider.generate(SUM)
            await provider.close()
            await provider.close()
            return answer.text

        assert self._with(Behaviour(), use) == "42"

    def test_the_raw_answer_is_kept_only_on_request(self) -> None:
        assert self._ask(SUM)[0].raw is None
        answer, _ = self._ask(SUM, record_raw=True)
        assert answer.raw is not None
        assert "42" in json.dumps(answer.raw) or self._streams

    @property
    def _streams(self) -> bool:
        return bool(self.settings.get("stream"))

    def _with(
        self,
        behaviour: Behaviour,
        use: Callable[[ModelServer, Provider], Awaitable[T]],
        **settings: Any,
    ) -> T:
        async def run() -> T:
            async with ModelServer(behaviour) as server:
                provider = self.connect(server.base_url, **{"timeout_seconds": _SECONDS, **settings})
                try:
                    return await use(server, provider)
                finally:
                    await provider.close()

        with _key():
            return asyncio.run(run())

    def _ask(self, request: Request, behaviour: Behaviour | None = None, **settings: Any) -> tuple[Answer, list[Seen]]:
        async def use(server: ModelServer, provider: Provider) -> tuple[Answer, list[Seen]]:
            return await provider.generate(request), server.requests()

        return self._with(behaviour or Behaviour(kept=1), use, **settings)

    def _received(self, request: Request) -> list[Message]:
        """A request's messages as the server received them, in OpenAI's format."""
        received: list[Message] = []

        def reply(messages: list[Message]) -> str:
            received[:] = messages
            return "heard"

        self._ask(request, Behaviour(reply=reply))
        return received

    def _failure(self, kind: str, fault: Fault | None = None, **settings: Any) -> ModelError:
        async def use(server: ModelServer, provider: Provider) -> ModelError:
            return await _fails(provider)

        return self._with(Behaviour(faults=[fault or Fault(kind)]), use, **settings)

    def _round_trip(self, calls: list[dict[str, Any]]) -> None:
        def reply(messages: list[Message]) -> Message | str:
            results = [each["content"] for each in messages if each["role"] == "tool"]
            return " and ".join(results) if results else {"content": None, "tool_calls": calls}

        first, _ = self._ask(Request(SUM.messages, {}, [_TOOL]), Behaviour(reply=reply))
        assert (first.text, first.finish_reason) == ("", "tool_calls")
        assert [_plain(call) for call in first.tool_calls] == [_plain(call) for call in calls]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": f"result {number}"}
            for number, call in enumerate(first.tool_calls)
        ]
        second, _ = self._ask(Request([*SUM.messages, first.message, *results], {}, [_TOOL]), Behaviour(reply=reply))
        assert second.text == " and ".join(each["content"] for each in results)


@contextlib.contextmanager
def _key() -> Iterator[None]:
    os.environ[KEY_VARIABLE] = KEY
    try:
        yield
    finally:
        del os.environ[KEY_VARIABLE]


async def _fails(provider: Provider, request: Request = SUM) -> ModelError:
    try:
        answer = await provider.generate(request)
    except ModelError as error:
        return error
    finally:
        await provider.close()
    raise AssertionError(f"a failure became an answer: {answer!r}")


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "add", "arguments": arguments}}


def _plain(call: dict[str, Any]) -> tuple[str, str, Any]:
    return call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])


def _contains(value: Any, part: Any) -> bool:
    """Whether a value contains a part, at any depth."""
    if value == part:
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_contains(each, part) for each in inner)
