"""The derived index of one run: the status and scores of each key, and where its answer is in the journal.

It is a snapshot in the user's cache (see `snapshot`): verified when it is opened, updated in a private copy, and never
changed while somebody reads it. It can be deleted at any time. If reading it fails in any way, the command that notices
rebuilds it from the journal and logs one warning; if no file can be written, the index is kept in memory. A crash
leaves the previous snapshot and at most a temporary file.
"""

import itertools
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import xxhash

from holdfast.errors import StaleCursorError
from holdfast.journal import START, Cursor, Damage, Entry, Position, Reader, journal_folder, unrecorded
from holdfast.records import Cell, FactDecoder, SampleFailed, SampleFinished, ScoreGiven, parse_key
from holdfast.state.cache import identify
from holdfast.state.dispatch import RecordHandlers
from holdfast.state.fold import failed_data, finished_data, looked_data, score_data
from holdfast.state.profile import Profile, TimedGist
from holdfast.state.rows import AnswerRow, EditRow, EvaluationCounts, MadeRow, ScoreRow
from holdfast.state.snapshot import CheckedFiles, Snapshot, Stamps, UnusableError, have_changed, stamp_segments
from holdfast.state.story import Story

_VERSION = 14
"""Of tables and columns. Raise it with every change: snapshots of other versions are rebuilt."""
_timed_gist = FactDecoder(TimedGist)
_PUBLISH_SHARE = 50
_SMALL_RECORDS = 50_000
_REBUILDS_MAX = 3
"""The last rebuild is in memory."""
_FAILURES = (sqlite3.Error, msgspec.MsgspecError, ValueError, TypeError)
"""What reading a damaged index can raise: SQLite fails, or a value does not decode."""
T = TypeVar("T")
_HANDLERS: RecordHandlers["Index", Entry] = RecordHandlers()
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
"""The scores `s` of answers that count, and the last score `e` set by hand that replaces each, if any."""


