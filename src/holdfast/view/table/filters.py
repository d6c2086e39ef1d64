"""Conditions on samples, as the address of a page gives them, and the SQL for them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import UsageError
from holdfast.records import Cell, middle_of
from holdfast.spec import nearest
from holdfast.view.table.upkeep import Across
from holdfast.view.table.writer import FLAGS, LONG_EQUAL, STATUSES

COLUMN_PREFIX = "row."
SCORE_PREFIX = "score:"
SORTS = {
    "seconds": "seconds",
    "tokens": "tokens",
    "output_tokens": "output",
    "cost": "dollars",
    "attempts": "attempts",
    "status": "status",
    "kind": "kind",
}
"""Names of columns to sort by, with the column of the table. Besides these, `score:NAME`."""
SCORES = ("right", "wrong", "failed", "none")
"""What a score can be asked to be, besides a range: 1, 0, a failure of the scorer, or no score."""
_RANGES = {"seconds": "seconds", "tokens": "tokens", "cost": "dollars"}
_NEVER = "samples.o < 0"
"""No sample. Not a constant: SQLite would remove it, and with it the use of an index that the query names."""
_OF_SCORES = ("score", "label", "score_min", "score_max")
"""Conditions that need the name of a scorer."""
_TEXTS = ("q", "status", "task", "model", "kind", "cause", "anomaly", "scorer", "score", "label")


FILTERS = (
    *_TEXTS,
    "wrong",
    *(f"{name}_{end}" for name in (*_RANGES, "score") for end in ("min", "max")),
    "column",
    "value",
    COLUMN_PREFIX,
)
"""Every name that `parse_filter` reads."""


class SampleFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every condition that is set must hold."""

    q: str = ""
    status: str = ""
    task: str = ""
    model: str = ""
    kind: str = ""
    """Of a failure."""
    cause: str = ""
    """The number of a cause (see `writer.cause_id`), in hexadecimal: of the sample's failure or, with `score=failed`,
    of the scorer's.
    """
    anomaly: str = ""
    """A mark or an anomaly."""
    scorer: str = ""
    score: str = ""
    label: str = ""
    wrong: bool = False
    """A score is false or zero."""
    ranges: dict[str, tuple[float | None, float | None]] = {}
    """The least and the greatest value, both included: of seconds, tokens, cost and score."""
    row: dict[str, str] = {}
    """Values of columns of the row."""

    @property
    def is_of_scorer(self) -> bool:
        """Whether `cause` is that of a scorer's failure."""
        return bool(self.cause) and self.score == "failed"

    @property
    def name(self) -> bytes:
        """Equal for equal filters."""
        return msgspec.json.encode(self, order="sorted")

    def query(self) -> dict[str, str]:
        """The filter as the query of an address."""
        found = {name: getattr(self, name) for name in _TEXTS} | {"wrong": "1" if self.wrong else ""}
        for name, ends in self.ranges.items():
            for end, value in zip(("min", "max"), ends, strict=True):
                found[f"{name}_{end}"] = "" if value is None else f"{value:.15g}"
        found |= {f"{COLUMN_PREFIX}{name}": value for name, value in self.row.items()}
        return {name: value for name, value in found.items() if value}


def without_scores(query: Mapping[str, str]) -> dict[str, str]:
    """A query without conditions on a score whose scorer it does not name."""
    return {name: value for name, value in query.items() if query.get("scorer") or name not in _OF_SCORES}


