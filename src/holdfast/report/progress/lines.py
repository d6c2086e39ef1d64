"""Progress as lines of text: a block of lines that a terminal replaces in place, and single lines for logs.

A block never jumps: every number has room for the widest text that it had so far, and the same facts stay at the same
places. What does not fit into a narrow terminal moves to the next line (one model) or is left out, least important
first (a table of models). Waits and retries have lines of their own, so they never push the time left away.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from holdfast.printable import one_line
from holdfast.report.progress.view import ProgressRow, ProgressView
from holdfast.report.text import counted

UNKNOWN = "—"
_GAP = "  "
_DOT = " · "
_BAR_MIN = 5
_BAR_MIN_WITH_RESULTS = 10
_BAR_MAX = 32
_BAR_IN_TABLE_MAX = 16
_NAME_MIN = 10
_SCORES_MAX = 8
_SCORER_WIDTH = 14
_DISPENSABLE = (
    *(f"score {number}" for number in range(_SCORES_MAX, 2, -1)),
    *("rate", "bar", "score 2", "percent", "cost", "score 1", "failed"),
)
"""The columns that a narrow terminal does without, the first of them first."""
_NOTE_LINES = 2
"""At most so many lines for waits, and so many for the last failure."""
_ROWS_MIN = 3
_STAY = 2.0
_PLAIN_MODELS_MAX = 8
_UNKNOWN_HEIGHT = 1000


class StyledText(NamedTuple):
    """A part of a line. `style`: what it is, which a terminal may show in a colour; empty for plain text."""

    text: str
    style: str = ""


Line = tuple[StyledText, ...]


class RowTexts(NamedTuple):
    """The texts of a row. An empty one is not shown."""

    done: str
    percent: str
    rate: str
    left: str
    cost: str
    scores: tuple[str, ...]
    failed: str


def texts_of(row: ProgressRow, view: ProgressView) -> RowTexts:
    left = UNKNOWN if row.left is None or view.ended else format_left(row.left)
    if row.state != "running":
        left = row.state
    return RowTexts(
        done=f"{row.done:,}/{row.planned:,}",
        percent=f"{min(100 * row.done // max(row.planned, 1), 100)}%",
        rate=UNKNOWN if row.rate is None else format_rate(row.rate),
        left=left,
        cost="" if row.dollars is None else f"{format_cost(row.dollars)}{'+' if row.has_unpriced else ''}",
        scores=tuple(UNKNOWN if each is None else format_score(each) for each in row.scores),
        failed=f"{row.failed:,}",
    )


def format_rate(rate: float) -> str:
    """`23/s`, `2.3/s`, `14/min`, `5.2/h`."""
    for unit, factor in (("s", 1.0), ("min", 60.0)):
        if rate * factor >= 1:
            return f"{_two_digits(rate * factor)}/{unit}"
    return f"{_two_digits(rate * 3600)}/h"


def format_left(seconds: float) -> str:
    """`25 s`, `12 min`, `3.4 h`, `5 days`: coarse, because it is an estimate."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{_two_digits(seconds / 3600)} h"
    return f"{seconds / 86400:,.0f} days"


def format_cost(dollars: float) -> str:
    """Cents; below ten cents four decimals."""
    if dollars >= 0.095 or not dollars:
        return f"${dollars:,.2f}"
    return f"${dollars:.4f}" if dollars >= 0.00005 else "<$0.0001"


def format_score(mean: float) -> str:
    size = abs(mean)
    if size >= 1000 or 0 < size < 0.005:
        return f"{mean:.2g}"
    return f"{mean:.2f}" if size < 10 else f"{mean:.1f}"


def time_taken(view: ProgressView) -> str:
    return f"took {format_left(view.seconds) if view.seconds >= 1 else 'less than 1 s'}"


def _two_digits(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:,.0f}"


def plain_line(view: ProgressView) -> str:
    """Everything that matters in one line, for a log. With several models, each with its share and its scores."""
    texts = texts_of(view.total, view)
    parts = [texts.done, texts.percent, texts.rate, _time_text(view, texts.left), texts.cost]
    parts += _named(view.scorers, texts.scores)
    parts.append(f"{texts.failed} failed")
    if not view.ended:
        parts += view.activity[:1]
    line = _GAP.join(filter(None, parts))
    if not view.models:
        return line
    models = []
    for row in view.models[:_PLAIN_MODELS_MAX]:
        its = texts_of(row, view)
        models.append(" ".join((row.name, its.percent, *_named(view.scorers, its.scores))))
    if len(view.models) > _PLAIN_MODELS_MAX:
        models.append(f"and {len(view.models) - _PLAIN_MODELS_MAX} more")
    return one_line(f"{line}{_GAP}({', '.join(models)})")


def note_lines(view: ProgressView) -> Iterator[str]:
    """What a run waits for, and at its end the last failure, for a log."""
    if view.waits:
        yield _DOT.join(view.waits)
    if view.ended and view.last_failure:
        yield f"last failure: {view.last_failure}"


def _time_text(view: ProgressView, left: str) -> str:
    if view.ended:
        return time_taken(view)
    return f"{left} left" if view.total.state == "running" else left


