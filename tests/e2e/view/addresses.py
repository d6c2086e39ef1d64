"""One address of every page in the viewer's table, so that a test of all pages covers a new one by itself."""

import re
from collections.abc import Mapping
from urllib.parse import quote

from holdfast.records import parse_key
from holdfast.view.pages import PAGES

_PLACEHOLDER = re.compile(r"\{(\w+)(?::[^{}]*)?\}")


def every_address(experiment: str, run: str, key: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The address of each page about a run and one of its keys, by the page's path."""
    parts = parse_key(key)
    names = {
        "experiment": experiment,
        "run": run,
        "task": parts.task,
        "model": parts.model,
        "sample": parts.sample_id,
        "repeat": str(parts.repeat),
        **(more or {}),
    }
    return {page.path: _PLACEHOLDER.sub(lambda match: quote(names[match[1]], safe=""), page.path) for page in PAGES}


def is_page(path: str) -> bool:
    """Whether the table has a page for a path."""
    return any(
        re.fullmatch("".join(_pattern(part) for part in re.split(r"(\{[^{}]*\})", page.path)), path) for page in PAGES
    )


def _pattern(part: str) -> str:
    return "[^/]+" if _PLACEHOLDER.fullmatch(part) else re.escape(part)
