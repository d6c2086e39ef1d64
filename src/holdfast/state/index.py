"""The derived index of one run: each key's status and scores, and where its answer is. A reader brings it up to date.

It can be deleted at any time. It lives in the run's folder or, where that is read-only or networked, in the user's
cache. If its file is locked, damaged or outdated, or can be written nowhere, the index is made in memory for this one
look: it never delays or fails anything else.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator

import msgspec
import xxhash

from holdfast.errors import StaleCursorError
from holdfast.journal import START, Cursor, Damage, Entry, Reader, journal_folder
from holdfast.records.facts import SampleFailed, SampleFinished, ScoreGiven
from holdfast.state.cache import cached_path, is_networked, make_room
from holdfast.state.folding import failed_data, finished_data, looked_data, score_data
from holdfast.state.profile import Profile, TimedGist
from holdfast.state.rows import AnswerRow, EditRow, EvaluationCounts, MadeRow, ScoreRow
from holdfast.state.story import Story

_VERSION = 12
_timed_gist = msgspec.json.Decoder(TimedGist)
_BATCH = 10_000
_MEMORY = ":memory:"
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
    taken TEXT, last INTEGER, PRIMARY KEY (o, evaluation, scorer)
) WITHOUT ROWID;
CREATE TABLE edits (
    n INTEGER PRIMARY KEY, o INTEGER, evaluation TEXT, scorer TEXT, of INTEGER, value BLOB, reason TEXT, author TEXT,
    at TEXT
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
    """Open, up to date, and ready to be asked."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.story = Story()
        self.profile = Profile()
        self.damage: list[Damage] = []
        self.last_n = 0
        """The number of the last record."""
        self._database, self._path = _open(run)
        try:
            self._catch_up()
        except (sqlite3.Error, StaleCursorError) as error:
            self._rebuild(in_memory="locked" in str(error))

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
        for row in self._database.execute(query, (first, last, last, status, status)):
            yield AnswerRow(*row)

    def answer(self, key: str) -> AnswerRow | None:
        row = self._database.execute("SELECT * FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None else AnswerRow(*row)

    def scores(self, evaluation: str, first: int = 0, count: int = -1) -> Iterator[ScoreRow]:
        """The scores of one evaluation, of answers that count, in plan order."""
        last = -1 if count < 0 else first + count
        query = (
            "SELECT s.o, s.scorer, coalesce(e.value, s.value), coalesce(e.reason, s.reason), "
            f"iif(e.n IS NULL, s.failure, ''), coalesce(e.author, '') {_COUNTING} "
            "AND s.o >= ? AND (? < 0 OR s.o < ?) ORDER BY s.o, s.scorer"
        )
        for o, scorer, value, *rest in self._database.execute(query, (evaluation, first, last, last)):
            yield ScoreRow(o, scorer, msgspec.json.decode(value), *rest)

    def edits_of(self, o: int, of: int, evaluation: str) -> list[EditRow]:
        """What was set by hand of one answer, the oldest first."""
        query = (
            "SELECT o, scorer, value, reason, author, at FROM edits "
            "WHERE o = ? AND of = ? AND evaluation = ? ORDER BY n"
        )
        found = self._database.execute(query, (o, of, evaluation))
        return [EditRow(o, scorer, msgspec.json.decode(value), *rest) for o, scorer, value, *rest in found]

    def made_of(self, o: int, of: int, evaluation: str) -> list[MadeRow]:
        """What the scorers of an evaluation said themselves of one answer."""
        query = (
            "SELECT scorer, value, reason, failure, metadata, last FROM scores "
            "WHERE o = ? AND of = ? AND evaluation = ? ORDER BY scorer"
        )
        return [
            MadeRow(scorer, msgspec.json.decode(value), reason, failure, msgspec.json.decode(metadata), bool(last))
            for scorer, value, reason, failure, metadata, last in self._database.execute(query, (o, of, evaluation))
        ]

    def example_of(self, evaluation: str, scorer: str) -> object:
        """A value that a scorer gave of any answer; None if it gave none. True or False only if it gave nothing else:
        of an answer that is none, False is said in place of the scorer.
        """
        query = (
            "SELECT value FROM scores WHERE evaluation = ? AND scorer = ? AND value != x'6e756c6c' "
            "ORDER BY value IN (x'74727565', x'66616c7365') LIMIT 1"
        )
        found = self._database.execute(query, (evaluation, scorer)).fetchone()
        return None if found is None else msgspec.json.decode(found[0])

    def counts_of(self, evaluation: str) -> EvaluationCounts:
        query = (
            "SELECT coalesce(sum(s.last), 0), "
            "coalesce(sum(coalesce(e.value, s.value) != x'6e756c6c'), 0), "
            "coalesce(sum(coalesce(e.value, s.value) = x'6e756c6c' AND (e.n IS NOT NULL OR s.failure = '')), 0), "
            "coalesce(sum(e.n IS NULL AND s.failure != ''), 0), "
            f"count(e.n), coalesce(sum(s.taken != ''), 0) {_COUNTING}"
        )
        return EvaluationCounts(*self._database.execute(query, (evaluation,)).fetchone())

    def seconds(self, first: int, count: int) -> Iterator[tuple[int, float]]:
        """Of each finished answer from ordinal `first` on: how long it took."""
        query = "SELECT o, seconds FROM answers WHERE o >= ? AND o < ? AND status = 'finished' ORDER BY o"
        yield from self._database.execute(query, (first, first + count))

    def scored_apart(self, evaluation: str) -> Iterator[tuple[int, str]]:
        """Answers, with the scorer's name, of which another scorer's word on an equal answer differs."""
        rows = (
            "scores s JOIN answers a ON a.o = s.o AND a.n = s.of "
            "WHERE s.evaluation = ? AND a.status = 'finished' AND s.failure = '' AND s.value != x'6e756c6c'"
        )
        apart = f"SELECT a.said, s.scorer FROM {rows} GROUP BY a.said, s.scorer HAVING count(DISTINCT s.value) > 1"
        query = f"SELECT s.o, s.scorer FROM {rows} AND (a.said, s.scorer) IN ({apart}) ORDER BY s.o, s.scorer"
        yield from self._database.execute(query, (evaluation, evaluation))

    def unlooked(self, version: int) -> int:
        """How many answers were not looked at with this version of the list of anomalies."""
        query = "SELECT count(*) FROM answers WHERE status = 'finished' AND looked != ?"
        return int(self._database.execute(query, (version,)).fetchone()[0])

    def close(self) -> None:
        self._database.close()

    def _count(self, status: str) -> int:
        found = self._database.execute("SELECT count(*) FROM answers WHERE status = ?", (status,)).fetchone()
        return int(found[0])

    def _rebuild(self, *, in_memory: bool) -> None:
        """What the file holds is not this journal, or not readable: make the index anew. In memory if another reader is
        at work on the file: it is neither waited for nor taken from it.
        """
        self._database.close()
        self._database, self._path = (_new(_MEMORY), _MEMORY) if in_memory else _anew(self._path)
        self.story, self.profile, self.damage = Story(), Profile(), []
        self._catch_up()

    def _catch_up(self) -> None:
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")  # another reader may be catching up as well
            saved = dict(self._database.execute("SELECT name, value FROM meta"))
            cursor = msgspec.json.decode(saved["cursor"], type=Cursor) if "cursor" in saved else START
            if "story" in saved:
                self.story = msgspec.json.decode(saved["story"], type=Story)
                self.profile = msgspec.json.decode(saved["profile"], type=Profile)
                self.damage = msgspec.json.decode(saved["damage"], type=list[Damage])
            reader = Reader(journal_folder(self._run), cursor=cursor)
            for number, each in enumerate(reader.read(live=True), 1):
                if isinstance(each, Damage):
                    self.damage.append(each)
                else:
                    self._apply(each)
                if number % _BATCH == 0:
                    self._save(reader.cursor)
            self._save(reader.cursor)
            self.last_n = reader.cursor.n

    def _save(self, cursor: Cursor) -> None:
        values = {"cursor": cursor, "story": self.story, "profile": self.profile, "damage": self.damage}
        rows = [(name, msgspec.json.encode(value)) for name, value in values.items()]
        self._database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def _apply(self, entry: Entry) -> None:
        kind = entry.line.t
        if kind == "step":
            step = _timed_gist.decode(entry.line.d)
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
            elif kind == "anomaly" and entry.line.k is not None:
                self._looked(entry)
            elif kind == "anomaly" and self.story.anomalies:
                lost = self.story.anomalies[-1]
                for table in ("answers", "edits"):
                    lost_rows = f"DELETE FROM {table} WHERE n BETWEEN ? AND ?"
                    self._database.execute(lost_rows, (lost.n_first, lost.n_last))
        self.story.updated = entry.line.at

    def _retry(self, ordinals: tuple[int, ...] | None) -> None:
        """Failed samples that were given new attempts are unfinished until they end again."""
        again = "UPDATE answers SET status = 'unfinished' WHERE status = 'failed'"
        if ordinals is None:
            self._database.execute(again)
        else:
            self._database.executemany(f"{again} AND o = ?", [(ordinal,) for ordinal in ordinals])

    def _finished(self, entry: Entry) -> None:
        found = finished_data.decode(entry.line.d)
        if self._put(entry, found, "finished", ("", "")):
            self.story.ended(found, entry.line.k)
        else:
            self.story.twice += 1

    def _failed(self, entry: Entry) -> None:
        found = failed_data.decode(entry.line.d)
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
        return self._database.execute(_PUT, row).rowcount > 0

    def _looked(self, entry: Entry) -> None:
        found = looked_data.decode(entry.line.d)
        row = (found.version, msgspec.json.encode(found.found), found.o, found.of)
        self._database.execute("UPDATE answers SET looked = ?, found = ? WHERE o = ? AND n = ?", row)

    def _score(self, entry: Entry) -> None:
        found = score_data.decode(entry.line.d)
        if not found.author:
            self.story.scored(found, entry.line.k)
        place, value = (found.o, found.evaluation), msgspec.json.encode(found.value)
        if found.author:
            edit = (entry.line.n, *place, found.scorer, found.of, value, found.reason, found.author, found.at)
            self._database.execute("INSERT OR REPLACE INTO edits VALUES (?,?,?,?,?,?,?,?,?)", edit)
            stand_in = (*place, found.scorer, found.of)  # where its scorer has said nothing, it counts all the same
            self._database.execute(
                "INSERT OR IGNORE INTO scores VALUES (?,?,?,?,CAST('null' AS BLOB),'','',CAST('{}' AS BLOB),'',0)",
                stand_in,
            )
            return
        self._begin_round(found)
        self.profile.scored(0.0 if found.taken else found.seconds, entry.line)
        failure = "" if found.failure is None else found.failure.message
        said = (found.of, value, found.reason, failure, msgspec.json.encode(found.metadata), found.taken, found.last)
        self._database.execute(
            "INSERT OR REPLACE INTO scores VALUES (?,?,?,?,?,?,?,?,?,?)", (*place, found.scorer, *said)
        )

    def _begin_round(self, found: ScoreGiven) -> None:
        """An answer that had all its scores gets new ones: those before do not count, under whatever names they were
        given. What was set by hand stays.
        """
        place = (found.o, found.evaluation, found.of)
        of_it = "o = ? AND evaluation = ? AND of = ?"
        if self._database.execute(f"SELECT 1 FROM scores WHERE {of_it} AND last LIMIT 1", place).fetchone() is None:
            return
        edited = f"SELECT scorer FROM edits WHERE {of_it}"
        self._database.execute(f"DELETE FROM scores WHERE {of_it} AND scorer NOT IN ({edited})", (*place, *place))
        self._database.execute(f"UPDATE scores SET last = 0 WHERE {of_it}", place)


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


def _open(run: str) -> tuple[sqlite3.Connection, str]:
    """The index and the file that it is in: the first place that can be used. Nobody waits for one that is locked."""
    for path in _places(run):
        try:
            return _open_file(path), path
        except (sqlite3.Error, OSError) as error:
            if "locked" in str(error):
                break
    return _new(_MEMORY), _MEMORY


def _anew(path: str) -> tuple[sqlite3.Connection, str]:
    try:
        os.unlink(path)
        return _open_file(path), path
    except (OSError, sqlite3.Error):
        return _new(_MEMORY), _MEMORY


def _places(run: str) -> Iterator[str]:
    if not is_networked(run):
        yield os.path.join(run, "index.db")
    cached = cached_path("runs", os.path.realpath(run), Reader(journal_folder(run)).uid)
    with contextlib.suppress(OSError):  # there is no cache, or it cannot be written
        make_room(cached)
        yield cached


def _open_file(path: str) -> sqlite3.Connection:
    try:
        database = sqlite3.connect(path, timeout=0.5)
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version == _VERSION and _is_complete(path):
            database.execute("BEGIN IMMEDIATE").connection.rollback()
            return database
        database.close()
        if version != 0:
            os.unlink(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        os.unlink(path)  # it is no database: make it anew
    return _new(path)


def _is_complete(path: str) -> bool:
    """SQLite does not notice that the end of its file is gone until it needs it; its header says how long it is."""
    with open(path, "rb") as file:
        head = file.read(32)
    page_bytes = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    return os.path.getsize(path) >= pages * (65536 if page_bytes == 1 else page_bytes)


def _new(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=0.5)
    database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    return database
