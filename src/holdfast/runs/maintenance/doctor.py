"""Diagnoses a store: what is wrong, what it means, and the command that fixes it. Users never have to edit files.

`examine` changes nothing. `fix` does only what is safe: it removes leftovers of dead processes and rewrites derived
files. Answers are never touched, so a crash in the middle of a fix loses nothing; run it again.
"""

import contextlib
import functools
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast import files
from holdfast.errors import DriftError, HoldfastError, JournalError, reason_of
from holdfast.journal import Lock, find_links, unrecorded
from holdfast.plan import RESTORE, Flaw, check_originals, originals
from holdfast.runs.execution.resume import read_fold
from holdfast.runs.fork import is_abandoned, remove_leftovers
from holdfast.runs.run import Run
from holdfast.runs.shards.layout import begun_shards
from holdfast.runs.store.lookup import RunLocation, folders_in, remove_hidden
from holdfast.runs.store.provenance import (
    SPEC_FILE,
    check_spec_file,
    find_loss,
    is_spec_file_current,
    write_spec_file,
)
from holdfast.state import Fold, standing_of

_FREE_BYTES_MIN = 1 << 30
_FREE_SHARE_MIN = 0.03


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong: what, what it means, and the command that fixes it."""

    what: str
    means: str
    command: str
    run: str = ""
    safe: bool = False
    """Whether `doctor --fix` fixes it."""
    fixed: bool = False
    damage: bool = False
    """Whether recorded data is missing or changed: `doctor` then exits with code 5."""


class Diagnosis(msgspec.Struct, frozen=True):
    """A finding, and the function that fixes it if that is safe."""

    finding: Finding
    fix: Callable[[], None] | None = None


def examine(store: str, only: RunLocation | None = None) -> Iterator[Diagnosis]:
    """Yield everything that is wrong with a store, or with one run."""
    if only is None:
        yield from _examine_store(store)
    for place in folders_in(store) if only is None else (only,):
        yield from _examine_safely(place, _examine_run)
        for shard in begun_shards(place):
            for each in _examine_safely(shard, _examine_shard):
                finding = msgspec.structs.replace(each.finding, what=f"shard {shard.shard}: {each.finding.what}")
                yield msgspec.structs.replace(each, finding=finding)


def _examine_safely(place: RunLocation, look: Callable[[RunLocation], Iterator[Diagnosis]]) -> Iterator[Diagnosis]:
    try:
        yield from look(place)
    except Exception as error:  # noqa: BLE001 - no error of one run may hide the others
        means = "this version cannot read the run, or it is not accessible from here"
        damage = isinstance(error, JournalError)
        yield Diagnosis(Finding(reason_of(error), means, place.command("verify"), place.run_id, damage=damage))


def fix(diagnosis: Diagnosis) -> Finding:
    """Apply the fix if there is a safe one. The returned finding shows whether it worked, or why not."""
    if diagnosis.fix is None:
        return diagnosis.finding
    try:
        diagnosis.fix()
    except (HoldfastError, OSError) as error:
        return msgspec.structs.replace(diagnosis.finding, means=f"{diagnosis.finding.means}; not fixed: {error}")
    return msgspec.structs.replace(diagnosis.finding, fixed=True)


def _examine_store(store: str) -> Iterator[Diagnosis]:
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(store)
        if usage.free < max(_FREE_BYTES_MIN, _FREE_SHARE_MIN * usage.total):
            means = "runs will wait for space when it is full; nothing is lost"
            free = f"{usage.free / (1 << 30):.1f} GiB are free in {store}"
            yield Diagnosis(Finding(free, means, "holdfast gc --keep 5"))
    means = "a process died while it made a fork or removed a run; the folder is not a run"
    for experiment in sorted(os.listdir(store)) if os.path.isdir(store) else ():
        above = os.path.join(store, experiment)
        for name in sorted(os.listdir(above)) if os.path.isdir(above) else ():
            path = os.path.join(above, name)
            if name.startswith(".gone-") or (name.startswith(".fork-") and is_abandoned(path)):
                finding = Finding(f"leftover folder {path}", means, "holdfast doctor --fix", safe=True)
                yield Diagnosis(finding, functools.partial(_remove_hidden_folders, above))


def _remove_hidden_folders(experiment: str) -> None:
    remove_leftovers(experiment)
    remove_hidden(experiment)


def _examine_run(place: RunLocation) -> Iterator[Diagnosis]:
    """Status, losses of the journal, damaged files and leftovers of one run."""
    fold = read_fold(place)
    if fold.story.started is None:
        if not standing_of(place.folder).held:  # a live process is just starting it
            yield Diagnosis(_diagnose_missing_start(place, fold))
        return
    with Run(place, quiet=True) as run:
        summary = run.summary()
        report = run.damage_report
        command = run.suggest_resume_command(summary.reason)
    status, reason = summary.status, summary.reason
    kept = f"{summary.finished} of {summary.planned} answers kept"
    if status in {"interrupted", "failed", "cancelled"}:
        what = f"{status}: {reason}, {kept}" if reason else f"{status}, {kept}"
        yield Diagnosis(Finding(what, "it can be resumed", command, place.run_id))
    elif status == "stalled":
        means = "its process is alive and makes no progress"
        yield Diagnosis(Finding(f"stalled {reason}, {kept}", means, place.command("show"), place.run_id))
    yield from _examine_journal(place, fold, report.losses)
    yield from _examine_files(place, fold, report.flaws)
    yield from _examine_leftovers(place, fold)


def _examine_shard(place: RunLocation) -> Iterator[Diagnosis]:
    """Files and leftovers of one shard. Its status, and what its journal has lost, are part of the run's."""
    fold = read_fold(place)
    if fold.story.started is None:
        if not standing_of(place.folder).held:
            yield Diagnosis(_diagnose_missing_start(place, fold))
        return
    yield from _examine_files(place, fold, check_originals(place.folder, fold.story.blocks, {}))
    yield from _examine_leftovers(place, fold)