class Index:
    """Up to date when it is created; it does not change after that, whatever is appended to the journal."""

    def __init__(self, run: str, *, kept: bool = True, last: int | None = None) -> None:
        """`kept`: start from the cached snapshot and replace it; otherwise read the whole journal and keep nothing.
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
        """The last record number in started.jsonl, the copy of start records: records up to it were durable."""
        uid = Reader(journal_folder(run)).uid
        self.checked = CheckedFiles(run, uid)
        """Files that were verified before: sealed segments, and originals that other code has checked."""
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
        """Keys that have a record, in plan order; limited to `count` ordinals from `first` on."""
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
        """Scores of one answer that were set by hand, oldest first."""
        query = (
            "SELECT o, scorer, value, reason, author, at, n, segment, at_byte FROM edits "
            "WHERE o = ? AND of = ? AND evaluation = ? ORDER BY n"
        )
        return list(self._read(query, (o, of, evaluation), _edit_row))

    def made_of(self, o: int, of: int, evaluation: str) -> list[MadeRow]:
        """Scores that the scorers of an evaluation gave one answer, without scores set by hand."""
        query = (
            "SELECT scorer, value, reason, failure, metadata, last, n, segment, at_byte FROM scores "
            "WHERE o = ? AND of = ? AND evaluation = ? ORDER BY scorer"
        )
        return list(self._read(query, (o, of, evaluation), _made_row))

    def example_of(self, evaluation: str, scorer: str) -> Position | None:
        """The position of a record in which a scorer gave a value; None if it never did.

        Prefers values other than true and false: malformed answers are scored false without calling the scorer.
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
        """Ordinal and seconds of each finished answer among `count` ordinals from `first` on."""
        query = "SELECT o, seconds FROM answers WHERE o >= ? AND o < ? AND status = 'finished' ORDER BY o"
        return self._read(query, (first, first + count), _pair)

    def scored_apart(self, evaluation: str) -> Iterator[tuple[int, str]]:
        """Answers with a scorer that scored an equal answer to the same sample differently."""
        rows = (
            "scores s JOIN answers a ON a.o = s.o AND a.n = s.of "
            "WHERE s.evaluation = ? AND a.status = 'finished' AND s.failure = '' AND s.value != x'6e756c6c'"
        )
        apart = f"SELECT a.said, s.scorer FROM {rows} GROUP BY a.said, s.scorer HAVING count(DISTINCT s.value) > 1"
        query = f"SELECT s.o, s.scorer FROM {rows} AND (a.said, s.scorer) IN ({apart}) ORDER BY s.o, s.scorer"
        return self._read(query, (evaluation, evaluation), _pair)

    def unlooked(self, version: int) -> int:
        """How many finished answers this version of the anomaly checks has not seen."""
        query = "SELECT count(*) FROM answers WHERE status = 'finished' AND looked != ?"
        return next(self._read(query, (version,), int))

    def totals(self) -> dict[str, int | float]:
        """Sums over the whole run, to compare with those of another index of the same records."""
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
        """Remove the cached snapshot because it is wrong: the next reader rebuilds it."""
        self._snapshot.discard()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _count(self, status: str) -> int:
        return next(self._read("SELECT count(*) FROM answers WHERE status = ?", (status,), int))

    def _read(self, query: str, parameters: Sequence[object], make: Callable[..., T]) -> Iterator[T]:
        """Yield the rows of a query. If it fails half-way, rebuild the index from the same records and continue after
        the rows that were returned; the query must therefore have a fixed order.
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
                    continue  # another open query has rebuilt it meanwhile
                if isinstance(error, sqlite3.ProgrammingError) or self._rebuilds == _REBUILDS_MAX:
                    raise  # a bug in the caller (such as another thread), or a fault that a new file does not cure
                self._last = self.last_n  # the same records, so that rows returned so far stay valid
                self._rebuild(error)

    def _reset(self) -> None:
        self.story = Story()
        self.profile = Profile()
        self.damage: list[Damage] = []
        self._restored = False
        """Whether this index continues a snapshot, rather than reading the journal from its beginning."""

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
        """Read the whole journal: the snapshot belongs to other segments or, with an `error`, cannot be used."""
        if error is not None:
            reason = str(error) if isinstance(error, UnusableError) else f"failed ({error})"
            logging.getLogger("holdfast").warning("the index of %s %s; rebuilt from the journal", self._run, reason)
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
        """Load the story, profile and damage of a snapshot; return where in the journal it ends. StaleCursorError if a
        segment that it was built from has changed.
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
        """Apply the records after `cursor`. The snapshot is copied on the first change: most readers change nothing.
        `segments`: the states of the files, taken before reading.
        """
        reader = Reader(journal_folder(self._run), cursor=cursor)
        changes = 0
        try:
            for each in reader.read(live=True):
                if self._last is not None and isinstance(each, Entry) and each.line.n > self._last:
                    self.last_n = self._last
                    self._writable.commit()
                    return  # not published: its cursor would not match the records that were applied
                if not is_private:
                    base = self._writable
                    self._database = self._snapshot.begin(base)
                    base.close()
                    is_private = True
                changes += 1
                if isinstance(each, Damage):
                    if each not in self.damage:  # a stray file is reported by every reader
                        self.damage.append(each)
                elif not self.story.has_start(each.line):  # the copy of a lost start record is read every time
                    self._apply(each)
            self.last_n, self.start_n = reader.cursor.n, reader.start_n
            if changes:
                self._save(reader.cursor, segments)
                # Publishing rewrites the whole file. For a long run that still grows, do it only after many changes.
                if self._kept and (self.last_n < _SMALL_RECORDS or changes * _PUBLISH_SHARE > self.last_n):
                    self._snapshot.publish()
        finally:
            self._snapshot.drop()

    @property
    def lost(self) -> list[Damage]:
        """Losses in the journal that no `anomaly` record mentions, without foreign bytes that cost no record."""
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
        _HANDLERS.get(entry.line.t, Index._apply_run_record)(self, entry)
        self.story.updated = entry.line.at

    def _apply_run_record(self, entry: Entry) -> None:
        self.story.apply(entry)
        self.profile.fold(entry.line)

    @_HANDLERS.on("step")
    def _apply_step(self, entry: Entry) -> None:
        step = _timed_gist.decode(entry.line)  # once for both: most of the time of indexing is decoding steps
        self.story.answered(step, entry.line.k)
        self.profile.answered(step, entry.line)

    @_HANDLERS.on("run.resumed")
    def _apply_resumed(self, entry: Entry) -> None:
        self._apply_run_record(entry)
        self._retry(self.story.resumes[-1].resumed.retried)

    @_HANDLERS.on("run.replanned")
    def _apply_replanned(self, entry: Entry) -> None:
        self._apply_run_record(entry)
        self._rename(self.story.replans[-1].replanned.cells)

    @_HANDLERS.on("anomaly")
    def _apply_anomaly(self, entry: Entry) -> None:
        self._apply_run_record(entry)
        if entry.line.k is not None:
            self._store_anomalies(entry)
        elif self.story.anomalies:
            self._forget_lost()

    def _forget_lost(self) -> None:
        """Remove the rows of records that the last anomaly reports as lost."""
        if self._restored:  # its counters include the lost records, so only a rebuild is right
            raise StaleCursorError(f"records of {self._run} were lost since they were indexed")
        lost = self.story.anomalies[-1]
        for table in ("answers", "edits"):
            self._writable.execute(f"DELETE FROM {table} WHERE n BETWEEN ? AND ?", (lost.n_first, lost.n_last))

    def _retry(self, ordinals: tuple[int, ...] | None) -> None:
        """Failed samples that get new attempts are unfinished until they end again."""
        again = "UPDATE answers SET status = 'unfinished' WHERE status = 'failed'"
        if ordinals is None:
            self._writable.execute(again)
        else:
            self._writable.executemany(f"{again} AND o = ?", [(ordinal,) for ordinal in ordinals])

    def _rename(self, cells: Sequence[Cell]) -> None:
        """Give failures of a renamed model the keys of its new name."""
        for cell in cells:
            mine = (cell.first, cell.first + cell.count)
            for o, key in self._writable.execute("SELECT o, key FROM answers WHERE o >= ? AND o < ?", mine).fetchall():
                new = str(parse_key(key)._replace(model=cell.model))
                self._writable.execute("UPDATE answers SET key = ? WHERE o = ?", (new, o))

    @_HANDLERS.on("sample.finished")
    def _apply_finished(self, entry: Entry) -> None:
        found = finished_data.decode(entry.line)
        if self._put(entry, found, "finished", ("", "")):
            self.story.ended(found, entry.line.k)
        else:
            self.story.twice += 1

    @_HANDLERS.on("sample.failed")
    def _apply_failed(self, entry: Entry) -> None:
        found = failed_data.decode(entry.line)
        status = "failed" if found.final else "unfinished"
        if self._put(entry, found, status, (found.failure.kind, found.failure.message)):
            self.story.ended(found, entry.line.k)

    def _put(self, entry: Entry, found: SampleFinished | SampleFailed, status: str, failure: tuple[str, str]) -> bool:
        """Store the newest end of a key, unless it is finished: the first answer stays. False if nothing changed."""
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
            *_answer_columns(found, entry),
        )
        return self._writable.execute(_PUT, row).rowcount > 0

    def _store_anomalies(self, entry: Entry) -> None:
        found = looked_data.decode(entry.line)
        row = (found.version, msgspec.json.encode(found.found), found.o, found.of)
        self._writable.execute("UPDATE answers SET looked = ?, found = ? WHERE o = ? AND n = ?", row)

    @_HANDLERS.on("score")
    def _apply_score(self, entry: Entry) -> None:
        found = score_data.decode(entry.line)
        if not found.author:
            self.story.scored(found, entry.line.k)
        place, value = (found.o, found.evaluation), msgspec.json.encode(found.value)
        if found.author:
            edited = (found.scorer, found.of, value, found.reason, found.author, found.at)
            edit = (entry.line.n, *place, *edited, entry.segment, entry.offset)
            self._writable.execute("INSERT OR REPLACE INTO edits VALUES (?,?,?,?,?,?,?,?,?,?,?)", edit)
            # A row without a value, so that the hand-set score counts even if its scorer gave none.
            placeholder = (*place, found.scorer, found.of)
            self._writable.execute(
                "INSERT OR IGNORE INTO scores "
                "VALUES (?,?,?,?,CAST('null' AS BLOB),'','',CAST('{}' AS BLOB),'',0,0,0,0)",
                placeholder,
            )
            return
        self._begin_round(found)
        self.profile.scored(0.0 if found.taken else found.seconds, entry.line)
        failure = "" if found.failure is None else found.failure.message
        columns = (found.of, value, found.reason, failure, msgspec.json.encode(found.metadata), found.taken, found.last)
        row = (*place, found.scorer, *columns, entry.line.n, entry.segment, entry.offset)
        self._writable.execute("INSERT OR REPLACE INTO scores VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", row)

    def _begin_round(self, found: ScoreGiven) -> None:
        """Before the first new score of a fully scored answer, remove its old scores, under whatever names they were
        given. Scores set by hand stay.
        """
        place = (found.o, found.evaluation, found.of)
        of_answer = "o = ? AND evaluation = ? AND of = ?"
        if self._writable.execute(f"SELECT 1 FROM scores WHERE {of_answer} AND last LIMIT 1", place).fetchone() is None:
            return
        edited = f"SELECT scorer FROM edits WHERE {of_answer}"
        self._writable.execute(f"DELETE FROM scores WHERE {of_answer} AND scorer NOT IN ({edited})", (*place, *place))
        self._writable.execute(f"UPDATE scores SET last = 0 WHERE {of_answer}", place)


