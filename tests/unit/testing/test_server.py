"""The test server as any HTTP client sees it: what it serves and what it counts."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.models.http.statuses import retry_after_seconds
from holdfast.testing import Behaviour, Fault, ModelServer, Stats, digest_of, foretell
from tests.unit.testing.patience import until

Use = Callable[[aiohttp.ClientSession, ModelServer], Awaitable[Any]]


def with_server(use: Use, behaviour: Behaviour | None = None) -> Any:
    async def run() -> Any:
        async with ModelServer(behaviour) as server, aiohttp.ClientSession() as session:
            return await use(session, server)

    return asyncio.run(run())


def body(text: str, model: str = "m", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


async def post(session: aiohttp.ClientSession, server: ModelServer, json: Any) -> tuple[int, Any]:
    async with session.post(f"{server.base_url}/chat/completions", json=json) as response:
        return response.status, await response.json()


def test_it_listens_on_the_loopback_only() -> None:
    async def run() -> list[str]:
        async with ModelServer() as server:
            assert server._listener is not None  # noqa: SLF001 (where it is bound is the question)
            return [each.getsockname()[0] for each in server._listener.sockets]  # noqa: SLF001

    assert asyncio.run(run()) == ["127.0.0.1"]


def test_a_completion_is_deterministic() -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> list[Any]:
        return [await post(session, server, body("12 + 30")) for _ in range(2)]

    first, second = with_server(use)
    assert first == second
    status, answer = first
    assert (status, answer["choices"][0]["message"]["content"], answer["model"]) == (200, "42", "m")
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


def test_models_are_listed() -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> Any:
        async with session.get(f"{server.base_url}/models") as response:
            return await response.json()

    assert with_server(use)["data"][0]["id"] == "test-model"


def test_an_unknown_path_is_a_404_and_not_counted() -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> tuple[int, int]:
        async with session.post(f"{server.base_url}/embeddings", json={}) as response:
            return response.status, server.stats().requests

    assert with_server(use) == (404, 0)


@pytest.mark.parametrize("bad", [{}, {"messages": "x"}, {"messages": [3]}, [], 3])
def test_a_request_without_messages_is_refused_and_counted(bad: Any) -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> tuple[int, int, int]:
        status, _ = await post(session, server, bad)
        return status, server.stats().requests, server.stats().answered

    assert with_server(use) == (400, 1, 0)


def test_requests_are_counted_by_model_and_messages_whatever_their_other_parts() -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> Stats:
        await post(session, server, body("a", temperature=0))
        await post(session, server, {"temperature": 1, **body("a")})
        await post(session, server, body("a", model="other"))
        await post(session, server, body("b"))
        return server.stats()

    stats = with_server(use)
    assert (stats.requests, stats.repeats, stats.in_flight, stats.answered) == (4, 1, 0, 4)
    assert sorted(stats.by_digest.values()) == [1, 1, 2]


def test_stats_are_the_same_over_http() -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> tuple[Any, Stats]:
        await post(session, server, body("a"))
        async with session.get(server.base_url.removesuffix("/v1") + "/stats") as response:
            return await response.json(), server.stats()

    told, stats = with_server(use)
    assert told == {
        "requests": 1,
        "in_flight": 0,
        "max_in_flight": 1,
        "repeats": 0,
        "answered": 1,
        "connections": 1,
        "faults": {},
        "by_digest": stats.by_digest,
        "answers": stats.by_digest,
    }


def test_what_is_in_flight_is_counted_and_a_client_that_goes_is_not() -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> Stats:
        tasks = [asyncio.create_task(post(session, server, body(str(number)))) for number in range(5)]
        await until(lambda: server.stats().in_flight == 5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: server.stats().in_flight == 0)
        return server.stats()

    stats = with_server(use, Behaviour(faults=[Fault("hang")]))
    assert (stats.max_in_flight, stats.answered, stats.faults) == (5, 0, {"hang": 5})


def test_closing_ends_requests_that_hang() -> None:
    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            server = ModelServer(Behaviour(faults=[Fault("hang")]))
            await server.start()
            task = asyncio.create_task(post(session, server, body("x")))
            await until(lambda: server.stats().in_flight == 1)
            await server.close()
            await server.close()
            await task

    with pytest.raises(aiohttp.ClientConnectionError):
        asyncio.run(run())


def test_its_behaviour_can_change_while_it_runs() -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> list[int]:
        before, _ = await post(session, server, body("x"))
        server.behaviour = Behaviour(faults=[Fault("503")])
        after, _ = await post(session, server, body("x"))
        return [before, after]

    assert with_server(use) == [200, 503]


def test_large_requests_are_served() -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> int:
        large = io.BytesIO(msgspec.json.encode(body("x" * 3_000_000)))
        async with session.post(f"{server.base_url}/chat/completions", data=large) as response:
            return len(await response.read())

    assert with_server(use) > 3_000_000


def test_retry_after_is_only_in_the_kind_that_has_it() -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> list[Any]:
        found = []
        for _ in range(2):
            async with session.post(f"{server.base_url}/chat/completions", json=body("x")) as response:
                found.append((response.status, response.headers.get("Retry-After")))
        return found

    behaviour = Behaviour(faults=[Fault("429", first=1), Fault("429-retry-after", retry_after="9")])
    assert with_server(use, behaviour) == [(429, None), (429, "9")]


async def get_all(session: aiohttp.ClientSession, server: ModelServer) -> tuple[int, str, bytes]:
    async with session.post(f"{server.base_url}/chat/completions", json=body("12 + 30")) as response:
        return response.status, response.content_type, await response.read()


@pytest.mark.parametrize(
    ("fault", "content_type", "reason", "text", "answered"),
    [
        (Fault("same-id"), "application/json", "stop", "42", 1),
        (Fault("huge", megabytes=3), "application/json", "stop", "42", 1),
        (Fault("trickle"), "application/json", "stop", "42", 1),
        (Fault("wrong-type"), "text/plain", "stop", "42", 0),
        (Fault("truncated"), "application/json", "length", "4", 1),
        (Fault("half-filtered"), "application/json", "content_filter", "4", 1),
    ],
)
def test_answers_of_every_unusual_kind_are_sent_and_counted(
    fault: Fault, content_type: str, reason: str, text: str, answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> Any:
        return await get_all(session, server), server.stats()

    monkeypatch.setattr("holdfast.testing.server._PIECE_SECONDS", 0.0)
    (status, told, raw), stats = with_server(use, Behaviour(faults=[fault]))
    said = msgspec.json.decode(raw)
    choice = said["choices"][0]
    assert (status, told, choice["finish_reason"], choice["message"]["content"]) == (200, content_type, reason, text)
    assert (stats.answered, stats.faults, sum(stats.answers.values())) == (answered, {fault.kind: 1}, answered)
    assert (len(raw) > 3 << 20) == (fault.kind == "huge")
    assert (said["id"] == "the-same") == (fault.kind == "same-id")


def test_a_refusal_can_say_until_when_as_a_date() -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> Any:
        async with session.post(f"{server.base_url}/chat/completions", json=body("x")) as response:
            return response.status, dict(response.headers)

    status, headers = with_server(use, Behaviour(faults=[Fault("429-retry-date", retry_after="60")]))
    assert status == 429
    assert 58 <= (retry_after_seconds(headers, 0.0) or 0.0) <= 61


@pytest.mark.parametrize("kind", ["", "same-id", "truncated", "half-filtered", "empty-answer", "content-filter"])
def test_the_answer_to_a_request_can_be_computed_beforehand(kind: str) -> None:
    async def use(session: aiohttp.ClientSession, server: ModelServer) -> Any:
        await post(session, server, body("12 + 30"))
        return await post(session, server, body("12 + 30")), server.stats()

    passing = Fault("503", times=1)
    behaviour = Behaviour(faults=[passing, Fault(kind, sticky=True)] if kind else [passing])
    (status, said), stats = with_server(use, behaviour)
    messages = body("12 + 30")["messages"]
    told = foretell(behaviour, "m", messages)
    assert stats.by_digest == {digest_of("m", messages): 2}
    if isinstance(told, str):
        assert (status, told) == (400, kind)
    else:
        choice = said["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (told.text, told.finish_reason)
