"""Tasks that are made inside a sample: their exits are errors, and nothing else about them is changed."""

import asyncio
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.engine.failures import TaskExitError, contain_exits, inside
from holdfast.engine.in_flight import where


def run(story: Callable[[], Awaitable[Any]]) -> Any:
    async def process() -> Any:
        with contain_exits():
            inside.set(True)
            return await story()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return asyncio.run(process())


async def leave() -> None:
    await asyncio.sleep(0)
    sys.exit(3)


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def test_an_exit_is_an_error_of_whoever_waits_for_the_task() -> None:
    async def story() -> None:
        with pytest.raises(TaskExitError, match="SystemExit: 3"):
            await asyncio.gather(leave())
        async with asyncio.timeout(5):
            with pytest.raises(ExceptionGroup) as raised:
                async with asyncio.TaskGroup() as group:
                    group.create_task(leave())
        assert raised.group_contains(TaskExitError)

    run(story)


def test_a_task_that_is_cancelled_before_it_begins_leaves_nothing_behind() -> None:
    async def story() -> None:
        task = asyncio.ensure_future(answer())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(story)


def test_results_cancellations_and_names_are_as_they_would_be() -> None:
    async def story() -> None:
        task = asyncio.create_task(answer(), name="mine")
        assert (task.get_name(), await task) == ("mine", 42)
        sleeping = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        assert "sleep" in where(sleeping)[-1]
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping

    run(story)


def test_the_factory_of_the_user_stays_and_ours_goes_with_the_last_run() -> None:
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **given: Any) -> "asyncio.Task[Any]":
        made.append("mine")
        return asyncio.Task(coro, loop=loop, **given)

    async def process() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        with contain_exits():
            with contain_exits():
                await asyncio.create_task(answer())
            assert made == ["mine"]
            assert loop.get_task_factory() is not factory
        assert loop.get_task_factory() is factory

    asyncio.run(process())
