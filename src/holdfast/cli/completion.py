"""Completions that the shell offers on Tab. Imports nothing else of Holdfast, to be fast, and never raises.

A run is a folder with a journal in it, as in `holdfast.runs.store.lookup`, which takes much longer to import.
Names with characters that are special in a shell are not offered: the shell inserts them unquoted, and a store may
hold runs made by others.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from urllib.parse import unquote

STATUSES = ("running", "stalled", "interrupted", "completed", "failed", "cancelled", "unreadable")
_OFFERED_MAX = 500
_PLAIN = re.compile(r"[\w.,:@%+=/-]+")


def offer_runs(store: str | None, incomplete: str) -> list[tuple[str, str]]:
    """The ids of runs with their experiments, newest first, after `latest`."""
    found: list[tuple[float, str, str]] = []
    for experiment, name, at in _runs(store):
        if name.startswith(incomplete):
            found.append((at, name, experiment))
    newest = sorted(found, reverse=True)[:_OFFERED_MAX]
    last = [("latest", "the newest run")] if found and "latest".startswith(incomplete) else []
    return [*last, *((name, experiment) for _, name, experiment in newest)]


def offer_experiments(store: str | None, incomplete: str) -> list[str]:
    return sorted({experiment for experiment, _, _ in _runs(store) if experiment.startswith(incomplete)})


def offer_statuses(incomplete: str) -> list[str]:
    return [status for status in STATUSES if status.startswith(incomplete)]


def _runs(store: str | None) -> Iterator[tuple[str, str, float]]:
    """Experiment, id and last change of every run that can be read."""
    where = store or os.environ.get("HOLDFAST_STORE") or "runs"
    for experiment in _folders(where):
        for run in _folders(experiment.path):
            names = unquote(experiment.name), unquote(run.name)
            if all(map(_PLAIN.fullmatch, names)):
                with contextlib.suppress(OSError):  # a folder without a journal is no run
                    yield *names, os.stat(os.path.join(run.path, "journal")).st_mtime


def _folders(path: str) -> list["os.DirEntry[str]"]:
    with contextlib.suppress(OSError, ValueError), os.scandir(path) as entries:
        return [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    return []
