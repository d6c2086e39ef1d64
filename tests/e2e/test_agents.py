"""Agents of many turns, killed in the middle of a sample: they go on where they were, and nothing is paid for twice."""

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.records.exchange import Message
from holdfast.testing import Behaviour, ModelServer
from tests.e2e.commands import call, exported, finish, run, shown, start

MINE = '''
import asyncio, os, signal
from pathlib import Path
import holdfast

HERE = Path(__file__).parent

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

def die_once(name):
    place = HERE / "points" / name
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        place.touch()
        os.kill(os.getpid(), signal.SIGKILL)

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
def serving(reply: Any, latency: float = 0.0) -> Iterator[ModelServer]:
    """In a thread of this process, because it answers with a function."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = ModelServer(Behaviour(reply=reply, latency_seconds=latency))
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def write(folder: Path, base_url: str, solver: Any, samples: int = 1, code: str = MINE, **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(code)
    rows = [{"id": f"s{i}", "q": f"go {i}"} for i in range(samples)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "models": [{"name": "m", "provider": "openai", "model": "m", "base_url": base_url}],
        "tasks": [{"name": "t", "dataset": {"path": "rows.jsonl"}, "prompt": "{q}", "solver": solver}],
        **fields,
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def transcript(folder: Path, key: str = "t/m/s0/1") -> list[Any]:
    """What was asked and answered, step by step, without times and numbers."""
    story = call("show", "r", key, "--json", "--store", folder / "runs", cwd=folder).json()
    steps = story["attempts"][-1]["steps"]
    return [(step["messages"], step["answer"], step["tool_calls"]) for step in steps] + [story["answer"]["text"]]


@pytest.mark.parametrize("turns", [6, pytest.param(50, marks=pytest.mark.long)])
def test_killed_after_every_acknowledgement_it_asks_exactly_as_often_as_it_has_turns(
    tmp_path: Path, turns: int
) -> None:
    with serving(agent(turns)) as server:
        spec = write(tmp_path / "killed", server.base_url, "mine:fragile")
        for _ in range(3 * turns):
            done = run("run", spec, "--id", "r", "--store", tmp_path / "killed" / "runs", cwd=tmp_path / "killed")
            if done.code != -9:
                break
        assert done.code == 0, done.err
        assert server.stats().requests == turns
        (tmp_path / "whole" / "points").mkdir(parents=True)
        for point in (tmp_path / "killed" / "points").iterdir():
            (tmp_path / "whole" / "points" / point.name).touch()
        whole = write(tmp_path / "whole", server.base_url, "mine:fragile")
        assert run("run", whole, "--id", "r", "--store", tmp_path / "whole" / "runs", cwd=tmp_path / "whole").code == 0
    assert len(list((tmp_path / "killed" / "points").iterdir())) == 2 * turns - 1
    assert (tmp_path / "killed" / "done.txt").read_text().split() == [str(turn) for turn in range(turns - 1)]
    assert transcript(tmp_path / "killed") == transcript(tmp_path / "whole")
    said = call("show", "r", "t/m/s0/1", "--store", tmp_path / "killed" / "runs", cwd=tmp_path).out
    assert '[call] note({"n":0})' in said
    assert "[result] noted 0" in said


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))], ids="seed {}".format
)
def test_react_with_parallel_tools_killed_at_random_asks_again_only_what_was_in_flight(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    turns, samples, in_flight = 12, 3, 0
    with serving(agent(turns, tools=3), latency=0.03) as server:
        solver = {"react": {"tools": ["mine:note"], "turns": 40}}
        spec = write(tmp_path, server.base_url, solver, samples)
        command = ("run", spec, "--id", "r", "--store", tmp_path / "runs")
        for _ in range(6):
            with start(*command, cwd=tmp_path) as process:
                before = server.stats().requests
                end = time.monotonic() + chance.uniform(0.1, 0.5)
                while process.poll() is None and (server.stats().requests == before or time.monotonic() < end):
                    time.sleep(0.005)
                if process.poll() is None:
                    in_flight += samples
                    process.kill()
        done = run(*command, cwd=tmp_path)
        assert done.code == 0, done.err
        assert turns * samples <= server.stats().requests <= turns * samples + in_flight
    assert [line["output"] for line in exported("r", tmp_path / "runs")] == [f"done after {turns}"] * samples
    noted = Counter((tmp_path / "done.txt").read_text().split())
    assert len(noted) == (turns - 1) * 3
    assert sum(noted.values()) <= (turns - 1) * 3 * samples + 3 * in_flight


GAMBLER = """
import random
from points import die_once

async def gamble(sample, ctx):
    messages = list(ctx.messages)
    for turn in range(5):
        answer = await ctx.generate(messages)
        die_once(f"turn-{turn}")
        messages += [answer.message, {"role": "user", "content": f"{random.choice('ab')} {turn}"}]
    return "done"
"""


@pytest.mark.parametrize("time", [1, *(pytest.param(time, marks=pytest.mark.long) for time in range(2, 8))])
def test_a_solver_that_asks_for_something_else_each_time_ends_and_says_what_was_bought_in_vain(
    tmp_path: Path, time: int
) -> None:
    turns = 5
    with serving(lambda messages: f"turn {len(messages)}") as server:
        spec = write(tmp_path, server.base_url, "mine:gamble", code=GAMBLER)
        (tmp_path / "points.py").write_text(MINE)
        command = ("run", spec, "--id", "r", "--store", tmp_path / "runs")
        codes: list[int] = []
        while len(codes) <= turns and (not codes or codes[-1] == -9):
            codes.append(run(*command, cwd=tmp_path).code)
        requests = server.stats().requests
    assert codes == [-9] * turns + [0]
    story = call("show", "r", "t/m/s0/1", "--json", "--store", tmp_path / "runs", cwd=tmp_path).json()
    spent = {"orphaned": 0, "live": 0, **story["attempts"][-1]["spent"]}
    assert spent["live"] + spent["replayed"] == turns
    assert spent["live"] + spent["replayed"] + spent["orphaned"] == requests
    steps = shown("r", tmp_path / "runs")["steps"]
    assert (steps["live"], steps["orphaned"]) == (requests, spent["orphaned"])


def test_a_call_that_must_not_be_repeated_is_not_and_the_sample_says_why(tmp_path: Path) -> None:
    with serving(agent(5, name="pay")) as server:
        solver = {"react": {"tools": ["mine:pay"]}}
        command = ("run", write(tmp_path, server.base_url, solver), "--id", "r", "--store", tmp_path / "runs")
        assert run(*command, cwd=tmp_path).code == -9
        done = run(*command, cwd=tmp_path)
    assert done.code == 1, done.err
    (line,) = exported("r", tmp_path / "runs")
    assert line["error"]["kind"] == "unrepeatable"
    assert "pay must not be repeated" in line["error"]["message"]
    assert (tmp_path / "paid.txt").read_text().split() == ["0", "10", "20"]


def test_the_journal_grows_with_what_is_said_not_with_its_square(tmp_path: Path) -> None:
    sizes = {}
    for turns in (10, 100):
        folder = tmp_path / str(turns)
        with serving(agent(turns)) as server:
            spec = write(folder, server.base_url, {"react": {"tools": ["mine:note"], "turns": 200}})
            assert finish(start("run", spec, "--id", "r", "--store", folder / "runs", cwd=folder)).code == 0
        journal = next((folder / "runs").rglob("journal"))
        sizes[turns] = sum(len(line) for line in read_journal(journal))
    assert sizes[100] < 11 * sizes[10]


def read_journal(journal: Path) -> Iterator[bytes]:
    from holdfast.journal import Entry, Reader

    for each in Reader(str(journal)).read():
        if isinstance(each, Entry):
            yield bytes(each.line.d)
