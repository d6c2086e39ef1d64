"""What a terminal shows after the output of a program: the few control codes that Holdfast uses."""

import codecs
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_CODES = re.compile(r"\x1b\[(\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Screen:
    """A terminal of a width. Lines that are too long wrap, as on a real one."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lines: list[str] = [""]
        self._row = self._column = 0
        self._rest = ""
        """The beginning of a control code whose end has not arrived."""

    def show(self, text: str) -> list[str]:
        """Write to the terminal; return its lines, without blanks at their ends."""
        text, self._rest = self._rest + text, ""
        if cut := re.search(r"\x1b(\[\d*)?$", text):
            text, self._rest = text[: cut.start()], cut[0]
        for match in _CODES.finditer(text):
            code, count = match[2], int(match[1] or 1) if match[2] else 0
            if match[0] == "\r":
                self._column = 0
            elif match[0] == "\n":
                self._feed()
            elif code is None:
                self._write(match[0])
            elif code == "A":
                self._row = max(self._row - count, 0)
            elif code == "K":
                self._lines[self._row] = ""
            elif code != "m":
                raise AssertionError(f"{match[0]!r} is not known")
        lines = [line.rstrip() for line in self._lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _feed(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._lines):
            self._lines.append("")

    def _write(self, text: str) -> None:
        for character in text:
            if self._column == self._width:
                self._feed()
            line = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
            self._column += 1


class Watched(NamedTuple):
    """What a program wrote to a terminal until something was seen, or to its end."""

    seen: bool
    lines: list[str]
    raw: str
    code: int


def watch(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    size: tuple[int, int] = (80, 24),
    until: Callable[[list[str]], bool] = lambda lines: False,
) -> Watched:
    """Run a program on a terminal of that width and height, and kill it once it shows what it should."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    kept = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
    screen, raw, lines, seen = Screen(size[0]), b"", list[str](), False
    decode = codecs.getincrementaldecoder("utf-8")().decode
    with subprocess.Popen(command, cwd=folder, env=kept, stdin=follower, stdout=follower, stderr=follower) as process:
        os.close(follower)
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while not seen and (piece := os.read(leader, 65536)):
                raw += piece
                lines = screen.show(decode(piece))
                seen = until(lines)
        if seen:
            process.kill()
        code = process.wait()
    os.close(leader)
    return Watched(seen, lines, raw.decode(errors="replace"), code)
