"""What a sample costs in Python calls, and how many functions lead from the scheduler to a provider. These are counts:
both can be tested on a busy machine.
"""

import asyncio
import itertools
import sys
import threading
import traceback
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.api import Task, run_async
from holdfast.models import Request
from holdfast.models.providers.mock import MockProvider
from holdfast.records import Answer

CALLS_MAX = 190
"""In all threads, planning included. 168 to 175 were measured; smaller commits cost more."""


async def hello(store: Path, samples: int) -> None:
    rows = [{"id": i, "question": f"Say hello, number {i}.", "target": "hello"} for i in range(samples)]
    task = Task("trivial", rows, "{question}", scorers=["includes"])
    model = {"name": "mock", "provider": "mock", "max_connections": 64}
    await run_async(task, [model], id=f"r{samples}", store=str(store), concurrency={"samples": 64})


def calls_of_a_run(store: Path, samples: int) -> int:
    calls = itertools.count()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            next(calls)

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        asyncio.run(hello(store, samples))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return next(calls)


def test_a_one_turn_sample_takes_few_python_calls(tmp_path: Path) -> None:
    calls_of_a_run(tmp_path, 10)  # imports and caches
    few, many = calls_of_a_run(tmp_path, 200), calls_of_a_run(tmp_path, 1200)
    assert (many - few) / 1000 <= CALLS_MAX


def test_ten_functions_lead_from_the_scheduler_to_the_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    generate = MockProvider.generate

    def look(provider: MockProvider, request: Request) -> Coroutine[Any, Any, Answer]:
        callers = traceback.walk_stack(sys._getframe(1))  # noqa: SLF001 - the documented way is slower and longer
        seen.append([frame.f_code.co_qualname for frame, _ in callers])
        return generate(provider, request)

    monkeypatch.setattr(MockProvider, "generate", look)
    asyncio.run(hello(tmp_path, 1))
    callers = seen[0][: seen[0].index("Engine._work") + 1]
    assert callers[0] == "generate_with_retries"
    assert 1 + len(callers) <= 10, callers
