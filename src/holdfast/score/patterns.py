"""Regular expressions of users on texts of models: checked when a spec is read, ended when they take too long.

Patterns that cannot take long are looked for here; all others by the process that can be ended.
"""

import functools
import re
from typing import Any

from holdfast.score.worker_process import within

SECONDS_MAX = 2.0
_SHORT = 2000
_OPTIONAL_MAX = 3


def found_in(text: str, pattern: str, ignore_case: bool = False) -> bool:
    """Whether the pattern is somewhere in the text."""
    return _asked("search", text, pattern, ignore_case) is True


def last_group(text: str, pattern: str, group: int | str, ignore_case: bool = False) -> str | None:
    """What a group holds in the last place where the pattern is found. None if it is found nowhere."""
    held: str | None = _asked("last", text, pattern, ignore_case, group)
    return held


def first_group(text: str, pattern: str, group: int | str, ignore_case: bool = False) -> str | None:
    """The same in the first place."""
    held: str | None = _asked("first", text, pattern, ignore_case, group)
    return held


def problem_of(pattern: str, group: int | str | None) -> str:
    """What is wrong with a pattern; empty if nothing."""
    try:
        compiled = compiled_pattern(pattern)
    except re.error as error:
        return f"the pattern {pattern!r} is not valid: {error}"
    if group not in [None, *range(compiled.groups + 1), *compiled.groupindex]:
        return f"the pattern {pattern!r} has no group {group!r}; put ( ) around what is compared"
    return ""


@functools.lru_cache(maxsize=256)
def compiled_pattern(pattern: str, ignore_case: bool = False) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE if ignore_case else 0)


def may_take_long(text: str, /, pattern: str, **_: Any) -> bool:
    """Whether it is looked for by the other process, which is waited for."""
    return len(text) > _SHORT or not _is_quick(pattern)


def _asked(what: str, text: str, pattern: str, ignore_case: bool, group: int | str = 0) -> Any:
    if not may_take_long(text, pattern):
        return looked_for(what, text, pattern, ignore_case, group)
    return within(SECONDS_MAX, f"{__name__}:looked_for", what, text, pattern, ignore_case, group)


def looked_for(what: str, text: str, pattern: str, ignore_case: bool, group: int | str) -> Any:
    """What the functions above return. In whichever process."""
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
    """At most one part is repeated without end, and that is a single character: quadratic in a short text at worst."""
    if compiled_pattern(pattern).flags & re.VERBOSE:  # what is repeated may stand elsewhere
        return False
    endless = sum(map(pattern.count, "*+{"))
    repeated_group = re.search(r"\)[*+{?]", pattern)
    return endless <= 1 and pattern.count("?") <= _OPTIONAL_MAX and repeated_group is None
