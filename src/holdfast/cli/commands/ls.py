"""`ls`: the runs of a store, or of a mirror."""

import os
import time
import warnings
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from holdfast.cli.completion import STATUSES
from holdfast.cli.output import print_json, print_table, say
from holdfast.cli.progress import patience
from holdfast.errors import DamageWarning, UsageError
from holdfast.journal.object_store import is_url
from holdfast.report.grid import Grid
from holdfast.report.tables import duration
from holdfast.report.text import counted, human_bytes, status_tone, status_words
from holdfast.runs import RunSummary, default_store, list_runs
from holdfast.runs.mirror.remote import count_records, list_mirror
from holdfast.spec.source.messages import nearest

_STYLES = {
    "completed": "green",
    "interrupted": "yellow",
    "stalled": "yellow",
    "cancelled": "yellow",
    "failed": "red",
    "unreadable": "red",
}


class Wanted(msgspec.Struct, frozen=True):
    """Which runs to list."""

    experiment: str | None
    status: str | None
    tag: str | None
    limit: int


def print_runs(store: str | None, wanted: Wanted, as_json: bool) -> None:
    """Of a folder or of a mirror."""
    if wanted.status is not None and wanted.status not in STATUSES:
        raise UsageError(f"--status {wanted.status}: there is no such status{nearest(wanted.status, set(STATUSES))}")
    where = store or default_store()
    if is_url(where):
        _print_mirror(where, wanted, as_json)
        return
    every = list(list_runs(where))
    found = _chosen(every, wanted)
    for run in found:
        for sentence in run.damage:
            warnings.warn(sentence, DamageWarning, stacklevel=2)
    if as_json:
        print_json(found)
    elif not found:
        _tell_none(where, len(every))
    else:
        columns = ("run", "experiment", "status", "done", "failed", "size", "created", "tags")
        print_table(_grid(columns, map(_listed, found), found, right=("done", "failed", "size"), whole=("run",)))


def _print_mirror(url: str, wanted: Wanted, as_json: bool) -> None:
    """Records are only counted of runs that are shown, unless a status is asked for: only records tell that."""
    if wanted.tag is not None:
        raise UsageError(
            f"--tag {wanted.tag}: a mirror's list is made of heartbeats, which hold no tags; leave it out, or look at "
            "one run with: holdfast show URL"
        )
    with patience("looking at the mirror"):
        every = list_mirror(url)
        of_experiment = [each for each in every if wanted.experiment in (None, each.summary.experiment)]
        shown = of_experiment if wanted.status is not None else of_experiment[-wanted.limit :]
        counted_runs = {each.summary.folder: each for each in map(count_records, shown)}
    found = _chosen([each.summary for each in counted_runs.values()], wanted)
    if as_json:
        print_json(found)
        return
    if not found:
        _tell_none(url, len(every))
        return
    inexact = {folder for folder, each in counted_runs.items() if not each.exact}
    columns = ("run", "experiment", "status", "done", "failed", "last heard of", "url")
    rows = (_heard_of(run, run.folder in inexact) for run in found)
    print_table(_grid(columns, rows, found, right=("done", "failed"), whole=("run", "url")))
    if any(run.folder in inexact for run in found):
        say("*: or more: not all records could be read, so these are the counts of the last heartbeat")


def _chosen(every: Sequence[RunSummary], wanted: Wanted) -> list[RunSummary]:
    return [
        run
        for run in every
        if wanted.experiment in (None, run.experiment)
        and wanted.status in (None, run.status)
        and (wanted.tag is None or wanted.tag in run.tags)
    ][-wanted.limit :]


def _tell_none(where: str, others: int) -> None:
    there = f"No such run; there {'is' if others == 1 else 'are'} {counted(others, 'other')}: holdfast ls"
    is_there = is_url(where) or os.path.isdir(where)
    none = f"No runs in {where}" if is_there else f"There is no folder {where}, so no runs"
    say(there if others else f"{none}. Start one with: holdfast run SPEC")


def _grid(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    runs: Sequence[RunSummary],
    right: Iterable[str],
    whole: Iterable[str],
) -> Grid:
    """The statuses in colour."""
    styles = {(number, "status"): _style(run) for number, run in enumerate(runs)}
    return Grid(columns, rows, right=right, whole=whole, styles=styles)


def _style(run: RunSummary) -> str:
    """Red if it failed or is damaged, yellow if something is missing, green if all went well; none while it runs."""
    if run.damage:
        return "red"
    return _STYLES.get(status_tone(run.status, run.failed, run.planned), "")


def _listed(run: RunSummary) -> tuple[str, ...]:
    done, failed = f"{run.finished}/{run.planned}", str(run.failed or "")
    size, tags = human_bytes(run.bytes), " ".join(run.tags)
    status = status_words(run.status, run.failed, run.planned)
    status = f"{status}, damaged" if run.damage else status
    return run.run_id, run.experiment, status, done, failed, size, run.created[:16].replace("T", " "), tags


def _heard_of(run: RunSummary, inexact: bool) -> tuple[str, ...]:
    more = "*" if inexact else ""
    done, failed = (f"{run.finished}{more}/{run.planned}", str(run.failed or "")) if run.updated else ("?", "?")
    age = time.time() - datetime.fromisoformat(run.updated).timestamp() if run.updated else 0.0
    heard = f"{duration(max(age, 0.0))} ago" if run.updated else "never"
    status = status_words(run.status, run.failed, run.planned)
    return run.run_id, run.experiment, status, done, failed, heard, run.folder
