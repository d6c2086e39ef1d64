"""A run and its mirror: claiming it, bringing it home, keeping it.

Order of a start with a mirror, and what is true if we die there: the local lock; the epoch, claimed in the store (from
here on every other machine has lost the run); what the mirror holds and the folder does not, brought in; then the
journal is opened under that epoch. Doing it again is always right.
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
from holdfast.errors import HeldError, StoreError, UsageError
from holdfast.journal import OS_DISK, Cursor, Lock, folder_name, make_run_folder
from holdfast.journal.disk import remove_if_there
from holdfast.journal.mirror.pieces import FOLDER, FolderSource, MirrorSource, Source
from holdfast.journal.mirror.removal import newest_epoch, refuse_remains, removed_run
from holdfast.journal.mirror.restore import Restored, restore, uid_of
from holdfast.journal.mirror.tombstones import is_tombstone, read_tombstone
from holdfast.journal.mirror.uploader import BEATS, Keeping
from holdfast.journal.mirror.uploader import Mirror as Kept
from holdfast.journal.object_store import Objects, StoredObjects, open_objects
from holdfast.journal.ownership.claims import (
    EXPIRY_SECONDS,
    Beat,
    Patience,
    epochs_in,
    greatest_epoch,
    list_leases,
    read_beat,
    take_epoch,
    write_beat,
)
from holdfast.journal.ownership.lease import clock_time, read_lease, write_lease
from holdfast.journal.ownership.lock import LOCK_NAMES
from holdfast.journal.segments import list_chain
from holdfast.journal.writer import Mirroring
from holdfast.records import Fence
from holdfast.runs.store.lookup import RunPlace
from holdfast.spec import Mirror

EXPIRY_VARIABLE = "HOLDFAST_EXPIRY_SECONDS"
_REST_SECONDS = 60.0
Warn = Callable[[str], None]


def objects_of(url: str, place: RunPlace) -> StoredObjects:
    """The run's own part of a mirror: its experiment and its id, as in a store."""
    return open_objects(url).below(f"{folder_name(place.experiment)}/{folder_name(place.run_id)}")


class Known(msgspec.Struct, frozen=True):
    """The last record that a holder had acknowledged, or knew to be in the mirror, under its epoch."""

    n: int = 0
    epoch: int = 0


class Claimed(msgspec.Struct, frozen=True):
    """A run that is ours to write, here and in its mirror."""

    lock: Lock
    mirroring: Mirroring | None = None
    news: tuple[str, ...] = ()
    """What bringing the mirror's records home came to."""
    known: Known = Known()
    """What the process before us said of itself in the mirror."""
    changed: bool = False
    """Another process went on before us, or records came back from the mirror: what was read before is no longer what
    is stored.
    """

    def release(self) -> None:
        """Nothing was written: others need not wait."""
        if self.mirroring is not None and self.mirroring.epoch is not None:
            with contextlib.suppress(StoreError):  # then they wait
                write_beat(self.mirroring.objects, self.mirroring.epoch, Beat(1, ended=True))
        self.lock.release()


def claim_run(mirror: Mirror | None, place: RunPlace, *, whole: bool = False) -> Claimed:
    """HeldError if another process, here or on another machine, works on the run. Afterwards the folder has all that
    the mirror has. `whole`: the journal here was just read, and nothing in it is damaged.
    """
    lock = Lock(place.folder)
    news: list[str] = []
    try:
        if mirror is None:
            return Claimed(lock)
        mirroring, known, restored = _claim_mirror(mirror, place, news.append, whole)
        return Claimed(lock, mirroring, tuple(news), known, restored)
    except BaseException:
        lock.release()
        raise


def _claim_mirror(mirror: Mirror, place: RunPlace, warn: Warn, whole: bool) -> tuple[Mirroring, Known, bool]:
    objects = objects_of(mirror.url, place)
    expiry = expiry_seconds()
    try:
        _refuse_removed_mirror(objects, place)
        epoch = None
        if mirror.exclusive:
            here = list_chain(OS_DISK, place.journal).epoch if place.began else 0
            known = max(here, _epoch_there(objects), newest_epoch(objects))
            epoch = take_epoch(objects, known + 1, Patience(expiry))
        changed = False
        with _beating(objects, epoch, expiry):
            source = MirrorSource(objects)
            if source.pieces():
                refuse_remains(source)
                changed = restore(place.folder, [source], warn, lossy=False, trusting=whole).changed
            said = known_there(objects, list_chain(OS_DISK, place.journal).epoch if place.began else 0)
    except StoreError as error:
        raise _unreachable(error) from error
    return Mirroring(objects, epoch, mirror.seconds, mirror.wait, beat_seconds=expiry / BEATS), said, changed


