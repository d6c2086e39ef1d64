"""What a terminal shows after the output of a program: the few control codes that Holdfast uses."""

import re

_CODES = re.compile(r"\x1b\[(\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Screen:
    """A terminal of a width. Lines that are too long wrap, as on a real one."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lines: list[str] = [""]
        self._row = self._column = 0

    def show(self, text: str) -> list[str]:
        """Write to the terminal; return its lines, without blanks at their ends."""
        for match in _CODES.finditer(text.replace("\r\n", "\n\r")):
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
