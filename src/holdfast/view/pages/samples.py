"""The samples of a run: paged by key, sorted, filtered, searched. The data of the page; `sample_list` shows it."""

import contextlib
import itertools
import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.errors import HoldfastError, UsageError
from holdfast.plan import DataRow, RowLookup, data_path, read_lines
from holdfast.records import MARKS
from holdfast.report import StoredSpec
from holdfast.score import KINDS
from holdfast.spec import nearest
from holdfast.state import stored_reducing
from holdfast.view.page import PageRequest, parse_number
from holdfast.view.pages.evaluations import evaluation_labels
from holdfast.view.pages.list_state import decode_list
from holdfast.view.sources import Durability, RunRef, RunStatus, ViewedRun
from holdfast.view.table import (
    COLUMN_PREFIX,
    FAILURES,
    FILTERS,
    LIMIT_MAX,
    RunFacts,
    SampleLine,
    SampleQuery,
    SampleTable,
    TableProgress,
    find_neighbours,
    find_samples,
    is_damage,
    parse_filter,
    read_names,
    without_scores,
)

COLUMNS = (
    "task",
    "model",
    "sample",
    "repeat",
    "status",
    "scores",
    "input",
    "target",
    "answer",
    "failure",
    "attempts",
    "input_tokens",
    "output_tokens",
    "tokens",
    "seconds",
    "cost",
    "marks",
    "record",
)
"""Columns to choose from, in the order in which they are shown; besides these, columns of the row as `row.NAME`."""
LIMIT = 100
_LOOKED_ROWS = 1000
"""Rows of each task in which a column to be indexed must appear."""


_LEFT_OUT = "Conditions on a score were left out: choose a scorer first."
PARAMS = (*FILTERS, "sort", "columns", "limit", "after", "before", "index", "evaluation")


class Choices(msgspec.Struct, frozen=True):
    """Values that filters can have."""

    tasks: list[str]
    models: list[str]
    kinds: list[str]
    scorers: list[str]
    anomalies: list[str]
    row_columns: list[str]
    """Of the first rows."""
    indexed: list[str]
    """Columns of the rows that are indexed, or will be."""
    evaluations: dict[str, str] = {}
    """What to call each, by id."""


class SampleList(msgspec.Struct, frozen=True):
    """A page of samples. `next`, `prev`: cursors. `total`: how many match; more, if not `exact`; null if unknown."""

    ref: RunRef
    samples: list[SampleLine]
    next: str | None
    prev: str | None
    total: int | None
    exact: bool
    notes: list[str]
    progress: TableProgress
    coverage: float
    """The share of the planned samples that is listed."""
    filters: dict[str, str]
    """The filter as the query of an address."""
    sort: str
    columns: list[str]
    chosen: str
    """The columns as the address gives them; empty for the default."""
    limit: int
    evaluation: str
    """The id of the evaluation whose scores are listed."""
    is_current: bool
    """Whether that is the current one, which addresses do not name."""
    is_first: bool
    """Whether the page has no cursor."""
    choices: Choices
    status: RunStatus
    durability: Durability
    live: bool

    @property
    def state(self) -> dict[str, str]:
        """What an address says of this list, besides the page."""
        return {
            **self.filters,
            "sort": self.sort,
            "columns": self.chosen,
            "limit": str(self.limit) if self.limit != LIMIT else "",
            "evaluation": "" if self.is_current else self.evaluation,
        }


def load(request: PageRequest) -> SampleList:
    with request.sources.open(request.run) as run:
        table = request.sources.tables.of(run, run.find_evaluation(request.query.get("evaluation", "")))
        try:
            return _load(request, run, table)
        except FAILURES as error:
            if isinstance(error, HoldfastError):
                raise
            if not is_damage(error):
                raise UnreadableTableError(f"the list of samples cannot be read: {error}") from error
            table.file.discard()
        try:
            return _load(request, run, table)
        except sqlite3.Error as error:
            raise UnreadableTableError(f"the list of samples cannot be read: {error}") from error


def listed_neighbours(request: PageRequest, run: ViewedRun, o: int) -> tuple[str, str] | None:
    """The keys before and after a sample in the list that its address has in `list`; None if that cannot be read."""
    given = decode_list(request.query.get("list", ""))
    query, other = parse_query(given), run.find_evaluation(request.query.get("evaluation", ""))
    table = request.sources.tables.of(run, other)
    try:
        with contextlib.closing(table.file.connect()) as connection:
            table.update(request.sources, request.run, run)
            facts = RunFacts(run.place.folder, run.index.story.cells, table.across(run))
            return find_neighbours(connection, table, facts, query, o)
    except UsageError:
        raise
    except (HoldfastError, OSError, *FAILURES):  # a damaged plan, no space: the sample itself can be shown
        return None


class UnreadableTableError(HoldfastError):
    """The list of samples is busy or has no space."""


