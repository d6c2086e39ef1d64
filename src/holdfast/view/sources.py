"""The runs that the viewer shows: folders with runs, single runs, and mirrors, opened once and kept up to date.

A `ViewedRun` keeps its index open between requests and opens it again only when a file of the run has changed. Its lock
makes requests about one run take turns; requests about different runs do not wait for each other. Nothing here writes
to a run's folder.
"""

import contextlib
import math
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Container, Iterator, Mapping, MutableSequence, Sequence
from typing import NamedTuple

import msgspec

from holdfast.errors import HoldfastError, UsageError
from holdfast.journal import Position, Reader, is_url
from holdfast.report import KeyRecords
from holdfast.runs import Run, RunLocation, RunSummary, list_runs
from holdfast.runs.mirror.remote import find_to_read, list_mirror, read_mirrored_uid
from holdfast.runs.store.damage import DamageReport
from holdfast.runs.store.lookup import find_run, runs_in
from holdfast.state import Index, Standing, stamp_of, standing_of
from holdfast.view.table import SampleTables

_OPEN_MAX = 12
_PAST_MAX = 2
"""Runs as they were: their indexes are in memory."""
_PARENTS_SECONDS = 30.0
_MIRROR_SECONDS = 5.0
"""How old the copy of a mirrored run may be."""
_LOCATED_SECONDS = 5.0
"""For how long a run that was found under a name is taken for the only one: looking through all stores takes long."""


class NotFoundError(UsageError):
    """There is no such run, sample or page."""


class RunRef(msgspec.Struct, frozen=True):
    """How addresses name a run. `uid`: only where several open stores have a run of this name. `at`: show the run as
    it was after this record. `store`: the number of its store, only where the uid does not tell runs apart.
    """

    experiment: str
    run_id: str
    uid: str = ""
    at: int | None = None
    store: int = 0

    @property
    def query(self) -> dict[str, str]:
        """What the query of an address says of the run."""
        found = {"uid": self.uid, "at": "" if self.at is None else str(self.at), "store": str(self.store or "")}
        return {name: value for name, value in found.items() if value}


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


class RunStatus(NamedTuple):
    """The status of a run with its reason, and for a run that has completed, its failed samples."""

    status: str = ""
    reason: str = ""
    failed: int = 0
    planned: int = 0


class KeyOutline(msgspec.Struct):
    """The records of a key without the texts of its steps, and their positions."""

    key: str
    positions: list[Position]
    records: KeyRecords


