"""The script for sbatch, run by bash: without Slurm, with its variables, and signals as Slurm sends them."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.launch import LAUNCHERS, ClusterOptions, LaunchJob
from tests.e2e.commands import environment, finish, shown, wait_until
from tests.unit.launch.jobs import HOSTILE, HOSTILE_FOLDER, MIRROR, job_in

SLOW = {"provider": "mock", "options": {"reply": "8", "latency_seconds": 0.5}, "max_connections": 1}


def script_of(job: LaunchJob) -> str:
    write = LAUNCHERS["slurm"].write
    assert write is not None
    return write(job)


def start_task(script: str, folder: Path, task: int = 1, path: str = "") -> "subprocess.Popen[str]":
    """One task of the array."""
    variables = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "70", "SLURM_JOB_ID": "70"}
    return subprocess.Popen(
        ["bash", "-c", script],
        cwd="/",
        env=environment({**variables, "PATH": f"{path}:{os.environ['PATH']}"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_header_asks_for_an_array_that_is_requeued(tmp_path: Path) -> None:
    options = ClusterOptions(("--partition=gpu", "--time=04:00:00"), this_host=True)
    lines = script_of(job_in(tmp_path, grace_seconds=20.5, cluster=options)).splitlines()
    assert lines[0] == "#!/bin/bash"
    header = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    name = next(each for each in header if each.startswith("--job-name=")).partition("=")[2]
    assert header == [
        f"--job-name={name}",
        "--array=1-2",
        "--ntasks=1",
        "--requeue",
        "--signal=B:USR1@111",  # a minute, the grace of 21 s, and half a minute to end
        "--open-mode=append",
        f"--output={name}-%A_%a.log",
        "--partition=gpu",
        "--time=04:00:00",
    ]


def test_two_tasks_complete_a_run_whatever_its_names_are(tmp_path: Path) -> None:
    job = job_in(tmp_path / HOSTILE_FOLDER, HOSTILE)
    script = script_of(job)
    assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0
    lines = script.splitlines()
    header = [line for line in lines[2 : lines.index("")] if not line.startswith("#SBATCH --")]
    assert header == [], "a name ended a line of the header"
    tasks = [start_task(script, tmp_path, number) for number in (1, 2)]
    ends = [finish(each) for each in tasks]
    assert [end.code for end in ends] == [0, 0], ends
    found = shown(HOSTILE, tmp_path / HOSTILE_FOLDER / "runs")
    assert (found["status"], found["finished"]) == ("completed", 6)
    assert not list(tmp_path.rglob("pwned"))


def has_answers(job: LaunchJob) -> bool:
    return any(Path(job.place.folder).glob("shards/*/lease.json"))


@pytest.mark.parametrize("reach", ["shell", "all"])
def test_sigterm_gives_requests_in_flight_their_grace(tmp_path: Path, reach: str) -> None:
    """Slurm signals only the shell with proctrack/cgroup, and all processes of the job with the other plugins."""
    job = job_in(tmp_path, model=SLOW, rows=40, grace_seconds=60)
    task = start_task(script_of(job), tmp_path)
    wait_until(lambda: has_answers(job), task)
    if reach == "all":
        os.killpg(task.pid, signal.SIGTERM)
        done = finish(task)
    else:
        done = finish(task, signal.SIGTERM)
    assert done.code == 130, done.said
    assert done.err.count("SIGTERM: stopping") == 1
    assert shown("nightly", tmp_path / "runs")["status"] == "interrupted"


@pytest.mark.parametrize("is_long", [True, False])
def test_before_the_time_limit_a_task_stops_and_is_requeued(tmp_path: Path, is_long: bool) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    (commands / "scontrol").chmod(0o755)
    job = job_in(tmp_path / "w", model=SLOW, rows=40)
    script = script_of(job).replace('"$SECONDS" -ge 60', '"$SECONDS" -ge 0') if is_long else script_of(job)
    task = start_task(script, tmp_path, path=str(commands))
    wait_until(lambda: has_answers(job), task)
    done = finish(task, signal.SIGUSR1)
    if is_long:
        assert done.code == 0, done.said
        assert (tmp_path / "requeued").read_text() == "requeue 70_1\n"
    else:  # one that is stopped at once would be requeued for ever
        assert done.code == 130
        assert "the time limit is too short" in done.err
        assert not (tmp_path / "requeued").exists()


def test_a_store_that_nodes_do_not_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="add a mirror, use a store on a network file system"):
        script_of(job_in(tmp_path, cluster=ClusterOptions()))
    with pytest.raises(UsageError, match="nobody claims shards"):
        script_of(job_in(tmp_path, cluster=ClusterOptions(), mirror={**MIRROR, "exclusive": False}))
    assert "--this-host" not in script_of(job_in(tmp_path, cluster=ClusterOptions(), mirror=MIRROR))


@pytest.mark.parametrize("option", ["partition=gpu", "--x=1\nrm -rf /"])
def test_an_option_that_is_none_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(UsageError, match="write one option of sbatch"):
        script_of(job_in(tmp_path, cluster=ClusterOptions((option,), this_host=True)))


def test_the_worker_runs_with_the_python_of_the_command(tmp_path: Path) -> None:
    expected: list[Any] = [sys.executable, "-m", "holdfast", "run", str(tmp_path / "eval.yaml"), "--id", "nightly"]
    assert " ".join(expected) in script_of(job_in(tmp_path))
    assert shutil.which("bash")
