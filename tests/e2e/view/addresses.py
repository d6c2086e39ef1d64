"""One address of every page in the viewer's table, so that a test of all pages covers a new one by itself."""

import re
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from holdfast.journal import Entry, Reader
from holdfast.records import parse_key
from holdfast.runs.store.lookup import runs_in
from holdfast.view.pages import PAGES

PATHS = [page.path for page in PAGES]
_QUICK = (
    "/",
    "/runs/{experiment}/{run}/samples",
    "/runs/{experiment}/{run}/samples/{task}/{model}/{sample}/{repeat}",
)
EACH_PATH = [pytest.param(path, marks=() if path in _QUICK else pytest.mark.long) for path in PATHS]
"""Of a proof for every page: in the quick suite only for those with the most texts and controls."""
assert set(_QUICK) <= set(PATHS)
_PLACEHOLDER = re.compile(r"\{(\w+)(?::[^{}]*)?\}")


def every_address(store: Path, experiment: str, run: str, key: str) -> dict[str, str]:
    """The address of each page about a run and one of its keys, by the page's path."""
    parts = parse_key(key)
    names = {
        "experiment": experiment,
        "run": run,
        "task": parts.task,
        "model": parts.model,
        "sample": parts.sample_id,
        "repeat": str(parts.repeat),
        "n": str(_first_step(store, experiment, run, key)),
    }
    return {path: _PLACEHOLDER.sub(lambda match: quote(names[match[1]], safe=""), path) for path in PATHS}


def _first_step(store: Path, experiment: str, run: str, key: str) -> int:
    """The number of the first record of a step of the key."""
    place = next(each for each in runs_in(str(store)) if (each.experiment, each.run_id) == (experiment, run))
    with closing(Reader(place.journal)) as reader:
        lines = [each.line for each in reader.read() if isinstance(each, Entry)]
    return next(line.n for line in lines if line.t == "step" and str(line.k) == key)


def is_page(path: str) -> bool:
    """Whether the table has a page for a path."""
    return any(
        re.fullmatch("".join(_pattern(part) for part in re.split(r"(\{[^{}]*\})", each)), path) for each in PATHS
    )


def _pattern(part: str) -> str:
    return "[^/]+" if _PLACEHOLDER.fullmatch(part) else re.escape(part)
