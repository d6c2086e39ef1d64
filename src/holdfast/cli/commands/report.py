"""`report`: the scores of runs on a terminal, in a file, in figures, or in the summary of a job."""

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import IO

import msgspec

from holdfast.cli.output import end_quietly, opened, print_json, print_table, say, tell_written, warn, write_json
from holdfast.cli.progress import counting
from holdfast.cli.run_argument import run_to_show
from holdfast.cli.streams import XML_ESCAPES
from holdfast.errors import UsageError, error_of_path
from holdfast.report import RunReport
from holdfast.report.formats.html import page
from holdfast.report.formats.junit import write_junit
from holdfast.report.formats.latex import latex
from holdfast.report.formats.markdown import markdown
from holdfast.report.formats.plots import IMAGES, Drawn, draw, has_plots, plotted
from holdfast.report.tables import report_table
from holdfast.runs import Run
from holdfast.spec.source.messages import nearest

_FORMATS = {"table", "markdown", "latex", "html", "junit", "json"}
_SHORT = {"md": "markdown", "tex": "latex"}
_SUMMARY = "GITHUB_STEP_SUMMARY"


class Paper(msgspec.Struct, frozen=True):
    """How a report is wanted."""

    format: str = "table"
    output: str | None = None
    at_least: float | None = None
    github: bool = False
    evaluation: str = ""
    plots: str | None = None
    """A folder to draw figures in."""
    image: str = "png"


def print_report(names: Sequence[str], store: str | None, paper: Paper) -> None:
    paper = msgspec.structs.replace(paper, format=_SHORT.get(paper.format, paper.format))
    _check(paper, len(names))
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(run_to_show(name, store)) for name in names]
        reports = [run.report(paper.evaluation) for run in runs]
        _write(runs, reports, paper)
        if paper.plots is not None:
            _draw(runs, reports, paper, paper.plots)
    if paper.github:
        _append_summary(reports)


def _check(paper: Paper, count: int) -> None:
    if paper.format not in _FORMATS:
        raise UsageError(f"--format {paper.format}: there is no such report{nearest(paper.format, _FORMATS)}")
    if paper.at_least is not None and paper.format != "junit":
        raise UsageError("--at-least says which test cases fail: it goes with --format junit")
    if paper.at_least is not None and not math.isfinite(paper.at_least):
        raise UsageError(f"--at-least {paper.at_least}: a finite number, for example 0.5")
    if paper.format == "table" and paper.output is not None:
        others = "markdown, latex, html, junit or json"
        raise UsageError(f"--output: a table is for a terminal; add --format {others}")
    if paper.format == "junit" and count > 1:
        raise UsageError("--format junit takes one run: a server reads one file for each")
    if paper.image not in IMAGES:
        raise UsageError(f"--plot-format {paper.image}: figures are {' or '.join(IMAGES)}")


def _write(runs: Sequence[Run], reports: Sequence[RunReport], paper: Paper) -> None:
    if paper.format == "table":
        for run, report in zip(runs, reports, strict=True):
            print_table(report_table(report, run.place.command))
            if report is not reports[-1]:
                say("")
        return
    told = reports[0] if len(reports) == 1 else reports
    if paper.format == "json" and paper.output is None:
        print_json(told)
        return
    with end_quietly(), opened(paper.output, XML_ESCAPES if paper.format in ("junit", "html") else "") as out:
        if paper.format == "json":
            write_json(told, out)
        elif paper.format == "junit":
            name = f"{reports[0].experiment}/{reports[0].run_id}"
            write_junit(partial(runs[0].lines, paper.evaluation), out, name, paper.at_least)
        elif paper.format == "html":
            _write_page(runs, reports, paper, out)
        else:
            out.writelines([latex(reports)] if paper.format == "latex" else map(markdown, reports))


def _write_page(runs: Sequence[Run], reports: Sequence[RunReport], paper: Paper, out: IO[str]) -> None:
    """Without matplotlib the page has everything but its figures."""
    figures: Iterable[Drawn] = ()
    if has_plots():
        figures = _figures(runs, reports, paper.evaluation, "svg")
    else:
        warn("the page has no figures: they need one more package: pip install 'holdfast[plots]'")
    out.writelines(page([run.sheet(paper.evaluation) for run in runs], figures))


def _draw(runs: Sequence[Run], reports: Sequence[RunReport], paper: Paper, folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
        drawn = False
        for each in _figures(runs, reports, paper.evaluation, paper.image):
            drawn = True
            path = os.path.join(folder, each.name)
            with open(path, "wb") as file:
                file.write(each.content)
            tell_written(path)
    except OSError as error:
        raise error_of_path(error, f"--plots {folder}: cannot be written: {error.strerror}") from error
    if not drawn:
        warn("--plots: nothing is finished yet, so there is nothing to draw")


def _figures(runs: Sequence[Run], reports: Sequence[RunReport], evaluation: str, image: str) -> Iterable[Drawn]:
    every = [
        (report, counting(run.lines(evaluation), "reading", run.planned_count()))
        for run, report in zip(runs, reports, strict=True)
    ]
    return draw(plotted(every), image)


def _append_summary(reports: Sequence[RunReport]) -> None:
    """Outside a job there is no summary, and the same command is of use there too."""
    path = os.environ.get(_SUMMARY)
    if not path:
        warn(f"--github: {_SUMMARY} is not set, so there is no summary to append to")
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(map(markdown, reports))
    except OSError as error:
        raise error_of_path(error, f"{_SUMMARY}={path}: cannot be written: {error.strerror}") from error
