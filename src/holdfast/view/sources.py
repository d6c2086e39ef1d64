"""The runs that the viewer shows: folders with runs, single runs, and mirrors, opened once and kept up to date.

A `ViewedRun` keeps its index open between requests and opens it again only when a file of the run has changed. Its lock
makes requests about one run take turns; requests about different runs do not wait for each other. Nothing here writes
to a run's folder.
"""

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import HoldfastError, UsageError
from holdfast.journal import Position, Reader, is_url
from holdfast.report import KeyRecords
from holdfast.runs import Run, RunLocation, RunSummary, list_runs
from holdfast.runs.mirror.remote import find_to_read, list_mirror
from holdfast.runs.store.damage import DamageReport
from holdfast.runs.store.lookup import find_run, runs_in
from holdfast.state import Index, Standing, stamp_of, standing_of, status_of
from holdfast.view.table import SampleTables

_OPEN_MAX = 12
_MIRROR_SECONDS = 5.0
"""How old the copy of a mirrored run may be."""


class NotFoundError(UsageError):
    """There is no such run, sample or page."""


class RunRef(msgspec.Struct, frozen=True):
    """How addresses name a run. `uid`: only where several open stores have a run of this name. `at`: show the run as
    it was after this record.
    """

    experiment: str
    run_id: str
    uid: str = ""
    at: int | None = None


class Durability(msgspec.Struct, frozen=True):
    """How far the records of a run are safe, as record numbers."""

    read: int
    """The last record that this page shows."""
    synced: int
    """The last record that is known to be durable in the run's folder."""
    mirrored: int | None
    """The last record that is durable in the mirror; None without a mirror."""
    behind_seconds: float = 0.0
    """For how long the mirror has been incomplete."""


class KeyOutline(msgspec.Struct):
    """The records of a key without the texts of its steps, and their positions."""

    key: str
    positions: list[Position]
    records: KeyRecords


class ViewedRun(Run):
    """A run that stays open. Hold its `lock` while using it."""

    def __init__(self, place: RunLocation, at: int | None = None) -> None:
        super().__init__(place, quiet=True)
        self.lock = threading.RLock()
        self.at = at
        self.uid = Reader(place.journal).uid
        self.standing = Standing(held=False)
        self.outline: KeyOutline | None = None
        """Of the sample with many steps that was looked at last: reading it again would cost the most."""
        self._stamp = ""
        self._fetched = time.monotonic()

    def refresh(self) -> None:
        """Open the index again if a file has changed."""
        if self.at is not None:
            if self._opened is None:
                self._opened, self._damage = Index(self.place.folder, kept=False, last=self.at), DamageReport()
            return
        if self.place.url and time.monotonic() - self._fetched > _MIRROR_SECONDS:
            find_to_read("", self.place.url)
            self._fetched = time.monotonic()
        # The lock is checked before the files: otherwise a run that ends in between would look interrupted.
        self.standing = standing_of(self.place.folder)
        stamp = stamp_of(self.place.folder)
        if stamp != self._stamp:
            self.close()
            self._stamp = stamp

    def status(self) -> tuple[str, str]:
        """As of the last refresh: one page never shows two states of a run."""
        return status_of(self._index.story, self._index.unfinished, self.standing, bool(self._index.damage))

    @property
    def index(self) -> Index:
        return self._index

    @property
    def is_live(self) -> bool:
        return self.standing.held

    def durability(self) -> Durability:
        last, lease = self._index.last_n, self.standing.lease
        if not self.standing.held or lease is None or self.at is not None:
            return Durability(last, last, self.standing.mirrored)
        return Durability(last, max(lease.acknowledged, 0), self.standing.mirrored, lease.mirror_behind)


class ListedRun(msgspec.Struct, frozen=True):
    """A run in the list, and the store that it is in."""

    source: str
    summary: RunSummary
    uid: str = ""
    """Only where another source has a run of the same name."""


