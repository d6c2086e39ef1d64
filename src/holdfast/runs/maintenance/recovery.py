"""Recovers a run whose machine, folder or journal is lost, from its mirror, from a copy of its folder, or from both.

All sources are merged; existing data is never replaced by less. The shards of a sharded run are recovered after its
root journal, each like a run. Each loss is reported in one sentence. After a crash at
any point the same call continues. Recovery streams: its memory does not grow with the run.

A note beside a recovered run: its source, and the result.

Because of the note, a `recover` that was killed can be repeated: it continues instead of refusing the existing run. The
note is a hint: if it is missing or damaged, the repetition is refused like any recovery into an existing run.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from urllib.parse import unquote

import msgspec

from holdfast.errors import DriftError, StoreError, UsageError
from holdfast.files import NotAFileError, is_folder, list_names, read_file, replace_file
from holdfast.journal import (
    OS_DISK,
    SHARDS,
    Damage,
    Entry,
    FolderSource,
    Lock,
    Loss,
    MirrorSource,
    Reader,
    Restored,
    Source,
    count_lost,
    describe,
    describe_voids,
    fetch_file,
    is_url,
    journal_folder,
    list_chain,
    open_objects,
    quarantine_folder,
    refuse_removed,
    remove_if_there,
    removed_run,
    restore,
    uid_of,
    verify,
)
from holdfast.plan import find_problem, originals
from holdfast.records import Shard, parse_shard
from holdfast.report import counted
from holdfast.runs.execution.resume import read_fold
from holdfast.runs.maintenance.compaction import condense
from holdfast.runs.mirror.claim import Warn, objects_of, read_watermark, restore_whole
from holdfast.runs.mirror.remote import CountingSource, TransferProgress, only_run
from holdfast.runs.shards.layout import begun_shards, shard_location
from holdfast.runs.store.damage import acknowledged_by, losses_of
from holdfast.runs.store.lookup import (
    RunLocation,
    default_store,
    hide_folder,
    refuse_mirror,
    remove_hidden,
    run_location,
)
from holdfast.runs.store.provenance import SPEC_FILE, check_spec_file, write_spec_file
from holdfast.runs.verification import check_content
from holdfast.spec import Mirror
from holdfast.state import Fold, Standing, is_held, standing_of


class RecoveryNote(msgspec.Struct, frozen=True):
    """The source and options of a `recover`, and its result."""

    source: str
    """A folder or a URL."""
    events: bool
    uid: str = ""
    """The uid of the recovered run; empty until the recovery is complete."""
    lost: int = 0
    lost_is_exact: bool = True
    warnings: tuple[str, ...] = ()

    def write(self, place: RunLocation) -> None:
        replace_file(_path(place), msgspec.json.encode(self))


def read_note(place: RunLocation, source: str, *, events: bool) -> RecoveryNote | None:
    """The note of an earlier call with the same source and the same `events`; None if there is none."""
    try:
        note = msgspec.json.decode(read_file(_path(place)), type=RecoveryNote)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return note if (note.source, note.events) == (source, events) else None


def is_recovered(place: RunLocation, note: RecoveryNote) -> bool:
    """Whether the run at `place` is the complete result that the note describes."""
    return bool(note.uid) and place.began and uid_of(FolderSource(place.folder)) == note.uid


def remove_note(place: RunLocation) -> None:
    remove_if_there(OS_DISK, _path(place))


def _path(place: RunLocation) -> str:
    above, name = os.path.split(place.folder)
    return os.path.join(above, f".recovered-{name}.json")


class Recovered(msgspec.Struct, frozen=True):
    """The result of a recovery."""

    place: RunLocation
    planned: int
    finished: int
    failed: int
    in_flight: int
    lost: int
    warnings: list[str]
    cleaned: bool = False
    """Whether the source folder was removed because it was no longer needed."""
    lost_is_exact: bool = True
    """False if more than `lost` records may be lost."""
    merged: bool = True
    """Whether there was a mirror or another folder to recover from, beside the run's own folder."""

    @property
    def folder(self) -> str:
        """The folder of the recovered run, for `open_run`."""
        return self.place.folder


