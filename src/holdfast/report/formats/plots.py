"""Plots of runs: scores with intervals, paired differences, cost against score, pass@k, seconds per answer.

matplotlib is imported when a plot is drawn; if it is missing, the error names the package to install. Nothing is shown
on a screen. Invariant: the same numbers give the same bytes, and no part of a name is read as mathematics.
"""

import contextlib
import importlib
import io
import math
import os
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from holdfast.errors import UsageError
from holdfast.report.cells import RunReport
from holdfast.report.compare.comparison import Comparison, compare_sides
from holdfast.report.compare.sides import SideAnswers, pairs_between, pairs_within, sides_of
from holdfast.report.examples import Curve, Latency, latency_of, pass_curve
from holdfast.report.lines import ExportLine
from holdfast.report.text import counted, describe_methods, first_line, shortened
from holdfast.spec import Reduction
from holdfast.stats import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Point(msgspec.Struct, frozen=True):
    """One scorer over one cell, and the cost of one answer."""

    label: str
    scorer: str
    summary: Summary
    dollars: float | None


class PlotData(msgspec.Struct, frozen=True):
    """Everything that can be drawn for some runs."""

    points: tuple[Point, ...]
    comparisons: tuple[Comparison, ...]
    curves: tuple[Curve, ...]
    latencies: tuple[Latency, ...]

    @property
    def scorers(self) -> list[str]:
        return list(dict.fromkeys(each.scorer for each in self.points))


def collect_plot_data(runs: Sequence[tuple[RunReport, Iterable[ExportLine]]]) -> PlotData:
    """With several runs, the first is compared with each other; with one, its models and variants are compared."""
    points: list[Point] = []
    curves: list[Curve] = []
    latencies: list[Latency] = []
    sides: list[dict[tuple[str, str], SideAnswers]] = []
    for report, lines in runs:
        prefix = f"{report.run_id} " if len(runs) > 1 else ""
        for cell in report.cells:
            paid = cell.cost.dollars is not None and not cell.cost.unpriced and cell.finished
            dollars = (cell.cost.dollars or 0.0) / cell.finished if paid else None
            label = f"{prefix}{cell.task} / {cell.model}"
            points += [
                Point(f"{label}{_left_out(each.missing)}", each.scorer, each.summary, dollars) for each in cell.scorers
            ]
        seconds: dict[tuple[str, str], array[float]] = {}
        scales = {cell.task: {each.scorer: each.scale for each in cell.scorers} for cell in report.cells}
        wrong: dict[str, list[str]] = {}
        for cell in report.cells:
            names = [each.scorer for each in cell.scorers if each.wrong is not None and "failed" in each.wrong.counts]
            wrong.setdefault(cell.task, []).extend(names)
        rules = {task: ((Reduction(),), by_scorer.get, wrong[task] or None) for task, by_scorer in scales.items()}
        answers = sides_of(report.run_id, _watched(lines, seconds), rules)
        for name, taken in seconds.items():
            latencies.append(latency_of(f"{prefix}{' / '.join(name)}", taken))
        for name, each in answers.items():
            curves += _curves(f"{prefix}{' / '.join(name)}", each)
        sides.append(answers)
    pairs = [pair for other in sides[1:] for pair in pairs_between(sides[0], other)]
    if len(sides) == 1:
        pairs = list(pairs_within(sides[0]))
    comparisons = tuple(each for first, second in pairs for each in compare_sides(first, second))
    return PlotData(tuple(points), comparisons, tuple(curves), tuple(latencies))


def _left_out(*missing: Mapping[str, int]) -> str:
    count = sum(sum(each.values()) for each in missing)
    return f" ({count} left out)" if count else ""


def _watched(lines: Iterable[ExportLine], seconds: "dict[tuple[str, str], array[float]]") -> Iterator[ExportLine]:
    """The same lines without outputs, which no plot needs; collects the seconds on the way."""
    for line in lines:
        if line.status == "finished":
            seconds.setdefault((line.task, line.model), array("d")).append(line.seconds)
        yield msgspec.structs.replace(line, output=None)


def _curves(label: str, answers: SideAnswers) -> Iterator[Curve]:
    """For right-or-wrong scorers, if every scored sample has several repeats."""
    for measure in answers.measures().values():
        samples: dict[str, list[float]] = {}
        for (sample, _), number in (measure.numbers() or {}).items():
            samples.setdefault(sample, []).append(number)
        values = pass_curve(list(samples.values()))
        if values:
            yield Curve(label, measure.scorer, values)


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
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8b4513")
"""Distinguishable with red-green colour blindness."""
_SHAPES = "os^DvP*X"