def _load(request: PageRequest, run: ViewedRun, table: SampleTable) -> SampleList:
    given = request.query if request.is_data else without_scores(request.query)
    query, other = parse_query(given), run.find_evaluation(request.query.get("evaluation", ""))
    if run.damage:
        run.damage_report.require_plan()
    with contextlib.closing(table.file.connect()) as connection:
        if query.filter.q:
            table.want_search(connection)
        column = request.query.get("index", "").removeprefix(COLUMN_PREFIX)
        if column:
            if unknown := _unknown_column(run, column):
                raise UsageError(f"index: {unknown}")
            table.want_column(connection, column)
        table.update(request.sources, request.run, run)
        facts = RunFacts(run.place.folder, run.index.story.cells, table.across(run))
        found = find_samples(connection, table, facts, query)
        table.update_wanted(request.sources, request.run, run)
        progress = table.progress(connection, run.index.story.planned)
        names, indexed = read_names(connection), table.columns(connection)
    left_out = [_LEFT_OUT] if any(request.query[name] for name in request.query.keys() - given.keys()) else []
    misspelt = [] if found.samples else [_unknown_column(run, name) for name in query.filter.row]
    return SampleList(
        request.run,
        found.samples,
        found.next,
        found.prev,
        found.total,
        found.exact,
        [*found.notes, *left_out, *(f"{each[:1].upper()}{each[1:]}" for each in misspelt if each)],
        progress,
        progress.listed / progress.planned if progress.planned else 1.0,
        query.filter.query(),
        query.sort,
        _shown_columns(request, run, list(names.scorers)),
        request.query.get("columns", ""),
        query.limit,
        other or run.index.story.evaluation,
        not other,
        not (query.after or query.before),
        Choices(
            list(dict.fromkeys(cell.task for cell in facts.cells)),
            list(dict.fromkeys(cell.model for cell in facts.cells)),
            sorted(names.kinds),
            list(names.scorers),
            [*MARKS, *KINDS],
            _row_columns(run),
            indexed,
            evaluation_labels(run),
        ),
        run.shown_status(),
        run.durability(),
        run.is_live,
    )


def parse_query(given: Mapping[str, str]) -> SampleQuery:
    """The list that the query of an address selects. UsageError if a value cannot be understood."""
    chosen = [name for name in given.get("columns", "").split(",") if name.startswith(COLUMN_PREFIX)]
    return SampleQuery(
        parse_filter(given),
        given.get("sort", ""),
        given.get("after", ""),
        given.get("before", ""),
        _limit(given),
        tuple(name.removeprefix(COLUMN_PREFIX) for name in dict.fromkeys(chosen)),
    )


def _limit(given: Mapping[str, str]) -> int:
    found = parse_number(given, "limit")
    if found is not None and not 1 <= found <= LIMIT_MAX:
        raise UsageError(f"limit: {found} is not between 1 and {LIMIT_MAX:,}")
    return found or LIMIT


def _shown_columns(request: PageRequest, run: ViewedRun, scorers: Sequence[str]) -> list[str]:
    """The columns that were chosen, or those that tell samples of this run apart. The sample is always among them: it
    is the link.
    """
    given = [name.strip() for name in request.query.get("columns", "").split(",") if name.strip()]
    if given:
        unknown = [name for name in given if name not in COLUMNS and not name.startswith(COLUMN_PREFIX)]
        if unknown:
            raise UsageError(f"columns: {unknown[0][:40]!r} is not known{nearest(unknown[0], set(COLUMNS))}")
        rows = [name for name in dict.fromkeys(given) if name.startswith(COLUMN_PREFIX)]
        return [name for name in COLUMNS if name in given or name == "sample"] + rows
    cells, spec = run.index.story.cells, run.index.story.spec
    stored = StoredSpec.of(spec)
    shown = {
        "task": len({cell.task for cell in cells}) > 1,
        "model": len({cell.model for cell in cells}) > 1,
        "repeat": any(each.repeats > 1 for each in stored_reducing(spec).values()),
        "scores": bool(scorers),
        "cost": any(price is not None for cell in cells for price in stored.prices(cell.model).values()),
    }
    always = {"sample", "status", "input", "target", "answer", "tokens", "seconds"}
    return [name for name in COLUMNS if name in always or shown.get(name)]


def _unknown_column(run: ViewedRun, name: str) -> str:
    """A sentence if no row near the beginning has the column, with the one that is spelt most like it."""
    known = set(_row_columns(run))
    if name not in known and run.holds_data():
        with contextlib.suppress(HoldfastError, OSError, ValueError):
            for cell in {cell.task: cell for cell in run.index.story.cells if cell.count}.values():
                lines = read_lines(data_path(run.place.folder, cell.rows_block), cell.data_at)
                for line in itertools.islice(lines, _LOOKED_ROWS):
                    known |= (msgspec.json.decode(line, type=DataRow).row or {}).keys()
    return "" if name in known else f"no row has a column {name[:40]!r}{nearest(name, known)}"


def _row_columns(run: ViewedRun) -> list[str]:
    """The columns of the first row of each task."""
    found: dict[str, None] = {}
    if run.holds_data():
        rows = RowLookup(run.place.folder)
        with contextlib.closing(rows), contextlib.suppress(HoldfastError, OSError):
            for cell in {cell.task: cell for cell in run.index.story.cells if cell.count}.values():
                found |= dict.fromkeys(rows.row_at(cell.rows_block, cell.data_at).row or {})
    return list(found)
