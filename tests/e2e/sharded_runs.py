"""Sharded runs in several processes, for tests that kill, stop and cut off workers."""

import json
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.journal import FolderSource, MirrorSource, SegmentPiece
from holdfast.journal.object_store import open_objects
from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, finish, run, shown, start, write_spec
from tests.e2e.live_runs import ASK_TWICE

SAMPLES = 120
SHARDS = 12
WORKERS = 3
CONNECTIONS = 4
EXPIRY = {"HOLDFAST_EXPIRY_SECONDS": "2"}
"""So that a test need not wait long for the shard of a dead worker."""


def write_run(folder: Path, server: ServerProcess, **changes: Any) -> Path:
    """A spec whose samples take two requests each."""
    (folder / "twice.py").write_text(ASK_TWICE)
    task = {"solver": "twice:ask_twice", "scorers": ["numeric", "exact_match"]}
    return write_spec(folder, SAMPLES, server.base_url, model={"max_connections": CONNECTIONS}, task=task, **changes)


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what depends on how long things took, such as the anomaly `slow`."""
    left_out = ("seconds", "attempt", "anomalies")
    return [{name: value for name, value in line.items() if name not in left_out} for line in lines]


def run_calmly(folder: Path) -> list[dict[str, Any]]:
    """The export of a run of one process that nobody kills."""
    with start_server_process(Behaviour(wrong_rate=0.2)) as server:
        spec = write_run(folder, server)
        done = run("run", spec, "--id", "x", "--store", folder / "runs", cwd=folder)
        assert done.code == 0, done.err
    return without_times(exported("x", folder / "runs"))


def check_whole(folder: Path, calm: list[dict[str, Any]]) -> None:
    """The run in the store of a folder is complete, undamaged, and has the same answers as a calm one."""
    summary = shown("x", folder / "runs")
    assert (summary["status"], summary["finished"], summary["unfinished"]) == ("completed", SAMPLES, 0)
    assert without_times(exported("x", folder / "runs")) == calm
    checked = call("verify", "x", "--store", folder / "runs", cwd=folder)
    assert checked.code == 0, checked.said


class Storm:
    """Workers that are killed and stopped at random. `begin` starts one on a machine; machines are numbered."""

    def __init__(self, begin: "Callable[[int], subprocess.Popen[str]]", chance: random.Random) -> None:
        self.chance = chance
        self.kills = self.stops = 0
        self.done: list[Done] = []
        self._begin = begin
        self._machines = 0
        self._stopped: list[subprocess.Popen[str]] = []
        self._workers = [self._begin_on_new() for _ in range(WORKERS)]

    def strike(self) -> None:
        """Kill a worker or stop it, and start another."""
        index = self.chance.randrange(WORKERS)
        machine, process = self._workers[index]
        if process.poll() is not None:
            return
        if self.kills <= self.stops:
            finish(process, signal.SIGKILL)
            self.kills += 1
            self.after_kill(machine)
            self._workers[index] = machine, self._begin(machine)
        else:
            process.send_signal(signal.SIGSTOP)
            self._stopped.append(process)
            self.stops += 1
            self.after_stop(machine)
            self._workers[index] = self._begin_on_new()

    def after_kill(self, machine: int) -> None:
        """What happens to the machine of a worker that was killed."""

    def after_stop(self, machine: int) -> None:
        """What happens to the machine of a worker that was stopped."""

    def _begin_on_new(self) -> "tuple[int, subprocess.Popen[str]]":
        self._machines += 1
        return self._machines, self._begin(self._machines)

    def end(self) -> None:
        """Let all workers continue, and wait for their ends."""
        for process in self._stopped:
            process.send_signal(signal.SIGCONT)
        self.done = [finish(process) for process in (*self._stopped, *(each for _, each in self._workers))]


class SeparateMachines:
    """Workers of which each has a disk and a cache of its own: they share only a mirror."""

    def __init__(self, folder: Path, mirror: str, env: dict[str, str]) -> None:
        self.folder, self.mirror, self._env = folder, mirror, env

    @property
    def url(self) -> str:
        """Of the run."""
        return f"{self.mirror}/sums/x"

    def disk(self, machine: object) -> Path:
        return self.folder / f"disk-{machine}"

    def environment(self, machine: object) -> dict[str, str]:
        return {**self._env, "HOLDFAST_CACHE": str(self.folder / f"cache-{machine}")}

    def start(
        self, machine: object, *more: str, env: dict[str, str] | None = None, shards: str = f"--shards={SHARDS}"
    ) -> "subprocess.Popen[str]":
        words = ("--id", "x", "--store", self.disk(machine), shards)
        changes = {**self.environment(machine), **(env or {})}
        return start("run", self.folder / "eval.yaml", *words, *more, cwd=self.folder, env=changes)

    def call(self, machine: object, command: str, *more: str) -> Done:
        """A command about the run on a machine that has worked on it."""
        return call(command, "x", *more, "--store", self.disk(machine), cwd=self.folder, env=self.environment(machine))

    def show(self) -> dict[str, Any]:
        """What a machine sees that has only the URL."""
        done = call("show", self.url, "--json", cwd=self.folder, env=self.environment("reader"))
        assert done.code == 0, done.said
        found: dict[str, Any] = done.json()
        return found

    def export(self) -> list[dict[str, Any]]:
        done = call("export", self.url, cwd=self.folder, env=self.environment("reader"))
        assert done.code == 0, done.said
        return without_times([json.loads(line) for line in done.out.splitlines()])

    def count_unmirrored(self, machine: object) -> int:
        """The responses that only the disk of a machine has, while no process writes there."""
        found = 0
        for shard in self.disk(machine).glob("sums/x/shards/*"):
            stored = MirrorSource(open_objects(f"{self.url}/shards/{shard.name}")).pieces()
            for piece in FolderSource(str(shard)).pieces():
                if not piece.sealed:
                    lines = (shard / piece.name).read_bytes()[_end_of(piece, stored) :].splitlines()
                    found += sum(b'"t":"step"' in line for line in lines)
        return found

    def lose_disk(self, machine: object) -> None:
        for folder in (self.disk(machine), Path(self.environment(machine)["HOLDFAST_CACHE"])):
            shutil.rmtree(folder, ignore_errors=True)


def _end_of(piece: SegmentPiece, stored: list[SegmentPiece]) -> int:
    """How many bytes of a plain segment are in the mirror."""
    same = [each for each in stored if (each.epoch, each.segment) == (piece.epoch, piece.segment)]
    return piece.last if any(each.sealed for each in same) else max((each.last for each in same), default=0)
