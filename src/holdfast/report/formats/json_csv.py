r"""Writes export lines as JSONL and CSV, and reports as JSON. Columns that every table of samples has.

JSONL holds every text unchanged; the output stream escapes control characters (`cli.streams`). CSV has no escapes, so
control characters are shown as `\u001b`. Spreadsheets execute texts that look like formulas, so a text that begins
with =, +, -, @ (also full-width: Excel accepts those too) or a tab, and is not a number, is prefixed with a quote.
"""

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import IO, Any

import msgspec

from holdfast.printable import clean
from holdfast.report.formats import ExportSource, ReportSource
from holdfast.report.lines import ExportLine
from holdfast.report.questions import as_cell

_PLAIN = ("key", "task", "model", "sample_id", "repeat", "status", "output")
_SPENT = ("attempt", "input_tokens", "output_tokens", "cost_usd", "seconds")
ASKED = ("input", "target", "prompt")
"""What the sample was asked: the last columns of every table, before those of the row."""
_FORMULA = re.compile(r"\A\s*[=+\-@\t＝＋－＠﹦﹢﹣﹫]")  # noqa: RUF001 - other spellings of the same signs
_NUMBER = re.compile(r"\A\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*\Z")


def write_jsonl(lines: Iterable[ExportLine], out: IO[str]) -> None:
    for line in lines:
        out.write(msgspec.json.encode(line).decode() + "\n")


def write_csv(lines: Iterator[ExportLine], out: IO[str], scorers: list[str], columns: Sequence[str] = ()) -> None:
    """One column per scorer, empty where it gave no score. `score_errors` has the messages of failed scorers, `reasons`
    those of the others, `edited` who set which score by hand. `columns`: of the rows.
    """
    writer = csv.writer(out)
    notes = ("score_errors", "reasons", "edited")
    plain = (*_PLAIN, "marks", "anomalies", "error", *_SPENT)
    asked = (*ASKED, *map(row_column, columns))
    taken = {*plain, *notes, *asked}
    titles = [*plain, *(score_column(name, taken) for name in scorers), *notes, *asked]
    writer.writerow(map(escape_formula, titles))
    for line in lines:
        given = line.values
        cells = [
            *(getattr(line, name) for name in _PLAIN),
            " ".join(line.marks),
            listed(line.anomalies),
            "" if line.error is None else f"{line.error.kind}: {line.error.message}",
            *(getattr(line, name) for name in _SPENT),
            *(given.get(name) for name in scorers),
            listed(line.broken),
            listed(line.reasons),
            listed(line.edited),
            *asked_cells(line, columns),
        ]
        writer.writerow(map(escape_formula, cells))


def row_column(name: str) -> str:
    """The column of a table that holds a column of the rows."""
    return f"row.{name}"


def asked_cells(line: ExportLine, columns: Sequence[str]) -> list[Any]:
    """The values of ASKED and of these columns of the row. Lists and objects are JSON."""
    row = line.row or {}
    return [as_cell(value) for value in (line.input, line.target, line.prompt, *map(row.get, columns))]


def export_jsonl(lines: Iterable[ExportLine], out: IO[str], source: ExportSource) -> None:
    """The writer of `export --format jsonl`."""
    write_jsonl(lines, out)


def export_csv(lines: Iterator[ExportLine], out: IO[str], source: ExportSource) -> None:
    """The writer of `export --format csv`."""
    write_csv(lines, out, source.scorers(), source.columns)


def report_json(source: ReportSource, out: IO[str]) -> None:
    """The writer of `report --format json`: one object for one run, else a list."""
    value = source.reports[0] if len(source.reports) == 1 else source.reports
    out.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def score_column(scorer: str, taken: Collection[str]) -> str:
    """The column of a scorer in every table: its name, or `score.<name>` if another column has that name."""
    return f"score.{scorer}" if scorer in taken else scorer


def escape_formula(value: Any) -> Any:
    """Prefix a text that a spreadsheet would run as a formula. Numbers stay, also as text: an answer is often -5."""
    if not isinstance(value, str):
        return value
    text = clean(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.match(text) else text


def listed(texts: dict[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in texts.items())
