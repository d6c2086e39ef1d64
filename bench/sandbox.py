"""What does one sandboxed call cost? `true` in a sandbox, with namespaces and without, beside the bare command and
Python's own start, which the launcher is; and what keeping one changed file adds.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import Spread, scratch
from bench.outcome import Verdict, at_most, print_table, save
from holdfast.engine.attachments import blobs_of
from holdfast.sandbox.confinement import Folder, Launch, make_folders, why_no_namespaces
from holdfast.sandbox.snapshots import Capacity, FilesState, FolderSnapshot, take_snapshot
from holdfast.spec import Sandbox

ROUNDS = 31
_BOUNDS = Capacity(1 << 26, 10_000)


def main() -> list[Verdict]:
    with scratch("sandbox") as place:
        contestants = _contestants(Path(place))
        wall: dict[str, list[float]] = {name: [] for name in contestants}
        cpu: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(ROUNDS):
            for name, act in contestants.items():
                before, began = _cpu_seconds(), time.perf_counter()
                act()
                wall[name].append(1000 * (time.perf_counter() - began))
                cpu[name].append(1000 * (_cpu_seconds() - before))
    rows = [[name, Spread.of(wall[name]).show(1), Spread.of(cpu[name]).show(1)] for name in contestants]
    print_table("One call", ["what", "wall ms", "CPU ms"], rows)
    verdicts = [at_most("sandbox: one `true`, CPU ms", Spread.of(cpu["sandboxed"]).median, 100)]
    save("sandbox", {"wall_ms": wall, "cpu_ms": cpu, "why_no_namespaces": why_no_namespaces()}, verdicts)
    return verdicts


def _contestants(place: Path) -> dict[str, Callable[[], object]]:
    folder = Folder(str(place / "box"), "bench")
    make_folders(folder)
    blobs = blobs_of(str(place / "run"))

    def keep() -> None:
        Path(folder.files, "a").write_bytes(os.urandom(1000))
        take_snapshot(folder.files, FolderSnapshot(FilesState()), _BOUNDS, blobs)

    found: dict[str, Callable[[], object]] = {
        "true": lambda: subprocess.run(["true"], check=True),
        "python -I -S -c pass": lambda: subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True),
        "without namespaces": lambda: Launch(folder, Sandbox(), namespaces=False).run(["true"]),
        "sandboxed": lambda: Launch(folder, Sandbox(), namespaces=not why_no_namespaces()).run(["true"]),
        "keeping a changed file": keep,
    }
    return found


def _cpu_seconds() -> float:
    """Of this process and of all that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    main()
