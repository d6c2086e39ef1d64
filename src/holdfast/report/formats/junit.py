"""A run as JUnit XML, which every CI server shows: one test case for each planned key, in plan order, streamed.

A failed sample, and a scorer that broke, is an `error`; a wrong answer is a `failure`; a key that is not finished, or
of which no scorer said anything, is `skipped`: it has not passed. Invariant: the file parses, whatever an answer holds.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from holdfast.printable import clean
from holdfast.report.formats.lines import ExportLine
from holdfast.report.selection import is_wrong
from holdfast.report.text import first_line, shortened
from holdfast.score import as_number

_TEXT_MAX = 20_000
_NO_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")
_COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}


class Verdict(NamedTuple):
    """What a test case says of a key: `kind` is failure, error, skipped, or empty if it has passed."""

    kind: str = ""
    type: str = ""
    message: str = ""


def write_junit(lines: Callable[[], Iterable[ExportLine]], out: IO[str], name: str, at_least: float | None) -> None:
    """`lines` is read twice: the counts stand before the cases. `at_least`: see `verdict`."""
    counts: Counter[str] = Counter()
    seconds = 0.0
    for line in lines():
        counts["tests"] += 1
        counts[_COUNTED.get(verdict(line, at_least).kind, "passed")] += 1
        seconds += line.seconds
    told = {"name": name, **{each: counts[each] for each in ("tests", *_COUNTED.values())}, "time": f"{seconds:.3f}"}
    out.write('<?xml version="1.0" encoding="UTF-8"?>\n')
    out.write(f"<testsuites {_attributes(**told)}>\n<testsuite {_attributes(**told)}>\n")
    for line in lines():
        out.writelines(_case(line, verdict(line, at_least)))
    out.write("</testsuite>\n</testsuites>\n")


def _because(line: ExportLine, name: str) -> str:
    return f" ({line.reasons[name]})" if line.reasons.get(name) else ""


def verdict(line: ExportLine, at_least: float | None) -> Verdict:
    """A score is too low if it is below `at_least`; without one, if it is false or 0."""
    if line.status == "failed":
        return Verdict("error", line.error.kind, line.error.message) if line.error else Verdict("error")
    if line.status != "finished":
        return Verdict("skipped", message="not finished")
    if line.broken:
        return Verdict("error", "scorer", "; ".join(f"{name}: {message}" for name, message in line.broken.items()))
    values = {name: value for name, value in line.values.items() if value is not None}
    low = [name for name, value in values.items() if _is_low(value, at_least)]
    if low:
        told = (f"{name} {values[name]!r}{_because(line, name)}" for name in low)
        return Verdict("failure", "score", ", ".join(told))
    if line.scores and not values:
        return Verdict("skipped", message="no score")
    return Verdict()


def _is_low(value: object, at_least: float | None) -> bool:
    if at_least is None:
        return is_wrong({"": value})
    number = as_number(value)
    return number is not None and number < at_least


def _case(line: ExportLine, found: Verdict) -> Iterator[str]:
    place = f"{line.task}.{line.model}"
    yield f"<testcase {_attributes(classname=place, name=line.key, time=f'{line.seconds:.3f}')}"
    if not found.kind:
        yield "/>\n"
        return
    message = first_line(found.message, 300)
    named = {"message": message} if found.kind == "skipped" else {"type": found.type, "message": message}
    text = found.message if found.kind == "error" else f"answer: {line.output}" if found.kind == "failure" else ""
    body = escape(_clean(shortened(text, _TEXT_MAX)))
    yield f"><{found.kind} {_attributes(**named)}>{body}</{found.kind}></testcase>\n"


def _attributes(**values: object) -> str:
    return " ".join(f"{name}={quoteattr(_clean(str(value)))}" for name, value in values.items())


def _clean(text: str) -> str:
    """With control characters shown, and all else that no XML document may hold, not even escaped."""
    return _NO_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", clean(text))
