"""Figures show what they should, whatever the names are, and are the same bytes every time."""

import re
import sys
from xml.etree import ElementTree

import pytest

from holdfast.errors import UsageError
from holdfast.records.samples import Usage
from holdfast.report import CellReport, ExportLine, RunReport, ScorerReport
from holdfast.report.costs import Cost
from holdfast.report.examples import Curve, Latency
from holdfast.report.formats.plots import PlotData, Point, collect_plot_data, draw
from holdfast.stats import Summary
from tests.unit.report.export_lines import HOSTILE, line

LATENCY = Latency("task / model", 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


def point(label: str = "task / model", dollars: float | None = 0.01) -> Point:
    return Point(label, "exact", Summary(10, 0.5, 0.1, 0.25, 0.75), dollars)


def everything(label: str = "task / model") -> PlotData:
    return PlotData((point(label), point("other")), (), (Curve(label, "exact", (0.5, 0.75)),), (LATENCY,))


def texts(svg: bytes) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_there_is_a_figure_for_each_thing_that_there_are_numbers_for() -> None:
    found = {each.name: each.content for each in draw(everything(), "png")}
    assert list(found) == ["scores-exact.png", "cost-exact.png", "pass-at-k-exact.png", "seconds.png"]
    assert all(content.startswith(b"\x89PNG") for content in found.values())


def test_without_numbers_there_is_no_figure() -> None:
    empty = Point("task / model", "labels", Summary(0), None)
    assert list(draw(PlotData((empty,), (), (), ()))) == []


def test_figures_are_the_same_bytes_every_time_and_have_no_date() -> None:
    first, second = (list(draw(everything(), "svg")) for _ in range(2))
    assert first == second
    assert not any(re.search(rb"<dc:date>|matplotlib v", each.content, re.IGNORECASE) for each in first)
    assert list(draw(everything(), "png")) == list(draw(everything(), "png"))


@pytest.mark.parametrize("name", ["$x_1^2$ and $\\frac{", HOSTILE, "模型 🦀", "-" * 300])
def test_names_are_shown_as_they_are_and_never_taken_for_mathematics(name: str) -> None:
    for each in draw(everything(name), "svg"):
        assert ElementTree.fromstring(each.content).tag.endswith("svg")
    shown = texts(next(draw(everything("a $b$ <c>"), "svg")).content)
    assert "a $b$ <c>" in shown


def test_of_a_long_name_both_ends_are_shown() -> None:
    name = f"beginning-{'x' * 100}-end"
    shown = [text for text in texts(next(draw(everything(name), "svg")).content) if "beginning" in text]
    assert len(shown) == 1
    assert shown[0].endswith("-end")
    assert len(shown[0]) <= 48


def test_of_very_many_rows_it_is_told_how_many_are_not_shown() -> None:
    many = PlotData(tuple(point(f"cell {i}", None) for i in range(152)), (), (), ())
    shown = texts(next(draw(many, "svg")).content)
    assert "mean (2 more rows not shown)" in shown
    assert ("cell 149" in shown, "cell 150" in shown) == (True, False)


def test_a_name_of_a_file_is_one() -> None:
    odd = Point("t / m", "../a/b", Summary(10, 0.5, 0.1, 0.25, 0.75), None)
    (found,) = draw(PlotData((odd,), (), (), ()))
    assert found.name == "scores-..%2Fa%2Fb.png"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'holdfast\[plots\]'"):
        next(draw(everything()))


def report(run_id: str, *models: str, cost: Cost | None = None) -> RunReport:
    scorer = ScorerReport("exact", Summary(4, 0.5, 0.1, 0.25, 0.75), 0, 0, {})
    cells = tuple(
        CellReport("task", each, 4, 4, 0, 0, {}, Usage(), 0.0, (scorer,), cost=cost or Cost()) for each in models
    )
    return RunReport(run_id, "exp", "completed", "", "e", cells, {}, Usage(), Usage(), 0)


def answers(model: str, right: list[list[bool]]) -> list[ExportLine]:
    return [
        line(sample, model=model, repeat=repeat, scores={"exact": value}, seconds=float(repeat))
        for sample, values in enumerate(right)
        for repeat, value in enumerate(values, 1)
    ]


def test_pass_at_k_is_the_mean_over_samples_of_the_chance_that_one_of_k_is_right() -> None:
    found = collect_plot_data([(report("r", "m"), answers("m", [[True, False], [False, False]]))])
    assert [each.values for each in found.curves] == [(0.25, 0.5)]
    assert [each.label for each in found.latencies] == ["task / m"]
    assert found.latencies[0].p50 == 1.5


def test_without_repeats_or_with_marks_between_right_and_wrong_there_is_no_curve() -> None:
    once = collect_plot_data([(report("r", "m"), answers("m", [[True], [False]]))])
    graded = [line(0, repeat=repeat, scores={"exact": 0.5}) for repeat in (1, 2)]
    assert once.curves == collect_plot_data([(report("r", "m"), graded)]).curves == ()


def test_models_of_one_run_are_compared_and_so_are_runs() -> None:
    first, second = answers("a", [[True], [False]]), answers("b", [[True], [True]])
    within = collect_plot_data([(report("r", "a", "b"), [*first, *second])])
    assert [(each.first.model, each.second.model) for each in within.comparisons] == [("a", "b")]
    between = collect_plot_data([(report("r1", "a"), first), (report("r2", "b"), second)])
    (found,) = between.comparisons
    assert found.difference is not None
    assert (found.first.run, found.second.run, found.difference.mean) == ("r1", "r2", 0.5)
    assert [each.label for each in between.points] == ["r1 task / a", "r2 task / b"]
    assert [each.name for each in draw(between)][1:] == ["differences-exact.png", "seconds.png"]


def test_cost_is_for_each_answer_and_only_where_all_of_it_is_known() -> None:
    known = collect_plot_data([(report("r", "m", cost=Cost(2.0)), [])])
    partly = collect_plot_data([(report("r", "m", cost=Cost(2.0, unpriced=("judge",))), [])])
    assert [each.dollars for each in (*known.points, *partly.points)] == [0.5, None]
