"""A stage for agents of many turns: a model that calls tools, tools that write down what they do, and solvers that kill
their own process after every acknowledgement.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from holdfast.records.samples import Message
from holdfast.testing import Behaviour, ModelServer
from tests.e2e.commands import call, run

DYING = """
import os, signal
from pathlib import Path

HERE = Path(__file__).parent

def die_once(name):
    place = HERE / "points" / name
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        place.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""

MINE = (
    DYING
    + '''
import asyncio, itertools
import holdfast

@holdfast.tool
async def note(n: int) -> str:
    """Write a number down."""
    with open(HERE / "done.txt", "a") as file:
        file.write(f"{n}\\n")
    await asyncio.sleep(0.02)
    return f"noted {n}"

@holdfast.tool(repeatable=False)
async def pay(n: int) -> str:
    """Pay."""
    with open(HERE / "paid.txt", "a") as file:
        file.write(f"{n}\\n")
    if n == 20 and not (HERE / "died").exists():
        (HERE / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"paid {n}"

class Fragile:
    """Dies once after every acknowledgement, whatever asks."""

    def __init__(self, ctx, points):
        self._ctx, self._points = ctx, points

    def __getattr__(self, name):
        return getattr(self._ctx, name)

    def with_messages(self, messages):
        return Fragile(self._ctx.with_messages(messages), self._points)

    async def generate(self, *given, **named):
        return self._after(await self._ctx.generate(*given, **named))

    async def call(self, *given, **named):
        return self._after(await self._ctx.call(*given, **named))

    def _after(self, told):
        die_once(f"{self._ctx.sample.id}-{next(self._points)}")
        return told

async def inside(sample, ctx, solver):
    """A built-in solver that dies after every acknowledgement."""
    from holdfast.solve import resolve_solver
    return await resolve_solver(solver, "solver").solve(sample, Fragile(ctx, itertools.count()))

async def fragile(sample, ctx):
    """Dies after every acknowledgement, once."""
    messages = list(ctx.messages)
    turn = 0
    while True:
        answer = await ctx.generate(messages)
        die_once(f"{sample.id}-asked-{turn}")
        messages.append(answer.message)
        if not answer.tool_calls:
            return answer
        for one in answer.tool_calls:
            said = await ctx.call(note, {"n": turn})
            die_once(f"{sample.id}-called-{turn}")
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": said})
        turn += 1
'''
)


def agent(turns: int, tools: int = 1, name: str = "note") -> Any:
    """A model that calls tools in each turn but the last."""

    def reply(messages: list[Message]) -> Message:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn + 1 >= turns:
            return {"role": "assistant", "content": f"done after {turn + 1}"}
        calls = [
            {
                "id": f"c{turn}-{i}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps({"n": turn * 10 + i})},
            }
            for i in range(tools)
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    return reply


@contextmanager
def serving(reply: Any, latency: float = 0.0, **more: Any) -> Iterator[ModelServer]:
    """In a thread of this process, because it answers with a function."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = ModelServer(Behaviour(reply=reply, latency_seconds=latency, **more))
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def write(folder: Path, base_url: str, solver: Any, samples: int = 1, code: str = MINE, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(code)
    rows = [{"id": f"s{i}", "q": f"go {i}"} for i in range(samples)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec: dict[str, Any] = {
        "models": [{"name": "m", "provider": "openai", "model": "m", "base_url": base_url}],
        "tasks": [{"name": "t", "dataset": {"path": "rows.jsonl"}, "prompt": "{q}", "solver": solver}],
    }
    spec |= more
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def transcript(folder: Path, key: str = "t/m/s0/1") -> list[Any]:
    """What was asked and answered, step by step, without times and numbers."""
    story = call("show", "r", key, "--json", "--store", folder / "runs", cwd=folder).json()
    steps = story["attempts"][-1]["steps"]
    return [(step["messages"], step["answer"], step["tool_calls"]) for step in steps] + [story["answer"]["text"]]


def killed_and_whole(folder: Path, make: Callable[[Path], Path], env: Mapping[str, str] | None = None) -> list[int]:
    """One run that dies after every acknowledgement and is started again each time, in `killed`, and one that is never
    killed, in `whole`: how often each was killed. `make` writes a spec into a folder.
    """
    deaths = []
    for name in ("killed", "whole"):
        place = folder / name
        spec = make(place)
        if name == "whole":
            (place / "points").mkdir()
            for point in (folder / "killed" / "points").iterdir():
                (place / "points" / point.name).touch()
        count = 0
        while (done := run("run", spec, "--id", "r", "--store", place / "runs", cwd=place, env=env)).code == -9:
            count += 1
            assert count < 500
        assert done.code == 0, done.said
        deaths.append(count)
    return deaths
