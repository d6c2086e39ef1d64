"""The derived catalogue of a store: summaries of its runs, so that `ls` reads only runs that have changed.

It is a snapshot in the user's cache (see `snapshot`), so readers never wait for each other. It can be deleted at any
time. If it fails in any way, the listing that notices replaces it and logs one warning. Of two listings that write at
the same time the last one wins; the next listing adds what was lost.
"""

import hashlib
import logging
import os
import sqlite3

from holdfast.files import is_folder
from holdfast.state.cache import identify
from holdfast.state.snapshot import Snapshot, UnusableError

_SCHEMA = "CREATE TABLE runs (folder TEXT PRIMARY KEY, stamp TEXT, told BLOB) WITHOUT ROWID;"


class Catalogue:
    """Each run's summary, with the state of its files at that time. `close` saves what was added."""

    def __init__(self, store: str, form: str) -> None:
        """`form`: a description of the summaries' fields; a catalogue with another form is replaced."""
        self._store = store
        version = int.from_bytes(hashlib.blake2b(form.encode(), digest_size=6).digest())
        self._snapshot = Snapshot(identify("stores", store), version, _SCHEMA)
        self._new: dict[str, tuple[str, bytes] | None] = {}
        """Summaries to write; None removes a run."""
        self._database: sqlite3.Connection | None = None
        try:
            self._database = self._snapshot.open()
        except UnusableError as error:
            self._replace(str(error))

    def find(self, folder: str, stamp: str) -> bytes | None:
        """The summary of a run whose files are in exactly this state; None if there is none."""
        if self._database is None:
            return None
        query = "SELECT told FROM runs WHERE folder = ? AND stamp = ?"
        try:
            row = self._database.execute(query, (_text(folder), stamp)).fetchone()
        except sqlite3.Error as error:
            self._replace(f"failed ({error})")
            return None
        return row[0] if row is not None and isinstance(row[0], bytes) else None

    def put(self, folder: str, stamp: str, summary: bytes) -> None:
        self._new[_text(folder)] = (stamp, summary)

    def keep_only(self, folders: set[str]) -> None:
        """Forget runs that no longer exist."""
        if self._database is None:
            return
        try:
            known = {row[0] for row in self._database.execute("SELECT folder FROM runs")}
        except sqlite3.Error as error:
            self._replace(f"failed ({error})")
        else:
            self._new |= dict.fromkeys(known - set(map(_text, folders)))

    def close(self) -> None:
        try:
            if self._new and self._snapshot.path is not None:
                self._write()
        except sqlite3.Error as error:
            self._replace(f"cannot be written ({error})")
        finally:
            self._snapshot.drop()
            self._new = {}
            if self._database is not None:
                self._database.close()
                self._database = None

    def _write(self) -> None:
        base = self._database
        self._database = self._snapshot.begin(base)
        if base is not None:
            base.close()
        for folder, added in self._new.items():
            self._database.execute("DELETE FROM runs WHERE folder = ?", (folder,))
            if added is not None:
                self._database.execute("INSERT INTO runs VALUES (?, ?, ?)", (folder, *added))
        self._database.commit()
        self._snapshot.publish()

    def _replace(self, why: str) -> None:
        logging.getLogger("holdfast").warning("the list of the runs in %s %s; rebuilt", self._store, why)
        if self._database is not None:
            self._database.close()
            self._database = None
        self._snapshot.discard()


def stamp_of(run: str) -> str:
    """The state of the files that a run's summary is made of. It changes with every record, and if a file or the folder
    is replaced: change times (ctime) and inodes cannot be copied.
    """
    parts = []
    for folder in (run, os.path.join(run, "journal")):
        if not is_folder(folder):
            continue
        try:
            above = os.stat(folder)
            parts.append(f"{above.st_dev}:{above.st_ino}")
            for entry in sorted(os.scandir(folder), key=lambda each: each.name):
                if entry.name.startswith(("log.jsonl", "lease.json", "lock", "control")):
                    continue
                found = entry.stat(follow_symlinks=False)
                parts.append(f"{entry.name}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}")
        except OSError:
            continue
    return hashlib.blake2b("|".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _text(path: str) -> str:
    """File names need not be Unicode; SQLite texts must be."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
