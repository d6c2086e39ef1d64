"""Shows the progress of a run that was started from Python: a bar in a notebook, a line on a terminal.

Elsewhere (a script in CI, a job in a queue) it is silent while samples finish, and says what the run waits for when
none does: on standard error, or with a warning of the logger `holdfast` if the program handles its messages.

Neither IPython nor widgets are required: in a notebook, IPython is already loaded and its display is used.
"""

import asyncio
import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.engine import Engine, Progress
from holdfast.printable import live_line, one_line
from holdfast.report import counted, duration, first_line, jobs_text, progress_bar, progress_html, progress_line
from holdfast.runs.execution.session import Observe

_SHOW_SECONDS = 0.25
_QUIET_SECONDS = 3.0
_AGAIN_SECONDS_MAX = 600.0
_WHY_WIDTH = 200


class _Display(Protocol):
    """A display on which each state replaces the previous one."""

    def show(self, progress: Progress) -> None: ...

    def end(self) -> None: ...


def observer(quiet: bool = False) -> Observe | None:
    """The display for this environment; None if it shall be quiet."""
    if quiet:
        return None
    # Whether this is an IPython shell with a kernel: a front end then shows rich output.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is not None:
        return lambda engine, place: _watch(engine, _Cell())
    if sys.stderr.isatty():
        return lambda engine, place: _watch(engine, _Terminal())
    return lambda engine, place: _watch(engine, WaitLog(place.run_id))


async def _watch(engine: Engine, display: _Display) -> None:
    """Update the display until cancelled. The last state stays visible."""
    try:
        while True:
            display.show(engine.progress)
            await asyncio.sleep(_SHOW_SECONDS)
    finally:
        display.show(engine.progress)
        display.end()


class _Terminal:
    def show(self, progress: Progress) -> None:
        line = f"{progress_bar(progress)} {progress_line(progress, time.monotonic())}"
        self._write(live_line(line, shutil.get_terminal_size().columns))

    def end(self) -> None:
        self._write("\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal must not end the run
            sys.stderr.write(text)
            sys.stderr.flush()


class _Cell:
    """One output of a notebook cell, updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, progress: Progress) -> None:
        import IPython.display

        now = time.monotonic()
        data = {
            "text/plain": f"{progress_bar(progress)} {progress_line(progress, now)}",
            "text/html": progress_html(progress, now),
        }
        if self._handle is None:
            self._handle = IPython.display.display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call] # it has no types
        else:
            self._handle.update(data, raw=True)

    def end(self) -> None:
        """Nothing to do: the last state stays in the notebook."""


class WaitLog:
    """Says what a run waits for if no sample finishes for some seconds, then less and less often until one does."""

    def __init__(self, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_id = run_id
        self._clock = clock
        self._done = self._retried = -1
        self._moved = clock()
        self._next = _QUIET_SECONDS
        """For how long nothing must have finished before the next message."""

    def show(self, progress: Progress) -> None:
        now, done = self._clock(), progress.finished + progress.failed
        if done != self._done:
            if self._next > _QUIET_SECONDS:
                _log(logging.INFO, f"{self._run_id}: samples finish again")
            self._done, self._retried, self._moved, self._next = done, progress.retried, now, _QUIET_SECONDS
            return
        waited, why = now - self._moved, self._reason(progress, now)
        if why and done < progress.planned and waited >= self._next:
            self._next = min(2 * self._next, waited + _AGAIN_SECONDS_MAX)
            _log(
                logging.WARNING,
                f"{self._run_id}: {done}/{progress.planned} done, none finished for {duration(waited)}: {why}",
            )

    def end(self) -> None:
        """Nothing to do: every message is complete."""

    def _reason(self, progress: Progress, now: float) -> str:
        if progress.held:
            return first_line(progress.held, _WHY_WIDTH)
        if progress.batch_jobs:
            return jobs_text(progress.batch_jobs, progress.batch_requests, now - progress.batch_since)
        if progress.retried > self._retried:
            retried = counted(progress.retried - self._retried, "request")
            return f"{retried} tried again ({first_line(progress.last_retry, _WHY_WIDTH)})"
        return ""


def _log(level: int, text: str) -> None:
    """Log if the program handles messages of Holdfast; otherwise write a warning to standard error."""
    logger: logging.Logger | None = logging.getLogger("holdfast")
    while logger is not None:
        if any(not isinstance(each, logging.NullHandler) for each in logger.handlers):
            logging.getLogger("holdfast").log(level, "%s", one_line(text))
            return
        logger = logger.parent if logger.propagate else None
    if level >= logging.WARNING:
        with contextlib.suppress(OSError):  # a closed stream must not end the run
            sys.stderr.write(f"holdfast: {one_line(text)}\n")
            sys.stderr.flush()
