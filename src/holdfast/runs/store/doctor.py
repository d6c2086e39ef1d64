"""What is wrong in a store, what it means, and the command that mends it. Nothing here needs a person to edit files.

Looking changes nothing. `mend` does only what is safe: it removes leftovers of processes that are dead and makes
derived files again. Answers are never touched.
"""

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast import files
from holdfast.errors import DriftError, HoldfastError, JournalError, reason_of
from holdfast.journal import Lock
from holdfast.journal.paths import find_links
from holdfast.journal.positions import unrecorded
from holdfast.plan import RESTORE, Flaw, originals
from holdfast.runs.execution.provenance import SPEC_FILE, check_spec_file, is_spec_file_new, lost_of, write_spec_file
from holdfast.runs.execution.resume import read_fold
from holdfast.runs.fork import is_abandoned, remove_leftovers
from holdfast.runs.run import Run
from holdfast.runs.store.lookup import RunPlace, folders_in, remove_hidden
from holdfast.state import Fold, is_held

_FREE_BYTES_MIN = 1 << 30
_FREE_SHARE_MIN = 0.03


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be."""

    what: str
    means: str
    command: str
    run: str = ""
    safe: bool = False
    """`doctor --fix` mends it."""
    fixed: bool = False
    damage: bool = False
    """Something that was written is missing or changed: `doctor` ends with exit code 5."""


class Trouble(msgspec.Struct, frozen=True):
    """A finding, and how it is mended if that is safe."""

    finding: Finding
    mend: Callable[[], None] | None = None


def examine(store: str, only: RunPlace | None = None) -> Iterator[Trouble]:
    """Everything that is wrong with a store, or with one run."""
    if only is None:
        yield from _of_store(store)
    for place in folders_in(store) if only is None else (only,):
        try:
            yield from _of_run(place)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one run, the others are examined
            means = "the run cannot be read by this version, or from here"
            damage = isinstance(error, JournalError)
            yield Trouble(Finding(reason_of(error), means, place.command("verify"), place.run_id, damage=damage))


def mend(trouble: Trouble) -> Finding:
    """Do what is safe; the finding says whether it was, or why not."""
    if trouble.mend is None:
        return trouble.finding
    try:
        trouble.mend()
    except (HoldfastError, OSError) as error:
        return msgspec.structs.replace(trouble.finding, means=f"{trouble.finding.means}; not mended: {error}")
    return msgspec.structs.replace(trouble.finding, fixed=True)


def _of_store(store: str) -> Iterator[Trouble]:
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(store)
        if usage.free < max(_FREE_BYTES_MIN, _FREE_SHARE_MIN * usage.total):
            means = "runs will wait for space when it is full; nothing is lost"
            free = f"{usage.free / (1 << 30):.1f} GiB are free in {store}"
            yield Trouble(Finding(free, means, "holdfast gc --keep 5"))
    for path in _hidden(store):
        means = "a process died while it made a fork or removed a run; it is no run"
        what = f"leftover folder {path}"
        above = os.path.dirname(path)
        yield Trouble(Finding(what, means, "holdfast doctor --fix", safe=True), lambda above=above: _sweep(above))  # type: ignore[misc] # binds the loop's value


def _hidden(store: str) -> Iterator[str]:
    for experiment in sorted(os.listdir(store)) if os.path.isdir(store) else ():
        above = os.path.join(store, experiment)
        for name in sorted(os.listdir(above)) if os.path.isdir(above) else ():
            path = os.path.join(above, name)
            if name.startswith(".gone-") or (name.startswith(".fork-") and is_abandoned(path)):
                yield path


def _sweep(experiment: str) -> None:
    remove_leftovers(experiment)
    remove_hidden(experiment)


def _of_run(place: RunPlace) -> Iterator[Trouble]:
    fold = read_fold(place)
    if fold.story.started is None:
        if not is_held(place.folder):  # else it is just beginning
            yield Trouble(_headless(place, fold))
        return
    with Run(place, quiet=True) as run:
        summary = run.summary()
        report = run.damage_report
        again = run.command_to_go_on(summary.reason)
    status, reason = summary.status, summary.reason
    kept = f"{summary.finished}/{summary.planned} kept"
    if status in {"interrupted", "failed", "cancelled"}:
        what = f"{status}: {reason}, {kept}" if reason else f"{status}, {kept}"
        yield Trouble(Finding(what, "it can go on", again, place.run_id))
    elif status == "stalled":
        means = "its process lives and does not get on"
        yield Trouble(Finding(f"stalled {reason}, {kept}", means, place.command("show"), place.run_id))
    new = len(unrecorded(fold.damage, fold.story.anomalies))
    losses = len(summary.anomalies) + new
    if losses:
        what = f"{'a loss was' if losses == 1 else f'{losses} losses were'} found in its journal"
        means = "what was lost is asked again by a resume; the rest is whole"
        yield Trouble(Finding(what, means, place.command("verify"), place.run_id, damage=new > 0))
    if report.tail:
        means = "what was lost is asked again by a resume; the rest is whole"
        yield Trouble(Finding(report.tail, means, place.command("resume"), place.run_id, damage=True))
    yield from _files(place, fold, report.flaws)
    if not is_held(place.folder):
        yield from _leftovers(place, fold)


def _headless(place: RunPlace, fold: Fold) -> Finding:
    """A folder whose journal has no `run.started`: lost, damaged, or never written."""
    spec = os.path.join(place.folder, SPEC_FILE)
    lost = lost_of(place, fold.story, fold.damage, fold.finished.count + fold.failed.count)
    if lost == "journal":
        what = f"its journal {'is empty' if place.began else 'is missing'}"
        means = "its answers are lost here: restore journal/ from a copy or a mirror, or run its spec under another id"
        again = shlex.join(["holdfast", "run", spec, "--store", place.store])
        command = again if os.path.isfile(spec) else "restore journal/ from a copy of the run"
        return Finding(what, means, command, place.run_id, damage=True)
    if lost == "beginning":
        means = "it cannot be resumed: restore the journal from a copy or a mirror, or start a run with another id"
        what = "the record that began it is damaged"
        return Finding(what, means, place.command("verify"), place.run_id, damage=True)
    means = "a process died before its first record: nothing was asked, nothing is lost; the same command begins it"
    return Finding("planned, and not begun", means, place.command_to_begin(), place.run_id)


def _files(place: RunPlace, fold: Fold, flaws: Sequence[Flaw]) -> Iterator[Trouble]:
    for flaw in flaws:
        means = "the run cannot be resumed without it; recorded answers are not affected"
        yield Trouble(Finding(str(flaw), means, RESTORE, place.run_id, damage=True))
    try:
        check_spec_file(place, fold.story)
        wrong = "" if is_spec_file_new(place, fold.story) else "is missing or older than the journal"
    except DriftError:
        wrong = "says something that the run has never been"
    except files.NotAFileError as error:
        wrong = error.strerror or "cannot be read"
    if wrong and not is_held(place.folder):
        means = "it only repeats what the journal holds; what was in it is kept as spec.yaml.old"
        finding = Finding(f"{SPEC_FILE} {wrong}", means, place.command("doctor", "--fix"), place.run_id, True)
        yield Trouble(finding, lambda: _restore_spec_file(place))
    for each in find_links(place.folder):
        path = str(each.filename)
        if os.path.basename(path) != SPEC_FILE:
            means = "Holdfast made no such thing, reads nothing through it, and refuses to write the run"
            # Derived files (lock, lease, log) behind a link lose nothing; blobs behind a link are gone.
            lost = os.path.basename(path) in ("blobs", "journal")
            finding = Finding(f"{path} {each.strerror}", means, shlex.join(["rm", path]), place.run_id, damage=lost)
            yield Trouble(finding)


def _restore_spec_file(place: RunPlace) -> None:
    path = os.path.join(place.folder, SPEC_FILE)
    with _locked(place):
        if os.path.lexists(path):
            shutil.rmtree(f"{path}.old", ignore_errors=True)
            os.replace(path, f"{path}.old")
        write_spec_file(place, read_fold(place).story)


def _leftovers(place: RunPlace, fold: Fold) -> Iterator[Trouble]:
    found = _left_behind(place, fold)
    if found:
        what = f"leftover files: {', '.join(map(os.path.basename, found))}"
        means = "a process died while it made them; they hold nothing that counts"
        finding = Finding(what, means, place.command("doctor", "--fix"), place.run_id, True)
        yield Trouble(finding, lambda: _remove_left_behind(place))


def _left_behind(place: RunPlace, fold: Fold) -> list[str]:
    """Temporary files, wishes that nobody waits for, blocks that no record names; of a journal with losses no block is
    taken for a leftover, because its record may be what was lost.
    """
    known = {path for path, _ in originals(place.folder, fold.story.blocks)}
    sure = fold.story.started is not None and not fold.damage and not fold.story.anomalies
    found = []
    for folder in (place.folder, place.journal, os.path.join(place.folder, "control")):
        for name in sorted(files.list_names(folder)) if files.is_folder(folder) else ():
            path = os.path.join(folder, name)
            block = name.startswith(("plan-", "data-")) and name.endswith(".jsonl.zst") and path not in known
            if name.endswith((".tmp", ".wish", ".done")) or (block and sure):
                found.append(path)
    return found


def _remove_left_behind(place: RunPlace) -> None:
    """Looked for again: what was a leftover may have become a part of the run."""
    with _locked(place):
        for path in _left_behind(place, read_fold(place)):
            with contextlib.suppress(FileNotFoundError):
                files.remove(path)


@contextlib.contextmanager
def _locked(place: RunPlace) -> Iterator[None]:
    """Mending is writing: only while nobody else writes the run."""
    lock = Lock(place.folder)
    try:
        yield
    finally:
        lock.release()
