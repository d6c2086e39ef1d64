"""Agents of many turns, killed in a sample: they continue where they were, and nothing is paid for twice."""

import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.records.samples import Message
from tests.e2e.agents import MINE, agent, killed_and_whole, serving, transcript, write
from tests.e2e.commands import call, exported, finish, run, shown, start, wait_until

STALL_SECONDS = 1.0


@pytest.mark.parametrize("turns", [3, pytest.param(50, marks=pytest.mark.long)])
def test_killed_after_every_acknowledgement_it_sends_exactly_one_request_per_turn(tmp_path: Path, turns: int) -> None:
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
    "seed", [pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8)], ids="seed {}".format
)
def test_react_with_parallel_tools_killed_at_random_repeats_only_what_was_in_flight(tmp_path: Path, seed: int) -> None:
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
def test_a_solver_that_sends_another_request_each_time_ends_and_reports_the_wasted_cost(
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


def talker(messages: list[Message]) -> Message:
    """Answers with the length of the conversation that it sees."""
    return {"role": "assistant", "content": f"message {len(messages)}"}


@pytest.mark.parametrize("turns", [2, pytest.param(50, marks=pytest.mark.long)])
def test_a_simulated_user_killed_after_every_acknowledgement_is_asked_exactly_as_often(
    tmp_path: Path, turns: int
) -> None:
    counts: list[tuple[int, int]] = []
    with serving(talker) as model, serving(talker) as user:
        roles = {"user": {"name": "user", "provider": "openai", "model": "user", "base_url": user.base_url}}
        solver = {"mine:inside": {"solver": {"conversation": {"turns": turns}}}}

        def make(folder: Path) -> Path:
            counts.append((model.stats().requests, user.stats().requests))
            return write(folder, model.base_url, solver, roles=roles)

        deaths = killed_and_whole(tmp_path, make)
        counts.append((model.stats().requests, user.stats().requests))
    assert deaths == [2 * turns - 1, 0]
    assert counts == [(0, 0), (turns, turns - 1), (2 * turns, 2 * (turns - 1))]
    assert transcript(tmp_path / "killed") == transcript(tmp_path / "whole")
    assert transcript(tmp_path / "killed")[-1] == f"message {2 * turns - 1}"


@pytest.mark.parametrize("turns", [2, pytest.param(20, marks=pytest.mark.long)])
def test_parallel_tools_killed_after_every_acknowledgement_cost_no_request(tmp_path: Path, turns: int) -> None:
    solver = {"mine:inside": {"solver": {"react": {"tools": ["mine:note"], "turns": 40}}}}
    with serving(agent(turns, tools=3)) as server:
        deaths = killed_and_whole(tmp_path, lambda folder: write(folder, server.base_url, solver))
        assert server.stats().requests == 2 * turns
    assert deaths == [turns + 3 * (turns - 1), 0]
    assert transcript(tmp_path / "killed") == transcript(tmp_path / "whole")
    done = Counter((tmp_path / "killed" / "done.txt").read_text().split())
    assert set(done) == set((tmp_path / "whole" / "done.txt").read_text().split())
    assert max(done.values()) <= 3  # of three at once, those in flight when the others' acknowledgement killed it


@pytest.mark.parametrize(
    "bound",
    [
        {"turns": 2},
        pytest.param({"seconds": 0.5}, marks=pytest.mark.long),
        pytest.param({"tokens": 60}, marks=pytest.mark.long),
        pytest.param({"cost_usd": 60.0}, marks=pytest.mark.long),
    ],
    ids=lambda bound: next(iter(bound)),
)
def test_a_bound_counts_what_processes_used_that_are_dead(tmp_path: Path, bound: dict[str, float]) -> None:
    """A process is killed after each step: none of them alone comes near to the bound."""
    solver = {"mine:inside": {"solver": {"react": {"tools": ["mine:note"], "turns": 12, **bound}}}}
    price = {"input": 1e6, "output": 1e6}
    with serving(agent(12), latency=0.2) as server:
        models = [
            {"name": "m", "provider": "openai", "model": "m", "base_url": server.base_url, "price": price},
        ]
        killed_and_whole(tmp_path, lambda folder: write(folder, server.base_url, solver, models=models))
    (name, limit) = next(iter(bound.items()))
    for place in ("killed", "whole"):
        story = call("show", "r", "t/m/s0/1", "--json", "--store", tmp_path / place / "runs", cwd=tmp_path).json()
        steps = story["attempts"][-1]["steps"]
        turns = [index for index, step in enumerate(steps) if step["kind"] == "generate"]
        assert "no turns left" in str(steps[-1]["messages"][-1])
        used = [used_by(steps[:index], name) for index in turns]
        assert used[-1] >= limit > used[-2] > 0


def used_by(steps: list[dict[str, Any]], bound: str) -> float:
    if bound == "turns":
        return float(sum(step["kind"] == "generate" for step in steps))
    if bound == "seconds":
        return float(sum(step["seconds"] for step in steps))
    usage = [step["usage"] for step in steps if step["usage"]]
    return float(sum(each.get("input_tokens", 0) + each.get("output_tokens", 0) for each in usage))


PAYING = """
import asyncio, holdfast
from pathlib import Path

@holdfast.tool(repeatable=False)
async def pay(n: int) -> str:
    \"\"\"Pay.\"\"\"
    with open(Path(__file__).parent / "paid.txt", "a") as file:
        file.write(f"{n}\\n")
    await asyncio.sleep(1)
    return f"paid {n}"
"""


def test_who_stops_a_run_lets_a_call_end_that_must_not_be_made_twice(tmp_path: Path) -> None:
    with serving(agent(2, name="pay")) as server:
        spec = write(tmp_path, server.base_url, {"react": {"tools": ["mine:pay"]}}, code=PAYING, grace_seconds=30)
        command = ("run", spec, "--id", "r", "--store", tmp_path / "runs")
        with start(*command, cwd=tmp_path) as process:
            wait_until(lambda: (tmp_path / "paid.txt").exists(), process)
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
        done = run(*command, cwd=tmp_path)
    assert (done.code, (tmp_path / "paid.txt").read_text().split()) == (0, ["0"])


WORKS = """
import os, time
while not os.path.exists("DONE"):
    time.sleep(0.01)
print("done")
"""


def test_a_program_that_works_without_asking_is_no_stalled_sample(tmp_path: Path) -> None:
    """It works until its sample has been quiet for much longer than a stall takes, as the run's own beat says. Stalls
    are only looked for while it works: how long it takes to start depends on the machine.
    """
    gate, run_folder = tmp_path / "gate", tmp_path / "runs/default/r"
    solver = {"command": {"run": [sys.executable, "-c", WORKS.replace("DONE", str(gate))]}}

    def beat() -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((run_folder / "lease.json").read_text())
        except (OSError, json.JSONDecodeError):
            return {"at": 0.0}
        return found

    def is_at_work() -> bool:
        return [each["doing"] for each in beat().get("oldest", [])] == ["waiting for an answer"]

    def tune(seconds: float) -> None:
        options = ("--set", f"stall_seconds={seconds:g}", "--store", tmp_path / "runs")
        done = call("tune", "r", *options, cwd=tmp_path)
        assert done.code == 0, done.err

    with serving(agent(1)) as server:
        spec = write(tmp_path, server.base_url, solver, stall_seconds=3600, on_stall="cancel-sample")
        with start("run", spec, "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path) as process:
            assert wait_until(is_at_work, process)
            tune(STALL_SECONDS)
            tuned = beat()["at"]
            assert wait_until(lambda: beat()["at"] > tuned + 3 * STALL_SECONDS, process)
            assert not beat().get("stall")
            assert is_at_work()
            tune(3600)
            gate.touch()
            done = finish(process)
    assert "sample.stalled" not in (run_folder / "log.jsonl").read_text()
    assert done.code == 0, done.err
