"""The driver of a sharded run: starts workers, replaces those that die, and stops all of them in good order.

It decides nothing about samples. Workers claim shards themselves, and take over the shard of a worker that died. No
worker is "retried": its replacement is a new process that continues from the journals.

Replacements are bounded: as soon as more workers have died in a row than `2 x workers + 3` without any new step or
sample, the cause is not bad luck, and the driver gives up.
"""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from holdfast.engine import Progress
from holdfast.runs.executors.process import WorkerReport
from holdfast.runs.executors.totals import WorkerTotals

_WAIT_SECONDS = 0.25
_DELAY_SECONDS_MAX = 30.0
_UNPLACED_SECONDS = 20.0
_STOP_SECONDS = 30.0
"""More than the grace period. Workers that have not ended by then are killed."""
_DONE = (0, 1)
_STORAGE_FAILED = 8
_INTERRUPTED = 130
_REPLACED = (4, _STORAGE_FAILED, _INTERRUPTED)
"""A shard that another process holds, failed storage of one machine, SIGTERM from elsewhere: others may succeed.
All other codes mean that every worker would end like this.
"""


class Pool(Protocol):
    """Where workers run. Workers are known by their number, which a replacement inherits."""

    def start(self, worker: int) -> None:
        """Start a worker, as soon as there is a place for it."""

    def wait(self, seconds: float) -> Iterable[tuple[int, WorkerReport]]:
        """Reports that have arrived. One with an exit code, or of a lost worker, is the last of that worker."""

    def stop(self, worker: int) -> None:
        """Ask a worker to stop. A second time: at once."""

    def describe_place(self) -> str:
        """What a worker needs, for a message about one that has no place yet."""


class PlacementOptions(msgspec.Struct, frozen=True):
    """How many workers, how long they may take to stop, and how the driver learns that the run was cancelled."""

    workers: int
    grace_seconds: float
    is_cancelled: Callable[[], bool]


class Ended(msgspec.Struct, frozen=True):
    """How the workers ended."""

    code: int = 0
    """The exit code of a worker that could not continue, such as 6 at a budget; else 1 if one had failed samples."""
    interrupted: bool = False
    reason: str = ""
    """Why the driver gave up; empty if it did not."""


