"""Signals: how a person or a scheduler ends a run that this process works on.

The first Ctrl-C or SIGTERM lets requests that are under way end, within the spec's grace; the second stops now; both
save and say how to go on. The third ends the process, and so does the second if the event loop does not even hear of
it, because code blocks it: whatever was acknowledged is kept in any case.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TypeVar

from holdfast.cli.output import resume_command
from holdfast.engine import Engine
from holdfast.printable import clean
from holdfast.runs import RunPlace

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DEAF_SECONDS = 3.0
"""An event loop that has not looked at a signal for so long is blocked."""
_EXIT = 130

T = TypeVar("T")


class Stopper:
    """Ends one run when signals come. Made inside its event loop, in the main thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._engine: Engine | None = None
        self._place: RunPlace | None = None
        self._received = 0
        self._heard = threading.Event()
        for number in _SIGNALS:
            signal.signal(number, self._receive)

    def watch(self, engine: Engine, place: RunPlace) -> None:
        """From now on there is something to stop in good order."""
        self._engine, self._place = engine, place

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Between any two lines of the main thread, also of code that blocks the loop: only the loop may stop a run."""
        self._received += 1
        if self._received > 2:
            self._end_process("ended at the third signal")
        if self._received == 2:
            threading.Thread(target=self._guard, name="holdfast-stop", daemon=True).start()
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the process is about to
            self._loop.call_soon_threadsafe(self._stop, signal.Signals(number), self._received)

    def _stop(self, number: signal.Signals, count: int) -> None:
        if count == 2:
            self._heard.set()
        if self._engine is None and count > 1:
            self._end_process("ended before the run had begun to work")
        elif self._engine is None:
            assert self._main is not None
            self._main.cancel()
        elif count == 1:
            grace = f"at most {self._engine.spec.grace_seconds:g} s for requests under way; again to stop now"
            sys.stderr.write(f"\n{number.name}: stopping, {grace}\n")
            self._engine.tell("run.shutdown_requested", f"by {number.name}")
            self._engine.stop(f"stopped by {number.name}")
        else:
            self._engine.leave()

    def _guard(self) -> None:
        if not self._heard.wait(_DEAF_SECONDS):
            self._end_process("code that does not await blocks the event loop: ended without it")

    def _end_process(self, why: str) -> None:
        """What was acknowledged is on the disk, and the lock goes with the process: there is nothing to tidy up."""
        more = f" Go on with: {resume_command(self._place)}" if self._place is not None else ""
        os.write(2, clean(f"\n{why}; everything acknowledged is kept.{more}\n").encode(errors="backslashreplace"))
        os._exit(_EXIT)


def run_stoppable(work: Callable[[Stopper], Awaitable[T]], tell: Callable[[T], int], nothing: str) -> int:
    """`asyncio.run` for a command that works on a run, until signals stop it. It does not wait at the end for code that
    will not be cancelled: all is saved by then. `tell` says what came of it and with which exit code; `nothing` is said
    if there was nothing to stop in good order yet.
    """
    runner = asyncio.Runner()
    try:
        done = runner.run(_until_signal(work, nothing))
    finally:
        left_behind = bool(asyncio.all_tasks(runner.get_loop()))
        if not left_behind:
            runner.close()
    return _leave(tell(done), left_behind)


async def _until_signal(work: Callable[[Stopper], Awaitable[T]], nothing: str) -> T:
    stopper = Stopper()
    try:
        return await work(stopper)
    except asyncio.CancelledError:
        sys.stderr.write(f"{nothing}; the same command begins again\n")
        sys.exit(_EXIT)


def _leave(code: int, left_behind: bool) -> int:
    """A late signal must not spoil the exit code, nor may code that could not be cancelled keep the process."""
    if code == _EXIT:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    if left_behind:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
