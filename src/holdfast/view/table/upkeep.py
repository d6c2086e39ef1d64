"""Keeps sample tables up to date with their runs: in the request if little has changed, else in a background thread.

The pages of the index say what has changed: each has checksums, and the table remembers the ones that it was written
from. The thread takes the run's lock only to read one page of the index, so other requests hardly wait for it. It is
joined when the server ends; a server that is killed continues where it was, page by page.
"""

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import xxhash

from holdfast.errors import HoldfastError, UsageError
from holdfast.garbage import return_memory
from holdfast.report import Anomalies, CellAnomalies, StoredSpec, equal_answers
from holdfast.state import Bits, PlannedPage, identify
from holdfast.view.table.file import FAILURES, KIND, TableFile, is_damage, sort_index, transaction
from holdfast.view.table.rows import SampleReader
from holdfast.view.table.writer import PageContent, PageWriter, add_name, source_of

if TYPE_CHECKING:
    from holdfast.view.sources import RunRef, Sources, ViewedRun

SMALL = 5000
"""So many samples are brought up to date within the request."""
_SORTED_SMALL = 20_000
"""A table of so many samples is sorted without an index."""
_RETRY_SECONDS = 5.0
COLUMNS_MAX = 10
_OPEN_MAX = 16
"""Tables that stay open; each holds a file handle."""
_PAST_MAX = 3
"""Tables of past states among them, which are made again when they are opened again."""
_log = logging.getLogger("holdfast")
_Task = tuple[PlannedPage, str]
"""A page of the index, and the state that it is to be written for."""


class TableProgress(msgspec.Struct, frozen=True):
    """How much of a run the table lists."""

    listed: int
    planned: int
    building: bool
    """Whether a thread or another process is working on it."""
    searched: int = 0
    """Samples whose words can be searched."""
    problem: str = ""
    """Why it cannot be brought up to date."""

    @property
    def is_complete(self) -> bool:
        return self.listed >= self.planned


class Across(NamedTuple):
    """Anomalies that show only across answers, and the kinds that the spec enables."""

    kinds: frozenset[str]
    cells: Sequence[CellAnomalies]
    differing: Mapping[str, Bits]


