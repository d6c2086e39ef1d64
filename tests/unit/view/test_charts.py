"""Charts: everything that is drawn is inside them, texts of runs are texts, and nothing is drawn without values."""

import re

import pytest

from holdfast.view.charts import (
    ScatterPoint,
    Span,
    TrendPoint,
    figure,
    histogram_chart,
    legend,
    life_chart,
    load_chart,
    scatter_chart,
    trend_chart,
)

HOSTILE = "</svg><script>alert(1)</script>"
NUMBERS = re.compile(r' (?:x|y|x1|x2|y1|y2|cx|cy|width|height)="([^"]*)"')


def numbers(chart: str) -> list[float]:
    return [float(text) for text in NUMBERS.findall(chart)]


def charts() -> list[str]:
    point = TrendPoint(0, 0.5, 0.4, 0.6, HOSTILE)
    return [
        str(trend_chart([(HOSTILE, [point, TrendPoint(1, 0.9, None, None, "x")])], [HOSTILE, "b"])),
        str(scatter_chart([ScatterPoint(HOSTILE, 0.1, 0.5, 0.4, 0.6), ScatterPoint("b", 90.0, 0.7, None, None)])),
        str(histogram_chart([(HOSTILE, [(0.1, 3), (0.5, 1)], [("p50", 0.1)])])),
        str(load_chart([1.0, None, 3.5], 0.5)),
        str(life_chart([Span(HOSTILE, 0.0, 5.0, "killed", HOSTILE, is_cut=True), Span("b", 9.0, 9.0, "ended", "")])),
    ]


def test_the_edge_cuts_no_digit_off() -> None:
    chart = str(
        scatter_chart([ScatterPoint("a", 0.012, 0.1, None, None), ScatterPoint("b", 0.0143125, 0.2, None, None)])
    )
    labels = re.findall(r'<text x="([0-9.]+)" y="[0-9.]+" text-anchor="middle" class="axis">([^<]+)<', chart)
    assert labels[-1][1] == "$0.015"
    assert float(labels[-1][0]) + len("$0.015") * 7 / 2 <= 760  # the digits of a font of 12 pixels take about 7


def test_hostile_names_are_texts() -> None:
    for chart in charts():
        assert "<script" not in chart
        assert chart.count("</svg>") == 1


def test_everything_is_inside_the_chart() -> None:
    for chart in charts():
        view = re.search(r'viewBox="0 0 (\d+) (\d+)"', chart)
        assert view is not None
        assert numbers(chart)
        assert all(-1 <= each <= max(int(view[1]), int(view[2])) + 1 for each in numbers(chart)), chart


def test_nothing_is_drawn_without_values() -> None:
    assert trend_chart([("a", [])], ["x"]) is None
    assert scatter_chart([ScatterPoint("a", 1.0, 0.5, None, None)]) is None
    assert histogram_chart([("a", [(0.0, 3)], [])]) is None
    assert load_chart([None, None], 1.0) is None
    assert life_chart([]) is None
    assert figure(None, "caption") is None
    assert legend(["one"]) is None


@pytest.mark.parametrize(("end", "unit"), [(0.4, "ms"), (59.0, "s"), (130.4, "min"), (4000.0, "h"), (9e6, "h")])
def test_an_axis_of_times_has_one_unit(end: float, unit: str) -> None:
    chart = str(life_chart([Span("a", 0.0, end, "ended", "")]))
    ticks = re.findall(r'class="axis"[^>]*>([^<]*)<|>([^<]*)</text>', chart)
    texts = [text for pair in ticks for text in pair if re.fullmatch(r"[\d.]+ \w+", text)]
    assert len(texts) == 4
    assert {text.split()[1] for text in texts} == {unit}


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-9, 123456.0, -3.0])
def test_equal_values_have_an_axis(value: float) -> None:
    points = [TrendPoint(0, value, value, value, ""), TrendPoint(1, value, value, value, "")]
    chart = str(trend_chart([("m", points)], ["a", "b"]))
    assert all(abs(each) < 10_000 for each in numbers(chart))
    cost = abs(value)
    assert scatter_chart([ScatterPoint("a", cost, 0.5, None, None), ScatterPoint("b", cost, 0.5, None, None)])


def test_a_share_never_goes_beyond_its_ends() -> None:
    chart = str(trend_chart([("m", [TrendPoint(0, 0.0, 0.0, 0.2, ""), TrendPoint(1, 1.0, 0.9, 1.0, "")])], ["a", "b"]))
    shown = [float(text) for text in re.findall(r'class="axis">([0-9.]+)<', chart)]
    assert (min(shown), max(shown)) == (0.0, 1.0)