def parse_filter(query: Mapping[str, str]) -> SampleFilter:
    """The filter of an address. UsageError if a value cannot be understood."""
    for name, value in query.items():
        _check_text(name, value)
    texts = {name: query[name] for name in _TEXTS if query.get(name)}
    _check("status", texts.get("status", ""), STATUSES)
    _check("score", texts.get("score", ""), SCORES)
    _check("anomaly", texts.get("anomaly", ""), tuple(FLAGS))
    cause = texts.get("cause", "")
    if cause and (len(cause) > 12 or not all(sign in "0123456789abcdef" for sign in cause)):
        raise UsageError(f"cause: {cause[:40]!r} is not the number of a cause")
    ranges = {}
    for name in (*_RANGES, "score"):
        ends = (_number(query, f"{name}_min"), _number(query, f"{name}_max"))
        if ends != (None, None):
            ranges[name] = ends
    row = {
        name.removeprefix(COLUMN_PREFIX): value
        for name, value in query.items()
        if name.startswith(COLUMN_PREFIX) and len(name) > len(COLUMN_PREFIX) and value
    }
    if query.get("column") and query.get("value"):  # the fields of a form that works without scripts
        row[query["column"].removeprefix(COLUMN_PREFIX)] = query["value"]
    if (texts.keys() & {"score", "label"} or "score" in ranges) and "scorer" not in texts:
        raise UsageError("a score needs the name of its scorer: add scorer=NAME")
    wrong = query.get("wrong", "") not in ("", "0")
    if wrong and "scorer" in texts and "score" not in texts:
        texts["score"], wrong = "wrong", False
    return SampleFilter(**texts, wrong=wrong, ranges=ranges, row=row)


def _check_text(name: str, value: str) -> None:
    """No sample has a text that cannot be encoded, and a database refuses it."""
    try:
        f"{name}{value}".encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{ascii(name)[1:-1]}: {value[:40]!a} is not Unicode text") from error


def _check(name: str, value: str, known: Sequence[str]) -> None:
    if value and value not in known:
        raise UsageError(f"{name}: {value[:40]!r} is not known{nearest(value, set(known))}")


def _number(query: Mapping[str, str], name: str) -> float | None:
    text = query.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{name}: {text[:40]!r} is not a number")
    return value


class Condition(NamedTuple):
    """A part of a WHERE clause with its parameters."""

    sql: str
    values: tuple[Any, ...] = ()


class MemberSet(NamedTuple):
    """A condition on another table. `source`: that table, to begin with, joined with `samples`; `o`: its ordinal, times
    `scale`; `having`: what holds for its rows; `exists`: the same condition for a row of `samples`.
    """

    source: str
    o: str
    having: Condition
    exists: Condition
    scale: int = 1


class TableConditions(NamedTuple):
    """A filter in SQL."""

    own: list[Condition]
    """On columns of `samples`, all of which are in every sort index."""
    sets: list[MemberSet]
    ranges: list[tuple[int, int]] | None
    """Ordinals of the chosen tasks and models; None for all."""
    by: str
    """An index of `samples` that has all matches, in plan order; empty if there is none."""


class TableNames(NamedTuple):
    """The numbers of names in a table."""

    kinds: Mapping[str, int]
    scorers: Mapping[str, int]
    columns: Mapping[str, int]
    """Columns of the rows whose values are in the table."""


def make_conditions(wanted: SampleFilter, cells: Sequence[Cell], names: TableNames, across: Across) -> TableConditions:
    """Everything but the search, and row columns that the table does not hold."""
    own, index = list(_own(wanted, names, across)), ""
    if wanted.cause and wanted.status and not wanted.is_of_scorer:
        index = "by_cause"
    elif wanted.wrong:
        index = "by_wrong"
    elif wanted.anomaly and wanted.anomaly != "slow":
        index = "by_flags"
    elif wanted.status in ("failed", "unfinished"):
        index = "by_status"
    sets = [*_score_set(wanted, names), *_column_sets(wanted, names)]
    ranges = None
    if wanted.task or wanted.model:
        ranges = [
            (cell.first, cell.first + cell.count)
            for cell in sorted(cells, key=lambda each: each.first)
            if wanted.task in ("", cell.task) and wanted.model in ("", cell.model) and cell.count
        ]
    return TableConditions(own, sets, ranges, index)


def _own(wanted: SampleFilter, names: TableNames, across: Across) -> Iterator[Condition]:
    if wanted.status:
        yield Condition("samples.status = ?", (STATUSES.index(wanted.status),))
    if wanted.kind:
        yield Condition("samples.kind = ?", (names.kinds.get(wanted.kind, -1),))
    if wanted.cause and not wanted.is_of_scorer:
        yield Condition("samples.cause = ? AND samples.cause <> 0", (int(wanted.cause, 16),))
    if wanted.wrong:
        yield Condition("samples.wrong = 1")
    if wanted.anomaly:
        yield _anomaly(wanted.anomaly, across)
    for name, column in _RANGES.items():
        low, high = wanted.ranges.get(name, (None, None))
        if low is not None or high is not None:  # what is not known is -1, and in no range
            yield Condition(f"samples.{column} >= ?", (max(low or 0.0, 0.0),))
        if high is not None:
            yield Condition(f"samples.{column} <= ?", (high,))


