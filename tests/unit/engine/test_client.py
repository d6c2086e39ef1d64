"""A model's line keeps to its limit, and a request that waits for its turn is not on the clock."""

import asyncio
from typing import Any

from holdfast.engine.client import CellHealth, ModelClient
from holdfast.models import ModelCall, Request
from holdfast.models.pacing.queue import Slots
from holdfast.models.provider import AskFailedError
from holdfast.records.samples import Answer, Message
from holdfast.solve import ModelHandle
from holdfast.spec import Model
from holdfast.testing import Behaviour, Fault, ModelServer, Stats
from tests.unit.testing.patience import until


def line(
    server: ModelServer, connections: int, everywhere: Slots | None = None, seconds: float = 60, **fields: Any
) -> ModelClient:
    model = Model(
        name="m",
        provider="openai",
        model="m",
        base_url=server.base_url,
        max_connections=connections,
        timeout_seconds=seconds,
        **{"request_retries": 0, **fields},
    )
    return ModelClient(model, "models[0]", everywhere or Slots(1000))


async def ask(asked: ModelClient, number: int = 41) -> Answer:
    return await asked.handle().send(ModelCall([{"role": "user", "content": f"{number} + 1"}], {}, []))


def test_a_hundred_requests_at_once_share_a_few_connections() -> None:
    async def run() -> tuple[list[str], Stats]:
        async with ModelServer(Behaviour(latency_seconds=0.005)) as server:
            asked = line(server, connections=8)
            answers = await asyncio.gather(*(ask(asked, number) for number in range(100)))
            await asked.provider.close()
            return [answer.text for answer in answers], server.stats()

    texts, stats = asyncio.run(run())
    assert texts == [str(number + 1) for number in range(100)]
    assert (stats.requests, stats.repeats, stats.answered) == (100, 0, 100)
    assert 1 < stats.max_in_flight <= 8
    assert 1 < stats.connections <= 8


def test_whoever_hears_that_a_server_is_waited_for_hears_how_long_and_which_field_says_so() -> None:
    told: list[str] = []

    async def run() -> None:
        fields: dict[str, Any] = {
            "name": "m",
            "provider": "openai",
            "base_url": "http://127.0.0.1:1/v1",
            "patience_seconds": 0.3,
        }
        model = Model(model="m", request_retries=1, **fields)
        asked = ModelClient(
            model, "models[0]", Slots(1000), tell=lambda event, message: told.append(f"{event}: {message}")
        )
        asks = (ask(asked, number) for number in range(20))
        await asyncio.gather(*asks, return_exceptions=True)
        await asked.provider.close()

    asyncio.run(run())
    assert told[0].startswith(
        "model.waiting: the server of model m does not respond, waiting up to 0.3 s for it (first_contact_seconds): "
    )
    assert "the connection failed (connection refused)" in told[0]
    assert "no answer for" in told[-1]
    assert "refused" not in told[-1], "the cause is logged once"
    assert "none before in this run (first_contact_seconds)" in told[-1]


def test_a_model_that_answered_in_an_earlier_process_is_waited_for_with_patience() -> None:
    told: list[str] = []

    async def run() -> None:
        model = Model(
            name="m",
            provider="openai",
            model="m",
            base_url="http://127.0.0.1:1/v1",
            patience_seconds=0.3,
            first_contact_seconds=1000.0,
        )
        asked = ModelClient(model, "models[0]", Slots(1000), tell=lambda *line: told.append(line[1]), has_answers=True)
        await asyncio.gather(*(ask(asked, number) for number in range(20)), return_exceptions=True)
        await asked.provider.close()

    asyncio.run(run())
    assert "waiting up to 0.3 s for it (patience_seconds)" in told[0]
    assert "first_contact_seconds" not in told[-1]


def test_two_models_share_the_limit_of_the_run() -> None:
    async def run() -> Stats:
        async with ModelServer(Behaviour(latency_seconds=0.005)) as server:
            everywhere = Slots(3)
            lines = [line(server, 8, everywhere), line(server, 8, everywhere)]
            await asyncio.gather(*(ask(lines[number % 2], number) for number in range(40)))
            for each in lines:
                await each.provider.close()
            return server.stats()

    stats = asyncio.run(run())
    assert stats.answered == 40
    assert 1 < stats.max_in_flight <= 3


def test_waiting_for_a_connection_is_not_on_the_clock() -> None:
    """The first request hangs until its time is over; the second, which waited all the while, has all of its own."""

    async def run() -> tuple[Answer | BaseException, Answer | BaseException]:
        async with ModelServer(Behaviour(faults=[Fault("hang", first=1)])) as server:
            asked = line(server, connections=1, seconds=0.2)
            outcomes = await asyncio.gather(ask(asked), ask(asked), return_exceptions=True)
            await asked.provider.close()
            return outcomes

    first, second = asyncio.run(run())
    assert isinstance(first, AskFailedError)
    assert first.failure.kind == "timeout"
    assert isinstance(second, Answer)


def test_a_request_that_is_not_sent_any_more_leaves_its_place_to_others() -> None:
    """A model whose line is drained shares the run's limit with one that goes on."""

    async def run() -> str:
        async with ModelServer() as server:
            everywhere = Slots(1)
            drained, other = line(server, 8, everywhere), line(server, 8, everywhere)
            drained.drain()
            waiting = asyncio.ensure_future(ask(drained))
            await asyncio.sleep(0)
            answer = await asyncio.wait_for(ask(other), 60)
            assert not waiting.done()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert everywhere.take()
            assert not everywhere.take()
            for each in (drained, other):
                await each.provider.close()
            return answer.text

    assert asyncio.run(run()) == "42"


