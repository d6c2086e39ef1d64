"""The watchdog of a run: writes its heartbeat (the lease), detects stalls, and carries out requests of other processes.

The heartbeat comes from the event loop. A thread checks that it comes, because a blocked loop cannot report itself.
Waiting for a call is no stall, however long; code that neither makes a call nor returns is one. An error in here is
logged and never ends the run; only a lost lock does. After a crash the lease stays as it was: readers see by its age
and its process that nobody renews it.
"""

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from holdfast.engine.engine import Engine
from holdfast.engine.in_flight import InFlightSample
from holdfast.errors import describe_error
from holdfast.journal import InFlight, Lease, Stall, oom_kills, this_process, write_lease
from holdfast.records import Durations

Tell = Callable[..., None]
_BEAT_SECONDS = 1.0
_OLDEST = 5
_FRAMES_MAX = 8
_BEHIND_INTERVALS = 3
_GUARD_END_SECONDS = 5.0


class WatchdogOptions(msgspec.Struct, frozen=True):
    """What the watchdog needs to know about its run, and what it may do."""

    run: str
    epoch: int
    acknowledged: Callable[[], int]
    tell: Tell
    execute_requests: Callable[[], Awaitable[None]]
    """Carries out requests of other processes (cancel, tune, …)."""
    mirrored: Callable[[], tuple[int | None, float]] = lambda: (None, 0.0)
    """The last mirrored record, and how many seconds the mirror is behind."""
    commits: Callable[[], Durations | None] = lambda: None
    """How long records took to become durable."""
    lost: Callable[[], bool] = lambda: False
    """Whether this process has lost the right to write to the run's folder."""
    lock_inode: int = 0
    disk_wait: Callable[[], str] = lambda: ""
    """Why the journal waits, if the disk is full."""


