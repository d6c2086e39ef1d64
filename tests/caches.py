"""Derived files in the cache, as tests look for them and change them."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.journal import Reader, journal_folder
from holdfast.state import Index
from holdfast.state.cache import entry_path, identify
from holdfast.state.pages import KeyPage
from holdfast.state.snapshot import read_trailer, seal

Change = Callable[[Any], Any]
"""From a row to the row that replaces it; None removes it."""


def index_file(run: str | Path) -> Path:
    """Where the index of a run is kept."""
    return _path("runs", str(run), Reader(journal_folder(str(run))).uid)


def catalogue_file(store: str | Path) -> Path:
    return _path("stores", str(store))


def doctor(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the directory of a snapshot, like somebody who knows how to make its checksum right again."""
    with path.open("r+b") as file:
        trailer = read_trailer(file.fileno(), path.stat().st_size)
        assert trailer is not None
        file.seek(trailer.directory)
        directory = change(file.read(trailer.bytes - trailer.directory))
        file.seek(trailer.directory)
        size = trailer.directory + len(directory)
        file.write(directory + seal(directory, msgspec.structs.replace(trailer, bytes=size)))
        file.truncate()


def set_row(**fields: Any) -> Change:
    return lambda row: msgspec.structs.replace(row, **fields)


def tamper(run: str | Path, table: str, change: Change, where: Callable[[Any], bool] = lambda row: True) -> None:
    """Change rows of the index of a run (`answers`, `scores` or `edits`), and its totals and checksums with them."""
    changed = 0

    def apply(page: KeyPage) -> None:
        nonlocal changed
        tables: list[dict[Any, Any]] = [page.answers] if table == "answers" else []
        for rows in page.evaluations.values():
            tables += rows.made.values() if table == "scores" else []
            if table == "edits":
                for o, edits in rows.edits.items():
                    changed += sum(map(where, edits))
                    kept = [change(each) if where(each) else each for each in edits]
                    rows.edits[o] = [each for each in kept if each is not None]
        for each in tables:
            for name, row in [(name, row) for name, row in each.items() if where(row)]:
                changed += 1
                each[name] = change(row)
                if each[name] is None:
                    del each[name]

    with contextlib.closing(Index(str(run))) as index:
        pages = vars(index)["_pages"]
        for first in [*pages.directory.pages]:
            pages.change(first, apply)
        getattr(index, "_publish")()  # noqa: B009
    assert changed > 0


def _path(kind: str, folder: str, uid: str = "") -> Path:
    identity = identify(kind, folder, uid)
    assert identity is not None
    path = entry_path(kind, f"{identity.name}.db")
    assert path is not None
    return Path(path)
