"""Shows the progress of a run: live lines on a terminal, an output that changes in a notebook, plain lines in a log. A
command and `holdfast.run` show the same.

Neither IPython nor widgets are required: in a notebook, IPython is already loaded and its display is used. Nothing here
may fail a run: `session` reports an error of a display and continues.
"""

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TextIO, cast

from holdfast.engine import Progress
from holdfast.printable import Lines, LiveBlock, is_watched, lacks_blocks, one_line, terminal_size, uses_color
from holdfast.report import (
    ProgressLayout,
    ProgressTracker,
    ProgressView,
    counted,
    duration,
    first_line,
    jobs_text,
    note_lines,
    plain_line,
    progress_html,
)
from holdfast.runs.execution.session import ObservedWork, ObserveWork
from holdfast.runs.store.lookup import RunLocation

_SHOW_SECONDS = 0.25
_LOG_SECONDS = 1.0
_QUIET_SECONDS = 3.0
_AGAIN_SECONDS_MAX = 600.0
_WHY_WIDTH = 200
_NOTEBOOK_WIDTH = 100
_PLAIN_SECONDS_MIN = 10.0
_PLAIN_SECONDS_MAX = 60.0
_STEPS = 10
"""A plain line for each tenth of the samples."""


class Display(Protocol):
    """Shows one state after another. `ended`: the last one."""

    @property
    def seconds(self) -> float:
        """How often."""

    def show(self, progress: Progress, *, ended: bool = False) -> None: ...


def observer(quiet: bool = False) -> ObserveWork | None:
    """The display of a Python program in this environment; None if it shall be quiet."""
    if quiet:
        return None
    # Whether this is an IPython shell with a kernel: a front end then shows rich output.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is not None:
        return lambda work, place: watch_progress(work, _CellDisplay())
    if is_watched(sys.stderr):
        return _watch_on_terminal
    return lambda work, place: watch_progress(work, ScriptDisplay(place.run_id))


async def watch_progress(work: ObservedWork, display: Display) -> None:
    """Update a display until cancelled. The last state stays visible."""
    try:
        while True:
            display.show(work.progress_by_model())
            await asyncio.sleep(display.seconds)
    finally:
        display.show(work.progress_by_model(), ended=True)


class LiveDisplay:
    """A block of lines on a terminal."""

    seconds = _SHOW_SECONDS

    def __init__(
        self, write: Callable[[Lines], None], size: Callable[[], tuple[int, int]], end: Callable[[], None]
    ) -> None:
        """`write` replaces the block. `size` returns the width and the height of the terminal. `end` keeps the last
        block.
        """
        self._write = write
        self._size = size
        self._end = end
        self._tracker = ProgressTracker()
        self._layout = ProgressLayout()

    def show(self, progress: Progress, *, ended: bool = False) -> None:
        width, height = self._size()
        view = self._tracker.view(progress, time.monotonic(), ended=ended)
        # Without the last column, where a terminal may wrap, and the last row, where the next message begins.
        self._write(self._layout.lines(view, max(width - 1, 1), max(height - 1, 1)))
        if ended:
            self._end()


