"""Signals that end a run of this process.

The first Ctrl-C or SIGTERM waits for requests in flight, for at most the spec's grace period. The second stops at once.
Both save and print how to continue. The third ends the process; so does the second if the event loop does not handle it
within 3 seconds, because user code blocks it. Every acknowledged record is kept in any case.

HOLDFAST_SIGNAL_GAP: signals that arrive within so many seconds after the first count as one. Job files set it where a
scheduler may signal the process, and its shell forwards the same signal.

A process may execute several runs, one after the other. Between them, a signal raises KeyboardInterrupt.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TypeVar

from holdfast.printable import clean, is_watched
from holdfast.runs import ObservedWork, RunLocation, new_event_loop

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BLOCKED_SECONDS = 3.0
"""An event loop that has not handled a signal for so long is blocked."""
_EXIT = 130
_GAP = "HOLDFAST_SIGNAL_GAP"

T = TypeVar("T")
StuckLoops = list[asyncio.Runner]
"""Event loops with tasks that cannot be cancelled: a normal exit of the process would wait for them."""


class Stopper:
    """Ends one run when signals arrive. Created inside its event loop, in the main thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._work: ObservedWork | None = None
        self._place: RunLocation | None = None
        self.received = 0
        self._stopped_by: signal.Signals | None = None
        self._handled = threading.Event()
        self._gap_seconds = _read_gap()
        self._first_at = 0.0
        for number in _SIGNALS:
            signal.signal(number, self._receive)

    def watch(self, work: ObservedWork, place: RunLocation) -> None:
        """Set the work to stop. Before this call, a signal cancels the main task. Work that follows other work is
        stopped at once if a signal has arrived between them.
        """
        self._work, self._place = work, place
        if self._stopped_by is not None:
            work.stop(f"stopped by {self._stopped_by.name}")

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. It arrives between any two lines of the main thread: only the loop may touch the engine."""
        now = time.monotonic()
        if self.received and now - self._first_at < self._gap_seconds:
            return
        self._first_at = self._first_at or now
        self.received += 1
        if self.received > 2:
            self._end_process("ended at the third signal")
        if self.received == 2:
            threading.Thread(target=self._guard, name="holdfast-stop", daemon=True).start()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is about to end
            self._loop.call_soon_threadsafe(self._stop, signal.Signals(number), self.received)

    def _stop(self, number: signal.Signals, count: int) -> None:
        if count == 2:
            self._handled.set()
        if self._work is None and count > 1:
            self._end_process("ended before the run had begun to work")
        elif self._work is None:
            assert self._main is not None
            self._main.cancel()
        elif count == 1:
            grace = f"at most {self._work.spec.grace_seconds:g} s for requests in flight; press again to stop now"
            lead = "" if is_watched(sys.stderr) else "\n"  # live lines are replaced, and with them the `^C`
            sys.stderr.write(f"{lead}{number.name}: stopping, {grace}\n")
            self._stopped_by = number
            self._work.tell("run.shutdown_requested", f"by {number.name}")
            self._work.stop(f"stopped by {number.name}")
        else:
            self._work.leave()

    def _guard(self) -> None:
        if not self._handled.wait(_BLOCKED_SECONDS):
            self._end_process("code that does not await blocks the event loop: ended without it")

    def _end_process(self, why: str) -> None:
        """End the process at once. Acknowledged records are on disk and the kernel releases the lock."""
        more = f" Continue with: {self._place.command('resume')}" if self._place is not None else ""
        os.write(2, clean(f"\n{why}; everything acknowledged is kept.{more}\n").encode(errors="backslashreplace"))
        os._exit(_EXIT)


def _read_gap() -> float:
    try:
        return float(os.environ.get(_GAP, "0"))
    except ValueError:
        return 0.0


def run_stoppable(
    work: Callable[[Stopper], Awaitable[T]],
    finish: Callable[[T], int],
    too_early: str,
    stuck: StuckLoops | None = None,
) -> int:
    """Run `work` like `asyncio.run`, until it ends or signals stop it; return the exit code of `finish`, which prints
    the outcome. `too_early` is printed if a signal arrives before there is a run to stop.

    Does not wait for code that cannot be cancelled: everything is saved by then. `stuck`: if other runs follow in this
    process, its event loop is added here instead; the caller ends the process with `exit_if_stuck`.
    """

    async def work_until_signal() -> T:
        stopper = Stopper()
        try:
            return await work(stopper)
        except asyncio.CancelledError:
            sys.stderr.write(f"{too_early}; run the same command to start again\n")
            sys.exit(_EXIT)

    loops = [] if stuck is None else stuck
    runner = asyncio.Runner(loop_factory=new_event_loop)
    try:
        done = runner.run(work_until_signal())
    finally:
        if asyncio.all_tasks(runner.get_loop()):
            loops.append(runner)
        else:
            runner.close()
    code = finish(done)
    if stuck is None:
        if code == _EXIT:  # a late signal would change the exit code
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        exit_if_stuck(loops, code)
    return code


def exit_if_stuck(stuck: StuckLoops, code: int) -> None:
    """End the process at once if a run has left tasks that cannot be cancelled."""
    if stuck:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def release_signals() -> bool:
    """Let signals raise KeyboardInterrupt, after a run. Returns whether one has arrived since the run began."""
    received = False
    for number in _SIGNALS:
        stopper = getattr(signal.signal(number, signal.default_int_handler), "__self__", None)
        received = received or (isinstance(stopper, Stopper) and stopper.received > 0)
    return received
