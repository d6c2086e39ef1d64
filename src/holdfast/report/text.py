"""Formats numbers and texts for people: plurals, sizes, durations, dollars, shortened texts.

Functions that return text of models or data show control characters instead of passing them on.

A terminal table that fits any width: as columns, with folded names, or with each row as a paragraph.

Invariant: nothing is cut off, because a name that is cut off cannot be copied into a command.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.printable import clean, one_line, wrapped
from holdfast.records import parse_reference

if TYPE_CHECKING:
    from holdfast.stats import Scale, Summary


_SHORT_WIDTH = 100
_INLINE = "data:"
_FILE_FIELDS = ("url", "data", "file_data", "file_id")
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
    """The number of samples, with repeats and groups if there are any: `40`, `40 x 3`, `118 (40 samples)`, `40 (8
    groups)`.
    """
    samples = summary.n if summary.samples is None else summary.samples
    text, notes = str(samples), [] if summary.groups is None else [counted(summary.groups, "group")]
    if summary.n != samples:
        text = f"{samples} x {summary.n // samples}" if summary.n % samples == 0 else str(summary.n)
        notes[:0] = [counted(samples, "sample")] if summary.n % samples else []
    return f"{text} ({', '.join(notes)})" if notes else text


def format_number(value: float | None, sign: str = "") -> str:
    """Four decimals. Numbers that these would show as 0, and large ones, with significant digits."""
    if value is None:
        return "-"
    if value == 0 or value != value or 0.0005 <= abs(value) < 1e5:
        return f"{value or 0.0:{sign}.4f}"  # without the sign of -0.0
    return f"{value:{sign}.6g}" if abs(value) >= 1e5 else f"{value:{sign}.2g}"


def three_digits(value: float, sign: str = "") -> str:
    """Three significant digits; a number from 1,000 in full, never with an exponent."""
    return f"{value:{sign}.3g}" if abs(value) < 999.5 else f"{value:{sign}.0f}"


def format_mean(value: float | None, scale: "Scale") -> str:
    """A mean; with its scale if that is not 0 to 1: `3.8000 (of 1 to 5)`."""
    ends = (scale.lowest, scale.highest)
    if value is None or scale.kind != "range" or ends == (0.0, 1.0):
        return format_number(value)
    return f"{format_number(value)} (of {scale.lowest:g} to {scale.highest:g})"


def format_p(p: float | None, is_bound: bool) -> str:
    """Four digits; in scientific notation where these would be zeros. `is_bound`: no draw was as extreme."""
    if p is None:
        return ""
    shown = f"{p:.4f}" if p >= 0.001 else f"{p:.1e}"
    return f"<= {shown}" if is_bound else shown


_METHODS = {
    "wilson": "Wilson's score interval (proportions)",
    "exact": "Clopper and Pearson's exact interval (proportions)",
    "student": "Student's t (other numbers)",
    "unseen": "Student's t, widened for large changes that were not seen (other numbers)",
    "tango": "Tango's score interval (proportions, or mostly ties)",
    "equal": "a bound from the ends of the scale (nothing varies)",
    "bootstrap": "percentile bootstrap (F1)",
}


def describe_methods(summaries: "Iterable[Summary]") -> str:
    """How intervals were computed, and what counts as independent; empty without intervals."""
    several = [each for each in summaries if each.method]
    if not several:
        return ""
    found = ", ".join(text for method, text in _METHODS.items() if any(each.method == method for each in several))
    if any(each.groups is not None for each in several):
        return f"{found}; clustered by group, samples weigh equally"
    if any(each.samples is not None for each in several):
        uneven = any(each.samples is not None and each.n % each.samples for each in several)
        n = "samples x repeats" + (", or answers (samples) if some are missing" if uneven else "")
        return f"{found}; clustered by sample, samples weigh equally, n: {n}"
    return f"{found}; n: samples"


def describe_missing(missing: Mapping[str, int]) -> str:
    """`2 failed, 3 no score`."""
    return ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in missing.items())


def format_interval(summary: "Summary", sign: str = "") -> str:
    if summary.low is None or summary.high is None:
        return "-"
    return f"{format_number(summary.low, sign)} .. {format_number(summary.high, sign)}"


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
    if isinstance(inner, dict):
        inner = next((inner[name] for name in _FILE_FIELDS if isinstance(inner.get(name), str)), "")
    value = inner if isinstance(inner, str) else ""
    return _text_or_size(value, size_of) if value else f"[{part.get('type')}]"


def _text_or_size(text: str, size_of: Callable[[str], int | None]) -> str:
    reference = parse_reference(text)
    if reference is None:
        return f"[{shortened(text, _SHORT_WIDTH // 2)}]" if text.startswith(_INLINE) else text
    size = size_of(text)
    return f"[{reference.type}]" if size is None else f"[{reference.type} {human_bytes(size)}]"


_OPTION = re.compile(
    r"(?<![\w-])--(adjust|all|anomaly|at-least|baseline|columns|confidence|evaluation|format|grep|identical-passes"
    r"|if-unsure|kind|limit|margin|missing-max|model|role|sample|scorer|scorers|status|tag|task|wrong)\b"
    r"(?: (pass|fail|-?[0-9]+(?:\.[0-9]+)?)(?![\w./-]))?"
)
_COMMAND = re.compile(r"\bholdfast [^;,:()`]*$")
"""A command up to one of its options, which stays as it is."""
_ROLE = re.compile(r"--role ([\w-]+)=([\w./-]+)")
_PARAMETERS = {"role": "roles", "sample": "samples"}
_FLAGS = frozenset({"identical-passes", "wrong"})


def name_parameters(text: str) -> str:
    """A message for a program: with the parameters of functions instead of the options of commands."""

    def write(match: re.Match[str]) -> str:
        if _COMMAND.search(text[: match.start()]):
            return match[0]
        name = _PARAMETERS.get(match[1], match[1].replace("-", "_"))
        if match[1] in _FLAGS:
            return f"{name}=True{f' {match[2]}' if match[2] else ''}"
        if match[2] is None:
            return name
        return f"{name}={match[2]!r}" if match[2].isalpha() else f"{name}={match[2]}"

    text = _ROLE.sub(r"roles={'\1': '\2'}", text)
    return _OPTION.sub(write, text)


_UNITS = (("ms", 0.001, 0.9995), ("s", 1.0, 60.0), ("min", 60.0, 3600.0), ("h", 3600.0, math.inf))
"""Each with its seconds, and the seconds below which it is used."""


def brief(seconds: float, longest: float | None = None) -> str:
    """A duration from 0.1 ms to hours, in three digits. `longest`: of several, which all get the unit of this one."""
    of = seconds if longest is None else longest
    unit, size = next((unit, size) for unit, size, below in _UNITS if of < below)
    return f"{three_digits(seconds / size)} {unit}"


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


class Sentence:
    """A sentence that a terminal shows wrapped at spaces. In a file or a pipe it is one line."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text, self._style = one_line(text), style

    def __str__(self) -> str:
        return self._text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        for line in wrapped(self._text, options.max_width) if console.is_terminal else [self._text]:
            yield Text(line, style=self._style, no_wrap=True, overflow="ignore")


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
        self._optional: list[str] = []
        self._hint = ""

    def with_optional(self, names: Iterable[str], hint: str) -> "Grid":
        """The same grid, where a narrow terminal leaves out these columns, the first one first. A line below names
        them, with `hint`: how to see them.
        """
        self._optional, self._hint = [name for name in map(one_line, names) if name in self._columns], hint
        return self

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        for count in range(len(self._optional) + 1):
            left_out = self._optional[:count]
            shown = [i for i, name in enumerate(self._columns) if name not in left_out]
            widths = self._fit(shown, options.max_width)
            if widths is not None:
                yield self._table(shown, widths)
                if left_out:
                    yield Sentence(f"no room for {', '.join(left_out)}: {self._hint}", "dim")
                return
        yield from self._paragraphs(options.max_width)

    def _fit(self, shown: Sequence[int], width: int) -> list[int] | None:
        """The widths of columns in a table: as wide as their texts, else with folded names and titles of numbers. None
        if they do not fit.
        """
        full, folded = [], []
        for i in shown:
            name, texts = self._columns[i], max((cell_len(row[i]) for row in self._rows), default=0)
            full.append(max(texts, cell_len(name)))
            title = max(map(cell_len, name.split()), default=0) if name in self._right else cell_len(name)
            folded.append(max(texts, title) if name in self._whole else min(full[-1], _FOLDED_MIN))
        room = width - _GAP * (len(shown) - 1)
        if sum(full) <= room:
            return full
        return _widen(folded, full, room) if sum(folded) <= room else None

    def _table(self, shown: Sequence[int], widths: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, width in zip(shown, widths, strict=True):
            name = self._columns[i]
            justify: Literal["left", "right"] = "right" if name in self._right else "left"
            table.add_column(name, justify=justify, width=width, overflow="fold")
        for number, row in enumerate(self._rows):
            named = ((self._columns[i], row[i]) for i in shown)
            table.add_row(*(Text(text, style=self._styles.get((number, name), "")) for name, text in named))
        return table

    def _paragraphs(self, width: int) -> Iterable[RenderableType]:
        for number, row in enumerate(self._rows):
            yield Text(" / ".join(filter(None, row[: self._titles])), style="bold", overflow="fold")
            rest = zip(self._columns[self._titles :], row[self._titles :], strict=True)
            styled = [(f"{name} {value}", self._styles.get((number, name), "")) for name, value in rest if value]
            lines: list[str] = []  # each with as many parts as fit
            for part, _ in styled:
                if lines and cell_len(f"{lines[-1]} · {part}") <= width - _GAP:
                    lines[-1] += f" · {part}"
                else:
                    lines.append(part)
            text = Text("\n".join(lines), overflow="fold")
            for part, style in styled:
                if style:
                    text.highlight_words([part], style)
            yield Padding(text, (0, 0, 0, _GAP))


def _widen(folded: Sequence[int], full: Sequence[int], room: int) -> list[int]:
    """Give the remaining room, one character at a time, to the column that lacks the most."""
    widths = list(folded)
    while sum(widths) < room:
        index = max(range(len(widths)), key=lambda i: full[i] - widths[i])
        if widths[index] >= full[index]:
            break
        widths[index] += 1
    return widths
