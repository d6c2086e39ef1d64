"""Sandboxed tools of a run that is killed: nothing keeps running, and its files are as they were."""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from holdfast.journal import Entry, Reader
from holdfast.records.facts import Step
from holdfast.records.samples import Message
from holdfast.sandbox.confinement import PLAIN, why_no_docker, why_no_namespaces
from holdfast.sandbox.snapshots import FilesState
from tests.e2e.agents import DYING, serving, transcript
from tests.e2e.commands import Done, call, environment, exported, run, start, wait_until

WAYS = ["namespaces", "plain"]
MINE = (
    DYING
    + '''
async def fragile(sample, ctx):
    """Dies after every acknowledgement, once."""
    messages = list(ctx.messages)
    turn = 0
    while True:
        answer = await ctx.generate(messages)
        die_once(f"asked-{turn}")
        messages.append(answer.message)
        if not answer.tool_calls:
            return answer
        said = await ctx.call("bash", {"command": f"echo {turn} >> log; mkdir -p d{turn}; rmdir d{turn - 2}; cat log"})
        die_once(f"called-{turn}")
        messages.append({"role": "tool", "tool_call_id": answer.tool_calls[0]["id"], "content": said})
        turn += 1
'''
)


def commands(*given: str) -> Any:
    """A model that wants these run in bash, one in each turn, and then answers."""

    def reply(messages: list[Message]) -> Message:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn >= len(given):
            return {"role": "assistant", "content": f"done after {turn}"}
        function = {"name": "bash", "arguments": json.dumps({"command": given[turn]})}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}],
        }

    return reply


def write(folder: Path, base_url: str, solver: Any, **task: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(MINE)
    (folder / "rows.jsonl").write_text('{"id": "s0", "q": "go"}\n')
    spec = {
        "grace_seconds": 1,
        "models": [{"name": "m", "provider": "openai", "model": "m", "base_url": base_url}],
        "tasks": [{"name": "t", "dataset": {"path": "rows.jsonl"}, "prompt": "{q}", "solver": solver, **task}],
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def go(folder: Path, way: str = "namespaces", *more: str) -> Done:
    """The same command, again and again."""
    return run("run", folder / "eval.yaml", "--id", "r", "--store", folder / "runs", *more, cwd=folder, env=env(way))


def env(way: str) -> dict[str, str]:
    if way == "namespaces" and why_no_namespaces():
        pytest.skip(why_no_namespaces())
    return {PLAIN: "" if way == "namespaces" else "1"}


def steps(folder: Path) -> list[Step]:
    entries = Reader(str(next((folder / "runs").rglob("journal")))).read()
    mine = [each.line for each in entries if isinstance(each, Entry) and each.line.t == "step"]
    return [msgspec.json.decode(line.d, type=Step) for line in mine]


def final_files(folder: Path) -> FilesState:
    """What the steps of a run leave in the sandbox, as a resume would find it."""
    state = FilesState()
    for step in steps(folder):
        state = state if step.files is None else state.after(step.files)
    return state


def left_behind(word: str) -> list[str]:
    """Processes with this word in their command line."""
    listed = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if word in line]


def folders(folder: Path) -> list[str]:
    """The sandboxes of a run in the temporary folder."""
    uid = Reader(str(next((folder / "runs").rglob("journal")))).uid
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(f"holdfast-{uid}-")]


