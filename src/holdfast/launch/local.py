"""Workers on this machine: processes that claim shards, watched by one parent.

The parent owns no part of the run: it starts workers, replaces those that a signal has killed, forwards signals to them
and reads their leases for the progress. If the parent is killed, its workers continue, and the same command joins them.

Each worker runs on an equal part of the cores, so that the scorers and sandboxes of one do not displace another worker.
Only Linux can do that. With more workers than cores, all share them.

Each worker has a session of its own, so that Ctrl-C reaches it once, from the parent, and not also from the terminal.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from holdfast.engine import Progress
from holdfast.journal import Lease, read_lease
from holdfast.records import Shard
from holdfast.runs import RunLocation, shard_location, shard_standings

_RESTARTS_MAX = 5
_TAIL_BYTES = 4000


class WorkerEnd(msgspec.Struct, frozen=True):
    """How one worker ended. `code` is negative if a signal killed it, as in `subprocess`."""

    number: int
    code: int
    log: str

    def last_lines(self) -> str:
        """The end of what the worker printed."""
        with open(self.log, "rb") as file:
            file.seek(max(os.path.getsize(self.log) - _TAIL_BYTES, 0))
            return file.read().decode(errors="replace").strip()


class _Slot:
    """One of the workers, and those that replaced it."""

    def __init__(self, number: int, log: str, cores: Collection[int]) -> None:
        self.number = number
        self.log = log
        self.cores = cores
        self.restarts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.end: WorkerEnd | None = None


class LocalWorkers:
    """All workers of one run on this machine."""

    def __init__(self, command: Sequence[str], count: int, logs: str, environ: Mapping[str, str] | None = None) -> None:
        """`logs`: the folder for what the workers print, one file each."""
        self._command = list(command)
        self._environ = None if environ is None else dict(environ)
        self._slots = [
            _Slot(number, os.path.join(logs, f"worker-{number}.log"), cores)
            for number, cores in enumerate(divide_cores(count), 1)
        ]
        self.stopped_by: signal.Signals | None = None

    def start(self) -> None:
        for slot in self._slots:
            self._start(slot)

    def _start(self, slot: _Slot) -> None:
        with open(slot.log, "ab") as log, _running_on(slot.cores):
            slot.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                start_new_session=True,
            )

    def poll(self) -> list[str]:
        """Replace workers that were killed. Returns a message for each."""
        messages = []
        for slot in self._slots:
            code = None if slot.process is None else slot.process.poll()
            if code is None:
                continue
            slot.process, slot.end = None, WorkerEnd(slot.number, code, slot.log)
            if code >= 0 or self.stopped_by is not None:
                continue
            killed = f"worker {slot.number} was killed by {_signal_name(-code)}"
            if slot.restarts == _RESTARTS_MAX:
                messages.append(f"{killed} for the {slot.restarts + 1}th time; it is not started again")
                continue
            slot.restarts += 1
            slot.end = None
            self._start(slot)
            messages.append(f"{killed}; started again")
        return messages

    def stop(self, number: signal.Signals) -> None:
        """Forward a signal to all workers."""
        self.stopped_by = self.stopped_by or number
        for slot in self._slots:
            if slot.process is not None:
                slot.process.send_signal(number)  # does nothing if it has ended: `Popen` looks first

    @property
    def pids(self) -> set[int]:
        """Of the workers that run."""
        return {slot.process.pid for slot in self._slots if slot.process is not None}

    @property
    def ends(self) -> list[WorkerEnd]:
        """Of the workers that have ended and were not replaced."""
        return [slot.end for slot in self._slots if slot.end is not None]


def divide_cores(count: int) -> list[list[int]]:
    """The cores of each worker; empty if it may use all."""
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    if len(cores) < count:
        return [[]] * count
    return [cores[len(cores) * number // count : len(cores) * (number + 1) // count] for number in range(count)]


@contextlib.contextmanager
def _running_on(cores: Collection[int]) -> Iterator[None]:
    """Restrict this thread, because a process inherits the cores of the thread that starts it."""
    if sys.platform != "linux" or not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # a container may forbid it, or its cores have changed: then all are used
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


class RunProgress:
    """The progress of all shards, from the leases of their workers: those of this machine, and the last ones of others
    in the mirror, if the run has one.
    """

    def __init__(self, root: RunLocation, count: int, mirror: str = "") -> None:
        """`mirror`: the URL in the run's spec, if any."""
        self._root = root
        self._shards = [Shard(number, count) for number in range(1, count + 1)]
        self._mirror = mirror
        self._elsewhere: dict[Shard, Lease] = {}
        self._first: Progress | None = None
        """The first that was read. It says what was done when this command began."""

    def look_elsewhere(self) -> None:
        """Read the leases in the mirror. It costs a few requests for each shard."""
        if self._mirror:
            found = shard_standings(self._root, len(self._shards), self._mirror)
            self._elsewhere = {shard: each.lease for shard, each in found.items() if each.lease is not None}

    def read(self, planned: int, pids: Collection[int], now: float) -> Progress:
        """`pids`: of the workers of this command."""
        found = Progress(planned, started=now, shards=len(self._shards), workers=len(pids))
        for shard in self._shards:
            here = read_lease(shard_location(self._root, shard).folder)
            leases = [each for each in (here, self._elsewhere.get(shard)) if each is not None]
            lease = max(leases, key=lambda each: each.epoch, default=None)
            if lease is None:
                continue
            found.finished += lease.finished
            found.failed += lease.failed
            found.shards_done += lease.end == "run.completed" and lease.planned == lease.finished + lease.failed
            if lease is here and lease.holder.pid in pids and not lease.released:
                found.in_flight += lease.in_flight
                found.held = found.held or lease.held
        first = self._first
        if first is None:
            found.before, found.failed_before = found.finished + found.failed, found.failed
            self._first = found
        else:
            found.started, found.before, found.failed_before = first.started, first.before, first.failed_before
        return found
