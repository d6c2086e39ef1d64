"""Claims a run and its mirror for writing, restores records from the mirror, and sends the rest of a complete run.

A start with a mirror takes these steps, and can be repeated after a crash at any point:

1. Take the local lock.
2. Claim a new epoch in the object store. From here on every other machine has lost the run.
3. Restore the records that the mirror has and the folder does not.
4. Open the journal under the new epoch.
"""

import contextlib
import itertools
import os
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast import files
from holdfast.errors import HeldError, StoreError, UnreachableError, UsageError
from holdfast.journal import (
    BEATS,
    EXPIRY_SECONDS,
    LOCK_NAMES,
    OS_DISK,
    PIECES,
    SHARDS,
    Beat,
    Cursor,
    Entry,
    FolderSource,
    Lock,
    MirrorOptions,
    MirrorSource,
    Objects,
    Reader,
    Restored,
    Source,
    StoredObjects,
    TakeoverTiming,
    UploadSettings,
    clock_time,
    epochs_in,
    expiry_from_environment,
    folder_name,
    greatest_epoch,
    is_tombstone,
    journal_folder,
    list_chain,
    list_leases,
    make_folders,
    make_run_folder,
    mirror_has_more,
    newest_epoch,
    open_objects,
    read_beat,
    read_lease,
    read_tombstone,
    refuse_unfinished_removal,
    remove_if_there,
    removed_run,
    restore,
    take_epoch,
    uid_of,
    write_beat,
    write_lease,
)
from holdfast.journal import MirrorUploader as Uploader
from holdfast.records import Fence, RunStarted, decode, parse_shard
from holdfast.runs.store.lookup import RunLocation
from holdfast.spec import Mirror

_REST_SECONDS = 60.0
"""How long a start of a complete run waits for its remaining records to reach the mirror."""
Warn = Callable[[str], None]


def objects_of(url: str, place: RunLocation) -> StoredObjects:
    """The part of a mirror that belongs to the run, or to the shard of a run: the same path as in a store."""
    path = f"{folder_name(place.experiment)}/{folder_name(place.run_id)}"
    if place.shard:
        path = f"{path}/{SHARDS}/{parse_shard(place.shard).folder}"
    return open_objects(url).below(path)


class Watermark(msgspec.Struct, frozen=True):
    """The last record that a process acknowledged, or knew to be in the mirror, and the epoch of that process."""

    n: int = 0
    epoch: int = 0


class Claimed(msgspec.Struct, frozen=True):
    """The exclusive right to write a run, here and in its mirror."""

    lock: Lock
    mirroring: MirrorOptions | None = None
    messages: tuple[str, ...] = ()
    """What was restored from the mirror, for the log."""
    watermark: Watermark = Watermark()
    """The last record known to be durable, from the heartbeat of the previous process."""
    changed: bool = False
    """Another process has written, or records were restored from the mirror: what was read before is out of date."""

    def release(self) -> None:
        """Give the run up without having written, so that other machines need not wait for the expiry."""
        if self.mirroring is not None and self.mirroring.epoch is not None:
            with contextlib.suppress(StoreError):  # then other machines wait for the expiry
                write_beat(self.mirroring.objects, self.mirroring.epoch, Beat(1, ended=True))
        self.lock.release()


def claim_run(mirror: Mirror | None, place: RunLocation, *, whole: bool = False) -> Claimed:
    """Claim the run, then restore what only the mirror has. HeldError if another process, here or on another machine,
    holds the run. `whole`: the caller has just read the local journal and found no damage.
    """
    lock = Lock(place.folder)
    messages: list[str] = []
    try:
        if mirror is None:
            return Claimed(lock)
        mirroring, watermark, restored = _claim_mirror(mirror, place, messages.append, whole)
        return Claimed(lock, mirroring, tuple(messages), watermark, restored)
    except BaseException:
        lock.release()
        raise


