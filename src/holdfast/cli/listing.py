"""`ls`: the runs of a store, or of a mirror."""

import os
import time
import warnings
from datetime import datetime

import msgspec

from holdfast.api import RunSummary, default_store, list_runs
from holdfast.api.elsewhere import list_mirror
from holdfast.cli.completing import STATUSES
from holdfast.cli.output import print_json, print_table, say
from holdfast.cli.waiting import patience
from holdfast.errors import DamageWarning, UsageError
from holdfast.journal.objects import is_url
from holdfast.report.grids import Grid
from holdfast.report.tables import duration
from holdfast.report.wording import counted, human_bytes, status_words
from holdfast.spec.explaining import nearest


class Wanted(msgspec.Struct, frozen=True):
    """Which runs to list."""

    experiment: str | None
    status: str | None
    tag: str | None
    limit: int


def print_runs(store: str | None, wanted: Wanted, as_json: bool) -> None:
    """Of a folder, or, as heartbeats tell, of a mirror."""
    if wanted.status is not None and wanted.status not in STATUSES:
        raise UsageError(f"--status {wanted.status}: there is no such status{nearest(wanted.status, set(STATUSES))}")
    where = store or default_store()
    every = list(list_runs(where)) if not is_url(where) else _in_mirror(where, wanted)
    found = [
        run
        for run in every
        if wanted.experiment in (None, run.experiment)
        and wanted.status in (None, run.status)
        and (wanted.tag is None or wanted.tag in run.tags)
    ][-wanted.limit :]
    for run in found:
        for sentence in run.damage:
            warnings.warn(sentence, DamageWarning, stacklevel=2)
    if as_json:
        print_json(found)
        return
    if not found:
        there = f"No such run; there {'is' if len(every) == 1 else 'are'} {counted(len(every), 'other')}: holdfast ls"
        is_there = is_url(where) or os.path.isdir(where)
        none = f"No runs in {where}" if is_there else f"There is no folder {where}, so no runs"
        say(there if every else f"{none}. Start one with: holdfast run SPEC")
        return
    if is_url(where):
        heard = ("run", "experiment", "status", "done", "failed", "last heard of", "url")
        print_table(Grid(heard, map(_heard_of, found), right=("done", "failed"), whole=("run", "url")))
        return
    columns = ("run", "experiment", "status", "done", "failed", "size", "created", "tags")
    print_table(Grid(columns, map(_listed, found), right=("done", "failed", "size"), whole=("run",)))


def _listed(run: RunSummary) -> tuple[str, ...]:
    done, failed = f"{run.finished}/{run.planned}", str(run.failed or "")
    size, tags = human_bytes(run.bytes), " ".join(run.tags)
    status = status_words(run.status, run.failed, run.planned)
    status = f"{status}, damaged" if run.damage else status
    return run.run_id, run.experiment, status, done, failed, size, run.created[:16].replace("T", " "), tags


def _heard_of(run: RunSummary) -> tuple[str, ...]:
    done, failed = (f"{run.finished}/{run.planned}", str(run.failed or "")) if run.updated else ("?", "?")
    age = time.time() - datetime.fromisoformat(run.updated).timestamp() if run.updated else 0.0
    heard = f"{duration(max(age, 0.0))} ago" if run.updated else "never"
    status = status_words(run.status, run.failed, run.planned)
    return run.run_id, run.experiment, status, done, failed, heard, run.folder


def _in_mirror(url: str, wanted: Wanted) -> list[RunSummary]:
    if wanted.tag is not None:
        raise UsageError(
            f"--tag {wanted.tag}: a mirror's list is made of heartbeats, which hold no tags; leave it out, or look at "
            "one run with: holdfast show URL"
        )
    with patience("looking at the mirror"):
        return list_mirror(url)