class RecoveryOptions(msgspec.Struct, frozen=True):
    """How to recover. `output`: the store to restore into."""

    output: str = ""
    events: bool = True
    overwrite: bool = False
    cleanup: bool = True


async def recover_async(
    where: str, options: RecoveryOptions | None = None, moved: TransferProgress | None = None
) -> Recovered:
    """`recover` without blocking the event loop."""
    return await asyncio.to_thread(recover, where, options, moved)


def recover(where: str, options: RecoveryOptions | None = None, moved: TransferProgress | None = None) -> Recovered:
    """Recover a run. `where`: its folder, or its URL in a mirror. Repeating a call that was killed continues it and
    gives the same result.
    """
    options = options or RecoveryOptions()
    earlier = _find_earlier_result(where, options)
    if earlier is not None:
        return earlier
    warnings: list[str] = []
    try:
        found, place = _find_sources(where, options.output, warnings.append)
        note = read_note(place, found[0].place, events=options.events)
        if note is not None and not options.events and is_recovered(place, note):
            return _recovered_before(place, note, cleaned=False)
        if note is not None and options.events:
            options = msgspec.structs.replace(options, overwrite=True)  # the first call made this run
        parts = _find_shards(found)
        if parts and not options.events:
            raise UsageError(
                f"{place.run_id} has shards, which need their events; recover it without --no-events, then join its "
                "shards with: holdfast merge"
            )
        recovery = _recover_part(place, found, options, warnings, moved)
        shards = []
        for shard, sources in parts.items():
            own = list[str]()
            more = msgspec.structs.replace(options, overwrite=True)  # the root was accepted
            shards.append(_recover_part(shard_location(place, shard), sources, more, own, moved))
            remove_note(shard_location(place, shard))  # that of the root is for all
            warnings += [f"shard {shard}: {each}" for each in own]
    except StoreError as error:
        raise UsageError(str(error)) from error
    every = [recovery, *shards]
    lost = Loss(sum(each.lost.records for each in every), all(each.lost.is_exact for each in every))
    if shards and recovery.merged:
        recovery.note_result(place.folder, lost)
    is_void, merged = any(each.void for each in every), any(each.merged for each in every)
    cleaned = options.cleanup and options.events and not is_void and _remove_sources(found, place)
    counts = recovery.counts.with_shards(each.counts for each in shards)
    return Recovered(place, *counts, lost.records, warnings, cleaned, lost.is_exact, merged)


def _find_shards(sources: Sequence[Source]) -> dict[Shard, list[Source]]:
    """The shards of a run in its sources, in order. Empty for a run without shards."""
    found: dict[Shard, list[Source]] = {}
    for source in sources:
        if isinstance(source, MirrorSource):
            names = source.objects.folders(SHARDS)
        else:
            folder = os.path.join(source.place, SHARDS)
            names = list_names(folder) if is_folder(folder) else []
        for name in names:
            with contextlib.suppress(ValueError):  # a hidden folder: being made
                shard, below = parse_shard(name), f"{SHARDS}/{name}"
                part: Source = FolderSource(os.path.join(source.place, below))
                if isinstance(source, MirrorSource):
                    part = MirrorSource(open_objects(f"{source.place.rstrip('/')}/{below}"))
                    if removed_run(part) is not None:
                        continue
                if part.pieces():
                    found.setdefault(shard, []).append(part)
    return dict(sorted(found.items()))


def _recover_part(
    place: RunLocation,
    found: Sequence[Source],
    options: RecoveryOptions,
    warnings: list[str],
    moved: TransferProgress | None,
) -> "_Recovery":
    """Recover the journal of a run, or of one of its shards."""
    sources = [CountingSource(source, moved) for source in found] if moved is not None else found
    mirrors = [source for source in found if isinstance(source, MirrorSource)]
    recovery = _Recovery(place, sources, mirrors, options, warnings)
    recovery.run()
    for mirror in mirrors:
        warnings += (
            f"{mirror.place}: {name} does not belong to this run and was left alone"
            for name in mirror.foreign_objects()
        )
    return recovery