class ViewedRun(Run):
    """A run that stays open. Hold its `lock` while using it."""

    def __init__(self, place: RunLocation, at: int | None = None, *, frozen: bool = False) -> None:
        """`frozen`: as it is now, whatever happens to it."""
        super().__init__(place, quiet=True)
        self._frozen = frozen
        self.lock = threading.RLock()
        self.at = at
        self.uses = 0
        self.ordinals: Mapping[str, int] = {}
        """Of keys, if they are known: searching a large plan for each of many keys takes long."""
        self.is_evicted = False
        """Whether it was closed to make room: open the run again."""
        self.uid = Reader(self.place.journal).uid
        self.standing = Standing(held=False)
        self.outline: KeyOutline | None = None
        """Of the sample with many steps that was looked at last: reading it again would cost the most."""
        self.located = dict[RunRef, float]()
        """References that lead to it, each with the time until which no other run is looked for under it."""
        self._stamp = ""
        self._fetched = time.monotonic()

    def refresh(self) -> None:
        """Open the index again if a file has changed."""
        if self._frozen and self._stamp:
            return
        if self.at is not None:
            self._look()
            if self._opened is None:
                self._opened, self._damage = self._index_at(self.at), DamageReport()
            return
        if self.place.url and time.monotonic() - self._fetched > _MIRROR_SECONDS:
            find_to_read("", self.place.url)
            self._fetched = time.monotonic()
        self._update_copy()
        # The lock is checked before the files: otherwise a run that ends in between would look interrupted.
        self.standing = standing_of(self.place.folder)
        if self._look():
            self.close()

    def expire_copy(self) -> None:
        """Let the next request bring the copy of a sharded run up to date, however new it is."""
        self._copied_at = -math.inf

    def _look(self) -> bool:
        """Whether a file has changed. If the folder now holds another run, nothing of the one before is kept."""
        stamp = stamp_of(self.place.folder)
        if stamp == self._stamp:
            return False
        uid = Reader(self.place.journal).uid
        if uid != self.uid:
            self.close()
            self.uid, self.outline = uid, None
        self._stamp = stamp
        return True

    def _index_at(self, at: int) -> Index:
        """The index of the run as it was when record `at` was the last one."""
        found = Index(self.place.folder, kept=False, last=at)
        if found.last_n < at:  # lost to damage, or not written yet
            with contextlib.closing(Index(self.place.folder)) as now:
                last = now.last_n
            if last < at:
                found.close()
                raise NotFoundError(f"{self.run_id} has no record {at:,}: the last one is {last:,}")
        return found

    def status(self) -> tuple[str, str]:
        """As of the last refresh: one page never shows two states of a run. In the past a run without an end was
        running: what came after the record says how it ended.
        """
        story = self._index.story
        if self.at is not None and story.started is not None and story.end is None:
            return "running", f"when record {self.at:,} was written"
        return self._status_at(self.standing)

    @property
    def index(self) -> Index:
        return self._index

    def shown_status(self) -> RunStatus:
        """Its status, as pages show it."""
        status, reason = self.status()
        failed = self._index.run_totals().failed if status == "completed" else 0
        return RunStatus(status, reason, failed, self._index.story.planned)

    def find_evaluation(self, name: str) -> str:
        """The id of the evaluation with a name, an id or the beginning of an id; empty for the current one. UsageError
        if there is none.
        """
        found = self._evaluation(name)
        return "" if found == self._index.story.evaluation else found

    @property
    def is_live(self) -> bool:
        return self.standing.held

    def durability(self) -> Durability:
        last, lease = self._index.last_n, self.standing.lease
        mirrored = self.standing.mirrored if not self.place.root else None  # each shard has its own
        if not self.standing.held or lease is None or self.at is not None:
            return Durability(last, last, mirrored)
        return Durability(last, max(lease.acknowledged, 0), mirrored, lease.mirror_behind)


class ListedRun(msgspec.Struct, frozen=True):
    """A run in the list, and the store that it is in."""

    source: str
    summary: RunSummary
    uid: str = ""
    """Only where another source has a run of the same name."""
    store: int = 0
    """The number of its source, only where another one has a run of the same name and uid: a copy."""

    @property
    def ref(self) -> RunRef:
        return RunRef(self.summary.experiment, self.summary.run_id, self.uid, store=self.store)


