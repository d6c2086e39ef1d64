"""Figures of runs: scores with intervals, paired differences, cost against score, pass@k, seconds of an answer.

Drawn by matplotlib, which is brought in when a figure is drawn; if it is missing, says how to install it. Nothing is
shown on a screen. Invariant: the same numbers give the same bytes, and nothing in a name is taken for mathematics.
"""

import contextlib
import importlib
import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from holdfast.errors import UsageError
from holdfast.report.comparing import Comparison
from holdfast.report.plotted import Curve, Latency, Plotted, Point
from holdfast.report.wording import counted, first_line, shortened
from holdfast.stats import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IMAGES = ("png", "svg")
_ROWS_MAX = 150
_NAME_MAX = 48
_LEGEND_MAX = 20
_WIDTH = 8.0
_DPI = 150
_SETTINGS = {
    "svg.hashsalt": "holdfast",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
}
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""That people who see red and green alike can tell apart."""
_SHAPES = "os^DvP*X"


class Drawn(msgspec.Struct, frozen=True):
    """A figure, as the bytes of a file. `name` can be one of a file; `title` says what it shows."""

    name: str
    title: str
    content: bytes


def has_plots() -> bool:
    """Whether figures can be drawn here."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        return False
    return True


def draw(plotted: Plotted, image: str = "png") -> Iterator[Drawn]:
    """Every figure that there are numbers for, one at a time."""
    for scorer in plotted.scorers:
        points = [each for each in plotted.points if each.scorer == scorer and each.summary.mean is not None]
        if points:
            yield _drawn("scores", scorer, "scores, with 95% intervals", image, partial(_scores, points))
        priced = [each for each in points if each.dollars is not None]
        if priced:
            yield _drawn("cost", scorer, "cost against score", image, partial(_costs, priced))
        differences = [each for each in plotted.comparisons if each.scorer == scorer and each.difference is not None]
        if differences:
            yield _drawn("differences", scorer, "paired differences", image, partial(_differences, differences))
        curves = [each for each in plotted.curves if each.scorer == scorer]
        if curves:
            yield _drawn("pass-at-k", scorer, "pass@k", image, partial(_curves, curves))
    if plotted.latencies:
        yield _drawn("seconds", "", "seconds of an answer", image, partial(_latencies, plotted.latencies))


def _drawn(kind: str, scorer: str, what: str, image: str, make: "Callable[[], Figure]") -> Drawn:
    title = f"{_name(scorer)}: {what}" if scorer else what
    with _quietly() as matplotlib, matplotlib.rc_context(_SETTINGS):
        figure = make()
        figure.suptitle(title, fontsize=12, parse_math=False)
        out = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if image == "svg" else {"Software": None}
        figure.savefig(out, format=image, dpi=_DPI, metadata=metadata)
    name = f"{kind}-{quote(scorer, safe=' ')}" if scorer else kind
    return Drawn(f"{shortened(name, 100)}.{image}", title, out.getvalue())


@contextlib.contextmanager
def _quietly() -> Iterator[Any]:
    """A name may have letters that the font does not: they are shown as boxes, and that is all."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError as error:
        raise UsageError("plots need one more package: pip install 'holdfast[plots]'") from error
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield matplotlib


def _figure(height: float) -> "tuple[Figure, Axes]":
    """Without pyplot, which would keep it, and would look for a screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height))
    return figure, figure.subplots()


