"""What a sample in flight is doing, since when, and where its code waits."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from holdfast.engine.in_flight import InFlightSample, where
from holdfast.solve import Scope, Steps
from tests.unit.solve.stage import MemoryJournal


async def inner() -> None:
    await asyncio.Event().wait()


async def outer() -> None:
    await inner()


class OwnAwaitable:
    def __await__(self) -> Generator[Any, None, None]:
        yield from asyncio.Event().wait().__await__()


async def waits_for_own() -> None:
    await OwnAwaitable()


async def waits_for_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(inner())


def looked(code: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
    async def look() -> list[str]:
        task: asyncio.Task[object] = asyncio.ensure_future(code())
        for _ in range(3):
            await asyncio.sleep(0)
        found = where(task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found

    return asyncio.run(look())


def test_where_a_task_waits_is_told_from_the_outside_in() -> None:
    found = looked(outer)
    names = [line.rpartition(" in ")[2] for line in found]
    assert names == ["outer", "inner", "wait"]
    assert "test_in_flight.py" in found[0]


def test_awaitables_of_other_kinds_are_no_trouble() -> None:
    assert "waits_for_own" in looked(waits_for_own)[0]
    assert any("waits_for_a_group" in line for line in looked(waits_for_a_group))


def test_a_task_that_has_ended_is_nowhere() -> None:
    async def look() -> list[str]:
        task: asyncio.Task[object] = asyncio.ensure_future(asyncio.sleep(0))
        await task
        return where(task)

    assert asyncio.run(look()) == []


def flight(limit: float | None = None) -> InFlightSample:
    task = asyncio.current_task()
    assert task is not None
    return InFlightSample("t/m/1/1", task, 100.0, limit)


def test_a_sample_is_overdue_some_time_after_its_limit() -> None:
    async def look() -> list[bool]:
        found = flight(limit=10.0)
        return [found.describe(now, 0.0).overdue for now in (100.0, 110.5, 114.9, 115.1)]

    assert asyncio.run(look()) == [False, False, False, True]


def test_a_sample_without_a_limit_is_never_overdue() -> None:
    async def look() -> bool:
        return flight().describe(1e9, 0.0).overdue

    assert asyncio.run(look()) is False


def test_a_sample_waits_while_it_saves_and_while_it_is_asking_and_else_not() -> None:
    async def look() -> list[bool]:
        found = flight()
        seen = [found.is_waiting()]
        found.steps = Steps(Scope(0, "t/m/1/1", "solve/1"), MemoryJournal(1))
        seen.append(found.is_waiting())
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asking = asyncio.ensure_future(found.steps.take("q", lambda: answer))
        await asyncio.sleep(0)
        seen.append(found.is_waiting())
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        seen.append(found.is_waiting())
        found.doing = "saving"
        return [*seen, found.is_waiting()]

    assert asyncio.run(look()) == [False, False, True, False, True]