def _claim_mirror(mirror: Mirror, place: RunLocation, warn: Warn, whole: bool) -> tuple[MirrorOptions, Watermark, bool]:
    """Claim an epoch, restore, and read the watermark. The local lock must be held."""
    objects = objects_of(mirror.url, place)
    expiry = expiry_seconds()
    try:
        # A resume would upload a run again that was removed from its mirror.
        uid = uid_of(FolderSource(place.folder)) if place.began else ""
        tombstone = read_tombstone(objects, uid) if uid else None
        if tombstone is not None:
            raise UsageError(
                f"the mirror {objects.url} of {place.run_id} was removed on {tombstone.when}; the run is still here. "
                f"To continue it without a mirror, add --set mirror=null. To remove it here too: "
                f"{place.command('gc', '--mirror', '--yes')}"
            )
        epoch = None
        if mirror.exclusive:
            here = list_chain(OS_DISK, place.journal).epoch if place.began else 0
            newest = max(here, mirrored_epoch(objects), newest_epoch(objects))
            epoch = take_epoch(objects, newest + 1, TakeoverTiming(expiry))
        changed = False
        # Only after the claim: records that the previous holder uploads later are fenced and do not count.
        with _beating(objects, epoch, expiry):
            source = MirrorSource(objects)
            if source.pieces():
                refuse_unfinished_removal(source)
                changed = restore(place.folder, [source], warn, lossy=False, trusting=whole).changed
            watermark = read_watermark(objects, list_chain(OS_DISK, place.journal).epoch if place.began else 0)
    except StoreError as error:
        raise _unreachable_error(error) from error
    return MirrorOptions(objects, epoch, mirror.seconds, mirror.wait, beat_seconds=expiry / BEATS), watermark, changed


@contextlib.contextmanager
def _beating(objects: Objects, epoch: int | None, expiry: float) -> Iterator[None]:
    """Send heartbeats while a claimed run is restored, which may take longer than the expiry. If that fails, end the
    claim, so that other machines need not wait.
    """
    if epoch is None:
        yield
        return
    done = threading.Event()

    def beat() -> None:
        for count in itertools.count(1):
            if done.wait(expiry / BEATS):
                return
            with contextlib.suppress(StoreError):  # the restore gets the same error, and raises it
                write_beat(objects, epoch, Beat(count, expiry_seconds=expiry))

    thread = threading.Thread(target=beat, name="holdfast-claim", daemon=True)
    thread.start()
    failed = True
    try:
        yield
        failed = False
    finally:
        done.set()
        thread.join()
        if failed:
            with contextlib.suppress(StoreError):  # then other machines wait for the expiry
                write_beat(objects, epoch, Beat(1, ended=True))


def mirrored_epoch(objects: Objects) -> int:
    """The greatest epoch with records in the mirror; 0 if it has none. A single writer (`exclusive: false`) claims no
    epoch.
    """
    return max((int(name) for name in objects.folders(PIECES) if name.isdigit()), default=0)


def expiry_seconds() -> float:
    """How long other machines wait for this process after its last heartbeat."""
    return expiry_from_environment(EXPIRY_SECONDS)


def is_overtaken(mirror: Mirror | None, place: RunLocation) -> bool:
    """Whether another machine has continued the run: its mirror has records of a greater epoch than the local journal.
    False if the object store cannot be reached; `send_rest` reports that.
    """
    if mirror is None or not mirror.exclusive:
        return False
    with contextlib.suppress(StoreError):
        return mirrored_epoch(objects_of(mirror.url, place)) > list_chain(OS_DISK, place.journal).epoch
    return False


def send_rest(mirror: Mirror | None, place: RunLocation, uid: str, end: Cursor, warn: Warn) -> bool:
    """Send the records of a complete run that its process could not send before it ended. False if some may be missing
    in the mirror and only a new owner may send them, because another machine has claimed the run since.
    """
    if mirror is None:
        return True
    objects = objects_of(mirror.url, place)
    lock = Lock(place.folder)
    try:
        tombstone = read_tombstone(objects, uid)
        if tombstone is not None:
            warn(f"the mirror {objects.url} was removed on {tombstone.when}; nothing is sent to it")
            return True
        epoch = greatest_epoch(objects) if mirror.exclusive else 0
        if epoch > list_chain(OS_DISK, place.journal).epoch:
            return is_mirrored(place.folder)
        tip = Fence(end.segment, end.offset, end.n, end.x)

        def tell(event: str, text: str) -> None:
            if event == "mirror.failed":  # nothing is lost; do not wait for an object store that is down
                uploader.stop_waiting()
            else:
                warn(text)

        uploader = Uploader(place.folder, uid, objects, None, UploadSettings(tip=lambda: tip, tell=tell))
        uploader.start()
        if uploader.close(_REST_SECONDS):
            _mark_mirrored(objects, place, uploader.mirrored, epoch)
        else:
            left = f"{tip.n - uploader.mirrored} of {tip.n} records are not in {objects.url} yet"
            why = f"{uploader.trouble}; " if uploader.trouble else ""
            warn(f"{why}{left}; they are safe here, and the next start of the run sends them")
    except StoreError as error:
        warn(f"{error}; the run is complete here, and its mirror may not be")
    finally:
        lock.release()
    return True


