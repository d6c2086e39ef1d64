"""How the benchmarks measure: a scratch folder on a real disk, medians with their spread, CPU time by thread.

The machine is shared and noisy, so contestants take turns (A B C A B C …), the median counts, and the spread is shown
beside it. CPU time and counts say more than wall time.
"""

import gc
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

RESULTS = Path(__file__).resolve().parent / "results"
SEED = 20_240_607
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs", "devtmpfs"}

Result = TypeVar("Result")


class Spread(msgspec.Struct, frozen=True):
    """What repeated measurements of one thing gave."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))

    def show(self, digits: int = 0, scale: float = 1.0) -> str:
        low, median, high = (f"{value * scale:,.{digits}f}" for value in (self.low, self.median, self.high))
        return f"{median} ({low}..{high})"


class Quantiles(msgspec.Struct, frozen=True):
    """How single waits are distributed, in seconds."""

    p50: float
    p99: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quantiles":
        ordered = sorted(values)
        return cls(ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], ordered[-1])

    @classmethod
    def median_of(cls, rounds: Sequence["Quantiles"]) -> "Quantiles":
        """The median round, quantile by quantile: one round that was disturbed does not count."""
        return cls(
            statistics.median(each.p50 for each in rounds),
            statistics.median(each.p99 for each in rounds),
            statistics.median(each.highest for each in rounds),
        )


@contextmanager
def scratch(name: str) -> Iterator[str]:
    """An empty folder on a disk, not in memory (a sync would cost nothing there); removed afterwards."""
    place = tempfile.gettempdir()
    if _file_system(place) in _MEMORY_FILE_SYSTEMS:
        RESULTS.mkdir(exist_ok=True)
        place = str(RESULTS)
    folder = tempfile.mkdtemp(prefix=f"holdfast-bench-{name}-", dir=place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take_turns(rounds: int, contestants: Mapping[str, Callable[[], Result]]) -> dict[str, list[Result]]:
    """Run every contestant once a round, so that a slow minute of the machine hits all of them. Every second round goes
    backwards: what one leaves behind (a full page cache, a busy disk) is not always the same other's.
    """
    results: dict[str, list[Result]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name in sorted(contestants, reverse=number % 2 == 1):
            gc.collect()
            results[name].append(contestants[name]())
    return results


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ours to theirs, round by round: what disturbed a whole round cancels out."""
    return Spread.of([mine / other for mine, other in zip(ours, theirs, strict=True)])


def cpu_by_thread() -> dict[str, float]:
    """CPU seconds so far of every thread that runs now, by the thread's name."""
    used: dict[str, float] = {}
    for thread in threading.enumerate():
        if thread.ident is not None and thread.is_alive():
            clock = time.pthread_getcpuclockid(thread.ident)
            used[thread.name] = used.get(thread.name, 0.0) + time.clock_gettime(clock)
    return used


def forget_cached(folder: str) -> None:
    """Drop a folder's files from the page cache, as after a restart of the machine."""
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def _file_system(path: str) -> str:
    """The type of the file system that holds `path`; empty where the system does not tell."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return ""
    best, kind = "", ""
    real = os.path.join(os.path.realpath(path), "")
    for line in mounts.read_text().splitlines():
        _, point, found, *_ = line.split(" ")
        if real.startswith(os.path.join(point, "")) and len(point) >= len(best):
            best, kind = point, found
    return kind