def _find_earlier_result(where: str, options: RecoveryOptions) -> Recovered | None:
    """The result of an earlier call that has already removed the source folder; None if there was none."""
    if not options.output or not options.events or is_url(where) or os.path.lexists(where):
        return None
    folder = os.path.realpath(where)
    above, name = os.path.split(folder)
    place = run_location(options.output, unquote(os.path.basename(above)), unquote(name))
    note = read_note(place, folder, events=True)
    if note is None or not is_recovered(place, note):
        return None
    remove_hidden(above)  # a kill may have left the source folder half removed
    return _recovered_before(place, note, cleaned=options.cleanup)


def _recovered_before(place: RunLocation, note: RecoveryNote, *, cleaned: bool) -> Recovered:
    """The result of an earlier recovery of the same run, which was complete."""
    counts = _Counts.of(read_fold(place)).with_shards(_Counts.of(read_fold(each)) for each in begun_shards(place))
    return Recovered(place, *counts, note.lost, list(note.warnings), cleaned, note.lost_is_exact)


class _Counts(msgspec.Struct, frozen=True):
    """Of samples. The root journal of a sharded run has the whole plan, and its shards have the answers."""

    planned: int = 0
    finished: int = 0
    failed: int = 0
    in_flight: int = 0

    @classmethod
    def of(cls, fold: Fold) -> "_Counts":
        return cls(fold.planned, fold.finished.count, fold.failed.count, begun_count(fold))

    def with_shards(self, shards: Iterable["_Counts"]) -> tuple[int, int, int, int]:
        every = [self, *shards]
        names = ("finished", "failed", "in_flight")
        finished, failed, in_flight = (sum(getattr(each, name) for each in every) for name in names)
        return self.planned, finished, failed, in_flight


def _find_sources(where: str, output: str, warn: Warn) -> tuple[list[Source], RunLocation]:
    """The sources of the run, and where to restore it."""
    if is_url(where):
        objects, experiment, run_id = only_run(where)
        source = MirrorSource(objects)
        refuse_removed(source)
        return [source], run_location(output or default_store(), experiment, run_id)
    folder = os.path.realpath(where)  # resolve links: otherwise a run could be recovered into itself and then removed
    if not os.path.isdir(os.path.join(folder, "journal")):
        raise UsageError(
            f"{where} is neither a folder of a run (it has no journal) nor a URL; list what there is with: "
            "holdfast recover --list"
        )
    refuse_mirror(folder)
    above, name = os.path.split(folder)
    here = RunLocation(os.path.dirname(above), unquote(os.path.basename(above)), unquote(name), folder)
    place = here if not output else run_location(output, here.experiment, here.run_id)
    if os.path.isdir(place.folder) and os.path.samefile(place.folder, folder):
        place = here
    elif os.path.realpath(place.folder).startswith(f"{folder}/"):
        raise UsageError(
            f"{place.folder} is inside the folder that is recovered; choose another folder with --output DIR"
        )
    return [FolderSource(folder), *_mirror_of(here, warn)], place


def _mirror_of(here: RunLocation, warn: Warn) -> Iterator[Source]:
    """The mirror in the run's recorded spec, if it can be reached."""
    mirror = read_fold(here).story.spec.get("mirror")
    if not isinstance(mirror, dict) or not isinstance(mirror.get("url"), str):
        return  # no mirror, or a forged record: Holdfast records a URL
    try:
        source = MirrorSource(objects_of(mirror["url"], here))
    except (StoreError, UsageError) as error:
        warn(f"{error}; recovered from the folder alone")
        return
    removed = removed_run(source)
    if removed is not None:
        warn(f"{source.place} was removed on {removed.tombstone.when}; recovered from the folder alone")
    elif source.pieces():
        yield source