def is_mirrored(run: str) -> bool:
    """Whether the mirror has all records of the last process that wrote the run here, as far as its lease says."""
    lease = read_lease(run)
    return lease is None or lease.mirrored is None or lease.mirrored >= lease.durable_n


def _mark_mirrored(objects: Objects, place: RunLocation, mirrored: int, epoch: int) -> None:
    """Record that everything is mirrored: in the local lease, and in the last heartbeat of the process that ended
    early. `epoch`: the greatest that was claimed.
    """
    lease = read_lease(place.folder)
    if lease is None:
        return
    before, lease = lease, msgspec.structs.replace(lease, mirrored=mirrored, mirror_behind=0.0)
    if lease != before:
        write_lease(place.folder, lease)
    with contextlib.suppress(StoreError):  # then listings show older numbers
        beat = read_beat(objects, epoch)
        if epoch in (0, lease.epoch) and not (beat and beat.ended):
            write_beat(objects, epoch, Beat(beat.count + 1 if beat else 1, True, mirrored, lease))


def restore_from_mirror(mirror: Mirror | None, place: RunLocation, warn: Warn) -> Restored | None:
    """Restore a run that exists only in its mirror; does not claim it. UsageError if the run was removed, here or
    there.
    """
    if mirror is None or place.began:
        return None
    try:
        source = MirrorSource(objects_of(mirror.url, place))
        tombstone = refuse_unfinished_removal(source)
        if tombstone is not None:
            warn(f"{source.place} was removed on {tombstone.when}; this is a new run under the same id")
        if not source.pieces():
            return None
        _refuse_removed(place, source.place)
        return restore_whole(place, [source], warn, lossy=False)
    except StoreError as error:
        raise _unreachable_error(error) from error


def update_from_mirror(mirror: Mirror | None, place: RunLocation, warn: Warn) -> None:
    """Add what other machines have recorded in a run to its folder; does not claim it. Does nothing while a process of
    this machine writes the run: that one has claimed it, and knows more than the mirror.
    """
    if mirror is None or not mirror.exclusive or not place.began:
        return
    try:
        source = MirrorSource(objects_of(mirror.url, place))
        if mirror_has_more(place.folder, source):
            with contextlib.suppress(HeldError), _held(place.folder):
                restore(place.folder, [source], warn, lossy=False, trusting=True)
    except StoreError as error:
        raise _unreachable_error(error) from error


class RemovalNote(msgspec.Struct, frozen=True):
    """A file in the experiment's folder that says that a run was removed here while its mirror was kept."""

    at: float
    url: str


def _removal_path(place: RunLocation) -> str:
    above, name = os.path.split(place.folder)
    return os.path.join(above, f".removed-{name}.json")


def note_removal(place: RunLocation, url: str) -> None:
    files.replace_file(_removal_path(place), msgspec.json.encode(RemovalNote(time.time(), url)))


def forget_removal(place: RunLocation) -> None:
    """Delete the note: the mirror is removed too, or the run was restored."""
    remove_if_there(OS_DISK, _removal_path(place))


def _refuse_removed(place: RunLocation, url: str) -> None:
    """UsageError if the run was removed here: only an explicit `recover` restores it from its mirror."""
    try:
        removal = msgspec.json.decode(files.read_file(_removal_path(place)), type=RemovalNote)
    except (OSError, msgspec.DecodeError):
        return
    if removal.url.rstrip("/") == url.rstrip("/"):
        command = f"holdfast recover {shlex.quote(url)} --output {shlex.quote(place.store)}"
        raise UsageError(
            f"{place.run_id} was removed here on {clock_time(removal.at)}, and its mirror {url} still has it; restore "
            f"it with: {command}, or choose another --id"
        )


def restore_whole(
    place: RunLocation,
    sources: Sequence[Source],
    warn: Warn,
    finish: Callable[[str, Restored], None] = lambda folder, restored: None,
    *,
    lossy: bool = True,
) -> Restored:
    """Restore a run in a hidden folder, call `finish`, then rename the folder. A crash before the rename leaves the
    hidden folder, which the next call completes. HeldError if another process restores the run at the same time.
    """
    if os.path.isdir(place.folder):  # it has no journal: left by a start that crashed
        with _held(place.folder):
            restored = restore(place.folder, sources, warn, lossy=lossy)
            _mark_sharded(place.folder)
            finish(place.folder, restored)
            return restored
    hidden = hidden_folder(place)
    make_run_folder(OS_DISK, hidden)
    if os.path.islink(hidden):  # never delete leftovers through a planted link
        raise files.NotAFolderError(hidden)
    with _held(hidden):
        if place.began or not os.path.isdir(hidden):
            raise _just_restored_error(hidden)
        _remove_foreign_leftovers(hidden, sources)
        restored = restore(hidden, sources, warn, lossy=lossy)
        _mark_sharded(hidden)
        finish(hidden, restored)
        forget_removal(place)
        OS_DISK.replace(hidden, place.folder)
        OS_DISK.sync_folder(os.path.dirname(hidden))
        return restored


