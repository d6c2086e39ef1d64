"""The derived index of one run: each key's status and scores, and where its answer is.

It is a snapshot in the user's cache (see `snapshot`): verified when it is opened, brought up to date in a private copy,
and never changed while it is read. It can be deleted at any time. An index that fails in any way is rebuilt from the
journal by the command that meets it, with one warning; if no file can be written it is made in memory.
"""

import itertools
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import xxhash

from holdfast.errors import StaleCursorError
from holdfast.journal import START, Cursor, Damage, Entry, Reader, journal_folder
from holdfast.journal.positions import Position, unrecorded
from holdfast.records.decoder import FactDecoder
from holdfast.records.facts import Cell, SampleFailed, SampleFinished, ScoreGiven
from holdfast.records.keys import parse_key
from holdfast.state.cache import identify
from holdfast.state.fold import failed_data, finished_data, looked_data, score_data
from holdfast.state.profile import Profile, TimedGist
from holdfast.state.rows import AnswerRow, EditRow, EvaluationCounts, MadeRow, ScoreRow
from holdfast.state.snapshot import CheckedFiles, Snapshot, Stamps, UnusableError, have_changed, stamp_segments
from holdfast.state.story import Story

_VERSION = 14
_timed_gist = FactDecoder(TimedGist)
_PUBLISH_SHARE = 50
_SMALL_RECORDS = 50_000
_REBUILDS_MAX = 3
"""The last one is in memory."""
_FAILURES = (sqlite3.Error, msgspec.MsgspecError, ValueError, TypeError)
"""Of reading an index: SQLite refuses, or a value is not what was written."""
T = TypeVar("T")
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
CREATE TABLE answers (
    o INTEGER PRIMARY KEY, key TEXT, status TEXT, n INTEGER, segment INTEGER, at_byte INTEGER, attempt INTEGER,
    input_tokens INTEGER, output_tokens INTEGER, seconds REAL, kind TEXT, message TEXT,
    used BLOB, marks TEXT, looked INTEGER, found BLOB, said INTEGER, characters INTEGER
);
CREATE INDEX answers_by_key ON answers (key);
CREATE TABLE scores (
    o INTEGER, evaluation TEXT, scorer TEXT, of INTEGER, value BLOB, reason TEXT, failure TEXT, metadata BLOB,
    taken TEXT, last INTEGER, n INTEGER, segment INTEGER, at_byte INTEGER, PRIMARY KEY (o, evaluation, scorer)
) WITHOUT ROWID;
CREATE TABLE edits (
    n INTEGER PRIMARY KEY, o INTEGER, evaluation TEXT, scorer TEXT, of INTEGER, value BLOB, reason TEXT, author TEXT,
    at TEXT, segment INTEGER, at_byte INTEGER
);
CREATE INDEX edits_by_answer ON edits (o, evaluation, scorer);
"""

_PUT = """
INSERT INTO answers VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (o) DO UPDATE SET
    status = excluded.status, n = excluded.n, segment = excluded.segment, at_byte = excluded.at_byte,
    attempt = excluded.attempt, input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
    seconds = excluded.seconds, kind = excluded.kind, message = excluded.message,
    used = excluded.used, marks = excluded.marks, looked = excluded.looked, found = excluded.found,
    said = excluded.said, characters = excluded.characters
