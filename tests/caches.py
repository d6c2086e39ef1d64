"""Derived files in the cache, as tests look for them and change them."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.journal import Reader, journal_folder
from holdfast.state import Index
from holdfast.state.cache import entry_path, identify
from holdfast.state.snapshot import read_trailer, seal


def index_file(run: str | Path) -> Path:
    """Where the index of a run is kept."""
    return _path("runs", str(run), Reader(journal_folder(str(run))).uid)


def catalogue_file(store: str | Path) -> Path:
    return _path("stores", str(store))


@contextlib.contextmanager
def doctored(path: Path) -> Iterator[sqlite3.Connection]:
    """The database inside a snapshot, to be changed by somebody who knows how to make its checksum right again."""
    with path.open("r+b") as file:
        trailer = read_trailer(file.fileno(), path.stat().st_size)
        assert trailer is not None
        file.truncate(trailer.bytes)
    with contextlib.closing(sqlite3.connect(path)) as database:
        yield database
        database.commit()
    with path.open("r+b", buffering=0) as file:
        seal(file, msgspec.structs.replace(trailer, bytes=os.path.getsize(path)))


def tamper(run: str | Path, change: str) -> None:
    """Change the index of a run by an SQL statement."""
    Index(str(run)).close()
    with doctored(index_file(run)) as database:
        assert database.execute(change).rowcount > 0


def _path(kind: str, folder: str, uid: str = "") -> Path:
    identity = identify(kind, folder, uid)
    assert identity is not None
    path = entry_path(kind, f"{identity.name}.db")
    assert path is not None
    return Path(path)
