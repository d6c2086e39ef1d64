"""Whether what reports say follows from the journal: derived state is rebuilt from it and compared with the cached one.

The rebuilt index is a private file without a name. A cached index that differs is removed, and the next reader
rebuilds it. Nothing in the run's folder changes.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.report.rescore import rescore
from holdfast.runs.run import report_of
from holdfast.runs.store.lookup import RunPlace
from holdfast.state import Index

_NAMES = (("task", "model"), ("scorer",), ("reducer",), ("name",))
"""The fields that tell the entries of a list in a report apart: cells, scorers, reducers, models."""


class ScoresChecked(msgspec.Struct):
    """What `verify --scores --json` says: a contract, fields are only ever added."""

    records: int = 0
    numbers: int = 0
    """Of all reports, one for each evaluation, that were compared."""
    differences: list[str] = msgspec.field(default_factory=list)
    rescored: dict[str, int] = msgspec.field(default_factory=dict)
    """By scorer: how many recorded scores were computed again."""
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    """By scorer: why its scores were not computed again."""
    unchecked: list[str] = msgspec.field(default_factory=list)
    """Always empty: every part of the reports is compared."""


def check_scores(place: RunPlace) -> ScoresChecked:
    """Compare every report of the cached index with that of an index rebuilt from the journal; rescore the answers."""
    found = ScoresChecked()
    with (
        contextlib.closing(Index(place.folder)) as cached,
        contextlib.closing(Index(place.folder, kept=False, last=cached.last_n)) as rebuilt,
    ):
        found.records = rebuilt.last_n
        evaluations = [*rebuilt.story.evaluations] or [""]
        for evaluation in evaluations:
            where = f"evaluation {evaluation}: " if len(evaluations) > 1 else ""
            reported, expected = (dict(_values(report_of(place, each, evaluation))) for each in (cached, rebuilt))
            again = asyncio.run(rescore(rebuilt, evaluation))
            found.differences += [f"{where}{each}" for each in (*_differences(reported, expected), *again.differences)]
            found.numbers += sum(type(value) in (int, float) for value in expected.values())
            for name, count in again.again.items():
                found.rescored[name] = found.rescored.get(name, 0) + count
            found.skipped |= again.skipped
    return found


def check_index(place: RunPlace, *, is_wrong: bool = False) -> list[str]:
    """Compare the totals of the index with those of the journal, read from its beginning. A sentence for each
    difference; an index that has any, or of which it is known (`is_wrong`), is removed.
    """
    with contextlib.closing(Index(place.folder)) as index:
        with contextlib.closing(Index(place.folder, kept=False, last=index.last_n)) as fresh:
            expected = fresh.totals()
        found = index.totals()
        wrong = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
        if wrong or is_wrong:
            index.remove()
    told = (f"{name}: {found.get(name)} instead of {expected.get(name)}" for name in wrong)
    return [f"the index was wrong and is rebuilt by the next command: {', '.join(told)}"] if wrong else []


def _values(report: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """Every value of a report with its path, as in `cells[sums/gpt-x].scorers[numeric].summary.mean`."""
    todo: list[tuple[str, Any]] = [("", msgspec.to_builtins(report))]
    while todo:
        path, value = todo.pop()
        if isinstance(value, dict):
            todo += [(f"{path}.{name}" if path else name, each) for name, each in reversed(value.items())]
        elif isinstance(value, list | tuple):
            todo += [(f"{path}[{_name_of(each, at)}]", each) for at, each in reversed([*enumerate(value)])]
        else:
            yield path, value


def _name_of(entry: Any, at: int) -> str:
    """A role may be called like a model."""
    for fields in _NAMES:
        if isinstance(entry, dict) and all(name in entry for name in fields):
            return "/".join(str(entry[name]) for name in fields) + (" (role)" if entry.get("role") else "")
    return str(at)


def _differences(reported: dict[str, Any], expected: dict[str, Any]) -> Iterator[str]:
    for path in {**expected, **reported}:
        told, right = reported.get(path), expected.get(path)
        is_close = isinstance(told, float) and isinstance(right, float) and math.isclose(told, right, rel_tol=1e-9)
        if told != right and not is_close:
            yield f"{path}: the report says {_shown(told)}, the journal {_shown(right)}"


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
