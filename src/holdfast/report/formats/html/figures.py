"""The figures of the HTML report, as inline SVG with labels in HTML.

Positions along an axis are percentages, so a figure fits any width while its letters and lines keep their size. Colours
come from the style sheet and follow the reader's theme. Every drawing has a title with its numbers for screen readers.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from holdfast.report.cells import CellReport, RunReport, ScorerReport
from holdfast.report.compare.comparison import Comparison, derived_rows
from holdfast.report.compare.sentences import common_model, is_in_points
from holdfast.report.examples import Curve, Latency
from holdfast.report.formats.html.elements import escaped
from holdfast.report.formats.run_page import run_names
from holdfast.report.text import brief, counted, dollars, three_digits
from holdfast.stats import Scale, Summary

_FIGURES_MAX = 6
_ROWS_MAX = 40
_SERIES_MAX = 8
"""As many as there are colours in the style sheet."""
_ROW_HEIGHT = 40
_PLOT_HEIGHT = 200
_CURVE_MIN = 3
_CHANCES = ("pass@", "pass^", "cons@", "at_least_")
"""Reducers whose values are chances begin with these."""
Write = Callable[[float], str]
"""Writes the number of a tick."""


class Mark(msgspec.Struct, frozen=True):
    """One row of a chart: a value with its interval."""

    label: str
    value: float
    low: float
    high: float
    text: str
    """The value as text."""
    note: str = ""
    """The interval as text."""
    inner: tuple[float, float] | None = None
    """A second, shorter range."""


class Axis(msgspec.Struct, frozen=True):
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def at(self, value: float) -> str:
        """The position of a value, as a percentage."""
        if self.is_log:
            low, high, value = math.log10(self.low), math.log10(self.high), math.log10(max(value, self.low))
        else:
            low, high = self.low, self.high
        share = (value - low) / (high - low)
        return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


def score_figures(reports: Sequence[RunReport]) -> Iterator[str]:
    """One figure for each scorer, then for each of its reducers: the mean of every model with its 95% interval."""
    found: dict[str, list[tuple[str, str, Summary, Scale | None]]] = {}
    for run, report in zip(run_names(reports), reports, strict=True):
        for cell in report.cells:
            for name, summary, scale in _measures(cell):
                found.setdefault(name, []).append((cell.task, f"{run} {cell.model}".lstrip(), summary, scale))
    plain = {each.scorer for report in reports for cell in report.cells for each in cell.scorers}
    ordered = sorted(found.items(), key=lambda each: each[0] not in plain)
    for name, rows in ordered[:_FIGURES_MAX]:
        is_share = all(_is_share(scale, summary) for *_, summary, scale in rows)
        scale = rows[0][3]
        axis = SHARES if is_share else _axis_of_scale(scale, [summary for *_, summary, _ in rows])
        groups: dict[str, list[Mark]] = {}
        for task, label, summary, _ in rows:
            groups.setdefault(task, []).append(_mark(label, summary, is_share))
        is_bool = name in plain and is_share and scale is not None and scale.is_bool
        what = "right answers" if is_bool else "mean"
        with_ends = "with 95% intervals" if any(row.low is not None for *_, row, _ in rows) else "without intervals"
        yield _chart(name, f"{what}, {with_ends}", groups, axis)
    if len(ordered) > _FIGURES_MAX:
        more = counted(len(ordered) - _FIGURES_MAX, "more row of scores", "more rows of scores")
        yield f'<p class="small muted">{more}: see the table</p>\n'


def _measures(cell: CellReport) -> Iterator[tuple[str, Summary, Scale | None]]:
    """What the task's reducers request, without the votes of panels."""
    parts = tuple(f"{each.scorer}." for each in cell.scorers)
    for each in cell.scorers:
        if each.scorer.startswith(parts):
            continue
        if each.plain and each.summary.mean is not None:
            yield each.scorer, each.summary, each.scale
        for reduced in each.reduced:
            if reduced.summary.mean is not None:
                is_chance = reduced.reducer.startswith(_CHANCES)
                yield f"{each.scorer} {reduced.reducer}", reduced.summary, None if is_chance else each.scale


