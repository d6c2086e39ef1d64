r"""Standard output and standard error of every command: the one place where text leaves for a terminal.

Invariant: no control character and no direction override in a text reaches the terminal, from any source: a command,
an error message, a warning, a traceback, or a print in a user's solver. They appear as `\u001b`. Only two writers add
control codes of their own, through `unfiltered`: rich, for colours (`output.CleanConsole` cleans each text first), and
the live line. Pipes and files (`--output`) get the same text as a terminal, because they end up on one. In JSON these
are escapes of the format: a parser gets the original text back.

Standard error also survives its reader. If the pipe is closed or the terminal is gone, messages are discarded and the
run continues.

Damage that a command meets in the data it reads: printed once, with exit code 5.

Imported by every command and by `--help`, so it imports nothing but errors.
"""

import codecs
import contextlib
import io
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import TextIO, cast

from holdfast.errors import DamageWarning
from holdfast.printable import CleanStream, Lines, LiveBlock, clean, lacks_blocks, live_line, one_line, terminal_size

JSON_ESCAPES = "holdfast.json_escapes"
XML_ESCAPES = "xmlcharrefreplace"


def _escape_as_json(error: UnicodeError) -> tuple[str, int]:
    """Error handler: unlike `backslashreplace`, every escape is valid JSON, also beyond the 16-bit range."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2)), error.end


codecs.register_error(JSON_ESCAPES, _escape_as_json)


def lacks_characters() -> bool:
    """Whether the encoding of standard output cannot show every character."""
    stream = _encoder()
    return stream is not None and not codecs.lookup(stream.encoding).name.startswith("utf")


def escape_for_machines(escapes: str = JSON_ESCAPES) -> None:
    """Before machine-readable output: ASCII if the encoding is not Unicode. Programs expect UTF-8, of which ASCII is a
    part; Latin-1 bytes would be wrong even where the encoding has the character.
    """
    stream = _encoder()
    if stream is not None and lacks_characters():
        stream.reconfigure(encoding="ascii", errors=escapes)


def _encoder() -> io.TextIOWrapper | None:
    """What turns standard output into bytes, also below a `CleanStream`; None if it is not encoded, as in tests."""
    stream = getattr(sys.stdout, "unfiltered", sys.stdout)
    return stream if isinstance(stream, io.TextIOWrapper) else None


class ErrorStream(CleanStream):
    """Standard error. Its last lines may be live: the next message replaces them, also one on standard output.

    Locked: a scorer may print in a thread, and half a message between two control codes would spoil the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._live = LiveBlock()
        self._has_open_line = False
        """The last message did not end its line: live lines begin below it."""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        if text:
            with self._lock:
                # A line feed keeps the live lines: the command is done with them.
                lead = (
                    self._live.erase(terminal_size(self.unfiltered)[0])
                    if self._live.is_shown and not text.startswith("\n")
                    else ""
                )
                self._live.keep()
                self._write(f"{lead}{clean(text)}")
                self._has_open_line = not text.endswith("\n")
        return len(text)

    def write_live(self, lines: Lines, width: int, *, color: bool = False) -> None:
        """Show lines in place of the live lines before them."""
        with self._lock:
            lead = "\n" if self._has_open_line and not self._live.is_shown else ""
            self._has_open_line = False
            ascii_only = lacks_blocks(self.unfiltered)
            self._write(lead + self._live.draw(lines, width, color=color, ascii_only=ascii_only))

    @contextlib.contextmanager
    def making_room(self, text: str) -> Iterator[None]:
        """Remove the live lines while `text` is written to the same terminal by another stream."""
        with self._lock:
            if self._live.is_shown:
                self._write(self._live.erase(terminal_size(self.unfiltered)[0]))
                self.flush()
            yield
            self._has_open_line = not text.endswith("\n")

    def flush(self) -> None:
        try:
            self.unfiltered.flush()
        except OSError:
            discard_output(self.unfiltered)

    def _write(self, text: str) -> None:
        try:
            self.unfiltered.write(text)
        except OSError:
            discard_output(self.unfiltered)


class OutputStream(CleanStream):
    """Standard output on the terminal that may show live lines of standard error: prints of a solver go above them."""

    def write(self, text: str) -> int:
        if not text or not isinstance(sys.stderr, ErrorStream):
            return super().write(text)
        with sys.stderr.making_room(text):
            super().write(text)
            self.unfiltered.flush()
        return len(text)


def write_live_line(line: str, width: int) -> None:
    """Show a line on the terminal in place of the live lines before it; an empty one removes them."""
    write_live_lines([[(line, "")]], width)


def write_live_lines(lines: Lines, width: int, *, color: bool = False) -> None:
    """Show lines on the terminal in place of the live lines before them."""
    if isinstance(sys.stderr, ErrorStream):
        sys.stderr.write_live(lines, width, color=color)
    else:
        sys.stderr.write("".join(live_line("".join(text for text, _ in line), width) for line in lines))
    sys.stderr.flush()


def unfiltered(stream: TextIO) -> TextIO:
    """The stream below a `CleanStream`, for text that was cleaned already."""
    return stream.unfiltered if isinstance(stream, CleanStream) else stream


def discard_output(stream: TextIO) -> None:
    """Nobody reads it any more. What its buffer still holds must not fail when the process ends either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def install_streams() -> None:
    """Once, when the process starts. Standard output also escapes characters that its encoding lacks."""
    encoder = _encoder()
    if encoder is not None:
        encoder.reconfigure(errors=JSON_ESCAPES)
    if sys.stdout is not None and not isinstance(sys.stdout, CleanStream):
        kind = OutputStream if sys.stdout.isatty() else CleanStream
        sys.stdout = cast("TextIO", kind(sys.stdout))
    if sys.stderr is not None and not isinstance(sys.stderr, CleanStream):
        sys.stderr = cast("TextIO", ErrorStream(sys.stderr))


DAMAGED = 5
_OUTRANKED = (0, 1, 7)
"""Exit codes for done, failed samples, and gate not passed: with damaged data none of these can be trusted."""


class DamageNotices:
    """Prints each DamageWarning of a command once, and turns its exit code into 5."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        with warnings.catch_warnings():
            show_other = warnings.showwarning

            def show(message: Warning | str, category: type[Warning], *rest: object) -> None:
                if issubclass(category, DamageWarning):
                    self.add(str(message))
                else:
                    show_other(message, category, *rest)  # type: ignore[arg-type] # passed on as it came

            warnings.showwarning = show  # type: ignore[assignment] # the same parameters
            warnings.simplefilter("always", DamageWarning)
            yield

    def add(self, sentence: str) -> None:
        if sentence not in self._seen:
            self._seen.add(sentence)
            sys.stderr.write(f"holdfast: damaged: {one_line(sentence)}\n")

    def exit_code(self, code: int) -> int:
        return DAMAGED if self._seen and code in _OUTRANKED else code
