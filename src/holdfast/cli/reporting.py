"""`report`: a run's scores on a terminal, in a file, or in the summary of a job."""

import os
from functools import partial

import msgspec

from holdfast.api import Run
from holdfast.cli.finding import run_to_read
from holdfast.cli.output import end_quietly, opened, print_json, print_table, warn
from holdfast.errors import UsageError
from holdfast.report import RunReport
from holdfast.report.junit import write_junit
from holdfast.report.markdown import markdown
from holdfast.report.tables import report_table
from holdfast.spec.explaining import nearest

_FORMATS = {"table", "markdown", "junit", "json"}
_SUMMARY = "GITHUB_STEP_SUMMARY"


class Paper(msgspec.Struct, frozen=True):
    """How a report is wanted."""

    format: str = "table"
    output: str | None = None
    at_least: float | None = None
    github: bool = False
    evaluation: str = ""


def print_report(name: str, store: str | None, paper: Paper) -> None:
    if paper.format not in _FORMATS:
        raise UsageError(f"--format {paper.format}: there is no such report{nearest(paper.format, _FORMATS)}")
    if paper.at_least is not None and paper.format != "junit":
        raise UsageError("--at-least says which test cases fail: it goes with --format junit")
    if paper.format == "table" and paper.output is not None:
        raise UsageError("--output: a table is for a terminal; add --format markdown, junit or json")
    with run_to_read(name, store) as run:
        report = run.report(paper.evaluation)
        _write(run, report, paper)
    if paper.github:
        _append_summary(report)


def _write(run: Run, report: RunReport, paper: Paper) -> None:
    if paper.format == "table":
        print_table(report_table(report, run.place.command))
        return
    if paper.format == "json" and paper.output is None:
        print_json(report)
        return
    with end_quietly(), opened(paper.output) as out:
        if paper.format == "junit":
            lines = partial(run.lines, paper.evaluation)
            write_junit(lines, out, f"{report.experiment}/{report.run_id}", paper.at_least)
        elif paper.format == "markdown":
            out.write(markdown(report))
        else:
            out.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")


def _append_summary(report: RunReport) -> None:
    """Outside a job there is no summary, and the same command is of use there too."""
    path = os.environ.get(_SUMMARY)
    if not path:
        warn(f"--github: {_SUMMARY} is not set, so there is no summary to append to")
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(markdown(report))
    except OSError as error:
        raise UsageError(f"{_SUMMARY}={path}: cannot be written: {error.strerror}") from error