def difference_figures(found: Sequence[Comparison]) -> Iterator[str]:
    """One figure for each scorer: paired differences, second side minus first."""
    by_scorer: dict[str, list[Comparison]] = {}
    for each, is_derived in zip(found, derived_rows(found), strict=True):
        if not is_derived and each.difference is not None and each.difference.mean is not None:
            by_scorer.setdefault(each.scorer, []).append(each)
    for scorer, rows in list(by_scorer.items())[:_FIGURES_MAX]:
        in_points = all(is_in_points(each.scale) for each in rows)
        factor = 100.0 if in_points else 1.0
        several = len({model for each in rows for model in (each.first.model, each.second.model)}) > 1
        groups: dict[str, list[Mark]] = {}
        for each in rows:
            task = each.first.task if each.first.task == each.second.task else each.first.family
            groups.setdefault(task, []).append(_difference(each, factor, several))
        marks = [mark for several in groups.values() for mark in several]
        reach = max(max(abs(mark.low), abs(mark.high)) for mark in marks) or 1.0
        unit = "percentage points" if in_points else "difference"
        axis = _nice_axis(-reach, reach, _signed)
        yield _chart(scorer, f"{unit}, with 95% intervals and adjusted p", groups, axis, zero=True)


def latency_figure(latencies: Sequence[tuple[str, Latency]]) -> str:
    """How long answers took. `latencies`: each with its label."""
    if not latencies:
        return ""
    marks = [
        Mark(label, each.p50, each.p5, each.p95, brief(each.p50), f"95% within {brief(each.p95)}", (each.p25, each.p75))
        for label, each in latencies
    ]
    low, high = min(mark.low for mark in marks), max(mark.high for mark in marks)
    axis = _log_axis(low, high, brief) if 0 < 50 * low < high else _nice_axis(0.0, high, brief)
    return _chart("Seconds for an answer", "median, middle half, and 5% to 95%", {"": marks}, axis)


def cost_figure(reports: Sequence[RunReport]) -> str:
    """The score against the cost of 1,000 answers, for the first scorer with numbers. Empty for fewer than two models
    with prices.
    """
    found: list[tuple[str, float, Summary]] = []
    scorer, scale = "", None
    several = len({cell.task for report in reports for cell in report.cells}) > 1
    for run, report in zip(run_names(reports), reports, strict=True):
        for cell in report.cells:
            each = _first_scorer(cell, scorer)
            if each is None or cell.cost.dollars is None or cell.cost.unpriced or not cell.finished:
                continue
            scorer, scale = each.scorer, each.scale
            label = f"{run} {cell.task} / {cell.model}" if several else f"{run} {cell.model}"
            found.append((label.lstrip(), 1_000 * cell.cost.dollars / cell.finished, each.summary))
    amounts = [amount for _, amount, _ in found]
    if len(found) < 2 or max(amounts) <= 0:
        return ""
    is_share = all(_is_share(scale, summary) for *_, summary in found)
    y = SHARES if is_share else _axis_of_scale(scale, [summary for *_, summary in found])
    is_log = min(amounts) > 0 and max(amounts) > 20 * min(amounts)
    write: Write = "${:g}".format
    x = _log_axis(min(amounts), max(amounts), write) if is_log else _nice_axis(0.0, max(amounts), write)
    drawn = []
    for number, (_, amount, summary) in enumerate(found[:_SERIES_MAX]):
        low, high = _ends(summary)
        at = x.at(amount)
        whisker = f'<line class="line k{number}" x1="{at}" x2="{at}" y1="{_flip(y, low)}" y2="{_flip(y, high)}"/>'
        drawn.append(f'{whisker}<circle class="k{number}" cx="{at}" cy="{_flip(y, summary.mean or 0.0)}" r="5"/>')
    texts = [f"{label}: {dollars(amount)}, {_text(summary.mean or 0.0, is_share)}" for label, amount, summary in found]
    caption = (f"{scorer} against cost", "dollars for 1,000 answers; lines are 95% intervals")
    return _plot(caption, "".join(drawn), (x, y), [label for label, *_ in found], texts)


def curve_figures(curves: Sequence[Curve]) -> Iterator[str]:
    """pass@k for k = 1, 2, … Curves of two points say no more than the table."""
    by_scorer: dict[str, list[Curve]] = {}
    for each in (each for each in curves if len(each.values) >= _CURVE_MIN):
        by_scorer.setdefault(each.scorer, []).append(each)
    for scorer, several in list(by_scorer.items())[:_FIGURES_MAX]:
        longest = max(len(each.values) for each in several)
        step = max(1, math.ceil((longest - 1) / 8))
        x = Axis(1.0, float(longest), tuple((float(k), str(k)) for k in range(1, longest + 1, step)))
        drawn = []
        for number, each in enumerate(several[:_SERIES_MAX]):
            points = [(x.at(k), _flip(SHARES, value)) for k, value in enumerate(each.values, 1)]
            drawn += [
                f'<line class="line k{number}" x1="{a}" y1="{b}" x2="{c}" y2="{d}"/>'
                for (a, b), (c, d) in itertools.pairwise(points)
            ]
            drawn += [f'<circle class="k{number}" cx="{a}" cy="{b}" r="3.5"/>' for a, b in points[:: max(1, step)]]
        texts = [f"{each.label}: {_text(each.values[-1], True)} with {longest}" for each in several]
        caption = (f"{scorer}: pass@k", "chance that one of k answers to a sample is right")
        yield _plot(caption, "".join(drawn), (x, SHARES), [each.label for each in several], texts)


