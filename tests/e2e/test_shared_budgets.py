"""Workers of a sharded run share its budget, also if one of them is killed: counted at the server."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, finish, shown, start, write_spec
from tests.e2e.test_budgets import A_REQUEST, PRICE

ROWS = 200
SHARDS = 8
WORKERS = 3
CONNECTIONS = 2
LIMIT = 90
"""Requests that the budget is enough for."""
EXPIRY = {"HOLDFAST_EXPIRY_SECONDS": "3"}


class Workers:
    """Worker processes of one run; with `mirrored`, each has a disk of its own, and they share only a mirror."""

    def __init__(
        self, folder: Path, server: ServerProcess, limits: dict[str, Any], *, mirrored: bool, shards: int = SHARDS
    ) -> None:
        self.folder, self.server, self.mirrored, self.shards = folder, server, mirrored, shards
        model = {"price": PRICE, "max_connections": CONNECTIONS}
        changes: dict[str, Any] = {"limits": {"run": limits}}
        if mirrored:
            changes["mirror"] = {"url": (folder / "mirror").as_uri(), "seconds": 0.2}
        self.spec = write_spec(folder, ROWS, server.base_url, model=model, **changes)

    def start(self, machine: str, *more: str) -> "subprocess.Popen[str]":
        part = ("--id", "x", "--shards", str(self.shards), *more, *(() if self.mirrored else ("--this-host",)))
        env = {**EXPIRY, "HOLDFAST_CACHE": str(self.folder / f"cache-{machine}")}
        return start("run", self.spec, *part, "--store", self.store(machine), cwd=self.folder, env=env)

    def store(self, machine: str) -> Path:
        return self.folder / (machine if self.mirrored else "runs")

    def call(self, machine: str, *arguments: str) -> Done:
        env = {**EXPIRY, "HOLDFAST_CACHE": str(self.folder / f"cache-{machine}")}
        return call(*arguments, "--store", self.store(machine), cwd=self.folder, env=env)

    def wait_for_requests(self, count: int) -> None:
        while self.server.stats().requests < count:
            time.sleep(0.02)


def grants_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "grants").glob("0*"))]


COST, REQUESTS = {"cost_usd": (LIMIT - 0.5) * A_REQUEST}, {"requests": LIMIT}


@pytest.mark.parametrize(
    ("limits", "mirrored"),
    [
        pytest.param(COST, True, id="cost, mirrored"),
        pytest.param(REQUESTS, False, id="requests, shared"),
        pytest.param(COST, False, id="cost, shared", marks=pytest.mark.long),
        pytest.param(REQUESTS, True, id="requests, mirrored", marks=pytest.mark.long),
    ],
)
def test_all_workers_together_use_up_the_budget_and_exceed_it_by_at_most_one_answer_each(
    tmp_path: Path, limits: dict[str, Any], mirrored: bool
) -> None:
    """One is killed in the middle: what it was granted and has not spent is not lost."""
    with start_server_process(Behaviour(latency_seconds=0.06)) as server:
        workers = Workers(tmp_path, server, limits, mirrored=mirrored)
        processes = [workers.start(name) for name in ("one", "two", "three")]
        workers.wait_for_requests(LIMIT // 3)
        finish(processes[0], signal.SIGKILL)
        for process in processes[1:]:
            done = finish(process)
            assert done.code == 6, done.said
            assert "is used by all workers, or granted to them" in done.err
        # The survivors may have stopped before the dead worker's shard could be taken over.
        last = finish(workers.start("two"))
        assert last.code == 6, last.said
        asked = server.stats().requests
        summary = json.loads(workers.call("two", "show", "x", "--json").out)
        recorded = summary["steps"]["live"]
        assert LIMIT <= recorded <= LIMIT + WORKERS
        lost = 10 * CONNECTIONS if mirrored else CONNECTIONS  # in flight, or not mirrored yet
        assert asked <= recorded + lost
        where = tmp_path / "mirror" / "sums" / "x" if mirrored else tmp_path / "runs" / "sums" / "x"
        assert len(grants_of(where)) < 2 * SHARDS + 20 * WORKERS
        name = next(iter(limits))
        more = workers.call("two", "resume", "x", "--set", f"limits.run.{name}={limits[name] * 100:g}")
        assert more.code == 0, more.said
    summary = json.loads(workers.call("two", "show", "x", "--json").out)
    assert (summary["status"], summary["finished"]) == ("completed", ROWS)


@pytest.mark.parametrize("mirrored", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_grant_of_a_worker_that_was_killed_before_its_first_heartbeat_is_returned(
    tmp_path: Path, mirrored: bool
) -> None:
    with start_server_process(Behaviour()) as server:
        workers = Workers(tmp_path, server, {"requests": 10}, mirrored=mirrored)
        assert finish(workers.start("one")).code == 6
        where = tmp_path / ("mirror" if mirrored else "runs") / "sums" / "x"
        entries = grants_of(where)
        used = {each["shard"] for each in entries}
        free = next(shard for shard in (f"{number}/{SHARDS}" for number in range(1, SHARDS + 1)) if shard not in used)
        granted = {**entries[-1], "nonce": "n", "shard": free, "epoch": 1, "allowed": {"requests": 5}, "open": True}
        (where / "grants" / f"{len(entries) + 1:06}").write_text(json.dumps(granted))
        done = workers.call("one", "resume", "x", "--set", "limits.run.requests=15")
        assert done.code == 6, done.said
        assert server.stats().requests == 15


def test_a_budget_that_is_tuned_is_that_of_later_shards_too(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        workers = Workers(tmp_path, server, {"requests": 80}, mirrored=False, shards=2)
        process = workers.start("one")
        workers.wait_for_requests(5)  # of about a hundred in the first shard
        tuned = workers.call("one", "tune", "x", "--set", "limits.run.requests=150")
        assert (tuned.code, "1 of 1 workers" in tuned.out) == (0, True), tuned.said
        done = finish(process)
        assert done.code == 6, done.said
        assert server.stats().requests == 150
        assert "holdfast resume x --set limits.run.requests=300" in done.err


def test_time_is_limited_for_all_workers_and_their_restarts_together(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.2)) as server:
        workers = Workers(tmp_path, server, {"seconds": 4}, mirrored=False)
        for done in map(finish, [workers.start("one"), workers.start("two")]):
            assert done.code == 6, done.said
            assert "limits.run.seconds is 4, and the run has worked for" in done.err
        before = server.stats().requests
        again = finish(workers.start("one"))
        assert (again.code, server.stats().requests) == (6, before), again.said
    assert 0 < shown("x", tmp_path / "runs")["finished"] < ROWS


@pytest.mark.parametrize("mirrored", [False, True])
def test_rates_are_divided_by_the_number_of_live_workers(tmp_path: Path, mirrored: bool) -> None:
    with start_server_process(Behaviour(latency_seconds=0.2)) as server:
        workers = Workers(tmp_path, server, {}, mirrored=mirrored)
        rate = ("--set", "models.arith.requests_per_minute=600")
        first = workers.start("one", *rate)
        workers.wait_for_requests(5)
        second = workers.start("two", *rate)
        workers.wait_for_requests(15)
        done = finish(second, signal.SIGINT), finish(first, signal.SIGINT)
    assert "requests and tokens per minute are divided by 2 live workers" in done[0].err
    assert "divided by 1" not in done[0].err + done[1].err


def test_a_shard_without_a_shared_store_gets_its_part_of_the_budget(tmp_path: Path) -> None:
    with start_server_process(Behaviour()) as server:
        workers = Workers(tmp_path, server, {"requests": 40}, mirrored=False)
        done = workers.call("one", "run", str(workers.spec), "--id", "x", "--shard", "1/4")
        assert done.code == 6, done.said
        assert "shard 1/4 shares no store with other workers" in done.err
        assert 5 <= server.stats().requests <= 15
        assert not (tmp_path / "runs" / "sums" / "x" / "grants").exists()
        # With one worker for all shards there is a ledger. It counts what was spent without it.
        rest = workers.call("one", "resume", "x")
        assert (rest.code, server.stats().requests) == (6, 40), rest.said
    lines = exported("x", tmp_path / "runs")
    assert sum(line["status"] == "finished" for line in lines) == 40
