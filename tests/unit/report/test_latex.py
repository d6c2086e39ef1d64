"""A LaTeX table has the figures of the report, and nothing in a name means anything to LaTeX."""

import re

from holdfast.records.samples import Usage
from holdfast.report import CellReport, RunReport, ScorerReport
from holdfast.report.costs import Cost
from holdfast.report.formats.latex import latex
from holdfast.report.reduction import Reduced
from holdfast.stats import Summary
from tests.unit.report.export_lines import HOSTILE


def cell(task: str, *scorers: ScorerReport, cost: Cost | None = None) -> CellReport:
    return CellReport(task, "model", 4, 3, 1, 0, {"timeout": 1}, Usage(), 0.0, scorers, cost=cost or Cost())


def report(run_id: str, *cells: CellReport) -> RunReport:
    return RunReport(run_id, "exp", "completed", "", "e", cells, {}, Usage(), Usage(), 0)


def mean(low: float | None = 0.25) -> ScorerReport:
    return ScorerReport("exact", Summary(3, 0.5, 0.1, low, 0.75), 0, 0, {}, missing={"failed": 1})


def test_a_table_has_means_with_their_intervals() -> None:
    text = latex([report("r", cell("sums", mean()))])
    assert r"sums & model & exact & $0.5000$ & $[0.2500, 0.7500]$ & 3 & 1 \\" in text.splitlines()
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1


def test_what_is_not_known_is_a_dash_and_labels_are_counted() -> None:
    labels = ScorerReport("tone", Summary(0), 0, 0, {"kind": 2, "a_b": 1}, missing={"failed": 1})
    text = latex([report("r", cell("one", mean(None)), cell("two"), cell("three", labels))])
    assert r"one & model & exact & $0.5000$ & -- & 3 & 1 \\" in text
    assert r"two & model & -- & -- & -- & 3 & 1 \\" in text
    assert r"three & model & tone & kind 2, a\_b 1 & -- & 3 & 1 \\" in text


def test_nothing_in_a_name_means_anything_to_latex() -> None:
    text = latex([report("r_1%", cell(HOSTILE, mean()))])
    row = next(found for found in text.splitlines() if "exact" in found)
    bare = re.sub(r"\\text\w+\{\}|\\[#$%&_{}]", "", row.removesuffix(r" \\").replace("$[", "").replace("]$", ""))
    assert re.findall(r"[#%^_{}~\\<>|\"'`\x00]", bare) == []
    assert bare.count("&") == 6
    assert bare.count("$") == 2
    assert r"r\_1\%" in text


def test_several_runs_are_one_table_with_a_column_for_the_run_and_one_for_cost() -> None:
    text = latex([report("r1", cell("a", mean(), cost=Cost(1.5))), report("r2", cell("a", mean()))])
    assert r"r1 & a & model & exact & $0.5000$ & $[0.2500, 0.7500]$ & 3 & 1 & \$1.50 \\" in text
    assert r"r2 & a & model & exact & $0.5000$ & $[0.2500, 0.7500]$ & 3 & 1 & -- \\" in text
    assert r"\begin{tabular}{llllrrrrr}" in text


def test_what_becomes_of_repeats_has_rows_of_its_own_as_in_the_report() -> None:
    reduced = Reduced("pass@2", Summary(2, 0.75, 0.1, 0.5, 1.0), 0)
    only = ScorerReport("exact", Summary(4, 0.5), 0, 0, {}, reduced=(reduced,), plain=False)
    both = ScorerReport("f1", Summary(4, 0.5), 0, 0, {}, reduced=(reduced,))
    text = latex([report("r", cell("sums", only, both))])
    shown = [row.split(" & ")[2:5] for row in text.splitlines() if row.startswith("sums")]
    interval = "$[0.5000, 1.0000]$"
    assert shown == [
        ["exact pass@2", "$0.7500$", interval],
        ["f1", "$0.5000$", "--"],
        ["f1 pass@2", "$0.7500$", interval],
    ]


def test_only_commands_that_the_default_encoding_has_are_used() -> None:
    text = latex([report("r", cell('a "quoted" name', mean()))])
    assert r"a \textquotedblright{}quoted\textquotedblright{} name" in text
