"""`report`: the scores of runs on a terminal, in a file, as plots, or in the summary of a CI job."""

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import IO

import msgspec

from holdfast.cli.output import (
    end_quietly,
    opened,
    print_json,
    print_line,
    print_table,
    report_written,
    warn,
    write_json,
)
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


class ReportOptions(msgspec.Struct, frozen=True):
    """The format of a report and where it is written."""

    format: str = "table"
    output: str | None = None
    at_least: float | None = None
    github: bool = False
    evaluation: str = ""
    plots: str | None = None
    """The folder for plots; None for no plots."""
    image: str = "png"


def print_report(names: Sequence[str], store: str | None, options: ReportOptions) -> None:
    options = msgspec.structs.replace(options, format=_SHORT.get(options.format, options.format))
    _check(options, len(names))
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(run_to_show(name, store)) for name in names]
        reports = [run.report(options.evaluation) for run in runs]
        _write(runs, reports, options)
        if options.plots is not None:
            _draw(runs, reports, options, options.plots)
    if options.github:
        _append_summary(reports)


def _check(options: ReportOptions, count: int) -> None:
    if options.format not in _FORMATS:
        raise UsageError(f"--format {options.format}: there is no such report{nearest(options.format, _FORMATS)}")
    if options.at_least is not None and options.format != "junit":
        raise UsageError("--at-least decides which test cases fail: it needs --format junit")
    if options.at_least is not None and not math.isfinite(options.at_least):
        raise UsageError(f"--at-least {options.at_least}: must be a finite number, for example 0.5")
    if options.format == "table" and options.output is not None:
        others = "markdown, latex, html, junit or json"
        raise UsageError(f"--output: a table is for a terminal; add --format {others}")
    if options.format == "junit" and count > 1:
        raise UsageError("--format junit takes one run: CI servers read one file per run")
    if options.image not in IMAGES:
        raise UsageError(f"--plot-format {options.image}: plots are {' or '.join(IMAGES)}")


def _write(runs: Sequence[Run], reports: Sequence[RunReport], options: ReportOptions) -> None:
    if options.format == "table":
        for run, report in zip(runs, reports, strict=True):
            print_table(report_table(report, run.place.command))
            if report is not reports[-1]:
                print_line("")
        return
    value = reports[0] if len(reports) == 1 else reports
    if options.format == "json" and options.output is None:
        print_json(value)
        return
    with end_quietly(), opened(options.output, XML_ESCAPES if options.format in ("junit", "html") else "") as out:
        if options.format == "json":
            write_json(value, out)
        elif options.format == "junit":
            name = f"{reports[0].experiment}/{reports[0].run_id}"
            write_junit(partial(runs[0].lines, options.evaluation), out, name, options.at_least)
        elif options.format == "html":
            _write_page(runs, reports, options, out)
        else:
            out.writelines([latex(reports)] if options.format == "latex" else map(markdown, reports))


def _write_page(runs: Sequence[Run], reports: Sequence[RunReport], options: ReportOptions, out: IO[str]) -> None:
    """Write the HTML page; without matplotlib it has no plots."""
    figures: Iterable[Drawn] = ()
    if has_plots():
        figures = _figures(runs, reports, options.evaluation, "svg")
    else:
        warn("the page has no plots; to add them: pip install 'holdfast[plots]'")
    out.writelines(page([run.sheet(options.evaluation) for run in runs], figures))


def _draw(runs: Sequence[Run], reports: Sequence[RunReport], options: ReportOptions, folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
        drawn = False
        for each in _figures(runs, reports, options.evaluation, options.image):
            drawn = True
            path = os.path.join(folder, each.name)
            with open(path, "wb") as file:
                file.write(each.content)
            report_written(path)
    except OSError as error:
        raise error_of_path(error, f"--plots {folder}: cannot be written: {error.strerror}") from error
    if not drawn:
        warn("--plots: no sample has finished, so there is nothing to plot")


def _figures(runs: Sequence[Run], reports: Sequence[RunReport], evaluation: str, image: str) -> Iterable[Drawn]:
    every = [
        (report, counting(run.lines(evaluation), "reading", run.planned_count()))
        for run, report in zip(runs, reports, strict=True)
    ]
    return draw(plotted(every), image)


def _append_summary(reports: Sequence[RunReport]) -> None:
    """Append to the job's summary. Outside a CI job this is only a warning, so that the same command works there."""
    path = os.environ.get(_SUMMARY)
    if not path:
        warn(f"--github: {_SUMMARY} is not set, so there is no summary to append to")
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(map(markdown, reports))
    except OSError as error:
        raise error_of_path(error, f"{_SUMMARY}={path}: cannot be written: {error.strerror}") from error
