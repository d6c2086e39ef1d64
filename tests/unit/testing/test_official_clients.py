"""The test server against the clients that the protocols' owners wrote: what they understand is the protocol."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.records.samples import Answer, Message, Usage
from holdfast.testing import Behaviour, Fault, ModelServer
from holdfast.testing.contract import PIXEL
from holdfast.testing.protocols import SIGNATURE

pytestmark = pytest.mark.long  # importing the clients takes seconds
CALLS = [
    {"id": f"c{number}", "type": "function", "function": {"name": "add", "arguments": f'{{"a":{number}}}'}}
    for number in range(2)
]
OWN_WARNING = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
"""Of google-genai, when it is imported."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def agent(messages: list[Message]) -> Answer:
    """Thinks, calls two tools, and then says how many results it has seen."""
    results = [each for each in messages if each["role"] == "tool"]
    if results:
        return Answer(f"{len(results)} results", finish_reason="stop", usage=Usage(20, 5, 8))
    message = {"content": None, "reasoning_content": "Hm.", "tool_calls": CALLS}
    return Answer("", message, CALLS, "tool_calls", Usage(10, 9, 0, 4))


def serve(use: Callable[[ModelServer], Awaitable[Any]], behaviour: Behaviour | None = None) -> Any:
    async def run() -> Any:
        async with ModelServer(behaviour or Behaviour(reply=agent)) as server:
            return await use(server)

    return asyncio.run(run())


def root(server: ModelServer) -> str:
    return server.base_url.removesuffix("/v1")


def test_anthropics_client_thinks_calls_and_continues_whole_and_streaming() -> None:
    anthropic = pytest.importorskip("anthropic")
    tools = [{"name": "add", "input_schema": SCHEMA}]

    async def use(server: ModelServer) -> list[tuple[Any, ...]]:
        found = []
        async with anthropic.AsyncAnthropic(base_url=root(server), api_key="k", max_retries=0) as client:
            for streaming in (False, True):
                talk: list[Any] = [{"role": "user", "content": "add"}]
                for _ in range(2):
                    given = {"model": "m", "max_tokens": 9, "messages": talk, "tools": tools}
                    if streaming:
                        async with client.messages.stream(**given) as stream:
                            message = await stream.get_final_message()
                    else:
                        message = await client.messages.create(**given)
                    used = [block for block in message.content if block.type == "tool_use"]
                    results = [{"type": "tool_result", "tool_use_id": each.id, "content": "1"} for each in used]
                    talk += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
                    kinds = [block.type for block in message.content]
                    found.append((kinds, message.stop_reason, [each.input for each in used], message.usage))
        return found

    found = serve(use)
    for thinking, last in (found[:2], found[2:]):
        assert thinking[:3] == (["thinking", "tool_use", "tool_use"], "tool_use", [{"a": 0}, {"a": 1}])
        assert thinking[3].output_tokens_details.thinking_tokens == 4
        assert last[:3] == (["text"], "end_turn", [])
        assert (last[3].input_tokens, last[3].cache_read_input_tokens, last[3].output_tokens) == (12, 8, 5)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("429", "RateLimitError"),
        ("401", "AuthenticationError"),
        ("404", "NotFoundError"),
        ("529", "OverloadedError"),
        ("context-too-long", "BadRequestError"),
    ],
)
def test_anthropics_client_knows_the_failures(fault: str, error: str) -> None:
    anthropic = pytest.importorskip("anthropic")

    async def use(server: ModelServer) -> str:
        async with anthropic.AsyncAnthropic(base_url=root(server), api_key="k", max_retries=0) as client:
            with pytest.raises(anthropic.APIStatusError) as raised:
                await client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}])
            return raised.typename

    assert serve(use, Behaviour(faults=[Fault(fault)])) == error


