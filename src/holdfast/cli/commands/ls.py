"""`ls`: the runs of a store, or of a mirror."""

import os
import time
import warnings
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from holdfast.cli.app import STATUSES
from holdfast.cli.output import print_json, print_line, print_table
from holdfast.cli.progress import spinner
from holdfast.errors import DamageWarning, UsageError
from holdfast.journal import is_url
from holdfast.report import Grid, counted, duration, human_bytes, status_text, status_tone
from holdfast.runs import RunSummary, default_store, list_runs
from holdfast.runs.mirror.remote import count_records, list_mirror
from holdfast.spec import nearest

_STYLES = {
    "completed": "green",
    "interrupted": "yellow",
    "stalled": "yellow",
    "cancelled": "yellow",
    "failed": "red",
    "unreadable": "red",
}


class RunFilter(msgspec.Struct, frozen=True):
    """Which runs to list."""

    experiment: str | None
    status: str | None
    tag: str | None
    limit: int


def print_runs(store: str | None, chosen: RunFilter, as_json: bool) -> None:
    """List the runs of a folder or of a mirror."""
    if chosen.status is not None and chosen.status not in STATUSES:
        raise UsageError(f"--status {chosen.status}: there is no such status{nearest(chosen.status, set(STATUSES))}")
    where = store or default_store()
    if is_url(where):
        _print_mirror(where, chosen, as_json)
        return
    every = list(list_runs(where))
    found = _select(every, chosen)
    for run in found:
        for sentence in run.damage:
            warnings.warn(sentence, DamageWarning, stacklevel=2)
    if as_json:
        print_json(found)
    elif not found:
        _explain_none(where, len(every))
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
    """List the runs of a mirror. Counting records is slow, so it is done only for runs that are printed, unless a
    status is selected: only the records have it.
    """
    if chosen.tag is not None:
        raise UsageError(
            f"--tag {chosen.tag}: the list of a mirror comes from heartbeats, which have no tags; leave it out, or "
            "show one run with: holdfast show URL"
        )
    with spinner("listing the mirror"):
        every = list_mirror(url)
        of_experiment = [each for each in every if chosen.experiment in (None, each.summary.experiment)]
        shown = of_experiment if chosen.status is not None else of_experiment[-chosen.limit :]
        counted_runs = {each.summary.folder: each for each in map(count_records, shown)}
    found = _select([each.summary for each in counted_runs.values()], chosen)
    if as_json:
        print_json(found)
        return
    if not found:
        _explain_none(url, len(every))
        return
    inexact = {folder for folder, each in counted_runs.items() if not each.exact}
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


def _select(every: Sequence[RunSummary], chosen: RunFilter) -> list[RunSummary]:
    return [
        run
        for run in every
        if chosen.experiment in (None, run.experiment)
        and chosen.status in (None, run.status)
        and (chosen.tag is None or chosen.tag in run.tags)
    ][-chosen.limit :]


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
