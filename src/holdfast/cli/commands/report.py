"""`report`: the scores of runs on a terminal, in a file, as plots, or in the summary of a CI job."""

import contextlib
import os
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.cli.output import end_quietly, opened, print_line, print_table, report_written, warn
from holdfast.cli.progress import counting
from holdfast.cli.streams import JSON_ESCAPES, XML_ESCAPES
from holdfast.cli.targets import run_to_show
from holdfast.errors import UsageError, error_of_path
from holdfast.report import (
    IMAGES,
    OutputFormat,
    Plot,
    RunReport,
    collect_plot_data,
    draw,
    formats_of,
    markdown,
    report_table,
)
from holdfast.runs import ReportChoice, Run, report_format, report_source

_ESCAPES = {"": "", "json": JSON_ESCAPES, "xml": XML_ESCAPES}
_SUMMARY = "GITHUB_STEP_SUMMARY"


class ReportOptions(msgspec.Struct, frozen=True):
    """The format of a report and where it is written."""

    format: str = ""
    """Empty: that of the file's suffix, else a table."""
    output: str | None = None
    at_least: float | None = None
    github: bool = False
    evaluation: str = ""
    plots: str | None = None
    """The folder for plots; None for no plots."""
    image: str = "png"
    all_columns: bool = False
    include_restricted: bool = False
    """Whether files have the text of tasks with `share: no-text`."""
    columns: tuple[str, ...] = ()
    """Columns of the data rows beside each question; see `parse_columns`."""

    @property
    def choice(self) -> ReportChoice:
        return ReportChoice(self.evaluation, self.at_least, self.columns, self.all_columns)


def print_report(names: Sequence[str], store: str | None, options: ReportOptions) -> None:
    format = _check(options, len(names))
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(run_to_show(name, store)) for name in names]
        is_published = bool(format.writer) or options.github  # not a table on a terminal
        for run in runs:
            run.is_published = is_published and not options.include_restricted
        reports = [run.report(options.evaluation) for run in runs]
        _write(runs, reports, options, format)
        if options.plots is not None:
            _draw(runs, reports, options, options.plots)
    summary = os.environ.get(_SUMMARY)
    if options.github and not summary:  # no error, so that the same command works outside a CI job
        warn(f"--github: {_SUMMARY} is not set, so there is no summary to append to")
    elif options.github and summary:
        try:
            with open(summary, "a", encoding="utf-8") as file:
                file.writelines(map(markdown, reports))
        except OSError as error:
            raise error_of_path(error, f"{_SUMMARY}={summary}: cannot be written: {error.strerror}") from error


def _check(options: ReportOptions, count: int) -> OutputFormat:
    format = report_format(options.format, options.output, options.choice)
    if not format.writer and options.output is not None:
        *names, last = (each.name for each in formats_of("report").values() if each.writer)
        others = f"{', '.join(names)} or {last}"
        raise UsageError(f"--output: a table is for a terminal; add --format {others}")
    if format.single_run and count > 1:
        raise UsageError(f"--format {format.name} takes one run: CI servers read one file per run")
    if options.image not in IMAGES:
        raise UsageError(f"--plot-format {options.image}: plots are {' or '.join(IMAGES)}")
    return format


def _write(runs: Sequence[Run], reports: Sequence[RunReport], options: ReportOptions, format: OutputFormat) -> None:
    if not format.writer:
        for run, report in zip(runs, reports, strict=True):
            print_table(report_table(report, run.place.command, all_columns=options.all_columns))
            if report is not reports[-1]:
                print_line("")
        return
    source = report_source(runs, reports, options.choice)
    with end_quietly(), opened(options.output, _ESCAPES[format.escapes]) as out:
        format.load()(source, out)


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


def _figures(runs: Sequence[Run], reports: Sequence[RunReport], evaluation: str, image: str) -> Iterable[Plot]:
    every = [
        (report, counting(run.lines(evaluation, asked=False), "reading", run.planned_count()))
        for run, report in zip(runs, reports, strict=True)
    ]
    return draw(collect_plot_data(every), image)
