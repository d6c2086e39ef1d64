"""Control groups (cgroups): the only kernel limit for all processes of a command together, including shared memory.

`find` looks once for a place where this process may create groups, `plan` returns the groups of a command, and the
launcher creates them, puts the command in, and removes them. If runner and launcher are killed together, an empty group
stays; the next `find` removes it. Imports nothing of Holdfast: the launcher uses it.
"""

from __future__ import annotations

import errno
import os
import time

from .kernel import write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Group = dict[str, Any]

PREFIX = "holdfast-"
SPARE_BYTES = 16 << 20
"""Added for what the kernel counts besides the command's own pages: page tables, pipes, the first process."""
THREADS_PER_PROCESS = 8
"""The kernel counts threads. This stops fork bombs that multiply faster than the launcher counts processes."""


def find() -> tuple[dict[str, str], str]:
    """Return where groups can be created (a folder for each controller); or nothing, and why."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            own = file.read()
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            places = candidates(own, file.read())
    except OSError as error:
        return {}, f"the control groups of this process cannot be read ({error})"
    if not places:
        return {}, "no control group with a memory limit is mounted"
    why = ""
    for place in places:
        remove_forgotten(place)
        try:
            _try(place)
        except OSError as error:
            why = f"no control group can be made ({error.strerror}: {place['memory']})"
            continue
        return place, ""
    return {}, why


def candidates(own: str, mounts: str) -> list[dict[str, str]]:
    """Return possible places from /proc/self/cgroup and /proc/self/mountinfo. Version 1: below this process's own
    group. Version 2 forbids controlled groups below a group with processes: below it if that is set up already, else
    beside it.
    """
    paths = {names: path for _, names, path in (line.split(":", 2) for line in own.splitlines())}
    found: dict[str, str] = {}
    unified: list[dict[str, str]] = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, options = after.split()[0], after.split()[-1].split(",")
        if kind == "cgroup":
            for names, path in paths.items():
                for name in {"memory", "pids"} & set(names.split(",")) & set(options):
                    found[name] = inside(point, root, path)
        elif kind == "cgroup2" and "" in paths:
            itself = inside(point, root, paths[""])
            above = os.path.dirname(itself) if itself != point else itself
            unified += [{"memory": each, "version": "2"} for each in (itself, above) if has_memory(each)]
    return [*([{**found, "version": "1"}] if "memory" in found else []), *unified]


def inside(point: str, root: str, path: str) -> str:
    """Return the folder of a group in a tree that is mounted from `root` at `point`."""
    return os.path.normpath(os.path.join(point, os.path.relpath(path, root)))


def has_memory(folder: str) -> bool:
    """Whether groups below get a memory limit (version 2)."""
    return "memory" in read(os.path.join(folder, "cgroup.subtree_control")).split()


def plan(place: dict[str, str], name: str, memory_bytes: int, processes: int) -> list[Group]:
    """Return the groups of one command, with required (`must`) and optional (`may`) settings."""
    memory, tasks = str(memory_bytes + SPARE_BYTES), str(processes * THREADS_PER_PROCESS)
    if not place:
        return []
    if place["version"] == "2":
        optional = {"memory.swap.max": "0", "memory.oom.group": "1", "pids.max": tasks}
        return [_group(place["memory"], name, {"memory.max": memory}, optional, "memory.events")]
    groups = [
        _group(
            place["memory"],
            name,
            {"memory.limit_in_bytes": memory},
            {"memory.memsw.limit_in_bytes": memory},
            "memory.oom_control",
        )
    ]
    if "pids" in place:
        groups.append(_group(place["pids"], name, {}, {"pids.max": tasks}, ""))
    return groups


def _group(above: str, name: str, must: dict[str, str], may: dict[str, str], events: str) -> Group:
    path = os.path.join(above, name)
    return {"path": path, "must": must, "may": may, "events": os.path.join(path, events) if events else ""}


def make(groups: list[Group]) -> None:
    """Create the groups. OSError if a memory limit cannot be set."""
    for group in groups:
        os.mkdir(group["path"])
        for name, value in group["must"].items():
            write(os.path.join(group["path"], name), value)
        for name, value in group["may"].items():
            try:
                write(os.path.join(group["path"], name), value)
            except OSError:
                continue  # a kernel without swap accounting, or a group without that controller


def enter(groups: list[Group], pid: int) -> None:
    for group in groups:
        write(os.path.join(group["path"], "cgroup.procs"), str(pid))


def remove(groups: list[Group]) -> None:
    """Remove groups whose processes have ended; the kernel may take a moment to notice that (EBUSY)."""
    for group in groups:
        for _ in range(100):
            try:
                os.rmdir(group["path"])
            except OSError as error:
                if error.errno == errno.EBUSY:
                    time.sleep(0.001)
                    continue
            break


def remove_forgotten(place: dict[str, str]) -> None:
    """Remove groups of runners that were killed together with their launcher. Groups in use cannot be removed."""
    for above in {path for name, path in place.items() if name != "version"}:
        try:
            names = [name for name in os.listdir(above) if name.startswith(PREFIX)]
        except OSError:
            continue
        for name in names:
            owner = name.removeprefix(PREFIX).partition("-")[0]
            if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
                try:
                    os.rmdir(os.path.join(above, name))
                except OSError:
                    continue


def _try(place: dict[str, str]) -> None:
    """Try it with a real process: that a folder can be created does not prove much."""
    import subprocess  # here, because the launcher needs none of this and starts in milliseconds

    groups = plan(place, f"{PREFIX}{os.getpid()}-probe{time.monotonic_ns()}", 1 << 30, 100)
    try:
        make(groups)
        with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL) as process:
            try:
                enter(groups, process.pid)
            finally:
                process.kill()
    finally:
        remove(groups)


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
