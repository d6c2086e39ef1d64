"""Charts as SVG elements, drawn by the server: trends, distributions, cost against score, load and lives over time.

They take colours from the page (classes `s0` to `s5`), have a text alternative, and scroll sideways on narrow screens.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.report import brief, dollars, format_number, shortened, three_digits
from holdfast.view.markup import Child, Markup, h, join

SERIES_MAX = 6
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 260, 64, 16, 12, 34
_LABEL_MAX = 28
_DIGIT = 8
"""Pixels that a digit of an axis takes at most."""


class TrendPoint(msgspec.Struct, frozen=True):
    """A value with its interval at a place on the axis."""

    place: int
    mean: float
    low: float | None
    high: float | None
    hint: str


class ScatterPoint(msgspec.Struct, frozen=True):
    """A score and what a thousand samples cost."""

    label: str
    dollars: float
    mean: float
    low: float | None
    high: float | None


class Span(msgspec.Struct, frozen=True):
    """A bar on a time axis, in seconds from its beginning. `tone`: a class of the style sheet."""

    label: str
    start: float
    end: float
    tone: str
    hint: str
    is_cut: bool = False
    """Whether it ends with a mark: the process was killed."""


class _Axis:
    """Maps values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float, *, is_log: bool = False) -> None:
        self.is_log = is_log
        self.low, self.high = sorted((math.log(low), math.log(high)) if is_log else (low, high))
        if self.high - self.low <= 1e-9 * max(abs(self.high), 1e-9):
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self._start, self._end = start, end

    def __call__(self, value: float) -> str:
        at = math.log(value) if self.is_log else value
        share = (at - self.low) / (self.high - self.low)
        return f"{self._start + share * (self._end - self._start):.1f}"

    def ticks(self, count: int = 5) -> list[float]:
        """Round values between the ends."""
        if self.is_log:
            decades = range(math.floor(self.low / math.log(10)), math.ceil(self.high / math.log(10)) + 1)
            found = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
            kept = [each for each in found if self.low <= math.log(each) <= self.high]
            return kept if len(kept) <= 2 * count else [each for each in kept if f"{each:e}"[0] == "1"]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / count))
        step = next(each for each in (step, 2 * step, 5 * step, 10 * step) if (self.high - self.low) / each <= count)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _figure(parts: Iterable[Child], label: str, height: float = _HEIGHT) -> Markup:
    view = f"0 0 {_WIDTH} {height:.0f}"
    return h("svg", parts, viewBox=view, role="img", aria_label=label, class_="figure chart")


def _y_grid(axis: _Axis) -> list[Markup]:
    found = []
    for value in axis.ticks():
        y = axis(value)
        found.append(h("line", x1=str(_LEFT), x2=str(_WIDTH - _RIGHT), y1=y, y2=y, class_="grid"))
        found.append(h("text", _short(value), x=str(_LEFT - 8), y=y, dy="4", text_anchor="end", class_="axis"))
    return found


def _x_label(text: str, at: str, y: float) -> Markup:
    """A number below its place on an axis, moved to the left if the edge would cut digits off."""
    middle = min(float(at), _WIDTH - len(text) * _DIGIT / 2)
    return h("text", text, x=f"{middle:.1f}", y=str(y), text_anchor="middle", class_="axis")


def _short(value: float) -> str:
    return f"{value:.4g}"


def _time_ticks(seconds: float, ends: tuple[float, float], y: float) -> Iterator[tuple[str, Markup]]:
    """Five times from 0 on, each with its place between the ends of an axis."""
    for share, anchor in ((0.0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1.0, "end")):
        at = f"{ends[0] + share * (ends[1] - ends[0]):.1f}"
        text = brief(share * seconds, seconds) if share else "0"
        yield at, h("text", text, x=at, y=str(y), text_anchor=anchor, class_="axis")


def _score_axis(values: Sequence[float]) -> _Axis:
    """From a little below the lowest to a little above the highest, and never beyond the ends of a share."""
    low, high = min(values), max(values)
    is_share = low >= 0.0 and high <= 1.0
    room = (high - low) * 0.1 or 0.05
    low, high = low - room, high + room
    if is_share:
        low, high = max(low, 0.0), min(high, 1.0)
    return _Axis(low, high, _HEIGHT - _BOTTOM, _TOP)


