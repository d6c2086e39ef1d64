"""Progress of long work: a live line on a terminal, plain lines elsewhere, and a file for other programs.

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

from holdfast.cli.output import terminal_width
from holdfast.cli.streams import write_live_line
from holdfast.journal import OS_DISK, write_file
from holdfast.report import bar, duration, progress_line
from holdfast.runs import RunLocation

if TYPE_CHECKING:
    from holdfast.engine import Engine, Progress

_FIRST_SECONDS = 0.5
_NEXT_SECONDS = 0.25
_CHECK_EVERY = 256  # items: reading the clock for each would cost more than some items do

T = TypeVar("T")


def is_watched() -> bool:
    """Whether a person sees standard error, on a terminal that can write over a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Spinner:
    """A live line about long work. `update` may be called from any thread."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._progress = (0, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="holdfast-spinner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def update(self, done: int, total: int = 0) -> None:
        """Set how much is done, of how much if that is known."""
        self._progress = (done, total)

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
            _show(f"{self._what} {amount} {duration(time.monotonic() - began)}")
            self._ended.wait(_NEXT_SECONDS)
        _show("")


@contextlib.contextmanager
def spinner(what: str) -> Iterator[Spinner]:
    """Show what a block does, how far it is, and for how long. Shows nothing unless a person watches."""
    spin = Spinner(what)
    if is_watched():
        spin.start()
    try:
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


_LIVE_SECONDS = 0.25
_PLAIN_SECONDS = 10.0
_UNWRITABLE: set[str] = set()


async def watch(engine: "Engine", place: RunLocation) -> None:
    """Show the progress of a run until cancelled, then its last state."""
    live = is_watched()
    sys.stderr.write(f"run {place.experiment}/{place.run_id} in {place.folder}\n")
    progress = engine.progress
    if progress.before:
        left = progress.planned - progress.before
        sys.stderr.write(f"continuing: {progress.before} of {progress.planned} answers are saved, {left} to do\n")
    try:
        while True:
            await asyncio.sleep(_LIVE_SECONDS if live else _PLAIN_SECONDS)
            show(engine.progress, live)
            if engine.spec.progress_file:
                await asyncio.to_thread(write_progress, engine.progress, place, engine.spec.progress_file)
    finally:
        show(engine.progress, live)
        if live:
            sys.stderr.write("\n")
        if engine.spec.progress_file:
            write_progress(engine.progress, place, engine.spec.progress_file)


def write_progress(progress: "Progress", place: RunLocation, path: str) -> None:
    """Write the progress file atomically, because others read it at any time. A failure is reported once."""
    data = {"run_id": place.run_id, "experiment": place.experiment, "at": time.time(), **msgspec.to_builtins(progress)}
    try:
        write_file(OS_DISK, os.path.abspath(path), os.path.abspath(f"{path}.tmp"), msgspec.json.encode(data))
    except OSError as error:
        if path not in _UNWRITABLE:
            _UNWRITABLE.add(path)
            sys.stderr.write(
                f"progress_file {path} cannot be written ({error.strerror}); the run continues without it\n"
            )


def show(progress: "Progress", live: bool) -> None:
    """Print one line of progress. On a terminal it replaces the last one."""
    line = progress_line(progress, time.monotonic())
    if live:
        write_live_line(line, terminal_width())
    else:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