class Plot(msgspec.Struct, frozen=True):
    """A plot as the bytes of a file. `name`: a safe file name. `title`: what it shows."""

    name: str
    title: str
    content: bytes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the image to a file."""
        with open(path, "wb") as file:
            file.write(self.content)

    def __repr__(self) -> str:
        return f"<Plot {self.name}: {self.title}>"

    def _repr_svg_(self) -> str | None:
        return self.content.decode() if self.name.endswith(".svg") else None

    def _repr_png_(self) -> bytes | None:
        return self.content if self.name.endswith(".png") else None


PLOT_KINDS = ("scores", "cost", "differences", "pass-at-k", "seconds")


class PlannedPlot(msgspec.Struct, frozen=True):
    """A plot that has data. `scorer` is empty for a plot of all scorers."""

    kind: str
    scorer: str
    what: str
    make: "Callable[[], Figure]"
    note: str = ""
    """How its numbers were computed, in small letters below."""

    def draw(self, image: str = "png") -> Plot:
        return _drawn(self, image)


def draw(data: PlotData, image: str = "png") -> Iterator[Plot]:
    """Every plot that has data, one at a time."""
    return (each.draw(image) for each in planned_plots(data))


def planned_plots(data: PlotData) -> Iterator[PlannedPlot]:
    for scorer in data.scorers:
        points = [each for each in data.points if each.scorer == scorer and each.summary.mean is not None]
        if points:
            method = _method(each.summary for each in points)
            what = "scores, with 95% intervals" if method else "scores, without intervals"
            yield PlannedPlot("scores", scorer, what, partial(_scores, points), method)
        priced = [each for each in points if each.dollars is not None]
        if priced:
            method = _method(each.summary for each in priced)
            yield PlannedPlot("cost", scorer, "cost against score", partial(_costs, priced), method)
        differences = [each for each in data.comparisons if each.scorer == scorer and each.difference is not None]
        if differences:
            method = _method(each.difference for each in differences if each.difference is not None)
            make = partial(_differences, differences)
            yield PlannedPlot("differences", scorer, "paired differences", make, method)
        curves = [each for each in data.curves if each.scorer == scorer]
        if curves:
            note = "mean over the samples with a score of at least two repeats"
            yield PlannedPlot("pass-at-k", scorer, "pass@k", partial(_pass_curves, curves), note)
    if data.latencies:
        yield PlannedPlot("seconds", "", "seconds of an answer", partial(_latencies, data.latencies))


def _method(summaries: Iterable[Summary]) -> str:
    found = describe_methods(summaries)
    return f"95% intervals: {found}" if found else ""


def _drawn(planned: PlannedPlot, image: str) -> Plot:
    kind, scorer, note = planned.kind, planned.scorer, planned.note
    title = f"{_name(scorer)}: {planned.what}" if scorer else planned.what
    with _quietly() as matplotlib, matplotlib.rc_context(_SETTINGS):
        figure = planned.make()
        figure.suptitle(title, fontsize=12, parse_math=False)
        if note:
            figure.supxlabel(note, fontsize=7, x=0.01, ha="left")
        out = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if image == "svg" else {"Software": None}
        figure.savefig(out, format=image, dpi=_DPI, metadata=metadata)
    name = f"{kind}-{quote(scorer, safe=' ')}" if scorer else kind
    return Plot(f"{shortened(name, 100)}.{image}", title, out.getvalue())


@contextlib.contextmanager
def _quietly() -> Iterator[Any]:
    """matplotlib without warnings about letters that the font lacks: they appear as boxes."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError as error:
        raise UsageError("plots need one more package: pip install 'holdfast[plots]'") from error
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield matplotlib


