"""Progress of long work: live lines on a terminal, plain lines elsewhere, and a file for other programs.

Nothing here may fail a run: a progress file that cannot be written is reported once.
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast import printable
from holdfast.cli.output import terminal_width
from holdfast.cli.streams import write_live_line, write_live_lines
from holdfast.datasets import showing_progress
from holdfast.journal import OS_DISK, write_file
from holdfast.printable import Lines, terminal_size, uses_color
from holdfast.report import bar, counted, duration
from holdfast.runs import RunLocation

if TYPE_CHECKING:
    from holdfast.engine import Engine, Progress
    from holdfast.runs import LiveDisplay, ObservedWork, PlainDisplay, Supervisor

_FIRST_SECONDS = 0.5
_NEXT_SECONDS = 0.25
_CHECK_EVERY = 256  # items: reading the clock for each would cost more than some items do

T = TypeVar("T")


def is_watched() -> bool:
    """Whether a person sees standard error, on a terminal that can write over a line."""
    return printable.is_watched(sys.stderr)


class Spinner:
    """A live line about long work. `update` may be called from any thread."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._instead = ""
        self._progress = (0, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="holdfast-spinner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def update(self, done: int, total: int = 0) -> None:
        """Set how much is done, of how much if that is known."""
        self._progress = (done, total)

    def show_instead(self, line: str) -> None:
        """Show another line as long as it is not empty, such as the progress of a download."""
        self._instead = line

    def end(self) -> None:
        """Remove the line. Idempotent."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _refresh(self) -> None:
        began = time.monotonic()
        if self._ended.wait(_FIRST_SECONDS):
            return
        while not self._ended.is_set():
            done, total = self._progress
            amount = share(done, total) if total else f"{done:,}" if done else "…"
            _show(self._instead or f"{self._what} {amount} {duration(time.monotonic() - began)}")
            self._ended.wait(_NEXT_SECONDS)
        _show("")


@contextlib.contextmanager
def spinner(what: str) -> Iterator[Spinner]:
    """Show what a block does, how far it is, and for how long. Shows nothing unless a person watches."""
    spin = Spinner(what)
    watched = is_watched()
    if watched:
        spin.start()
    try:
        with showing_progress(spin.show_instead) if watched else contextlib.nullcontext():
            yield spin
    finally:
        spin.end()


def counting(items: Iterable[T], what: str, total: int = 0) -> Iterator[T]:
    """Pass items through, and show how many have passed; with a `total`, also the share."""
    if not is_watched():
        yield from items
        return
    began = time.monotonic()
    shown = began + _FIRST_SECONDS - _NEXT_SECONDS
    count = 0
    try:
        for count, item in enumerate(items, 1):
            yield item
            if count % _CHECK_EVERY == 0 and time.monotonic() - shown >= _NEXT_SECONDS:
                shown = time.monotonic()
                _show(f"{what} {format_count(count, total)} {duration(shown - began)}")
    finally:
        _show("")


def format_count(count: int, total: int) -> str:
    """A bar and a percentage if the total is known."""
    if not total:
        return f"{count}"
    return f"{share(count, total)} {count}/{total}"


def share(done: int, total: int) -> str:
    return f"{bar(done, total)} {min(100 * done // max(total, 1), 100)}%"


def _show(line: str) -> None:
    write_live_line(line, terminal_width())


_UNWRITABLE: set[str] = set()
_FILE_SECONDS = 1.0


async def watch(engine: "Engine", place: RunLocation) -> None:
    """Show the progress of a run until cancelled, then its last state; and write it to the progress file."""
    from holdfast.runs import watch_progress  # late: this imports the engine

    sys.stderr.write(f"run {place.experiment}/{place.run_id} in {place.folder}\n")
    progress = engine.progress
    if progress.before:
        sys.stderr.write(f"{describe_start(progress)}\n")
    display = run_display()
    writer = asyncio.ensure_future(_keep_file(engine, place)) if engine.spec.progress_file else None
    try:
        await watch_progress(engine, display)
    finally:
        if writer is not None:
            writer.cancel()
            write_progress(_encode(engine.progress_by_model(), place), engine.spec.progress_file)


async def watch_scoring(work: "ObservedWork", place: RunLocation) -> None:
    """Show how many saved answers are scored until cancelled, then the last state."""
    from holdfast.runs import watch_progress  # late: this imports the engine

    if answers := work.progress_by_model().planned:
        sys.stderr.write(f"scoring {counted(answers, 'answer')} of {place.experiment}/{place.run_id}\n")
        await watch_progress(work, run_display())


async def report_to(supervisor: "Supervisor", engine: "Engine", place: RunLocation) -> None:
    """Send the progress of a worker to the driver of a sharded run until cancelled, then its last state."""
    try:
        while True:
            # Encoded here and sent from a thread: the driver may be slow to read.
            await asyncio.to_thread(supervisor.send, supervisor.encode(place, engine.progress_by_model()))
            await asyncio.sleep(_FILE_SECONDS)
    finally:
        supervisor.send(supervisor.encode(place, engine.progress_by_model()))


class WorkersDisplay:
    """The progress of all workers of a sharded run, in the process that placed them."""

    def __init__(self, place: RunLocation, path: str) -> None:
        """`path`: of the progress file; empty: none."""
        self._place = place
        self._path = path
        self._display: LiveDisplay | PlainDisplay = run_display()
        self._shown_at = -_FILE_SECONDS
        sys.stderr.write(f"run {place.experiment}/{place.run_id} in {place.folder}\n")

    def show(self, progress: "Progress", *, ended: bool = False) -> None:
        now = time.monotonic()
        self._display.show(progress, ended=ended)
        if self._path and (ended or now - self._shown_at >= _FILE_SECONDS):
            self._shown_at = now
            write_progress(_encode(progress, self._place), self._path)


def describe_start(progress: "Progress") -> str:
    """What a resumed run has, and what is left to do. A failed sample that is not retried has no answer."""
    saved, failed = progress.before - progress.failed_before, progress.failed_before
    kept = f", {counted(failed, 'failed sample')} not retried" if failed else ""
    left = progress.planned - progress.before
    return f"continuing: {saved} of {progress.planned} answers are saved{kept}, {left} to do"


def run_display() -> "LiveDisplay | PlainDisplay":
    """Live lines where a person watches, else plain lines."""
    from holdfast.runs import LiveDisplay, PlainDisplay  # late: this imports the engine

    if not is_watched():
        return PlainDisplay(_print_line, always=True)

    def write(lines: Lines) -> None:
        write_live_lines(lines, terminal_width(), color=uses_color())

    return LiveDisplay(write, lambda: terminal_size(sys.stderr), lambda: _print_line(""))


def _print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


async def _keep_file(engine: "Engine", place: RunLocation) -> None:
    while True:
        await asyncio.sleep(_FILE_SECONDS)
        await asyncio.to_thread(write_progress, _encode(engine.progress_by_model(), place), engine.spec.progress_file)


def _encode(progress: "Progress", place: RunLocation) -> bytes:
    """Here, not in the thread that writes it: the engine changes it at any time."""
    about = {"run_id": place.run_id, "experiment": place.experiment, "at": time.time()}
    return msgspec.json.encode({**about, **msgspec.to_builtins(progress)})


def write_progress(data: bytes, path: str) -> None:
    """Write the progress file atomically, because others read it at any time. A failure is reported once."""
    try:
        write_file(OS_DISK, os.path.abspath(path), os.path.abspath(f"{path}.tmp"), data)
    except OSError as error:
        if path not in _UNWRITABLE:
            _UNWRITABLE.add(path)
            sys.stderr.write(
                f"progress_file {path} cannot be written ({error.strerror}); the run continues without it\n"
            )
