"""Workers on this machine: which of them are started again, and what their leases add up to."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.journal import write_lease
from holdfast.journal.ownership.lease import Holder, Lease
from holdfast.launch import LocalWorkers, read_progress
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


def test_the_progress_adds_up_the_shards(tmp_path: Path) -> None:
    root = run_location(str(tmp_path), "e", "x")
    for number, (finished, end, pid) in enumerate([(5, "run.completed", 1), (2, "", 7), (1, "", 8)], 1):
        folder = shard_location(root, Shard(number, 4)).folder
        Path(folder).mkdir(parents=True)
        lease = Lease(Holder(pid, "here"), 1, 1, 0.0, 0.0, 30.0, planned=5, finished=finished, in_flight=3, end=end)
        write_lease(folder, lease)
    before = read_progress(root, 4, 20, (), None, 100.0)
    assert (before.before, before.started) == (8, 100.0)
    found = read_progress(root, 4, 20, {7}, before, 200.0)
    assert (found.finished, found.before, found.started) == (8, 8, 100.0)
    assert (found.shards_done, found.shards, found.workers) == (1, 4, 1)
    assert found.in_flight == 3, "the worker of the third shard is dead"
