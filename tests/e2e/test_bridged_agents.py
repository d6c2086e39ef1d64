"""Agents written with OpenAI's SDK alone, evaluated as they are: killed in the middle, they continue, and nothing
that was answered is requested, or paid for, twice. All requests are counted at the server.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.records.samples import Message
from holdfast.testing import Behaviour, Fault, ModelServer
from tests.e2e.agents import agent, serving, transcript, write
from tests.e2e.commands import Done, call, exported, run, shown, start

AGENT = '''
import asyncio, json, os, signal, sys
from pathlib import Path
from openai import AsyncOpenAI, OpenAI

HERE = Path(__file__).parent
TOOLS = [{"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}]

def die_once(name, pid):
    place = HERE / "points" / name
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        place.touch()
        os.kill(pid, signal.SIGKILL)

def noted(calls):
    return [{"role": "tool", "tool_call_id": each.id, "content": f"noted {each.function.arguments}"} for each in calls]

def talk(client, question, name="", pid=0):
    """A whole agent, of the kind that people have lying about."""
    messages = [{"role": "user", "content": question}]
    for turn in range(1000):
        answer = client.chat.completions.create(model="any-model", messages=messages, tools=TOOLS, temperature=0.2)
        if name:
            die_once(f"{name}-{turn}", pid)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        messages += noted(message.tool_calls)

if __name__ == "__main__":
    print(talk(OpenAI(), sys.argv[1], sys.argv[2], os.getppid()))
'''

MINE = (
    AGENT
    + '''
async def asynchronous(sample, ctx):
    client = AsyncOpenAI(base_url=ctx.openai_base_url, api_key="none")
    messages = [{"role": "user", "content": sample.row["q"]}]
    for turn in range(1000):
        answer = await client.chat.completions.create(model="any-model", messages=messages, tools=TOOLS)
        die_once(f"{sample.id}-{turn}", os.getpid())
        message = answer.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return message.content
        messages += noted(message.tool_calls)

async def streamed(sample, ctx):
    client = AsyncOpenAI(base_url=ctx.openai_base_url, api_key="none")
    messages = [{"role": "user", "content": sample.row["q"]}]
    for turn in range(1000):
        async with client.chat.completions.stream(model="any-model", messages=messages, tools=TOOLS) as stream:
            answer = await stream.get_final_completion()
        die_once(f"{sample.id}-{turn}", os.getpid())
        message = answer.choices[0].message
        calls = [
            {"id": each.id, "type": "function", "function": each.function.model_dump(include={"name", "arguments"})}
            for each in message.tool_calls or ()
        ]
        messages.append({"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})})
        if not calls:
            return message.content
        messages += noted(message.tool_calls)

async def responding(sample, ctx):
    """The newer API: only what is new is sent; every other turn as a stream."""
    client = AsyncOpenAI(base_url=ctx.openai_base_url, api_key="none")
    tools = [{"type": "function", "name": "note", "parameters": {"type": "object"}}]
    given, previous = sample.row["q"], None
    for turn in range(1000):
        asked = dict(model="any-model", input=given, tools=tools, previous_response_id=previous, instructions="Note.")
        if turn % 2:
            async with client.responses.stream(**asked) as stream:
                answer = await stream.get_final_response()
        else:
            answer = await client.responses.create(**asked)
        die_once(f"{sample.id}-{turn}", os.getpid())
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            return answer.output_text
        previous = answer.id
        given = [{"type": "function_call_output", "call_id": call.call_id, "output": call.arguments} for call in calls]

async def threaded(sample, ctx):
    client = OpenAI(base_url=ctx.openai_base_url, api_key="none")
    return await asyncio.to_thread(talk, client, sample.row["q"], sample.id, os.getpid())

async def plain(sample, ctx):
    """Without a point to die at."""
    client = OpenAI(base_url=ctx.openai_base_url, api_key="none")
    return await asyncio.to_thread(talk, client, sample.row["q"])

async def crowd(sample, ctx):
    """Three threads at once, each with a talk of its own."""
    client = OpenAI(base_url=ctx.openai_base_url, api_key="none")
    said = await asyncio.gather(*(asyncio.to_thread(talk, client, f"go {number}") for number in range(3)))
    return said[0]

async def racing(sample, ctx):
    """In each round four requests at once; in which order they were answered goes into the next ones."""
    client = AsyncOpenAI(base_url=ctx.openai_base_url, api_key="none")

    async def ask(number, said):
        content = f"{number} after {said}"
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])
        return str(number)

    order = ""
    for turn in range(4):
        for done in asyncio.as_completed([ask(number, order) for number in range(4)]):
            order += await done
        die_once(f"{sample.id}-{turn}", os.getpid())
    return order

async def impatient(sample, ctx):
    """The SDK's own retries: its time-out is shorter than the model's answer."""
    client = AsyncOpenAI(base_url=ctx.openai_base_url, api_key="none", timeout=4.0, max_retries=20)
    messages = [{"role": "user", "content": sample.row["q"]}]
    return (await client.chat.completions.create(model="m", messages=messages)).choices[0].message.content

async def insistent(sample, ctx):
    """Retries that do not say that they are some."""
    from openai import APITimeoutError
    client = AsyncOpenAI(base_url=ctx.openai_base_url, api_key="none", timeout=4.0, max_retries=0)
    messages = [{"role": "user", "content": sample.row["q"]}]
    while True:
        try:
            answer = await client.chat.completions.create(model="m", messages=messages)
            return answer.choices[0].message.content
        except APITimeoutError:
            pass

async def twice(sample, ctx):
    client = AsyncOpenAI(base_url=ctx.openai_base_url, api_key="none")
    messages = [{"role": "user", "content": sample.row["q"]}]
    return " ".join([(await client.chat.completions.create(model="m", messages=messages)).id for _ in range(2)])
'''
)

PROGRAM = {"command": {"run": ["python", "mine.py", "{prompt}", "{id}"], "seconds": 60}}
SOLVERS: dict[str, Any] = {
    "asynchronous": "mine:asynchronous",
    "streamed": "mine:streamed",
    "responding": "mine:responding",
    "in a thread": "mine:threaded",
    "a program": PROGRAM,
}


def evaluate(folder: Path, server: ModelServer, solver: Any, samples: int = 1, **fields: Any) -> Done:
    spec = write(folder, server.base_url, solver, samples, MINE, **fields)
    return run("run", spec, "--id", "r", "--store", folder / "runs", cwd=folder)


def go_on(folder: Path, times: int) -> Done:
    """Until nothing kills it any more."""
    for _ in range(times):
        done = run("run", folder / "eval.yaml", "--id", "r", "--store", folder / "runs", cwd=folder)
        if done.code != -9:
            break
    return done


@pytest.mark.parametrize(
    ("kind", "turns"),
    [
        ("asynchronous", 2),
        pytest.param("a program", 2, marks=pytest.mark.long),
        *(pytest.param(kind, 3, marks=pytest.mark.long) for kind in ("streamed", "responding", "in a thread")),
        *(pytest.param(kind, 50, marks=pytest.mark.long) for kind in SOLVERS),
    ],
)
def test_killed_after_every_answer_it_sends_exactly_one_request_per_turn(tmp_path: Path, kind: str, turns: int) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with serving(agent(turns)) as server:
        assert evaluate(killed, server, SOLVERS[kind]).code == -9
        done = go_on(killed, turns + 1)
        assert done.code == 0, done.err
        assert server.stats().requests == turns
        (whole / "points").mkdir(parents=True)
        for point in (killed / "points").iterdir():
            (whole / "points" / point.name).touch()
        assert evaluate(whole, server, SOLVERS[kind]).code == 0
    assert len(list((killed / "points").iterdir())) == turns
    assert transcript(killed) == transcript(whole)
    assert transcript(killed)[-1] == f"done after {turns}"
    steps = shown("r", killed / "runs")["steps"]
    assert (steps["live"], steps["replayed"], steps["orphaned"]) == (turns, turns, 0)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))], ids="seed {}".format
)
@pytest.mark.parametrize(
    ("solver", "samples"),
    [
        ("mine:plain", 3),
        pytest.param({"command": {"run": ["python", "mine.py", "{prompt}", ""]}}, 3, marks=pytest.mark.long),
        pytest.param("mine:crowd", 1, marks=pytest.mark.long),
    ],
    ids=["in threads", "programs", "a crowd in one sample"],
)
def test_killed_at_random_it_repeats_only_what_was_in_flight(
    tmp_path: Path, seed: int, solver: Any, samples: int
) -> None:
    chance = random.Random(seed)
    turns, talks, in_flight = 8, 3, 0
    with serving(agent(turns), latency=0.05) as server:
        spec = write(tmp_path, server.base_url, solver, samples, MINE)
        command = ("run", spec, "--id", "r", "--store", tmp_path / "runs")
        for _ in range(4):
            with start(*command, cwd=tmp_path) as process:
                before = server.stats().requests
                end = time.monotonic() + chance.uniform(0.1, 0.6)
                while process.poll() is None and (server.stats().requests == before or time.monotonic() < end):
                    time.sleep(0.005)
                if process.poll() is None:
                    in_flight += talks
                    process.kill()
        done = run(*command, cwd=tmp_path)
        assert done.code == 0, done.err
        assert turns * talks <= server.stats().requests <= turns * talks + in_flight
    assert [line["output"] for line in exported("r", tmp_path / "runs")] == [f"done after {turns}"] * samples


@pytest.mark.long
def test_parallel_requests_are_answered_in_the_same_order_again(tmp_path: Path) -> None:
    with serving(lambda messages: "yes") as server:
        server.behaviour = Behaviour(reply=server.behaviour.reply, jitter_seconds=0.3, seed=3)
        assert evaluate(tmp_path, server, "mine:racing").code == -9
        assert go_on(tmp_path, 5).code == 0
        assert server.stats().requests == 16
    steps = shown("r", tmp_path / "runs")["steps"]
    assert (steps["live"], steps["replayed"], steps["orphaned"]) == (16, 16, 0)
    (line,) = exported("r", tmp_path / "runs")
    assert line["output"] != "0123" * 4


@pytest.mark.parametrize("solver", [pytest.param("mine:impatient", marks=pytest.mark.long), "mine:insistent"])
def test_a_client_that_retries_because_it_had_to_wait_gets_the_answer_that_is_on_its_way(
    tmp_path: Path, solver: str
) -> None:
    # The client gives up after 4 s; the answer comes 2 s later, 2 s before the client would give up again.
    with serving(lambda messages: "at last", latency=6.0) as server:
        done = evaluate(tmp_path, server, solver)
        assert done.code == 0, done.err
        assert server.stats().requests == 1
    (line,) = exported("r", tmp_path / "runs")
    assert line["output"] == "at last"


def test_the_same_question_asked_twice_on_purpose_has_two_answers(tmp_path: Path) -> None:
    with serving(lambda messages: "yes") as server:
        assert evaluate(tmp_path, server, "mine:twice").code == 0
        assert server.stats().requests == 2
    (line,) = exported("r", tmp_path / "runs")
    assert len(set(line["output"].split())) == 2


def failing(fault: Fault, tmp_path: Path, solver: Any = "mine:plain", **defaults: Any) -> tuple[int, dict[str, Any]]:
    """How often a server that fails was asked for a sample of four turns, and what became of it."""
    with serving(agent(4)) as server:
        server.behaviour = Behaviour(reply=server.behaviour.reply, faults=[fault])
        evaluate(tmp_path, server, solver, defaults=defaults)
        requests = server.stats().requests
    (line,) = exported("r", tmp_path / "runs")
    return requests, line


@pytest.mark.parametrize("solver", ["mine:plain", PROGRAM])
def test_what_was_retried_is_not_retried_by_the_sdk_and_the_sample_says_why_it_failed(
    tmp_path: Path, solver: Any
) -> None:
    (tmp_path / "points").mkdir()
    (tmp_path / "points" / "s0-0").touch()
    requests, line = failing(Fault("500"), tmp_path, solver, request_retries=1, sample_retries=0)
    assert requests == 2
    assert line["error"]["kind"] == "server"


def test_after_a_failure_of_the_server_the_next_attempt_keeps_what_was_answered(tmp_path: Path) -> None:
    requests, line = failing(Fault("500", every=4), tmp_path, request_retries=0, sample_retries=1)
    assert line["output"] == "done after 4"
    assert requests == 5


def test_a_sample_that_reaches_its_limit_fails_as_such(tmp_path: Path) -> None:
    with serving(agent(6)) as server:
        evaluate(tmp_path, server, "mine:plain", limits={"sample": {"steps": 3}})
        assert server.stats().requests == 3
    (line,) = exported("r", tmp_path / "runs")
    assert line["error"]["kind"] == "limit"
    assert "its limit is 3" in line["error"]["message"]


@pytest.mark.long
def test_a_sample_past_its_time_does_not_keep_its_client_waiting(tmp_path: Path) -> None:
    with serving(agent(6), latency=300) as server:
        done = evaluate(
            tmp_path, server, "mine:plain", limits={"sample": {"seconds": 5}}, defaults={"sample_retries": 0}
        )
        assert server.stats().requests == 1
    assert done.code == 1
    (line,) = exported("r", tmp_path / "runs")
    assert line["error"]["kind"] == "timeout"


def changed(folder: Path, old: str, new: str) -> None:
    path = folder / "mine.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("kind", ["in a thread", pytest.param("a program", marks=pytest.mark.long)])
def test_replay_and_fork_run_it_on_its_recorded_steps(tmp_path: Path, kind: str) -> None:
    (tmp_path / "points").mkdir()
    for turn in range(4):
        (tmp_path / "points" / f"s0-{turn}").touch()
    with serving(agent(4)) as server:
        assert evaluate(tmp_path, server, SOLVERS[kind]).code == 0
        replay = ("replay", "r", "t/m/s0/1", "--store", tmp_path / "runs")
        same = run(*replay, cwd=tmp_path)
        assert same.code == 0, same.err
        assert "4 steps replayed, 0 recorded steps left unused by the code;" in same.said
        changed(tmp_path, 'f"noted {', 'f"written down {')
        other = run(*replay, cwd=tmp_path)
        assert "1 step replayed, 3 recorded steps left unused" in other.said
        assert server.stats().requests == 4
        fork = run("fork", "r", "--id", "f", "--store", tmp_path / "runs", cwd=tmp_path)
        assert fork.code == 0, fork.err
        assert server.stats().requests == 7
    assert shown("f", tmp_path / "runs")["steps"]["replayed"] == 1


def test_a_program_that_fails_is_reported_with_what_it_said_last(tmp_path: Path) -> None:
    with serving(agent(1)) as server:
        code = "import sys; print('so far so good'); sys.exit('no luck today')"
        solver = {"command": {"run": ["python", "-c", code]}}
        assert evaluate(tmp_path, server, solver, defaults={"sample_retries": 0}).code == 1
    (line,) = exported("r", tmp_path / "runs")
    assert line["error"]["kind"] == "solver"
    assert "python ended with the exit code 1: no luck today" in line["error"]["message"]


def test_a_program_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    code = """
import subprocess
child = subprocess.Popen(["sleep", "600"])
open("pid", "w").write(str(child.pid))
child.wait()
"""
    with serving(agent(1)) as server:
        solver = {"command": {"run": ["python", "-c", code], "seconds": 2}}
        assert evaluate(tmp_path, server, solver, defaults={"sample_retries": 0}).code == 1
    (line,) = exported("r", tmp_path / "runs")
    assert line["error"]["kind"] == "timeout"
    assert not is_running(int((tmp_path / "pid").read_text()))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_without_a_field_the_prompt_is_the_programs_standard_input(tmp_path: Path) -> None:
    with serving(agent(1)) as server:
        solver = {
            "command": {"run": ["python", "-c", "import sys; print(sys.stdin.read() + '!', sys.argv[1:])", "{{q}}"]}
        }
        assert evaluate(tmp_path, server, solver).code == 0
    (line,) = exported("r", tmp_path / "runs")
    assert line["output"] == "go 0! ['{q}']"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ({"run": "python agent.py"}, "run: expected `array`"),
        ({"run": []}, "give the command as a list of texts"),
        ({}, "the argument 'run' is missing"),
    ],
)
def test_a_command_that_cannot_be_run_is_found_before_anything_is_asked(
    tmp_path: Path, command: dict[str, Sequence[str]], said: str
) -> None:
    spec = write(tmp_path, "http://127.0.0.1:9/v1", {"command": command}, code=MINE)
    done = call("check", spec, cwd=tmp_path)
    assert done.code == 2
    assert said in done.said


def test_what_the_server_said_reaches_the_agent_whole(tmp_path: Path) -> None:
    """Fields that no SDK knows of too."""

    def reply(messages: list[Message]) -> Message:
        return {"role": "assistant", "content": "yes", "reasoning_content": "because"}

    code = """
from openai import AsyncOpenAI
async def ask(sample, ctx):
    client = AsyncOpenAI(base_url=ctx.openai_base_url, api_key="none")
    answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "why?"}])
    choice = answer.choices[0]
    message = choice.message
    return f"{message.content} {message.reasoning_content} {answer.usage.total_tokens} {choice.finish_reason}"
"""
    with serving(reply) as server:
        spec = write(tmp_path, server.base_url, "mine:ask", code=code)
        assert run("run", spec, "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    (line,) = exported("r", tmp_path / "runs")
    assert line["output"] == "yes because 2 stop"
