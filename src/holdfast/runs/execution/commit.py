"""Reads the git commit of the current folder without executing commands from the repository's configuration.

A repository's configuration is untrusted: filters, hooks, file system monitors and transports are commands that git
starts, so they are disabled. Filters cannot be disabled without making unchanged files look changed; in a repository
that defines filters, `git_dirty` is `unknown`.
"""

import os
import subprocess
from collections.abc import Sequence

_SECONDS = 5
_OFF = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",  # otherwise `status` writes the index, which starts a hook
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # never fetch missing objects: the configuration of a remote names commands
    "GIT_TERMINAL_PROMPT": "0",
}
_FILTERS = r"^filter\..*\.(clean|smudge|process)$"
_REPOSITORY_SCOPES = ("local", "worktree")
UNKNOWN = "unknown"


def describe_commit() -> dict[str, str]:
    """`git_commit`, and `git_dirty`: yes, no or unknown. Empty without a repository or without git."""
    commit = _run_git("rev-parse", "HEAD")
    return {"git_commit": commit.strip(), "git_dirty": _find_changes()} if commit else {}


def _find_changes() -> str:
    filters = _run_git("config", "--show-scope", "--name-only", "--get-regexp", _FILTERS, codes=(0, 1))
    if filters is None or any(line.startswith(_REPOSITORY_SCOPES) for line in filters.splitlines()):
        return UNKNOWN
    # compare only the commits of submodules: git would read their (untrusted) configuration otherwise
    changed = _run_git("status", "--porcelain", "--ignore-submodules=dirty")
    return UNKNOWN if changed is None else "yes" if changed else "no"


def _run_git(*arguments: str, codes: Sequence[int] = (0,)) -> str | None:
    """The output of git; None if it is missing, fails or times out."""
    try:
        result = subprocess.run(
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
    return result.stdout if result.returncode in codes else None