def legend(names: Sequence[str]) -> Markup | None:
    """The colours of several series."""
    if len(names) < 2:
        return None
    items = [h("li", h("span", "", class_=f"swatch s{number}"), name) for number, name in enumerate(names)]
    return h("ul", items[:SERIES_MAX], class_="legend")


def trend_chart(series: Sequence[tuple[str, Sequence[TrendPoint]]], labels: Sequence[str]) -> Markup | None:
    """Means with intervals over the runs of an experiment. `labels`: of the places on the axis."""
    shown = [(name, points) for name, points in series[:SERIES_MAX] if points]
    ends = [value for _, points in shown for each in points for value in (each.mean, each.low, each.high)]
    known = [value for value in ends if value is not None]
    if not known:
        return None
    y = _score_axis(known)
    x = _Axis(-0.5, len(labels) - 0.5, _LEFT, _WIDTH - _RIGHT)
    parts: list[Child] = list(_y_grid(y))
    every = max(math.ceil(len(labels) / 8), 1)
    for place in range(0, len(labels), every):
        text = shortened(labels[place], 96 // min(len(labels), 8) + 2)
        parts.append(h("text", text, x=x(place), y=str(_HEIGHT - 12), text_anchor="middle", class_="axis"))
    for number, (name, points) in enumerate(shown):
        shift = (number - (len(shown) - 1) / 2) * min(0.08, 0.5 / len(shown))
        line = " ".join(f"{x(each.place + shift)},{y(each.mean)}" for each in points)
        inside: list[Child] = [h("polyline", points=line, class_="line")] if len(points) > 1 else []
        for each in points:
            at = x(each.place + shift)
            if each.low is not None and each.high is not None:
                inside.append(h("line", x1=at, x2=at, y1=y(each.low), y2=y(each.high), class_="range"))
            hint = h("title", f"{name}: {each.hint}")
            inside.append(h("circle", hint, cx=at, cy=y(each.mean), r="4", class_="point"))
        parts.append(h("g", inside, class_=f"s{number}"))
    return _figure(parts, "Scores with 95% intervals over runs")


def scatter_chart(points: Sequence[ScatterPoint]) -> Markup | None:
    """Scores against the cost of a thousand samples."""
    if len(points) < 2:
        return None
    known = [value for each in points for value in (each.mean, each.low, each.high) if value is not None]
    costs = [each.dollars for each in points]
    is_log = min(costs) > 0 and max(costs) / min(costs) > 20
    room = (max(costs) - min(costs)) * 0.15
    low, high = (min(costs) / 1.5, max(costs) * 2) if is_log else (max(min(costs) - room, 0.0), max(costs) + 2 * room)
    y, x = _score_axis(known), _Axis(low, high, _LEFT, _WIDTH - _RIGHT, is_log=is_log)
    parts: list[Child] = list(_y_grid(y))
    for value in x.ticks():
        parts.append(h("line", x1=x(value), x2=x(value), y1=str(_TOP), y2=str(_HEIGHT - _BOTTOM), class_="grid"))
        parts.append(_x_label(f"${value:,.10g}", x(value), _HEIGHT - 14))
    for each in points:
        at = x(each.dollars)
        if each.low is not None and each.high is not None:
            parts.append(h("line", x1=at, x2=at, y1=y(each.low), y2=y(each.high), class_="range"))
        hint = h("title", f"{each.label}: {format_number(each.mean)} at {dollars(each.dollars)}")
        parts.append(h("circle", hint, cx=at, cy=y(each.mean), r="4", class_="point"))
        is_right = float(at) > _WIDTH * 0.7
        parts.append(
            h(
                "text",
                shortened(each.label, _LABEL_MAX),
                x=f"{float(at) + (-8 if is_right else 8):.1f}",
                y=y(each.mean),
                dy="-6",
                text_anchor="end" if is_right else "start",
            )
        )
    return _figure(parts, "Scores against the cost of a thousand samples")


_ROW = 64
_SPREAD_MIN = 20.0


def histogram_chart(
    rows: Sequence[tuple[str, Sequence[tuple[float, int]], Sequence[tuple[str, float]]]],
) -> Markup | None:
    """Distributions of durations, one row each: a name, the counts by duration, and percentiles to mark."""
    shown = [(name, [each for each in counts if each[0] > 0], marks) for name, counts, marks in rows[:SERIES_MAX]]
    shown = [each for each in shown if each[1]]
    if not shown:
        return None
    ends = [seconds for _, counts, _ in shown for seconds, _ in counts]
    low, high = min(ends) / 1.3, max(ends) * 1.3
    if high / low < _SPREAD_MIN:  # equal durations: show the axis around them
        low, high = (low * high / _SPREAD_MIN) ** 0.5, (low * high * _SPREAD_MIN) ** 0.5
    x = _Axis(low, high, _LEFT + 110, _WIDTH - _RIGHT, is_log=True)
    height = _ROW * len(shown) + 28
    parts: list[Child] = []
    for value in x.ticks():
        parts.append(h("line", x1=x(value), x2=x(value), y1="4", y2=str(height - 24), class_="grid"))
        parts.append(_x_label(brief(value), x(value), height - 8))
    for number, (name, counts, marks) in enumerate(shown):
        base, most = _ROW * number + _ROW - 6, max(count for _, count in counts)
        texts = [shortened(name, 24), *(f"{text} {brief(seconds)}" for text, seconds in marks)]
        label = [h("text", text, x="4", y=str(base - 34 + 15 * line)) for line, text in enumerate(texts)]
        bars: list[Child] = []
        for seconds, count in counts:
            tall = max(46.0 * count / most, 1.0)
            hint = h("title", f"about {brief(seconds)}: {count:,}")
            left = float(x(seconds)) - 2
            bars.append(h("rect", hint, x=f"{left:.1f}", y=f"{base - tall:.1f}", width="4", height=f"{tall:.1f}"))
        for _, seconds in marks:
            if low < seconds < high:
                bars.append(h("line", x1=x(seconds), x2=x(seconds), y1=str(base - 52), y2=str(base), class_="mark"))
        parts.append(h("g", label, bars, class_=f"bars s{number}"))
    return _figure(parts, "Distribution of the duration of requests by model", height)


def load_chart(values: Sequence[float | None], span_seconds: float) -> Markup | None:
    """Requests in flight over time, one bar for each span; a gap where no process worked."""
    known = [each for each in values if each is not None]
    if not known:
        return None
    height = 180
    y = _Axis(0.0, max(known) * 1.05 or 1.0, height - _BOTTOM, _TOP)
    x = _Axis(0.0, float(len(values)), _LEFT, _WIDTH - _RIGHT)
    parts: list[Child] = list(_y_grid(y))
    for place, value in enumerate(values):
        if value is None:
            continue
        left, right, top = float(x(place)), float(x(place + 1)), float(y(value))
        hint = h("title", f"{brief(place * span_seconds)} after the start: {three_digits(value)} in flight")
        tall, wide = height - _BOTTOM - top, max(right - left - 1, 0.5)
        parts.append(h("rect", hint, x=f"{left:.1f}", y=f"{top:.1f}", width=f"{wide:.1f}", height=f"{tall:.1f}"))
    parts += [text for _, text in _time_ticks(len(values) * span_seconds, (_LEFT, _WIDTH - _RIGHT), height - 12)]
    return _figure([h("g", parts, class_="bars s0")], "Requests in flight over time", height)


def life_chart(spans: Sequence[Span]) -> Markup | None:
    """When each process worked on the run."""
    if not spans:
        return None
    end = max(max(each.end for each in spans), 1e-3)
    x = _Axis(0.0, end, 110, _WIDTH - _RIGHT)
    height = 22 * len(spans) + 30
    parts: list[Child] = []
    for at, text in _time_ticks(end, (110, _WIDTH - _RIGHT), height - 8):
        parts += [h("line", x1=at, x2=at, y1="2", y2=str(height - 24), class_="grid"), text]
    for number, each in enumerate(spans):
        top = 22 * number + 4
        left, wide = float(x(each.start)), max(float(x(each.end)) - float(x(each.start)), 2.0)
        parts.append(h("text", shortened(each.label, 16), x="104", y=str(top + 12), text_anchor="end"))
        parts.append(
            h(
                "rect",
                h("title", each.hint),
                x=f"{left:.1f}",
                y=str(top),
                width=f"{wide:.1f}",
                height="16",
                rx="2",
                class_=f"life {each.tone}",
            )
        )
        if each.is_cut:
            parts.append(h("text", "✕", x=f"{left + wide + 3:.1f}", y=str(top + 13), class_="kill"))
    return _figure(parts, "When each process worked on the run", height)


def figure(chart: Markup | None, caption: str, names: Sequence[str] = ()) -> Markup | None:
    """A chart with its legend and caption; None without a chart."""
    if chart is None:
        return None
    return h("figure", join([chart, legend(names)]), h("figcaption", caption), tabindex="0")