def _named(scorers: Sequence[str], scores: Sequence[str]) -> list[str]:
    shown = [f"{one_line(name)} {score}" for name, score in zip(scorers, scores, strict=False)]
    more = len(shown) - _SCORES_MAX
    return shown if more <= 0 else [*shown[:_SCORES_MAX], f"and {counted(more, 'more score')}"]


class ProgressLayout:
    """Arranges views of one run for a terminal. Remembers how wide each text was, and which models are shown."""

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}
        self._shown: set[str] = set()

    def lines(self, view: ProgressView, width: int, height: int = _UNKNOWN_HEIGHT) -> list[Line]:
        """At most `height` lines of at most `width` characters."""
        notes = [*_notes(view, width)]
        above = self._table(view, width, height - len(notes)) if view.models else self._single(view, width)
        return [*above, *notes][:height]

    def _single(self, view: ProgressView, width: int) -> list[Line]:
        """One line if all of it and a bar fit; else the bar and the time above, the results below. In a very narrow
        terminal the bar has a line of its own.
        """
        row, texts = view.total, texts_of(view.total, view)
        ahead = [
            StyledText(texts.done.rjust(2 * len(f"{row.planned:,}") + 1)),
            StyledText(texts.percent.rjust(4)),
            self._piece("rate", texts.rate, 6),
            self._piece("left", _time_text(view, texts.left), 11),
        ]
        named = _named(view.scorers, texts.scores)
        results = [self._piece("cost", texts.cost, 7, left=True)] if texts.cost else []
        results += [self._piece(f"score {number}", each, left=True) for number, each in enumerate(named)]
        results.append(StyledText(f"{texts.failed} failed", "bad" if row.failed else ""))
        room = width - _width_of((*ahead, *results)) - len(_GAP)
        if room >= _BAR_MIN_WITH_RESULTS:
            return [_joined((_bar(row, min(room, _BAR_MAX)), *ahead, *results))]
        room = width - _width_of(ahead) - len(_GAP)
        bar = _bar(row, min(room if room >= _BAR_MIN else width, _BAR_MAX))
        above = [[bar, *ahead]] if room >= _BAR_MIN else [[bar], *_flow(ahead, width)]
        return [_joined(line) for line in (*above, *_flow(results, width))]

    def _table(self, view: ProgressView, width: int, height: int) -> list[Line]:
        """A line for each model, below a head and above a total."""
        rows, hidden = self._choose(view, max(height - 2, _ROWS_MIN + 1))
        columns = _fit(self._columns(view, rows, max(width // 3, _NAME_MIN)), width)
        lines = [_joined(column.cells[number] for column in columns) for number in range(len(rows) + 2)]
        if hidden:
            done = sum(row.state != "running" for row in hidden)
            note = f"and {len(hidden)} more{f', {done} of them done' if done else ''}"
            lines.insert(-1, (StyledText(note, "dim"),))
        return lines

    def _choose(self, view: ProgressView, room: int) -> tuple[list[ProgressRow], list[ProgressRow]]:
        """The models that are shown, and the others: the fastest of those that work, in the order of the spec. One that
        is shown stays until another is much faster, so that lines do not jump.
        """
        every = view.models
        if len(every) <= room:
            return list(every), []
        ranked = sorted(
            every,
            key=lambda row: (row.state == "running", (row.rate or 0.0) * (_STAY if row.name in self._shown else 1.0)),
            reverse=True,
        )
        self._shown = {row.name for row in ranked[: room - 1]}  # one line for the number of the others
        return [row for row in every if row.name in self._shown], [row for row in every if row.name not in self._shown]

    def _columns(self, view: ProgressView, rows: Sequence[ProgressRow], name_width: int) -> list["_Column"]:
        every = [*rows, view.total]
        texts = [texts_of(row, view) for row in every]
        if view.ended:
            texts[-1] = texts[-1]._replace(left=time_taken(view))
        names = [_shortened(one_line(row.name), name_width) for row in every]
        bars = [_bar(row, _BAR_IN_TABLE_MAX) for row in every]
        columns = [
            self._column("model", names, left=True),
            _Column("bar", [StyledText(" " * _BAR_IN_TABLE_MAX), *bars], _BAR_IN_TABLE_MAX),
            self._column("done", [each.done for each in texts]),
            self._column("percent", [each.percent for each in texts], 4, head=""),
            self._column("rate", [each.rate for each in texts], 5),
            self._column("left", [each.left for each in texts], 6),
        ]
        if any(each.cost for each in texts):
            columns.append(self._column("cost", [each.cost or UNKNOWN for each in texts]))
        for number, scorer in enumerate(view.scorers[:_SCORES_MAX]):
            scores = [each.scores[number] if each.scores else "" for each in texts]
            head = _shortened(one_line(scorer), _SCORER_WIDTH)
            columns.append(self._column(f"score {number + 1}", scores, head=head))
        failed = self._column("failed", [each.failed for each in texts])
        styles = ["dim", *("bad" if row.failed else "" for row in every)]
        failed.cells = [cell._replace(style=style) for cell, style in zip(failed.cells, styles, strict=True)]
        return [*columns, failed]

    def _column(
        self, name: str, texts: Sequence[str], least: int = 0, *, head: str | None = None, left: bool = False
    ) -> "_Column":
        every = [name if head is None else head, *texts]
        width = max(least, self._widths.get(f"column {name}", 0), *map(cell_len, every))
        self._widths[f"column {name}"] = width
        first, *cells = (StyledText(_fitted(text, width, left=left)) for text in every)
        return _Column(name, [first._replace(style="dim"), *cells], width)

    def _piece(self, name: str, text: str, least: int = 0, *, left: bool = False) -> StyledText:
        width = self._widths[name] = max(cell_len(text), least, self._widths.get(name, 0))
        return StyledText(_fitted(text, width, left=left))


class _Column:
    """A column of the table: a head, a cell for each model, and one for the total."""

    def __init__(self, name: str, cells: list[StyledText], width: int) -> None:
        self.name = name
        self.cells = cells
        self.width = width

    @property
    def is_bar(self) -> bool:
        return self.name == "bar"

    def narrow(self, width: int) -> None:
        """Make names and bars shorter."""
        head, *cells = self.cells
        for number, cell in enumerate(cells):
            text = _shortened(cell.text.rstrip(), width)
            if self.is_bar:
                full = cell.text.count("█") * width // self.width
                text = "█" * full + "░" * (width - full)
            cells[number] = StyledText(_fitted(text, width, left=True), cell.style)
        self.cells, self.width = [StyledText(_fitted(head.text[:width], width, left=True), head.style), *cells], width


def _fit(columns: list[_Column], width: int) -> list[_Column]:
    """Make the bar shorter, leave out columns, and shorten names, until a line fits."""
    while (excess := sum(column.width + len(_GAP) for column in columns) - len(_GAP) - width) > 0:
        bar = next((column for column in columns if column.is_bar), None)
        names = {column.name: column for column in columns}
        first = next((names[name] for name in _DISPENSABLE if name in names), None)
        if bar is not None and bar.width - excess >= _BAR_MIN:
            bar.narrow(bar.width - excess)
        elif first is not None:
            columns.remove(first)
        else:
            columns[0].narrow(max(columns[0].width - excess, _NAME_MIN))
            break
    return columns


def _notes(view: ProgressView, width: int) -> Iterator[Line]:
    activity = list(view.activity)
    while len(activity) > 1 and cell_len(_DOT.join(activity)) > width:
        activity.pop()
    if activity:
        yield (StyledText(_DOT.join(activity), "dim"),)
    # Waits come and go, so they are last: nothing below them could jump.
    for text, style in (
        (f"last failure: {view.last_failure}" if view.last_failure else "", "dim"),
        (_DOT.join(view.waits), "wait" if view.is_waiting else "dim"),
    ):
        for line in _wrapped(text, width):
            yield (StyledText(line, style),)


def _wrapped(text: str, width: int) -> list[str]:
    """At most two lines, with `…` for the rest. Counts columns of the terminal, which `textwrap` does not."""
    words, lines = text.split(), list[str]()
    while words and len(lines) < _NOTE_LINES:
        line = words.pop(0)
        while words and cell_len(f"{line} {words[0]}") <= width:
            line = f"{line} {words.pop(0)}"
        lines.append(line)
    if words:
        lines[-1] = f"{lines[-1]} {' '.join(words)}"
    return [line if cell_len(line) <= width else f"{set_cell_size(line, max(width - 1, 0))}…" for line in lines]


def _bar(row: ProgressRow, width: int) -> StyledText:
    """Full only when all is done."""
    full = min(width * row.done // max(row.planned, 1), width)
    return StyledText("█" * full + "░" * (width - full), "bar")


def _flow(pieces: Sequence[StyledText], width: int) -> list[list[StyledText]]:
    """As many in each line as fit."""
    lines: list[list[StyledText]] = [[]]
    for piece in pieces:
        if lines[-1] and _width_of((*lines[-1], piece)) > width:
            lines.append([])
        lines[-1].append(piece)
    return lines


def _width_of(pieces: Sequence[StyledText]) -> int:
    return sum(cell_len(piece.text) + len(_GAP) for piece in pieces) - len(_GAP)


def _joined(pieces: "Iterator[StyledText] | Sequence[StyledText]") -> Line:
    found: list[StyledText] = []
    for piece in pieces:
        found += [StyledText(_GAP), piece] if found else [piece]
    return tuple(found)


def _fitted(text: str, width: int, *, left: bool = False) -> str:
    """With blanks before it, or behind it, so that it takes `width` columns of the terminal."""
    blanks = " " * (width - cell_len(text))
    return f"{text}{blanks}" if left else f"{blanks}{text}"


def _shortened(text: str, width: int) -> str:
    """Without its middle if it is too wide: names of models often differ only at their ends."""
    if cell_len(text) <= width:
        return text
    end = text[-((width - 1) // 2) :]
    return f"{set_cell_size(text, max(width - 1 - cell_len(end), 0))}…{end}"