@contextlib.contextmanager
def _beating(objects: Objects, epoch: int | None, expiry: float) -> Iterator[None]:
    """While a claimed run is brought in, which may take long, nobody else takes it. If that fails, others need not
    wait.
    """
    if epoch is None:
        yield
        return
    done = threading.Event()

    def beat() -> None:
        for count in itertools.count(1):
            if done.wait(expiry / BEATS):
                return
            with contextlib.suppress(StoreError):  # whoever reads from it hears of that too
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
            with contextlib.suppress(StoreError):  # then they wait
                write_beat(objects, epoch, Beat(1, ended=True))


def _epoch_there(objects: Objects) -> int:
    """The greatest that the mirror has records of: those of a single writer were never claimed."""
    return max((int(name) for name in objects.folders(FOLDER) if name.isdigit()), default=0)


def expiry_seconds() -> float:
    """How long another machine waits for this process when it is silent."""
    said = os.environ.get(EXPIRY_VARIABLE) or str(EXPIRY_SECONDS)
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise UsageError(f"{EXPIRY_VARIABLE} is {said!r}; it must be a number of seconds, such as {EXPIRY_SECONDS:g}")
    return seconds


def is_overtaken(mirror: Mirror | None, place: RunPlace) -> bool:
    """Whether another machine has gone on with the run: its mirror has records under a greater epoch than any here. A
    store that cannot be reached tells nothing; whoever sends the rest says so.
    """
    if mirror is None or not mirror.exclusive:
        return False
    with contextlib.suppress(StoreError):
        return _epoch_there(objects_of(mirror.url, place)) > list_chain(OS_DISK, place.journal).epoch
    return False


def send_rest(mirror: Mirror | None, place: RunPlace, uid: str, end: Cursor, warn: Warn) -> None:
    """Of a run that is complete: what its process did not come to sending. Not if another machine has gone on since:
    what this one has is older.
    """
    if mirror is None:
        return
    objects = objects_of(mirror.url, place)
    lock = Lock(place.folder)
    try:
        tombstone = read_tombstone(objects, uid)
        if tombstone is not None:
            warn(f"the mirror {objects.url} was removed on {tombstone.when}; nothing is sent to it")
            return
        if mirror.exclusive and greatest_epoch(objects) > list_chain(OS_DISK, place.journal).epoch:
            return
        tip = Fence(end.segment, end.offset, end.n, end.x)

        def tell(event: str, text: str) -> None:
            if event == "mirror.failed":  # nothing is lost, and nobody should wait for a store that is away
                kept.hurry()
            else:
                warn(text)

        kept = Kept(place.folder, uid, objects, None, Keeping(tip=lambda: tip, tell=tell))
        kept.start()
        if kept.close(_REST_SECONDS):
            _tell_all_is_there(objects, place, kept.mirrored)
        else:
            left = f"{tip.n - kept.mirrored} of {tip.n} records are not in {objects.url} yet"
            why = f"{kept.trouble}; " if kept.trouble else ""
            warn(f"{why}{left}; they are safe here, and the next start of the run sends them")
    except StoreError as error:
        warn(f"{error}; the run is complete here, and its mirror may not be")
    finally:
        lock.release()


def _tell_all_is_there(objects: Objects, place: RunPlace, mirrored: int) -> None:
    """In the lease here, and there in the last word of the process that did not come to it."""
    lease = read_lease(place.folder)
    if lease is None:
        return
    before, lease = lease, msgspec.structs.replace(lease, mirrored=mirrored, mirror_behind=0.0)
    if lease != before:
        write_lease(place.folder, lease)
    with contextlib.suppress(StoreError):  # then a list says less of it
        epoch, beat = last_beat(objects)
        if epoch in (0, lease.epoch) and not (beat and beat.ended):
            write_beat(objects, epoch, Beat(beat.count + 1 if beat else 1, True, mirrored, lease))


def bring_home(mirror: Mirror | None, place: RunPlace, warn: Warn) -> Restored | None:
    """Restore a run that is only in its mirror. Claims nothing. UsageError if the run was removed, here or there."""
    if mirror is None or place.began:
        return None
    try:
        source = MirrorSource(objects_of(mirror.url, place))
        tombstone = refuse_remains(source)
        if tombstone is not None:
            warn(f"{source.place} was removed on {tombstone.when}; this is a new run under the same id")
        if not source.pieces():
            return None
        _refuse_removed(place, source.place)
        return restore_whole(place, [source], warn, lossy=False)
    except StoreError as error:
        raise _unreachable(error) from error


def _refuse_removed_mirror(objects: Objects, place: RunPlace) -> None:
    """UsageError if the run in a folder was removed from its mirror: resuming would put it there again."""
    uid = uid_of(FolderSource(place.folder)) if place.began else ""
    tombstone = read_tombstone(objects, uid) if uid else None
    if tombstone is not None:
        raise UsageError(
            f"the mirror {objects.url} of {place.run_id} was removed on {tombstone.when}; the run is still here. To "
            f"continue it without a mirror, add --set mirror=null. To remove it here too: "
            f"{place.command('gc', '--mirror', '--yes')}"
        )


