"""Finds the samples that a filter selects, a page at a time.

Pages are found by key, never by counting rows that come before: the cursor is the sort value and the ordinal of the
last row. So a page costs the same wherever it is, and rows that are added or changed meanwhile move no other row to
another page. Work is bounded: conditions that no index answers are tried on the next 10,000 samples only, and the
result says so.
"""

import base64
import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import UsageError
from holdfast.records import bucket_of
from holdfast.spec import nearest
from holdfast.view.table.file import GENERATIONS, sort_index
from holdfast.view.table.filters import (
    COLUMN_PREFIX,
    SCORE_PREFIX,
    SORTS,
    Condition,
    MemberSet,
    SampleFilter,
    any_of,
    make_conditions,
)
from holdfast.view.table.lines import LineReader, RunFacts, SampleLine, read_names
from holdfast.view.table.upkeep import SampleTable
from holdfast.view.table.words import EXCERPT, column_rank, column_text, match_expression, search_words
from holdfast.view.table.writer import STATUSES, verified

LOOKED_MAX = 10_000
"""Matches that are looked through, sorted or counted without an index."""
_BATCH = 500
LIMIT_MAX = 1000
_COUNTS_MAX = 200
Place = tuple[Any, int]
"""The sort value and the ordinal of a row; the value is None in plan order."""


class SampleQuery(msgspec.Struct, frozen=True):
    """Which page of which samples. `after` or `before`: a cursor."""

    filter: SampleFilter = SampleFilter()
    sort: str = ""
    """A name of SORTS, `score:NAME` or `row.NAME`, with `-` in front for the greatest first; empty for plan order."""
    after: str = ""
    before: str = ""
    limit: int = 100
    columns: tuple[str, ...] = ()
    """Columns of the row to show."""


class FoundSamples(msgspec.Struct, frozen=True):
    """A page of samples."""

    samples: list[SampleLine]
    next: str | None
    prev: str | None
    total: int | None
    """How many match; None if that is not known."""
    exact: bool
    """False: there are more than `total`."""
    notes: list[str]
    """What the page does not show, and why."""


class CauseCount(msgspec.Struct, frozen=True):
    """How many samples have a cause of failure, and the first of them."""

    id: str
    kind: str
    message: str
    count: int
    first: int


def find_samples(connection: sqlite3.Connection, table: SampleTable, run: RunFacts, query: SampleQuery) -> FoundSamples:
    """One page. UsageError if the query names something that does not exist."""
    with _searching(connection, table, run, query) as search:
        return search.page()


def find_neighbours(
    connection: sqlite3.Connection, table: SampleTable, run: RunFacts, query: SampleQuery, o: int
) -> tuple[str, str]:
    """The keys before and after a sample in the list that a query selects; empty if there is none. The sample itself
    need not match any more.
    """
    with _searching(connection, table, run, query) as search:
        return search.neighbours(o)


@contextlib.contextmanager
def _searching(
    connection: sqlite3.Connection, table: SampleTable, run: RunFacts, query: SampleQuery
) -> Iterator["_Search"]:
    connection.create_function("bucket_of", 1, bucket_of, deterministic=True)
    connection.execute("BEGIN")  # everything on a page is of one state
    search = _Search(connection, table, run, query)
    try:
        yield search
    finally:
        search.close()
        connection.execute("ROLLBACK")


def encode_cursor(place: Place) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def decode_cursor(text: str) -> Place | None:
    """None for an empty text. UsageError for one that is no cursor."""
    if not text:
        return None
    try:
        content = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        value, o = msgspec.json.decode(content, type=tuple[float | str | None, int])
    except (ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"{text[:40]!r} is not a cursor: open the page without it") from error
    if not 0 <= o < 1 << 50:
        raise UsageError(f"{text[:40]!r} is not a cursor: open the page without it")
    return value, o