def _score_row(o: int, scorer: str, value: bytes, *rest: Any) -> ScoreRow:
    return ScoreRow(o, scorer, msgspec.json.decode(value), *rest)


def _edit_row(o: int, scorer: str, value: bytes, *rest: Any) -> EditRow:
    reason, author, at, *place = rest
    return EditRow(o, scorer, msgspec.json.decode(value), reason, author, at, Position(*place))


def _made_row(scorer: str, value: bytes, reason: str, failure: str, metadata: bytes, *rest: int) -> MadeRow:
    last, *place = rest
    content = (msgspec.json.decode(value), reason, failure, msgspec.json.decode(metadata))
    return MadeRow(scorer, *content, bool(last), Position(*place))


def _pair(one: int, other: Any) -> tuple[int, Any]:
    return one, other


def _numbers(*every: float | None) -> tuple[float, ...]:
    return tuple(each or 0 for each in every)


def _answer_columns(found: SampleFinished | SampleFailed, entry: Entry) -> tuple[str, int, bytes, int, int]:
    """The columns marks, looked, found, said and characters. `said` is a digest that is the same for equal answers to a
    sample, in every repeat and of every model.
    """
    if isinstance(found, SampleFailed):
        return "", 0, b"{}", 0, 0
    answer = found.answer
    task, _, sample, _ = str(entry.line.k).split("/")
    content = msgspec.json.encode((task, sample, answer.text, answer.tool_calls))
    said = xxhash.xxh3_64_intdigest(content) - (1 << 63)  # SQLite integers are signed
    marks = " ".join(answer.marks)
    return marks, found.looked, msgspec.json.encode(found.anomalies), said, len(answer.text)