def _anomaly(kind: str, across: Across) -> Condition:
    """Slow and identical answers are those of whole cells: see `report.Anomalies`."""
    if kind not in ("slow", "identical"):
        return Condition("samples.flags <> 0 AND samples.flags & ?", (FLAGS[kind],))
    parts = []
    for each in across.cells:
        if kind == "slow" and each.slow is not None:
            # The first comparison spares most rows the call of a Python function.
            least, bucket = middle_of(max(each.slow.bucket, 1)) * 0.9, each.slow.bucket
            part = f"samples.status = 1 AND samples.seconds > {least!r} AND bucket_of(samples.seconds) > {bucket:d}"
        elif kind == "identical" and each.identical is not None:
            part = f"samples.flags & {LONG_EQUAL if each.identical.long else FLAGS[kind]:d}"
        else:
            continue
        first, end = each.cell.first, each.cell.first + each.cell.count
        parts.append(f"(samples.o >= {first:d} AND samples.o < {end:d} AND {part})")
    return Condition(f"{'samples.flags <> 0 AND ' if kind == 'identical' else ''}{any_of(parts)}")


def any_of(parts: Sequence[str]) -> str:
    """Conditions joined with OR, as a balanced tree: SQLite limits the depth, and a run can have thousands of cells."""
    if len(parts) < 2:
        return parts[0] if parts else _NEVER
    middle = len(parts) // 2
    return f"({any_of(parts[:middle])} OR {any_of(parts[middle:])})"


def _score_set(wanted: SampleFilter, names: TableNames) -> Iterator[MemberSet]:
    if not wanted.scorer or not (wanted.score or wanted.label or "score" in wanted.ranges):
        return
    number = names.scorers.get(wanted.scorer, -1)
    parts, values = [], list[Any]()
    if wanted.score in ("right", "wrong"):
        parts.append("{0}.number = ?")
        values.append(1.0 if wanted.score == "right" else 0.0)
    elif wanted.score == "failed":
        parts.append("{0}.cause <> 0")
    elif wanted.score == "none":
        parts.append("{0}.number IS NULL AND {0}.label = '' AND {0}.cause = 0")
    if wanted.label:
        parts.append("{0}.label = ?")
        values.append(wanted.label)
    for value, sign in zip(wanted.ranges.get("score", ()), (">=", "<="), strict=False):
        if value is not None:
            parts.append(f"{{0}}.number {sign} ?")
            values.append(value)
    if wanted.is_of_scorer:
        parts.append("{0}.cause = ?")
        values.append(int(wanted.cause, 16))
    sql = " AND ".join(parts)
    having = Condition(f"scores.s = ? AND {sql.format('scores')}", (number, *values))
    inner = f"SELECT 1 FROM scores AS given WHERE given.s = ? AND given.o = samples.o AND {sql.format('given')}"
    index = "by_number" if wanted.score in ("right", "wrong") else "by_failure" if wanted.is_of_scorer else ""
    source = f"scores{f' INDEXED BY {index}' if index else ''} CROSS JOIN samples ON samples.o = scores.o"
    yield MemberSet(source, "scores.o", having, Condition(f"EXISTS ({inner})", (number, *values)))


def _column_sets(wanted: SampleFilter, names: TableNames) -> Iterator[MemberSet]:
    for name, value in wanted.row.items():
        number = names.columns.get(name)
        if number is not None:
            having = Condition("row_values.c = ? AND row_values.value = ?", (number, value))
            inner = "SELECT 1 FROM row_values AS held WHERE held.c = ? AND held.o = samples.o AND held.value = ?"
            exists = Condition(f"EXISTS ({inner})", (number, value))
            source = "row_values INDEXED BY by_value CROSS JOIN samples ON samples.o = row_values.o"
            yield MemberSet(source, "row_values.o", having, exists)
