"""Showing a run while it works: a live line on a terminal, plain lines elsewhere, and a file for other programs."""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from holdfast.cli.output import terminal_width
from holdfast.cli.streams import write_live_line
from holdfast.engine import Engine, Progress
from holdfast.journal import OS_DISK, write_file
from holdfast.report.progress import line_of
from holdfast.report.tables import duration
from holdfast.report.text import bar
from holdfast.runs import RunPlace

_FIRST_SECONDS = 0.5
_NEXT_SECONDS = 0.25
_LOOK_EVERY = 256

T = TypeVar("T")


def is_watched() -> bool:
    """Whether a person sees standard error, on a terminal that can write over a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Wait:
    """Something long that is under way. Whoever does it may tell, from any thread, how far it is."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._far = (0, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="holdfast-patience", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, done: int, total: int = 0) -> None:
        """So much is done; of so much, if that is known."""
        self._far = (done, total)

    def end(self) -> None:
        """Nothing of it is seen any more. Idempotent."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _tick(self) -> None:
        began = time.monotonic()
        if self._ended.wait(_FIRST_SECONDS):
            return
        while not self._ended.is_set():
            done, total = self._far
            far = share(done, total) if total else f"{done:,}" if done else "…"
            _show(f"{self._what} {far} {duration(time.monotonic() - began)}")
            self._ended.wait(_NEXT_SECONDS)
        _show("")


@contextlib.contextmanager
def patience(what: str) -> Iterator[Wait]:
    """While the block works: what it does, how far it is if that is told, and for how long."""
    wait = Wait(what)
    if is_watched():
        wait.start()
    try:
        yield wait
    finally:
        wait.end()


def counting(items: Iterable[T], what: str, total: int = 0) -> Iterator[T]:
    """The same items; how many have passed is shown, and with a `total`, how much that is of all."""
    if not is_watched():
        yield from items
        return
    began = time.monotonic()
    shown = began + _FIRST_SECONDS - _NEXT_SECONDS
    count = 0
    try:
        for count, item in enumerate(items, 1):
            yield item
            if count % _LOOK_EVERY == 0 and time.monotonic() - shown >= _NEXT_SECONDS:
                shown = time.monotonic()
                _show(f"{what} {told(count, total)} {duration(shown - began)}")
    finally:
        _show("")


def told(count: int, total: int) -> str:
    """A bar if it is known where it ends."""
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


async def watch(engine: Engine, place: RunPlace) -> None:
    """Until cancelled. The last state is shown when the run ends."""
    live = is_watched()
    sys.stderr.write(f"run {place.experiment}/{place.run_id} in {place.folder}\n")
    progress = engine.progress
    if progress.before:
        left = progress.planned - progress.before
        sys.stderr.write(f"going on: answers kept: {progress.before} of {progress.planned}, to do: {left}\n")
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


def write_progress(progress: Progress, place: RunPlace, path: str) -> None:
    """Others may read it at any time. If it cannot be written, the run matters more: say so once and go on."""
    data = {"run_id": place.run_id, "experiment": place.experiment, "at": time.time(), **msgspec.to_builtins(progress)}
    try:
        write_file(OS_DISK, os.path.abspath(path), os.path.abspath(f"{path}.tmp"), msgspec.json.encode(data))
    except OSError as error:
        if path not in _UNWRITABLE:
            _UNWRITABLE.add(path)
            sys.stderr.write(f"progress_file {path} cannot be written ({error.strerror}); the run goes on without it\n")


def show(progress: Progress, live: bool) -> None:
    """On a terminal the line is written over the last one; elsewhere each is a line of its own."""
    line = line_of(progress, time.monotonic())
    if live:
        write_live_line(line, terminal_width())
    else:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
