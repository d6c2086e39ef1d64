"""The table of launchers, and handing a job file to the client of its scheduler."""

import shutil
import subprocess
from collections.abc import Callable

import msgspec

from holdfast.errors import UsageError
from holdfast.launch.github import write_github
from holdfast.launch.job import LaunchJob
from holdfast.launch.kubernetes import write_kubernetes
from holdfast.launch.slurm import write_slurm


class Launcher(msgspec.Struct, frozen=True):
    """One way to start the workers of a run."""

    summary: str
    write: Callable[[LaunchJob], str] | None = None
    """Returns the job file; None: workers on this machine, started by the command itself."""
    client: tuple[str, ...] = ()
    """The command that reads a job file on standard input; empty if there is none."""
    options: tuple[str, ...] = ()
    """Options of `holdfast launch` that only this launcher has."""


LAUNCHERS: dict[str, Launcher] = {
    "slurm": Launcher("an array job", write_slurm, ("sbatch",), ("--option",)),
    "kubernetes": Launcher(
        "an Indexed Job", write_kubernetes, ("kubectl", "apply", "-f", "-"), ("--image", "--secret", "--folder")
    ),
    "github": Launcher("a workflow of GitHub Actions", write_github),
    "local": Launcher("workers on this machine"),
}


def submit(name: str, text: str, folder: str) -> None:
    """Hand a job file to its client, whose output goes to the terminal. UsageError if there is none, or it fails."""
    client = LAUNCHERS[name].client
    if not client:
        raise UsageError(f"launch {name} has no --submit; without it the job file is printed")
    if shutil.which(client[0]) is None:
        raise UsageError(f"--submit: {client[0]} is not installed here; without --submit the job file is printed")
    code = subprocess.run(client, input=text.encode(), cwd=folder, check=False).returncode
    if code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise UsageError(f"--submit: {client[0]} ended with {how}: the job was not submitted; its message says why")
