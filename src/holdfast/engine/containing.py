"""Keeping what user code does inside its own sample: tasks that a solver or scorer makes cannot end the run.

asyncio lets `SystemExit` and `KeyboardInterrupt` of any task through to whoever runs the loop. In a task that was made
inside a sample such an exit becomes an ordinary error, which the sample's own code sees where it waits for that task.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import Coroutine, Generator, Iterator
from typing import Any

from holdfast.errors import HoldfastError, told

inside: "contextvars.ContextVar[bool]" = contextvars.ContextVar("holdfast_inside", default=False)
"""Whether the code that runs belongs to a sample; tasks inherit it."""


class TaskExitError(HoldfastError):
    """A task that user code had made wanted to end the process."""


class _Containing:
    """A task factory; one for all the runs of a loop, in front of the factory that the loop had before."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.runs = 0

    def __call__(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: "Coroutine[Any, Any, Any] | Generator[Any, None, Any]",
        **given: Any,
    ) -> "asyncio.Future[Any]":
        work = _Contained(coro) if inside.get() else coro
        if self.before is not None:
            return self.before(loop, work, **given)  # type: ignore[no-any-return] # the user's own factory
        return asyncio.Task(work, loop=loop, **given)


@contextlib.contextmanager
def containing() -> Iterator[None]:
    """While a run works in this loop."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    factory = before if isinstance(before, _Containing) else _Containing(before)
    loop.set_task_factory(factory)
    factory.runs += 1
    try:
        yield
    finally:
        factory.runs -= 1
        if not factory.runs and loop.get_task_factory() is factory:
            loop.set_task_factory(factory.before)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine as it is, but for its exits. Not a second coroutine around it: one that is cancelled before it has
    begun would leave the inner one behind, never awaited.
    """

    def __init__(self, work: Any) -> None:
        self._work = work

    def send(self, value: Any, /) -> Any:
        try:
            return self._work.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _as_error(error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._work.throw(*error)
        except (SystemExit, KeyboardInterrupt) as raised:
            raise _as_error(raised) from raised

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()  # type: ignore[no-any-return] # the user's own coroutine

    def __getattr__(self, name: str) -> Any:
        """Where it waits, and what it is called, for whoever looks at the task."""
        return getattr(self._work, name)


def _as_error(error: BaseException) -> TaskExitError:
    return TaskExitError(f"{told(error)}, in a task that the solver or scorer had made")
