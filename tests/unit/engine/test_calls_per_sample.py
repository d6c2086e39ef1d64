"""What a sample costs in Python calls: a count, so that it can be tested on a busy machine."""

import asyncio
import itertools
import sys
import threading
from pathlib import Path
from types import FrameType

from holdfast.api import Task, run_async

CALLS_MAX = 190
"""In all threads, planning included. 168 to 175 were measured; smaller commits cost more."""


def calls_of_a_run(store: Path, samples: int) -> int:
    calls = itertools.count()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            next(calls)

    async def run() -> None:
        rows = [{"id": i, "question": f"Say hello, number {i}.", "target": "hello"} for i in range(samples)]
        task = Task("trivial", rows, "{question}", scorers=["includes"])
        model = {"name": "mock", "provider": "mock", "max_connections": 64}
        await run_async(task, [model], id=f"r{samples}", store=str(store), concurrency={"samples": 64})

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        asyncio.run(run())
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type] # documented to be allowed
    return next(calls)


def test_a_one_turn_sample_takes_few_python_calls(tmp_path: Path) -> None:
    calls_of_a_run(tmp_path, 10)  # imports and caches
    few, many = calls_of_a_run(tmp_path, 200), calls_of_a_run(tmp_path, 1200)
    assert (many - few) / 1000 <= CALLS_MAX
