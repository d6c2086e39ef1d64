"""Verifies derived state: rebuilds the index from the journal and compares it, and the reports, with the cached one.

The rebuilt index is an unlinked temporary file, so a crash leaves nothing. A cached index that differs is removed, and
the next reader rebuilds it. Nothing in the run's folder changes.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.report.rescore import rescore
from holdfast.runs.run import report_of
from holdfast.runs.store.lookup import RunLocation
from holdfast.state import Index

_NAMES = (("task", "model"), ("scorer",), ("reducer",), ("name",))
"""The fields that identify the entries of lists in a report: cells, scorers, reducers, models."""


class ScoresChecked(msgspec.Struct):
    """The output of `verify --scores --json`. A contract: fields are only ever added."""

    records: int = 0
    numbers: int = 0
    """How many numbers of reports were compared, over all evaluations."""
    differences: list[str] = msgspec.field(default_factory=list)
    rescored: dict[str, int] = msgspec.field(default_factory=dict)
    """By scorer: how many recorded scores were recomputed."""
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    """By scorer: why its scores were not recomputed."""
    unchecked: list[str] = msgspec.field(default_factory=list)
    """Always empty: every part of the reports is compared."""


def check_scores(place: RunLocation) -> ScoresChecked:
    """Compare the reports of the cached index with those of a rebuilt index, and recompute scores where possible."""
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


def check_index(place: RunLocation, *, is_wrong: bool = False) -> list[str]:
    """Compare the totals of the cached index with those of a rebuilt one. Returns a sentence if they differ. An index
    that differs, or that the caller knows to be wrong (`is_wrong`), is removed.
    """
    with contextlib.closing(Index(place.folder)) as index:
        with contextlib.closing(Index(place.folder, kept=False, last=index.last_n)) as fresh:
            expected = fresh.totals()
        found = index.totals()
        wrong = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
        if wrong or is_wrong:
            index.remove()
    differences = (f"{name}: {found.get(name)} instead of {expected.get(name)}" for name in wrong)
    return [f"the index was wrong and is rebuilt by the next command: {', '.join(differences)}"] if wrong else []


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
    """The identifying fields of an entry, else its position. Roles are marked: a role may have the name of a model."""
    for fields in _NAMES:
        if isinstance(entry, dict) and all(name in entry for name in fields):
            return "/".join(str(entry[name]) for name in fields) + (" (role)" if entry.get("role") else "")
    return str(at)


def _differences(reported: dict[str, Any], expected: dict[str, Any]) -> Iterator[str]:
    for path in {**expected, **reported}:
        actual, right = reported.get(path), expected.get(path)
        is_close = isinstance(actual, float) and isinstance(right, float) and math.isclose(actual, right, rel_tol=1e-9)
        if actual != right and not is_close:
            yield f"{path}: the report says {_format(actual)}, the journal {_format(right)}"


def _format(value: Any) -> str:
    return "nothing" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
