"""A machine that is gone, and the same command on another one: the mirror has what the watermark says, and the run ends
as if nothing had happened.
"""

import json
import random
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, finish, run, shown, start, wait_until, write_spec
from tests.e2e.live_runs import ASK_TWICE, wait_for
from tests.journals import read_all
from tests.stores import S3, Bucket

S3_FIRST = pytest.mark.parametrize("kind_of_store", ["s3", pytest.param("folder", marks=pytest.mark.long)])
"""What a kind of store changes little about, the quick tests see with one of them."""

SAMPLES = 60
TURNS = 2
CONNECTIONS = 6
RUN = "x"
EXPIRY = "6"
SLOW = Behaviour(latency_seconds=0.03, jitter_seconds=0.03, wrong_rate=0.2)


class Machine(NamedTuple):
    """One folder on one machine, with the spec in it and nothing else."""

    folder: Path
    server: ServerProcess
    env: dict[str, str]

    @property
    def store(self) -> Path:
        return self.folder / "runs"

    @property
    def run(self) -> Path:
        return self.store / "sums" / RUN

    @property
    def command(self) -> tuple[str | Path, ...]:
        return "run", self.folder / "eval.yaml", "--id", RUN, "--store", self.store

    def start(self) -> "subprocess.Popen[str]":
        return start(*self.command, cwd=self.folder, env=self.env)

    def to_the_end(self) -> Done:
        return run(*self.command, cwd=self.folder, env=self.env)

    def acknowledged(self) -> dict[int, bytes]:
        """The records that this machine has."""
        return read_all(str(self.run / "journal"), uid=None).lines

    def mirrored(self) -> int:
        """The watermark, as the run itself tells it."""
        try:
            return int(json.loads((self.run / "lease.json").read_text()).get("mirrored") or 0)
        except (OSError, json.JSONDecodeError):
            return 0


class Stage(NamedTuple):
    """Where machines come from."""

    root: Path
    server: ServerProcess
    mirror: dict[str, Any]
    env: dict[str, str]

    def machine(self, name: str, **changes: Any) -> Machine:
        folder = self.root / name
        folder.mkdir()
        (folder / "twice.py").write_text(ASK_TWICE)
        task = {"solver": "twice:ask_twice", "scorers": ["numeric", "exact_match"]}
        wanted: dict[str, Any] = {"model": {"max_connections": CONNECTIONS}, "task": task, "mirror": self.mirror}
        write_spec(folder, SAMPLES, self.server.base_url, **{**wanted, **changes})
        return Machine(folder, self.server, self.env)