class SampleTable:
    """The table of one run, or of one past state of it, with the scores of one evaluation."""

    def __init__(self, file: TableFile, evaluation: str = "") -> None:
        """`evaluation`: an id; empty for the current one, whichever that is."""
        self.file = file
        self._evaluation = evaluation
        self.counts: dict[tuple[int, int, bytes], tuple[int, bool]] = {}
        """Numbers of matches that were counted, by the number of changes and the filter."""
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._working: sqlite3.Connection | None = None
        self._problem = ""
        self._failed_at = float("-inf")
        self._is_elsewhere = False
        """Whether another process was writing the table when this one wanted to."""
        self._known: tuple[Any, Across, str] | None = None
        self._complete: tuple[Any, ...] = ()
        """The state in which nothing was to be done."""
        self._wanted: dict[str, None] = {}
        """Columns whose sort index is to be made."""

    def close(self) -> None:
        self._stop.set()
        working = self._working
        if working is not None:
            with contextlib.suppress(sqlite3.Error):
                working.interrupt()
        if self._thread is not None:
            self._thread.join()
        self.file.close()

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # In a request. The caller holds the run's lock.

    def update(self, sources: "Sources", ref: "RunRef", run: "ViewedRun") -> None:
        """Bring the table up to date, or start to do so."""
        if self.is_busy or time.monotonic() - self._failed_at < _RETRY_SECONDS:
            return
        with contextlib.closing(self.file.connect()) as connection:
            basis = (self._anomalies_and_digest(run)[1], run.index.cursor, *self._wishes(connection))
            todo = [] if basis == self._complete else self._todo(connection, run)
            is_small = sum(page.end - page.first for page, _ in todo) <= SMALL
            is_empty = connection.execute("SELECT 1 FROM pages LIMIT 1").fetchone() is None
            # The first page of a large run is written here too, so that its first visitor sees samples.
            here, todo = (todo, []) if is_small else (todo[:1], todo[1:]) if is_empty else ([], todo)
            if here:
                self._attempt(lambda: self._write_here(connection, run, here))
            elif not todo:
                self._complete, self._is_elsewhere = basis, False
            wanted = self._missing_sorts(connection)
        if todo or wanted:
            self._start(sources, ref)

    def update_wanted(self, sources: "Sources", ref: "RunRef", run: "ViewedRun") -> None:
        """Begin with what a query has wanted."""
        if self._wanted:
            self.update(sources, ref, run)

    def _write_here(self, connection: sqlite3.Connection, run: "ViewedRun", todo: Sequence[_Task]) -> None:
        with self._writer() as is_mine:
            if not is_mine:
                return
            spec = run.index.story.spec
            with contextlib.closing(SampleReader(run.place.folder, spec)) as reader:
                writer = PageWriter(connection, reader, spec)
                for page, state in todo:
                    writer.write(self._content(run, page, state))

    def progress(self, connection: sqlite3.Connection, planned: int) -> TableProgress:
        query = "SELECT coalesce(sum(end - first), 0), coalesce(sum((end - first) * searched), 0) FROM pages"
        listed, searched = connection.execute(query).fetchone()
        return TableProgress(listed, planned, self.is_busy or self._is_elsewhere, searched, self._problem)

    def want_sort(self, connection: sqlite3.Connection, column: str) -> bool:
        """Whether the samples can be sorted by a column now; if not, they soon can."""
        name, _ = sort_index(column)
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (name,)).fetchone():
            return True
        if connection.execute("SELECT coalesce(sum(end - first), 0) FROM pages").fetchone()[0] <= _SORTED_SMALL:
            return True
        self._wanted[column] = None
        return False

    def want_search(self, connection: sqlite3.Connection) -> None:
        """Begin to keep the words of samples."""
        if not self._wishes(connection)[1]:
            with transaction(connection):
                connection.execute("INSERT OR REPLACE INTO about VALUES ('search', 1)")

    def want_column(self, connection: sqlite3.Connection, name: str) -> None:
        """Begin to keep the values of a column of the rows. UsageError if there are too many already."""
        known = self.columns(connection)
        if name in known:
            return
        if len(known) >= COLUMNS_MAX:
            raise UsageError(f"{COLUMNS_MAX} columns of the rows are indexed, which is the most: {', '.join(known)}")
        with transaction(connection):
            add_name(connection, "column", name)

    def columns(self, connection: sqlite3.Connection) -> list[str]:
        """The columns of the rows that are indexed, or will be."""
        return [name for (name,) in connection.execute("SELECT name FROM names WHERE kind = 'column' ORDER BY name")]

    def across(self, run: "ViewedRun") -> Across:
        return self._anomalies_and_digest(run)[0]

    def _shown(self, run: "ViewedRun") -> str:
        """The evaluation whose scores are listed."""
        return self._evaluation or run.index.story.evaluation

    # What has changed.

    def _anomalies_and_digest(self, run: "ViewedRun") -> tuple[Across, str]:
        """The anomalies across answers, and a digest of everything that applies to all pages."""
        index, evaluation = run.index, self._shown(run)
        name = (index.cursor, index.last_n, evaluation)
        if self._known is None or self._known[0] != name:
            anomalies = Anomalies(index, evaluation)
            across = Across(anomalies.kinds, anomalies.across, anomalies.differing)
            spec = StoredSpec.of(index.story.spec)
            prices = {cell.model: spec.prices(cell.model) for cell in index.story.cells}
            basis = msgspec.json.encode((evaluation, sorted(across.kinds), prices), order="sorted")
            self._known = (name, across, xxhash.xxh3_128_hexdigest(basis))
        return self._known[1], self._known[2]

    def _todo(self, connection: sqlite3.Connection, run: "ViewedRun") -> list[_Task]:
        """The pages to be written, each with its new state: those that have changed, then those whose words or columns
        are missing, both in plan order.
        """
        across, basis = self._anomalies_and_digest(run)
        columns, searches, _ = self._wishes(connection)
        known = {row[0]: row[1:] for row in connection.execute("SELECT first, state, searched, columns FROM pages")}
        changed, incomplete = list[_Task](), list[_Task]()
        for page in run.index.planned_pages(self._shown(run)):
            state = _state(page, basis, across)
            before = known.pop(page.first, None)
            if before is None or before[0] != state:
                changed.append((page, state))
            elif before[1] < searches or before[2] != columns:
                incomplete.append((page, state))
        if known:  # the index was made again with pages of other sizes
            with transaction(connection):
                connection.executemany("DELETE FROM pages WHERE first = ?", [(first,) for first in known])
        return changed + incomplete

    def _wishes(self, connection: sqlite3.Connection) -> tuple[str, int, int]:
        """The columns of the rows whose values are kept, whether words are kept, and how often the table changed."""
        query = "SELECT id FROM names WHERE kind = 'column' ORDER BY id"
        columns = ",".join(str(number) for (number,) in connection.execute(query))
        about = dict(connection.execute("SELECT name, value FROM about WHERE name IN ('search', 'changes')"))
        return columns, int(bool(about.get("search"))), about["changes"]

    def _content(self, run: "ViewedRun", page: PlannedPage, state: str) -> PageContent:
        across, _ = self._anomalies_and_digest(run)
        answers = run.index.rows_around(page.first)
        scores = list(run.index.scores(self._shown(run), page.first, page.end - page.first))
        equal = equal_answers(answers)
        return PageContent(page, state, answers, scores, equal, _differing(page, across), across.kinds)

    def _missing_sorts(self, connection: sqlite3.Connection) -> list[str]:
        made = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")}
        for column in [each for each in self._wanted if sort_index(each)[0] in made]:
            del self._wanted[column]
        return list(self._wanted)

    # In the background.

    def _start(self, sources: "Sources", ref: "RunRef") -> None:
        self._thread = threading.Thread(
            target=self._attempt, args=(lambda: self._work(sources, ref),), name="holdfast-table", daemon=True
        )
        self._thread.start()

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do some work. An expected failure is shown on the page, and tried again later."""
        try:
            work()
            self._problem, self._failed_at = "", float("-inf")
        except (HoldfastError, OSError, *FAILURES) as error:
            if self._stop.is_set():
                return
            is_first, self._failed_at = self._failed_at == float("-inf"), time.monotonic()
            if is_damage(error) and not isinstance(error, HoldfastError):
                if is_first:
                    self._failed_at = float("-inf")  # made again at once
                self._problem = "" if is_first else str(error)
                _log.warning("the list of samples in %s is damaged (%s); it is made again", self.file.folder, error)
                self.file.discard()
            else:
                self._problem = str(error)

    @contextlib.contextmanager
    def _writer(self) -> Iterator[bool]:
        with self.file.writer() as is_mine:
            self._is_elsewhere = not is_mine
            yield is_mine

    def _work(self, sources: "Sources", ref: "RunRef") -> None:
        with self._writer() as is_mine:
            if not is_mine:
                return
            with contextlib.closing(self.file.connect()) as connection:
                self._working = connection
                try:
                    self._write_pages(connection, sources, ref)
                    for column in self._missing_sorts(connection):
                        if not self._stop.is_set():
                            connection.execute(sort_index(column)[1])
                finally:
                    self._working = None
        self.file.make_room()
        return_memory()

    def _write_pages(self, connection: sqlite3.Connection, sources: "Sources", ref: "RunRef") -> None:
        todo: list[_Task] = []
        seen: Any = None
        reader: SampleReader | None = None
        read_spec: dict[str, Any] = {}
        with contextlib.ExitStack() as stack:
            while not self._stop.is_set():
                with sources.open(ref) as run:
                    cursor, spec = run.index.cursor, run.index.story.spec
                    if cursor != seen or not todo:
                        todo = self._todo(connection, run)[::-1]
                        if reader is None or spec != read_spec:
                            stack.close()
                            reader = stack.enter_context(contextlib.closing(SampleReader(run.place.folder, spec)))
                        writer, seen, read_spec = PageWriter(connection, reader, spec), cursor, spec
                    if not todo:
                        return
                    content = self._content(run, *todo.pop())
                writer.write(content)
                time.sleep(0.001)  # locks are not fair: a request that waits for the run gets it now


def _state(page: PlannedPage, basis: str, across: Across) -> str:
    """A digest of everything that the rows of a page are derived from."""
    differing = sorted(_differing(page, across))
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode((basis, source_of(page), page.end, page.checksums, differing)))


def _differing(page: PlannedPage, across: Across) -> frozenset[int]:
    count = page.end - page.first
    members = [each for each in across.differing.values() if each.has_any(page.first, count)]
    return frozenset(o for o in range(page.first, page.end) if any(o in each for each in members)) if members else _NONE


_NONE: frozenset[int] = frozenset()


class SampleTables:
    """The tables of one server."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str, int | None, str], SampleTable] = {}
        self._lock = threading.Lock()

    def of(self, run: "ViewedRun", evaluation: str = "") -> SampleTable:
        """The table of a run, with the scores of its current evaluation or of another one. That of a past state is kept
        only as long as the server runs.
        """
        other = "" if evaluation == run.index.story.evaluation else evaluation
        name = (run.place.folder, run.uid, run.at, other)
        with self._lock:
            table = self._tables.pop(name, None)
            if table is None:
                identity = identify(KIND, run.place.folder, run.uid) if run.at is None else None
                table = SampleTable(TableFile(identity, other), other)
            self._tables[name] = table  # the last one: it was used last
            past = [each for each in self._tables if each[2] is not None]
            surplus = past[:-_PAST_MAX] + list(self._tables)[:-_OPEN_MAX]
            for each in dict.fromkeys(surplus):
                if each != name and not self._tables[each].is_busy:
                    self._tables.pop(each).close()
            return table

    def close(self) -> None:
        with self._lock:
            for table in self._tables.values():
                table.close()
            self._tables.clear()