@pytest.mark.parametrize("turns", [3, pytest.param(50, marks=pytest.mark.long)])
def test_killed_after_every_acknowledgement_its_files_and_its_transcript_are_those_of_a_whole_run(
    tmp_path: Path, turns: int
) -> None:
    with serving(commands(*["-"] * (turns - 1))) as server:
        killed, whole = tmp_path / "killed", tmp_path / "whole"
        write(killed, server.base_url, "mine:fragile", sandbox={})
        for _ in range(3 * turns):
            done = go(killed)
            if done.code != -9:
                break
        assert done.code == 0, done.err
        assert server.stats().requests == turns
        write(whole, server.base_url, "mine:fragile", sandbox={})
        (whole / "points").mkdir()
        for point in (killed / "points").iterdir():
            (whole / "points" / point.name).touch()
        assert go(whole).code == 0
    assert len(list((killed / "points").iterdir())) == 2 * turns - 1
    assert transcript(killed) == transcript(whole)
    assert final_files(killed) == final_files(whole)
    assert set(final_files(whole).entries) == {
        *("sandbox", "tmp", "sandbox/log", f"sandbox/d{turns - 2}", f"sandbox/d{turns - 3}")
    }
    said = call("show", "r", "t/m/s0/1", "--store", killed / "runs", cwd=tmp_path).out
    assert "[files] +sandbox, +sandbox/d0, +sandbox/log 2 B, +tmp" in said
    assert call("verify", "r", "--store", killed / "runs", cwd=tmp_path).code == 0
    assert folders(killed) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_kill_of_the_run_ends_its_commands_and_the_next_start_removes_the_folder(tmp_path: Path, way: str) -> None:
    odd = f"{time.time_ns()}"[-9:]
    command = f"(setsid sleep {odd} &); sleep {odd} & touch begun; sleep 6{odd}"
    with serving(commands("touch first", command)) as server:
        spec = write(tmp_path, server.base_url, {"react": {"tools": ["bash"]}}, sandbox={"seconds": 3000})
        arguments = ("run", spec, "--id", "r", "--store", tmp_path / "runs")
        with start(*arguments, cwd=tmp_path, env=env(way)) as process:
            assert wait_until(lambda: len(left_behind(f"sleep {odd}")) == 2, process)
            assert wait_until(lambda: bool(left_behind(f"sleep 6{odd}")), process)
            process.kill()
            process.wait()
        end = time.monotonic() + 30
        while left_behind(odd) and time.monotonic() < end:
            time.sleep(0.01)
        assert left_behind(odd) == []
        (old,) = folders(tmp_path)
        with start(*arguments, cwd=tmp_path, env=env(way)) as process:
            assert wait_until(lambda: bool(left_behind(f"sleep 6{odd}")), process)
            assert old not in folders(tmp_path)
            process.terminate()
            process.wait()
    assert left_behind(odd) == []
    assert folders(tmp_path) == []
    assert server.stats().requests == 2


@pytest.mark.parametrize(
    ("harm", "said"), [("flip", "is damaged"), ("remove", "cannot be read"), ("fifo", "neither file, folder nor link")]
)
def test_files_that_cannot_be_restored_make_the_sample_begin_anew_and_it_says_so(
    tmp_path: Path, harm: str, said: str
) -> None:
    odd = f"6{time.time_ns()}"[-9:]
    more = "mkfifo pipe; " if harm == "fifo" else ""
    reply = commands(f"{more}echo precious > a", f"cat a; [ -e {tmp_path}/go ] || sleep {odd}")
    with serving(reply) as server:
        solver = {"react": {"tools": ["bash"]}}
        spec = write(tmp_path, server.base_url, solver, sandbox={"seconds": 3000}, sample_retries=0)
        arguments = ("run", spec, "--id", "r", "--store", tmp_path / "runs")
        with start(*arguments, cwd=tmp_path, env=env("plain")) as process:
            assert wait_until(lambda: bool(left_behind(f"sleep {odd}")), process)
            process.kill()
            process.wait()
        blob = next((tmp_path / "runs" / "default" / "r").glob("blobs/*"), tmp_path)
        if harm == "flip":
            blob.write_bytes(b"Precious\n")
            found = call("verify", "r", "--store", tmp_path / "runs", cwd=tmp_path)
            assert (found.code, f"{blob.name} is damaged" in found.out) == (5, True)
        elif harm == "remove":
            blob.unlink()
        (tmp_path / "go").touch()
        done = go(tmp_path, "plain")
    assert done.code == 0, done.err
    story = call("show", "r", "t/m/s0/1", "--json", "--store", tmp_path / "runs", cwd=tmp_path).json()
    first, second = story["attempts"]
    assert (first["failure"]["kind"], first["final"]) == ("sandbox", False)
    assert said in first["failure"]["message"]
    assert [step["value"] for step in second["steps"] if step["kind"] == "call"] == ["", "precious"]
    assert (second["status"], server.stats().requests) == ("finished", 5)
    log = (tmp_path / "runs" / "default" / "r" / "log.jsonl").read_text()
    assert '"event":"sandbox.lost"' in log
    assert call("verify", "r", "--store", tmp_path / "runs", cwd=tmp_path).code == 0


