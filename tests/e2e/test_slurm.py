"""A real array job on a one-node Slurm: a task is killed and requeued, and the run completes."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.journal import read_lease
from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import exported, run, shown, write_spec
from tests.slurm import SlurmCluster, slurm_cluster

SAMPLES = 160
CONNECTIONS = 2
PATIENCE_SECONDS = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def wait_for(happened: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < end, f"{what}: not in {PATIENCE_SECONDS} s"
        time.sleep(0.2)


def finished(store: Path) -> int:
    leases = [read_lease(str(each)) for each in store.glob("*/x/shards/*")]
    return sum(lease.finished for lease in leases if lease is not None)


def worker_of(store: Path, task: str) -> int:
    """The process of a task that works on a shard."""
    for folder in store.glob("*/x/shards/*"):
        lease = read_lease(str(folder))
        if lease is not None and not lease.released:
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{lease.holder.pid}/environ").read_bytes().split(b"\0")
                if f"SLURM_ARRAY_TASK_ID={task}".encode() in variables:
                    return lease.holder.pid
    raise AssertionError(f"task {task} works on no shard")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.long
def test_a_task_that_is_killed_and_one_that_is_requeued_leave_a_complete_run(
    tmp_path: Path, cluster: SlurmCluster
) -> None:
    store = tmp_path / "runs"
    with start_server_process(Behaviour(latency_seconds=0.4)) as server:
        spec = write_spec(tmp_path, SAMPLES, server.base_url, model={"max_connections": CONNECTIONS})
        words = ("launch", "slurm", spec, "--id", "x", "--store", store, "--shards", "6", "--workers", "2")
        env = {**cluster.environment, "HOLDFAST_EXPIRY_SECONDS": "3"}
        submitted = run(*words, "--this-host", "--submit", cwd=tmp_path, env=env)
        assert submitted.code == 0, submitted.said
        assert "Submitted batch job" in submitted.out
        wait_for(lambda: finished(store) > 10, "first answers")

        # A preemption: Slurm stops the task and puts it back into the queue.
        cluster.command("scontrol", "requeue", cluster.job_of("1"))
        wait_for(lambda: cluster.tasks().get("1") != "RUNNING", "task 1 stops")
        # A kill without a warning, of the worker and its shell; then an administrator requeues the task.
        job = cluster.job_of("2")
        worker = worker_of(store, task="2")
        for pid in (parent_of(worker), worker):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: cluster.tasks().get("2") != "RUNNING", "task 2 is killed")
        cluster.command("scontrol", "requeue", job)
        wait_for(lambda: not cluster.tasks(), "the job ends")
        repeats = server.stats().repeats
    logs = {each.name: each.read_text() for each in tmp_path.glob("holdfast-x-*.log")}
    assert len(logs) == 2, "each task appends to its own file"
    assert sum(log.count("SIGTERM: stopping") for log in logs.values()) == 1, logs
    found = shown("x", store)
    assert (found["status"], found["finished"]) == ("completed", SAMPLES), logs
    lines = exported("x", store)
    assert len({line["key"] for line in lines if line["status"] == "finished"}) == SAMPLES
    assert repeats <= CONNECTIONS, "only what was in flight at the kill was sent twice"


@pytest.mark.long
def test_a_task_that_reaches_its_time_limit_is_requeued_and_continues(tmp_path: Path, cluster: SlurmCluster) -> None:
    store = tmp_path / "runs"
    with start_server_process(Behaviour(latency_seconds=1.0)) as server:
        # Slurm sends the signal 90 s before the limit of 3 minutes: one worker needs about 2 minutes.
        spec = write_spec(tmp_path, 120, server.base_url, model={"max_connections": 1}, grace_seconds=0)
        words = ("launch", "slurm", spec, "--id", "x", "--store", store, "--shards", "2", "--workers", "1")
        done = run(*words, "--this-host", "--option=--time=3", "--submit", cwd=tmp_path, env=cluster.environment)
        assert done.code == 0, done.said
        wait_for(lambda: not cluster.tasks(), "the job ends")
        repeats = server.stats().repeats
    (log,) = [each.read_text() for each in tmp_path.glob("holdfast-x-*.log")]
    assert "stopped before the time limit; requeued to continue" in log, log
    assert shown("x", store)["finished"] == 120, log
    assert repeats <= 1
