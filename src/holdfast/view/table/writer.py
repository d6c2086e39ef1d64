"""Writes pages of samples to the table: one transaction for each page of the index.

A page is written when what it is derived from has changed: its `state` is a digest of that. Within a page only rows
that differ are written, and only answers that the table does not have yet are read from the journal. Every row has a
checksum that is verified when it is shown.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import xxhash

from holdfast.records import MARKS
from holdfast.report import StoredSpec, used_dollars, without_scorer_name
from holdfast.score import KINDS, as_number
from holdfast.state import LONG, AnswerRow, PlannedPage, ScoreRow
from holdfast.view.table.file import GENERATIONS, DamagedTableError, transaction
from holdfast.view.table.rows import PageStart, PlannedSample, SampleReader
from holdfast.view.table.words import column_text, excerpt, searchable, shape

UNFINISHED, FINISHED, FAILED = range(3)
STATUSES = ("unfinished", "finished", "failed")
"""By their numbers in the table."""
FLAGS = {name: 1 << at for at, name in enumerate((*MARKS, *KINDS))}
"""Bits for marks and recorded anomalies. The bit of `identical` only says that all repeats are equal."""
LONG_EQUAL = 1 << 40
"""All repeats are equal, and long."""
NOTHING = -1.0
"""Seconds, dollars or tokens that are not known. Sorts before everything else."""
CAUSES_MAX = 2000
_encode = msgspec.msgpack.Encoder().encode
FACTS = "n, status, kind, cause, attempts, tokens, output, seconds, dollars, flags, wrong, generation"
_NEVER = (0, UNFINISHED, 0, 0, 0, -1, -1, NOTHING, NOTHING, 0, 0, 0)


class PageContent(NamedTuple):
    """Everything of the index that a page of the table is derived from."""

    page: PlannedPage
    state: str
    answers: Mapping[int, AnswerRow]
    scores: Sequence[ScoreRow]
    equal: frozenset[int]
    """Answers that are equal in all repeats of their sample."""
    differing: frozenset[int]
    """Answers whose scores differ from those of an equal answer."""
    kinds: frozenset[str]
    """Anomalies that the spec enables."""


def verified(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row without its checksum, the last value. DamagedTableError if it is wrong."""
    *values, found = row
    if checksum(*values) != found:
        raise DamagedTableError(f"the row of {values[0]} has a wrong checksum")
    return tuple(values)


def checksum(*values: Any) -> int:
    """Of a row. A database integer is signed, so one bit is dropped."""
    return xxhash.xxh3_64_intdigest(_encode(values)) >> 1


def cause_id(kind: str, message: str) -> int:
    """The number of a cause: the same in every table, because addresses of pages hold it. Never 0."""
    return int.from_bytes(blake2b(_encode((kind, message)), digest_size=6).digest(), "big") or 1


def source_of(page: PlannedPage) -> str:
    """The files that the keys of a page come from."""
    cell = page.cell
    return f"{cell.task}/{cell.model}:{cell.block}:{cell.rows_block}:{cell.plan_at}:{cell.data_at}:{cell.first}"


def scorer_kind(scorer: str) -> str:
    """The kind of the causes of a scorer's failures."""
    return f"scorer {scorer}"


