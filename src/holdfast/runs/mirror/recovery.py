"""Bringing back a run whose machine, folder or journal is gone, from its mirror, from a copy, or from both.

Everything that is left is united; nothing that is there is ever replaced by less. What could not be had back is told in
one sentence each. It can be cut off and done again at any moment, and streams: memory does not grow with the run.
"""

import asyncio
import contextlib
import itertools
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import unquote

import msgspec

from holdfast.errors import DriftError, StoreError, UsageError
from holdfast.files import NotAFileError
from holdfast.journal import OS_DISK, Lock, Reader, journal_folder, verify
from holdfast.journal.disk import remove_if_there
from holdfast.journal.mirror.pieces import FolderSource, MirrorSource, SegmentPiece, Source
from holdfast.journal.mirror.removal import refuse_removed, removed_run
from holdfast.journal.mirror.restore import Restored, fetch_file, restore, uid_of
from holdfast.journal.object_store import StoredObjects, is_url, open_objects
from holdfast.journal.paths import quarantine_folder
from holdfast.journal.segments import list_chain
from holdfast.journal.verification import describe, voids
from holdfast.plan import find_problem, originals
from holdfast.report.text import counted
from holdfast.runs.compaction import condense
from holdfast.runs.execution.provenance import SPEC_FILE, check_spec_file, write_spec_file
from holdfast.runs.execution.resume import read_fold
from holdfast.runs.mirror.claim import known_there, objects_of, restore_whole
from holdfast.runs.mirror.recovery_note import RecoveryNote, is_recovered, read_note
from holdfast.runs.store.blob_check import check_content
from holdfast.runs.store.lookup import RunPlace, default_store, hide_folder, place_of, refuse_mirror, remove_hidden
from holdfast.spec import Mirror
from holdfast.state import Fold, is_held

Told = Callable[[str], None]
Moved = Callable[[int, int], None]
"""How many bytes are here, of how many."""


class Recovered(msgspec.Struct, frozen=True):
    """What was brought back."""

    place: RunPlace
    planned: int
    finished: int
    failed: int
    in_flight: int
    lost: int
    warnings: list[str]
    cleaned: bool = False
    """What it was recovered from was no longer needed, and is gone."""

    @property
    def folder(self) -> str:
        """Where it is now: `open_run` takes it."""
        return self.place.folder


class Wanted(msgspec.Struct, frozen=True):
    """How to recover. `output`: the store to put it in."""

    output: str = ""
    events: bool = True
    overwrite: bool = False
    cleanup: bool = True


async def recover_async(where: str, wanted: Wanted | None = None, moved: Moved | None = None) -> Recovered:
    """`recover`, beside whatever else the event loop does."""
    return await asyncio.to_thread(recover, where, wanted, moved)


def recover(where: str, wanted: Wanted | None = None, moved: Moved | None = None) -> Recovered:
    """Bring a run back: `where` is its folder, or its URL in a mirror. The same call again continues one that was
    killed, and gives the same result.
    """
    chosen = wanted or Wanted()
    done = _cleaned_before(where, chosen)
    if done is not None:
        return done
    warnings: list[str] = []
    try:
        found, place = _sources(where, chosen.output, warnings.append)
        note = read_note(place, found[0].place, events=chosen.events)
        if note is not None and not chosen.events and is_recovered(place, note):
            return _noted(place, note, cleaned=False)
        if note is not None and chosen.events:
            chosen = msgspec.structs.replace(chosen, overwrite=True)
        sources = [Counted(source, moved) for source in found] if moved is not None else found
        mirrors = [source for source in found if isinstance(source, MirrorSource)]
        recovery = _Recovery(place, sources, mirrors, chosen, warnings)
        recovery.bring()
    except StoreError as error:
        raise UsageError(str(error)) from error
    for mirror in mirrors:
        warnings += (f"{mirror.place}: {name} is none of this run's; it is left alone" for name in mirror.strangers())
    cleaned = chosen.cleanup and chosen.events and not recovery.void and _clean(found, place)
    return Recovered(place, *_counts(recovery.fold), recovery.lost, warnings, cleaned)


