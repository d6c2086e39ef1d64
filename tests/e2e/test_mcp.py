"""Tools of MCP servers: real servers, as processes and over HTTP, and agents that are killed while they use them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import Entry, Reader
from holdfast.records.samples import Message
from tests.e2e.agents import agent, killed_and_whole, serving, transcript, write
from tests.e2e.commands import Done, call, exported, run, start, wait_until

SERVER = Path(__file__).parent / "child_mcp_server.py"
PATIENCE_SECONDS = 30


def command(folder: Path) -> list[str]:
    return [sys.executable, str(SERVER), str(folder)]


def calling(*names: str) -> Any:
    """A model that calls these tools, one in each turn, and then answers with their results."""

    def reply(messages: list[Message]) -> Message:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn >= len(names):
            told = [message["content"] for message in messages if message["role"] == "tool"]
            return {"role": "assistant", "content": json.dumps(told)}
        function = {"name": names[turn], "arguments": json.dumps({"n": turn})}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}],
        }

    return reply


def react(*tools: Any, **more: Any) -> dict[str, Any]:
    return {"react": {"tools": [*tools], **more}}


def go(folder: Path, spec: Path, env: dict[str, str] | None = None) -> Done:
    return run("run", spec, "--id", "r", "--store", folder / "runs", cwd=folder, env=env)


def told(folder: Path) -> list[str]:
    (line,) = exported("r", folder / "runs")
    found: list[str] = json.loads(line["output"])
    return found


def pids(folder: Path, name: str) -> list[int]:
    path = folder / name
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def wait_for(happened: Any) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def over_http(folder: Path) -> Iterator[str]:
    """The URL of a server on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*command(folder), str(port)], stderr=subprocess.DEVNULL)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_model_uses_the_tools_of_a_server_that_is_started_for_its_sample(tmp_path: Path) -> None:
    with serving(calling("x_note", "x_fail", "x_picture", "x_note")) as server:
        offer = {"mcp": {"command": command(tmp_path), "prefix": "x_", "tools": ["note", "fail", "picture"]}}
        spec = write(tmp_path, server.base_url, react(offer))
        assert go(tmp_path, spec).code == 0
    first, failed, picture, last = told(tmp_path)
    assert (first, last) == ("noted 0", "noted 3")
    assert failed == "error: Error executing tool fail: no luck with 1"
    assert picture == "[image, image/png, 8 bytes]"
    assert pids(tmp_path, "started.txt") == pids(tmp_path, "ended.txt")
    assert len(pids(tmp_path, "started.txt")) == 1
    story = call("show", "r", "t/m/s0/1", "--json", "--store", tmp_path / "runs", cwd=tmp_path).json()
    assert story["attempts"][0]["steps"][0]["kind"] == "call"
    replayed = call("replay", "r", "t/m/s0/1", "--store", tmp_path / "runs", cwd=tmp_path)
    assert replayed.code == 0, replayed.said
    assert len(pids(tmp_path, "started.txt")) == 1


def test_a_server_that_dies_is_reported_and_opened_again(tmp_path: Path) -> None:
    with serving(calling("die", "note")) as server:
        spec = write(tmp_path, server.base_url, react({"mcp": {"command": command(tmp_path)}}))
        assert go(tmp_path, spec).code == 0
    died, noted = told(tmp_path)
    assert "ended, or was lost, while die was called" in died
    assert "I die now" in died
    assert noted == "noted 1"


def test_a_call_that_takes_too_long_is_reported_and_the_server_stays(tmp_path: Path) -> None:
    with serving(calling("sleep", "note")) as server:
        spec = write(tmp_path, server.base_url, react({"mcp": {"command": command(tmp_path), "seconds": 0.5}}))
        assert go(tmp_path, spec).code == 0
    late, noted = told(tmp_path)
    assert "took longer than 0.5 s while sleep was called" in late
    assert noted == "noted 1"
    assert len(pids(tmp_path, "started.txt")) == 1


@pytest.mark.parametrize(
    ("offer", "said"),
    [
        ({"command": ["nonesuch-program"]}, "nonesuch-program cannot be used: FileNotFoundError"),
        ({"command": [sys.executable, "-c", "raise SystemExit('oh no')"]}, "it said last: oh no"),
        ({"url": "http://127.0.0.1:9/mcp"}, "cannot be used: ConnectError"),
        ({"tools": ["nothing"]}, "has no tool 'nothing'; it has: note, fail"),
    ],
    ids=["no program", "a program that ends", "nobody there", "no such tool"],
)
def test_a_server_that_cannot_be_used_fails_the_sample_and_says_why(
    tmp_path: Path, offer: dict[str, Any], said: str
) -> None:
    with serving(agent(2)) as server:
        wanted = {"mcp": offer if "tools" not in offer else {"command": command(tmp_path), **offer}}
        spec = write(tmp_path, server.base_url, react(wanted), defaults={"sample_retries": 0})
        assert go(tmp_path, spec).code == 1
        assert server.stats().requests == 0
    (line,) = exported("r", tmp_path / "runs")
    assert line["error"]["kind"] == "tool"
    assert said in line["error"]["message"]


