"""Signals: how a person or a scheduler ends a run that this process works on.

The first Ctrl-C or SIGTERM lets requests that are under way end, within the spec's grace; the second stops now; both
save and say how to go on. The third ends the process, and so does the second if the event loop does not even hear of
it, because code blocks it: whatever was acknowledged is kept in any case.
"""

import asyncio
import os
import signal
import sys
import threading
from types import FrameType

from holdfast.api import RunPlace
from holdfast.cli.output import resume_command
from holdfast.engine import Engine

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DEAF_SECONDS = 3.0
"""An event loop that has not looked at a signal for so long is blocked."""
_EXIT = 130


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
        self._loop.call_soon_threadsafe(self._stop, signal.Signals(number), self._received)

    def _stop(self, number: signal.Signals, count: int) -> None:
        if count == 2:
            self._heard.set()
        if self._engine is None:
            assert self._main is not None
            self._main.cancel()
        elif count == 1:
            grace = f"at most {self._engine.spec.grace_seconds:g} s for requests under way; again to stop now"
            sys.stderr.write(f"\n{number.name}: stopping, {grace}\n")
            self._engine.tell("run.shutdown_requested", f"by {number.name}")
            self._engine.stop(f"stopped by {number.name}")
        else:
            self._engine.stop_now()

    def _guard(self) -> None:
        if not self._heard.wait(_DEAF_SECONDS):
            self._end_process("code that does not await blocks the event loop: ended without it")

    def _end_process(self, why: str) -> None:
        """What was acknowledged is on the disk, and the lock goes with the process: there is nothing to tidy up."""
        more = f" Go on with: {resume_command(self._place)}" if self._place is not None else ""
        os.write(2, f"\n{why}; everything acknowledged is kept.{more}\n".encode())
        os._exit(_EXIT)


def leave(code: int, *, left_behind: bool) -> int:
    """The end of a command that worked on a run: a late signal must not spoil its exit code, nor may code that could
    not be cancelled keep the process (`left_behind`).
    """
    if code == _EXIT:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    if left_behind:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