def _cleaned_before(where: str, chosen: Wanted) -> Recovered | None:
    """The result of an earlier call that has also removed the folder that is named."""
    if not chosen.output or not chosen.events or is_url(where) or os.path.lexists(where):
        return None
    folder = os.path.realpath(where)
    above, name = os.path.split(folder)
    place = place_of(chosen.output, unquote(os.path.basename(above)), unquote(name))
    note = read_note(place, folder, events=True)
    if note is None or not is_recovered(place, note):
        return None
    remove_hidden(above)  # a kill may have left it half removed
    return _noted(place, note, cleaned=chosen.cleanup)


def _noted(place: RunPlace, note: RecoveryNote, *, cleaned: bool) -> Recovered:
    return Recovered(place, *_counts(read_fold(place)), note.lost, list(note.warnings), cleaned)


def _counts(fold: Fold) -> tuple[int, int, int, int]:
    """Planned, finished, failed, begun."""
    return fold.planned, fold.finished.count, fold.failed.count, begun_count(fold)


class _Losses(msgspec.Struct, frozen=True):
    """What a journal as it was put together holds, and does not have."""

    fold: Fold
    epoch: int
    """The one that it was last written under."""
    last_n: int
    records: int
    told: list[str]


def _losses(folder: str) -> _Losses:
    reader = Reader(journal_folder(folder))
    fold = Fold().read(reader.read())
    damage = [each for each in fold.damage if each.kind != "torn"]
    told = [*map(describe, damage), *voids(journal_folder(folder))]
    last_n = max([reader.cursor.n, *(each.n_last for each in damage)])
    epoch = list_chain(OS_DISK, journal_folder(folder)).epoch
    return _Losses(fold, epoch, last_n, sum(each.records_lost for each in damage), told)


class Counted:
    """A source that tells how much of it was read."""

    def __init__(self, source: Source, moved: Moved) -> None:
        self._source = source
        self._moved = moved
        self._done = 0
        self.kind, self.place = source.kind, source.place
        self._all = sum(piece.size for piece in source.pieces())

    def pieces(self) -> list[SegmentPiece]:
        return self._source.pieces()

    def files(self) -> list[str]:
        return self._source.files()

    def read(self, name: str) -> Iterator[bytes]:
        for piece in self._source.read(name):
            self._done += len(piece)
            self._moved(min(self._done, self._all), self._all)
            yield piece


def _sources(where: str, output: str, warn: Told) -> tuple[list[Source], RunPlace]:
    """What the run can be had from, and where it belongs."""
    if is_url(where):
        objects, experiment, run_id = only_run(where)
        source = MirrorSource(objects)
        refuse_removed(source)
        return [source], place_of(output or default_store(), experiment, run_id)
    folder = os.path.realpath(where)  # one folder has one name, or it would be recovered into itself and then removed
    if not os.path.isdir(os.path.join(folder, "journal")):
        raise UsageError(
            f"{where} is neither a folder of a run (it has no journal) nor a URL; list what there is with: "
            "holdfast recover --list"
        )
    refuse_mirror(folder)
    above, name = os.path.split(folder)
    here = RunPlace(os.path.dirname(above), unquote(os.path.basename(above)), unquote(name), folder)
    place = here if not output else place_of(output, here.experiment, here.run_id)
    if os.path.isdir(place.folder) and os.path.samefile(place.folder, folder):
        place = here
    elif os.path.realpath(place.folder).startswith(f"{folder}/"):
        raise UsageError(
            f"{place.folder} is inside of what is recovered; choose a place outside of it with --output DIR"
        )
    return [FolderSource(folder), *_mirror_of(here, warn)], place


def only_run(url: str) -> tuple[StoredObjects, str, str]:
    """The one run that a URL means: its objects, its experiment and its id."""
    try:
        runs = list(itertools.islice(mirrored_runs(open_objects(url)), 6))
    except StoreError as error:
        raise UsageError(str(error)) from error
    if len(runs) == 1:
        return runs[0]
    names = ", ".join(f"{experiment}/{run_id}" for _, experiment, run_id in runs[:5])
    problem = f"holds several runs ({names}): add the experiment and the id of one" if runs else "holds no run"
    look = url if runs else _above(url)
    raise UsageError(f"{url} {problem}; list them with: holdfast recover --list {shlex.quote(look)}")