class Sources:
    """Everything that one server shows."""

    def __init__(self, targets: Sequence[str], store: str, *, frozen: bool = False, published: bool = False) -> None:
        """`targets`: folders of stores or runs, URLs of mirrors, or names of runs in `store`. None: all of `store`.
        `frozen`: a run stays as it is when it is opened first; for a static copy. `published`: as in `Run`.
        """
        self._frozen = frozen
        self._published = published
        self._places: list[RunLocation] = []
        self._stores: list[str] = []
        for target in targets or [store]:
            self._add(target, store)
        self._open: OrderedDict[tuple[str, int | None], ViewedRun] = OrderedDict()
        self._lock = threading.Lock()
        self.tables = SampleTables()
        """The lists of samples of these runs."""
        self._held = threading.local()
        self._parents: tuple[float, Sequence[tuple[RunRef, Mapping[str, str] | None]]] = (0.0, ())
        """When `list_parents` read them, and what it found."""

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

    def list(self) -> list[ListedRun]:
        """Every run, the newest first. A store that cannot be read appears as one line that says so."""
        found = [each for store in enumerate(self._stores, 1) for each in self._list_store(*store)]
        for number, place in enumerate(self._places, len(self._stores) + 1):
            found.append(ListedRun(place.store, self._summary(place, number), store=number))
        names = Counter(ref_names(each.ref) for each in found)
        listed = []
        for each in found:
            is_alone = names[ref_names(each.ref)] == 1
            listed.append(msgspec.structs.replace(each, uid="" if is_alone else _uid_of(each.summary.folder)))
        uids = Counter((ref_names(each.ref), each.uid) for each in listed)
        for number, each in enumerate(listed):
            is_copy = uids[ref_names(each.ref), each.uid] > 1 or (names[ref_names(each.ref)] > 1 and not each.uid)
            listed[number] = msgspec.structs.replace(each, store=each.store if is_copy else 0)
        return sorted(listed, key=lambda each: each.summary.created or each.summary.updated, reverse=True)

    def list_parents(self) -> Sequence[tuple[RunRef, Mapping[str, str] | None]]:
        """Every run with the one that it was forked from. May be half a minute old: live pages ask for it often."""
        at, found = self._parents
        if not found or time.monotonic() - at > _PARENTS_SECONDS:
            found = tuple((each.ref, each.summary.parent) for each in self.list())
            self._parents = (time.monotonic(), found)
        return found

    def _list_store(self, number: int, store: str) -> Iterator[ListedRun]:
        try:
            found = [each.summary for each in list_mirror(store)] if is_url(store) else list(list_runs(store))
        except (HoldfastError, OSError) as error:
            found = [RunSummary("", "", "unreadable", str(error), folder=store)]
        return (ListedRun(store, each, store=number) for each in found)

    def _summary(self, place: RunLocation, number: int) -> RunSummary:
        try:
            with self.open(RunRef(place.experiment, place.run_id, store=number)) as run:
                return run.summary()
        except (HoldfastError, OSError) as error:
            return RunSummary(place.run_id, place.experiment, "unreadable", str(error), folder=place.folder)

    @contextlib.contextmanager
    def open(self, ref: RunRef) -> Iterator[ViewedRun]:
        """The run, up to date and locked. NotFoundError if there is none, or several and no uid. A thread opens one
        run at a time; for more at once use `open_several`.
        """
        with self.open_several([ref]) as (run,):
            yield run

    @contextlib.contextmanager
    def open_several(self, refs: Sequence[RunRef]) -> Iterator[Sequence[ViewedRun]]:
        """Several runs at once. They are locked in the order of their folders, so that two requests for the same runs
        never wait for each other.
        """
        while True:
            runs = self._find_open(refs)
            ordered = sorted(set(runs), key=lambda each: (each.place.folder, each.at or 0))
            self._forbid_nesting(ordered)
            with contextlib.ExitStack() as stack:
                for run in ordered:
                    stack.enter_context(run.lock)
                if any(run.is_evicted for run in runs):
                    continue  # while this thread waited for a lock
                for run in ordered:
                    stack.enter_context(self._in_use(run))
                    run.refresh()
                yield runs
                return

    def close(self) -> None:
        """Close the runs that no thread is reading. The others end with the process: nothing is written."""
        self.tables.close()  # first: it reads runs in the background
        with self._lock:
            for name in list(self._open):
                self._evict(name)

    def _forbid_nesting(self, runs: Sequence[ViewedRun]) -> None:
        held: MutableSequence[ViewedRun] = self._held.__dict__.setdefault("runs", [])
        if held and not set(runs) <= set(held):
            raise RuntimeError("this thread has opened a run and wants another: two threads could wait for each other")

    @contextlib.contextmanager
    def _in_use(self, run: ViewedRun) -> Iterator[None]:
        held: MutableSequence[ViewedRun] = self._held.runs
        held.append(run)
        run.uses += 1
        try:
            yield
        finally:
            run.uses -= 1
            held.pop()

    def _find_open(self, refs: Sequence[RunRef]) -> Sequence[ViewedRun]:
        found: dict[tuple[str, int | None], ViewedRun] = {}
        every = []
        for ref in refs:
            run = self._find_kept(ref)
            if run is None:
                run = self._keep(self._locate(ref), ref.at, found)
                is_unique = ref.uid or ref.store
                run.located[ref] = math.inf if is_unique else time.monotonic() + _LOCATED_SECONDS
            found[run.place.home, run.at] = run
            every.append(run)
        return every

    def _find_kept(self, ref: RunRef) -> ViewedRun | None:
        """The run, if it is open already and there can be no other of its name."""
        with self._lock:
            for name, run in self._open.items():
                is_only = len(self.names) == 1 or time.monotonic() < run.located.get(ref, 0.0)
                is_named = (run.place.experiment, run.place.run_id) == ref_names(ref) and ref.uid in ("", run.uid)
                if is_named and is_only and run.at == ref.at and ref.store <= len(self.names):
                    if not os.path.isdir(run.place.journal):
                        return None
                    self._open.move_to_end(name)
                    return run
        return None

    def _keep(self, place: RunLocation, at: int | None, wanted: Container[tuple[str, int | None]]) -> ViewedRun:
        """Keep a run open, and close others to make room, but none that is wanted."""
        with self._lock:
            name = (place.folder, at)
            if name not in self._open:
                self._open[name] = ViewedRun(place, at, frozen=self._frozen)
                self._open[name].is_published = self._published
            past = [each for each in self._open if each[1] is not None]
            surplus = past[: max(0, len(past) - _PAST_MAX)] + list(self._open)[: max(0, len(self._open) - _OPEN_MAX)]
            for each in dict.fromkeys(surplus):
                if each != name and each not in wanted:
                    self._evict(each)
            return self._open[name]

    def _evict(self, name: tuple[str, int | None]) -> None:
        """Close a run, unless it is being read: then a later request closes it."""
        run = self._open[name]
        if run.lock.acquire(blocking=False):
            if not run.uses:  # the lock alone does not tell: this thread may be the one that reads it
                run.is_evicted = True
                run.close()
                del self._open[name]
            run.lock.release()

    def _locate(self, ref: RunRef) -> RunLocation:
        found, problems = list[RunLocation](), list[Exception]()
        for number, store in enumerate(self._stores, 1):
            if ref.store not in (0, number):
                continue
            try:
                found += [find_to_read(store, "/".join(ref_names(ref)))] if is_url(store) else runs_in(store)
            except (HoldfastError, OSError) as error:  # the runs of the other stores can still be shown
                if not (is_url(store) and isinstance(error, UsageError)):  # then the mirror has no such run
                    problems.append(error)
        for number, place in enumerate(self._places, len(self._stores) + 1):
            found += [place] if ref.store in (0, number) and os.path.isdir(place.journal) else []
        found = [each for each in found if (each.experiment, each.run_id) == ref_names(ref)]
        if ref.uid:
            found = [each for each in found if _uid_of(each.folder) == ref.uid]
        if len({_uid_of(each.folder) for each in found}) > 1:  # a run and its mirror are the same run
            raise NotFoundError(
                f"several stores have a run {ref.experiment}/{ref.run_id}: open it from the list of runs"
            )
        if found:
            return found[0]
        raise problems[0] if problems else NotFoundError(f"there is no run {ref.experiment}/{ref.run_id}")


def ref_names(ref: RunRef) -> tuple[str, str]:
    return ref.experiment, ref.run_id


def _uid_of(folder: str) -> str:
    """The uid of the run in a folder or at a URL; empty if it cannot be read."""
    try:
        return read_mirrored_uid(folder) if is_url(folder) else Reader(os.path.join(folder, "journal")).uid
    except (HoldfastError, OSError):
        return ""