class _Recovery:
    """One recovery. Everything that can fail or warn happens before the run becomes visible."""

    def __init__(
        self,
        place: RunLocation,
        sources: Sequence[Source],
        mirrors: Sequence[MirrorSource],
        options: RecoveryOptions,
        warnings: list[str],
    ) -> None:
        self.counts = _Counts()
        self.lost = Loss(0)
        self.void = 0
        """Pieces written by processes that had lost the run; they are ignored."""
        self._place = place
        self._sources = sources
        self._mirrors = mirrors
        self._others = [source for source in sources if source.place != place.folder]
        self.merged = bool(self._others)
        self._options = options
        self._warnings = warnings
        self._made = not place.began
        # Taken before this process locks the run: a run that is held may have records that its lease does not know.
        local = [source.place for source in sources if source.kind == "local"]
        self._standing = standing_of(local[0]) if local else Standing(False)

    def run(self) -> None:
        """Merge the sources into the run's folder, or restore into a new one, and count the result."""
        place, warn = self._place, self._warnings.append
        if place.began:
            if not self._options.events:
                problem = "exists: recovering without events needs a new folder; add --output DIR"
                raise UsageError(f"{place.folder} {problem}")
            if len(self._others) == len(self._sources) and not self._options.overwrite:
                raise UsageError(
                    f"{place.folder} exists; merge into it with --overwrite (nothing in it is lost), or "
                    "choose another store with --output DIR"
                )
        if not self._others:  # nothing to merge: only count what the run has
            self._count(place.folder)
            return
        if os.path.isdir(place.folder):
            # Before anything changes: after a kill, the note shows that the repeated call may write this folder.
            RecoveryNote(self._sources[0].place, self._options.events).write(place)
        if not place.began:
            restore_whole(place, self._others, warn, self._finish)
            return
        lock = Lock(place.folder)
        try:
            self._finish(place.folder, restore(place.folder, self._others, warn))
        finally:
            lock.release()

    def _finish(self, folder: str, restored: Restored) -> None:
        """Count, and write the note with the result. Called before the folder gets its final name."""
        self.void = len(restored.choice.void)
        if self.void:
            pieces = counted(self.void, "piece")
            self._warnings.append(f"{pieces} were written by processes that had lost the run; they are ignored")
        self._count(folder)
        self.note_result(folder, self.lost)

    def note_result(self, folder: str, lost: Loss) -> None:
        """Write the note, with all warnings so far."""
        note = RecoveryNote(
            source=self._sources[0].place,
            events=self._options.events,
            uid=uid_of(FolderSource(folder)),
            lost=lost.records,
            lost_is_exact=lost.is_exact,
            warnings=tuple(self._warnings),
        )
        note.write(self._place)

    def _count(self, folder: str) -> None:
        """Count what the run holds and what is lost, and restore damaged files from other sources."""
        journal = journal_folder(folder)
        reader = Reader(journal)
        fold = Fold().read(reader.read())
        self.counts = _Counts.of(fold)
        epoch = list_chain(OS_DISK, journal).epoch
        mirrored_n = max((read_watermark(each.objects, epoch).n for each in self._mirrors), default=0)
        damage = losses_of(fold.damage, fold.story, self._standing, mirrored_n)
        last_n = max([reader.cursor.n, *(each.n_last for each in (*fold.damage, *damage) if each.kind != "torn")])
        self._warnings += [*map(describe, damage), *describe_voids(journal)]
        _restore_originals(folder, fold, self._others)
        if not self._options.events:
            condense(folder)  # after reading: it gives the journal a new uid, new numbers and no epochs
        here = msgspec.structs.replace(self._place, folder=folder)
        acknowledged = max(mirrored_n, acknowledged_by(fold.story, self._standing))
        if acknowledged > last_n:
            damage.append(Damage("lost", 0, 0, 0, last_n + 1, acknowledged))
            self._warnings.append(
                f"records {last_n + 1} to {acknowledged} were acknowledged and are lost; a resume requests them again"
            )
        self.lost = count_lost(damage)
        self._warnings += _missing_originals(here, fold, self._made)
        self._warnings += check_content(here, fold)