class PlainDisplay:
    """Single lines for a log: at each tenth of the samples, but at most one in 10 seconds and at least one in 60."""

    seconds = _LOG_SECONDS

    def __init__(
        self, say: Callable[[str], None], *, always: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`always`: the last state is said even if nothing was before, as in a short run."""
        self._say = say
        self._always = always
        self._clock = clock
        self._tracker = ProgressTracker()
        self._said_at: float | None = None
        self._step = 0
        self._was_waiting = False
        self._notes: list[str] = []

    def show(self, progress: Progress, *, ended: bool = False) -> None:
        now = self._clock()
        view = self._tracker.view(progress, now, ended=ended)
        if self._is_due(view, now - (progress.started if self._said_at is None else self._said_at)):
            self._said_at, self._was_waiting = now, view.is_waiting
            self._step = _step_of(view)
            self._say(plain_line(view))
            notes = [*note_lines(view)]
            for note in notes if notes != self._notes else ():
                self._say(f"  {note}")
            self._notes = notes

    def _is_due(self, view: ProgressView, since: float) -> bool:
        if view.ended:
            return self._always or self._said_at is not None
        has_news = self._said_at is None or _step_of(view) > self._step or (view.is_waiting and not self._was_waiting)
        return since >= (_PLAIN_SECONDS_MIN if has_news else _PLAIN_SECONDS_MAX)


def _step_of(view: ProgressView) -> int:
    return _STEPS * view.total.done // max(view.total.planned, 1)


class _CellDisplay:
    """One output of a notebook cell, updated in place."""

    seconds = 2 * _SHOW_SECONDS

    def __init__(self) -> None:
        self._handle: Any = None
        self._tracker = ProgressTracker()
        self._layout = ProgressLayout()

    def show(self, progress: Progress, *, ended: bool = False) -> None:
        import IPython.display

        view = self._tracker.view(progress, time.monotonic(), ended=ended)
        lines = self._layout.lines(view, _NOTEBOOK_WIDTH)
        text = "\n".join(one_line("".join(piece.text for piece in line)).rstrip() for line in lines)
        data = {"text/plain": text, "text/html": progress_html(view)}
        if self._handle is None:
            self._handle = IPython.display.display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call] # it has no types
        else:
            self._handle.update(data, raw=True)


class _Terminal:
    """The terminal of a Python program, shared by all runs that it works on: a block of lines for each.

    While there are any, what the program prints or logs goes above them.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._live = LiveBlock()
        self._blocks: dict[str, Lines] = {}
        """By the run's folder."""
        self._stream: TextIO = sys.stderr
        self._restore: Callable[[], None] = lambda: None
        self._has_open_line = False

    @contextlib.contextmanager
    def showing(self, place: RunLocation) -> Iterator[LiveDisplay]:
        """A display for one run."""
        with self._lock:
            if not self._blocks:
                self._stream, self._restore = sys.stderr, self._redirect()
            self._blocks[place.folder] = []
        try:
            yield LiveDisplay(
                lambda lines: self._draw(place, lines),
                lambda: terminal_size(self._stream),
                lambda: self._keep(place),
            )
        finally:
            with self._lock:
                self._blocks.pop(place.folder, None)
                if not self._blocks:
                    self._restore()

    def write_above(self, stream: TextIO, text: str) -> int:
        """Write what the program prints, in place of the live lines; the next state shows them again."""
        with self._lock, contextlib.suppress(OSError):
            if text and self._live.is_shown:
                self._stream.write(self._live.erase(terminal_size(self._stream)[0]))
                self._stream.flush()
            stream.write(text)
            stream.flush()
            self._has_open_line = not text.endswith("\n") if text else self._has_open_line
        return len(text)

    def _draw(self, place: RunLocation, lines: Lines) -> None:
        with self._lock, contextlib.suppress(OSError):  # a closed terminal must not end the run
            self._blocks[place.folder] = lines
            every = [line for block in self._blocks.values() for line in block]
            lead = "\n" if self._has_open_line and not self._live.is_shown else ""
            self._has_open_line = False
            width, _ = terminal_size(self._stream)
            drawn = self._live.draw(every, width, color=uses_color(), ascii_only=lacks_blocks(self._stream))
            self._stream.write(lead + drawn)
            self._stream.flush()

    def _keep(self, place: RunLocation) -> None:
        """Leave the last state of a run above the others."""
        with self._lock, contextlib.suppress(OSError):
            others = {folder: lines for folder, lines in self._blocks.items() if folder != place.folder}
            last, self._blocks = self._blocks[place.folder], {place.folder: self._blocks[place.folder]}
            self._draw(place, last)
            self._live.keep()
            self._stream.write("\n")
            self._stream.flush()
            self._blocks = others

    def _redirect(self) -> Callable[[], None]:
        """Let what the program prints, and logs on the terminal, pass through `write_above`; return what undoes it."""
        before = (sys.stdout, sys.stderr)
        above = [cast("TextIO", _StreamAbove(each, self)) if is_watched(each) else each for each in before]
        sys.stdout, sys.stderr = above
        handlers = [each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
        moved = [(each, each.stream, above[before.index(each.stream)]) for each in handlers if each.stream in before]
        for handler, _, stream in moved:
            handler.setStream(stream)

        def restore() -> None:
            for handler, stream, _ in moved:
                handler.setStream(stream)
            if [sys.stdout, sys.stderr] == above:  # else the program has replaced them itself
                sys.stdout, sys.stderr = before

        return restore


class _StreamAbove:
    """A stream of the program. What is written to it goes above the live lines."""

    def __init__(self, stream: TextIO, terminal: _Terminal) -> None:
        self._stream = stream
        self._terminal = terminal

    def write(self, text: str) -> int:
        return self._terminal.write_above(self._stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_TERMINAL = _Terminal()


async def _watch_on_terminal(work: ObservedWork, place: RunLocation) -> None:
    with _TERMINAL.showing(place) as display:
        await watch_progress(work, display)


class ScriptDisplay:
    """For a Python program without a terminal: plain lines if the run takes long, and what it waits for."""

    seconds = _LOG_SECONDS

    def __init__(self, run_id: str) -> None:
        self._plain = PlainDisplay(lambda line: log_event(logging.INFO, f"{run_id}: {line}", is_progress=True))
        self._waits = WaitLog(run_id)

    def show(self, progress: Progress, *, ended: bool = False) -> None:
        self._plain.show(progress, ended=ended)
        self._waits.show(progress, ended=ended)


class WaitLog:
    """Says what a run waits for if no sample finishes for some seconds, then less and less often until one does."""

    def __init__(self, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_id = run_id
        self._clock = clock
        self._done = self._retried = -1
        self._moved = clock()
        self._next = _QUIET_SECONDS
        """For how long nothing must have finished before the next message."""

    def show(self, progress: Progress, *, ended: bool = False) -> None:
        now, done = self._clock(), progress.finished + progress.failed
        if done != self._done:
            if self._next > _QUIET_SECONDS:
                log_event(logging.INFO, f"{self._run_id}: samples finish again")
            self._done, self._retried, self._moved, self._next = done, progress.retried, now, _QUIET_SECONDS
            return
        waited, why = now - self._moved, self._reason(progress, now)
        if why and done < progress.planned and waited >= self._next:
            self._next = min(2 * self._next, waited + _AGAIN_SECONDS_MAX)
            log_event(
                logging.WARNING,
                f"{self._run_id}: {done}/{progress.planned} done, none finished for {duration(waited)}: {why}",
            )

    def _reason(self, progress: Progress, now: float) -> str:
        if progress.held:
            return first_line(progress.held, _WHY_WIDTH)
        if progress.batch_jobs:
            return jobs_text(progress.batch_jobs, progress.batch_requests, now - progress.batch_since)
        if progress.retried > self._retried:
            retried = counted(progress.retried - self._retried, "request")
            return f"{retried} tried again ({first_line(progress.last_retry, _WHY_WIDTH)})"
        return ""


def log_event(level: int, text: str, *, is_progress: bool = False) -> None:
    """Log if the program handles messages of Holdfast; otherwise write warnings and progress to standard error."""
    logger: logging.Logger | None = logging.getLogger("holdfast")
    while logger is not None:
        if any(not isinstance(each, logging.NullHandler) for each in logger.handlers):
            logging.getLogger("holdfast").log(level, "%s", one_line(text))
            return
        logger = logger.parent if logger.propagate else None
    if level >= logging.WARNING or is_progress:
        with contextlib.suppress(OSError):  # a closed stream must not end the run
            sys.stderr.write(f"holdfast: {one_line(text)}\n")
            sys.stderr.flush()
