"""Text that is safe to show: control characters and direction overrides appear as `\\u001b`, never raw, never dropped.

Owns the list of harmful characters and how they are shown. A terminal obeys C0 and C1 controls (it moves the cursor,
sets the clipboard, hides text). Direction overrides and invisible characters make text read as something else.

The notation is JSON's own, and all of these characters are in the 16-bit range. So `clean` serves both kinds of
output: people see what is there, and a JSON document stays valid and still means the same text. Joiners (U+200C,
U+200D) stay: Persian and emoji need them.
"""

import re
from collections.abc import Iterable
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


def live_line(line: str, width: int) -> str:
    """The control codes that replace the terminal's current line, and its new text, cut to the terminal's width: a line
    that wraps could not be replaced.
    """
    shown, room = one_line(line).replace("\t", " "), max(width - 1, 0)
    return f"\r\x1b[2K{shown if len(shown) <= room else f'{shown[: max(room - 1, 0)]}…'}"


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
