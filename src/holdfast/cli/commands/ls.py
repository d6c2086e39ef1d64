"""`ls`: the runs of a store, or of a mirror."""

import os
import time
import warnings
from collections.abc import Iterable, Sequence
from datetime import datetime

from holdfast.cli.output import print_json, print_line, print_table
from holdfast.cli.progress import spinner
from holdfast.errors import DamageWarning
from holdfast.journal import is_url
from holdfast.report import Grid, counted, duration, human_bytes, status_text, status_tone
from holdfast.runs import RunFilter, RunSummary, default_store, select_runs

_STYLES = {
    "completed": "green",
    "interrupted": "yellow",
    "stalled": "yellow",
    "cancelled": "yellow",
    "failed": "red",
    "unreadable": "red",
}


def print_runs(store: str | None, chosen: RunFilter, as_json: bool) -> None:
    """List the runs of a folder or of a mirror."""
    where = store or default_store()
    if is_url(where):
        _print_mirror(where, chosen, as_json)
        return
    selected = select_runs(where, chosen)
    found = selected.runs
    for run in found:
        for sentence in run.damage:
            warnings.warn(sentence, DamageWarning, stacklevel=2)
    if as_json:
        print_json(found)
    elif not found:
        _explain_none(where, selected.total)
    else:
        columns = ("run", "experiment", "status", "done", "failed", "size", "created", "tags")
        rows = []
        for run in found:
            status = status_text(run.status, run.failed, run.planned) + (", damaged" if run.damage else "")
            counts = f"{run.finished}/{run.planned}", str(run.failed or ""), human_bytes(run.bytes)
            created = run.created[:16].replace("T", " ")
            rows.append((run.run_id, run.experiment, status, *counts, created, " ".join(run.tags)))
        print_table(_grid(columns, rows, found, right=("done", "failed", "size"), whole=("run",)))


def _print_mirror(url: str, chosen: RunFilter, as_json: bool) -> None:
    with spinner("listing the mirror"):
        selected = select_runs(url, chosen)
    found, inexact = selected.runs, selected.inexact
    if as_json:
        print_json(found)
        return
    if not found:
        _explain_none(url, selected.total)
        return
    columns = ("run", "experiment", "status", "done", "failed", "last heartbeat", "url")
    rows = []
    for run in found:
        done, failed, heartbeat = "?", "?", "never"
        if run.updated:
            done = f"{run.finished}{'*' if run.folder in inexact else ''}/{run.planned}"
            failed = str(run.failed or "")
            age = time.time() - datetime.fromisoformat(run.updated).timestamp()
            heartbeat = f"{duration(max(age, 0.0))} ago"
        status = status_text(run.status, run.failed, run.planned)
        rows.append((run.run_id, run.experiment, status, done, failed, heartbeat, run.folder))
    print_table(_grid(columns, rows, found, right=("done", "failed"), whole=("run", "url")))
    if any(run.folder in inexact for run in found):
        print_line("*: at least; not all records could be read, so the counts are those of the last heartbeat")


def _explain_none(where: str, others: int) -> None:
    there = f"No such run; the store has {counted(others, 'other')}: holdfast ls"
    is_there = is_url(where) or os.path.isdir(where)
    none = f"No runs in {where}" if is_there else f"There is no folder {where}, so no runs"
    print_line(there if others else f"{none}. Start one with: holdfast run SPEC")


def _grid(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    runs: Sequence[RunSummary],
    right: Iterable[str],
    whole: Iterable[str],
) -> Grid:
    """A table with coloured statuses: red for failed or damaged, yellow for incomplete, green for completed."""
    tones = [status_tone(run.status, run.failed, run.planned) for run in runs]
    styles = {
        (number, "status"): "red" if run.damage else _STYLES.get(tone, "")
        for number, (run, tone) in enumerate(zip(runs, tones, strict=True))
    }
    return Grid(columns, rows, right=right, whole=whole, styles=styles)
