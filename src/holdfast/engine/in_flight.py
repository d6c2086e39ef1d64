"""Samples in flight: what each is doing and since when, for the watchdog. Costs a few assignments a sample."""

import asyncio
import traceback
from typing import Any

from holdfast.journal import InFlight
from holdfast.records import Cell
from holdfast.solve import Steps

_FRAMES_MAX = 6
_OVERDUE_SECONDS = 5.0
_WAITING = {"saving", "waiting to be scored"}


class InFlightSample:
    """One sample that is being answered or scored."""

    __slots__ = ("cell", "doing", "key", "left", "limit", "since", "stalled", "steps", "task")

    def __init__(self, key: str, task: "asyncio.Task[object]", since: float, limit: float | None) -> None:
        self.key = key
        self.cell: Cell | None = None
        self.task = task
        self.since = since
        self.limit = limit
        self.doing = "solving"
        self.steps: Steps | None = None
        self.stalled = False
        """The watchdog cancelled it because nothing moved."""
        self.left = False
        """Its cell was stopped: it stays unfinished."""

    def is_waiting(self) -> bool:
        """Whether it waits for something that may take long without being a stall: a model, a tool, the disk."""
        return self.doing in _WAITING or (self.steps is not None and self.steps.calls > 0)

    def moved_at(self) -> float:
        return max(self.since, self.steps.moved if self.steps is not None else 0.0)

    def is_overdue(self, now: float) -> bool:
        """Whether it is past its time limit and still runs. Waiting for rate limits does not count."""
        if self.limit is None or now - self.since <= self.limit + _OVERDUE_SECONDS:
            return False
        held = self.steps.watch.held_seconds() if self.steps is not None else 0.0
        return now - self.since - held > self.limit + _OVERDUE_SECONDS

    def describe(self, now: float, wall: float, *, stack: bool = False) -> InFlight:
        doing = "waiting for an answer" if self.is_waiting() and self.doing == "solving" else self.doing
        since = wall - (now - self.moved_at())
        return InFlight(self.key, doing, round(since, 3), self.is_overdue(now), where(self.task) if stack else [])


def where(task: "asyncio.Task[object]") -> list[str]:
    """Return the frames where a task waits: its own, and those of the coroutines that it awaits."""
    frames: list[traceback.FrameSummary] = []
    waiting: Any = task.get_coro()
    while waiting is not None and len(frames) < 100:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            break
        frames.append(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames[-_FRAMES_MAX:]]
