"""Output formats: one table, FORMATS, of everything that `export --format` and `report --format` can write.

To add a format, write one module with a writer function and add one line to FORMATS; the command line reads the table.
A writer is named as `module:function` and imported on use, so that `holdfast show` does not import matplotlib or
pyarrow.

- An export writer is `(lines, target, source: ExportSource)`: it writes export lines to a text stream or, if the format
  is not text, to the path `target`.
- A report writer is `(source: ReportSource, out)`: it writes the reports of runs to a text stream.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from holdfast.report.cells import RunReport
    from holdfast.report.compare.results import ComparisonResult
    from holdfast.report.formats.run_page import RunPage
    from holdfast.report.lines import ExportLine

Kind = Literal["export", "report"]


class OutputFormat(msgspec.Struct, frozen=True):
    """One format. `escapes`: how it writes characters that the terminal's encoding lacks; empty if it cannot."""

    name: str
    kind: Kind
    suffix: str
    writer: str
    """`module:function`, relative to this package; empty for the terminal's own table."""
    escapes: Literal["", "json", "xml"] = ""
    extra: str = ""
    """The extra of Holdfast that the writer needs: `pip install 'holdfast[extra]'`."""
    is_text: bool = True
    """False: the writer needs the path of a file."""
    has_events: bool = False
    """Whether export lines may have events."""
    single_run: bool = False
    has_questions: bool = False
    """Whether a report shows what samples were asked, and with it columns of their rows."""
    alias: str = ""

    def load(self) -> Callable[..., None]:
        """Import the writer."""
        module, _, function = self.writer.partition(":")
        writer: Callable[..., None] = getattr(importlib.import_module(f"{__name__}.{module}"), function)
        return writer


class ExportSource(msgspec.Struct, frozen=True):
    """What an export writer may need besides the lines. What is called reads much, so call it only if needed."""

    scorers: Callable[[], list[str]]
    score_kinds: Callable[[], Mapping[str, str]]
    columns: Sequence[str] = ()
    """The chosen columns of the rows."""
    column_kinds: Callable[[], Mapping[str, str]] = dict
    """See `report.questions.column_kinds`."""


class ReportSource(msgspec.Struct, frozen=True):
    """The runs that a report writer shows."""

    reports: "Sequence[RunReport]"
    lines: "Callable[[], Iterable[ExportLine]]"
    """The export lines of the first run."""
    pages: "Callable[[], Sequence[RunPage]]"
    comparison: "Callable[[], ComparisonResult | None]"
    """Between the models of one run, or between several runs; None if there is nothing to compare."""
    at_least: float | None = None
    """The lowest passing score, for formats with test cases."""
    all_columns: bool = False
    """Whether Markdown has the mean of each stratum of macro means."""


FORMATS = (
    OutputFormat("jsonl", "export", ".jsonl", "json_csv:export_jsonl", "json", has_events=True),
    OutputFormat("csv", "export", ".csv", "json_csv:export_csv"),
    OutputFormat("parquet", "export", ".parquet", "parquet:export_parquet", extra="parquet", is_text=False),
    OutputFormat("table", "report", "", ""),
    OutputFormat("markdown", "report", ".md", "markdown:report_markdown", alias="md"),
    OutputFormat("latex", "report", ".tex", "latex:report_latex", alias="tex"),
    OutputFormat("html", "report", ".html", "html:report_html", "xml", has_questions=True),
    OutputFormat("junit", "report", ".xml", "junit:report_junit", "xml", single_run=True, has_questions=True),
    OutputFormat("json", "report", ".json", "json_csv:report_json", "json"),
)


def formats_of(kind: Kind) -> dict[str, OutputFormat]:
    """The formats of a command by name, without aliases."""
    return {each.name: each for each in FORMATS if each.kind == kind}


def find_format(kind: Kind, name: str) -> OutputFormat | None:
    """The format with this name or alias."""
    return next((each for each in FORMATS if each.kind == kind and name in (each.name, each.alias)), None)


__all__ = ["FORMATS", "ExportSource", "OutputFormat", "ReportSource", "find_format", "formats_of"]
