"""Where the rows of a data set come from: local files, a file on a web server, or a data set of the Hugging Face Hub.

A source is opened as often as its rows are needed. What must be fetched is fetched by the first `open`, once, and kept
in the user's cache. Nothing here uses the network before that, so a run whose rows are stored can be resumed without.
"""

import functools
import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from holdfast.datasets.readers import ALL_COLUMNS, ColumnChoice, NumberedRow, RowStream, open_rows
from holdfast.errors import DataError

_MAGIC = frozenset("*?[")
_NAMED_MAX = 3

Fetch = Callable[[], Sequence[str]]
"""Returns the local paths of a source's files, in order."""


class DataSource(Protocol):
    """The rows of a data set."""

    where: str
    """Names the data in errors."""

    @property
    def folder(self) -> str:
        """The folder that relative paths in rows start from."""

    def open(self) -> RowStream:
        """Return the rows from the start. DataError if they cannot be had."""

    def is_missing(self) -> bool:
        """Whether the files are gone."""

    def stamped_files(self) -> Sequence[str]:
        """The files whose stamps show whether the rows have changed; empty if none do."""


class LocalFiles:
    """One or several files. A pattern such as `data/*.jsonl` means the files that match it, sorted by name."""

    def __init__(self, paths: Sequence[str], format: str = "", choice: ColumnChoice = ALL_COLUMNS) -> None:
        self._paths = paths
        self._format = format
        self._choice = choice
        self.where = ", ".join(paths[:_NAMED_MAX]) + (", …" if len(paths) > _NAMED_MAX else "")

    @property
    def folder(self) -> str:
        return os.path.dirname(self._paths[0])

    def open(self) -> RowStream:
        return open_files(self._expand(), self._format, self._choice)

    def is_missing(self) -> bool:
        return not any(self._matches(path) for path in self._paths)

    def stamped_files(self) -> Sequence[str]:
        # A pattern may match other files later.
        return [] if any(_is_pattern(path) for path in self._paths) else self._paths

    def _expand(self) -> list[str]:
        found: list[str] = []
        for path in self._paths:
            matches = self._matches(path)
            if not matches and _is_pattern(path):
                raise DataError(path, "no file matches this pattern")
            found += matches or [path]
        return found

    @staticmethod
    def _matches(path: str) -> list[str]:
        if os.path.exists(path):  # also a file whose name holds `[`
            return [path]
        return sorted(filter(os.path.isfile, glob.glob(path, recursive=True))) if _is_pattern(path) else []


class FetchedFiles:
    """Files that are fetched once, and then read like local ones."""

    def __init__(self, where: str, fetch: Fetch, format: str = "", choice: ColumnChoice = ALL_COLUMNS) -> None:
        self.where = where
        self._fetch = functools.cache(fetch)
        self._format = format
        self._choice = choice

    @property
    def folder(self) -> str:
        return os.path.dirname(self._fetch()[0])

    def open(self) -> RowStream:
        return open_files(self._fetch(), self._format, self._choice)

    def is_missing(self) -> bool:
        return False

    def stamped_files(self) -> Sequence[str]:
        return ()


class JoinedSources:
    """Several sources, one after another. Each row gets the name of its source in a column, and its number there in
    another (`config` and `config_row`), unless it has that column. Rows are numbered over all sources.
    """

    def __init__(self, sources: Mapping[str, DataSource], column: str) -> None:
        self._sources = sources
        self._column = column
        self._first = next(iter(sources.values()))
        self.where = self._first.where + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")

    @property
    def folder(self) -> str:
        return self._first.folder

    def open(self) -> RowStream:
        return RowStream(self._read, "row")

    def is_missing(self) -> bool:
        return any(source.is_missing() for source in self._sources.values())

    def stamped_files(self) -> Sequence[str]:
        return ()

    def _read(self) -> Iterator[NumberedRow]:
        number = 0
        for name, source in self._sources.items():
            for own, (_, row) in enumerate(source.open(), 1):
                number += 1
                yield number, {self._column: name, f"{self._column}_row": own, **row}


def open_files(paths: Sequence[str], format: str = "", choice: ColumnChoice = ALL_COLUMNS) -> RowStream:
    """Return the rows of several files, one after another. Rows are then numbered over all of them."""
    if len(paths) == 1:
        return open_rows(paths[0], format, choice)
    for path in paths:
        open_rows(path, format, choice)  # a missing file raises before the first row is read
    return RowStream(lambda: _chained(paths, format, choice), "row")


def _chained(paths: Sequence[str], format: str, choice: ColumnChoice) -> Iterator[NumberedRow]:
    number = 0
    for path in paths:
        for _, row in open_rows(path, format, choice):
            number += 1
            yield number, row


def _is_pattern(path: str) -> bool:
    return not _MAGIC.isdisjoint(path)