class PageWriter:
    """Writes pages of one run through one connection. The caller has the right to write."""

    def __init__(self, connection: sqlite3.Connection, reader: SampleReader, spec: dict[str, Any]) -> None:
        self._database = connection
        self._reader = reader
        self._spec = StoredSpec.of(spec)
        self._names: dict[tuple[str, str], int] = {
            (kind, name): number for number, kind, name in connection.execute("SELECT id, kind, name FROM names")
        }
        self._causes = {number for (number,) in connection.execute("SELECT id FROM causes")}
        wanted = connection.execute("SELECT value FROM about WHERE name = 'search'").fetchone()
        self.searches = bool(wanted and wanted[0])
        """Whether the words of samples are kept."""

    def write(self, content: PageContent) -> None:
        """Bring one page up to date."""
        with transaction(self._database):
            self._write(content)
            self._database.execute("UPDATE about SET value = value + 1 WHERE name = 'changes'")

    def _write(self, content: PageContent) -> None:
        page, source = content.page, source_of(content.page)
        columns = {name: number for (kind, name), number in self._names.items() if kind == "column"}
        listed = ",".join(map(str, sorted(columns.values())))
        before = self._database.execute(
            "SELECT first, plan_at, data_at, end, source, searched, columns FROM pages WHERE first = ?", (page.first,)
        ).fetchone()
        has_keys = before is not None and before[3:5] == (page.end, source)
        has_words = has_keys and bool(before[5])
        old = self._old_facts(page)
        start = PageStart(*before[:3]) if has_keys else None
        planned: list[PlannedSample] = []
        if not has_keys or has_words < self.searches or before[6] != listed:
            self._reader.columns = columns
            start, planned = self._reader.samples(page, self._known_start(page, source))
        if not has_keys:
            self._write_questions(planned)
        if planned:
            self._write_columns(planned, columns)
        changed = not has_keys or (self.searches and not has_words)
        texts = self._write_answers(content, old, has_keys, every=changed)
        if self.searches:
            self._write_words(content, planned, texts, is_first=not has_words)
        self._write_scores(content)
        assert start is not None
        self._database.execute(
            "INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (page.first, page.end, source, content.state, *start[1:], int(self.searches), listed),
        )

    def _known_start(self, page: PlannedPage, source: str) -> PageStart | None:
        found = self._database.execute(
            "SELECT first, plan_at, data_at FROM pages WHERE first BETWEEN ? AND ? AND source = ? "
            "ORDER BY first DESC LIMIT 1",
            (page.cell.first, page.first, source),
        ).fetchone()
        return None if found is None else PageStart(*found)

    def _old_facts(self, page: PlannedPage) -> dict[int, tuple[Any, ...]]:
        rows = self._database.execute(
            f"SELECT o, {FACTS} FROM samples WHERE o BETWEEN ? AND ?", (page.first, page.end - 1)
        )
        return {row[0]: row[1:] for row in rows}

    def _write_questions(self, planned: Iterable[PlannedSample]) -> None:
        rows = []
        for each in planned:
            values = (each.o, each.key, each.row_at, excerpt(each.asked.input), excerpt(each.asked.target))
            rows.append((*values, checksum(*values)))
        self._database.executemany("INSERT OR REPLACE INTO questions VALUES (?, ?, ?, ?, ?, ?)", rows)

    def _write_columns(self, planned: Iterable[PlannedSample], columns: Mapping[str, int]) -> None:
        rows = [(columns[name], each.o, *values) for each in planned for name, values in each.asked.values.items()]
        self._database.executemany("INSERT OR REPLACE INTO row_values VALUES (?, ?, ?, ?)", rows)

    def _write_answers(
        self, content: PageContent, old: Mapping[int, tuple[Any, ...]], has_keys: bool, *, every: bool
    ) -> dict[int, str]:
        """Write what differs. Returns the texts of answers and messages that are new or, with `every`, of all. Without
        `has_keys` the old rows may be those of other keys.
        """
        page, texts = content.page, dict[int, str]()
        wrong = {row.o for row in content.scores if not row.failure and as_number(row.value) == 0}
        prices = self._spec.prices(page.cell.model)
        facts, answers = [], []
        for o in range(page.first, page.end):
            row, before = content.answers.get(o), old.get(o)
            is_new = not has_keys or before is None or before[0] != (0 if row is None else row.n)
            text = ""
            if row is not None and (is_new or every):
                read = self._reader.answer_text(row) if row.status == "finished" else ""
                row, text = (None, "") if read is None else (row, read)
            generation = before[-1] if before is not None else 0
            if row is None:
                found = (*_NEVER[:-1], generation)
            else:
                found = self._facts(content, row, used_dollars(row.used_by_role(), prices), o in wrong, generation)
            if is_new or every:
                texts[o] = text or ("" if row is None else row.message)
            if is_new and before is not None and self.searches and generation < GENERATIONS - 1:
                found = (*found[:-1], generation + 1)
            if found != before:
                facts.append((o, *found, checksum(o, *found)))
            if is_new and row is not None:
                shown = (o, excerpt(text), excerpt(row.message))
                answers.append((*shown, checksum(*shown)))
        marks = ", ".join("?" * 14)
        self._database.executemany(f"INSERT OR REPLACE INTO samples VALUES ({marks})", facts)
        self._database.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", answers)
        return texts

    def _facts(
        self, content: PageContent, row: AnswerRow, dollars: float | None, wrong: bool, generation: int
    ) -> tuple[Any, ...]:
        status = STATUSES.index(row.status)
        return (
            row.n,
            status,
            self._name("kind", row.kind) if row.kind else 0,
            self._cause(row.kind, row.message) if row.kind else 0,
            row.attempt,
            row.input_tokens + row.output_tokens,
            row.output_tokens,
            float(row.seconds),
            NOTHING if dollars is None else dollars,
            _flags(content, row) if status == FINISHED else 0,
            int(wrong),
            generation,
        )

    def _write_words(
        self, content: PageContent, planned: Sequence[PlannedSample], texts: Mapping[int, str], *, is_first: bool
    ) -> None:
        """Add the words of samples that are new or changed. The old words of a changed sample stay behind under its
        earlier generation, which no query accepts.
        """
        page = content.page
        changed = list(range(page.first, page.end)) if is_first else list(texts)
        if not changed:
            return
        samples = planned or self._reader.samples(page, self._known_start(page, source_of(page)))[1]
        generations = {o: facts[-1] for o, facts in self._old_facts(page).items()}
        rows = []
        for o in changed:
            each = samples[o - page.first]
            text = searchable(each.key.split("/")[2], each.asked.input, each.asked.target, texts.get(o, ""))
            rows.append((o * GENERATIONS + generations[o], text))
        self._database.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)

    def _write_scores(self, content: PageContent) -> None:
        """Replace the scores of a page, if they differ."""
        page = content.page
        new = {(values[0], values[1]): values for values in map(self._score, content.scores)}
        numbers = [number for (kind, _), number in self._names.items() if kind == "scorer"]
        old = {
            (row[0], row[1]): row
            for number in numbers
            for row in self._database.execute(
                "SELECT s, o, number, label, failure, cause, edited, x FROM scores WHERE s = ? AND o BETWEEN ? AND ?",
                (number, page.first, page.end - 1),
            )
        }
        gone = [place for place in old if place not in new]
        self._database.executemany("DELETE FROM scores WHERE s = ? AND o = ?", gone)
        changed = [values for place, values in new.items() if old.get(place) != values]
        self._database.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?, ?, ?)", changed)

    def _score(self, row: ScoreRow) -> tuple[Any, ...]:
        number = None if row.failure else as_number(row.value)
        label = failure = ""
        cause = 0
        if row.failure:
            failure = excerpt(without_scorer_name(row.scorer, row.failure))
            cause = self._cause(scorer_kind(row.scorer), without_scorer_name(row.scorer, row.failure))
        elif row.value is True or row.value is False or (number is None and row.value is not None):
            label = excerpt(column_text(row.value))
        values = (self._name("scorer", row.scorer), row.o, number, label, failure, cause, int(bool(row.author)))
        return (*values, checksum(*values))

    def _name(self, kind: str, name: str) -> int:
        found = self._names.get((kind, name))
        if found is None:
            found = add_name(self._database, kind, name)
            self._names[kind, name] = found
        return found

    def _cause(self, kind: str, message: str) -> int:
        found = shape(message)
        number = cause_id(kind, found)
        if number in self._causes:
            return number
        if len(self._causes) >= CAUSES_MAX:  # nearly every message is different: the kind has to do
            found, number = "", cause_id(kind, "")
        values = (number, kind, found)
        self._database.execute("INSERT OR IGNORE INTO causes VALUES (?, ?, ?, ?)", (*values, checksum(*values)))
        self._causes.add(number)
        return number


def add_name(connection: sqlite3.Connection, kind: str, name: str) -> int:
    """The number of a name; a new one gets the next number."""
    known = connection.execute("SELECT id FROM names WHERE kind = ? AND name = ?", (kind, name)).fetchone()
    if known is not None:
        return int(known[0])
    number = int(connection.execute("SELECT coalesce(max(id), 0) + 1 FROM names").fetchone()[0])
    values = (number, kind, name)
    connection.execute("INSERT INTO names VALUES (?, ?, ?, ?)", (*values, checksum(*values)))
    return number


def _flags(content: PageContent, row: AnswerRow) -> int:
    found = 0
    for name in row.marks.split() if row.marks else ():
        found |= FLAGS.get(name, 0)
    for kind in row.found():
        found |= FLAGS.get(kind, 0) if kind in content.kinds else 0
    if row.o in content.equal:
        found |= FLAGS["identical"] | (LONG_EQUAL if row.characters >= LONG else 0)
    if row.o in content.differing:
        found |= FLAGS["scores_differ"]
    return found
