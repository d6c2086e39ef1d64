"""Which of a run's keys a person wants to see: failed, wrong, of a kind, a task or a model, or with a text in them."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.report.export import ExportLine
from holdfast.score import as_number


class Wanted(msgspec.Struct, frozen=True):
    """Every condition that is set must hold."""

    failed: bool = False
    wrong: bool = False
    kinds: tuple[str, ...] = ()
    grep: str = ""
    status: str = ""
    tasks: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    anomalies: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Wanted()


def choose(lines: Iterable[ExportLine], wanted: Wanted) -> Iterator[ExportLine]:
    """ValueError if the pattern to look for is none."""
    try:
        pattern = re.compile(wanted.grep, re.IGNORECASE | re.MULTILINE) if wanted.grep else None
    except re.error as error:
        raise ValueError(f"{wanted.grep!r} is not a pattern: {error}") from error
    return _chosen(lines, wanted, pattern)


def _chosen(lines: Iterable[ExportLine], wanted: Wanted, pattern: "re.Pattern[str] | None") -> Iterator[ExportLine]:
    for line in lines:
        kind = line.error.kind if line.error else ""
        if (
            (not wanted.failed or line.status == "failed")
            and (not wanted.status or line.status == wanted.status)
            and (not wanted.kinds or kind in wanted.kinds)
            and (not wanted.wrong or is_wrong(line.scores))
            and (not wanted.tasks or line.task in wanted.tasks)
            and (not wanted.models or line.model in wanted.models)
            and (not wanted.anomalies or any(each in (*line.marks, *line.anomalies) for each in wanted.anomalies))
            and (pattern is None or pattern.search(_text(line)))
        ):
            yield line


def is_wrong(scores: dict[str, Any]) -> bool:
    """A score is false or zero. A missing score is not wrong: nobody has said so."""
    return any(as_number(value) == 0 for value in scores.values())


def _text(line: ExportLine) -> str:
    told = line.error.message if line.error else ""
    return f"{line.key}\n{line.output or ''}\n{told}"
