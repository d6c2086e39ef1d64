"""The event loop of a run: uvloop, if it is installed (the extra `fast`), else asyncio's own.

Over HTTP a run on uvloop takes about a fifth less CPU. Nothing else depends on the loop.
"""

import asyncio
import importlib
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        fast = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = fast.new_event_loop()
    return loop


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in such a loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)
