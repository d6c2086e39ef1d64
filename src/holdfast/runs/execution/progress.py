"""Shows the progress of a run that was started from Python: a bar in a notebook, a line on a terminal, else nothing.

Neither IPython nor widgets are required: in a notebook, IPython is already loaded and its display is used.
"""

import asyncio
import contextlib
import shutil
import sys
import time
from typing import Any, Protocol

from holdfast.engine import Engine, Progress
from holdfast.printable import live_line
from holdfast.report import progress_bar, progress_html, progress_line
from holdfast.runs.execution.session import Observe

_SHOW_SECONDS = 0.25


class _Display(Protocol):
    """A display on which each state replaces the previous one."""

    def show(self, progress: Progress) -> None: ...

    def end(self) -> None: ...


def observer(quiet: bool = False) -> Observe | None:
    """The display for this environment; None if nobody would see it."""
    if quiet:
        return None
    # Whether this is an IPython shell with a kernel: a front end then shows rich output.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is not None:
        return lambda engine, place: _watch(engine, _Cell())
    if sys.stderr.isatty():
        return lambda engine, place: _watch(engine, _Terminal())
    return None


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
