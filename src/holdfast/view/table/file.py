"""The database file of a sample table: where it is, its schema, its locks, and when it is thrown away.

A table is a folder of the cache (`tables/<name>/`) with a SQLite database in WAL mode, so readers never wait for the
writer. Readers hold a shared lock on `in-use`, so that the cache does not evict the folder meanwhile. A writer holds an
exclusive lock on `writer`: of several processes, one writes and the others show what is there. A file of another
version, of another run, or with damage is renamed away and made again.

A crash leaves a consistent database: every page of samples is one transaction.
"""

import contextlib
import fcntl
import functools
import os
import shutil
import sqlite3
import tempfile
import threading
import uuid
from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from holdfast.files import open_or_create, read_own_file, replace_file
from holdfast.state import IDENTITY, IN_USE, TEMPORARY_SUFFIX, Identity, entry_path, make_room, mark_used

VERSION = 2
"""Of the schema and of what rows mean. Raise it with every change: tables of other versions are made again."""
DATABASE = "samples.db"
WRITER = "writer"
KIND = "tables"
_BUSY_SECONDS = 5.0
_CACHE_KB = 8000
_DAMAGED = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
    }
)
"""Result codes that a correct database never gives. SQLITE_ERROR, a wrong statement, is none: the schema is checked."""
GENERATIONS = 1 << 10
"""Versions of one sample's words: its number in `words` is its ordinal times this, plus its generation."""
_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE pages (
    first INTEGER PRIMARY KEY, end INTEGER, source TEXT, state TEXT, plan_at INTEGER, data_at INTEGER,
    searched INTEGER, columns TEXT
);
CREATE TABLE samples (
    o INTEGER PRIMARY KEY, n INTEGER, status INTEGER, kind INTEGER, cause INTEGER, attempts INTEGER, tokens INTEGER,
    output INTEGER, seconds REAL, dollars REAL, flags INTEGER, wrong INTEGER, generation INTEGER, x INTEGER
);
CREATE TABLE questions (o INTEGER PRIMARY KEY, key TEXT, row_at INTEGER, input TEXT, target TEXT, x INTEGER);
CREATE TABLE answers (o INTEGER PRIMARY KEY, answer TEXT, message TEXT, x INTEGER);
CREATE TABLE scores (
    s INTEGER, o INTEGER, number REAL, label TEXT, failure TEXT, cause INTEGER, edited INTEGER, x INTEGER,
    PRIMARY KEY (s, o)
) WITHOUT ROWID;
CREATE TABLE names (id INTEGER PRIMARY KEY, kind TEXT, name TEXT, x INTEGER, UNIQUE (kind, name));
CREATE TABLE causes (id INTEGER PRIMARY KEY, kind TEXT, message TEXT, x INTEGER);
CREATE TABLE row_values (c INTEGER, o INTEGER, value TEXT, rank, PRIMARY KEY (c, o)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(
    text, content='', detail=none, columnsize=0, tokenize='unicode61 remove_diacritics 2'
);
CREATE INDEX by_status ON samples (status, o);
CREATE INDEX by_cause ON samples (status, cause, o) WHERE cause <> 0;
CREATE INDEX by_flags ON samples (o, flags) WHERE flags <> 0;
CREATE INDEX by_wrong ON samples (o) WHERE wrong = 1;
CREATE INDEX by_number ON scores (s, number, o);
CREATE INDEX by_failure ON scores (s, cause, o) WHERE cause <> 0;
CREATE INDEX by_value ON row_values (c, value, o);
CREATE INDEX by_rank ON row_values (c, rank, o);
"""
_SCHEMA_QUERY = "SELECT name, sql FROM sqlite_schema"
_SORT = "sort_"
_OF_FILTERS = ("status", "kind", "cause", "attempts", "tokens", "output", "seconds", "dollars", "flags", "wrong")


class DamagedTableError(Exception):
    """The table does not hold what was written to it. Caught inside the viewer: the table is made again."""


FAILURES = (sqlite3.Error, DamagedTableError, KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What reading a damaged table can raise: damaged rows can hold values of any type."""


def is_damage(error: Exception) -> bool:
    """Whether an error says that the table is unusable, rather than busy or without space."""
    if isinstance(error, sqlite3.DatabaseError):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
    return isinstance(error, FAILURES) and not isinstance(error, sqlite3.Error)


def sort_index(column: str) -> tuple[str, str]:
    """The name of the index for a sort column, and the statement that makes it. It holds every column that filters
    need, so that a filtered page is found without reading rows.
    """
    others = ", ".join(name for name in _OF_FILTERS if name != column)
    name = f"{_SORT}{column}"
    return name, f"CREATE INDEX IF NOT EXISTS {name} ON samples ({column}, o, {others})"


def _make_schema(connection: sqlite3.Connection) -> None:
    for statement in filter(str.strip, _SCHEMA.split(";\n")):
        connection.execute(statement)


@functools.cache
def _expected_schema() -> dict[str, str]:
    """The name and the statement of everything in a table, with all sort indexes."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        _make_schema(connection)
        for column in _OF_FILTERS:
            connection.execute(sort_index(column)[1])
        return dict(connection.execute(_SCHEMA_QUERY))


class TableFile:
    """The table of one run. Thread-safe: each caller has its own connection."""

    def __init__(self, identity: Identity | None, evaluation: str = "") -> None:
        """`identity`: of the run; None for a table that only this process uses, and that disappears with it.
        `evaluation`: an id, for a table with the scores of another evaluation than the current one.
        """
        self._identity = identity
        self._evaluation = evaluation
        name = f"{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
        if identity is not None:
            name = f"{identity.name}-{blake2b(evaluation.encode()).hexdigest()[:16]}" if evaluation else identity.name
        path = entry_path(KIND, name)
        self._is_kept = identity is not None and path is not None
        self._temporary = "" if path else tempfile.mkdtemp(prefix="holdfast-view-")
        self.folder = path or os.path.join(self._temporary, KIND)
        self._held: int | None = None
        self._lock = threading.RLock()

    @property
    def path(self) -> str:
        return os.path.join(self.folder, DATABASE)

    def connect(self) -> sqlite3.Connection:
        """A connection to the table. One that cannot be used is made again."""
        for is_last in (False, True):
            self._hold()
            connection = sqlite3.connect(self.path, _BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            # Damaged bytes must reach the checksums; sqlite3 would raise an error that looks like any other.
            connection.text_factory = lambda content: content.decode("utf-8", "replace")
            try:
                self._prepare(connection)
            except (sqlite3.DatabaseError, DamagedTableError) as error:
                connection.close()
                if is_last or not is_damage(error):
                    raise
                self.discard()
                continue
            return connection
        raise AssertionError("the loop returns or raises")

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        if not connection.execute("PRAGMA user_version").fetchone()[0]:
            with transaction(connection):
                if not connection.execute("PRAGMA user_version").fetchone()[0]:  # perhaps made meanwhile
                    self._create(connection)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            raise DamagedTableError("it was written by another version")
        owner = connection.execute("SELECT value FROM about WHERE name = 'identity'").fetchone()
        if owner is None or owner[0] != self._owner():
            raise DamagedTableError("it belongs to another run")
        schema = dict(connection.execute(_SCHEMA_QUERY))
        expected = _expected_schema()
        missing = [name for name in expected if name not in schema and not name.startswith(_SORT)]
        if missing or any(expected.get(name) != text for name, text in schema.items()):
            raise DamagedTableError("its schema is not the one that was made")

    def _create(self, connection: sqlite3.Connection) -> None:
        _make_schema(connection)
        connection.execute("INSERT INTO about VALUES ('identity', ?), ('changes', 0)", (self._owner(),))
        connection.execute(f"PRAGMA user_version = {VERSION}")

    def _owner(self) -> str:
        return msgspec.json.encode((self._identity, self._evaluation)).decode()

    def _hold(self) -> None:
        """Make the folder if it is missing, and hold the lock that keeps it. Another process may have replaced it."""
        in_use = os.path.join(self.folder, IN_USE)
        with self._lock:
            while True:
                if self._held is None:
                    os.makedirs(self.folder, mode=0o700, exist_ok=True)
                    if self._is_kept:
                        _write_identity(self.folder, self._identity)
                    try:
                        self._held = open_or_create(in_use)
                    except FileNotFoundError:
                        continue  # evicted since it was made
                    fcntl.flock(self._held, fcntl.LOCK_SH)
                with contextlib.suppress(OSError):
                    found, held = os.stat(in_use), os.fstat(self._held)
                    if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
                        mark_used(self.folder)
                        return
                self._release()

    def _release(self) -> None:
        with self._lock:
            if self._held is not None:
                os.close(self._held)
                self._held = None

    @contextlib.contextmanager
    def writer(self) -> Iterator[bool]:
        """The right to write; False if another process has it."""
        self._hold()
        try:
            handle = open_or_create(os.path.join(self.folder, WRITER))
        except OSError:
            yield False
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = True
        except OSError:
            is_mine = False
        try:
            yield is_mine
        finally:
            os.close(handle)

    def discard(self) -> None:
        """Remove the table. Connections that are open keep reading the removed file, and end with their request."""
        hidden = f"{self.folder}-{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
        with contextlib.suppress(OSError):
            os.rename(self.folder, hidden)  # renamed first: nobody sees half of it
            shutil.rmtree(hidden, ignore_errors=True)
        self._release()

    def make_room(self) -> None:
        """Keep the cache within its limits after the table has grown."""
        if self._is_kept:
            make_room(os.path.dirname(os.path.dirname(self.folder)), keep=self.folder)

    def close(self) -> None:
        self._release()
        if not self._is_kept:
            shutil.rmtree(self._temporary or self.folder, ignore_errors=True)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything or nothing of what is written in it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _write_identity(folder: str, identity: Identity | None) -> None:
    """For `holdfast gc`, which removes the tables of runs that are gone."""
    path = os.path.join(folder, IDENTITY)
    content = msgspec.json.encode(identity)
    with contextlib.suppress(OSError):
        if not os.path.exists(path) or read_own_file(path) != content:
            replace_file(path, content)