def test_a_line_that_is_refused_sends_nothing_more_and_tells_everybody_why() -> None:
    async def run() -> tuple[list[BaseException | Answer], Stats]:
        async with ModelServer(Behaviour(faults=[Fault("401")])) as server:
            asked = line(server, connections=2)
            outcomes = await asyncio.gather(*(ask(asked, number) for number in range(50)), return_exceptions=True)
            await asked.close()
            return outcomes, server.stats()

    outcomes, stats = asyncio.run(run())
    assert {each.failure.kind for each in outcomes if isinstance(each, AskFailedError)} == {"auth"}
    assert len(outcomes) == 50
    assert stats.requests <= 2


def test_who_asks_after_a_line_was_closed_for_its_silence_hears_of_it_at_once() -> None:
    """A judge's requests have no cell that could be stopped; the breaker is open, and no probe will close it."""

    async def run() -> list[BaseException | Answer]:
        async with ModelServer(Behaviour(faults=[Fault("reset")])) as server:
            asked = line(server, connections=8, request_retries=1, patience_seconds=0.01)
            first = await asyncio.gather(*(ask(asked, number) for number in range(8)), return_exceptions=True)
            assert asked.closed is not None
            late = [asyncio.ensure_future(ask(asked, number)) for number in range(20)]
            done, _ = await asyncio.wait(late, timeout=60)
            assert len(done) == 20
            await asked.close()
            return [*first, *await asyncio.gather(*late, return_exceptions=True)]

    outcomes = asyncio.run(run())
    failed = [each for each in outcomes if isinstance(each, AskFailedError)]
    assert len(failed) == 28
    assert {each.tries for each in failed[8:]} == {0}, "nothing was sent for those"


def test_one_sample_that_no_server_takes_stops_no_cell_and_five_do() -> None:
    """However often it is repeated, and whatever else it asks."""
    stopped: list[str] = []

    async def ask_as(asked: ModelHandle, sample: str) -> None:
        await asked.send(ModelCall([{"role": "user", "content": sample}], {}, [], f"t/m/{sample}/1"))

    async def run() -> None:
        async with ModelServer(Behaviour(faults=[Fault("400")])) as server:
            refused = line(server, connections=8)
            asked = refused.handle(cell=CellHealth(stopped.append, has_answers=False))
            await asyncio.gather(*(ask_as(asked, "odd") for _ in range(20)), return_exceptions=True)
            assert stopped == []
            others = [asyncio.ensure_future(ask_as(asked, f"s{number}")) for number in range(4)]
            await until(lambda: bool(stopped))
            for each in others:
                each.cancel()
            await refused.close()

    asyncio.run(run())
    assert stopped[0].startswith("models[0]: bad_request: HTTP 400")


def test_an_account_that_runs_dry_stops_a_line_that_works_at_once() -> None:
    async def run() -> tuple[list[BaseException | Answer], Stats]:
        async with ModelServer() as server:
            asked = line(server, connections=2)
            await ask(asked, 0)
            server.behaviour = Behaviour(faults=[Fault("402")])
            outcomes = await asyncio.gather(*(ask(asked, number) for number in range(1, 50)), return_exceptions=True)
            await asked.close()
            return outcomes, server.stats()

    outcomes, stats = asyncio.run(run())
    failures = [each.failure for each in outcomes if isinstance(each, AskFailedError)]
    assert len(failures) == 49
    assert {each.kind for each in failures} == {"billing"}
    assert "then resume" in failures[0].message
    assert stats.requests <= 1 + 2


def test_a_pause_that_the_server_asks_for_is_everybodys_and_uses_up_no_retry() -> None:
    async def run() -> tuple[list[Answer], Stats, float]:
        fault = Fault("429-retry-after", first=3, retry_after="0.2")
        async with ModelServer(Behaviour(faults=[fault])) as server:
            asked = line(server, connections=3, request_retries=1)
            began = asyncio.get_running_loop().time()
            answers = await asyncio.gather(*(ask(asked, number) for number in range(10)))
            seconds = asyncio.get_running_loop().time() - began
            await asked.close()
            return answers, server.stats(), seconds

    answers, stats, seconds = asyncio.run(run())
    assert [answer.text for answer in answers] == [str(number + 1) for number in range(10)]
    assert (stats.faults, stats.answered) == ({"429-retry-after": 3}, 10)
    assert seconds >= 0.2


def test_a_request_that_is_cancelled_while_it_waits_leaves_its_turn_to_others() -> None:
    async def run() -> str:
        async with ModelServer() as server:
            asked = line(server, connections=1, requests_per_minute=6000)
            waiting = [asyncio.ensure_future(ask(asked, number)) for number in range(40)]
            await asyncio.sleep(0)
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            answer = await asyncio.wait_for(ask(asked), 60)
            assert (asked.pace.in_flight, asked.sending, asked.turns.waiting) == (0, 0, 0)
            await asked.close()
            return answer.text

    assert asyncio.run(run()) == "42"


async def meddles(request: Request) -> str:
    """A provider of somebody's own, which takes the messages for its own."""
    request.messages[0]["content"] = "changed"
    request.messages.append({"role": "user", "content": "more"})
    return "ok"


def test_a_provider_that_changes_what_it_is_given_changes_its_own_copy() -> None:
    async def run() -> list[Message]:
        asked = ModelClient(Model(name="m", provider=f"{__name__}:meddles", model="m"), "models[0]", Slots(1))
        messages: list[Message] = [{"role": "user", "content": "as it was"}]
        await asked.handle().send(ModelCall(messages, {}, []))
        return messages

    assert asyncio.run(run()) == [{"role": "user", "content": "as it was"}]