def _figure(height: float) -> "tuple[Figure, Axes]":
    """Without pyplot, which would keep every figure in memory and look for a screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height))
    return figure, figure.subplots()


def _rows_figure(names: Sequence[str], what: str) -> "tuple[Figure, Axes]":
    """A figure with one row per name, the first on top."""
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
    _intervals(axes, [each.summary for each in points])
    if _are_shares(points):
        axes.set_xlim(-0.02, 1.02)
    return figure


def _differences(found: Sequence[Comparison]) -> "Figure":
    labels = []
    for each in found:
        task = each.first.task if each.first.task == each.second.task else each.first.family
        left = _left_out(each.missing_first, each.missing_second)
        labels.append(f"{task}: {each.second.label(each.first)} - {each.first.label(each.second)}{left}")
    figure, axes = _rows_figure(labels, "second minus first, on the keys that both have")
    axes.axvline(0, color="#666666", linewidth=1)
    _intervals(axes, [each.difference for each in found if each.difference is not None])
    low, high = axes.get_xlim()
    reach = max(abs(low), abs(high), 0.01)
    axes.set_xlim(-reach, reach)
    return figure


def _costs(points: Sequence[Point]) -> "Figure":
    """Points beyond the legend's room are grey and have no intervals."""
    figure, axes = _legend_figure(len(points))
    for number, each in reversed(list(enumerate(points))):
        mean, dollars = each.summary.mean or 0.0, 1_000 * (each.dollars or 0.0)
        low, high = _ends(each.summary)
        ends = [[mean - low], [high - mean]] if number < _LEGEND_MAX else None
        axes.errorbar([dollars], [mean], yerr=ends, linestyle="", capsize=3, **_look(number, each.label))
    prices = [each.dollars for each in points if each.dollars]
    if len(prices) == len(points) and max(prices) > 20 * min(prices):
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    if _are_shares(points):
        axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("dollars for 1,000 answers")
    axes.set_ylabel("mean")
    _legend(figure, axes, len(points))
    return figure


def _pass_curves(curves: Sequence[Curve]) -> "Figure":
    figure, axes = _legend_figure(len(curves))
    for number, each in reversed(list(enumerate(curves))):
        axes.plot(range(1, len(each.values) + 1), each.values, **_look(number, each.label))
    longest = max(len(each.values) for each in curves)
    axes.set_xticks(range(1, longest + 1, max(1, math.ceil(longest / 16))))
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("k, answers to each sample")
    axes.set_ylabel("chance that one of k is right")
    _legend(figure, axes, len(curves))
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


def _intervals(axes: "Axes", summaries: Sequence[Summary]) -> None:
    """Draw one interval per row."""
    shown = summaries[:_ROWS_MAX]
    means = [each.mean or 0.0 for each in shown]
    ends = [_ends(each) for each in shown]
    below = [mean - low for mean, (low, _) in zip(means, ends, strict=True)]
    above = [high - mean for mean, (_, high) in zip(means, ends, strict=True)]
    axes.errorbar(means, range(len(shown)), xerr=[below, above], fmt="o", color=_COLOURS[0], capsize=3)


def _ends(summary: Summary) -> tuple[float, float]:
    """The ends of the interval, or the mean itself without one."""
    mean = summary.mean or 0.0
    if summary.low is None or summary.high is None:
        return mean, mean
    return min(summary.low, mean), max(summary.high, mean)


def _are_shares(points: Sequence[Point]) -> bool:
    return all(0 <= value <= 1 for each in points for value in _ends(each.summary))


def _legend_figure(count: int) -> "tuple[Figure, Axes]":
    """A figure with room for a legend below."""
    figure, axes = _figure(4.5 + 0.25 * math.ceil(min(count, _LEGEND_MAX + 1) / 2))
    axes.grid(color="#dddddd", linewidth=0.8)
    return figure, axes


def _look(number: int, label: str) -> dict[str, Any]:
    if number >= _LEGEND_MAX:
        return {"marker": ".", "color": "#bbbbbb"}
    shape = _SHAPES[number // len(_COLOURS) % len(_SHAPES)]
    return {"marker": shape, "color": _COLOURS[number % len(_COLOURS)], "label": _name(label)}


def _legend(figure: "Figure", axes: "Axes", count: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    title = f"grey: {count - _LEGEND_MAX} more" if count > _LEGEND_MAX else None
    legend = figure.legend(handles[::-1], labels[::-1], title=title, loc="outside lower center", ncols=2, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _name(text: str) -> str:
    """The beginning and end of a long name: variants differ at the end."""
    line = first_line(text, 10_000)
    if len(line) <= _NAME_MAX:
        return line
    half = _NAME_MAX // 2
    return f"{line[:half]}…{line[1 - half :]}"
