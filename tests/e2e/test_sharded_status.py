"""What `show`, `report` and the viewer say about workers of a sharded run that were stopped, killed and replaced."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.testing import Behaviour, Fault, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, finish, shown, start, wait_until, write_spec
from tests.e2e.view.served import serving

SHARDS = 6
ROWS = 90
HOST = os.uname().nodename


def environment(folder: Path, machine: str) -> dict[str, str]:
    return {"HOLDFAST_EXPIRY_SECONDS": "2", "HOLDFAST_CACHE": str(folder / f"cache-{machine}")}


def call_on(machine: Path, *arguments: str | Path) -> Done:
    return call(*arguments, "--store", machine, cwd=machine.parent, env=environment(machine.parent, machine.name))


def start_worker(machine: Path, *more: str) -> "subprocess.Popen[str]":
    folder = machine.parent
    part = ("--id", "x", "--shards", str(SHARDS), *more)
    return start(
        "run", folder / "eval.yaml", *part, "--store", machine, cwd=folder, env=environment(folder, machine.name)
    )


def more_requests(server: ServerProcess, count: int) -> Callable[[], bool]:
    before = server.stats().requests
    return lambda: server.stats().requests >= before + count


def work_for(server: ServerProcess, machine: Path, number: signal.Signals) -> None:
    """One worker that gets a signal in the middle of its second shard, or later."""
    worker = start_worker(machine, "--this-host")
    assert wait_until(more_requests(server, 22), worker)
    finish(worker, number)


def seconds_of(lives: list[dict[str, Any]]) -> list[tuple[float, float]]:
    times = [tuple(datetime.fromisoformat(life[name]).timestamp() for name in ("at", "ended_at")) for life in lives]
    return [(began, ended) for began, ended in times]


def test_the_status_and_the_lineage_name_every_end_of_a_worker(tmp_path: Path) -> None:
    store = tmp_path / "runs"
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        write_spec(tmp_path, ROWS, server.base_url, model={"max_connections": 2})
        work_for(server, store, signal.SIGTERM)
        stopped = shown("x", store)
        assert stopped["status"] == "interrupted"
        first, *others = stopped["reason"].split("; ")
        assert first == f"1 of {SHARDS} shards: stopped by SIGTERM on {HOST}"
        assert [each.endswith("shards: not begun") for each in others] == [True]
        work_for(server, store, signal.SIGKILL)
        killed = shown("x", store)
        assert f"shards: its worker on {HOST} ended without recording why" in killed["reason"]
        told = call_on(store, "report", "x").out
        assert f"({killed['reason']})" in told
        time.sleep(4)  # nobody works on it
        assert finish(start_worker(store, "--this-host")).code == 0
    assert shown("x", store)["status"] == "completed"
    with serving(store) as viewer:
        lineage = viewer.json("/runs/sums/x/lineage")["lineage"]
        lives = lineage["lives"]
        assert sum(life["finished"] for life in lives) == ROWS
        assert {life["shard"] for life in lives} == {f"{number}/{SHARDS}" for number in range(1, SHARDS + 1)}
        ends = [life["ended"] for life in lives]
        assert (ends.count("interrupted"), ends.count("killed"), lineage["kills"]) == (1, 1, 1)
        assert next(life["reason"] for life in lives if life["ended"] == "interrupted") == "stopped by SIGTERM"
        page = viewer.html("/runs/sums/x/lineage")
        assert "3 workers on 1 machine" in page
        report = viewer.json("/runs/sums/x")["report"]
    spans = seconds_of(lives)
    # One worker at a time: the wall time is the time of all sessions, without the pauses between the workers.
    worked = sum(ended - began for began, ended in spans)
    assert abs(report["summed_seconds"] - worked) < 0.1
    assert abs(report["worked_seconds"] - worked) < 0.1
    assert max(ended for _, ended in spans) - min(began for began, _ in spans) > worked + 3


def test_workers_at_the_same_time_share_the_wall_time(tmp_path: Path) -> None:
    store = tmp_path / "runs"
    with start_server_process(Behaviour(latency_seconds=0.2)) as server:
        write_spec(tmp_path, ROWS, server.base_url, model={"max_connections": 2})
        for worker in [start_worker(store, "--this-host") for _ in range(3)]:
            assert finish(worker).code == 0
    text = call_on(store, "report", "x").out
    assert "summed over workers: " in text
    with serving(store) as viewer:
        report = viewer.json("/runs/sums/x")["report"]
        spans = sorted(seconds_of(viewer.json("/runs/sums/x/lineage")["lineage"]["lives"]))
    assert abs(report["summed_seconds"] - sum(ended - began for began, ended in spans)) < 0.1
    union, until = 0.0, 0.0
    for began, ended in spans:
        union += max(ended - max(began, until), 0.0)
        until = max(until, ended)
    assert abs(report["worked_seconds"] - union) < 0.1


def test_a_budget_is_the_reason_and_the_next_command_raises_it(tmp_path: Path) -> None:
    store = tmp_path / "runs"
    write_spec(tmp_path, 24)
    part = ("run", tmp_path / "eval.yaml", "--id", "x", "--shards", "3", "--this-host")
    assert call_on(store, *part, "--set", "limits.run.requests=6").code == 6
    summary = shown("x", store)
    assert (summary["status"], summary["reason"].startswith("budget: limits.run.requests ")) == ("interrupted", True), (
        summary
    )
    assert "--set limits.run.requests=12" in call_on(store, "show", "x").out


def test_orders_reach_workers_that_share_only_the_mirror(tmp_path: Path) -> None:
    faults = [Fault("500", rate=0.5, sticky=True)]
    with start_server_process(Behaviour(faults=faults)) as server, start_server_process(Behaviour()) as sound:
        mirror = {"url": (tmp_path / "mirror").as_uri(), "seconds": 0.2}
        model = {"request_retries": 0, "max_connections": 1}
        write_spec(tmp_path, ROWS, server.base_url, model=model, task={"sample_retries": 0}, mirror=mirror)
        one, two = tmp_path / "one", tmp_path / "two"
        assert finish(start_worker(one)).code == 1
        elsewhere = ("--set", f"models.arith.base_url={sound.base_url}")
        joined = finish(start_worker(two, *elsewhere))
        assert (joined.code, sound.stats().requests) == (1, 0), joined.said
        failed = shown("x", one)["failed"]
        # Machine one begins a round and is killed; machine two knows of it only through the mirror.
        retry = start("retry", "x", "--store", one, cwd=tmp_path, env=environment(tmp_path, "one"))
        before = server.stats().requests
        assert wait_until(lambda: server.stats().requests > before, retry)
        finish(retry, signal.SIGKILL)
        asked = server.stats().requests - before
        done = finish(start_worker(two, *elsewhere))
        assert done.code in (0, 1), done.said  # 1: the killed process has recorded a failure
        assert failed - asked <= sound.stats().requests <= failed
    (failed_at_one, failed_at_two) = (shown("x", each)["failed"] for each in (one, two))
    assert failed_at_one == failed_at_two <= asked


def test_a_cancelled_run_is_left_alone_by_workers_that_share_only_the_mirror(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        mirror = {"url": (tmp_path / "mirror").as_uri(), "seconds": 0.2}
        write_spec(tmp_path, ROWS, server.base_url, model={"max_connections": 1}, mirror=mirror)
        one, two = tmp_path / "one", tmp_path / "two"
        worker = start_worker(one)
        assert wait_until(more_requests(server, 3), worker)
        finish(worker, signal.SIGTERM)
        worker = start_worker(two)
        assert wait_until(lambda: shown("x", one)["status"] == "running", worker)
        cancelled = call_on(one, "cancel", "x")
        assert (cancelled.code, "1 of 1 workers" in cancelled.out) == (0, True), cancelled.said
        finish(worker)
        assert server.stats().requests < ROWS, "it claimed no other shard"
        refused = finish(start_worker(two))
        assert (refused.code, "was cancelled" in refused.err) == (2, True), refused.said
    assert shown("x", two)["status"] == "cancelled"