def _first_scorer(cell: CellReport, name: str) -> ScorerReport | None:
    """The scorer with this name; without a name, the first with a mean, one of right or wrong if there is any."""
    scored = [each for each in cell.scorers if each.summary.mean is not None and name in ("", each.scorer)]
    return next((each for each in scored if each.scale.is_bool), scored[0] if scored else None)


def _mark(label: str, summary: Summary, is_share: bool) -> Mark:
    low, high = _ends(summary)
    mean = summary.mean or 0.0
    note = "" if summary.low is None else f"{_text(low, is_share, '')} to {_text(high, is_share, '')}"
    return Mark(label, mean, low, high, _text(mean, is_share), note)


def _difference(each: Comparison, factor: float, several: bool) -> Mark:
    """`several`: the figure has several models, so that a model that both sides share is named."""
    assert each.difference is not None
    low, high = _ends(each.difference)
    mean = each.difference.mean or 0.0
    text = f"{factor * mean:+.1f}" if factor > 1 else three_digits(mean, "+")
    p = each.p if each.adjusted_p is None else each.adjusted_p
    shown = "" if p is None else "p < 0.001" if p < 0.001 else f"p {'<=' if each.p_is_bound else '='} {p:.3f}"
    model = f"{common_model(each)}: " if several and common_model(each) else ""
    label = f"{model}{each.second.label(each.first)} minus {each.first.label(each.second)}"
    return Mark(label, factor * mean, factor * low, factor * high, text, shown)


def _ends(summary: Summary) -> tuple[float, float]:
    """The ends of the interval, or the mean itself without one."""
    mean = summary.mean or 0.0
    if summary.low is None or summary.high is None:
        return mean, mean
    return min(summary.low, mean), max(summary.high, mean)


def _is_share(scale: Scale | None, summary: Summary) -> bool:
    """Whether numbers are shown in percent. `scale` None: of a chance."""
    low, high = _ends(summary)
    return (scale is None or (scale.lowest, scale.highest) == (0.0, 1.0)) and low >= 0 and high <= 1


def _text(value: float, is_share: bool, unit: str = "%") -> str:
    return f"{100 * value:.1f}{unit}" if is_share else three_digits(value)


SHARES = Axis(0.0, 1.0, tuple((number / 4, f"{25 * number}%") for number in range(5)))


def _axis_of_scale(scale: Scale | None, summaries: Iterable[Summary]) -> Axis:
    """The whole scale if it has ends, else what the intervals need."""
    ends = [end for summary in summaries for end in _ends(summary)]
    low, high = min(ends), max(ends)
    if scale is not None and scale.lowest is not None:
        low = min(low, scale.lowest)
    if scale is not None and scale.highest is not None:
        high = max(high, scale.highest)
        if scale.lowest is not None and (low, high) == (scale.lowest, scale.highest):
            inside = [tick for tick in _nice_axis(low, high).ticks if low < tick[0] < high]
            return Axis(low, high, ((low, f"{low:g}"), *inside, (high, f"{high:g}")))
    return _nice_axis(low, high)


def _nice_axis(low: float, high: float, write: Write = "{:g}".format) -> Axis:
    """An axis with about five round steps."""
    span = (high - low) / 5
    if not span > 0:
        span = abs(high) / 5 or 0.2
        low, high = low - 2 * span, high + 2 * span
    power = 10.0 ** math.floor(math.log10(span))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= span * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [number * step for number in range(first, last + 1)]
    return Axis(ticks[0], ticks[-1], tuple((tick, write(float(f"{tick:.12g}"))) for tick in ticks))


def _signed(value: float) -> str:
    return f"{value:+g}" if value else "0"


def _log_axis(low: float, high: float, write: Write) -> Axis:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / 5))
    last = first + math.ceil((last - first) / step) * step
    ticks = tuple((10.0**power, write(10.0**power)) for power in range(first, last + 1, step))
    return Axis(10.0**first, 10.0**last, ticks, True)


def _flip(axis: Axis, value: float) -> str:
    """The position on a vertical axis, which grows downwards in SVG."""
    return f"{100 - float(axis.at(value)[:-1]):.2f}%"


