"""Samples in flight: what each is doing and since when, for whoever watches. Costs a few assignments a sample."""

import asyncio
import traceback
from typing import Any

from holdfast.journal.ownership.lease import InFlight
from holdfast.records.facts import Cell
from holdfast.solve import Steps

_FRAMES_MAX = 6
_OVERDUE_SECONDS = 5.0
_WAITING = {"saving", "waiting to be scored"}


class Flight:
    """One sample on its way."""

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
        """The watch has cancelled it because nothing moved."""
        self.left = False
        """Its cell has been stopped: it stays unfinished."""

    def waits(self) -> bool:
        """For what may take as long as it takes: a model's answer, or the disk."""
        return self.doing in _WAITING or (self.steps is not None and self.steps.calls > 0)

    def moved(self) -> float:
        return max(self.since, self.steps.moved if self.steps is not None else 0.0)

    def is_overdue(self, now: float) -> bool:
        """Past its time limit, and still here."""
        if self.limit is None or now - self.since <= self.limit + _OVERDUE_SECONDS:
            return False
        held = self.steps.watch.held_seconds() if self.steps is not None else 0.0
        return now - self.since - held > self.limit + _OVERDUE_SECONDS

    def describe(self, now: float, wall: float, *, stack: bool = False) -> InFlight:
        doing = "waiting for an answer" if self.waits() and self.doing == "solving" else self.doing
        since = wall - (now - self.moved())
        return InFlight(self.key, doing, round(since, 3), self.is_overdue(now), where(self.task) if stack else [])


def where(task: "asyncio.Task[object]") -> list[str]:
    """Where a task's code waits: its innermost frames, and those of the coroutines that it awaits."""
    frames: list[traceback.FrameSummary] = []
    waiting: Any = task.get_coro()
    while waiting is not None and len(frames) < 100:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            break
        frames.append(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames[-_FRAMES_MAX:]]
