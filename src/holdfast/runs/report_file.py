"""Writes the reports of runs to files: the source of each format, and the format of a file."""

import math
import os
from collections.abc import Sequence
from functools import partial

import msgspec

from holdfast.errors import DamagedError, UsageError, error_of_path, storage_errors
from holdfast.printable import CleanStream
from holdfast.report import ComparisonResult, OutputFormat, ReportSource, RunReport, find_format, formats_of
from holdfast.runs.compare.comparison import ShownQuestions, comparison_of
from holdfast.runs.run import Run
from holdfast.runs.store.lookup import RunLocation
from holdfast.spec import nearest


class ReportChoice(msgspec.Struct, frozen=True):
    """What a report shows."""

    evaluation: str = ""
    at_least: float | None = None
    """The lowest passing score, for JUnit."""
    columns: tuple[str, ...] = ()
    """Columns of the data rows, beside each question; see `parse_columns`."""
    all_columns: bool = False
    """Whether Markdown has the means of strata too."""


def report_format(name: str, output: str | None, choice: ReportChoice) -> OutputFormat:
    """The format that a user names, else that of the file's suffix, else a table. UsageError if there is none, or if it
    cannot show what is chosen.
    """
    known = formats_of("report")
    if not name and output is not None:
        suffix = os.path.splitext(output)[1]
        found = next((each for each in known.values() if suffix and each.suffix == suffix), None)
        if found is None:
            written = [f"{each.name} ({each.suffix})" for each in known.values() if each.writer]
            raise UsageError(f"{output}: name the format with --format: {', '.join(written)}")
    else:
        found = find_format("report", name or "table")
    if found is None:
        raise UsageError(f"--format {name}: there is no such report{nearest(name, set(known))}")
    if choice.at_least is not None and found.name != "junit":
        raise UsageError("--at-least decides which test cases fail: it needs --format junit")
    if choice.at_least is not None and not math.isfinite(choice.at_least):
        raise UsageError(f"--at-least {choice.at_least}: must be a finite number, for example 0.5")
    if choice.columns and not found.has_questions:
        shown = " or ".join(each.name for each in known.values() if each.has_questions)
        raise UsageError(f"--columns is for reports with questions: add --format {shown}")
    return found


def report_source(runs: Sequence[Run], reports: Sequence[RunReport], choice: ReportChoice) -> ReportSource:
    """What the writer of a format needs. UsageError for a column that no row has."""
    for run in runs:
        run.row_columns(choice.columns)
    return ReportSource(
        reports,
        partial(runs[0].lines, choice.evaluation, choice.columns),
        lambda: [run.sheet(choice.evaluation, choice.columns) for run in runs],
        lambda: _compared(runs, choice.evaluation),
        choice.at_least,
        choice.all_columns,
    )


def _compared(runs: Sequence[Run], evaluation: str) -> ComparisonResult | None:
    """For an HTML page. None if there is nothing to compare, or if a run is damaged, which the page says."""
    try:
        return comparison_of(runs, None, evaluation, questions=ShownQuestions(0))
    except (UsageError, DamagedError):
        return None


def save_report(
    place: RunLocation, path: str, format: str, choice: ReportChoice, *, include_restricted: bool = False
) -> None:
    """Write the report of one run to a file."""
    found = report_format(format, path, choice)
    if not found.writer:
        written = ", ".join(each.name for each in formats_of("report").values() if each.writer)
        raise UsageError(f"--format {found.name} is for a terminal; choose one of {written}")
    with Run(place) as run:
        run.is_published = not include_restricted
        source = report_source([run], [run.report(choice.evaluation)], choice)
        try:
            file = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115 - closed below
        except OSError as error:
            raise error_of_path(error, f"{path} cannot be written: {error.strerror}") from error
        with storage_errors(path), file:
            found.load()(source, CleanStream(file))
