"""A terminal table that fits any width: as columns, with folded names, or with each row as a paragraph.

Invariant: nothing is cut off, because a name that is cut off cannot be copied into a command.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.printable import one_line

_GAP = 2
_FOLDED_MIN = 10


class Grid:
    """Rows of texts. The first `titles` columns name the row. Columns in `right` hold numbers, columns in `whole` are
    copied into commands: neither is folded. Empty columns are left out. `styles`: the style of a text, by row number
    and column name.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        titles: int = 1,
        right: Iterable[str] = (),
        whole: Iterable[str] = (),
        styles: Mapping[tuple[int, str], str] | None = None,
    ) -> None:
        given = [list(row) for row in rows]
        kept = [i for i in range(len(columns)) if i < titles or any(row[i] for row in given)]
        self._columns = [one_line(columns[i]) for i in kept]
        self._rows = [[one_line(row[i]) for i in kept] for row in given]
        self._right = set(map(one_line, right))
        self._whole = {*self._right, *map(one_line, whole)}
        self._titles = titles
        self._styles = styles or {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        widths = [max(map(cell_len, each)) for each in zip(self._columns, *self._rows, strict=True)]
        named = zip(self._columns, widths, strict=True)
        folded = [width if name in self._whole else min(width, _FOLDED_MIN) for name, width in named]
        room = options.max_width - _GAP * (len(widths) - 1)
        if sum(widths) <= room:
            yield self._table(widths)
        elif sum(folded) <= room:
            yield self._table(_widen(folded, widths, room))
        else:
            yield from self._paragraphs(options.max_width)

    def _table(self, widths: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name, width in zip(self._columns, widths, strict=True):
            justify: Literal["left", "right"] = "right" if name in self._right else "left"
            table.add_column(name, justify=justify, width=width, overflow="fold")
        for number, row in enumerate(self._rows):
            named = zip(self._columns, row, strict=True)
            table.add_row(*(Text(text, style=self._styles.get((number, name), "")) for name, text in named))
        return table

    def _paragraphs(self, width: int) -> Iterable[RenderableType]:
        for number, row in enumerate(self._rows):
            yield Text(" / ".join(filter(None, row[: self._titles])), style="bold", overflow="fold")
            rest = zip(self._columns[self._titles :], row[self._titles :], strict=True)
            styled = [(f"{name} {value}", self._styles.get((number, name), "")) for name, value in rest if value]
            text = Text("\n".join(_join([part for part, _ in styled], width - _GAP)), overflow="fold")
            for part, style in styled:
                if style:
                    text.highlight_words([part], style)
            yield Padding(text, (0, 0, 0, _GAP))


def _join(parts: Sequence[str], width: int) -> list[str]:
    """Fill each line with as many parts as fit."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(f"{lines[-1]} · {part}") <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


def _widen(folded: Sequence[int], full: Sequence[int], room: int) -> list[int]:
    """Give the remaining room, one character at a time, to the column that lacks the most."""
    widths = list(folded)
    while sum(widths) < room:
        index = max(range(len(widths)), key=lambda i: full[i] - widths[i])
        if widths[index] >= full[index]:
            break
        widths[index] += 1
    return widths
