"""Numbers and texts as people write them: one segment, two segments, and only the beginning of what is long."""

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


def status_words(status: str, failed: int, planned: int) -> str:
    """`completed, 3 failed`: that a run is at its end does not say that it went well."""
    if status != "completed" or not failed:
        return status
    return f"{status}, all {failed} failed" if failed == planned > 1 else f"{status}, {failed} failed"


def status_tone(status: str, failed: int, planned: int) -> str:
    """The status whose colour is shown: a completed run with failed samples is not green."""
    if status != "completed" or not failed:
        return status
    return "failed" if failed == planned else "interrupted"


def count_of(summary: "Summary") -> str:
    """How many values; and of how many groups, where samples share some: `40 (8 groups)`."""
    return str(summary.n) if summary.groups is None else f"{summary.n} ({counted(summary.groups, 'group')})"


def first_line(text: str, width: int = _SHORT_WIDTH) -> str:
    """The first line that is not blank, for a place that has room for one, with control characters shown."""
    line = next((line for line in lines_of(text) if line.strip()), "")
    return shortened(line.strip().replace("\t", " "), width)


def lines_of(text: str) -> list[str]:
    """The lines of a text, with control characters shown: only line feeds and CR LF end a line."""
    return clean(text).splitlines()


def own_words(scorer: str, failure: str) -> str:
    """A scorer's failure without its name, for a place where the name stands already."""
    return failure.removeprefix(f"scorer {scorer!r}: ")


def shortened(text: str, width: int) -> str:
    """At most `width` characters; `…` stands for the rest."""
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def bar(done: int, total: int) -> str:
    """`████████░░░░`: how much is done; full only at the end."""
    full = min(_BAR_WIDTH * done // max(total, 1), _BAR_WIDTH)
    return "█" * full + "░" * (_BAR_WIDTH - full)


def human_bytes(count: int) -> str:
    """1.5 GB: as people say it."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def told_content(content: Any, size_of: Callable[[str], int | None]) -> str:
    """A message's content for people: texts as they are, a file as `[image/png 12.3 kB]`, never what is in it."""
    if not isinstance(content, list):
        return _told_text(content, size_of) if isinstance(content, str) else str(content)
    return " ".join(_told_part(part, size_of) for part in content)


def text_of(content: Any) -> str:
    """The text alone, to count it."""
    if not isinstance(content, list):
        return str(content or "")
    return "".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)


def _told_part(part: Any, size_of: Callable[[str], int | None]) -> str:
    if not isinstance(part, dict):
        return str(part)
    if isinstance(part.get("text"), str):
        return str(part["text"])
    inner = part.get(str(part.get("type")))
    value = inner if isinstance(inner, str) else next(iter(_values(inner)), "")
    return _told_text(value, size_of) if value else f"[{part.get('type')}]"


def _values(inner: Any) -> list[str]:
    names = ("url", "data", "file_data", "file_id")
    return [inner[name] for name in names if isinstance(inner.get(name), str)] if isinstance(inner, dict) else []


def _told_text(text: str, size_of: Callable[[str], int | None]) -> str:
    reference = parse_reference(text)
    if reference is None:
        return f"[{shortened(text, _SHORT_WIDTH // 2)}]" if text.startswith(_INLINE) else text
    size = size_of(text)
    return f"[{reference.type}]" if size is None else f"[{reference.type} {human_bytes(size)}]"


def brief(seconds: float) -> str:
    """From tenths of a millisecond to hours, in three digits."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    for unit, many in (("s", 60.0), ("min", 60.0)):
        if seconds < many:
            return f"{seconds:.3g} {unit}"
        seconds /= many
    return f"{seconds:.3g} h" if seconds < 1000 else f"{seconds:.0f} h"


def dollars(amount: float) -> str:
    """$38.20; of less than a dollar, four digits that count: $0.001234."""
    if amount >= 1 or not amount:
        return f"${amount:,.2f}"
    return f"${amount:.{3 - math.floor(math.log10(amount))}f}"


def money(amount: float) -> str:
    """An estimate, never more exact than it is: about $0.12, less than $0.01."""
    if 0 < amount < _CENT:
        return f"less than ${_CENT}"
    return f"about ${amount:,.2f}"
