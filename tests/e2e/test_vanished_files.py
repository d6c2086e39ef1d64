"""Files of a live run that are deleted, moved or replaced: it stops sending requests and says why (exit code 8)."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, finish, kill_when, run, shown, start, wait_until, write_spec

SAMPLES = 400
CONNECTIONS = 4
REQUESTS_BEFORE = 12


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """So slow that a run which does not stop is far from its end when a busy machine comes to look."""
    with start_server_process(Behaviour(latency_seconds=0.4)) as started:
        yield started


def remove(path: Path) -> None:
    """As `rm -rf` repeated by a stubborn user: a heartbeat may put a file into a folder that is being removed."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


def moved_to(folder: Path) -> Path:
    return folder.with_name("moved")


def replace_folder(folder: Path) -> None:
    os.rename(folder, moved_to(folder))
    folder.mkdir()


def replace_lock(folder: Path) -> None:
    (folder / "new").touch()
    os.replace(folder / "new", folder / "lock")


def break_run(server: ServerProcess, folder: Path, damage: Callable[[Path], object], samples: int = SAMPLES) -> Done:
    """Do something to a run's folder when it has sent some requests; how its process ended."""
    path = write_spec(folder, samples, server.base_url, model={"max_connections": CONNECTIONS})
    before = server.stats().requests
    with start("run", path, "--id", "r", "--store", folder / "runs", cwd=folder) as process:
        assert wait_until(lambda: server.stats().requests >= before + REQUESTS_BEFORE, process), finish(process).err
        damage(folder / "runs" / "sums" / "r")
        return finish(process)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove, "the run folder {run} was deleted or replaced"),
        (lambda run: os.rename(run, moved_to(run)), "was moved from {run} to {moved}"),
        pytest.param(replace_folder, "was moved from {run} to {moved}", marks=pytest.mark.long),
        (lambda run: (run / "lock").unlink(), "the lock file {run}/lock was deleted or replaced"),
        pytest.param(replace_lock, "the lock file {run}/lock was deleted or replaced", marks=pytest.mark.long),
        (lambda run: remove(run / "journal"), "the journal folder {run}/journal was deleted or replaced"),
        (lambda run: (run / "journal" / "000001.jsonl").unlink(), "000001.jsonl was deleted or replaced"),
    ],
    ids=["deleted", "moved", "replaced", "lock deleted", "lock replaced", "journal deleted", "segment deleted"],
)
def test_a_run_whose_files_are_gone_stops_sending_requests(
    damage: Callable[[Path], object], words: str, tmp_path: Path, server: ServerProcess
) -> None:
    before = server.stats().requests
    folder = tmp_path / "runs" / "sums" / "r"
    done = break_run(server, tmp_path, damage)
    assert done.code == 8, done.err
    assert words.format(run=folder, moved=moved_to(folder)) in done.err
    assert "has stopped sending requests" in done.err
    assert done.err.count("holdfast resume") == 1, "one sentence says it"
    assert "Traceback" not in done.err
    assert server.stats().requests - before < SAMPLES / 2
    if moved_to(folder).exists():
        kept = shown(str(moved_to(folder)), tmp_path)
        assert kept["finished"] >= REQUESTS_BEFORE - CONNECTIONS
        assert f"holdfast resume {moved_to(folder)}" in done.err
        assert not folder.exists() or list(folder.iterdir()) == [], "nothing is written to a folder of others"


def test_hard_link_copies_do_not_stop_a_run(tmp_path: Path, server: ServerProcess) -> None:
    def back_up(run: Path) -> None:
        for number in range(3):
            subprocess.run(["cp", "-al", run, tmp_path / f"backup {number}"], check=True)

    done = break_run(server, tmp_path, back_up, samples=24)
    assert done.code == 0, done.err


def test_a_deleted_lock_never_lets_two_processes_pay_for_the_same_answers(
    tmp_path: Path, server: ServerProcess
) -> None:
    again: list[Done] = []
    command = ("run", tmp_path / "eval.yaml", "--id", "r", "--store", tmp_path / "runs")

    def delete_and_start_another(folder: Path) -> None:
        (folder / "lock").unlink()
        again.append(run(*command, cwd=tmp_path))

    before = server.stats().requests
    first = break_run(server, tmp_path, delete_and_start_another, samples=40)
    assert first.code == 8, first.err
    assert again[0].code in (0, 4), again[0].err
    if again[0].code == 4:
        assert "is being written by process" in again[0].err
        assert run(*command, cwd=tmp_path).code == 0
    assert len({line["key"] for line in exported("r", tmp_path / "runs")}) == 40
    assert server.stats().requests - before <= 40 + CONNECTIONS
    assert call("verify", "r", "--store", tmp_path / "runs", cwd=tmp_path).code == 0


def test_a_deleted_lock_of_a_dead_process_delays_nobody(tmp_path: Path, server: ServerProcess) -> None:
    path = write_spec(tmp_path, 20, server.base_url, model={"max_connections": CONNECTIONS})
    command = ("run", path, "--id", "r", "--store", tmp_path / "runs")
    before = server.stats().requests
    assert kill_when(lambda: server.stats().requests >= before + REQUESTS_BEFORE, *command, cwd=tmp_path)
    (tmp_path / "runs" / "sums" / "r" / "lock").unlink()
    assert call(*command, cwd=tmp_path).code == 0
