"""`launch`: workers on this machine that are killed and stopped, and job files from the command line."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from holdfast.journal import read_lease
from holdfast.launch import LAUNCHERS
from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import call, exported, finish, run, shown, start, wait_until, write_spec

SAMPLES = 120
CONNECTIONS = 3
EXPIRY = {"HOLDFAST_EXPIRY_SECONDS": "2"}
"""So that a test need not wait long for the shard of a dead worker."""


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with start_server_process(Behaviour(latency_seconds=0.25)) as process:
        yield process


def command(folder: Path, server: ServerProcess) -> list[str | Path]:
    spec = write_spec(folder, SAMPLES, server.base_url, model={"max_connections": CONNECTIONS}, grace_seconds=60)
    return ["launch", "local", spec, "--id", "x", "--store", folder / "runs", "--workers", "2", "--shards", "6"]


def pids_at_work(store: Path) -> set[int]:
    """Of the processes that hold shards and have answers of them."""
    leases = [read_lease(str(each)) for each in store.glob("*/x/shards/*")]
    return {lease.holder.pid for lease in leases if lease is not None and not lease.released and lease.finished}


def test_a_worker_that_is_killed_is_replaced_and_every_key_is_answered_once(
    tmp_path: Path, server: ServerProcess
) -> None:
    process = start(*command(tmp_path, server), cwd=tmp_path, env=EXPIRY)
    assert wait_until(lambda: bool(pids_at_work(tmp_path / "runs")), process)
    os.kill(min(pids_at_work(tmp_path / "runs")), signal.SIGKILL)
    done = finish(process)
    assert done.code == 0, done.said
    assert "was killed by SIGKILL; started again" in done.err
    assert "2 workers, 6 shards" in done.err
    assert f"{SAMPLES}/{SAMPLES}  100%" in done.err, "one progress for all workers"
    assert "sums  arith  numeric" in done.out
    lines = exported("x", tmp_path / "runs")
    assert [line["status"] for line in lines] == ["finished"] * SAMPLES
    assert len({line["key"] for line in lines}) == SAMPLES
    assert server.stats().repeats <= CONNECTIONS


def test_an_interrupt_stops_all_workers_and_the_same_command_continues(tmp_path: Path, server: ServerProcess) -> None:
    process = start(*command(tmp_path, server), cwd=tmp_path, env=EXPIRY)
    assert wait_until(lambda: len(pids_at_work(tmp_path / "runs")) == 2, process)
    done = finish(process, signal.SIGINT)
    assert done.code == 130, done.said
    assert "SIGINT: stopping 2 workers" in done.err
    assert "Continue with: holdfast resume x" in done.err
    assert shown("x", tmp_path / "runs")["status"] == "interrupted"
    again = run(*command(tmp_path, server), cwd=tmp_path, env=EXPIRY)
    assert again.code == 0, again.said
    assert shown("x", tmp_path / "runs")["finished"] == SAMPLES
    assert server.stats().repeats == 0


def test_a_run_that_is_complete_is_reported_without_requests(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    words = ("launch", "local", spec, "--id", "x", "--workers", "1")
    first, second = (run(*words, cwd=tmp_path) for _ in range(2))
    assert (first.code, second.code) == (0, 0), first.said + second.said
    assert "1 worker, 4 shards" in first.err
    assert "x is complete: no request was sent" in second.err


def test_workers_fetch_a_run_from_its_mirror_and_the_progress_counts_other_machines(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, mirror={"url": (tmp_path / "mirror").as_uri(), "seconds": 0.2})
    one, two = ({**EXPIRY, "HOLDFAST_CACHE": str(tmp_path / f"cache-{name}")} for name in ("one", "two"))
    first = call("run", spec, "--id", "x", "--shard", "1/2", "--store", tmp_path / "one", cwd=tmp_path, env=one)
    assert first.code == 0, first.said
    words = ("launch", "local", spec, "--id", "x", "--store", tmp_path / "two", "--workers", "2", "--shards", "2")
    done, again = (run(*words, cwd=tmp_path, env=two) for _ in range(2))
    assert (done.code, again.code) == (0, 0), done.said + again.said
    assert "6/6  100%" in done.err, "with the shard of the first machine"
    assert "x is complete: no request was sent" in again.err


def test_the_output_of_a_worker_that_fails_is_shown(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    assert run("launch", "local", spec, "--id", "x", "--workers", "1", cwd=tmp_path).code == 0
    write_spec(tmp_path, task={"prompt": "Another: {question}"})
    refused = run("launch", "local", spec, "--id", "x", "--workers", "1", "--shards", "9", cwd=tmp_path)
    assert refused.code == 3, refused.said
    assert "worker 1 ended with exit code 3" in refused.err
    assert "the number of shards cannot change" in refused.err
    log = Path(refused.err.partition("is in ")[2].partition(". Its last lines")[0])
    assert "the number of shards cannot change" in log.read_text()
    log.unlink()
    log.parent.rmdir()


def test_the_help_names_every_launcher(tmp_path: Path) -> None:
    assert "|".join(LAUNCHERS) in call("launch", "--help", cwd=tmp_path).out


@pytest.mark.parametrize("where", ["slurm", "github"])
def test_a_job_file_is_printed_or_written(tmp_path: Path, where: str) -> None:
    spec = write_spec(tmp_path)
    words = ("launch", where, spec, "--id", "x", "--shards", "8", "--workers", "2", "--this-host")
    printed = call(*words, "--set", "seed=3", cwd=tmp_path)
    assert (printed.code, printed.err) == (0, "")
    assert "--set seed=3" in printed.out
    written = call(*words, "--set", "seed=3", "--output", "job", cwd=tmp_path)
    assert (written.code, written.out) == (0, "")
    assert (tmp_path / "job").read_text() == printed.out


def test_a_benchmark_can_be_launched(tmp_path: Path) -> None:
    words = ("launch", "github", "gsm8k", "--model", "openai/gpt-x", "--limit", "5", "--id", "x", "--shards", "2")
    printed = call(*words, cwd=tmp_path, env={"OPENAI_API_KEY": "k"})
    assert printed.code == 0, printed.said
    steps = yaml.safe_load(printed.out)["jobs"]["shard"]["steps"]
    expected = "holdfast run gsm8k --id x --store runs --limit 5 --model openai/gpt-x --shard ${{ matrix.shard }}/2"
    assert expected in next(each for each in steps if each.get("name") == "Run the shard")["run"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("slrum",), "there is no launcher 'slrum'"),
        (("slurm",), "needs --shards"),
        (("slurm", "--shards", "4"), "would each pay for all shards"),
        (("slurm", "--shards", "4", "--image", "x"), "has no --image: it is for kubernetes"),
        (("kubernetes", "--shards", "4", "--image", "x"), "needs a mirror in an object store"),
        (("github", "--shards", "4", "--submit"), "launch github has no --submit"),
        (("local", "--submit"), "neither --submit nor --output"),
        (("slurm", "--shards", "4", "--submit", "--output", "x"), "cannot be combined"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    spec = write_spec(tmp_path)
    refused = call("launch", words[0], spec, "--id", "x", *words[1:], cwd=tmp_path)
    assert (refused.code, refused.out) == (2, "")
    assert problem in refused.err


def test_submit_hands_the_file_to_the_client_or_says_that_there_is_none(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    words = ("launch", "slurm", spec, "--id", "x", "--shards", "4", "--this-host", "--submit")
    missing = call(*words, cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert missing.code == 2
    assert "sbatch is not installed here" in missing.err
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec /bin/cat > submitted\n")
    (tmp_path / "sbatch").chmod(0o755)
    assert call(*words, cwd=tmp_path, env={"PATH": str(tmp_path)}).code == 0
    assert (tmp_path / "submitted").read_text() == call(*words[:-1], cwd=tmp_path).out
