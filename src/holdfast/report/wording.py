"""Numbers and texts as people write them: one segment, two segments, and only the beginning of what is long."""

_SHORT_WIDTH = 100
_CENT = 0.01


def counted(count: int, noun: str, several: str = "") -> str:
    """`1 segment`, `2 segments`; `several` is the plural where an s does not make it."""
    return f"{count} {noun if count == 1 else several or f'{noun}s'}"


def first_line(text: str, width: int = _SHORT_WIDTH) -> str:
    """The first line that says something, for a place that has room for one. A terminal shows it as it is: control
    characters become spaces.
    """
    line = next((line for line in text.splitlines() if line.strip()), "")
    return shortened("".join(each if each.isprintable() else " " for each in line).strip(), width)


def own_words(scorer: str, failure: str) -> str:
    """A scorer's failure without its name, for a place where the name stands already."""
    return failure.removeprefix(f"scorer {scorer!r}: ")


def shortened(text: str, width: int) -> str:
    """At most `width` characters; `…` stands for the rest."""
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def human_bytes(count: int) -> str:
    """1.5 GB: as people say it."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def money(dollars: float) -> str:
    """An estimate, never more exact than it is: about $0.12, less than $0.01."""
    if 0 < dollars < _CENT:
        return f"less than ${_CENT}"
    return f"about ${dollars:,.2f}"
