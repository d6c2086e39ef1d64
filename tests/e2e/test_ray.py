"""Workers of a sharded run on a real Ray cluster of two nodes: a worker, a node and the driver are killed."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import environment, shown, start
from tests.e2e.sharded_runs import (
    CONNECTIONS,
    EXPIRY,
    SAMPLES,
    WORKERS,
    SeparateMachines,
    check_whole,
    write_run,
)
from tests.stores import S3

SHARDS = 8
PATIENCE_SECONDS = 180
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback only
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    **EXPIRY,
}


class ClusterProcess:
    """Two nodes on this machine."""

    def __init__(self, stores: Path) -> None:
        self.stores = stores
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("child_cluster.py")), str(stores)],
            env=environment(RAY),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._timer = threading.Timer(1800, self._process.kill)
        self._timer.start()
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    @property
    def problem(self) -> str:
        """Why Ray could not start; empty if it did."""
        if self.address:
            return ""
        assert self._process.stderr is not None
        lines = self._process.stderr.read().strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.wait()}"

    def order(self, what: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def end(self) -> None:
        self._timer.cancel()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=60)
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    pytest.importorskip("ray")
    found = ClusterProcess(tmp_path_factory.mktemp("nodes"))
    try:
        if found.problem:
            pytest.skip(f"Ray cannot start on this machine: {found.problem}")
        yield found
    finally:
        found.end()


class Driver:
    """The command that places workers, and what it has printed so far."""

    def __init__(self, folder: Path, spec: Path, address: str, *, apart: bool = False) -> None:
        """`apart`: each node has a store of its own."""
        where = () if apart else ("--this-host", "--store", folder / "runs")
        ray = ("--executor", "ray", "--address", address, "--workers", str(WORKERS))
        options = ("--id", "x", "--shards", str(SHARDS), *where, *ray)
        self.process = start("run", spec, *options, cwd=folder, env=RAY, fresh=True)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)

    @property
    def said(self) -> str:
        return "".join(self._lines)

    def workers(self) -> dict[int, int]:
        """The process id of each worker, of the newest if it was replaced."""
        found = re.findall(r"^worker (\d+) runs on \S+ \(process (\d+)\)$", self.said, re.MULTILINE)
        return {int(worker): int(pid) for worker, pid in found}

    def end(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(self.said) from None
        self._reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


def wait_for(happened: Callable[[], bool], driver: Driver) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert driver.process.poll() is None, driver.said
        assert time.monotonic() < end, driver.said
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with start_server_process(Behaviour(wrong_rate=0.2, latency_seconds=0.4)) as found:
        yield found


@pytest.mark.long
def test_workers_and_actors_that_are_killed_are_replaced(
    tmp_path: Path, calm: list[dict[str, Any]], server: ServerProcess, cluster: ClusterProcess
) -> None:
    driver = Driver(tmp_path, write_run(tmp_path, server), cluster.address)
    wait_for(lambda: len(driver.workers()) == WORKERS and server.stats().answered > 20, driver)
    first, second, *_ = driver.workers().values()
    os.kill(first, signal.SIGKILL)
    os.kill(parent(second), signal.SIGKILL)  # the actor: its worker stops in good order
    wait_for(lambda: driver.said.count("starting another") == 2, driver)
    assert driver.end() == 0, driver.said
    assert "killed by signal 9" in driver.said
    assert "the process of its actor died" in driver.said
    assert not is_alive(second)
    check_whole(tmp_path, calm)
    assert server.stats().repeats <= 2 * CONNECTIONS


@pytest.mark.long
def test_workers_of_a_lost_node_are_replaced_on_another(
    tmp_path: Path, calm: list[dict[str, Any]], cluster: ClusterProcess
) -> None:
    # Slow, so that there is still work when Ray notices the loss, about 15 seconds later.
    with start_server_process(Behaviour(wrong_rate=0.2, latency_seconds=2.0)) as server:
        driver = Driver(tmp_path, write_run(tmp_path, server), cluster.address)
        wait_for(lambda: len(driver.workers()) == WORKERS and server.stats().answered > 8, driver)
        cluster.order("remove")
        try:
            assert driver.end() == 0, driver.said
        finally:
            cluster.order("add")
        assert "its node died; starting another" in driver.said
        repeats = server.stats().repeats
    check_whole(tmp_path, calm)
    assert repeats <= WORKERS * CONNECTIONS


@pytest.mark.long
def test_the_same_command_continues_after_the_driver_was_killed(
    tmp_path: Path, calm: list[dict[str, Any]], server: ServerProcess, cluster: ClusterProcess
) -> None:
    spec = write_run(tmp_path, server)
    driver = Driver(tmp_path, spec, cluster.address)
    wait_for(lambda: len(driver.workers()) == WORKERS and server.stats().answered > 20, driver)
    workers = driver.workers().values()
    assert driver.end(signal.SIGKILL) == -signal.SIGKILL
    end = time.monotonic() + PATIENCE_SECONDS
    while any(map(is_alive, workers)):
        assert time.monotonic() < end
        time.sleep(0.1)
    left = shown("x", tmp_path / "runs")["unfinished"]
    assert 0 < left < SAMPLES
    again = Driver(tmp_path, spec, cluster.address)
    assert again.end() == 0, again.said
    check_whole(tmp_path, calm)
    assert server.stats().repeats <= WORKERS * CONNECTIONS
    done = Driver(tmp_path, spec, cluster.address)
    assert done.end() == 0, done.said
    assert "is complete: no request was sent" in done.said
    assert not done.workers()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_driver_stops_all_workers_in_good_order(
    tmp_path: Path, calm: list[dict[str, Any]], server: ServerProcess, cluster: ClusterProcess, number: signal.Signals
) -> None:
    spec = write_run(tmp_path, server)
    driver = Driver(tmp_path, spec, cluster.address)
    wait_for(lambda: len(driver.workers()) == WORKERS and server.stats().answered > 20, driver)
    assert driver.end(number) == 130, driver.said
    assert f"{number.name}: stopping the workers" in driver.said
    assert "Continue with: " in driver.said
    assert not any(map(is_alive, driver.workers().values()))
    assert "starting another" not in driver.said
    again = Driver(tmp_path, spec, cluster.address)
    assert again.end() == 0, again.said
    check_whole(tmp_path, calm)
    assert server.stats().repeats == 0


@pytest.mark.long
def test_without_an_address_a_ray_on_this_machine_is_started(
    tmp_path: Path, calm: list[dict[str, Any]], server: ServerProcess
) -> None:
    pytest.importorskip("ray")
    spec = write_run(tmp_path, server)
    options = ("--id", "x", "--store", tmp_path / "runs", "--shards", "4", "--set", "workers.cpus=0.5")
    with start("run", spec, *options, "--executor", "ray", cwd=tmp_path, env=RAY, fresh=True) as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    if "no connection to local" in err:
        pytest.skip(f"Ray cannot start on this machine: {err}")
    assert process.returncode == 0, err
    assert out.startswith("sums/x  completed\n")  # nothing of Ray on standard output
    assert f"{SAMPLES}/{SAMPLES}  100%" in err
    check_whole(tmp_path, calm)
    assert server.stats().repeats == 0


@pytest.mark.long
def test_nodes_that_share_only_a_mirror_and_a_disk_that_is_lost(
    tmp_path: Path, calm: list[dict[str, Any]], cluster: ClusterProcess, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3.bucket()
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    machines = SeparateMachines(tmp_path, bucket.url, bucket.env)
    with start_server_process(Behaviour(wrong_rate=0.2, latency_seconds=1.0)) as server:
        spec = write_run(
            tmp_path,
            server,
            mirror={"url": bucket.url, "seconds": 0.3, "wait": True},
            concurrency={"samples": CONNECTIONS},
        )
        driver = Driver(tmp_path, spec, cluster.address, apart=True)
        stores = [cluster.stores / name for name in ("node-1", "node-2")]
        wait_for(lambda: all(any(each.glob("sums/x/shards/*/lease.json")) for each in stores), driver)
        wait_for(lambda: server.stats().answered > 20, driver)
        cluster.order("remove")
        shutil.rmtree(stores[1])
        try:
            assert driver.end() == 0, driver.said
        finally:
            cluster.order("add")
        repeats = server.stats().repeats
    assert list((tmp_path / "runs" / "sums" / "x" / "shards").iterdir()) == []
    summary = machines.show()
    assert (summary["status"], summary["finished"]) == ("completed", SAMPLES)
    assert machines.export() == calm
    assert repeats <= WORKERS * CONNECTIONS
