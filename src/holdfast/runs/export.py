"""Writes the lines of a run to a file, all of them or a selection; and reports of runs, in the format of their file."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from holdfast.errors import DamagedError, UsageError, error_of_path, storage_errors
from holdfast.printable import CleanStream
from holdfast.records import MARKS
from holdfast.report import (
    ComparisonResult,
    ExportLine,
    ExportSource,
    KeyFilter,
    OutputFormat,
    ReportSource,
    RunReport,
    choose,
    find_format,
    formats_of,
)
from holdfast.runs.compare.comparison import ShownQuestions, comparison_of
from holdfast.runs.run import Run
from holdfast.runs.store.lookup import RunLocation
from holdfast.score import KINDS
from holdfast.spec import nearest


class Export(msgspec.Struct, frozen=True):
    """What to write. Empty `format`: that of the file's suffix. `events`: also the steps of each key."""

    output: str
    format: str = ""
    events: bool = False
    evaluation: str = ""
    chosen: KeyFilter = KeyFilter()
    columns: tuple[str, ...] = ()
    """Columns of the data rows; see `parse_columns`."""


def write_export(run: Run, export: Export) -> None:
    """Write the file. Raises UsageError for a format, a selection or a path that is not possible."""
    format = _format_of(export)
    if export.events and not format.has_events:
        raise UsageError(f"the format {format.name} cannot hold events; leave out events, or use jsonl")
    lines, source = lines_to_export(run, export)
    if not format.is_text:
        format.load()(lines, export.output, source)
        return
    try:
        file = open(export.output, "w", encoding="utf-8", newline="")  # noqa: SIM115 - closed below
    except OSError as error:
        raise error_of_path(error, f"{export.output} cannot be written: {error.strerror}") from error
    with storage_errors(export.output), file:
        format.load()(lines, CleanStream(file), source)


def lines_to_export(
    run: Run, export: Export, count: Callable[[Iterator[ExportLine]], Iterator[ExportLine]] = iter
) -> tuple[Iterator[ExportLine], ExportSource]:
    """The chosen lines, and what their writer may need besides. `count` passes all lines on, and may show progress."""
    columns = run.row_columns(export.columns)
    lines = select_lines(run, count(run.lines(export.evaluation, export.columns)), export.chosen)
    if export.events:
        lines = run.events(lines)
    scorers, kinds = partial(run.scorers, export.evaluation), partial(run.score_kinds, export.evaluation)
    return lines, ExportSource(scorers, kinds, columns, partial(run.column_kinds, columns))


def _format_of(export: Export) -> OutputFormat:
    known = formats_of("export")
    suffix = os.path.splitext(export.output)[1]
    if not export.format:
        found = next((each for each in known.values() if each.suffix == suffix), None)
        if found is None:
            raise UsageError(f"{export.output}: name the format, for example format='jsonl': {', '.join(known)}")
        return found
    found = find_format("export", export.format)
    if found is None:
        raise UsageError(f"format {export.format}: there is no such export{nearest(export.format, set(known))}")
    return found


def select_lines(run: Run, lines: Iterator[ExportLine], chosen: KeyFilter) -> Iterator[ExportLine]:
    """Filter lines. Raises UsageError for a task, model or kind of failure that the run does not have."""
    cells = list(run.cells()) if chosen.tasks or chosen.models or chosen.kinds else []
    for name in chosen.anomalies:
        if name not in (*KINDS, *MARKS):
            raise UsageError(f"--anomaly {name}: there is no such kind{nearest(name, {*KINDS, *MARKS})}")
    for option, names, known in (
        ("--task", chosen.tasks, {cell.task for cell in cells}),
        ("--model", chosen.models, {cell.model for cell in cells}),
        ("--kind", chosen.kinds, {kind for cell in cells for kind in cell.failures}),
    ):
        for name in names:
            if name not in known:
                hint = nearest(name, known) if known else "; no sample failed"
                raise UsageError(f"{option} {name}: {run.place.run_id} has none{hint}")
    try:
        return choose(lines, chosen)
    except ValueError as error:
        raise UsageError(f"--grep: {error}") from error


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
