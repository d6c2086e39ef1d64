"""Comparisons and leaderboards: computed once for each state of their runs, and kept.

At a million samples a comparison takes seconds and hundreds of megabytes. So large ones are computed by a child
process, one at a time, with low priority. Its result is a temporary file that the server maps, which costs little
memory. A page that needs a result gets the last one, or says that it is being computed. A live run changes all the
time: it is computed again after a while, not with every record. A crash leaves nothing behind.
"""

import contextlib
import mmap
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import msgspec

from holdfast.errors import HoldfastError, reason_of
from holdfast.report import ComparisonResult, LeaderboardResult
from holdfast.runs import KeyTable, KeyTableHead, RunLocation, changes_of, leaderboard_of
from holdfast.view.sources import ViewedRun

_SMALL_KEYS = 20_000
"""Runs with so many keys together are compared at once, in the request."""
_KEPT_MAX = 16
_AGAIN_SECONDS = 5.0
_AGAIN_FACTOR = 10
"""A live run is computed again after so many times the seconds that it took."""


class JobRun(msgspec.Struct, frozen=True):
    """A run of a job, as it was after record `at`."""

    place: RunLocation
    at: int | None = None


class Job(msgspec.Struct, frozen=True):
    """What to compute."""

    kind: Literal["compare", "leaderboard"]
    runs: tuple[JobRun, ...]
    evaluation: str = ""
    task: str = ""
    scorer: str = ""


class JobOutcome(msgspec.Struct, frozen=True):
    """The result of a job, or the sentence that says why there is none."""

    comparison: ComparisonResult | None = None
    leaderboard: LeaderboardResult | None = None
    problem: str = ""
    records: tuple[int, ...] = ()
    """The last record of each run that was counted."""
    heads: tuple[KeyTableHead, ...] = ()
    sizes: tuple[int, ...] = ()


class Computed(msgspec.Struct, frozen=True):
    """An outcome with its tables of keys. `content`: the buffer that holds the tables."""

    outcome: JobOutcome
    tables: tuple[Any, ...] = ()
    content: Any = None


class Found(msgspec.Struct, frozen=True):
    """What there is for a job now. `computed` may be of an earlier state of the runs."""

    computed: Computed | None
    is_current: bool
    is_running: bool


class _Entry:
    """One job: its last result, and whether it is being computed again."""

    def __init__(self) -> None:
        self.computed: Computed | None = None
        self.states: tuple[Any, ...] | None = None
        self.is_running = False
        self.next_at = 0.0


class Computations:
    """The results of one server."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def find(self, job: Job, states: tuple[Any, ...], keys: int) -> Found:
        """The result of a job. `states`: what its runs look like now. `keys`: how many keys they have together."""
        name = msgspec.json.encode(job)
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            self._entries.move_to_end(name)
            while len(self._entries) > _KEPT_MAX:
                self._entries.popitem(last=False)
            if entry.states == states:
                return Found(entry.computed, is_current=True, is_running=False)
            if entry.is_running or time.monotonic() < entry.next_at:
                return Found(entry.computed, is_current=False, is_running=entry.is_running)
            entry.is_running = True
        if keys <= _SMALL_KEYS:
            self._compute(entry, job, states, run_job)
            return Found(entry.computed, is_current=True, is_running=False)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "holdfast-compute")
            self._pool.submit(self._compute, entry, job, states, self._run_child)
        return Found(entry.computed, is_current=False, is_running=True)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._child is not None:
                self._child.kill()
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        self._entries.clear()

    def _compute(self, entry: _Entry, job: Job, states: tuple[Any, ...], run: Any) -> None:
        began = time.monotonic()
        of_states: tuple[Any, ...] | None = states
        try:
            computed = open_result(run(job))
        except Exception as error:  # noqa: BLE001 - one comparison must not take the server down
            computed = Computed(JobOutcome(problem=f"it could not be computed: {reason_of(error)}"))
            of_states = None  # of no state: it is tried again, because the next try may have enough memory
        seconds = time.monotonic() - began
        with self._lock:
            entry.computed, entry.states, entry.is_running = computed, of_states, False
            entry.next_at = time.monotonic() + max(_AGAIN_SECONDS, _AGAIN_FACTOR * seconds)

    def _run_child(self, job: Job) -> Any:
        """Run the job in a process of its own, so that its memory is returned."""
        with tempfile.TemporaryFile() as file:
            with self._lock:
                if self._is_closed:
                    raise RuntimeError("the server is stopping")
                command = [sys.executable, "-m", "holdfast.view.worker"]
                child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.PIPE)
                self._child = child
            try:
                _, errors = child.communicate(msgspec.json.encode(job))
            finally:
                self._child = None
            if child.returncode:
                last = errors.decode(errors="replace").strip().splitlines()[-1:]
                raise RuntimeError(f"the process ended with {child.returncode} {' '.join(last)}".strip())
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def run_job(job: Job) -> bytes:
    """Compute a job, and return its result as bytes: the outcome, then the tables of keys."""
    contents: list[bytes] = []
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(ViewedRun(each.place, each.at)) for each in job.runs]
        try:
            for run in runs:
                run.refresh()
            records = tuple(run.index.last_n for run in runs)
            if job.kind == "compare":
                comparison, tables = changes_of(runs, job.evaluation)
                contents = [content for _, content in tables]
                outcome = JobOutcome(
                    comparison,
                    records=records,
                    heads=tuple(head for head, _ in tables),
                    sizes=tuple(len(content) for content in contents),
                )
            else:
                board = leaderboard_of(runs, job.task or None, job.scorer or None, job.evaluation)
                outcome = JobOutcome(leaderboard=board, records=records)
        except HoldfastError as error:
            outcome, contents = JobOutcome(problem=str(error)), []
    head = msgspec.msgpack.encode(outcome)
    parts = [len(head).to_bytes(8, "little"), head + bytes(-len(head) % 8)]
    return b"".join([*parts, *(content + bytes(-len(content) % 8) for content in contents)])


def open_result(content: Any) -> Computed:
    """The reverse of `run_job`. Tables are not copied out of the buffer."""
    view = memoryview(content)
    size = int.from_bytes(view[:8], "little")
    outcome = msgspec.msgpack.decode(view[8 : 8 + size], type=JobOutcome)
    at, tables = 8 + size + (-size) % 8, []
    for head, length in zip(outcome.heads, outcome.sizes, strict=True):
        tables.append(KeyTable(head, view[at : at + length]))
        at += length + (-length) % 8
    return Computed(outcome, tuple(tables), content)
