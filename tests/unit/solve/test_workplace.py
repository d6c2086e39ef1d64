"""What the tools of one attempt share: opened once, by a task of its own, and closed by it when the attempt ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.errors import HoldfastError
from holdfast.solve import Workplace
from tests.unit.solve.stage import SAMPLE, run


class Door:
    """Something to open; writes down who opened and closed it."""

    def __init__(self, fail_first: bool = False) -> None:
        self.story: list[str] = []
        self.tasks: set[object] = set()
        self._fail = fail_first

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        if self._fail:
            self._fail = False
            raise OSError("stuck")
        number = self.story.count("opened") + 1
        self.story.append("opened")
        self.tasks.add(asyncio.current_task())
        yield number
        self.story.append("closed")
        self.tasks.add(asyncio.current_task())


def test_it_is_opened_once_for_all_and_closed_by_who_opened_it() -> None:
    async def process() -> None:
        door, place = Door(), Workplace(SAMPLE)
        assert await asyncio.gather(*(place.keep("door", door.open) for _ in range(3))) == [1, 1, 1]
        await place.close()
        assert door.story == ["opened", "closed"]
        assert len(door.tasks) == 1
        assert asyncio.current_task() not in door.tasks

    run(process())


def test_what_could_not_be_opened_is_tried_again() -> None:
    async def process() -> None:
        door, place = Door(fail_first=True), Workplace(SAMPLE)
        with pytest.raises(OSError, match="stuck"):
            await place.keep("door", door.open)
        assert await place.keep("door", door.open) == 1
        await place.close()
        assert door.story == ["opened", "closed"]

    run(process())


def test_all_who_try_again_share_what_is_opened_then() -> None:
    async def process() -> None:
        door, place = Door(fail_first=True), Workplace(SAMPLE)

        async def try_twice() -> int:
            with pytest.raises(OSError, match="stuck"):
                await place.keep("door", door.open)
            return await place.keep("door", door.open)

        assert list(await asyncio.gather(try_twice(), try_twice(), try_twice())) == [1, 1, 1]
        await place.close()
        assert door.story == ["opened", "closed"]

    run(process())


def test_nothing_is_opened_for_an_attempt_that_has_ended() -> None:
    async def process() -> None:
        door, place = Door(), Workplace(SAMPLE)
        copied = place.inside()
        await place.close()
        for each in (place, copied):
            with pytest.raises(HoldfastError, match="the attempt has ended"):
                await each.keep("door", door.open)
        assert door.story == []

    run(process())


def test_what_is_forgotten_is_closed_and_the_next_call_opens_another() -> None:
    async def process() -> None:
        door, place = Door(), Workplace(SAMPLE)
        assert await place.keep("door", door.open) == 1
        place.forget("door")
        place.forget("nothing")
        assert await place.keep("door", door.open) == 2
        await place.close()
        assert sorted(door.story) == ["closed", "closed", "opened", "opened"]

    run(process())
