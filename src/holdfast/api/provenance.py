"""Where a run comes from: the machine, the versions, the commit; and spec.yaml, which tells it to a person."""

import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import yaml

from holdfast import __version__
from holdfast.journal import OS_DISK, write_file
from holdfast.records.facts import Change

_PACKAGES = ("aiohttp", "msgspec", "numpy", "scipy")


def host() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }


def code() -> dict[str, str]:
    """Versions, and the commit of the folder that the command was started in."""
    found = {"holdfast": __version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | _git()


def write_spec_file(folder: str, spec: dict[str, Any], run_id: str, lineage: Sequence[tuple[str, Change]] = ()) -> None:
    """The effective spec for people: a header that says where it comes from, then YAML. Replaced atomically."""
    lines = [
        f"# Holdfast run {run_id}",
        f"# Written by holdfast {__version__} on {socket.gethostname()}",
        "# The journal is the original; this file says the same for people.",
    ]
    lines += [
        f"# Resumed by holdfast {__version__} at {at}: {change.field}: {change.old!r} -> {change.new!r}"
        for at, change in lineage
    ]
    body = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True, width=100)
    path = os.path.join(folder, "spec.yaml")
    write_file(OS_DISK, path, f"{path}.tmp", ("\n".join(lines) + "\n" + body).encode())


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _git() -> dict[str, str]:
    def ask(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if not commit:
        return {}
    return {"git_commit": commit, "git_dirty": "yes" if ask("status", "--porcelain") else "no"}