def _above(url: str) -> str:
    """Where whoever misspelt the last name finds the right one; the whole bucket is above all."""
    above, _, _ = url.rstrip("/").rpartition("/")
    return url if above.endswith((":", "/")) else above


def mirrored_runs(objects: StoredObjects) -> Iterator[tuple[StoredObjects, str, str]]:
    """The runs below a URL, which is that of a whole mirror, of an experiment in it, or of a run."""
    for path in _run_folders(objects, "", 2):
        parts = f"{objects.url.rstrip('/')}/{path}".rstrip("/").split("/")
        yield (objects.below(path) if path else objects), unquote(parts[-2]), unquote(parts[-1])


def _run_folders(objects: StoredObjects, path: str, depth: int) -> Iterator[str]:
    names = objects.folders(path)
    if "journal" in names or "lease" in names:
        yield path
    elif depth:
        for name in sorted(names):
            yield from _run_folders(objects, f"{path}/{name}" if path else name, depth - 1)


def _mirror_of(here: RunPlace, warn: Told) -> Iterator[Source]:
    """The mirror that a run's own records name, if it can be reached."""
    mirror = read_fold(here).story.spec.get("mirror")
    if not isinstance(mirror, dict):
        return
    try:
        source = MirrorSource(objects_of(str(mirror["url"]), here))
    except (StoreError, UsageError) as error:
        warn(f"{error}; recovered from the folder alone")
        return
    removed = removed_run(source)
    if removed is not None:
        warn(f"{source.place} was removed on {removed.tombstone.when}; recovered from the folder alone")
    elif source.pieces():
        yield source


class _Recovery:
    """One recovery into a place. All that can fail or warn comes before the run appears there."""

    def __init__(
        self,
        place: RunPlace,
        sources: Sequence[Source],
        mirrors: Sequence[MirrorSource],
        chosen: Wanted,
        warnings: list[str],
    ) -> None:
        self.fold = Fold()
        self.lost = 0
        self.void = 0
        """Pieces that do not count."""
        self._place = place
        self._sources = sources
        self._mirrors = mirrors
        self._others = [source for source in sources if source.place != place.folder]
        self._chosen = chosen
        self._warnings = warnings
        self._made = not place.began

    def bring(self) -> None:
        place, warn = self._place, self._warnings.append
        if place.began:
            self._refuse_existing()
        if not self._others:  # it is where it belongs, and there is nothing else: what it has is counted
            self._count(place.folder)
            return
        if os.path.isdir(place.folder):
            RecoveryNote(self._sources[0].place, self._chosen.events).write(place)
        if not place.began:
            restore_whole(place, self._others, warn, self._finish)
            return
        lock = Lock(place.folder)
        try:
            self._finish(place.folder, restore(place.folder, self._others, warn))
        finally:
            lock.release()

    def _refuse_existing(self) -> None:
        folder = self._place.folder
        if not self._chosen.events:
            raise UsageError(f"{folder} exists: a run without events is made in a new place; add --output DIR")
        if len(self._others) == len(self._sources) and not self._chosen.overwrite:
            raise UsageError(
                f"{folder} exists; add what is recovered to it with --overwrite (nothing in it is lost), or "
                "choose another place with --output DIR"
            )

    def _finish(self, folder: str, restored: Restored) -> None:
        self.void = len(restored.choice.void)
        if self.void:
            pieces = counted(self.void, "piece")
            self._warnings.append(f"{pieces} were written by processes that had lost the run; they do not count")
        self._count(folder)
        note = RecoveryNote(
            source=self._sources[0].place,
            events=self._chosen.events,
            uid=uid_of(FolderSource(folder)),
            lost=self.lost,
            warnings=tuple(self._warnings),
        )
        note.write(self._place)

    def _count(self, folder: str) -> None:
        """What is there, what is not, and what could be replaced."""
        found = _losses(folder)
        self.fold = found.fold
        _mend_originals(folder, found.fold, self._others)
        if not self._chosen.events:
            condense(folder)
        here = msgspec.structs.replace(self._place, folder=folder)
        known = max((known_there(each.objects, found.epoch).n for each in self._mirrors), default=0)
        self.lost = found.records + max(known - found.last_n, 0)
        self._warnings += found.told
        if known > found.last_n:
            self._warnings.append(
                f"records {found.last_n + 1} to {known} had been acknowledged and are nowhere; what they held is asked "
                "again"
            )
        self._warnings += _missing_originals(here, found.fold, self._made)
        self._warnings += check_content(here, found.fold)


