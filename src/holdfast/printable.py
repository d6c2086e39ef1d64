"""Text that is safe to show: control characters and direction overrides appear as `\\u001b`, never raw, never dropped.

Owns the list of harmful characters and how they are shown. A terminal obeys C0 and C1 controls (it moves the cursor,
sets the clipboard, hides text). Direction overrides and invisible characters make text read as something else.

The notation is JSON's own, and all of these characters are in the 16-bit range. So `clean` serves both kinds of
output: people see what is there, and a JSON document stays valid and still means the same text. Joiners (U+200C,
U+200D) stay: Persian and emoji need them.
"""

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

_HARMFUL = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
_ALWAYS = re.compile(f"[{_HARMFUL}]")
_OR_RETURN = re.compile(f"[{_HARMFUL}\r]")
"""A carriage return is harmless only before a line feed."""
_CONTROLS = bytes(code for code in (*range(0x20), 0x7F) if code not in b"\t\n\r")


def clean(text: str) -> str:
    """Text of any number of lines, made safe. Tabs, line feeds and the line end CR LF stay."""
    return text if _is_clean(text) else _OR_RETURN.sub(_shown_unless_line_end, text)


def one_line(text: str) -> str:
    """Text made safe for a single line: line breaks are escaped too, so that the text cannot start another line."""
    shown = _OR_RETURN.sub(_shown, text) if "\r" in text else clean(text)
    return shown.replace("\n", "\\n") if "\n" in shown else shown


_WORD = re.compile(r"[`(]?holdfast [a-z].*?(?=[;,.`)](?:\s|$)|$)\S*|\S+")
"""A word, or a whole command, which must not be broken where it is to be copied."""


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text that fit a terminal: broken at spaces, with later lines indented. A word or a command that is
    longer than a line stays whole, so that it can be copied.
    """
    from rich.cells import cell_len  # late: not every command prints a table or a long line

    if cell_len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip(" ")) + 2)
    lines, line, end = list[str](), "", 0
    for word in _WORD.finditer(text):
        longer = f"{line}{text[end : word.start()]}{word[0]}"
        if line.strip() and cell_len(longer) > width:
            lines.append(line)
            longer = f"{indent}{word[0]}"
        line, end = longer, word.end()
    return [*lines, line]


def live_line(line: str, width: int) -> str:
    """The control codes that replace the terminal's current line, and its new text, cut to the terminal's width: a line
    that wraps could not be replaced.
    """
    shown, room = one_line(line).replace("\t", " "), max(width - 1, 0)
    return f"\r\x1b[2K{shown if len(shown) <= room else f'{shown[: max(room - 1, 0)]}…'}"


def is_watched(stream: TextIO | None) -> bool:
    """Whether a person sees a stream, on a terminal that can write over a line. In CI a terminal is a log."""
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb" and not in_ci


def uses_color() -> bool:
    """Whether live lines have colours, by the convention of no-color.org."""
    return not os.environ.get("NO_COLOR")


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """The width and the height of a stream's terminal. `COLUMNS` and `LINES` override them."""
    try:
        width, height = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        width, height = 80, 24
    given = [os.environ.get(name, "") for name in ("COLUMNS", "LINES")]
    found = [int(text) if text.isdecimal() else 0 for text in given]
    return found[0] or width or 80, found[1] or height or 24


def lacks_blocks(stream: TextIO) -> bool:
    """Whether the encoding of a stream has no characters for bars."""
    try:
        "█░—…·".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


_STYLES = {"bar": "36", "bad": "31", "wait": "33", "dim": "2"}
"""The codes of colours, by what a text is."""
_ASCII = str.maketrans("█░—…·", "#.-~|")
Lines = Sequence[Sequence[tuple[str, str]]]
"""Lines of texts, each with what it is (`bar`, `bad`, `wait`, `dim`, or nothing)."""


class LiveBlock:
    """Lines at the end of a terminal that are replaced together. Returns what to write; writes nothing itself."""

    def __init__(self) -> None:
        self._widths: list[int] = []
        """Of the lines that are shown, in columns of the terminal."""

    @property
    def is_shown(self) -> bool:
        return bool(self._widths)

    def draw(self, lines: Lines, width: int, *, color: bool = False, ascii_only: bool = False) -> str:
        """The control codes that replace the block, and its new lines, cut to the terminal's width: a line that wraps
        could not be replaced.
        """
        from rich.cells import cell_len  # late: most commands show no progress

        lead, texts = self.erase(width), []
        for line in lines:
            shown, room = [], max(width - 1, 0)
            for text, style in line:
                part = _cut(one_line(text).replace("\t", " "), room)
                part = part.translate(_ASCII) if ascii_only else part
                room -= cell_len(part)
                shown.append(f"\x1b[{_STYLES[style]}m{part}\x1b[0m" if color and style and part else part)
            self._widths.append(max(width - 1, 0) - room)
            texts.append("".join(shown))
        return lead + "\n".join(texts)

    def erase(self, width: int) -> str:
        """The control codes that remove the block. If a terminal became narrower, its lines are wrapped: nearly all
        terminals do that.
        """
        rows = sum(max(-(-each // max(width, 1)), 1) for each in self._widths)
        self._widths = []
        return f"\r\x1b[2K{_UP * max(rows - 1, 0)}"

    def keep(self) -> None:
        """Leave the block where it is: the next text is written below it."""
        self._widths = []


_UP = "\x1b[1A\x1b[2K"


def _cut(text: str, room: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= room:
        return text
    return f"{set_cell_size(text, room - 1)}…" if room > 0 else ""


class CleanStream:
    """A text stream that shows control characters instead of passing them on."""

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        self.unfiltered.write(clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def _is_clean(text: str) -> bool:
    """ASCII has a check of its own, because exports write hundreds of megabytes and the regular expression is slow."""
    if "\r" in text and text.count("\r") != text.count("\r\n"):
        return False
    if not text.isascii():
        return _ALWAYS.search(text) is None
    raw = text.encode("ascii")
    return len(raw.translate(None, _CONTROLS)) == len(raw)


def _shown(match: re.Match[str]) -> str:
    return "\\r" if match[0] == "\r" else f"\\u{ord(match[0]):04x}"


def _shown_unless_line_end(match: re.Match[str]) -> str:
    if match[0] == "\r" and match.string.startswith("\n", match.end()):
        return "\r"
    return _shown(match)
