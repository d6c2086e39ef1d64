"""Likelihood requests to completion servers: what is sent, which way works, and how servers without one are refused."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.models import Connection, ModelError, Request, likelihood_messages, make_provider
from holdfast.models.batch.api import open_batches
from holdfast.testing import Behaviour, CompletionBehaviour, Fault, ModelServer
from holdfast.testing.behaviour import Seen, Stats

RED = Request(likelihood_messages("red or blue:", " red"), {"temperature": 0.7, "stop": ["\n"], "top_p": 0.5})
SCORED = [{"token": " red", "logprob": -0.5}]


def ask(
    completions: CompletionBehaviour, *requests: Request, faults: tuple[Fault, ...] = (), **connection: Any
) -> tuple[list[Any], list[Seen], Stats]:
    """The answers or errors, the requests as the server received them, and its counts."""

    async def run() -> tuple[list[Any], list[Seen], Stats]:
        async with ModelServer(Behaviour(completions=completions, faults=faults, kept=99)) as server:
            given = {"provider": "openai", "model": "test-model", "base_url": server.base_url, **connection}
            provider = make_provider(Connection(**given))
            found: list[Any] = []
            for each in requests or (RED,):
                try:
                    found.append(await provider.generate(each))
                except ModelError as error:
                    found.append(error)
            await provider.close()
            return found, server.requests(), server.stats()

    return asyncio.run(run())


def test_the_request_has_the_prompt_without_a_template_and_generates_one_token() -> None:
    [answer], [seen], _ = ask(CompletionBehaviour())
    assert seen.body == {
        "model": "test-model",
        "prompt": "red or blue: red",
        "top_p": 0.5,
        "max_tokens": 1,
        "temperature": 0,
        "echo": True,
        "logprobs": 1,
    }
    assert (answer.logprobs, answer.text) == (SCORED, "-0.5000")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (4, 1)


@pytest.mark.parametrize("echo", ["refused", "ignored"])
def test_vllms_own_field_is_used_where_echo_does_not_work_and_from_then_on(echo: Any) -> None:
    answers, seen, stats = ask(CompletionBehaviour(echo=echo, bos=1), RED, RED)
    assert [each.logprobs for each in answers] == [SCORED, SCORED]
    assert ["echo" in each.body for each in seen if "prompt_logprobs" not in each.body] == [True] * (echo == "ignored")
    assert [each.body.get("prompt_logprobs") for each in seen][-2:] == [1, 1]
    assert stats.requests == 3
    # The first response was paid for, although it was of no use.
    assert answers[0].usage.input_tokens == (8 if echo == "ignored" else 4)
    assert answers[1].usage.input_tokens == 4


def test_a_request_that_is_refused_after_another_found_the_way_tries_that_way_too() -> None:
    async def run() -> list[Any]:
        first, release = asyncio.Event(), asyncio.Event()

        async def refuse_or_list(request: web.Request) -> web.Response:
            if "echo" not in await request.json():
                listed = [None, *({"1": {"logprob": -0.5, "decoded_token": each}} for each in ("or blue:", " red"))]
                return web.json_response({"choices": [{"text": ".", "prompt_logprobs": listed}]})
            if first.is_set():
                await release.wait()
            first.set()
            return web.json_response({"error": {"message": "echo is not supported"}}, status=400)

        application = web.Application()
        application.router.add_post("/v1/completions", refuse_or_list)
        async with TestServer(application) as server:
            provider = make_provider(Connection("openai", "m", str(server.make_url("/v1"))))
            both = [asyncio.create_task(provider.generate(RED)) for _ in range(2)]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            release.set()
            answers = await asyncio.gather(*both)
            await provider.close()
            return [each.logprobs for each in answers]

    assert asyncio.run(run()) == [SCORED] * 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (CompletionBehaviour(exists=False), "HTTP 404: no such path: POST /v1/completions"),
        (CompletionBehaviour(echo="refused", prompt_logprobs="refused"), "HTTP 400: the request is invalid: echo is"),
        (CompletionBehaviour(echo="ignored", prompt_logprobs="ignored"), "no log-probabilities of the prompt (test-"),
        (CompletionBehaviour(echo="ignored", prompt_logprobs="refused"), "HTTP 400: the request is invalid: prompt_l"),
    ],
)
def test_a_server_that_cannot_is_refused_with_its_name_and_what_to_do(settings: CompletionBehaviour, said: str) -> None:
    [error], _, _ = ask(settings)
    assert (error.kind, error.retryable) == ("unsupported", False)
    assert error.message.startswith("the server returns no log-probabilities of the prompt")
    assert said in error.message
    assert error.message.count("test-model at http://127.0.0.1:") == 1
    assert error.message.endswith("or score a chat model with the solver `chat` and the scorer `choice`")
    assert "\n" not in error.message


def test_a_first_request_that_is_refused_for_another_reason_may_be_the_fault_of_its_prompt() -> None:
    """So it takes five samples to stop the cell, not one."""
    [error, answer], _, _ = ask(CompletionBehaviour(), RED, RED, faults=(Fault("400", first=2),))
    assert error.kind == "bad_request"
    assert error.message.startswith("HTTP 400: test server fault 400 (test-model at http://127.0.0.1:")
    assert "; if the server has no log-probabilities of a prompt, use a completion server" in error.message
    assert answer.logprobs == SCORED


def test_an_unknown_model_is_not_taken_for_a_server_without_completions() -> None:
    [error], _, _ = ask(CompletionBehaviour(exists=False), model="test-modle")
    assert error.kind == "unknown_model"
    assert "did you mean 'test-model'?" in error.message


@pytest.mark.parametrize(("status", "kind"), [("401", "auth"), ("429", "rate_limit"), ("503", "overload")])
def test_other_failures_are_those_of_every_request(status: str, kind: str) -> None:
    [error, answer], _, _ = ask(CompletionBehaviour(), RED, RED, faults=(Fault(status, first=1),))
    assert (error.kind, answer.logprobs) == (kind, SCORED)


def test_a_refused_prompt_does_not_mean_that_the_server_cannot() -> None:
    answers, _, stats = ask(CompletionBehaviour(), RED, RED, faults=(Fault("400", every=2),))
    assert (answers[0].logprobs, answers[1].kind) == (SCORED, "bad_request")
    assert stats.requests == 2


@pytest.mark.parametrize("echo", ["yes", "refused"])
def test_a_straddling_token_and_a_second_bos_are_refused(echo: Any) -> None:
    [straddling], _, _ = ask(CompletionBehaviour(echo=echo, straddles=True), Request(likelihood_messages("red", " is")))
    assert "the token 'red i' holds the end of the context" in straddling.message
    [twice], _, _ = ask(CompletionBehaviour(echo=echo, bos=2))
    assert "begins with two BOS tokens ('<s>')" in twice.message
    assert {straddling.kind, twice.kind} == {"bad_request"}
    assert "(test-model at http://127.0.0.1:" in straddling.message


def test_the_test_server_refuses_to_generate_nothing_as_some_servers_do() -> None:
    async def run() -> str:
        from aiohttp import ClientSession

        async with ModelServer() as server, ClientSession() as session:
            body = {"model": "m", "prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 1}
            async with session.post(f"{server.base_url}/completions", json=body) as response:
                return f"{response.status} {await response.text()}"

    said = asyncio.run(run())
    assert said.startswith("400 ")
    assert "max_tokens must be at least 1" in said


@pytest.mark.parametrize("body", [b"[]", b'{"choices":[]}', b'{"error":{"message":"no","code":500}}'])
def test_a_body_without_a_completion_is_a_failure_of_the_server(body: bytes) -> None:
    async def run() -> ModelError:
        async with ModelServer(Behaviour(rewrite=lambda messages, content: body)) as server:
            provider = make_provider(Connection("openai", "m", server.base_url))
            with pytest.raises(ModelError) as caught:
                await provider.generate(RED)
            await provider.close()
            return caught.value

    assert asyncio.run(run()).kind in ("malformed", "server")


def test_the_raw_response_is_kept_on_request() -> None:
    [answer], _, _ = ask(CompletionBehaviour(), record_raw=True)
    assert answer.raw["choices"][0]["logprobs"]["tokens"][-2] == " red"


@pytest.mark.parametrize("provider", ["anthropic", "google"])
def test_protocols_for_chats_refuse_before_anything_is_sent(provider: str) -> None:
    [error], _, stats = ask(CompletionBehaviour(), provider=provider)
    assert (error.kind, stats.requests) == ("unsupported", 0)
    assert "this protocol has no log-probabilities of a prompt; nothing was sent (test-model at" in error.message


def test_a_batch_job_cannot_hold_likelihood_requests() -> None:
    async def run() -> ModelError:
        batches = open_batches(Connection("openai", "m", "http://127.0.0.1:9/v1"))
        with pytest.raises(ModelError) as caught:
            batches.body(RED)
        await batches.close()
        return caught.value

    error = asyncio.run(run())
    assert str(error) == "unsupported: a batch job cannot hold likelihood requests: remove `batch` from the model"


async def reply_with_text(request: Request) -> str:
    return "red"


def test_a_users_function_that_returns_only_a_text_is_refused() -> None:
    provider = make_provider(Connection(f"{__name__}:reply_with_text", "m"))
    with pytest.raises(ModelError, match="returned no log-probabilities: for a message with the role `continuation`"):
        asyncio.run(provider.generate(RED))


def test_the_mock_answers_by_the_toy_model() -> None:
    provider = make_provider(Connection("mock", "m"))
    answer = asyncio.run(provider.generate(Request(likelihood_messages("red or blue:", " green red"))))
    assert answer.logprobs == [{"token": " green", "logprob": -2.25}, {"token": " red", "logprob": -0.5}]
    assert answer.text == "-2.7500"
    empty = asyncio.run(provider.generate(Request(likelihood_messages("", "red"))))
    assert empty.logprobs == [{"token": "red", "logprob": -1.75}]
