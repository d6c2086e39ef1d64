"""A run as JUnit XML for CI servers: one test case per planned key, in plan order, streamed.

A failed sample or a failed scorer is an `error`; a wrong answer is a `failure`; an unfinished key, or one without any
score, is `skipped`, because it has not passed. Invariant: the file is valid XML, whatever an answer contains.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from holdfast.printable import clean
from holdfast.report.formats import ReportSource
from holdfast.report.lines import ExportLine
from holdfast.report.questions import asked_texts
from holdfast.report.selection import is_wrong
from holdfast.report.tables import evaluation_lines, marked_lines, reading_lines
from holdfast.report.text import first_line, shortened
from holdfast.score import as_number

_TEXT_MAX = 20_000
_QUESTION_MAX = 5_000
_NO_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")
_COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}


class CaseResult(NamedTuple):
    """The result of one test case. `kind`: failure, error, skipped, or empty for passed."""

    kind: str = ""
    type: str = ""
    message: str = ""


def write_junit(
    lines: Callable[[], Iterable[ExportLine]],
    out: IO[str],
    name: str,
    at_least: float | None,
    notes: Iterable[str] = (),
    *,
    is_partial: bool = False,
) -> None:
    """`lines` is called twice, because the counts precede the cases. `at_least`, `is_partial`: see `case_result`.
    `notes`: properties of the suite.
    """
    counts: Counter[str] = Counter()
    seconds = 0.0
    for line in lines():
        counts["tests"] += 1
        counts[_COUNTED.get(case_result(line, at_least, is_partial=is_partial).kind, "passed")] += 1
        seconds += line.seconds
    totals = {"name": name, **{each: counts[each] for each in ("tests", *_COUNTED.values())}, "time": f"{seconds:.3f}"}
    out.write('<?xml version="1.0" encoding="UTF-8"?>\n')
    out.write(f"<testsuites {_attributes(**totals)}>\n<testsuite {_attributes(**totals)}>\n")
    properties = [f"<property {_attributes(name='note', value=note)}/>\n" for note in notes]
    if properties:
        out.writelines(["<properties>\n", *properties, "</properties>\n"])
    for line in lines():
        out.writelines(_case(line, case_result(line, at_least, is_partial=is_partial)))
    out.write("</testsuite>\n</testsuites>\n")


def report_junit(source: ReportSource, out: IO[str]) -> None:
    """The writer of `report --format junit`."""
    report = source.reports[0]
    notes = [*evaluation_lines(report), *reading_lines(report.cells), *marked_lines(report.cells)]
    name, is_partial = f"{report.experiment}/{report.run_id}", report.partial is not None
    write_junit(source.lines, out, name, source.at_least, notes, is_partial=is_partial)


def case_result(line: ExportLine, at_least: float | None, *, is_partial: bool = False) -> CaseResult:
    """A score fails if it is below `at_least` or, without it, if it is false or 0. `is_partial`: not every answer was
    to be scored, so one without a score has not passed.
    """
    if line.status == "failed":
        return CaseResult("error", line.error.kind, line.error.message) if line.error else CaseResult("error")
    if line.status != "finished":
        return CaseResult("skipped", message="not finished")
    if line.broken:
        return CaseResult("error", "scorer", "; ".join(f"{name}: {message}" for name, message in line.broken.items()))
    values = {name: value for name, value in line.values.items() if value is not None}
    if at_least is None:
        low = [name for name, value in values.items() if is_wrong({name: value})]
    else:
        numbers = {name: as_number(value) for name, value in values.items()}
        low = [name for name, number in numbers.items() if number is not None and number < at_least]
    if low:
        reasons = {name: f" ({line.reasons[name]})" if line.reasons.get(name) else "" for name in low}
        return CaseResult("failure", "score", ", ".join(f"{name} {values[name]!r}{reasons[name]}" for name in low))
    if line.scores and not values:
        return CaseResult("skipped", message="no score")
    if is_partial and not line.scores:
        return CaseResult("skipped", message="not scored")
    return CaseResult()


def _case(line: ExportLine, found: CaseResult) -> Iterator[str]:
    place = f"{line.task}.{line.model}"
    yield f"<testcase {_attributes(classname=place, name=line.key, time=f'{line.seconds:.3f}')}"
    if not found.kind:
        asked = escape(_clean(shortened("\n".join(_asked(line)), _TEXT_MAX)))
        yield f"><system-out>{asked}</system-out></testcase>\n" if asked else "/>\n"
        return
    message = first_line(found.message, 300)
    named = {"message": message} if found.kind == "skipped" else {"type": found.type, "message": message}
    text = "\n".join(_explain(line, found))
    body = escape(_clean(shortened(text, _TEXT_MAX)))
    yield f"><{found.kind} {_attributes(**named)}>{body}</{found.kind}></testcase>\n"


def _explain(line: ExportLine, found: CaseResult) -> Iterator[str]:
    """What was asked and what came of it."""
    if found.kind == "error":
        yield found.message
    yield from _asked(line)
    if found.kind == "failure":
        yield f"answer: {line.output}"


def _asked(line: ExportLine) -> Iterator[str]:
    return (f"{label}: {shortened(text, _QUESTION_MAX)}" for label, text in asked_texts(line))


def _attributes(**values: object) -> str:
    return " ".join(f"{name}={quoteattr(_clean(str(value)))}" for name, value in values.items())


def _clean(text: str) -> str:
    """With control characters and everything that XML forbids, even escaped, shown as `\\uXXXX`."""
    return _NO_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", clean(text))