class Sources:
    """Everything that one server shows."""

    def __init__(self, targets: Sequence[str], store: str) -> None:
        """`targets`: folders of stores or runs, URLs of mirrors, or names of runs in `store`. None: all of `store`."""
        self._places: list[RunLocation] = []
        self._stores: list[str] = []
        for target in targets or [store]:
            self._add(target, store)
        self._open: OrderedDict[tuple[str, int | None], ViewedRun] = OrderedDict()
        self._lock = threading.Lock()
        self.tables = SampleTables()
        """The lists of samples of these runs."""

    def _add(self, target: str, store: str) -> None:
        if is_url(target):
            self._stores.append(target)
        elif os.path.isdir(os.path.join(target, "journal")) or not os.path.isdir(target):
            if target == store:
                raise UsageError(f"there is no folder {store!r}; start a run with: holdfast run SPEC")
            self._places.append(find_run(store, target))
        else:
            self._stores.append(os.path.abspath(target))

    @property
    def names(self) -> list[str]:
        return [*self._stores, *(place.folder for place in self._places)]

    @property
    def only(self) -> RunRef | None:
        """The run, if the server shows only one."""
        if self._stores or len(self._places) != 1:
            return None
        return RunRef(self._places[0].experiment, self._places[0].run_id)

    def list(self) -> list[ListedRun]:
        """Every run, the newest first. A store that cannot be read appears as one line that says so."""
        found = [each for store in self._stores for each in self._list_store(store)]
        for place in self._places:
            with self.open(RunRef(place.experiment, place.run_id)) as run:
                found.append(ListedRun(place.store, run.summary()))
        names = [(each.summary.experiment, each.summary.run_id) for each in found]
        listed = [
            msgspec.structs.replace(each, uid=_uid_of(each.summary.folder)) if names.count(name) > 1 else each
            for each, name in zip(found, names, strict=True)
        ]
        return sorted(listed, key=lambda each: each.summary.created or each.summary.updated, reverse=True)

    def _list_store(self, store: str) -> Iterator[ListedRun]:
        try:
            found = [each.summary for each in list_mirror(store)] if is_url(store) else list(list_runs(store))
        except (HoldfastError, OSError) as error:
            found = [RunSummary("", "", "unreadable", str(error), folder=store)]
        return (ListedRun(store, each) for each in found)

    @contextlib.contextmanager
    def open(self, ref: RunRef) -> Iterator[ViewedRun]:
        """The run, up to date and locked. NotFoundError if there is none, or several and no uid."""
        run = self._find_open(ref)
        with run.lock:
            run.refresh()
            yield run

    def close(self) -> None:
        self.tables.close()  # first: it reads runs in the background
        for run in self._open.values():
            with run.lock:
                run.close()
        self._open.clear()

    def _find_open(self, ref: RunRef) -> ViewedRun:
        with self._lock:
            for (_, at), run in self._open.items():
                names = (run.place.experiment, run.place.run_id)
                is_named = ref.uid == run.uid or (not ref.uid and len(self.names) == 1)
                if names == ref_names(ref) and at == ref.at and is_named:
                    if os.path.isdir(run.place.journal):
                        self._open.move_to_end((run.place.folder, at))
                        return run
                    break
        place = self._locate(ref)
        with self._lock:
            name = (place.folder, ref.at)
            if name not in self._open:
                self._open[name] = ViewedRun(place, ref.at)
            while len(self._open) > _OPEN_MAX:
                oldest = next(iter(self._open))
                if oldest == name or not self._open[oldest].lock.acquire(blocking=False):
                    break  # in use: the next request closes it
                old = self._open.pop(oldest)
                old.close()
                old.lock.release()
            return self._open[name]

    def _locate(self, ref: RunRef) -> RunLocation:
        found = []
        for store in self._stores:
            if is_url(store):
                with contextlib.suppress(UsageError):
                    found.append(find_to_read(store, f"{ref.experiment}/{ref.run_id}"))
            else:
                found += [each for each in runs_in(store) if (each.experiment, each.run_id) == ref_names(ref)]
        found += [each for each in self._places if (each.experiment, each.run_id) == ref_names(ref)]
        if len(found) > 1 and ref.uid:
            found = [each for each in found if _uid_of(each.folder) == ref.uid]
        if len({_uid_of(each.folder) for each in found}) > 1:  # a run and its mirror are the same run
            raise NotFoundError(
                f"several stores have a run {ref.experiment}/{ref.run_id}: open it from the list of runs"
            )
        if not found:
            raise NotFoundError(f"there is no run {ref.experiment}/{ref.run_id}")
        return found[0]


def ref_names(ref: RunRef) -> tuple[str, str]:
    return ref.experiment, ref.run_id


def _uid_of(folder: str) -> str:
    try:
        return Reader(os.path.join(folder, "journal")).uid if not is_url(folder) else ""
    except (HoldfastError, OSError):
        return ""