class Removal(msgspec.Struct, frozen=True):
    """A note beside the place of a run that was removed here while its mirror stayed."""

    at: float
    url: str


def _removal_path(place: RunPlace) -> str:
    above, name = os.path.split(place.folder)
    return os.path.join(above, f".removed-{name}.json")


def note_removal(place: RunPlace, url: str) -> None:
    files.replace_file(_removal_path(place), msgspec.json.encode(Removal(time.time(), url)))


def forget_removal(place: RunPlace) -> None:
    """The mirror is gone too: nothing can bring the run back."""
    remove_if_there(OS_DISK, _removal_path(place))


def _refuse_removed(place: RunPlace, url: str) -> None:
    """A run that was removed here is not brought back from its mirror without being asked for."""
    try:
        removal = msgspec.json.decode(files.read_file(_removal_path(place)), type=Removal)
    except (OSError, msgspec.DecodeError):
        return
    if removal.url.rstrip("/") == url.rstrip("/"):
        back = f"holdfast recover {shlex.quote(url)} --output {shlex.quote(place.store)}"
        raise UsageError(
            f"{place.run_id} was removed here on {clock_time(removal.at)}, and its mirror {url} still has it; bring it "
            f"back with: {back}, or choose another --id"
        )


def restore_whole(
    place: RunPlace,
    sources: Sequence[Source],
    warn: Warn,
    finish: Callable[[str, Restored], None] = lambda folder, restored: None,
    *,
    lossy: bool = True,
) -> Restored:
    """Build the run in a hidden folder, then rename it into place. A crash before the rename leaves the hidden folder,
    which the next call continues with. HeldError if another process restores the run at the same time.
    """
    if os.path.isdir(place.folder):  # without a journal: a start that was cut off has made it
        with _held(place.folder):
            restored = restore(place.folder, sources, warn, lossy=lossy)
            finish(place.folder, restored)
            return restored
    hidden = hidden_folder(place)
    make_run_folder(OS_DISK, hidden)
    if os.path.islink(hidden):  # nobody links a hidden folder, and what is left in it would be removed
        raise files.NotAFolderError(hidden)
    with _held(hidden):
        if place.began or not os.path.isdir(hidden):
            raise _just_restored(hidden)
        _forget_another(hidden, sources)
        restored = restore(hidden, sources, warn, lossy=lossy)
        finish(hidden, restored)
        forget_removal(place)
        OS_DISK.replace(hidden, place.folder)
        OS_DISK.sync_folder(os.path.dirname(hidden))
        return restored


def _forget_another(hidden: str, sources: Sequence[Source]) -> None:
    """What is left of another run, or of this one without its events, which has a uid of its own. Nothing in a hidden
    folder is an original; its lock is held.
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
    except FileNotFoundError as error:  # renamed into place since we looked, or while we waited for its lock
        raise _just_restored(folder) from error
    try:
        yield
    finally:
        lock.release()


def _just_restored(folder: str) -> HeldError:
    return HeldError(f"another process recovered the run in {os.path.dirname(folder)} a moment ago; run this again")


def hidden_folder(place: RunPlace) -> str:
    """Where a run is put together before it appears: no run has such a name."""
    above, name = os.path.split(place.folder)
    return os.path.join(above, f".{name}.recovering")


def last_beat(objects: Objects, leases: Sequence[str] | None = None) -> tuple[int, Beat | None]:
    """The last heartbeat that has a lease, and its epoch: a process that claimed the run and never began wrote none.
    `leases`: the names of claims, if the caller has listed them.
    """
    beat = None
    for epoch in (*sorted(epochs_in(leases or list_leases(objects)), reverse=True), 0):
        beat = read_beat(objects, epoch)
        if beat is not None and beat.lease is not None:
            return epoch, beat
    return 0, beat


class Heard(msgspec.Struct, frozen=True):
    """What a mirror's leases say about a run."""

    beat: Beat | None
    removed: bool = False


def hear(objects: Objects) -> Heard:
    """The last heartbeat. The journal is only read where there is a tombstone, which may be of an earlier run."""
    leases = list_leases(objects)
    if any(map(is_tombstone, leases)) and removed_run(MirrorSource(objects)) is not None:
        return Heard(None, removed=True)
    return Heard(last_beat(objects, leases)[1])


def known_there(objects: Objects, epoch: int) -> Known:
    """As the last beat of an epoch tells."""
    beat = read_beat(objects, epoch) if epoch > 0 else None
    if beat is None:
        return Known()
    lease = beat.lease  # until the process has written one of its own, that of the process before it
    return Known(max(beat.mirrored, lease.acknowledged if lease is not None and lease.epoch == epoch else 0), epoch)


def _unreachable(error: StoreError) -> UsageError:
    return UsageError(
        f"{error}; the mirror must be reached at the start: mend that, or go on without one: --set mirror=null"
    )
