"""Formats numbers and texts for people: plurals, sizes, durations, dollars, shortened texts.

Functions that return text of models or data show control characters instead of passing them on.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.printable import clean
from holdfast.records.references import parse_reference

if TYPE_CHECKING:
    from holdfast.stats import Summary

_SHORT_WIDTH = 100
_INLINE = "data:"
_CENT = 0.01
_BAR_WIDTH = 24


def counted(count: int, noun: str, several: str = "") -> str:
    """`1 segment`, `2 segments`; `several` is the plural where an s does not make it."""
    return f"{count} {noun if count == 1 else several or f'{noun}s'}"


def status_text(status: str, failed: int, planned: int) -> str:
    """`completed, 3 failed`: a completed run may have failed samples."""
    if status != "completed" or not failed:
        return status
    return f"{status}, all {failed} failed" if failed == planned > 1 else f"{status}, {failed} failed"


def status_tone(status: str, failed: int, planned: int) -> str:
    """The status that selects the colour: a completed run with failed samples is not green."""
    if status != "completed" or not failed:
        return status
    return "failed" if failed == planned else "interrupted"


def count_of(summary: "Summary") -> str:
    """The number of values, and of groups if samples share groups: `40 (8 groups)`."""
    return str(summary.n) if summary.groups is None else f"{summary.n} ({counted(summary.groups, 'group')})"


def first_line(text: str, width: int = _SHORT_WIDTH) -> str:
    """The first non-blank line, at most `width` characters, with control characters shown."""
    line = next((line for line in lines_of(text) if line.strip()), "")
    return shortened(line.strip().replace("\t", " "), width)


def lines_of(text: str) -> list[str]:
    """The lines of a text, with control characters shown. Only LF and CR LF end a line."""
    return clean(text).splitlines()


def without_scorer_name(scorer: str, failure: str) -> str:
    """A scorer's failure without the name of the scorer, which the caller shows already."""
    return failure.removeprefix(f"scorer {scorer!r}: ")


def shortened(text: str, width: int) -> str:
    """At most `width` characters, with `…` for the rest."""
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def bar(done: int, total: int) -> str:
    """A bar such as `████████░░░░`; full only when all is done."""
    full = min(_BAR_WIDTH * done // max(total, 1), _BAR_WIDTH)
    return "█" * full + "░" * (_BAR_WIDTH - full)


def human_bytes(count: int) -> str:
    """`1.5 GB`, in decimal units."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def content_text(content: Any, size_of: Callable[[str], int | None]) -> str:
    """A message's content: texts as they are, a file as `[image/png 12.3 kB]`, never its bytes."""
    if not isinstance(content, list):
        return _text_or_size(content, size_of) if isinstance(content, str) else str(content)
    return " ".join(_part_text(part, size_of) for part in content)


def text_of(content: Any) -> str:
    """Only the text of a content, for counting tokens."""
    if not isinstance(content, list):
        return str(content or "")
    return "".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)


def _part_text(part: Any, size_of: Callable[[str], int | None]) -> str:
    if not isinstance(part, dict):
        return str(part)
    if isinstance(part.get("text"), str):
        return str(part["text"])
    inner = part.get(str(part.get("type")))
    value = inner if isinstance(inner, str) else next(iter(_values(inner)), "")
    return _text_or_size(value, size_of) if value else f"[{part.get('type')}]"


def _values(inner: Any) -> list[str]:
    names = ("url", "data", "file_data", "file_id")
    return [inner[name] for name in names if isinstance(inner.get(name), str)] if isinstance(inner, dict) else []


def _text_or_size(text: str, size_of: Callable[[str], int | None]) -> str:
    reference = parse_reference(text)
    if reference is None:
        return f"[{shortened(text, _SHORT_WIDTH // 2)}]" if text.startswith(_INLINE) else text
    size = size_of(text)
    return f"[{reference.type}]" if size is None else f"[{reference.type} {human_bytes(size)}]"


def brief(seconds: float) -> str:
    """A duration from 0.1 ms to hours, in three digits."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    for unit, many in (("s", 60.0), ("min", 60.0)):
        if seconds < many:
            return f"{seconds:.3g} {unit}"
        seconds /= many
    return f"{seconds:.3g} h" if seconds < 1000 else f"{seconds:.0f} h"


def dollars(amount: float) -> str:
    """`$38.20`; below one dollar four significant digits: `$0.001234`."""
    if amount >= 1 or not amount:
        return f"${amount:,.2f}"
    return f"${amount:.{3 - math.floor(math.log10(amount))}f}"


def money(amount: float) -> str:
    """An estimate: `about $0.12`, `less than $0.01`."""
    if 0 < amount < _CENT:
        return f"less than ${_CENT}"
    return f"about ${amount:,.2f}"