@OWN_WARNING
def test_googles_client_thinks_calls_and_continues_whole_and_streaming() -> None:
    genai = pytest.importorskip("google.genai")
    types = genai.types
    function = types.FunctionDeclaration(name="add", description="Adds.", parameters_json_schema=SCHEMA)
    off = types.AutomaticFunctionCallingConfig(disable=True)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[function])],
        automatic_function_calling=off,
        system_instruction="Be exact.",
        seed=3,
    )
    image = types.Part.from_bytes(data=base64.b64decode(PIXEL), mime_type="image/png")

    async def use(server: ModelServer) -> list[tuple[Any, ...]]:
        options = types.HttpOptions(base_url=root(server))
        client = genai.Client(api_key="k", http_options=options)
        found = []
        talk = [types.Content(role="user", parts=[types.Part(text="add"), image])]
        whole = await client.aio.models.generate_content(model="m", contents=talk, config=config)
        content = whole.candidates[0].content
        found.append((whole.function_calls, content.parts, whole.usage_metadata))
        results = [
            types.Part(function_response=types.FunctionResponse(id=each.id, name=each.name, response={"result": "1"}))
            for each in whole.function_calls
        ]
        talk += [content, types.Content(role="user", parts=results)]
        stream = await client.aio.models.generate_content_stream(model="m", contents=talk, config=config)
        chunks = [chunk async for chunk in stream]
        found.append(
            ("".join(chunk.text or "" for chunk in chunks), chunks[-1].candidates[0].finish_reason, chunks[-1])
        )
        await client.aio.aclose()
        return found

    first, second = serve(use)
    assert [(each.id, each.args) for each in first[0]] == [("c0", {"a": 0}), ("c1", {"a": 1})]
    assert first[1][0].thought
    assert first[1][1].thought_signature == base64.b64decode(SIGNATURE)
    assert (first[2].thoughts_token_count, first[2].candidates_token_count) == (4, 5)
    assert second[:2] == ("2 results", types.FinishReason.STOP)
    assert second[2].usage_metadata.cached_content_token_count == 8


@OWN_WARNING
def test_googles_client_knows_the_failures() -> None:
    genai = pytest.importorskip("google.genai")

    async def use(server: ModelServer) -> tuple[int, str]:
        client = genai.Client(api_key="k", http_options=genai.types.HttpOptions(base_url=root(server)))
        with pytest.raises(genai.errors.ClientError) as raised:
            await client.aio.models.generate_content(model="m", contents="x")
        await client.aio.aclose()
        return raised.value.code, raised.value.status

    assert serve(use, Behaviour(faults=[Fault("429")])) == (429, "RESOURCE_EXHAUSTED")


def test_openais_client_thinks_calls_and_continues_in_both_apis() -> None:
    openai = pytest.importorskip("openai")
    tool = {"name": "add", "parameters": SCHEMA}

    async def use(server: ModelServer) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
            talk: list[Any] = [{"role": "user", "content": "add"}]
            tools = [{"type": "function", "function": tool}]
            asked = {"model": "m", "messages": talk, "tools": tools, "stream_options": {"include_usage": True}}
            async with client.chat.completions.stream(**asked) as stream:
                chat = await stream.get_final_completion()
            items: list[Any] = [{"role": "user", "content": "add"}]
            given = {"model": "m", "tools": [{"type": "function", **tool}]}
            first = await client.responses.create(input=items, **given)
            calls = [each for each in first.output if each.type == "function_call"]
            results = [{"type": "function_call_output", "call_id": each.call_id, "output": "1"} for each in calls]
            async with client.responses.stream(input=[*items, *first.output, *results], **given) as events:
                second = await events.get_final_response()
            return [chat, first, second]

    chat, first, second = serve(use)
    assert [call.function.arguments for call in chat.choices[0].message.tool_calls] == ['{"a":0}', '{"a":1}']
    assert chat.usage.completion_tokens_details.reasoning_tokens == 4
    assert [item.type for item in first.output] == ["reasoning", "function_call", "function_call"]
    assert first.output[0].encrypted_content == SIGNATURE
    assert (second.output_text, second.usage.input_tokens_details.cached_tokens) == ("2 results", 8)
