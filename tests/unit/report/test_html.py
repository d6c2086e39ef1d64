"""A page asks for nothing, runs nothing, and shows the figures of the report."""

import re
from html.parser import HTMLParser

import msgspec

from holdfast.records.samples import Usage
from holdfast.report import CellReport, Example, RunReport, ScorerReport
from holdfast.report.cells import Agreement
from holdfast.report.costs import Cost, CostLine
from holdfast.report.formats.html import RunOrigin, RunPage, html_page
from holdfast.report.formats.plots import PlotData, Point, draw
from holdfast.report.reduction import Reduced
from holdfast.stats import Summary
from tests.unit.report.export_lines import HOSTILE


class Seen(HTMLParser):
    """The tags of a page, with what they name, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def sheet() -> RunPage:
    scorer = ScorerReport(HOSTILE, Summary(3, 0.5, 0.125, 0.25, 0.75), 0, 1, {}, Example(HOSTILE, HOSTILE))
    cost = Cost(1.5, 0.25)
    names = (HOSTILE, HOSTILE)
    cell = CellReport(
        *names, 4, 3, 1, 0, {HOSTILE: 1}, Usage(), 0.0, (scorer,), {HOSTILE: Example(HOSTILE, HOSTILE)}, cost=cost
    )
    report = RunReport(HOSTILE, "exp", "completed", HOSTILE, "e", (cell,), {}, Usage(), Usage(), 2, cost=cost)
    line = CostLine(*names, "", 4, Usage(10, 20), Usage(), Usage(), Usage(), cost, 3)
    return RunPage(report, (line,), RunOrigin((("git", HOSTILE),), HOSTILE))


def made() -> str:
    point = Point(HOSTILE, "f1", Summary(3, 0.5, 0.125, 0.25, 0.75), 0.5)
    return "".join(html_page([sheet()], draw(PlotData((point,), (), (), ()), "svg")))


def test_nothing_in_a_name_or_an_answer_is_markup() -> None:
    text = made()
    seen = Seen(text)
    assert not {"script", "img", "iframe", "link", "object", "embed", "base", "form"} & set(seen.tags)
    assert [name for name, _ in seen.attributes if name.startswith("on")] == []
    assert "onerror=" in seen.text  # shown as it is
    assert "\x00" not in text


def test_a_page_names_nothing_that_a_browser_would_fetch() -> None:
    seen = Seen(made())
    fetched = [value for name, value in seen.attributes if name in {"src", "href", "xlink:href", "action", "data"}]
    assert [value for value in fetched if not value.startswith("#")] == []
    policy = [value for name, value in seen.attributes if name == "content" and "default-src" in value]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert re.findall(r"url\((?!#)|@import", made()) == []


def test_a_page_has_figures_failures_cost_and_origin() -> None:
    seen = Seen(made())
    assert seen.tags.count("svg") == 2
    for each in ("0.5000", "0.2500 .. 0.7500", "$1.50", "$0.5000", "replay saved $0.2500", "2 anomalies", "The spec"):
        assert each in seen.text, each


def test_a_page_says_what_a_reader_of_its_numbers_must_know() -> None:
    """Whose hand is in them, what was left out of them, how far judges agree, and what is odd about the answers."""
    reduced = Reduced("pass@2", Summary(1, 1.0), 2)
    scorer = ScorerReport("exact", Summary(3, 0.5), 0, 0, {}, reduced=(reduced,), edited=1)
    agreed = Agreement("rubric", ("a", "b"), 3, 1.0, 0.5, 0.25)
    cell = CellReport("t", "m", 3, 3, 0, 0, {}, Usage(), 0.0, (scorer,), agreement=(agreed,))
    odd = {"loop": Example("t/m/s/1", HOSTILE)}
    cell = msgspec.structs.replace(cell, anomalies={"loop": 2}, odd=odd)
    report = RunReport("r", "e", "completed", "", "", (cell,), {}, Usage(), Usage(), 0, unlooked=4)
    text = "".join(html_page([RunPage(report, (), RunOrigin(()))], ()))
    for told in (
        "1 score edited by hand",
        "2 samples without a value",
        "kappa (unweighted) 0.2500",
        "loop in 2 answers",
        "4 answers",
    ):
        assert told in text, told
    assert "<img" not in text


def test_a_page_of_runs_without_scores_has_no_figures() -> None:
    cell = CellReport("t", "m", 1, 0, 0, 1, {}, Usage(), 0.0, ())
    report = RunReport("r", "e", "interrupted", "killed", "", (cell,), {}, Usage(), Usage(), 0)
    text = "".join(html_page([RunPage(report, (), RunOrigin(()))], ()))
    assert "Figures" not in text
    assert "interrupted" in text