def _mark_sharded(folder: str) -> None:
    """Make the folder of shards if the root of a sharded run was restored: readers recognise it by that."""
    entries = (each.line for each in Reader(journal_folder(folder)).read(live=True) if isinstance(each, Entry))
    first = next((line for line in entries if line.t == "run.started"), None)
    if first is not None and decode(first, RunStarted).shards:
        make_folders(OS_DISK, os.path.join(folder, SHARDS))


def _remove_foreign_leftovers(hidden: str, sources: Sequence[Source]) -> None:
    """Empty a hidden folder that was left by the restore of a run with another uid: another run of the same name, or
    this one without events. Hidden folders hold only copies, and the caller holds the lock.
    """
    left = [name for name in os.listdir(hidden) if name not in LOCK_NAMES]
    if left and uid_of(FolderSource(hidden)) not in map(uid_of, sources):
        for name in left:
            path = os.path.join(hidden, name)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)


@contextlib.contextmanager
def _held(folder: str) -> Iterator[None]:
    try:
        lock = Lock(folder)
    except FileNotFoundError as error:  # another process renamed it into place in the meantime
        raise _just_restored_error(folder) from error
    try:
        yield
    finally:
        lock.release()


def _just_restored_error(folder: str) -> HeldError:
    return HeldError(f"another process recovered the run in {os.path.dirname(folder)} just now; run this command again")


def hidden_folder(place: RunLocation) -> str:
    """Where a run is restored before it becomes visible; no run can have such a name."""
    above, name = os.path.split(place.folder)
    return os.path.join(above, f".{name}.recovering")


def last_beat(objects: Objects, leases: Sequence[str] | None = None) -> tuple[int, Beat | None]:
    """The newest heartbeat that contains a lease, and its epoch. A process that claimed the run and never started work
    wrote no lease. `leases`: the names of claims, if the caller has listed them.
    """
    beat = None
    for epoch in (*sorted(epochs_in(leases or list_leases(objects)), reverse=True), 0):
        beat = read_beat(objects, epoch)
        if beat is not None and beat.lease is not None:
            return epoch, beat
    return 0, beat


class MirrorStatus(msgspec.Struct, frozen=True):
    """The last heartbeat of a run in a mirror, and whether the run was removed there."""

    beat: Beat | None
    removed: bool = False
    shards: tuple[Beat, ...] = ()
    """The last heartbeats of the shards of a sharded run. The root itself has none with a lease."""

    @property
    def last_seen(self) -> float:
        """When a process wrote the last of these heartbeats; 0 if there is none."""
        leases = [each.lease for each in (self.beat, *self.shards) if each is not None]
        return max((lease.at for lease in leases if lease is not None), default=0.0)


def read_mirror_status(objects: StoredObjects) -> MirrorStatus:
    """Read the leases only. The journal is read only if there is a tombstone, which may belong to an earlier run."""
    leases = list_leases(objects)
    if any(map(is_tombstone, leases)) and removed_run(MirrorSource(objects)) is not None:
        return MirrorStatus(None, removed=True)
    shards = (last_beat(objects.below(f"{SHARDS}/{name}"))[1] for name in objects.folders(SHARDS))
    return MirrorStatus(last_beat(objects, leases)[1], shards=tuple(each or Beat(0) for each in shards))


def read_watermark(objects: Objects, epoch: int) -> Watermark:
    """The watermark in the last heartbeat of an epoch."""
    beat = read_beat(objects, epoch) if epoch > 0 else None
    if beat is None:
        return Watermark()
    lease = beat.lease  # the lease of the previous process, until this one has written its own
    return Watermark(max(beat.mirrored, lease.acknowledged if lease is not None and lease.epoch == epoch else 0), epoch)


def _unreachable_error(error: StoreError) -> UnreachableError:
    return UnreachableError(
        f"{error}; a start needs its mirror: make it reachable, or continue without a mirror: --set mirror=null"
    )
