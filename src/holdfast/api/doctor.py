"""What is wrong in a store, what it means, and the command that mends it. Nothing here needs a person to edit files.

Looking changes nothing. `mend` does only what is safe: it removes leftovers of processes that are dead and makes
derived files again. Answers are never touched.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator

import msgspec

from holdfast.api.forking import remove_leftovers
from holdfast.api.places import RunPlace, runs_in
from holdfast.api.provenance import SPEC_FILE, check_spec_file, is_spec_file_new, write_spec_file
from holdfast.api.resuming import read_fold
from holdfast.api.retention import remove_doomed
from holdfast.api.runs import Run
from holdfast.errors import DriftError, HoldfastError
from holdfast.journal import Lock
from holdfast.plan import originals
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


class Trouble(msgspec.Struct, frozen=True):
    """A finding, and how it is mended if that is safe."""

    finding: Finding
    mend: Callable[[], None] | None = None


def examine(store: str, only: RunPlace | None = None) -> Iterator[Trouble]:
    """Everything that is wrong with a store, or with one run."""
    if only is None:
        yield from _of_store(store)
    for place in runs_in(store) if only is None else (only,):
        try:
            yield from _of_run(place)
        except HoldfastError as error:
            means = "the run cannot be read by this version"
            yield Trouble(Finding(str(error), means, f"holdfast verify {place.run_id}", place.run_id))


def mend(trouble: Trouble) -> Finding:
    """Do what is safe; the finding says whether it was."""
    if trouble.mend is None:
        return trouble.finding
    trouble.mend()
    return msgspec.structs.replace(trouble.finding, fixed=True)


def _of_store(store: str) -> Iterator[Trouble]:
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(store)
        if usage.free < max(_FREE_BYTES_MIN, _FREE_SHARE_MIN * usage.total):
            means = "runs will wait for space when it is full; nothing is lost"
            free = f"{usage.free / (1 << 30):.1f} GiB are free in {store}"
            yield Trouble(Finding(free, means, "holdfast gc"))
    for path in _hidden(store):
        means = "a process died while it made a fork or removed a run; it is no run"
        what = f"leftover folder {path}"
        above = os.path.dirname(path)
        yield Trouble(Finding(what, means, "holdfast doctor --fix", safe=True), lambda above=above: _sweep(above))  # type: ignore[misc] # binds the loop's value


def _hidden(store: str) -> Iterator[str]:
    for experiment in sorted(os.listdir(store)) if os.path.isdir(store) else ():
        above = os.path.join(store, experiment)
        for name in sorted(os.listdir(above)) if os.path.isdir(above) else ():
            if name.startswith((".fork-", ".gone-")):
                yield os.path.join(above, name)


def _sweep(experiment: str) -> None:
    remove_leftovers(experiment)
    remove_doomed(experiment)


def _of_run(place: RunPlace) -> Iterator[Trouble]:
    with Run(place) as run:
        status, reason = run.status()
        summary = run.summary()
    kept = f"{summary.finished}/{summary.planned} kept"
    if status in {"interrupted", "failed", "cancelled"}:
        what = f"{status}: {reason}, {kept}" if reason else f"{status}, {kept}"
        yield Trouble(Finding(what, "it can go on", f"holdfast resume {place.run_id}", place.run_id))
    elif status == "stalled":
        means = "its process lives and does not get on"
        yield Trouble(Finding(f"stalled {reason}, {kept}", means, f"holdfast show {place.run_id}", place.run_id))
    if summary.anomalies:
        what = f"{len(summary.anomalies)} losses are recorded in its journal"
        means = "what was lost is asked again by a resume; the rest is whole"
        yield Trouble(Finding(what, means, f"holdfast verify {place.run_id}", place.run_id))
    fold = read_fold(place)
    yield from _files(place, fold)
    if not is_held(place.folder):
        yield from _leftovers(place, fold)


def _files(place: RunPlace, fold: Fold) -> Iterator[Trouble]:
    if fold.story.started is None:
        return
    for path, _ in originals(place.folder, fold.story.blocks):
        if not os.path.exists(path):
            means = "the run cannot go on without it"
            yield Trouble(Finding(f"{path} is gone", means, "restore it from a copy of the run", place.run_id))
    try:
        check_spec_file(place, fold.story)
        wrong = "" if is_spec_file_new(place, fold.story) else "is missing or older than the journal"
    except DriftError:
        wrong = "says something that the run has never been"
    if wrong and not is_held(place.folder):
        means = "it only repeats what the journal holds; what was in it is kept as spec.yaml.old"
        finding = Finding(f"{SPEC_FILE} {wrong}", means, f"holdfast doctor {place.run_id} --fix", place.run_id, True)
        yield Trouble(finding, lambda: _restore_spec_file(place, fold))


def _restore_spec_file(place: RunPlace, fold: Fold) -> None:
    path = os.path.join(place.folder, SPEC_FILE)
    with _locked(place):
        with contextlib.suppress(OSError):
            os.replace(path, f"{path}.old")
        write_spec_file(place, fold.story)


def _leftovers(place: RunPlace, fold: Fold) -> Iterator[Trouble]:
    """Temporary files, wishes that nobody waits for, blocks that no record names."""
    known = {path for path, _ in originals(place.folder, fold.story.blocks)}
    found = []
    for folder in (place.folder, place.journal, os.path.join(place.folder, "control")):
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            block = name.startswith(("plan-", "data-")) and name.endswith(".jsonl.zst") and path not in known
            if name.endswith((".tmp", ".wish", ".done")) or block:
                found.append(path)
    if found:
        what = f"leftover files: {', '.join(map(os.path.basename, found))}"
        means = "a process died while it made them; they hold nothing that counts"
        finding = Finding(what, means, f"holdfast doctor {place.run_id} --fix", place.run_id, True)
        yield Trouble(finding, lambda: _remove(place, found))


def _remove(place: RunPlace, paths: list[str]) -> None:
    with _locked(place):
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


@contextlib.contextmanager
def _locked(place: RunPlace) -> Iterator[None]:
    """Mending is writing: only while nobody else writes the run."""
    lock = Lock(place.folder)
    try:
        yield
    finally:
        lock.release()