def _restore_originals(folder: str, fold: Fold, sources: Sequence[Source]) -> None:
    """Replace damaged plan and data files by intact ones from other sources."""
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


def has_records(place: RunLocation) -> bool:
    """Whether a journal has more than the headers of its segments."""
    return any(isinstance(each, Entry) and each.line.t != "segment" for each in Reader(place.journal).read())


def _missing_originals(place: RunLocation, fold: Fold, made: bool) -> Iterator[str]:
    """Report missing plan and data, without which a run can be read but not resumed. Rewrite spec.yaml, which is
    derived from the journal. A changed spec.yaml of an existing run (not `made` now) is only reported: the user may
    have edited it.
    """
    for path, stored in originals(place.folder, fold.story.blocks):
        if find_problem(path, stored):
            yield f"{os.path.basename(path)} is missing or damaged; the run can be read, but not resumed"
    if fold.story.started is None:
        if not place.shard or has_records(place):  # else its worker ended before it recorded anything
            yield "the first record (run.started) is lost; what is left can be read, but not resumed"
        return
    problem = "was missing"
    if os.path.exists(os.path.join(place.folder, SPEC_FILE)):
        try:
            return check_spec_file(place, fold.story)
        except (DriftError, NotAFileError) as error:
            if not made:
                yield str(error)
                return
            problem = "contained a spec that the run never had"
    write_spec_file(place, fold.story)
    yield f"{SPEC_FILE} {problem}; it was rewritten from the journal"


def _remove_sources(sources: Sequence[Source], place: RunLocation) -> bool:
    """Remove the source folder if the recovered run has everything in it. A folder with quarantined bytes is kept,
    because those are not copied. Mirrors are always kept.
    """
    removed = False
    for source in sources:
        if source.kind != "local" or source.place == place.folder:
            continue
        parts = [("", ""), *((SHARDS, shard.folder) for shard in _find_shards([source]))]
        if all(_has_all(os.path.join(place.folder, *part), os.path.join(source.place, *part)) for part in parts):
            shutil.rmtree(hide_folder(source.place))
            removed = True
    return removed


def _has_all(folder: str, source: str) -> bool:
    """Whether one folder of a run, or of a shard, has everything that another has."""
    if is_held(source):
        return False
    old, new = verify(journal_folder(source)), verify(journal_folder(folder))
    return (
        new.uid == old.uid
        and new.records >= old.records
        and new.last_n >= old.last_n
        and {*FolderSource(source).files()} <= {*FolderSource(folder).files()}
        and not os.path.exists(quarantine_folder(journal_folder(source)))
    )


def begun_count(fold: Fold) -> int:
    """Count samples with recorded steps and no end: a resume continues after their last step."""
    return sum(bool(trail.steps) and o not in fold.failed for o, trail in fold.trails.items())


def restore_into(store: str, url: str, warn: Callable[[str], None], moved: TransferProgress) -> RunLocation:
    """Restore the run at a URL into a store, unless it is there already."""
    objects, experiment, run_id = only_run(url)
    place = run_location(store, experiment, run_id)
    if place.began:
        return place
    try:
        source = MirrorSource(objects)
        refuse_removed(source)
        if not source.pieces():
            raise UsageError(f"{url} holds no records yet: start the run with: holdfast run SPEC --id {run_id}")
        restore_whole(place, [CountingSource(source, moved)], warn)
    except StoreError as error:
        raise UsageError(str(error)) from error
    return place


def check_mirror(mirror: Mirror | None, place: RunLocation, url: str) -> None:
    """UsageError if a resume would not write to the mirror at `url`, from which the run was restored."""
    source, _, _ = only_run(url)
    if mirror is not None and objects_of(mirror.url, place).url == source.url.rstrip("/"):
        return
    above = source.url.rstrip("/").rsplit("/", 2)[0]
    now = f"its mirror.url is {mirror.url}" if mirror is not None else "it would have no mirror"
    raise UsageError(
        f"{place.run_id} was restored from {url}, but {now}; to keep writing to that mirror: "
        f"{place.command('resume', '--set', f'mirror.url={above}')}"
    )