@contextmanager
def staged(root: Path, bucket: Bucket, behaviour: Behaviour = SLOW, **mirror: Any) -> Iterator[Stage]:
    with start_server_process(behaviour) as server:
        wanted = {"url": f"{bucket.url}/evals @ 100%/ünï", "seconds": 0.05, **mirror}
        yield Stage(root, server, wanted, {**bucket.env, "HOLDFAST_EXPIRY_SECONDS": EXPIRY})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The export of a run that nobody killed and nobody mirrored."""
    with start_server_process(Behaviour(wrong_rate=0.2)) as server:
        machine = Stage(tmp_path_factory.mktemp("uninterrupted"), server, {}, {}).machine("m", mirror=None)
        done = machine.to_the_end()
        assert done.code == 0, done.err
    return without_times(exported(RUN, machine.store))


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


class Lost(NamedTuple):
    """What was known when a machine was lost."""

    requests: int
    watermark: int
    steps_below: int
    """Steps that the mirror had: none of them may be asked again."""


def lose(machine: Machine, requests: int) -> Lost:
    """Start the run, kill it when the server has got so many more requests, and throw its folder away."""
    before = machine.server.stats().requests
    with machine.start() as process:
        happened = wait_until(lambda: machine.server.stats().requests >= before + requests, process)
        assert happened, f"the run ended before it was killed: {finish(process).err}"
        finish(process, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    watermark = machine.mirrored()
    lines = machine.acknowledged()
    below = sum(b'"t":"step"' in line for n, line in lines.items() if n <= watermark)
    shutil.rmtree(machine.folder)
    return Lost(machine.server.stats().requests, watermark, below)


def problems(machine: Machine, uninterrupted: list[dict[str, Any]], losses: list[Lost]) -> list[str]:
    """All that is promised of a run that went on after losses, and does not hold."""
    found = []
    lines = exported(RUN, machine.store)
    if Counter(line["key"] for line in lines) != Counter(line["key"] for line in uninterrupted):
        found.append("not every key is there once")
    if without_times(lines) != uninterrupted:
        found.append("the export differs from that of a run that was not interrupted")
    told = shown(RUN, machine.store)
    if (told["status"], told["finished"], told["failed"]) != ("completed", SAMPLES, 0):
        found.append(f"it is {told['status']}: {told['finished']} finished, {told['failed']} failed")
    if losses:
        last = losses[-1]
        asked = machine.server.stats().requests - last.requests
        if asked > SAMPLES * TURNS - last.steps_below:
            found.append(f"{asked} requests after the loss; {last.steps_below} steps were in the mirror by then")
    verified = call("verify", RUN, "--store", machine.store, cwd=machine.folder)
    if verified.code != 0:
        found.append(f"verify: {verified.err}{verified.out}")
    return found


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.long) for s in range(2, 21))])
def test_a_machine_that_is_lost_is_replaced_by_another_with_the_same_command(
    tmp_path: Path, bucket: Bucket, uninterrupted: list[dict[str, Any]], seed: int
) -> None:
    """Each time the whole folder goes with it."""
    chance = random.Random(seed)
    moments = [chance.randint(1, 30) for _ in range(chance.randint(1, 3))]
    with staged(tmp_path, bucket) as stage:
        losses = [lose(stage.machine(f"m{number}"), moment) for number, moment in enumerate(moments)]
        last = stage.machine("last")
        done = last.to_the_end()
        assert done.code == 0, done.err
        assert problems(last, uninterrupted, losses) == []


@pytest.mark.parametrize("kind_of_store", ["azure", "google"])
def test_the_other_clouds_bring_a_machine_back_too(
    tmp_path: Path, bucket: Bucket, uninterrupted: list[dict[str, Any]]
) -> None:
    with staged(tmp_path, bucket) as stage:
        lost = lose_after_watermark(stage.machine("m0"), 8)
        last = stage.machine("last")
        done = last.to_the_end()
        assert done.code == 0, done.err
        assert lost.steps_below > 0
        assert problems(last, uninterrupted, [lost]) == []


def test_a_mirror_that_keeps_nothing_is_what_these_checks_find(
    tmp_path: Path, uninterrupted: list[dict[str, Any]]
) -> None:
    """The negative control: the same, with a mirror that is emptied before the second machine looks."""
    bucket = Bucket((tmp_path / "mirror").as_uri(), {})
    with staged(tmp_path, bucket) as stage:
        first = stage.machine("m0")
        before = lose_after_watermark(first, 8)
        shutil.rmtree(tmp_path / "mirror")
        last = stage.machine("last")
        assert last.to_the_end().code == 0
        found = problems(last, uninterrupted, [before])
    assert len(found) == 1
    assert "steps were in the mirror by then" in found[0]


def lose_after_watermark(machine: Machine, records: int) -> Lost:
    """Lose a machine whose mirror has at least so many records."""
    with machine.start() as process:
        assert wait_until(lambda: machine.mirrored() >= records, process)
        finish(process, signal.SIGKILL)
    lines = machine.acknowledged()
    watermark = machine.mirrored()
    below = sum(b'"t":"step"' in line for n, line in lines.items() if n <= watermark)
    shutil.rmtree(machine.folder)
    return Lost(machine.server.stats().requests, watermark, below)


@S3_FIRST
def test_a_sample_that_had_begun_continues_where_its_last_step_is(
    tmp_path: Path, bucket: Bucket, uninterrupted: list[dict[str, Any]]
) -> None:
    """With `wait`, every answer that was delivered is there: only what was in flight is asked again."""
    with staged(tmp_path, bucket, wait=True) as stage:
        # Acknowledgements of the mirror keep the samples in step, so that this is in the middle of their second turn.
        lost = lose(stage.machine("m0"), 3 * CONNECTIONS + CONNECTIONS // 2)
        last = stage.machine("last")
        assert last.to_the_end().code == 0
        assert problems(last, uninterrupted, [lost]) == []
        assert stage.server.stats().repeats <= CONNECTIONS
        assert shown(RUN, last.store)["steps"]["replayed"] > 0


def asked(server: ServerProcess, requests: int, process: "subprocess.Popen[str]") -> bool:
    """Wait until the server has had so many."""
    return wait_until(lambda: server.stats().requests >= requests, process)


@pytest.mark.parametrize(
    ("latency", "requests"), [(0.3, 40), pytest.param(4.0, 96, id="of more than a minute", marks=pytest.mark.long)]
)
def test_an_outage_in_the_middle_neither_slows_nor_hurts_the_run(
    tmp_path: Path, uninterrupted: list[dict[str, Any]], latency: float, requests: int
) -> None:
    s3 = S3()
    try:
        with staged(tmp_path, s3.bucket(), Behaviour(latency_seconds=latency, wrong_rate=0.2)) as stage:
            machine = stage.machine("m0")
            with machine.start() as process:
                assert wait_until(lambda: machine.mirrored() > 0, process)
                s3.stop()
                at = stage.server.stats().requests
                assert at <= SAMPLES * TURNS / 2
                for more in (requests // 2, requests):
                    assert asked(stage.server, at + more, process), "the run has ended"
                s3.go_on()
                done = finish(process)
            assert done.code == 0, done.err
            events = [json.loads(line)["event"] for line in (machine.run / "log.jsonl").read_text().splitlines()]
            assert "mirror.failed" in events
            assert "mirror.restored" in events
            shutil.rmtree(machine.folder)
            last = stage.machine("last")
            assert last.to_the_end().code == 0
            assert stage.server.stats().repeats == 0
            assert problems(last, uninterrupted, []) == []
    finally:
        s3.close()


@S3_FIRST
def test_a_writer_that_was_stopped_finds_itself_replaced_and_stops(
    tmp_path: Path, bucket: Bucket, uninterrupted: list[dict[str, Any]]
) -> None:
    with staged(tmp_path, bucket) as stage:
        stopped, other = stage.machine("stopped"), stage.machine("other")
        with stopped.start() as zombie:
            try:
                assert wait_until(lambda: stopped.mirrored() > 5, zombie)
                zombie.send_signal(signal.SIGSTOP)
                done = other.to_the_end()  # it waits for the expiry of the other
                assert done.code == 0, done.err
                requests = stage.server.stats().requests
                zombie.send_signal(signal.SIGCONT)
                woken = finish(zombie)
            finally:
                zombie.kill()
        assert woken.code == 4, woken.err
        assert "taken over by another process" in woken.err
        assert "Traceback" not in woken.err
        assert stage.server.stats().requests < requests + SAMPLES, "it went on as if nothing had happened"
        assert problems(other, uninterrupted, []) == []
        third = stage.machine("third")
        assert third.to_the_end().code == 0
        assert problems(third, uninterrupted, []) == [], "what the zombie wrote counts"
        again = stopped.to_the_end()
        assert again.code == 0, again.err
        assert problems(stopped, uninterrupted, []) == [], "what the zombie wrote counts, at its own place"


@S3_FIRST
def test_of_two_machines_that_start_at_once_one_wins(
    tmp_path: Path, bucket: Bucket, uninterrupted: list[dict[str, Any]]
) -> None:
    with staged(tmp_path, bucket, Behaviour(latency_seconds=0.4, wrong_rate=0.2)) as stage:
        machines = [stage.machine("a"), stage.machine("b")]
        processes = [machine.start() for machine in machines]
        ends = [finish(process) for process in processes]
        codes = sorted(end.code for end in ends)
        assert codes == [0, 4], [end.err for end in ends]
        loser = next(end for end in ends if end.code == 4)
        assert "another" in loser.err
        assert "Traceback" not in loser.err
        assert stage.server.stats().repeats == 0
        winner = machines[[end.code for end in ends].index(0)]
        assert problems(winner, uninterrupted, []) == []


@S3_FIRST
def test_drift_on_the_new_machine_is_refused_and_leaves_the_holder_alone(tmp_path: Path, bucket: Bucket) -> None:
    with staged(tmp_path, bucket) as stage:
        holder = stage.machine("holder")
        other = stage.machine("other", seed=99)
        with holder.start() as process:
            assert wait_until(lambda: holder.mirrored() > 5, process)
            refused = other.to_the_end()
            done = finish(process)
        assert refused.code == 3, refused.err
        assert "seed" in refused.err
        assert done.code == 0, done.err
        assert stage.server.stats().repeats == 0


@S3_FIRST
def test_a_complete_run_is_only_fetched_and_reported_on_another_machine(tmp_path: Path, bucket: Bucket) -> None:
    with staged(tmp_path, bucket, Behaviour()) as stage:
        first = stage.machine("first")
        assert first.to_the_end().code == 0
        requests = stage.server.stats().requests
        done = stage.machine("second").to_the_end()
        assert done.code == 0, done.err
        assert stage.server.stats().requests == requests


def test_what_a_machine_could_not_send_is_sent_by_its_next_start(tmp_path: Path) -> None:
    s3 = S3()
    try:
        with staged(tmp_path, s3.bucket(), Behaviour(latency_seconds=0.1, wrong_rate=0.2)) as stage:
            first = stage.machine("first")
            with first.start() as process:
                assert wait_until(lambda: first.mirrored() > 5, process)
                process.send_signal(signal.SIGSTOP)  # it must not end before the store does
                s3.stop()
                finish(process, signal.SIGKILL)
            refused = first.to_the_end()
            assert refused.code == 2
            assert "a start needs its mirror" in refused.err
            s3.go_on()
            wait_for_port(s3)
            assert first.to_the_end().code == 0
            shutil.rmtree(first.folder)
            second = stage.machine("second")
            assert second.to_the_end().code == 0
            assert len(exported(RUN, second.store)) == SAMPLES
    finally:
        s3.close()


def wait_for_port(s3: S3) -> None:
    def answers() -> bool:
        import socket

        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", s3.port)) == 0

    wait_for(answers, "the store answers")