def _rows_figure(names: Sequence[str], what: str) -> "tuple[Figure, Axes]":
    """One row for each name, the first on top."""
    shown = names[:_ROWS_MAX]
    figure, axes = _figure(1.3 + 0.3 * max(len(shown), 2))
    axes.set_yticks(range(len(shown)), labels=[_name(name) for name in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    left = len(names) - len(shown)
    axes.set_xlabel(f"{what} ({counted(left, 'more row')} not shown)" if left else what)
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    return figure, axes


def _scores(points: Sequence[Point]) -> "Figure":
    figure, axes = _rows_figure([each.label for each in points], "mean")
    for row, each in enumerate(points[:_ROWS_MAX]):
        _interval(axes, row, each.summary)
    if all(0 <= value <= 1 for each in points for value in _ends(each.summary)):
        axes.set_xlim(-0.02, 1.02)
    return figure


def _differences(found: Sequence[Comparison]) -> "Figure":
    figure, axes = _rows_figure([_told(each) for each in found], "second minus first, on the keys that both have")
    axes.axvline(0, color="#666666", linewidth=1)
    for row, each in enumerate(found[:_ROWS_MAX]):
        if each.difference is not None:
            _interval(axes, row, each.difference)
    low, high = axes.get_xlim()
    reach = max(abs(low), abs(high), 0.01)
    axes.set_xlim(-reach, reach)
    return figure


def _costs(points: Sequence[Point]) -> "Figure":
    figure, axes = _figure(5.0)
    for number, each in enumerate(points):
        mean, dollars = each.summary.mean or 0.0, 1_000 * (each.dollars or 0.0)
        low, high = _ends(each.summary)
        axes.errorbar(
            [dollars],
            [mean],
            yerr=[[mean - low], [high - mean]],
            fmt=_SHAPES[number // len(_COLOURS) % len(_SHAPES)],
            color=_COLOURS[number % len(_COLOURS)],
            capsize=3,
            label=_name(each.label) if number < _LEGEND_MAX else "_more",
        )
    prices = [each.dollars for each in points if each.dollars]
    if len(prices) == len(points) and max(prices) > 20 * min(prices):
        axes.set_xscale("log")
    axes.set_xlabel("dollars for 1,000 answers")
    axes.set_ylabel("mean")
    axes.grid(color="#dddddd", linewidth=0.8)
    _legend(axes, len(points))
    return figure


def _curves(curves: Sequence[Curve]) -> "Figure":
    figure, axes = _figure(5.0)
    for number, each in enumerate(curves):
        axes.plot(
            range(1, len(each.values) + 1),
            each.values,
            marker=_SHAPES[number // len(_COLOURS) % len(_SHAPES)],
            color=_COLOURS[number % len(_COLOURS)],
            label=_name(each.label) if number < _LEGEND_MAX else "_more",
        )
    longest = max(len(each.values) for each in curves)
    axes.set_xticks(range(1, longest + 1, max(1, math.ceil(longest / 16))))
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("k, answers to each sample")
    axes.set_ylabel("chance that one of k is right")
    axes.grid(color="#dddddd", linewidth=0.8)
    _legend(axes, len(curves))
    return figure


def _latencies(latencies: Sequence[Latency]) -> "Figure":
    figure, axes = _rows_figure([each.label for each in latencies], "seconds: middle half, 5% to 95%, x at 99%")
    boxes = [
        {"q1": each.p25, "med": each.p50, "q3": each.p75, "whislo": each.p5, "whishi": each.p95, "fliers": [each.p99]}
        for each in latencies[:_ROWS_MAX]
    ]
    axes.bxp(
        boxes,
        positions=range(len(boxes)),
        orientation="horizontal",
        widths=0.5,
        manage_ticks=False,
        flierprops={"marker": "x"},
        medianprops={"color": _COLOURS[1]},
    )
    slowest, quickest = max(each.p99 for each in latencies), min(each.p5 for each in latencies)
    if quickest > 0 and slowest > 50 * quickest:
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    return figure


def _interval(axes: "Axes", row: int, summary: Summary) -> None:
    mean = summary.mean or 0.0
    low, high = _ends(summary)
    axes.errorbar([mean], [row], xerr=[[mean - low], [high - mean]], fmt="o", color=_COLOURS[0], capsize=3)


def _ends(summary: Summary) -> tuple[float, float]:
    """Of the interval, or the mean itself where none is known."""
    mean = summary.mean or 0.0
    if summary.low is None or summary.high is None:
        return mean, mean
    return min(summary.low, mean), max(summary.high, mean)


def _legend(axes: "Axes", count: int) -> None:
    title = f"and {count - _LEGEND_MAX} more" if count > _LEGEND_MAX else None
    legend = axes.legend(title=title, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _told(each: Comparison) -> str:
    task = each.first.task if each.first.task == each.second.task else each.first.family
    return f"{task}: {each.second.label(each.first)} - {each.first.label(each.second)}"


def _name(text: str) -> str:
    """Of a long name the beginning and the end: variants differ at the end."""
    line = first_line(text, 10_000)
    if len(line) <= _NAME_MAX:
        return line
    half = _NAME_MAX // 2
    return f"{line[:half]}…{line[1 - half :]}"
