"""Slots: never more than the limit, in order, and none is lost to a cancellation."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.pacing.queue import Slots


async def take(places: Slots) -> None:
    if not places.take():
        await places.wait()


def test_who_waits_longest_is_next_and_nobody_overtakes() -> None:
    async def run() -> list[int]:
        places, order = Slots(1), list[int]()
        await take(places)

        async def want(number: int) -> None:
            await take(places)
            order.append(number)
            places.give_back()

        wanting = [asyncio.create_task(want(number)) for number in range(3)]
        await asyncio.sleep(0)
        places.give_back()
        assert not places.take()  # it is the first one's already
        await asyncio.gather(*wanting)
        return order

    assert asyncio.run(run()) == [0, 1, 2]


def test_a_place_given_in_the_moment_of_a_cancellation_is_passed_on() -> None:
    async def run() -> None:
        places = Slots(1)
        await take(places)
        first, second = (asyncio.create_task(take(places)) for _ in range(2))
        await asyncio.sleep(0)
        places.give_back()
        first.cancel()
        await asyncio.wait_for(second, 60)
        assert first.cancelled()

    asyncio.run(run())


@given(st.integers(1, 4), st.lists(st.sampled_from(["want", "cancel", "give", "turn"]), max_size=60))
def test_whatever_happens_the_taken_and_the_free_add_up(limit: int, events: list[str]) -> None:
    async def run() -> None:
        places, wanting, held = Slots(limit), list[asyncio.Task[None]](), 0
        for event in events:
            if event == "want":
                wanting.append(asyncio.create_task(take(places)))
            elif event == "cancel" and wanting:
                wanting[len(wanting) // 2].cancel()
            elif event == "give" and held:
                held -= 1
                places.give_back()
            elif event == "turn":
                for _ in range(3):
                    await asyncio.sleep(0)
            done = [task for task in wanting if task.done()]
            held += sum(not task.cancelled() for task in done)
            wanting = [task for task in wanting if not task.done()]
            assert held <= limit
        for task in wanting:
            task.cancel()
        ended = await asyncio.gather(*wanting, return_exceptions=True)
        for _ in range(held + sum(each is None for each in ended)):
            places.give_back()
        assert [places.take() for _ in range(limit + 1)] == [True] * limit + [False]

    asyncio.run(run())