class _Order(NamedTuple):
    """How rows are sorted. `value`: the SQL of the sort value; `o`: that of the ordinal."""

    value: str = "NULL"
    o: str = "samples.o"
    is_descending: bool = False
    source: str = ""
    """The table and index that have the rows in this order; empty for plan order."""
    having: Condition = Condition("1")
    lookup: Condition = Condition("")
    """The SQL of the sort value of a row of `samples`, if `value` is a column of another table."""

    @property
    def has_values(self) -> bool:
        """Whether cursors have a sort value: not in plan order."""
        return self.value != "NULL"


_Test = Callable[[Sequence[int]], set[int]]
"""Which of these ordinals match."""


class _Search:
    """One query."""

    def __init__(self, connection: sqlite3.Connection, table: SampleTable, run: RunFacts, query: SampleQuery) -> None:
        self._database = connection
        self._table = table
        self._run = run
        self._query = query
        self._notes: list[str] = []
        self._names = read_names(connection)
        self._lines = LineReader(connection, run, self._names)
        self._tests: list[_Test] = []
        self._sorted_only = Condition("1")
        """What holds for rows that have a sort value."""
        self._found = make_conditions(query.filter, run.cells, self._names, run.across)
        self._is_selective = False
        """Whether conditions begin with few rows."""
        self._unindexed: list[Place] | None = None
        """All places of an order that no index has."""
        self._counted: tuple[int, bool] | None = None
        """How many matches there are, if that is known."""

    def close(self) -> None:
        self._lines.close()

    def page(self) -> FoundSamples:
        query, limit = self._query, min(max(self._query.limit, 1), LIMIT_MAX)
        order = self._prepare()
        is_backward = bool(query.before)
        start = decode_cursor(query.before if is_backward else query.after)
        if start is not None and (start[0] is None) == order.has_values:
            start = None if order.has_values else (None, start[1])  # of another order: begin where that makes sense
        stream = self._stream(order, start, is_backward)
        places, end = self._take(stream, limit)
        if self._tests and end is not None and len(places) < limit:
            self._notes.append(
                f"No index has what this filter needs: {LOOKED_MAX:,} samples were looked through for this page. "
                "The next page looks further."
            )
        if is_backward:
            places.reverse()
            before, after = end, places[-1] if places else start
        else:
            before, after = (places[0] if places else start) if start is not None else None, end
        is_all = start is None and end is None and self._counted is None
        total, exact = (len(places), True) if is_all else self._count()
        return FoundSamples(
            [*self._lines.read([o for _, o in places], query.columns)],
            None if after is None else encode_cursor(after),
            None if before is None else encode_cursor(before),
            total,
            exact,
            self._notes,
        )

    def neighbours(self, o: int) -> tuple[str, str]:
        """The keys before and after a sample."""
        order = self._prepare()
        place, found = self._place_of(o, order), []
        for is_backward in (True, False) if place is not None else ():
            beside, _ = self._take(self._stream(order, place, is_backward), 1)
            found += [line.key for line in self._lines.read([each for _, each in beside], ())] or [""]
        return (found[0], found[1]) if found else ("", "")

    def _place_of(self, o: int, order: _Order) -> Place | None:
        """Where a sample is, or would be, in the order of the list; None if it has no place in it."""
        if self._unindexed is not None:
            return next((each for each in self._unindexed if each[1] == o), None)
        if not order.source:
            return None, o
        value = order.lookup if order.lookup.sql else Condition(order.value)
        found = self._database.execute(f"SELECT {value.sql} FROM samples WHERE samples.o = ?", (*value.values, o))
        row = found.fetchone()
        return None if row is None or row[0] is None else (row[0], o)

    def _prepare(self) -> _Order:
        self._add_search()
        self._add_columns()
        self._is_selective = bool(self._found.sets or self._found.by)
        return self._order()

    # Conditions that depend on what the table holds.

    def _add_search(self) -> None:
        text = self._query.filter.q
        if not text:
            return
        words = search_words(text)
        unsearched = self._database.execute("SELECT count(*) FROM pages WHERE searched = 0").fetchone()[0]
        if words and not unsearched and self._can_match(words):
            self._found.sets.insert(0, _word_set(words))
            return
        reason = "The words of the samples are not indexed yet" if unsearched else "This is no word"
        self._notes.append(f"{reason}: the search covers the first {EXCERPT} characters of each text.")
        self._tests.append(lambda ordinals: self._having_text(ordinals, words or [text]))

    def _can_match(self, words: Sequence[str]) -> bool:
        """Whether each word is one for SQLite too, which knows fewer scripts: it refuses the others as phrases."""
        try:
            query = "SELECT rowid FROM words WHERE words MATCH ? LIMIT 1"
            self._database.execute(query, (match_expression(list(words)),)).fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            return False
        return True

    def _add_columns(self) -> None:
        for name, value in self._query.filter.row.items():
            number = self._names.columns.get(name)
            if number is None:
                self._tests.append(self._column_test(name, value))

    def _column_test(self, name: str, value: str) -> _Test:
        def test(ordinals: Sequence[int]) -> set[int]:
            rows = self._lines.row_offsets(ordinals)
            return {
                o
                for o in ordinals
                if (found := self._lines.row(o, rows[o]).get(name)) is not None and column_text(found) == value
            }

        return test

    def _having_text(self, ordinals: Sequence[int], words: Sequence[str]) -> set[int]:
        parts = [word.rstrip("*").lower() for word in words]
        marks = ", ".join("?" * len(ordinals))
        query = (
            "SELECT q.o, q.key || ' ' || q.input || ' ' || q.target || ' ' || "
            "coalesce(a.answer || ' ' || a.message, '') "
            f"FROM questions q LEFT JOIN answers a ON a.o = q.o WHERE q.o IN ({marks})"
        )
        return {o for o, text in self._database.execute(query, ordinals) if all(part in text.lower() for part in parts)}

    # Places of rows, in order.

    def _order(self) -> _Order:
        sort = self._query.sort
        name, is_descending = sort.removeprefix("-"), sort.startswith("-")
        if not name:
            return _Order(is_descending=is_descending)
        if name.startswith(SCORE_PREFIX):
            return self._score_order(name.removeprefix(SCORE_PREFIX), is_descending)
        if name.startswith(COLUMN_PREFIX):
            return self._column_order(name.removeprefix(COLUMN_PREFIX), is_descending)
        column = SORTS.get(name)
        if column is None:
            raise UsageError(f"sort: {name[:40]!r} is not known{nearest(name, set(SORTS))}")
        if not self._table.want_sort(self._database, column):
            self._notes.append(f"The order by {name} is being prepared; until then samples are in plan order.")
            return _Order()
        index, _ = sort_index(column)
        has_index = self._database.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (index,)).fetchone()
        source = f"samples {f'INDEXED BY {index}' if has_index else 'NOT INDEXED'}"
        return _Order(f"samples.{column}", "samples.o", is_descending, source)

    def _score_order(self, scorer: str, is_descending: bool) -> _Order:
        number = self._names.scorers.get(scorer)
        if number is None:
            raise UsageError(f"sort: no scorer is called {scorer[:40]!r}{nearest(scorer, set(self._names.scorers))}")
        self._notes.append(f"Only samples with a number from {scorer} are listed.")
        inner = "SELECT 1 FROM scores AS own WHERE own.s = ? AND own.o = samples.o AND own.number IS NOT NULL"
        having = Condition("scores.s = ? AND scores.number IS NOT NULL", (number,))
        source = "scores INDEXED BY by_number CROSS JOIN samples ON samples.o = scores.o"
        self._sorted_only = Condition(f"EXISTS ({inner})", (number,))
        lookup = "(SELECT own.number FROM scores AS own WHERE own.s = ? AND own.o = samples.o)"
        return _Order("scores.number", "scores.o", is_descending, source, having, Condition(lookup, (number,)))

    def _column_order(self, name: str, is_descending: bool) -> _Order:
        number = self._names.columns.get(name)
        if number is None:
            self._sort_by_rows(name)
            return _Order("rank", is_descending=is_descending)
        self._notes.append(f"Only samples whose row has a value of {name[:40]} are listed.")
        having = Condition("row_values.c = ?", (number,))
        source = "row_values INDEXED BY by_rank CROSS JOIN samples ON samples.o = row_values.o"
        found = "FROM row_values AS own WHERE own.c = ? AND own.o = samples.o"
        self._sorted_only = Condition(f"EXISTS (SELECT 1 {found})", (number,))
        lookup = Condition(f"(SELECT own.rank {found})", (number,))
        return _Order("row_values.rank", "row_values.o", is_descending, source, having, lookup)

    def _sort_by_rows(self, name: str) -> None:
        """Sort by a column that is not indexed: reads the rows of the first matches, in plan order."""
        places, end = self._take(self._planned(None, is_down=False, size=_BATCH), LOOKED_MAX)
        if end is not None:
            self._notes.append(
                f"The column {name[:40]} is not indexed: only the first {len(places):,} matches, in plan order, are "
                "sorted."
            )
        ranks, found = dict[int, float | str | None](), list[Place]()
        ordinals = [o for _, o in places]
        for first in range(0, len(ordinals), _BATCH):
            for o, row_at in self._lines.row_offsets(ordinals[first : first + _BATCH]).items():
                if row_at not in ranks:  # repeats and models share a row
                    value = self._lines.row(o, row_at).get(name)
                    ranks[row_at] = None if value is None else column_rank(value)
                if (rank := ranks[row_at]) is not None:
                    found.append((rank, o))
        if len(found) < len(places):
            self._notes.append(f"Only samples whose row has a value of {name[:40]} are listed.")
        self._unindexed = sorted(found, key=_sort_key)
        self._tests.clear()  # they have been done
        self._counted = (len(found), end is None)

    def _stream(self, order: _Order, start: Place | None, is_backward: bool) -> Iterator[Sequence[Place]]:
        """Places behind `start`, in batches, in the direction of reading."""
        is_down = order.is_descending != is_backward
        if self._unindexed is not None:
            return iter([_behind(self._unindexed, start, is_down)])
        if not order.source:
            return self._planned(start, is_down, self._batch())
        if self._is_selective:
            matches = self._matches(order.lookup if order.lookup.sql else Condition(order.value))
            has_words = bool(self._found.sets) and self._found.sets[0].scale > 1
            if len(matches) <= LOOKED_MAX or has_words:
                if len(matches) > LOOKED_MAX:
                    self._notes.append(f"Only the first {LOOKED_MAX:,} matches, in plan order, are sorted.")
                return iter([_behind(matches, start, is_down)])
        return self._sorted(order, start, is_down)

    def _matches(self, value: Condition) -> list[Place]:
        """The first matches in plan order, one more than are sorted."""
        source, o, scale, conditions = self._plan_order_start()
        ranges = self._found.ranges
        if ranges is not None:
            conditions.append(_within(ranges, o, scale))
        where = _all(conditions)
        query = f"SELECT {value.sql}, samples.o FROM {source} WHERE {where.sql} ORDER BY {o} LIMIT {LOOKED_MAX + 1}"
        return self._database.execute(query, (*value.values, *where.values)).fetchall()

    def _planned(self, start: Place | None, is_down: bool, size: int) -> Iterator[Sequence[Place]]:
        source, o, scale, conditions = self._plan_order_start()
        where = _all(conditions)
        ranges = [(0, 1 << 50)] if self._found.ranges is None else self._found.ranges
        direction = "DESC" if is_down else "ASC"
        query = (
            f"SELECT NULL, samples.o FROM {source} WHERE {where.sql} AND {o} >= ? AND {o} < ? "
            f"ORDER BY {o} {direction} LIMIT ?"
        )
        for first, end in ranges[::-1] if is_down else ranges:
            low, high = first, end
            if start is not None:
                low, high = (low, min(high, start[1])) if is_down else (max(low, start[1] + 1), high)
            while low < high:
                values = (*where.values, low * scale, high * scale, size)
                found = self._database.execute(query, values).fetchall()
                if found:
                    yield found
                if len(found) < size:
                    break
                low, high = (low, found[-1][1]) if is_down else (found[-1][1] + 1, high)

    def _sorted(self, order: _Order, start: Place | None, is_down: bool) -> Iterator[Sequence[Place]]:
        conditions = [order.having, *self._found.own, *(each.exists for each in self._found.sets)]
        if self._found.ranges is not None:
            conditions.append(_within(self._found.ranges, order.o, 1))
        where = _all(conditions)
        sign, direction = ("<", "DESC") if is_down else (">", "ASC")
        while True:
            behind = "" if start is None else f" AND ({order.value}, {order.o}) {sign} (?, ?)"
            size = self._batch()
            query = (
                f"SELECT {order.value}, {order.o} FROM {order.source} WHERE {where.sql}{behind} "
                f"ORDER BY {order.value} {direction}, {order.o} {direction} LIMIT ?"
            )
            values = (*where.values, *(() if start is None else start), size)
            found = self._database.execute(query, values).fetchall()
            if found:
                yield found
            if len(found) < size:
                return
            start = found[-1]

    def _batch(self) -> int:
        return _BATCH if self._tests else min(max(self._query.limit, 1), LIMIT_MAX) + 1

    def _plan_order_start(self) -> tuple[str, str, int, list[Condition]]:
        """Where a query in plan order begins: a source, its ordinal and scale, and all conditions but ranges."""
        own = [*self._found.own, self._sorted_only]
        if self._found.sets:
            first, *others = self._found.sets
            return first.source, first.o, first.scale, [first.having, *own, *(each.exists for each in others)]
        how = f"INDEXED BY {self._found.by}" if self._found.by else "NOT INDEXED"
        return f"samples {how}", "samples.o", 1, own

    def _take(self, stream: Iterator[Sequence[Place]], limit: int) -> tuple[list[Place], Place | None]:
        """The next places that pass all tests, and where to continue; None if there are no more."""
        places: list[Place] = []
        looked = 0
        for batch in stream:
            ordinals = [o for _, o in batch]
            for test in self._tests:
                ordinals = sorted(test(ordinals)) if ordinals else []
            passed = set(ordinals)
            places += [each for each in batch if each[1] in passed]
            looked += len(batch)
            if len(places) > limit:
                return places[:limit], places[limit - 1]
            if self._tests and looked >= LOOKED_MAX:
                return places, batch[-1]
        return places, None

    # Counting.

    def _count(self) -> tuple[int | None, bool]:
        """How many samples match, and whether that is exact."""
        if self._counted is not None:
            return self._counted
        if self._tests and sum(cell.count for cell in self._run.cells) > LOOKED_MAX:
            return None, False
        changes = self._database.execute("SELECT value FROM about WHERE name = 'changes'").fetchone()[0]
        name = (changes, len(self._tests), self._query.filter.name + self._query.sort.encode())
        known = self._table.counts.get(name)
        if known is None:
            known = self._count_now()
            while len(self._table.counts) >= _COUNTS_MAX:
                self._table.counts.pop(next(iter(self._table.counts)))
            self._table.counts[name] = known
        return known

    def _count_now(self) -> tuple[int, bool]:
        if self._tests:
            places, _ = self._take(self._planned(None, is_down=False, size=_BATCH), LOOKED_MAX)
            return len(places), True
        wanted, found = self._query.filter, self._found
        source, o, scale, conditions = self._plan_order_start()
        only_status = self._sorted_only.sql == "1" and wanted == SampleFilter(
            status=wanted.status, task=wanted.task, model=wanted.model, scorer=wanted.scorer
        )
        if found.ranges is not None:
            conditions.append(_within(found.ranges, o, scale))
        where = _all(conditions)
        if only_status:
            source = "samples INDEXED BY by_status" if wanted.status else "samples"
            count = self._database.execute(f"SELECT count(*) FROM {source} WHERE {where.sql}", where.values).fetchone()
            return int(count[0]), True
        query = f"SELECT count(*) FROM (SELECT 1 FROM {source} WHERE {where.sql} LIMIT {LOOKED_MAX + 1})"
        count = self._database.execute(query, where.values).fetchone()
        return min(int(count[0]), LOOKED_MAX), count[0] <= LOOKED_MAX