WHERE answers.status != 'finished'
"""

_COUNTING = """
FROM scores s JOIN answers a ON a.o = s.o AND a.n = s.of AND a.status = 'finished' LEFT JOIN edits e ON e.n = (
    SELECT max(n) FROM edits WHERE o = s.o AND evaluation = s.evaluation AND scorer = s.scorer AND of = s.of
) WHERE s.evaluation = ?
"""
"""The scores of answers that count, `s`, and what was last set by hand in their place, `e`, if anything was."""


class Index:
    """Up to date when it is made; from then on it says the same, whatever is added to the journal."""

    def __init__(self, run: str, *, kept: bool = True, last: int | None = None) -> None:
        """`kept`: start from the cached snapshot, and replace it; otherwise read the whole journal and keep nothing.
        `last`: ignore records with higher numbers.
        """
        self._run = run
        self._kept = kept
        self._last = last
        self._rebuilds = 0
        self._reset()
        self.last_n = 0
        """The number of the last record."""
        self.start_n = 0
        """The last number in started.jsonl: a record with this number was durable."""
        uid = Reader(journal_folder(run)).uid
        self.checked = CheckedFiles(run, uid)
        """Files that were found right: sealed segments, and originals that others have checked."""
        self._snapshot = Snapshot(identify("runs", run, uid), _VERSION, _SCHEMA)
        self._database: sqlite3.Connection | None = None
        try:
            self._open()
        except StaleCursorError:
            self._rebuild()
        except (UnusableError, sqlite3.Error) as error:
            self._rebuild(error)

    @property
    def folder(self) -> str:
        """Of the run."""
        return self._run

    @property
    def finished(self) -> int:
        return self._count("finished")

    @property
    def failed(self) -> int:
        return self._count("failed")

    @property
    def unfinished(self) -> int:
        return self.story.planned - self.finished - self.failed

    def answers(self, status: str = "", first: int = 0, count: int = -1) -> Iterator[AnswerRow]:
        """Keys in plan order that have a record; `count` keys from ordinal `first` on."""
        last = -1 if count < 0 else first + count
        query = "SELECT * FROM answers WHERE o >= ? AND (? < 0 OR o < ?) AND (? = '' OR status = ?) ORDER BY o"
        return self._read(query, (first, last, last, status, status), AnswerRow)

    def answer(self, key: str) -> AnswerRow | None:
        return next(self._read("SELECT * FROM answers WHERE key = ?", (key,), AnswerRow), None)

    def scores(self, evaluation: str, first: int = 0, count: int = -1) -> Iterator[ScoreRow]:
        """The scores of one evaluation, of answers that count, in plan order."""
        last = -1 if count < 0 else first + count
        query = (
            "SELECT s.o, s.scorer, coalesce(e.value, s.value), coalesce(e.reason, s.reason), "
            f"iif(e.n IS NULL, s.failure, ''), coalesce(e.author, '') {_COUNTING} "
            "AND s.o >= ? AND (? < 0 OR s.o < ?) ORDER BY s.o, s.scorer"
        )
        return self._read(query, (evaluation, first, last, last), _score_row)

    def edits_of(self, o: int, of: int, evaluation: str) -> list[EditRow]:
        """What was set by hand of one answer, the oldest first."""
        query = (
            "SELECT o, scorer, value, reason, author, at, n, segment, at_byte FROM edits "
            "WHERE o = ? AND of = ? AND evaluation = ? ORDER BY n"
        )
        return list(self._read(query, (o, of, evaluation), _edit_row))

    def made_of(self, o: int, of: int, evaluation: str) -> list[MadeRow]:
        """What the scorers of an evaluation said themselves of one answer."""
        query = (
            "SELECT scorer, value, reason, failure, metadata, last, n, segment, at_byte FROM scores "
            "WHERE o = ? AND of = ? AND evaluation = ? ORDER BY scorer"
        )
        return list(self._read(query, (o, of, evaluation), _made_row))

    def example_of(self, evaluation: str, scorer: str) -> Position | None:
        """Where a record is in which a scorer gave a value; None if it gave none. True or False only if it gave nothing
        else: an answer that is malformed is scored False without asking the scorer.
        """
        query = (
            "SELECT n, segment, at_byte FROM scores WHERE evaluation = ? AND scorer = ? AND value != x'6e756c6c' "
            "ORDER BY value IN (x'74727565', x'66616c7365') LIMIT 1"
        )
        return next(self._read(query, (evaluation, scorer), Position), None)

    def counts_of(self, evaluation: str) -> EvaluationCounts:
        query = (
            "SELECT coalesce(sum(s.last), 0), "
            "coalesce(sum(coalesce(e.value, s.value) != x'6e756c6c'), 0), "
            "coalesce(sum(coalesce(e.value, s.value) = x'6e756c6c' AND (e.n IS NOT NULL OR s.failure = '')), 0), "
            "coalesce(sum(e.n IS NULL AND s.failure != ''), 0), "
            f"count(e.n), coalesce(sum(s.taken != ''), 0) {_COUNTING}"
        )
        return next(self._read(query, (evaluation,), EvaluationCounts))

    def seconds(self, first: int, count: int) -> Iterator[tuple[int, float]]:
        """Of each finished answer from ordinal `first` on: how long it took."""
        query = "SELECT o, seconds FROM answers WHERE o >= ? AND o < ? AND status = 'finished' ORDER BY o"
        return self._read(query, (first, first + count), _pair)

    def scored_apart(self, evaluation: str) -> Iterator[tuple[int, str]]:
        """Answers, with the scorer's name, of which another scorer's word on an equal answer differs."""
        rows = (
            "scores s JOIN answers a ON a.o = s.o AND a.n = s.of "
            "WHERE s.evaluation = ? AND a.status = 'finished' AND s.failure = '' AND s.value != x'6e756c6c'"
        )
        apart = f"SELECT a.said, s.scorer FROM {rows} GROUP BY a.said, s.scorer HAVING count(DISTINCT s.value) > 1"
        query = f"SELECT s.o, s.scorer FROM {rows} AND (a.said, s.scorer) IN ({apart}) ORDER BY s.o, s.scorer"
        return self._read(query, (evaluation, evaluation), _pair)

    def unlooked(self, version: int) -> int:
        """How many answers were not looked at with this version of the list of anomalies."""
        query = "SELECT count(*) FROM answers WHERE status = 'finished' AND looked != ?"
        return next(self._read(query, (version,), int))

    def totals(self) -> dict[str, int | float]:
        """Sums over the whole run, to be compared with those of another index of the same records."""
        tables = {
            "answers": "count(*), sum(o), sum(n), sum(input_tokens), sum(output_tokens), sum(seconds), sum(characters)",
            "scores": "count(*), sum(o), sum(of), sum(n), sum(last), sum(length(value)), sum(CAST(value AS REAL))",
            "edits": "count(*), sum(o), sum(of), sum(n), sum(length(value)), sum(CAST(value AS REAL))",
        }
        found: dict[str, int | float] = {"planned": self.story.planned, "steps": self.story.steps}
        found |= {"finished": self.finished, "failed": self.failed, "unfinished": self.unfinished}
        for evaluation in self.story.evaluations:
            counts = msgspec.structs.asdict(self.counts_of(evaluation))
            found |= {f"{name} of evaluation {evaluation}": count for name, count in counts.items()}
        for table, columns in tables.items():
            sums = next(self._read(f"SELECT {columns} FROM {table}", (), _numbers))
            found |= {f"{column} of {table}": each for column, each in zip(columns.split(", "), sums, strict=True)}
        return found

    def remove(self) -> None:
        """Remove its snapshot, which is wrong: the next reader makes another."""
        self._snapshot.discard()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _count(self, status: str) -> int:
        return next(self._read("SELECT count(*) FROM answers WHERE status = ?", (status,), int))

    def _read(self, query: str, parameters: Sequence[object], make: Callable[..., T]) -> Iterator[T]:
        """The rows of a query with a fixed order. If it fails half-way, the index is rebuilt from the same records, and
        the query continues behind the rows that were returned.
        """
        returned = 0
        while True:
            database = self._database
            try:
                if database is None:
                    raise sqlite3.ProgrammingError("the index is closed")
                for row in itertools.islice(database.execute(query, parameters), returned, None):
                    made = make(*row)
                    returned += 1
                    yield made
                return
            except _FAILURES as error:
                if database is not self._database:
                    continue  # another query has rebuilt it
                if isinstance(error, sqlite3.ProgrammingError) or self._rebuilds == _REBUILDS_MAX:
                    raise  # a mistake of the caller, e.g. another thread; or not a fault of the file
                self._last = self.last_n
                self._rebuild(error)

    def _reset(self) -> None:
        self.story = Story()
        self.profile = Profile()
        self.damage: list[Damage] = []
        self._restored = False
        """Whether it continues a snapshot, instead of reading the journal from its beginning."""

    def _open(self) -> None:
        self._database = self._snapshot.open() if self._kept else None
        segments = stamp_segments(journal_folder(self._run))
        if self._database is None:
            self._database = self._snapshot.begin()
            self._catch_up(START, segments, is_private=True)
        else:
            self._restored = True
            self._catch_up(self._restore(self._database, segments), segments, is_private=False)

    def _rebuild(self, error: Exception | None = None) -> None:
        """From the whole journal: the snapshot is of another journal, or, with an `error`, it cannot be used."""
        if error is not None:
            said = str(error) if isinstance(error, UnusableError) else f"failed ({error})"
            logging.getLogger("holdfast").warning("the index of %s %s; rebuilt from the journal", self._run, said)
        self.close()
        self._snapshot.discard()
        while True:
            self._rebuilds += 1
            self._reset()
            self._database = self._snapshot.begin(in_memory=self._rebuilds == _REBUILDS_MAX)
            try:
                self._catch_up(START, stamp_segments(journal_folder(self._run)), is_private=True)
                return
            except (sqlite3.Error, StaleCursorError):
                self.close()
                if self._rebuilds >= _REBUILDS_MAX:
                    raise

    def _restore(self, database: sqlite3.Connection, segments: Stamps) -> Cursor:
        """What a snapshot holds besides its tables, and where in the journal it ends. StaleCursorError if a segment
        that it was made from has changed.
        """
        try:
            saved = dict(database.execute("SELECT name, value FROM meta"))
            self.story = msgspec.json.decode(saved["story"], type=Story)
            self.profile = msgspec.json.decode(saved["profile"], type=Profile)
            self.damage = msgspec.json.decode(saved["damage"], type=list[Damage])
            cursor = msgspec.json.decode(saved["cursor"], type=Cursor)
            read = msgspec.json.decode(saved["segments"], type=Stamps)
        except (*_FAILURES, KeyError) as error:
            raise UnusableError(f"cannot be decoded ({error})") from error
        if have_changed(journal_folder(self._run), read, segments, self.checked):
            raise StaleCursorError(f"{self._run}: a segment has changed since the index was made")
        return cursor

    def _catch_up(self, cursor: Cursor, segments: Stamps, *, is_private: bool) -> None:
        """Read what came since. The snapshot is copied as soon as there is anything to change. `segments`: their states
        before they are read.
        """
        reader = Reader(journal_folder(self._run), cursor=cursor)
        changes = 0
        try:
            for each in reader.read(live=True):
                if self._last is not None and isinstance(each, Entry) and each.line.n > self._last:
                    self.last_n = self._last
                    self._writable.commit()
                    return  # the cursor is not at the end of what was applied: not to be kept
                if not is_private:
                    base = self._writable
                    self._database = self._snapshot.begin(base)
                    base.close()
                    is_private = True
                changes += 1
                if isinstance(each, Damage):
                    if each not in self.damage:  # a stray file is reported by every reader
                        self.damage.append(each)
                elif not self.story.has_start(each.line):  # a copy of a lost last record is read each time
                    self._apply(each)
            self.last_n, self.start_n = reader.cursor.n, reader.start_n
            if changes:
                self._save(reader.cursor, segments)
                # Of a long run that is being written, a reader keeps only what is worth writing the whole file again.
                if self._kept and (self.last_n < _SMALL_RECORDS or changes * _PUBLISH_SHARE > self.last_n):
                    self._snapshot.publish()
        finally:
            self._snapshot.drop()

    @property
    def lost(self) -> list[Damage]:
        """Losses in the journal that no record mentions. Foreign bytes that cost no record are not among them."""
        found = unrecorded(self.damage, self.story.anomalies)
        return [each for each in found if each.records_lost or each.kind == "fence"]

    def _save(self, cursor: Cursor, segments: Stamps) -> None:
        values = {
            "cursor": cursor,
            "story": self.story,
            "profile": self.profile,
            "damage": self.damage,
            "segments": segments,
        }
        rows = [(name, msgspec.json.encode(value)) for name, value in values.items()]
        self._writable.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
        self._writable.commit()

    @property
    def _writable(self) -> sqlite3.Connection:
        assert self._database is not None
        return self._database

    def _apply(self, entry: Entry) -> None:
        kind = entry.line.t
        if kind == "step":
            step = _timed_gist.decode(entry.line)
            self.story.answered(step, entry.line.k)
            self.profile.answered(step, entry.line)
        elif kind == "sample.finished":
            self._finished(entry)
        elif kind == "sample.failed":
            self._failed(entry)
        elif kind == "score":
            self._score(entry)
        else:
            self.story.apply(entry)
            self.profile.apply(entry.line)
            if kind == "run.resumed":
                self._retry(self.story.resumes[-1].resumed.retried)
            elif kind == "run.replanned":
                self._rename(self.story.replans[-1].replanned.cells)
            elif kind == "anomaly" and entry.line.k is not None:
                self._looked(entry)
            elif kind == "anomaly" and self.story.anomalies:
                self._forget_lost()
        self.story.updated = entry.line.at

    def _forget_lost(self) -> None:
        """Remove what records said that the last anomaly says are lost."""
        if self._restored:  # it counts records that are lost now, as steps and scores
            raise StaleCursorError(f"records of {self._run} were lost since they were indexed")
        lost = self.story.anomalies[-1]
        for table in ("answers", "edits"):
            self._writable.execute(f"DELETE FROM {table} WHERE n BETWEEN ? AND ?", (lost.n_first, lost.n_last))

    def _retry(self, ordinals: tuple[int, ...] | None) -> None:
        """Failed samples that were given new attempts are unfinished until they end again."""
        again = "UPDATE answers SET status = 'unfinished' WHERE status = 'failed'"
        if ordinals is None:
            self._writable.execute(again)
        else:
            self._writable.executemany(f"{again} AND o = ?", [(ordinal,) for ordinal in ordinals])

    def _rename(self, cells: Sequence[Cell]) -> None:
        """Failures of a model that was renamed belong to its new keys."""
        for cell in cells:
            mine = (cell.first, cell.first + cell.count)
            for o, key in self._writable.execute("SELECT o, key FROM answers WHERE o >= ? AND o < ?", mine).fetchall():
                new = str(parse_key(key)._replace(model=cell.model))
                self._writable.execute("UPDATE answers SET key = ? WHERE o = ?", (new, o))

    def _finished(self, entry: Entry) -> None:
        found = finished_data.decode(entry.line)
        if self._put(entry, found, "finished", ("", "")):
            self.story.ended(found, entry.line.k)
        else:
            self.story.twice += 1

    def _failed(self, entry: Entry) -> None:
        found = failed_data.decode(entry.line)
        status = "failed" if found.final else "unfinished"
        if self._put(entry, found, status, (found.failure.kind, found.failure.message)):
            self.story.ended(found, entry.line.k)

    def _put(self, entry: Entry, found: SampleFinished | SampleFailed, status: str, failure: tuple[str, str]) -> bool:
        """What is newest of a key counts, until it is finished: the first answer stays. False if nothing changed."""
        used = found.spent.usage + found.spent.saved
        place = (entry.line.n, entry.segment, entry.offset, found.attempt)
        cost = (used.input_tokens, used.output_tokens, found.spent.seconds)
        by_role = {role: each.usage + each.saved for role, each in found.spent.by_role().items()}
        row = (
            found.o,
            entry.line.k,
            status,
            *place,
            *cost,
            *failure,
            msgspec.json.encode(by_role),
            *_told(found, entry),
        )
        return self._writable.execute(_PUT, row).rowcount > 0

    def _looked(self, entry: Entry) -> None:
        found = looked_data.decode(entry.line)
        row = (found.version, msgspec.json.encode(found.found), found.o, found.of)
        self._writable.execute("UPDATE answers SET looked = ?, found = ? WHERE o = ? AND n = ?", row)

    def _score(self, entry: Entry) -> None:
        found = score_data.decode(entry.line)
        if not found.author:
            self.story.scored(found, entry.line.k)
        place, value = (found.o, found.evaluation), msgspec.json.encode(found.value)
        if found.author:
            said_by_hand = (found.scorer, found.of, value, found.reason, found.author, found.at)
            edit = (entry.line.n, *place, *said_by_hand, entry.segment, entry.offset)
            self._writable.execute("INSERT OR REPLACE INTO edits VALUES (?,?,?,?,?,?,?,?,?,?,?)", edit)
            stand_in = (*place, found.scorer, found.of)  # where its scorer has said nothing, it counts all the same
            self._writable.execute(
                "INSERT OR IGNORE INTO scores "
                "VALUES (?,?,?,?,CAST('null' AS BLOB),'','',CAST('{}' AS BLOB),'',0,0,0,0)",
                stand_in,
            )
            return
        self._begin_round(found)
        self.profile.scored(0.0 if found.taken else found.seconds, entry.line)
        failure = "" if found.failure is None else found.failure.message
        said = (found.of, value, found.reason, failure, msgspec.json.encode(found.metadata), found.taken, found.last)
        row = (*place, found.scorer, *said, entry.line.n, entry.segment, entry.offset)
        self._writable.execute("INSERT OR REPLACE INTO scores VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", row)

    def _begin_round(self, found: ScoreGiven) -> None:
        """An answer that had all its scores gets new ones: those before do not count, under whatever names they were
        given. What was set by hand stays.
        """
        place = (found.o, found.evaluation, found.of)
        of_it = "o = ? AND evaluation = ? AND of = ?"
        if self._writable.execute(f"SELECT 1 FROM scores WHERE {of_it} AND last LIMIT 1", place).fetchone() is None:
            return
        edited = f"SELECT scorer FROM edits WHERE {of_it}"
        self._writable.execute(f"DELETE FROM scores WHERE {of_it} AND scorer NOT IN ({edited})", (*place, *place))
        self._writable.execute(f"UPDATE scores SET last = 0 WHERE {of_it}", place)


def _score_row(o: int, scorer: str, value: bytes, *rest: Any) -> ScoreRow:
    return ScoreRow(o, scorer, msgspec.json.decode(value), *rest)


def _edit_row(o: int, scorer: str, value: bytes, *rest: Any) -> EditRow:
    reason, author, at, *place = rest
    return EditRow(o, scorer, msgspec.json.decode(value), reason, author, at, Position(*place))


def _made_row(scorer: str, value: bytes, reason: str, failure: str, metadata: bytes, *rest: int) -> MadeRow:
    last, *place = rest
    said = (msgspec.json.decode(value), reason, failure, msgspec.json.decode(metadata))
    return MadeRow(scorer, *said, bool(last), Position(*place))


def _pair(one: int, other: Any) -> tuple[int, Any]:
    return one, other


def _numbers(*every: float | None) -> tuple[float, ...]:
    return tuple(each or 0 for each in every)


def _told(found: SampleFinished | SampleFailed, entry: Entry) -> tuple[str, int, bytes, int, int]:
    """What is known of an answer as such: its marks, its anomalies, and by what it is told from others."""
    if isinstance(found, SampleFailed):
        return "", 0, b"{}", 0, 0
    answer = found.answer
    task, _, sample, _ = str(entry.line.k).split("/")
    told = msgspec.json.encode((task, sample, answer.text, answer.tool_calls))
    said = xxhash.xxh3_64_intdigest(told) - (1 << 63)  # as SQLite has numbers
    marks = " ".join(answer.marks)
    return marks, found.looked, msgspec.json.encode(found.anomalies), said, len(answer.text)
