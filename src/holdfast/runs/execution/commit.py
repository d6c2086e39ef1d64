"""The commit of the current folder, asked of git without starting anything that the repository itself names.

A repository's configuration belongs to its author: filters, hooks, a file system monitor and transports are commands
that git starts. They are switched off. A filter cannot be switched off by itself, and without it git takes unchanged
files for changed ones: where the repository defines filters, nobody is told whether its files were changed.
"""

import os
import subprocess
from collections.abc import Sequence

_SECONDS = 5
_OFF = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",  # `status` writes the index otherwise, which starts a hook
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # a missing object is not fetched: the remote's configuration names commands
    "GIT_TERMINAL_PROMPT": "0",
}
_FILTERS = r"^filter\..*\.(clean|smudge|process)$"
_OF_REPOSITORY = ("local", "worktree")
UNKNOWN = "unknown"


def describe_commit() -> dict[str, str]:
    """`git_commit`, and as `git_dirty` yes, no or unknown. Empty where there is no repository, or no git."""
    commit = _ask("rev-parse", "HEAD")
    return {"git_commit": commit.strip(), "git_dirty": _find_changes()} if commit else {}


def _find_changes() -> str:
    filters = _ask("config", "--show-scope", "--name-only", "--get-regexp", _FILTERS, codes=(0, 1))
    if filters is None or any(line.startswith(_OF_REPOSITORY) for line in filters.splitlines()):
        return UNKNOWN
    # of submodules only their commits are compared: their configuration is not looked at
    changed = _ask("status", "--porcelain", "--ignore-submodules=dirty")
    return UNKNOWN if changed is None else "yes" if changed else "no"


def _ask(*arguments: str, codes: Sequence[int] = (0,)) -> str | None:
    """What git prints; None if it cannot be asked, or fails."""
    try:
        done = subprocess.run(
            ["git", *_OFF, *arguments],
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode in codes else None