def _sort_key(place: Place) -> tuple[bool, Any, int]:
    """Places in the order of the database: numbers before texts."""
    return isinstance(place[0], str), place[0], place[1]


def _behind(places: Sequence[Place], start: Place | None, is_down: bool) -> list[Place]:
    """Places behind `start`, in the direction of reading."""
    found = sorted(places, key=_sort_key, reverse=is_down)
    if start is None:
        return found
    first = _sort_key(start)
    return [each for each in found if (_sort_key(each) < first if is_down else _sort_key(each) > first)]


def _word_set(words: Sequence[str]) -> MemberSet:
    """Samples with all words. The words of earlier answers are still there, under another generation."""
    source = (
        f"words CROSS JOIN samples ON samples.o = words.rowid / {GENERATIONS} "
        f"AND samples.generation = words.rowid % {GENERATIONS}"
    )
    having = Condition("words MATCH ?", (match_expression(list(words)),))
    return MemberSet(source, "words.rowid", having, Condition("0"), GENERATIONS)


def _all(conditions: Sequence[Condition]) -> Condition:
    sql = " AND ".join(each.sql for each in conditions) or "1"
    return Condition(sql, tuple(itertools.chain.from_iterable(each.values for each in conditions)))


def _within(ranges: Sequence[tuple[int, int]], o: str, scale: int) -> Condition:
    joined: list[tuple[int, int]] = []
    for first, end in ranges:  # in order
        touches = joined and joined[-1][1] == first
        joined[-1:] = [(joined[-1][0], end)] if touches else [*joined[-1:], (first, end)]
    return Condition(any_of([f"({o} >= {first * scale} AND {o} < {end * scale})" for first, end in joined]))


