"""Standard error, as commands use it: for people who may look, or may have gone.

A live line gives way to whatever else is told. That nobody is at the other end (a closed pipe, a terminal that is gone)
ends no run: what is said from then on is lost, and nothing else.
"""

import os
import sys
from typing import Any, TextIO, cast

from holdfast.cli.encoding import escape_missing_characters


class News:
    """A stream in the place of another."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._has_line = False
        """The terminal's cursor stands behind a line that will be written over."""

    def write(self, text: str) -> int:
        shown = text
        if self._has_line and text[:1] not in ("\r", "\n"):
            from holdfast.report.wording import written_over  # loaded by whoever wrote the line

            shown = written_over("", 0) + text
        self._has_line = text.startswith("\r") and not text.endswith("\n")
        try:
            self._stream.write(shown)
        except OSError:
            fall_silent(self._stream)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            fall_silent(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def fall_silent(stream: TextIO) -> None:
    """Nobody reads it any more. What it still holds must not fail at the end of the process either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell_news() -> None:
    """Prepare both streams: standard error goes through `News`, and standard output escapes characters that its
    encoding lacks.
    """
    escape_missing_characters()
    if sys.stderr is not None:
        sys.stderr = cast("TextIO", News(sys.stderr))


def tell_refused_variables() -> None:
    """A `.env` file provides variables that the spec mentions; what it may never set is not ignored silently."""
    if os.path.exists(".env") and "_HOLDFAST_COMPLETE" not in os.environ:
        from holdfast.spec.env_file import refused_variables

        if names := refused_variables():
            is_are = "is" if len(names) == 1 else "are"
            sys.stderr.write(
                f"warning: .env: {', '.join(names)} {is_are} ignored: a .env file only provides keys and other values "
                "for the spec; export it in your shell if you want it\n"
            )
