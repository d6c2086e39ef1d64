"""Work that is shared: few times, never out of date, and errors reach everyone."""

import asyncio

import pytest

from holdfast.view.web.shared import SharedWork


def test_many_requests_at_the_same_time_do_the_work_twice_at_most() -> None:
    begun: list[int] = []

    async def work() -> int:
        begun.append(len(begun))
        mine = begun[-1]
        await asyncio.sleep(0.01)
        return mine

    async def ask() -> list[int]:
        shared = SharedWork[int]()
        found = await asyncio.gather(*(shared.get("page", work) for _ in range(50)))
        found.append(await shared.get("page", work))
        return found

    assert asyncio.run(ask()) == [0] + [1] * 49 + [2]
    assert len(begun) == 3


def test_nobody_gets_what_was_begun_before_the_request() -> None:
    async def ask() -> None:
        shared, state = SharedWork[int](), [0]

        async def work() -> int:
            seen = state[0]
            await asyncio.sleep(0.005)
            return seen

        async def request() -> None:
            for _ in range(20):
                state[0] += 1
                wanted = state[0]
                assert await shared.get("page", work) >= wanted
                await asyncio.sleep(0.001)

        await asyncio.gather(*(request() for _ in range(8)))
        assert shared._running == shared._next == {}  # noqa: SLF001

    asyncio.run(ask())


def test_other_keys_do_not_wait() -> None:
    async def ask() -> list[str]:
        shared, end = SharedWork[str](), asyncio.Event()

        async def slow() -> str:
            await end.wait()
            return "slow"

        async def quick() -> str:
            return "quick"

        waiting = asyncio.create_task(shared.get("a", slow))
        await asyncio.sleep(0)
        found = [await shared.get("b", quick)]
        end.set()
        return [*found, await waiting]

    assert asyncio.run(ask()) == ["quick", "slow"]


def test_an_error_reaches_everyone_and_the_next_request_tries_again() -> None:
    tries: list[int] = []

    async def work() -> int:
        tries.append(1)
        await asyncio.sleep(0.005)
        if len(tries) < 3:
            raise ValueError("no")
        return 5

    async def ask() -> None:
        shared = SharedWork[int]()
        found = await asyncio.gather(*(shared.get("page", work) for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in found] == [ValueError] * 5
        assert await shared.get("page", work) == 5

    asyncio.run(ask())


def test_one_that_goes_away_does_not_cancel_the_work_of_the_others() -> None:
    async def ask() -> None:
        shared = SharedWork[int]()

        async def work() -> int:
            await asyncio.sleep(0.01)
            return 1

        tasks = [asyncio.create_task(shared.get("page", work)) for _ in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        assert await asyncio.gather(*tasks[2:]) == [1, 1]
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]

    asyncio.run(ask())
