"""Showing, on a terminal only, that something long is under way: how far it is, or how long it has taken.

The line is wiped when it ends, so that nothing of it stays between what a command says. In a file or a pipe there is
nothing at all.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from holdfast.cli.output import terminal_width
from holdfast.report.tables import duration
from holdfast.report.wording import bar, written_over

_FIRST_SECONDS = 0.5
_NEXT_SECONDS = 0.25
_LOOK_EVERY = 256

T = TypeVar("T")


def is_watched() -> bool:
    """Whether a person sees standard error, on a terminal that can write over a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def patience(what: str) -> Iterator[Callable[[], None]]:
    """While the block works: what it does and for how long. The function that is given ends it earlier."""
    if not is_watched():
        yield lambda: None
        return
    ended = threading.Event()
    thread = threading.Thread(target=_tick, args=(what, ended), name="holdfast-patience", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    try:
        yield end
    finally:
        end()


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
    return f"{bar(count, total)} {min(100 * count // total, 100)}% {count}/{total}"


def _tick(what: str, ended: threading.Event) -> None:
    began = time.monotonic()
    if ended.wait(_FIRST_SECONDS):
        return
    while not ended.is_set():
        _show(f"{what} … {duration(time.monotonic() - began)}")
        ended.wait(_NEXT_SECONDS)
    _show("")


def _show(line: str) -> None:
    sys.stderr.write(written_over(line, terminal_width()))
    sys.stderr.flush()