class Watchdog:
    """Keeps the lease of one engine up to date, from `start` to `end`."""

    def __init__(self, engine: Engine, orders: WatchdogOptions) -> None:
        self._engine = engine
        self._orders = orders
        self._holder = this_process()
        self._oom_kills = oom_kills()
        self._began = time.time()
        self._beat = 0
        self._last_beat = time.monotonic()
        self._seen: tuple[int, ...] = ()
        self._progress_at = time.monotonic()
        self._reported: set[str] = set()
        self._lease: Lease | None = None
        self._stalled = False
        self._ended = threading.Event()
        self._loop_thread = threading.get_ident()
        self._beat_task: asyncio.Task[None] | None = None
        self._request_task: asyncio.Task[None] | None = None
        self._writing = ThreadPoolExecutor(1, "holdfast-lease")
        self._guard_thread = threading.Thread(target=self._guard, name="holdfast-watch", daemon=True)

    def start(self) -> None:
        self._beat_task = asyncio.ensure_future(self._keep_beat_task())
        self._guard_thread.start()

    async def end(self) -> None:
        """Write a last lease that says that the run was released in good order."""
        self._ended.set()
        if self._guard_thread.is_alive():  # it must not write the lease after the lock is released
            await asyncio.get_running_loop().run_in_executor(self._writing, self._guard_thread.join, _GUARD_END_SECONDS)
        if self._beat_task is not None:
            self._beat_task.cancel()
            await asyncio.gather(self._beat_task, return_exceptions=True)
        if self._request_task is not None:
            await asyncio.gather(self._request_task, return_exceptions=True)
        await self._write(msgspec.structs.replace(self._lease_now(), released=True, stall=None))
        self._writing.shutdown(wait=False)

    async def _execute_requests(self) -> None:
        """Carry out what `cancel` and `tune` have requested from other processes."""
        try:
            await self._orders.execute_requests()
        except Exception as error:  # noqa: BLE001 - a failed request must not stop the run
            self._tell("run.watch_failed", describe_error(error))

    async def _write(self, lease: Lease) -> bool:
        """Write in a thread of its own: solvers may occupy all threads of the default pool."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writing, self._write_unless_lost, lease)

    def _write_unless_lost(self, lease: Lease) -> bool:
        """Return False, and write nothing, if the run's folder or the right to write to it is lost."""
        if self._orders.lost():
            return False
        write_lease(self._orders.run, lease)
        return True

    async def _keep_beat_task(self) -> None:
        while True:
            self._beat += 1
            self._last_beat = time.monotonic()
            try:
                if not await self._write(self._lease_now()):
                    # Requests from now on could not be recorded, or another process makes them too.
                    self._engine.stop_now()
                    return
                if self._request_task is None or self._request_task.done():  # one at a time: it may wait for a thread
                    self._request_task = asyncio.ensure_future(self._execute_requests())
            except Exception as error:  # noqa: BLE001 - the heartbeat must continue
                self._tell("run.watch_failed", describe_error(error))
            await asyncio.sleep(min(_BEAT_SECONDS, self._stall_seconds / 4))

    @property
    def _stall_seconds(self) -> float:
        return self._engine.spec.stall_seconds

    def _tell(self, event: str, message: str, **facts: str) -> None:
        """Errors of the log must not stop the watchdog."""
        with contextlib.suppress(Exception):
            self._orders.tell(event, message, **facts)

    def _lease_now(self) -> Lease:
        """Check all samples for stalls and return the current lease."""
        now, loop_now, wall = time.monotonic(), asyncio.get_running_loop().time(), time.time()
        progress, flights = self._engine.progress, sorted(self._engine.flights, key=InFlightSample.moved_at)
        seen = (progress.finished, progress.failed, progress.live, progress.replayed, progress.in_flight)
        recent = any(flight.is_waiting() or loop_now - flight.moved_at() < self._stall_seconds for flight in flights)
        if seen != self._seen or not flights or recent:
            self._seen, self._progress_at = seen, now
        idle = [
            flight
            for flight in flights
            if not flight.is_waiting() and loop_now - flight.moved_at() > self._stall_seconds
        ]
        self._report_overdue(flights, loop_now, wall)
        self._handle_idle(idle, loop_now, wall)
        stall = self._stall_of(idle, now, loop_now, wall)
        mirrored, behind = self._orders.mirrored()
        progress.mirror_behind = round(behind, 1) if self._is_late(behind) else 0.0
        self._lease = Lease(
            holder=self._holder,
            epoch=self._orders.epoch,
            beat=self._beat,
            at=wall,
            began=self._began,
            stall_seconds=self._stall_seconds,
            planned=progress.planned,
            finished=progress.finished,
            failed=progress.failed,
            in_flight=len(flights),
            acknowledged=self._orders.acknowledged(),
            mirrored=mirrored,
            mirror_behind=round(behind, 1),
            progress_at=wall - (now - self._progress_at),
            held="; ".join(filter(None, (self._orders.disk_wait(), progress.held))),
            oldest=[flight.describe(loop_now, wall) for flight in flights[:_OLDEST]],
            stall=stall,
            oom_kills=self._oom_kills,
            commits=self._orders.commits(),
            lock=self._orders.lock_inode,
        )
        return self._lease

    def _is_late(self, behind: float) -> bool:
        """Whether the mirror is further behind than its interval explains."""
        mirror = self._engine.spec.mirror
        return mirror is not None and behind > _BEHIND_INTERVALS * mirror.seconds

    def _stall_of(self, idle: list[InFlightSample], now: float, loop_now: float, wall: float) -> Stall | None:
        quiet = now - self._progress_at
        if quiet <= self._stall_seconds or not idle:
            if self._stalled:
                self._tell("run.moving_again", "the run moves again")
            self._stalled = False
            return None
        samples = [flight.describe(loop_now, wall, stack=True) for flight in idle[:_OLDEST]]
        if not self._stalled:
            self._tell("run.stalled", _describe("nothing moves", samples))
        self._stalled = True
        return Stall(wall - quiet, "nothing moves, and nothing is being waited for", samples)

    def _report_overdue(self, flights: list[InFlightSample], loop_now: float, wall: float) -> None:
        for flight in flights:
            if flight.is_overdue(loop_now) and f"overdue {flight.key}" not in self._reported:
                self._reported.add(f"overdue {flight.key}")
                stacked = flight.describe(loop_now, wall, stack=True)
                self._tell("sample.overdue", _describe("past its time limit and still here", [stacked]))

    def _handle_idle(self, idle: list[InFlightSample], loop_now: float, wall: float) -> None:
        """Log each sample that hangs, once; cancel it with `on_stall: cancel-sample`."""
        cancel = self._engine.spec.on_stall == "cancel-sample"
        for flight in idle:
            if flight.key not in self._reported:
                self._reported.add(flight.key)
                found = flight.describe(loop_now, wall, stack=True)
                self._tell("sample.stalled", _describe("nothing moved in it", [found]), key=flight.key)
            if cancel and not flight.stalled:
                flight.stalled = True
                flight.task.cancel()

    # Below: runs in the thread, and must not touch what belongs to the event loop.

    def _guard(self) -> None:
        blocked = False
        while not self._ended.wait(min(1.0, self._stall_seconds / 4)):
            quiet = time.monotonic() - self._last_beat
            if quiet <= self._stall_seconds:
                blocked = False
                continue
            if blocked:
                continue
            blocked = True
            stack = _stack_of(self._loop_thread)
            since = time.time() - quiet
            busy = InFlight("", "blocking the event loop", since, stack=stack)
            self._tell("run.stalled", _describe("the event loop is blocked", [busy]))
            if self._lease is not None:
                stall = Stall(since, "the event loop is blocked by code that does not await", [busy])
                self._write_unless_lost(msgspec.structs.replace(self._lease, stall=stall))


def _stack_of(thread: int) -> list[str]:
    frame: Any = sys._current_frames().get(thread)  # noqa: SLF001 - the only way to see what another thread does
    frames = traceback.extract_stack(frame)[-_FRAMES_MAX:] if frame is not None else []
    return [f"{each.filename}:{each.lineno} in {each.name}" for each in frames]


def _describe(what: str, samples: list[InFlight]) -> str:
    parts = [f"{each.key or 'the loop'} ({each.doing}{_at(each.stack)})" for each in samples]
    return f"{what}: {'; '.join(parts)}"


def _at(stack: list[str]) -> str:
    """Return the innermost frame outside asyncio, which is usually the user's."""
    user_frames = [frame for frame in stack if "/asyncio/" not in frame]
    return f" at {(user_frames or stack)[-1]}" if stack else ""
