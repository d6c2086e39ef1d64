"""Standard error, as commands use it: for people who may look, or may have gone.

A live line gives way to whatever else is told. That nobody is at the other end (a closed pipe, a terminal that is gone)
ends no run: what is said from then on is lost, and nothing else.
"""

import os
import sys
from typing import Any, TextIO, cast

_OVER = "\r\x1b[2K"


class News:
    """A stream in the place of another."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._has_line = False
        """The terminal's cursor stands behind a line that will be written over."""

    def write(self, text: str) -> int:
        shown = f"{_OVER}{text}" if self._has_line and text[:1] not in ("\r", "\n") else text
        self._has_line = text.startswith("\r") and not text.endswith("\n")
        try:
            self._stream.write(shown)
        except OSError:
            self._fall_silent()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._fall_silent()

    def _fall_silent(self) -> None:
        """What the stream still holds must not fail at the end of the process either."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def tell_news() -> None:
    """From here on everything on standard error goes through this."""
    if sys.stderr is not None:
        sys.stderr = cast("TextIO", News(sys.stderr))
