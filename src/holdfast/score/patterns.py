"""Regular expressions of users on texts of models: checked when a spec is read, stopped when they take too long.

Simple patterns on short texts run in this process. All others run in the worker process, which can be killed: a
backtracking pattern cannot be interrupted in Python.
"""

import functools
import re
from typing import Any

from holdfast.score.worker_process import run_in_worker

SECONDS_MAX = 2.0
_SHORT = 2000
_OPTIONAL_MAX = 3


def is_match(text: str, pattern: str, ignore_case: bool = False) -> bool:
    """Whether the pattern matches anywhere in the text."""
    return _match("search", text, pattern, ignore_case) is True


def last_group(text: str, pattern: str, group: int | str, ignore_case: bool = False) -> str | None:
    """Return a group of the last match; None if the pattern does not match."""
    held: str | None = _match("last", text, pattern, ignore_case, group)
    return held


def first_group(text: str, pattern: str, group: int | str, ignore_case: bool = False) -> str | None:
    """Return a group of the first match; None if the pattern does not match."""
    held: str | None = _match("first", text, pattern, ignore_case, group)
    return held


def check_pattern(pattern: str, group: int | str | None) -> str:
    """Return what is wrong with a pattern or its group; empty if nothing."""
    try:
        compiled = compiled_pattern(pattern)
    except re.error as error:
        return f"the pattern {pattern!r} is not valid: {error}"
    if group not in [None, *range(compiled.groups + 1), *compiled.groupindex]:
        return f"the pattern {pattern!r} has no group {group!r}; put ( ) around the part to compare"
    return ""


@functools.lru_cache(maxsize=256)
def compiled_pattern(pattern: str, ignore_case: bool = False) -> re.Pattern[str]:
    """Compile a pattern, cached."""
    return re.compile(pattern, re.IGNORECASE if ignore_case else 0)


def may_take_long(text: str, /, pattern: str, **_: Any) -> bool:
    """Whether the pattern is matched in the worker process, and may block for seconds."""
    return len(text) > _SHORT or not _is_quick(pattern)


def _match(what: str, text: str, pattern: str, ignore_case: bool, group: int | str = 0) -> Any:
    if not may_take_long(text, pattern):
        return match_pattern(what, text, pattern, ignore_case, group)
    return run_in_worker(SECONDS_MAX, f"{__name__}:match_pattern", what, text, pattern, ignore_case, group)


def match_pattern(what: str, text: str, pattern: str, ignore_case: bool, group: int | str) -> Any:
    """Match a pattern; runs in this process or in the worker."""
    compiled = compiled_pattern(pattern, ignore_case)
    if what == "search":
        return compiled.search(text) is not None
    last = None
    for match in compiled.finditer(text):
        last = match
        if what == "first":
            break
    return last[group] if last else None


@functools.lru_cache(maxsize=256)
def _is_quick(pattern: str) -> bool:
    """Whether at most one unbounded repetition, of a single character, occurs: at worst quadratic in a short text."""
    if compiled_pattern(pattern).flags & re.VERBOSE:  # spaces and comments hide what is repeated
        return False
    endless = sum(map(pattern.count, "*+{"))
    repeated_group = re.search(r"\)[*+{?]", pattern)
    return endless <= 1 and pattern.count("?") <= _OPTIONAL_MAX and repeated_group is None
