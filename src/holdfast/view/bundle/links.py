"""Addresses in a static copy: relative file names. What a server is asked for in a query is behind `#`."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from urllib.parse import quote

import msgspec

from holdfast.records import parse_key
from holdfast.view.links import Links
from holdfast.view.sources import RunRef

INDEX = "index.html"
MISSING = "missing.html"
SAMPLES = "samples"
DATA = re.compile(r"(rows|samples)-[0-9]+\.js")
"""Files with the data of a run, in its own folder."""


class BundledKeys:
    """In which file of a run's folder each sample is."""

    def __init__(self, folder: str, keys: Collection[str], per_file: int) -> None:
        self.folder = folder
        self.per_file = per_file
        self._numbers = {key: number for number, key in enumerate(keys)}

    def file(self, key: str) -> str | None:
        number = self._numbers.get(key)
        return None if number is None else sample_file(number // self.per_file)


def sample_file(number: int) -> str:
    return f"samples-{number:04d}.html"


class BundleLinks(Links):
    """The addresses on one page of a copy, which is some folders below its top (`base`)."""

    is_static = True

    def __init__(
        self,
        base: str,
        runs: Mapping[RunRef, BundledKeys],
        parts: Collection[str],
        copy_blob: Callable[[RunRef, str], str | None],
    ) -> None:
        """`parts`: the pages that the copy has, such as `samples` and `/leaderboard`. `copy_blob`: puts a stored file
        into the copy and returns its path; None if it cannot be read.
        """
        self._base = base
        self._runs = runs
        self._parts = parts
        self._copy_blob = copy_blob

    def has(self, part: str) -> bool:
        return part in self._parts

    def runs(self, **query: str) -> str:
        return f"{self._base}{INDEX}"

    def run(self, ref: RunRef, part: str = "", **query: str) -> str:
        found = self._runs.get(_now(ref))
        if found is None or part not in self._parts:
            return self._missing
        return f"{self._base}{found.folder}/{part or 'index'}.html{_fragment(query) if part == SAMPLES else ''}"

    def sample(self, ref: RunRef, key: str, step: int | None = None, **query: str) -> str:
        return self.sample_subpage(ref, key, "", step="" if step is None else str(step))

    def sample_subpage(self, ref: RunRef, key: str, part: str, **query: str) -> str:
        found = self._runs.get(_now(ref))
        file = found.file(key) if found is not None else None
        if found is None or file is None or part:
            return self._missing
        return f"{self._base}{found.folder}/{file}{_fragment({'key': key, 'step': query.get('step', '')})}"

    def blob(self, ref: RunRef, digest: str, name: str = "") -> str:
        path = self._copy_blob(_now(ref), digest)
        return self._missing if path is None else f"{self._base}{path}"

    def repeats(self, ref: RunRef, key: str, **query: str) -> str:
        """The list of samples, with all repeats of the sample."""
        parts = parse_key(key)
        return self.run(ref, SAMPLES, task=parts.task, model=parts.model, id=parts.sample_id)

    def page(self, path: str, **query: str | Sequence[str]) -> str:
        return f"{self._base}{path}.html" if f"/{path}" in self._parts else self._missing

    def data(self, address: str) -> str:
        return self._missing

    def file(self, name: str) -> str:
        return f"./{name}" if DATA.fullmatch(name) else f"{self._base}files/{name}"

    @property
    def _missing(self) -> str:
        return f"{self._base}{MISSING}"


def _now(ref: RunRef) -> RunRef:
    return msgspec.structs.replace(ref, at=None)


def _fragment(query: Mapping[str, str]) -> str:
    given = [f"{name}={quote(value, safe='/')}" for name, value in query.items() if value]
    return f"#{'&'.join(given)}" if given else ""
