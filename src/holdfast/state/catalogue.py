"""The derived catalogue over all runs of a store: what a list says of runs that have not changed since.

It can be deleted at any time. If it is locked, damaged, outdated or cannot be written, it is done without: a run never
waits for it, because only those who look write it. Where the store is read-only or networked it lives in the user's
cache folder.
"""

import hashlib
import os
import sqlite3

from holdfast.state.cache import cached_path, is_networked, make_room

_FILE = "catalog.db"


class Catalogue:
    """What was last said of each run, with the state of its files at that time."""

    def __init__(self, store: str, form: str) -> None:
        """`form` tells what shape is kept: one of another shape is made anew."""
        version = int.from_bytes(hashlib.blake2b(form.encode(), digest_size=3).digest()) + 1
        self._database = _open(store, version)

    def find(self, folder: str, stamp: str) -> bytes | None:
        """What was said of a run in exactly this state."""
        if self._database is None:
            return None
        try:
            row = self._database.execute(
                "SELECT told FROM runs WHERE folder = ? AND stamp = ?", (folder, stamp)
            ).fetchone()
        except sqlite3.Error:
            return None
        return row[0] if row is not None and isinstance(row[0], bytes) else None

    def put(self, folder: str, stamp: str, told: bytes) -> None:
        if self._database is not None:
            try:
                with self._database:
                    self._database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", (folder, stamp, told))
            except sqlite3.Error:
                self.close()

    def keep_only(self, folders: set[str]) -> None:
        """Forget runs that are gone."""
        if self._database is None:
            return
        try:
            known = {row[0] for row in self._database.execute("SELECT folder FROM runs")}
            with self._database:
                self._database.executemany("DELETE FROM runs WHERE folder = ?", [(each,) for each in known - folders])
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def stamp_of(run: str) -> str:
    """The state of the files that a run's summary is made of: it changes with every record."""
    told = []
    for folder in (run, os.path.join(run, "journal")):
        try:
            for entry in sorted(os.scandir(folder), key=lambda each: each.name):
                if entry.name.startswith(("index.db", "log.jsonl", "lease.json", "lock", "control")):
                    continue
                found = entry.stat(follow_symlinks=False)
                told.append(f"{entry.name}:{found.st_size}:{found.st_mtime_ns}")
        except OSError:
            continue
    return hashlib.blake2b("|".join(told).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _open(store: str, version: int) -> sqlite3.Connection | None:
    cached = cached_path("stores", os.path.realpath(store))
    for path in (cached,) if is_networked(store) else (os.path.join(store, _FILE), cached):
        try:
            if path == cached:
                make_room(path)
            return _connect(path, version)
        except (sqlite3.Error, OSError):
            continue
    return None


def _connect(path: str, version: int) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=0.2)
    try:
        if database.execute("PRAGMA user_version").fetchone()[0] != version:
            database.executescript(
                "BEGIN IMMEDIATE; DROP TABLE IF EXISTS runs;"
                "CREATE TABLE runs (folder TEXT PRIMARY KEY, stamp TEXT, told BLOB) WITHOUT ROWID;"
                f"PRAGMA user_version = {version}; COMMIT;"
            )
        database.execute("SELECT count(*) FROM runs").fetchone()
        database.execute("BEGIN IMMEDIATE").connection.rollback()
    except sqlite3.DatabaseError as error:
        database.close()
        if "locked" not in str(error) and "readonly" not in str(error):
            os.unlink(path)  # damaged: it is made anew the next time
        raise
    return database