def _examine_leftovers(place: RunLocation, fold: Fold) -> Iterator[Diagnosis]:
    leftovers = [] if standing_of(place.folder).held else _find_leftovers(place, fold)
    if leftovers:
        what = f"leftover files: {', '.join(map(os.path.basename, leftovers))}"
        means = "a process died while it wrote them; they hold no recorded data"
        finding = Finding(what, means, place.command("doctor", "--fix"), place.run_id, True)
        yield Diagnosis(finding, lambda: _remove_leftover_files(place))


def _examine_journal(place: RunLocation, fold: Fold, losses: Sequence[str]) -> Iterator[Diagnosis]:
    """What the journal has lost. Losses that a resume has recorded are repaired: their answers were requested again."""
    for what in losses:
        means = "a resume requests again what was lost; the rest is intact"
        yield Diagnosis(Finding(what, means, place.command("resume"), place.run_id, damage=True))
    if not losses and unrecorded(fold.damage, fold.story.anomalies):
        what, means = "its journal has files or bytes that are not its records", "a resume records this"
        yield Diagnosis(Finding(what, means, place.command("verify"), place.run_id, damage=True))


def _diagnose_missing_start(place: RunLocation, fold: Fold) -> Finding:
    """The finding for a journal without `run.started`: lost, damaged, or never written."""
    spec = os.path.join(place.folder, SPEC_FILE)
    lost = find_loss(place, fold.story, fold.damage, fold.finished.count + fold.failed.count)
    if lost == "journal":
        what = f"its journal {'is empty' if place.began else 'is missing'}"
        means = "its answers are lost here: restore journal/ from a copy or a mirror, or run its spec under another id"
        again = shlex.join(["holdfast", "run", spec, "--store", place.store])
        command = again if os.path.isfile(spec) else "restore journal/ from a copy of the run"
        return Finding(what, means, command, place.run_id, damage=True)
    if lost == "beginning":
        means = "it cannot be resumed: restore the journal from a copy or a mirror, or start a run with another id"
        what = "its first record (run.started) is damaged"
        return Finding(what, means, place.command("verify"), place.run_id, damage=True)
    means = "a process died before its first record: nothing was sent, nothing is lost; the same command starts it"
    return Finding("planned, and not begun", means, place.start_command(), place.run_id)


def _examine_files(place: RunLocation, fold: Fold, flaws: Sequence[Flaw]) -> Iterator[Diagnosis]:
    """Damaged plan and data, an edited or outdated spec.yaml, and links inside the run's folder."""
    for flaw in flaws:
        means = "the run cannot be resumed without it; recorded answers are not affected"
        yield Diagnosis(Finding(str(flaw), means, RESTORE, place.run_id, damage=True))
    try:
        check_spec_file(place, fold.story)
        wrong = "" if is_spec_file_current(place, fold.story) else "is missing or older than the journal"
    except DriftError:
        wrong = "contains a spec that the run never had"
    except files.NotAFileError as error:
        wrong = error.strerror or "cannot be read"
    if wrong and not standing_of(place.folder).held:
        means = "it only repeats what the journal holds; what was in it is kept as spec.yaml.old"
        finding = Finding(f"{SPEC_FILE} {wrong}", means, place.command("doctor", "--fix"), place.run_id, True)
        yield Diagnosis(finding, lambda: _restore_spec_file(place))
    for each in find_links(place.folder):
        path = str(each.filename)
        if os.path.basename(path) != SPEC_FILE:
            means = "Holdfast did not create it, reads nothing through it, and refuses to write the run"
            # Derived files (lock, lease, log) behind a link lose nothing; blobs behind a link are gone.
            lost = os.path.basename(path) in ("blobs", "journal")
            finding = Finding(f"{path} {each.strerror}", means, shlex.join(["rm", path]), place.run_id, damage=lost)
            yield Diagnosis(finding)


def _restore_spec_file(place: RunLocation) -> None:
    path = os.path.join(place.folder, SPEC_FILE)
    with _locked(place):
        if os.path.lexists(path):
            shutil.rmtree(f"{path}.old", ignore_errors=True)
            os.replace(path, f"{path}.old")
        write_spec_file(place, read_fold(place).story)


def _find_leftovers(place: RunLocation, fold: Fold) -> list[str]:
    """Temporary files, stale control requests, and plan or data blocks that no record refers to. If the journal has
    losses, blocks are never leftovers, because the record of a block may be among the losses.
    """
    known = {path for path, _ in originals(place.folder, fold.story.blocks)}
    is_complete = fold.story.started is not None and not fold.damage and not fold.story.anomalies
    found = []
    for folder in (place.folder, place.journal, os.path.join(place.folder, "control")):
        for name in sorted(files.list_names(folder)) if files.is_folder(folder) else ():
            path = os.path.join(folder, name)
            is_unknown_block = name.startswith(("plan-", "data-")) and name.endswith(".jsonl.zst") and path not in known
            if name.endswith((".tmp", ".wish", ".done")) or (is_unknown_block and is_complete):
                found.append(path)
    return found


def _remove_leftover_files(place: RunLocation) -> None:
    """Remove the leftovers that still are some under the lock: a process may have started in the meantime."""
    with _locked(place):
        for path in _find_leftovers(place, read_fold(place)):
            with contextlib.suppress(FileNotFoundError):
                files.remove(path)


@contextlib.contextmanager
def _locked(place: RunLocation) -> Iterator[None]:
    """Hold the run's lock: fixes write, so no other process may."""
    lock = Lock(place.folder)
    try:
        yield
    finally:
        lock.release()