def test_where_there_are_no_namespaces_check_and_run_say_so(tmp_path: Path) -> None:
    with serving(commands("echo hello > a; cat a")) as server:
        write(tmp_path, server.base_url, {"react": {"tools": ["bash"]}})
        checked = run("check", tmp_path / "eval.yaml", cwd=tmp_path, env={PLAIN: "1"})
        done = go(tmp_path, "plain")
    assert "sandboxed commands have no namespaces here" in checked.err
    assert "sandboxed commands have no namespaces here" in done.err
    assert (checked.code, done.code) == (0, 0)
    log = (tmp_path / "runs" / "default" / "r" / "log.jsonl").read_text()
    assert '"event":"sandbox.unconfined"' in log


def test_a_fork_takes_over_what_commands_came_to_and_sends_no_request(tmp_path: Path) -> None:
    with serving(commands("echo hello > a", "cat a; ls")) as server:
        write(tmp_path, server.base_url, {"react": {"tools": ["bash"]}})
        assert go(tmp_path).code == 0
        before = server.stats().requests
        done = run("fork", "r", "--id", "f", "--store", tmp_path / "runs", cwd=tmp_path)
        assert done.code == 0, done.err
        assert server.stats().requests == before
    assert [line["output"] for line in exported("f", tmp_path / "runs")] == ["done after 2"]
    assert call("verify", "f", "--store", tmp_path / "runs", cwd=tmp_path).code == 0


@pytest.fixture
def image(tmp_path: Path) -> Any:
    """A container image of busybox alone, made here: nothing is fetched."""
    if why_no_docker():
        pytest.skip(why_no_docker())
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "tmp").mkdir()
    busybox = subprocess.run(["sh", "-c", "command -v busybox"], capture_output=True, text=True, check=False)
    if busybox.returncode:
        pytest.skip("there is no busybox to make an image of")
    (root / "bin" / "busybox").write_bytes(Path(busybox.stdout.strip()).read_bytes())
    (root / "bin" / "busybox").chmod(0o755)
    (root / "bin" / "bash").write_text('#!/bin/sh\nexec sh "$@"\n')
    (root / "bin" / "bash").chmod(0o755)
    for name in ("sh", "touch", "cat", "ls", "mkdir", "rmdir", "sleep", "wget", "true", "dirname"):
        (root / "bin" / name).symlink_to("busybox")
    subprocess.run(f"tar -C {root} -c . | docker import - holdfast-test:1", shell=True, check=True, capture_output=True)
    yield "holdfast-test:1"
    subprocess.run(["docker", "rmi", "-f", "holdfast-test:1"], check=False, capture_output=True)


def test_in_a_container_it_is_the_same_and_a_kill_leaves_none(tmp_path: Path, image: str) -> None:
    odd = f"{time.time_ns()}"[-9:]
    reply = commands("echo hello > a; ls / && pwd", f"cat a; wget -T 2 http://127.0.0.1:9; touch /x || sleep 6{odd}")
    with serving(reply) as server:
        solver = {"react": {"tools": ["bash"]}}
        spec = write(tmp_path, server.base_url, solver, sandbox={"image": image, "seconds": 20})
        arguments = ("run", spec, "--id", "r", "--store", tmp_path / "runs")
        with start(*arguments, cwd=tmp_path) as process:
            assert wait_until(lambda: bool(containers()), process)
            assert wait_until(lambda: any(f"6{odd}" in each for each in left_behind(f"sleep 6{odd}")), process)
            process.kill()
            process.wait()
        end = time.monotonic() + 30
        while containers() and time.monotonic() < end:
            time.sleep(0.05)
        assert containers() == []
        assert [step.value for step in steps(tmp_path) if step.kind == "call"] == [
            "bin\ndev\netc\nproc\nsandbox\nsys\ntmp\n/sandbox"
        ]
        (old,) = folders(tmp_path)
        done = run(*arguments, cwd=tmp_path)
        assert done.code == 0, done.err
        assert server.stats().requests == 3
    said = [step.value for step in steps(tmp_path) if step.kind == "call"][-1]
    assert said.startswith("hello")
    assert "Read-only file system" in said
    assert "took longer than 20 s" in said
    assert old not in folders(tmp_path)


def containers() -> list[str]:
    listed = subprocess.run(
        ["docker", "ps", "-aq", "--filter", "label=holdfast.run"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    return listed.stdout.split()
