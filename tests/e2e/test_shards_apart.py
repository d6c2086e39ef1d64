"""Workers that share only an object store, each with a disk of its own: killed, stopped, cut off, and given orders."""

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import read_lease
from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import finish, wait_until
from tests.e2e.live_runs import PATIENCE_SECONDS
from tests.e2e.sharded_runs import CONNECTIONS, EXPIRY, SAMPLES, SeparateMachines, Storm, write_run
from tests.networks import Cable
from tests.stores import S3

WAIT = ("--set", "mirror.wait=true", "--set", f"concurrency.samples={CONNECTIONS}")
"""A sample makes its next request only when its last response is in the mirror."""


@pytest.fixture
def machines(tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> SeparateMachines:
    bucket = s3.bucket()
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    return SeparateMachines(tmp_path, bucket.url, {**bucket.env, **EXPIRY})


def write_mirrored_run(machines: SeparateMachines, server: ServerProcess) -> None:
    write_run(machines.folder, server, mirror={"url": machines.mirror, "seconds": 0.3})


class Loss(Storm):
    """Machines that are lost with their disks, every other time; and what was only on the disks."""

    def __init__(self, machines: SeparateMachines, chance: random.Random, *options: str) -> None:
        self._machines_apart = machines
        self.unmirrored = self.losses = 0
        super().__init__(lambda machine: machines.start(machine, *options), chance)

    def after_kill(self, machine: int) -> None:
        self.after_stop(machine)
        if self.kills % 2:
            self._machines_apart.lose_disk(machine)
            self.losses += 1

    def after_stop(self, machine: int) -> None:
        self.unmirrored += self._machines_apart.count_unmirrored(machine)


@pytest.mark.parametrize(
    ("seed", "strikes", "wait"),
    [
        pytest.param(1, 4, False, id="1-watermark"),
        *(pytest.param(seed, 8, False, id=f"{seed}-watermark", marks=pytest.mark.long) for seed in range(2, 6)),
        *(pytest.param(seed, 8, True, id=f"{seed}-wait", marks=pytest.mark.long) for seed in range(1, 6)),
    ],
)
def test_machines_that_are_lost_cost_what_was_in_flight_and_above_the_watermark(
    machines: SeparateMachines, calm: list[dict[str, Any]], seed: int, strikes: int, wait: bool
) -> None:
    chance = random.Random(seed)
    options = WAIT if wait else ()
    with start_server_process(Behaviour(wrong_rate=0.2, latency_seconds=0.15)) as server:
        write_mirrored_run(machines, server)
        storm = Loss(machines, chance, *options)
        try:
            for _ in range(strikes):
                time.sleep(chance.uniform(0.3, 1.5))
                storm.strike()
        finally:
            storm.end()
        assert finish(machines.start("last", *options)).code == 0
        repeats = server.stats().repeats
    assert storm.losses
    assert storm.stops
    assert [each.code for each in storm.done] == [0] * len(storm.done), storm.done
    summary = machines.show()
    assert (summary["status"], summary["finished"], summary["unfinished"]) == ("completed", SAMPLES, 0)
    assert machines.export() == calm
    in_flight = (storm.kills + storm.stops) * CONNECTIONS
    assert repeats <= in_flight + (0 if wait else storm.unmirrored)


def shards_at_work(disk: Path) -> list[str]:
    """The shards that a process with this disk has worked on, in the order of their beginnings."""
    leases = {each.name: read_lease(str(each)) for each in disk.glob("sums/x/shards/*")}
    found = {name: lease.began for name, lease in leases.items() if lease is not None and lease.in_flight}
    return [name.replace("-of-", "/") for name in sorted(found, key=lambda each: found[each])]


@pytest.mark.parametrize("expiry", [3.0, pytest.param(20.0, marks=pytest.mark.long)])
def test_a_worker_that_is_cut_off_makes_no_requests_and_continues_with_other_shards(
    machines: SeparateMachines, calm: list[dict[str, Any]], s3: S3, expiry: float
) -> None:
    env, part = {"HOLDFAST_EXPIRY_SECONDS": str(expiry)}, "--shards=6"
    with (
        start_server_process(Behaviour(wrong_rate=0.2, latency_seconds=expiry / 4)) as own,
        start_server_process(Behaviour(wrong_rate=0.2)) as server,
        Cable(s3.port) as cable,
    ):
        write_mirrored_run(machines, server)
        away = {**env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{cable.port}"}
        worker = machines.start("away", "--set", f"models.arith.base_url={own.base_url}", env=away, shards=part)
        assert wait_until(lambda: own.stats().answered > CONNECTIONS, worker)
        cable.cut()
        cut_at = time.monotonic()
        (shard,) = shards_at_work(machines.disk("away"))
        time.sleep(expiry)  # it makes requests for two thirds of it
        sent = own.stats().requests
        above = machines.count_unmirrored("away")
        other = finish(machines.start("other", env=env, shards=f"--shard={shard}"))
        assert other.code == 0, other.said
        time.sleep(max(cut_at + 3 * expiry - time.monotonic(), 0))
        assert own.stats().requests == sent
        cable.mend()
        assert wait_until(lambda: shards_at_work(machines.disk("away"))[-1] != shard, worker)
        third = machines.start("third", env=env, shards=part)
        done = finish(worker)
        assert (done.code, f"shard {shard} was taken over by another worker" in done.err) == (0, True), done.said
        assert finish(third).code == 0
        requests = own.stats().requests + server.stats().requests
    summary = machines.show()
    assert (summary["status"], summary["finished"], summary["unfinished"]) == ("completed", SAMPLES, 0)
    assert machines.export() == calm
    assert requests <= 2 * SAMPLES + CONNECTIONS + above


@pytest.mark.long
def test_a_worker_that_has_done_all_waits_until_the_mirror_has_it(
    machines: SeparateMachines, calm: list[dict[str, Any]], s3: S3
) -> None:
    with start_server_process(Behaviour(wrong_rate=0.2, latency_seconds=0.05)) as server, Cable(s3.port) as cable:
        write_mirrored_run(machines, server)
        away = {"HOLDFAST_EXPIRY_SECONDS": "20", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{cable.port}"}
        worker = machines.start("away", env=away, shards="--shards=1")
        assert wait_until(lambda: server.stats().answered > CONNECTIONS, worker)
        cable.close()
        assert wait_until(lambda: server.stats().answered == 2 * SAMPLES, worker)
        time.sleep(70)  # more than a worker waits for the mirror when it closes a shard
        cable.mend()
        done = finish(worker)
        assert done.code == 0, done.said
        assert server.stats().repeats == 0
    summary = machines.show()
    assert (summary["status"], summary["finished"]) == ("completed", SAMPLES)
    assert machines.export() == calm


@pytest.fixture
def busy(machines: SeparateMachines) -> Iterator[tuple[ServerProcess, "list[subprocess.Popen[str]]"]]:
    """Workers on the machines `one` and `two`, each in the middle of a shard."""
    with start_server_process(Behaviour(wrong_rate=0.2, latency_seconds=0.6)) as server:
        write_mirrored_run(machines, server)
        workers = [machines.start(each, shards="--shards=4") for each in ("one", "two")]
        for name, worker in zip(("one", "two"), workers, strict=True):
            disk = machines.disk(name)
            assert wait_until(lambda disk=disk: bool(shards_at_work(disk)), worker)  # type: ignore[misc]
        try:
            yield server, workers
        finally:
            for worker in workers:
                finish(worker, signal.SIGKILL if worker.poll() is None else None)


Busy = tuple[ServerProcess, "list[subprocess.Popen[str]]"]


@pytest.mark.long
def test_a_run_is_cancelled_from_another_machine(
    machines: SeparateMachines, busy: Busy, calm: list[dict[str, Any]]
) -> None:
    server, workers = busy
    done = machines.call("one", "cancel")
    assert (done.code, "2 of 2 workers have received it" in done.out) == (0, True), done.said
    assert [finish(worker).code for worker in workers] == [130, 130]
    refused = finish(machines.start("three", shards="--shards=4"))
    assert (refused.code, "was cancelled" in refused.err) == (2, True), refused.said
    assert machines.show()["status"] == "cancelled"
    resumed = machines.call("two", "resume", "--set", "models.arith.max_connections=40")
    assert resumed.code == 0, resumed.said
    assert machines.show()["status"] == "completed"
    assert machines.export() == calm
    assert server.stats().repeats == 0
    again = machines.call("one", "show", "--json").json()
    assert (again["status"], again["finished"]) == ("completed", SAMPLES)


def test_limits_are_changed_from_another_machine(machines: SeparateMachines, busy: Busy) -> None:
    _, workers = busy
    done = machines.call("one", "tune", "--set", "concurrency.samples=2")
    assert (done.code, "2 of 2 workers have received it" in done.out) == (0, True), done.said
    for name in ("one", "two"):
        logs = machines.disk(name).glob("sums/x/shards/*/log.jsonl")
        assert any('"run.tuned"' in path.read_text() for path in logs), name
    finish(workers[1], signal.SIGKILL)
    left = machines.call("one", "tune", "--set", "concurrency.samples=3")
    assert (left.code, "1 of 1 workers have received it" in left.out) == (0, True), left.said
    refused = machines.call("one", "tune", "--set", "seed=3")
    assert (refused.code, "seed is a result field" in refused.err) == (2, True), refused.said


def test_a_machine_that_has_only_the_url_sees_all_shards_and_workers(machines: SeparateMachines, busy: Busy) -> None:
    _, workers = busy
    end = time.monotonic() + PATIENCE_SECONDS
    while (shards := machines.show()["shards"]) and len(live := running(shards)) < 2:
        assert time.monotonic() < end
    assert len(shards) == 4
    assert {each["worker"].split()[1] for each in live} == {str(worker.pid) for worker in workers}
    assert sum(each["planned"] for each in live) > 0
    other = machines.call("one", "show", "--json").json()["shards"]
    assert len(running(other)) == 2


def running(shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in shards if each["status"] == "running"]


@pytest.mark.long
def test_an_extension_reaches_workers_on_other_machines(machines: SeparateMachines, calm: list[dict[str, Any]]) -> None:
    with start_server_process(Behaviour(wrong_rate=0.2, latency_seconds=0.3)) as server:
        write_mirrored_run(machines, server)
        first = machines.start("one", "--limit", "60", shards="--shards=4")
        assert wait_until(lambda: server.stats().answered > CONNECTIONS, first)
        assert finish(first, signal.SIGTERM).code == 130
        other = machines.start("two", "--limit", "60", shards="--shards=4")
        assert wait_until(lambda: bool(shards_at_work(machines.disk("two"))), other)
        extended = machines.call("one", "extend", "--set", "limit=null")
        assert extended.code == 0, extended.said
        done = finish(other)
        assert done.code == 0, done.said
        repeats = server.stats().repeats
    assert machines.show()["finished"] == SAMPLES
    assert machines.export() == calm
    assert repeats == 0
    journals = machines.disk("two").glob("sums/x/shards/*/started.jsonl")
    assert any('"run.extended"' in path.read_text() for path in journals)
