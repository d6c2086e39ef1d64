"""Showing, on a terminal only, that something long is under way: how far it is, or how long it has taken.

The line is wiped when it ends, so that nothing of it stays between what a command says. In a file or a pipe there is
nothing at all.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from holdfast.cli.output import terminal_width
from holdfast.cli.streams import write_live_line
from holdfast.report.tables import duration
from holdfast.report.wording import bar

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
