"""The times of a request on its way through a line and over the wire, against a real server."""

import asyncio
from typing import Any

from holdfast.engine.client import ModelClient
from holdfast.models.call import ModelCall, current_call
from holdfast.models.pacing.pace import Pace, PaceLimits
from holdfast.models.pacing.queue import RequestQueue, Slots
from holdfast.records.facts import Timing
from holdfast.spec import Model
from holdfast.testing import Behaviour, Fault, ModelServer

LATENCY_SECONDS = 0.02
ROUNDED = 0.0001


def line(server: ModelServer, **fields: Any) -> ModelClient:
    return ModelClient(
        Model(name="m", provider="openai", model="m", base_url=server.base_url, **fields), "models[0]", Slots(1000)
    )


async def ask(asked: ModelClient, number: int) -> Timing:
    call = ModelCall([{"role": "user", "content": f"{number} + 1"}], {}, [])
    current_call.set(call)
    await asked.handle().send(call)
    return call.timing()


def ask_many(count: int, behaviour: Behaviour, *, at_once: bool, **fields: Any) -> list[Timing]:
    async def run() -> list[Timing]:
        async with ModelServer(behaviour) as server:
            asked = line(server, **fields)
            try:
                if at_once:
                    return await asyncio.gather(*(ask(asked, number) for number in range(count)))
                return [await ask(asked, number) for number in range(count)]
            finally:
                await asked.close()

    return asyncio.run(run())


def test_the_first_byte_comes_no_sooner_than_the_server_lets_it_and_one_connection_is_made() -> None:
    first, second = ask_many(2, Behaviour(latency_seconds=LATENCY_SECONDS), at_once=False)
    assert min(first.first, second.first) >= LATENCY_SECONDS - ROUNDED
    assert first.connect > 0
    assert second.connect == 0
    assert first.queue == first.lost == second.queue == second.lost == 0


def test_who_waits_for_a_turn_has_waited_for_those_before_and_for_no_rate_limit() -> None:
    behaviour = Behaviour(latency_seconds=LATENCY_SECONDS)
    timings = ask_many(3, behaviour, at_once=True, max_connections=1)
    queued = sorted(each.queue for each in timings)
    assert queued[0] == 0
    assert queued[1] >= LATENCY_SECONDS - ROUNDED
    assert queued[2] >= 2 * (LATENCY_SECONDS - ROUNDED)
    assert [each.limited for each in timings] == [0, 0, 0]


def test_a_try_that_failed_is_lost_time_and_the_pause_that_the_server_asked_for_a_rate_limit() -> None:
    faults = [Fault("429-retry-after", first=1, retry_after="0.05")]
    (found,) = ask_many(1, Behaviour(latency_seconds=LATENCY_SECONDS, faults=faults), at_once=False)
    assert found.lost > 0
    assert found.queue >= found.limited > 0, "the pause had begun a moment before it was held back"
    assert found.first >= LATENCY_SECONDS - ROUNDED


def test_requests_a_minute_hold_back_all_who_wait_and_each_of_them_counts_it() -> None:
    """Six go at once, a tenth of a second's worth; those behind wait for the rate alone."""
    timings = ask_many(12, Behaviour(), at_once=True, requests_per_minute=3600)
    held = [each for each in timings if each.queue]
    assert held
    assert all(each.queue >= each.limited > 0 for each in held)


def test_a_pause_that_ended_while_nobody_looked_counts_no_longer_than_it_was() -> None:
    now = 0.0
    pace = Pace(PaceLimits(requests_per_minute=6))
    turns = RequestQueue(pace, lambda: now)
    assert turns.take(0.0)
    before = turns.limited_seconds(0.0)
    assert turns.limited_seconds(4.0) - before == 4.0
    assert round(turns.limited_seconds(100.0) - before, 6) == 9.9


def test_whoever_waits_behind_others_for_a_rate_is_held_by_it_all_the_while() -> None:
    """One every ten seconds: the third in the queue waits for three of these pauses, not only for the first."""
    now = 0.0

    async def run() -> float:
        nonlocal now
        turns = RequestQueue(Pace(PaceLimits(requests_per_minute=6)), lambda: now)
        assert turns.take(0.0)
        before = turns.limited_seconds(now)
        waiting = [asyncio.ensure_future(turns.wait(0.0, first=False)) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
            now += 10.0
            turns.hand_out()
        await asyncio.gather(*waiting)
        turns.close()
        return turns.limited_seconds(now) - before

    assert round(asyncio.run(run()), 6) == 29.7  # a timer may come a tenth of a second late