def test_a_server_over_http(tmp_path: Path) -> None:
    with serving(calling("note", "fail", "note")) as server, over_http(tmp_path) as url:
        spec = write(tmp_path, server.base_url, react({"mcp": {"url": "${NOTES_URL}"}}, "mine:pay"))
        done = go(tmp_path, spec, {"NOTES_URL": url})
        assert done.code == 0, done.said
    assert told(tmp_path) == ["noted 0", "error: Error executing tool fail: no luck with 1", "noted 2"]
    assert url not in next((tmp_path / "runs").rglob("spec.yaml")).read_text()


def test_credentials_of_a_server_are_in_no_record(tmp_path: Path) -> None:
    secret = "entrusted-4711-entrusted"
    with serving(calling("whisper")) as server:
        offer = {"mcp": {"command": command(tmp_path), "env": {"ENTRUSTED": "${FOR_THE_SERVER}"}}}
        spec = write(tmp_path, server.base_url, react(offer))
        checked = call("check", spec, cwd=tmp_path)
        assert checked.code == 2
        assert "FOR_THE_SERVER is not set" in checked.said
        done = go(tmp_path, spec, {"FOR_THE_SERVER": secret})
    assert done.code == 0, done.said
    (said,) = told(tmp_path)
    assert said.startswith("error: Error executing tool whisper: it is ")
    assert secret not in said
    assert secret not in next((tmp_path / "runs").rglob("spec.yaml")).read_text()
    (journal,) = (tmp_path / "runs").rglob("journal")
    lines = [bytes(each.line.d) for each in Reader(str(journal)).read() if isinstance(each, Entry)]
    assert any(b"whisper" in line for line in lines)
    assert not any(secret.encode() in line for line in lines)


@pytest.mark.parametrize("turns", [2, pytest.param(12, marks=pytest.mark.long)])
@pytest.mark.parametrize("transport", ["stdio", pytest.param("http", marks=pytest.mark.long)])
def test_killed_after_every_acknowledgement_nothing_is_asked_or_done_twice(
    tmp_path: Path, turns: int, transport: str
) -> None:
    with serving(agent(turns)) as server, over_http(tmp_path) if transport == "http" else nullcontext("") as url:
        offer: dict[str, Any] = {"command": ["${PROGRAM}", *command(tmp_path)[1:-1], "${PLACE}"]}
        solver = {"mine:inside": {"solver": react({"mcp": {"url": url} if url else offer})}}
        deaths = killed_and_whole(
            tmp_path,
            lambda folder: write(folder, server.base_url, solver),
            {"PROGRAM": sys.executable, "PLACE": str(tmp_path)},
        )
        assert server.stats().requests == 2 * turns
    assert deaths == [2 * turns, 0]  # each turn, each call, and what the server offers
    done = (tmp_path / "done.txt").read_text().split()
    assert done == 2 * [str(10 * turn) for turn in range(turns - 1)]
    assert transcript(tmp_path / "killed") == transcript(tmp_path / "whole")


def fork(folder: Path, spec: Path) -> Done:
    return run("fork", "r", spec, "--id", "k", "--store", folder / "runs", cwd=folder)


@pytest.mark.long
def test_a_fork_that_chooses_other_tools_offers_them_without_asking_the_server_again(tmp_path: Path) -> None:
    with serving(calling("note", "note")) as server:
        offers = [{"mcp": {"command": command(tmp_path), "tools": tools}} for tools in (["note"], ["note", "fail"])]
        assert go(tmp_path, write(tmp_path, server.base_url, react(offers[0]))).code == 0
        assert fork(tmp_path, write(tmp_path, server.base_url, react(offers[1]))).code == 0
        assert server.stats().requests == 6
    offered = []
    for run_id in ("r", "k"):
        story = call("show", run_id, "t/m/s0/1", "--json", "--store", tmp_path / "runs", cwd=tmp_path).json()
        offered.append([step["tools"] for step in story["attempts"][-1]["steps"] if step["kind"] == "generate"][-1])
    assert offered == [["note"], ["note", "fail"]]
    assert len(pids(tmp_path, "started.txt")) == 1, "what the tool came to is the same"


def test_a_fork_with_another_server_uses_that_one(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with serving(calling("note")) as server:
        for folder, begin in ((tmp_path, go), (other, fork)):
            spec = write(tmp_path, server.base_url, react({"mcp": {"command": command(folder)}}))
            assert begin(tmp_path, spec).code == 0
            assert (folder / "done.txt").read_text() == "0\n"


def test_a_server_ends_when_the_runner_is_killed(tmp_path: Path) -> None:
    with serving(calling("note", "note"), latency=1.0) as server:
        spec = write(tmp_path, server.base_url, react({"mcp": {"command": command(tmp_path)}}))
        with start("run", spec, "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path) as process:
            assert wait_until(lambda: (tmp_path / "done.txt").exists(), process)
            process.kill()
    (pid,) = pids(tmp_path, "started.txt")
    wait_for(lambda: not is_alive(pid))
    assert pids(tmp_path, "ended.txt") == [pid]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