class Placement:
    """The workers of one run, until all have ended."""

    def __init__(
        self,
        pool: Pool,
        totals: WorkerTotals,
        options: PlacementOptions,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._totals = totals
        self._options = options
        self._say = say
        self._clock = clock
        self._placed_at: dict[int, float] = {}
        """Workers that were started and have not ended."""
        self._seen: set[int] = set()
        """Those that have reported."""
        self._warned: set[int] = set()
        self._due: dict[int, float] = {}
        """When a dead worker is replaced."""
        self._deaths = 0
        self._work_at_death = -1
        self._is_done = False
        self._done_code = 0
        self._stops = 0
        self._stopped_at = 0.0
        self._ended = Ended()

    def run(self, signals: Callable[[], int], show: Callable[[Progress], None]) -> Ended:
        """Work until no worker is left. `signals`: how many interrupts have arrived so far."""
        now = self._clock()
        self._due = dict.fromkeys(range(1, self._options.workers + 1), now)
        while self._has_workers():
            self._stop_workers(signals())
            self._start_due()
            for worker, report in self._pool.wait(_WAIT_SECONDS):
                self._handle(worker, report)
            self._warn_of_unplaced()
            show(self._totals.progress())
            if self._stops and self._clock() - self._stopped_at > self._options.grace_seconds + _STOP_SECONDS:
                self._say(f"workers {self._names(self._placed_at)} did not stop in time and are killed")
                break
        if self._ended == Ended():
            return Ended(self._done_code)
        return self._ended

    def _has_workers(self) -> bool:
        """Whether to continue. A worker without a place is not waited for if the others have stopped or done all."""
        reported = bool(self._seen & self._placed_at.keys())
        if self._stops or (self._is_done and self._is_complete()):
            return reported
        if self._is_done:  # one worker could not finish some shards, and perhaps another can
            now = self._clock()
            return reported or bool(self._due) or any(now - at < _UNPLACED_SECONDS for at in self._placed_at.values())
        return bool(self._placed_at or self._due)

    def _is_complete(self) -> bool:
        total = self._totals.progress()
        return total.finished + total.failed >= total.planned

    def _start_due(self) -> None:
        now = self._clock()
        for worker in [each for each, at in self._due.items() if at <= now]:
            del self._due[worker]
            self._placed_at[worker] = now
            self._pool.start(worker)

    def _handle(self, worker: int, report: WorkerReport) -> None:
        if worker not in self._seen and not report.lost:
            self._seen.add(worker)
            self._say(f"worker {worker} runs on {report.host} (process {report.pid})")
        for line in report.lines:
            self._say(f"worker {worker}: {line}")
        self._totals.add(worker, report.shards)
        if report.code is None and not report.lost:
            return
        shard = self._totals.shard_of(worker)
        self._totals.end(worker)
        self._seen.discard(worker)
        self._placed_at.pop(worker, None)
        if report.code in _DONE:
            self._is_done = True
            self._done_code = max(self._done_code, report.code)
        elif report.lost or report.code is None or report.code < 0 or report.code in _REPLACED:
            self._handle_death(worker, report, shard)
        elif not self._ended.code:
            self._ended = Ended(report.code, reason=f"worker {worker} ended: {_describe_exit(report.code)}")
            self._stop_all()

    def _handle_death(self, worker: int, report: WorkerReport, shard: str) -> None:
        if self._stops:
            return
        if report.code == _INTERRUPTED and self._options.is_cancelled():
            self._ended = Ended(interrupted=True)
            self._stop_all()
            return
        if self._is_done and self._is_complete():
            return
        if self._totals.work > self._work_at_death:
            self._deaths, self._work_at_death = 0, self._totals.work
        self._deaths += 1
        how = report.lost or _describe_exit(report.code or 0)
        where = f" in shard {shard}" if shard else ""
        if self._deaths > 2 * self._options.workers + 3:
            reason = f"{self._deaths} workers in a row died without any progress; the last: {how}{where}"
            self._ended = Ended(_STORAGE_FAILED if report.code == _STORAGE_FAILED else 1, reason=reason)
            self._stop_all()
            return
        extra = self._deaths - self._options.workers  # a node that dies takes many workers at once
        delay = 0.0 if extra <= 0 else min(2.0**extra, _DELAY_SECONDS_MAX)
        self._due[worker] = self._clock() + delay
        self._say(f"worker {worker} died{where}: {how}; starting another{f' in {delay:g} s' if delay else ''}")

    def _stop_workers(self, signals: int) -> None:
        """Pass on interrupts that have arrived since the last call."""
        if signals > self._stops:
            if not self._ended.code:
                self._ended = Ended(interrupted=True)
            self._stop_all()
            self._stops = max(self._stops, signals)

    def _stop_all(self) -> None:
        if not self._stops:
            self._stopped_at = self._clock()
        self._stops += 1
        self._due.clear()
        for worker in self._placed_at:
            self._pool.stop(worker)

    def _warn_of_unplaced(self) -> None:
        now = self._clock()
        late = {
            worker
            for worker, at in self._placed_at.items()
            if worker not in self._seen and now - at > _UNPLACED_SECONDS
        } - self._warned
        if late and not self._stops:
            self._warned |= late
            self._say(f"workers {self._names(late)} wait for a place: each needs {self._pool.describe_place()}")

    @staticmethod
    def _names(workers: Iterable[int]) -> str:
        return ", ".join(map(str, sorted(workers)))


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"its process was killed by signal {-code}"
    reasons = {
        2: "bad spec or usage",
        3: "its spec, data or code differ from those of the run",
        4: "another process holds its shard",
        5: "damaged data",
        6: "stopped at a budget",
        _STORAGE_FAILED: "its storage failed",
        _INTERRUPTED: "its process was interrupted",
    }
    return f"{reasons[code]} (exit code {code})" if code in reasons else f"exit code {code}"
