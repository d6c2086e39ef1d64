"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd of the Debian packages, in a folder."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
_START_SECONDS = 60
# A requeued task waits until its credential has expired: 2 minutes by default.
_CONFIGURATION = """\
ClusterName=holdfast
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=n1 Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """Its commands, with the variable that leads them to its configuration."""

    def __init__(self, folder: Path) -> None:
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def command(self, *words: str) -> str:
        done = subprocess.run(words, env={**os.environ, **self.environment}, capture_output=True, text=True, check=True)
        return done.stdout

    def tasks(self) -> dict[str, str]:
        """The state of each task in the queue, by its number in the array."""
        lines = self.command("squeue", "--noheader", "--array", "--format=%K %T").splitlines()
        return dict(line.split() for line in lines)

    def job_of(self, task: str) -> str:
        """The id of one task. Its plain job id may be that of the whole array."""
        lines = self.command("squeue", "--noheader", "--array", "--format=%K %F_%K").splitlines()
        return dict(line.split() for line in lines)[task]


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Start the cluster. Skips the test with the reason where that is impossible."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"Slurm is not installed ({', '.join(missing)}): install slurm-wlm and munge")
    if os.geteuid() != 0:
        pytest.skip("slurmd starts jobs only as root")
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    controller, node = _free_ports()
    text = _CONFIGURATION.format(
        folder=folder, controller=controller, node=node, host=socket.gethostname(), cpus=os.cpu_count()
    )
    (folder / "slurm.conf").write_text(text)
    cluster = SlurmCluster(folder)
    options = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
    munge = [f"--{option}={folder}/munge.{suffix}" for option, suffix in options.items()]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_daemon(folder, cluster, "munged", "--foreground", "--force", *munge))
        _wait_for((folder / "munge.socket").exists, folder, "munged")
        stack.enter_context(_daemon(folder, cluster, "slurmctld", "-D"))
        stack.enter_context(_daemon(folder, cluster, "slurmd", "-D", "-N", "n1"))
        _wait_for(lambda: _is_ready(cluster), folder, "slurmd")
        try:
            yield cluster
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                cluster.command("scancel", "--user=root")
                _wait_for(lambda: not cluster.tasks(), folder, "slurmctld")


@contextlib.contextmanager
def _daemon(folder: Path, cluster: SlurmCluster, *words: str) -> Iterator[None]:
    with open(folder / f"{words[0]}.out", "wb") as log:
        process = subprocess.Popen(words, env={**os.environ, **cluster.environment}, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(cluster: SlurmCluster) -> bool:
    try:
        return cluster.command("sinfo", "--noheader", "--format=%T").strip() == "idle"
    except subprocess.CalledProcessError:
        return False


def _wait_for(happened: Callable[[], bool], folder: Path, name: str) -> None:
    end = time.monotonic() + _START_SECONDS
    while not happened():
        if time.monotonic() > end:
            said = (folder / f"{name}.out").read_text(errors="replace")[-500:]
            pytest.skip(f"{name} did not become ready in {_START_SECONDS} s: {said}")
        time.sleep(0.1)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
