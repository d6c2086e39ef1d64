"""Removes what dead processes of one run left of their sandboxes: folders, processes, containers.

A folder belongs to the process that its `owner.json` names. Invariant: nothing of a living process is touched.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

from holdfast.files import is_own_folder
from holdfast.journal import is_alive, owner_of
from holdfast.sandbox.confinement import MARKER, remove_folder

_DOCKER_SECONDS = 30.0


def name_of(uid: str) -> str:
    """Return the prefix of the names of a run's sandboxes."""
    return f"holdfast-{uid}-"


def clear(uid: str, place: str, docker: bool = False) -> tuple[int, int]:
    """Kill leftover processes and containers, then remove folders; return how many of each.

    Folders last: if this is interrupted, the next start still finds them.
    """
    dead: list[str] = []
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            path = os.path.join(place, name)
            if name.startswith(name_of(uid)) and is_own_folder(path) and not _has_live_owner(path):
                dead.append(path)
    if not dead:
        return 0, 0
    ended = sum(map(_end, _marked(uid, place)))
    if docker:
        listing = ["docker", "ps", "--all", "--filter", f"label=holdfast.run={uid}"]
        listed = _docker(*listing, "--format", '{{.ID}} {{.Label "holdfast.folder"}}')
        found = [line.split() for line in listed.splitlines()]
        left = [fields[0] for fields in found if not _has_live_owner(os.path.join(place, fields[-1]))]
        if left:
            _docker("docker", "rm", "--force", *left)
        ended += len(left)
    for path in dead:
        remove_folder(path)
    return ended, len(dead)


def _has_live_owner(folder: str) -> bool:
    """A folder without an owner was being created when its process died: only we hold the run now."""
    owner = owner_of(folder)
    return owner is not None and is_alive(owner) is not False


def _marked(uid: str, place: str) -> Iterator[int]:
    """Yield processes with this run's marker in their environment whose folder has no living owner."""
    mark = f"{MARKER}={uid}/"
    for pid, environment in _environments():
        for word in environment:
            if word.startswith(mark) and not _has_live_owner(os.path.join(place, word.removeprefix(mark))):
                yield pid


def _environments() -> Iterator[tuple[int, list[str]]]:
    """Yield the environments of all processes that we may read."""
    if os.path.isdir("/proc/self"):
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit():
                    with open(f"/proc/{name}/environ", "rb") as file:
                        yield int(name), file.read().decode("utf-8", "replace").split("\0")
        return
    with contextlib.suppress(OSError):
        listed = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, check=False)
        for line in listed.stdout.decode("utf-8", "replace").splitlines():
            number, _, fields = line.strip().partition(" ")
            yield int(number), fields.split()


def _end(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _docker(*command: str) -> str:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOCKER_SECONDS, check=False)
        return done.stdout
    return ""