def _chart(title: str, what: str, groups: Mapping[str, Sequence[Mark]], axis: Axis, *, zero: bool = False) -> str:
    """Rows of marks over one axis. `groups`: rows by task."""
    parts, left = [], _ROWS_MAX
    for name, marks in groups.items():
        if len(groups) > 1 and left > 0:
            parts.append(f'<div class="group">{escaped(name)}</div>\n')
        parts += [_row(mark, axis, zero) for mark in marks[: max(left, 0)]]
        left -= len(marks)
    more = f"; {counted(-left, 'more row')} in the table" if left < 0 else ""
    caption = f"<figcaption>{escaped(title)}<small>{escaped(what + more)}</small></figcaption>"
    return f'<figure>{caption}\n<div class="chart">\n{"".join(parts)}{_ticks(axis)}</div></figure>\n'


def _row(mark: Mark, axis: Axis, zero: bool) -> str:
    middle = _ROW_HEIGHT // 2
    drawn = [_grid(axis, _ROW_HEIGHT)]
    if zero:
        drawn.append(f'<line class="zero" x1="{axis.at(0)}" x2="{axis.at(0)}" y1="0" y2="{_ROW_HEIGHT}"/>')
    ranges = [(mark.low, mark.high, "range" if mark.inner is None else "thin")]
    ranges += [] if mark.inner is None else [(*mark.inner, "range")]
    for low, high, kind in ranges:
        drawn.append(f'<line class="{kind}" x1="{axis.at(low)}" x2="{axis.at(high)}" y1="{middle}" y2="{middle}"/>')
    drawn.append(f'<circle class="dot" cx="{axis.at(mark.value)}" cy="{middle}" r="5.5"/>')
    text = escaped(f"{mark.label}: {mark.text}{f' ({mark.note})' if mark.note else ''}")
    svg = f'<svg height="{_ROW_HEIGHT}" role="img" aria-label="{text}"><title>{text}</title>{"".join(drawn)}</svg>'
    note = f"<small>{escaped(mark.note)}</small>" if mark.note else ""
    label = f'<div class="label" dir="auto">{escaped(mark.label)}</div>'
    return f'{label}{svg}<div class="value" aria-hidden="true">{escaped(mark.text)}{note}</div>\n'


def _grid(axis: Axis, height: int) -> str:
    lines = (f'<line x1="{axis.at(tick)}" x2="{axis.at(tick)}" y1="0" y2="{height}"/>' for tick, _ in axis.ticks)
    return f'<g class="grid">{"".join(lines)}</g>'


def _ticks(axis: Axis) -> str:
    """The numbers below a chart."""
    texts = (
        f'<text x="{axis.at(tick)}" y="17" text-anchor="middle">{escaped(text)}</text>' for tick, text in axis.ticks
    )
    return f'<svg class="axis" height="22" aria-hidden="true">{"".join(texts)}</svg>'


def _plot(
    caption: tuple[str, str], drawn: str, axes: tuple[Axis, Axis], labels: Sequence[str], texts: Sequence[str]
) -> str:
    """A plot with two axes and a legend."""
    x, y = axes
    beside = "".join(
        f'<text x="100%" y="{_flip(y, tick)}" dy="4" text-anchor="end">{escaped(text)}</text>' for tick, text in y.ticks
    )
    across = "".join(f'<line x1="0" x2="100%" y1="{_flip(y, tick)}" y2="{_flip(y, tick)}"/>' for tick, _ in y.ticks)
    text = escaped("; ".join(texts[:_SERIES_MAX]))
    area = f'<svg height="{_PLOT_HEIGHT}" role="img" aria-label="{text}"><title>{text}</title>'
    area += f'<g class="grid">{across}</g>{drawn}</svg>'
    keys = "".join(
        f'<li><svg height="10" aria-hidden="true"><circle class="k{number}" cx="6" cy="5" r="4.5"/></svg>'
        f"{escaped(label)}</li>"
        for number, label in enumerate(labels[:_SERIES_MAX])
    )
    more = f"; {counted(len(labels) - _SERIES_MAX, 'more')} not shown" if len(labels) > _SERIES_MAX else ""
    head = f"<figcaption>{escaped(caption[0])}<small>{escaped(caption[1] + more)}</small></figcaption>"
    scale = f'<svg height="{_PLOT_HEIGHT}" aria-hidden="true">{beside}</svg>'
    return (
        f'<figure>{head}\n<div class="plot">{scale}{area}{_ticks(x)}</div>\n<ul class="legend">{keys}</ul></figure>\n'
    )
