"""Several URLs as one model, on real servers: where requests go, what is paused, what is logged."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast.models import BadConnectionError, Connection, ModelError, Request, Retries, ask, make_provider
from holdfast.models.http.endpoint import RoutedServer, RoutingProvider
from holdfast.records.samples import Answer
from holdfast.testing import Behaviour, Fault, ModelServer
from tests.unit.testing.patience import until

Use = Callable[[list[ModelServer], RoutingProvider, "Clock"], Awaitable[Any]]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[tuple[str, str]] = []

    def __call__(self) -> float:
        return self.now

    def tell(self, event: str, message: str) -> None:
        self.told.append((event, message))


def route(use: Use, *behaviours: Behaviour) -> Any:
    async def run() -> Any:
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(ModelServer(each)) for each in behaviours]
            places = [
                RoutedServer(each.base_url, make_provider(Connection("openai", "m", base_url=each.base_url)))
                for each in servers
            ]
            clock = Clock()
            provider = RoutingProvider(places, clock.tell, clock)
            try:
                return await use(servers, provider, clock)
            finally:
                await provider.close()

    return asyncio.run(run())


def asked(text: str, affinity: str = "") -> Request:
    return Request([{"role": "user", "content": text}], affinity=affinity)


def counts(servers: list[ModelServer]) -> list[int]:
    return [server.stats().requests for server in servers]


def test_requests_go_where_the_fewest_are_under_way() -> None:
    async def use(servers: list[ModelServer], provider: RoutingProvider, clock: Clock) -> list[int]:
        tasks = [asyncio.create_task(provider.generate(asked(f"{number} + 1"))) for number in range(6)]
        await until(lambda: sum(counts(servers)) == 6)
        found = counts(servers)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return found

    hang = Behaviour(faults=[Fault("hang")])
    assert route(use, hang, hang, hang) == [2, 2, 2]


def test_what_has_the_same_affinity_goes_to_the_same_server() -> None:
    async def use(servers: list[ModelServer], provider: RoutingProvider, clock: Clock) -> list[set[str]]:
        every = [asked(f"{sample} step {step}", f"sums/m/{sample}") for step in range(4) for sample in range(6)]
        await asyncio.gather(*map(provider.generate, every))
        return [{seen.body["messages"][0]["content"].split()[0] for seen in server.requests()} for server in servers]

    kept = Behaviour(kept=100)
    first, second = route(use, kept, kept)
    assert first | second == set("012345")
    assert not first & second
    assert (len(first), len(second)) == (3, 3)


@pytest.mark.parametrize("fault", ["500", "503", "529", "reset", "cut"])
def test_a_server_that_fails_is_paused_and_the_others_continue(fault: str) -> None:
    async def use(servers: list[ModelServer], provider: RoutingProvider, clock: Clock) -> tuple[Any, ...]:
        with pytest.raises(ModelError):
            await provider.generate(asked("1 + 1", "sample"))
        for number in range(5):
            await provider.generate(asked(f"{number} + 1", "sample"))
        return counts(servers), [event for event, _ in clock.told]

    assert route(use, Behaviour(faults=[Fault(fault)]), Behaviour()) == ([1, 5], ["model.rests"])


def test_a_limit_of_the_caller_is_no_reason_to_rest() -> None:
    async def use(servers: list[ModelServer], provider: RoutingProvider, clock: Clock) -> tuple[Any, ...]:
        for _ in range(2):
            with pytest.raises(ModelError, match="rate_limit"):
                await provider.generate(asked("1 + 1", "sample"))
        return counts(servers), clock.told

    assert route(use, Behaviour(faults=[Fault("429")]), Behaviour()) == ([2, 0], [])


def test_a_server_is_asked_again_after_its_rest_and_rests_longer_each_time() -> None:
    async def use(servers: list[ModelServer], provider: RoutingProvider, clock: Clock) -> list[Any]:
        for wait in (0.0, 1.0, 2.0):
            clock.now += wait
            with pytest.raises(ModelError):
                await provider.generate(asked("1 + 1"))
            await provider.generate(asked("1 + 1"))
        servers[0].behaviour = Behaviour()
        clock.now += 4.0
        await provider.generate(asked("1 + 1"))
        return [counts(servers), [(event, *message.split()[1:6]) for event, message in clock.told]]

    found, told = route(use, Behaviour(faults=[Fault("503")]), Behaviour())
    assert found == [4, 3]
    rests = [("model.rests", "is", "paused", "for", seconds, "s,") for seconds in ("1", "2", "4")]
    assert told == [*rests, ("model.back", "responds", "again")]


def test_many_failures_at_once_are_one() -> None:
    async def use(servers: list[ModelServer], provider: RoutingProvider, clock: Clock) -> int:
        every = [provider.generate(asked(f"{number} + 1")) for number in range(8)]
        await asyncio.gather(*every, return_exceptions=True)
        return len(clock.told)

    assert route(use, Behaviour(latency_seconds=0.05, faults=[Fault("503")])) == 1


def test_if_all_rest_the_one_that_will_be_first_is_asked() -> None:
    async def use(servers: list[ModelServer], provider: RoutingProvider, clock: Clock) -> list[int]:
        for _ in range(2):
            with pytest.raises(ModelError):
                await provider.generate(asked("1 + 1"))
            clock.now += 0.1
        with pytest.raises(ModelError):
            await provider.generate(asked("1 + 1"))
        return counts(servers)

    tired = Behaviour(faults=[Fault("503")])
    assert route(use, tired, tired) == [2, 1]


def test_the_retry_layer_finds_the_server_that_works() -> None:
    async def run() -> tuple[Answer, int]:
        async with ModelServer() as gone:
            pass
        async with ModelServer() as server:
            urls = [gone.base_url, server.base_url]
            provider = make_provider(Connection("openai", "m", base_url=urls))
            try:
                return await ask(provider, asked("12 + 30"), Retries(1, sleep=lambda seconds: asyncio.sleep(0)))
            finally:
                await provider.close()

    answer, tries = asyncio.run(run())
    assert (answer.text, tries) == ("42", 2)


def test_what_is_reported_about_a_url_holds_no_credentials() -> None:
    told: list[str] = []
    url = "http://user:passw0rd@127.0.0.1:1/v1?api_key=hush-hush"
    connection = Connection("openai", "m", base_url=[url], tell=lambda event, message: told.append(message))

    async def run() -> None:
        provider = make_provider(connection)
        with pytest.raises(ModelError):
            await provider.generate(asked("1 + 1"))
        await provider.close()

    asyncio.run(run())
    assert "http://127.0.0.1:1/v1 is paused" in told[0]
    assert "passw0rd" not in told[0]
    assert "hush" not in told[0]


@pytest.mark.parametrize("urls", [[], ["http://a/v1", "http://a/v1"], ["http://a/v1", "ftp://b"]])
def test_a_list_that_cannot_be_used_is_refused(urls: list[str]) -> None:
    with pytest.raises(BadConnectionError, match="base_url"):
        make_provider(Connection("openai", "m", base_url=urls))


def test_all_servers_are_asked_which_models_they_have() -> None:
    async def use(servers: list[ModelServer], provider: RoutingProvider, clock: Clock) -> list[str] | None:
        return await provider.served(5.0)

    assert route(use, Behaviour(), Behaviour()) == ["test-model"]
