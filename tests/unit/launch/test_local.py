"""Workers on this machine: which of them are started again, and what their leases add up to."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.journal import write_lease
from holdfast.journal.ownership.lease import Holder, Lease
from holdfast.launch import LocalWorkers, RunProgress
from holdfast.launch.local import divide_cores
from holdfast.records import Shard
from holdfast.runs import shard_location
from holdfast.runs.store.lookup import run_location


def poll_until(happened: Callable[[], bool], workers: LocalWorkers) -> list[str]:
    """The messages until then."""
    messages: list[str] = []
    for _ in range(3000):
        messages += workers.poll()
        if happened():
            return messages
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_worker_that_is_killed_again_and_again_is_given_up(tmp_path: Path) -> None:
    workers = LocalWorkers(command("import os; os.kill(os.getpid(), 9)"), 1, str(tmp_path))
    workers.start()
    messages = poll_until(lambda: not workers.pids, workers)
    assert messages == ["worker 1 was killed by SIGKILL; started again"] * 5 + [
        "worker 1 was killed by SIGKILL for the 6th time; it is not started again"
    ]
    assert [end.code for end in workers.ends] == [-signal.SIGKILL]


def test_a_worker_that_fails_by_itself_is_not_started_again(tmp_path: Path) -> None:
    workers = LocalWorkers(command("print('why'); raise SystemExit(3)"), 2, str(tmp_path))
    workers.start()
    assert poll_until(lambda: not workers.pids, workers) == []
    assert [(end.code, end.last_lines()) for end in workers.ends] == [(3, "why")] * 2


def test_a_signal_reaches_all_workers_and_none_is_started_again(tmp_path: Path) -> None:
    workers = LocalWorkers(command("print('up', flush=True); import time; time.sleep(600)"), 2, str(tmp_path))
    workers.start()
    logs = [tmp_path / f"worker-{number}.log" for number in (1, 2)]
    poll_until(lambda: all(log.exists() and log.read_text() for log in logs), workers)
    workers.stop(signal.SIGTERM)
    assert poll_until(lambda: not workers.pids, workers) == []
    assert [end.code for end in workers.ends] == [-signal.SIGTERM] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can restrict a process to cores")
def test_each_worker_runs_on_its_part_of_the_cores(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    count = min(len(before), 2)
    workers = LocalWorkers(command("import os; print(sorted(os.sched_getaffinity(0)))"), count, str(tmp_path))
    workers.start()
    poll_until(lambda: not workers.pids, workers)
    found = [json.loads(end.last_lines()) for end in workers.ends]
    assert sorted(core for each in found for core in each) == sorted(before), "each core belongs to one worker"
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("count", "groups"),
    [(1, [[0, 2, 4, 5, 7]]), (2, [[0, 2], [4, 5, 7]]), (5, [[0], [2], [4], [5], [7]]), (6, [[]] * 6)],
)
def test_cores_are_divided_evenly_and_not_at_all_among_more_workers(
    monkeypatch: pytest.MonkeyPatch, count: int, groups: list[list[int]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 0, 4, 5, 2})
    assert divide_cores(count) == groups


def test_the_progress_adds_up_the_shards(tmp_path: Path) -> None:
    root = run_location(str(tmp_path), "e", "x")
    for number, (finished, end, pid) in enumerate([(5, "run.completed", 1), (2, "", 7), (1, "", 8)], 1):
        folder = shard_location(root, Shard(number, 4)).folder
        Path(folder).mkdir(parents=True)
        lease = Lease(Holder(pid, "here"), 1, 1, 0.0, 0.0, 30.0, planned=5, finished=finished, in_flight=3, end=end)
        write_lease(folder, lease)
    progress = RunProgress(root, 4)
    before = progress.read(20, (), 100.0)
    assert (before.before, before.started) == (8, 100.0)
    found = progress.read(20, {7}, 200.0)
    assert (found.finished, found.before, found.started) == (8, 8, 100.0)
    assert (found.shards_done, found.shards, found.workers) == (1, 4, 1)
    assert found.in_flight == 3, "the worker of the third shard is dead"
