"""How much recorded data a resume loads at a time."""

import asyncio
import contextlib
import random

import pytest

from holdfast.engine.schedule import LoadLimit


def test_no_more_than_the_limit_is_held_or_one_that_is_larger() -> None:
    chance = random.Random(1)
    sizes = [chance.choice((0, 1, 3, 9, 25)) for _ in range(40)]  # each release collects garbage, in a large heap
    held: list[int] = []

    async def load(limit: LoadLimit, size: int) -> None:
        async with limit.hold(size):
            held.append(size)
            assert sum(held) <= 10 or [each for each in held if each] == [25]
            await asyncio.sleep(0)
            held.remove(size)

    async def story() -> None:
        limit = LoadLimit(10)
        await asyncio.gather(*(load(limit, size) for size in sizes))
        assert await asyncio.wait_for(_holds(limit, 10), 60)

    asyncio.run(story())


async def _holds(limit: LoadLimit, size: int) -> bool:
    async with limit.hold(size):
        return True


@pytest.mark.parametrize("rounds", range(4))
def test_a_cancelled_load_gives_its_bytes_back(rounds: int) -> None:
    """Cancelled while it waits, in the moment when it is admitted, and after that."""

    async def story() -> None:
        limit = LoadLimit(10)
        ended = asyncio.Event()

        async def first() -> None:
            async with limit.hold(10):
                await ended.wait()

        async def second() -> None:
            async with limit.hold(10):
                await asyncio.Event().wait()

        holder = asyncio.ensure_future(first())
        await asyncio.sleep(0)
        waiter = asyncio.ensure_future(second())
        await asyncio.sleep(0)
        ended.set()
        for _ in range(rounds):
            await asyncio.sleep(0)
        waiter.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiter
        await holder
        assert await asyncio.wait_for(_holds(limit, 10), 60)

    asyncio.run(story())