def _mend_originals(folder: str, fold: Fold, sources: Sequence[Source]) -> None:
    """Plan and data that are damaged here and whole elsewhere."""
    for path, stored in originals(folder, fold.story.blocks):
        name, temporary = os.path.basename(path), f"{path}.recovering.zst"
        for source in sources:
            if not find_problem(path, stored) or name not in source.files():
                continue
            with contextlib.suppress(StoreError):  # then it is reported as missing
                fetch_file(source, name, temporary)
                if not find_problem(temporary, stored):
                    OS_DISK.replace(temporary, path)
                    OS_DISK.sync_folder(folder)
        remove_if_there(OS_DISK, temporary)


def _missing_originals(place: RunPlace, fold: Fold, made: bool) -> Iterator[str]:
    """Plan and data, without which a run can be read and not gone on with."""
    for path, stored in originals(place.folder, fold.story.blocks):
        if find_problem(path, stored):
            yield f"{os.path.basename(path)} is missing or damaged; the run can be read, but not gone on with"
    if fold.story.started is not None:
        yield from _mend_spec_file(place, fold, made)
    if fold.story.started is None:
        yield "the record that began the run is lost; what is left can be read, but not gone on with"


def _mend_spec_file(place: RunPlace, fold: Fold, made: bool) -> Iterator[str]:
    """It only tells what the journal holds. One that somebody may have edited here is theirs to remove."""
    problem = "was missing"
    if os.path.exists(os.path.join(place.folder, SPEC_FILE)):
        try:
            return check_spec_file(place, fold.story)
        except (DriftError, NotAFileError) as error:
            if not made:
                yield str(error)
                return
            problem = "says what the run never was"
    write_spec_file(place, fold.story)
    yield f"{SPEC_FILE} {problem}; it is written again from the journal"


def _clean(sources: Sequence[Source], place: RunPlace) -> bool:
    """Remove a folder that was recovered from, if all of it is in another place now; what it keeps in quarantine is
    nowhere else. A mirror stays: it is the copy.
    """
    done = False
    for source in sources:
        if source.kind != "local" or source.place == place.folder or is_held(source.place):
            continue
        old, new = verify(os.path.join(source.place, "journal")), verify(place.journal)
        if (
            new.uid == old.uid
            and new.records >= old.records
            and new.last_n >= old.last_n
            and {*source.files()} <= {*FolderSource(place.folder).files()}
            and not os.path.exists(quarantine_folder(journal_folder(source.place)))
        ):
            shutil.rmtree(hide_folder(source.place))
            done = True
    return done


def begun_count(fold: Fold) -> int:
    """Samples with recorded steps and no end: a resume continues after their last step."""
    return sum(bool(trail.steps) and o not in fold.failed for o, trail in fold.trails.items())


def bring_to(store: str, url: str, warn: Callable[[str], None], moved: Moved) -> RunPlace:
    """The run's place in a store here, made if there is none."""
    objects, experiment, run_id = only_run(url)
    place = place_of(store, experiment, run_id)
    if place.began:
        return place
    try:
        source = MirrorSource(objects)
        refuse_removed(source)
        if not source.pieces():
            raise UsageError(f"{url} holds no records yet: start the run with: holdfast run SPEC --id {run_id}")
        restore_whole(place, [Counted(source, moved)], warn)
    except StoreError as error:
        raise UsageError(str(error)) from error
    return place


def check_mirror(mirror: Mirror | None, place: RunPlace, url: str) -> None:
    """UsageError if going on would not be seen by whoever has the run in that mirror."""
    meant, _, _ = only_run(url)
    if mirror is not None and objects_of(mirror.url, place).url == meant.url.rstrip("/"):
        return
    above = meant.url.rstrip("/").rsplit("/", 2)[0]
    now = f"its mirror.url is {mirror.url}" if mirror is not None else "it would have no mirror"
    raise UsageError(
        f"{place.run_id} was brought home from {url}, but {now}; to keep it in the mirror that it comes from: "
        f"{place.command('resume', '--set', f'mirror.url={above}')}"
    )