def count_causes(connection: sqlite3.Connection) -> tuple[dict[str, list[CauseCount]], dict[str, list[CauseCount]]]:
    """Causes of failures, the most frequent first: of samples by status, and of scorers by name."""
    causes = {
        number: (kind, message) for number, kind, message in map(verified, connection.execute("SELECT * FROM causes"))
    }
    scorers = {number: name for name, number in read_names(connection).scorers.items()}
    of_samples: dict[str, list[CauseCount]] = {}
    of_scorers: dict[str, list[CauseCount]] = {}
    query = "SELECT {0}, cause, count(*), min(o) FROM {1} WHERE cause <> 0 GROUP BY {0}, cause"
    for status, cause, count, first in connection.execute(query.format("status", "samples INDEXED BY by_cause")):
        found = CauseCount(f"{cause:x}", *causes[cause], count, first)
        of_samples.setdefault(STATUSES[status], []).append(found)
    for scorer, cause, count, first in connection.execute(query.format("s", "scores INDEXED BY by_failure")):
        found = CauseCount(f"{cause:x}", scorers[scorer], causes[cause][1], count, first)
        of_scorers.setdefault(scorers[scorer], []).append(found)
    for each in (*of_samples.values(), *of_scorers.values()):
        each.sort(key=lambda cause: -cause.count)
    return of_samples, of_scorers
