"""The ledger of a sharded run: what each shard may spend of the run's budget, which shards are being worked on, and for
how long the run has worked.

An entry is a file `grants/<number>` in the folder of the run, or an object of that name if the run has an exclusive
mirror. Entries are created once, whole, never changed, and numbered without gaps. The writer of an entry has read all
entries before it. If another process creates the same number first, it reads on and decides again. So entries are
decided one after another, by whichever machine.

An entry says what one shard may have spent in total from then on (`allowed`). The last entry of each shard counts.
Invariant: an entry that raises what a shard may spend leaves the sum over all shards within the limit. A worker that
begins or ends with a shard lowers it to what the shard's journal says was spent.

A crash leaves what was granted to the shard reserved, until the worker that takes the shard over returns the rest.
Nobody takes over a complete shard: if its worker could not write its last entry, any worker whose grant is too small
writes it, with what the journal of the shard says. This is exact, because the journal is final.
Shards without an entry, and shards whose worker had no limits, count with what their journals say.
"""

import contextlib
import errno
import functools
import math
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from holdfast import files
from holdfast.engine import Amount, Grant, spent_in
from holdfast.errors import DamagedError, FencedError, HoldfastError, StoreError
from holdfast.journal import (
    GRANTS,
    PIECES,
    SHARDS,
    Damage,
    Entry,
    Lease,
    Objects,
    Reader,
    StoredObjects,
    create_own,
    is_term_held,
    read_lease,
)
from holdfast.records import parse_shard
from holdfast.runs.mirror.claim import last_beat, objects_of
from holdfast.runs.shards.layout import begun_shards, shard_location
from holdfast.runs.shards.sources import fetch_shards
from holdfast.runs.store.lookup import RunLocation
from holdfast.spec import RunLimits, Spec
from holdfast.state import Fold

_PARTS = 4
"""A grant is what is left, divided by so many times the number of workers: the rest that is bound in grants is small,
and there are few entries."""
_ROUNDING = 1e-9
"""A rest that is a smaller part of the limit comes from rounding."""
_NAMES = ("cost_usd", "tokens", "requests")
_PAUSE_SECONDS = 30.0
"""If no worker has shown a sign of life for so long, the run was not working."""
_RACES_MAX = 1000
_TRIES = 20
_OWNERSHIP_TRIES = 50
_SETTLED_MAX = 8
"""How many open entries of others a worker looks at when its grant is too small. Each costs requests, and with more
entries there are more workers that look."""
_COUNTED_MAX = 10
"""How many other workers one count looks at; the others count as at their last look, or as live. Each look costs
requests, and all workers count all others."""
_TRY_SECONDS = 0.1
_AT_ONCE = 16
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class Allowance(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a shard may have spent in total. None: its worker has no such limit, so its journal must be read."""

    cost_usd: float | None = None
    tokens: float | None = None
    requests: float | None = None


class LedgerEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    nonce: str
    """Makes the bytes of each entry unique, so that its writer recognises it."""
    uid: str
    """Of the run. Entries of an earlier run at the same place do not count."""
    shard: str
    epoch: int
    """Of the worker that wrote it."""
    at: float
    allowed: Allowance
    open: bool
    """Whether a worker works on the shard."""
    began: float = 0.0
    """When the run began to work, after its last pause."""
    worked: float = 0.0
    """For how many seconds it had worked before that."""


class EntryStore(Protocol):
    """Where entries are."""

    def read_from(self, number: int) -> Iterator[bytes]:
        """All entries from this number on."""

    def create(self, number: int, data: bytes) -> bool:
        """False if another process has created it."""


class FolderEntries:
    """Entries as files of a folder that all workers share."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def read_from(self, number: int) -> Iterator[bytes]:
        with contextlib.suppress(FileNotFoundError):
            while True:
                yield files.read_file(self._path(number))
                number += 1

    def create(self, number: int, data: bytes) -> bool:
        """A link makes the entry visible as a whole. On file systems without links others may see it incomplete, and
        wait (`_decode`).
        """
        files.make_folder(self._folder)
        temporary = os.path.join(self._folder, f".{uuid.uuid4().hex}.tmp")
        self._write(temporary, data)
        try:
            files.link(temporary, self._path(number))
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with contextlib.suppress(FileExistsError):
                self._write(self._path(number), data)
        finally:
            files.remove_if_present(temporary)
        files.sync_folder(self._folder)
        # A network file system may report "exists" for a link that was made.
        return next(self.read_from(number), b"") == data

    def _write(self, path: str, data: bytes) -> None:
        with open(files.create_file(path), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number:06}")


class ObjectEntries:
    """Entries as objects of a mirror."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def read_from(self, number: int) -> Iterator[bytes]:
        if number == 1:  # a process that joins: many requests at once
            count = sum(1 for _ in self._objects.listed(GRANTS))
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for data in pool.map(lambda each: self._objects.get(_name(each)), range(1, count + 1)):
                    if data is None:
                        return
                    yield data
                    number += 1
        while (data := self._objects.get(_name(number))) is not None:
            yield data
            number += 1

    def create(self, number: int, data: bytes) -> bool:
        return create_own(self._objects, _name(number), data)


def _name(number: int) -> str:
    return f"{GRANTS}/{number:06}"


class Ledger:
    """The entries of one run, as far as this process has read them. Not safe for several threads."""

    def __init__(self, store: EntryStore, uid: str) -> None:
        self._store = store
        self._uid = uid
        self._count = 0
        self.shards: dict[str, LedgerEntry] = {}
        """The last entry of each shard."""
        self.last: LedgerEntry | None = None

    def read(self) -> None:
        """Read the entries that others have created since the last time."""
        for data in self._store.read_from(self._count + 1):
            self._add(self._decode(data))

    def append(self, entry: LedgerEntry) -> bool:
        """Create the next entry. False if another process was faster: then read, and decide again."""
        entry = msgspec.structs.replace(entry, nonce=uuid.uuid4().hex, uid=self._uid)
        if not self._store.create(self._count + 1, msgspec.json.encode(entry)):
            return False
        self._add(entry)
        return True

    def _add(self, entry: LedgerEntry) -> None:
        self._count += 1
        if entry.uid == self._uid:
            self.shards[entry.shard] = self.last = entry

    def _decode(self, data: bytes) -> LedgerEntry:
        """DamagedError if an entry stays incomplete: its writer may be writing it."""
        for _ in range(_TRIES):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                return msgspec.json.decode(data, type=LedgerEntry)
            time.sleep(_TRY_SECONDS)
            data = next(self._store.read_from(self._count + 1), b"")
        raise DamagedError(
            f"{_name(self._count + 1)} of the run cannot be read; stop all workers and remove the folder {GRANTS}: "
            "what was spent is then counted from the journals of the shards"
        )


class LedgerOptions(msgspec.Struct, frozen=True):
    """One worker's view of the run."""

    shard: str
    epoch: int
    is_owner: Callable[[], bool]
    """Whether the worker certainly owns the shard."""
    read_spent: Callable[[str], Amount]
    """What the journal of another shard says was spent."""
    read_sign: Callable[[str], tuple[bool, float]]
    """Whether the worker of another shard is live, and when it gave its last sign of life; of this shard: the worker
    before this one."""
    begun: Callable[[], list[str]] = list
    """The shards that have begun."""
    read_final: Callable[[str, int], Amount | None] = lambda shard, epoch: None
    """What another shard has spent, if its worker of this epoch has completed it; else None."""
    clock: Callable[[], float] = time.time


class ShardGrants:
    """What one worker may spend on one shard: the `Grants` of an engine. Safe from any thread."""

    def __init__(self, ledger: Ledger, options: LedgerOptions) -> None:
        self._ledger = ledger
        self._options = options
        self._lock = threading.Lock()
        self._is_open = self._is_closed = False
        self._begun: set[str] | None = None
        """The shards that had begun when this worker first asked: some may have no entry."""
        self._live: dict[str, bool] = {}
        """Whether the workers of other shards were live at the last look, oldest look first."""
        self._spent_elsewhere: dict[str, Amount] = {}
        """By shard: what its journal says, if the ledger does not."""

    def open(self, limits: RunLimits, spent: Amount) -> float:
        with self._lock:
            self._begin(limits, spent)
            last = self._ledger.last
            assert last is not None
            return last.worked + max(self._options.clock() - last.began, 0.0)

    def _begin(self, limits: RunLimits, spent: Amount) -> None:
        self._is_open = True
        self._wait_for_ownership()
        self._write(lambda: _known(limits, spent), is_open=True)

    def _wait_for_ownership(self) -> None:
        for _ in range(_OWNERSHIP_TRIES):  # the heartbeat may be late on a busy machine
            if self._options.is_owner():
                break
            time.sleep(_TRY_SECONDS)

    def ask(self, limits: RunLimits, spent: Amount, wanted: Amount) -> Grant:
        with self._lock:
            if self._is_closed:
                raise StoreError("the work on this shard has ended")
            if not self._is_open:  # the first limit was set while it runs
                self._begin(limits, spent)
            self._write(lambda: self._raised(limits, spent, wanted), is_open=True)
            if self._is_too_small(wanted) and self._settle():
                self._write(lambda: self._raised(limits, spent, wanted), is_open=True)
            allowed = self._ledger.shards[self._options.shard].allowed
            others = [self._others(name) if getattr(limits, name) is not None else 0.0 for name in _NAMES]
            return Grant(_amount(allowed, math.inf), Amount(*others) + _amount(allowed, 0.0))

    def close(self, spent: Amount) -> None:
        with self._lock:
            self._is_closed = True
            if self._is_open:
                self._wait_for_ownership()
                self._write(lambda: _exactly(spent), is_open=False)
                self._is_open = False

    def count_workers(self) -> int:
        with self._lock:
            if not self._is_open and not self._is_closed:  # the first rate was set while it runs
                self._begin(RunLimits(), Amount())
            self._ledger.read()
            others = {name for name, entry in self._ledger.shards.items() if entry.open and name != self._options.shard}
            seen = {name: is_live for name, is_live in self._live.items() if name in others}
            for name in [*(others - seen.keys()), *seen][:_COUNTED_MAX]:  # those that were looked at longest ago
                seen.pop(name, None)
                seen[name] = self._options.read_sign(name)[0]
            self._live = seen
            return 1 + sum(seen.get(name, True) for name in others)

    def _is_too_small(self, wanted: Amount) -> bool:
        allowed = _amount(self._ledger.shards[self._options.shard].allowed, math.inf)
        return any(getattr(allowed, name) < getattr(wanted, name) for name in _NAMES)

    def _settle(self) -> bool:
        """Write the last entries of complete shards whose workers could not. Returns whether there were any."""
        shards, found = self._ledger.shards, False
        others = [name for name, entry in shards.items() if entry.open and name != self._options.shard]
        for name in random.sample(others, min(len(others), _SETTLED_MAX)):
            epoch = shards[name].epoch
            with contextlib.suppress(HoldfastError, OSError):  # it cannot be read, or another worker has it now
                spent = self._options.read_final(name, epoch)
                if spent is not None:
                    self._write(functools.partial(_exactly, spent), is_open=False, of=(name, epoch))
                    found = True
        return found

    def _write(self, decide: Callable[[], Allowance], *, is_open: bool, of: tuple[str, int] | None = None) -> None:
        """Append the allowance that `decide` returns, unless it is the last entry. FencedError if another worker has
        the shard. `of`: another shard, and the epoch of its worker.
        """
        mine, ledger = self._options, self._ledger
        shard, epoch = of or (mine.shard, mine.epoch)
        for tries in range(_RACES_MAX):
            ledger.read()
            last = ledger.shards.get(shard)
            if (last is not None and last.epoch > epoch) or not mine.is_owner():
                raise FencedError(f"shard {shard} may have been taken over by another worker")
            allowed = decide()
            if last is not None and (last.epoch, last.allowed, last.open) == (epoch, allowed, is_open):
                return
            began, worked = self._read_clock(is_new=last is None or last.epoch < epoch)
            if ledger.append(LedgerEntry("", "", shard, epoch, mine.clock(), allowed, is_open, began, worked)):
                return
            time.sleep(min(0.001 * tries, 0.1))
        raise StoreError(f"no entry could be written to {GRANTS}: other workers always were faster")

    def _raised(self, limits: RunLimits, spent: Amount, wanted: Amount) -> Allowance:
        own = self._ledger.shards[self._options.shard]
        live = max(sum(entry.open for entry in self._ledger.shards.values()), 1)
        allowed: dict[str, float | None] = {}
        for name in _NAMES:
            limit, used, needed = getattr(limits, name), getattr(spent, name), getattr(wanted, name)
            if limit is None:
                allowed[name] = None
                continue
            before = max(getattr(own.allowed, name) or 0.0, used)
            left = limit - self._others(name) - before
            if left < 0:  # the limit was lowered, or others have exceeded it
                allowed[name] = max(before + left, used)
            elif left <= _ROUNDING * limit or (before > used and before >= needed):
                allowed[name] = before
            else:
                part = left / (_PARTS * live)
                part = part if name == "cost_usd" else math.ceil(part)
                allowed[name] = min(max(needed, before + part), before + left)
        return Allowance(**allowed)

    def _others(self, name: str) -> float:
        """What all other shards may have spent."""
        if self._begun is None:
            self._begun = set(self._options.begun())
        total = 0.0
        for shard in (self._ledger.shards.keys() | self._begun) - {self._options.shard}:
            entry = self._ledger.shards.get(shard)
            known = getattr(entry.allowed, name) if entry is not None else None
            if known is None:
                if shard not in self._spent_elsewhere:
                    self._spent_elsewhere[shard] = self._options.read_spent(shard)
                known = getattr(self._spent_elsewhere[shard], name)
            total += known
        return total

    def _read_clock(self, *, is_new: bool) -> tuple[float, float]:
        """When the run began to work, and how long it had worked before. If all workers had stopped before this one
        began (`is_new`), another period begins.
        """
        last, now = self._ledger.last, self._options.clock()
        if last is None:
            return now, 0.0
        seen = last.at if is_new else now
        for name, entry in self._ledger.shards.items():
            if entry.open and now - seen > _PAUSE_SECONDS:
                seen = max(seen, self._options.read_sign(name)[1])
        if now - seen <= _PAUSE_SECONDS:
            return last.began, last.worked
        return now, last.worked + max(seen - last.began, 0.0)


_ledgers: dict[tuple[str, str], Ledger] = {}
"""By place and uid of a run: its ledger as far as this process has read it, for the next shard that it works on."""


def open_grants(place: RunLocation, uid: str, spec: Spec, epoch: int, is_owner: Callable[[], bool]) -> ShardGrants:
    """The grants of a shard. `uid`: of its journal."""
    root, shard = place.whole, parse_shard(place.shard)
    whole = uid.removesuffix(f"-{shard.folder}")
    objects = _shared_objects(root, spec)
    readings = _Readings(root, whole, spec, objects, str(shard))
    options = LedgerOptions(
        str(shard), epoch, is_owner, readings.spent, readings.sign_of_life, readings.begun, readings.final
    )
    return ShardGrants(_ledger_of(root, whole, objects), options)


def unsettled_shards(root: RunLocation, uid: str, spec: Spec) -> frozenset[str]:
    """The shards whose worker has not returned the budget that it did not spend: it is at work, or has crashed."""
    ledger = _ledger_of(root, uid, _shared_objects(root, spec))
    ledger.read()
    return frozenset(name for name, entry in ledger.shards.items() if entry.open)


def _shared_objects(root: RunLocation, spec: Spec) -> StoredObjects | None:
    mirror = spec.mirror if spec.mirror is not None and spec.mirror.exclusive else None
    return objects_of(mirror.url, root) if mirror is not None else None


def _ledger_of(root: RunLocation, uid: str, objects: StoredObjects | None) -> Ledger:
    store = ObjectEntries(objects) if objects is not None else FolderEntries(os.path.join(root.folder, GRANTS))
    return _ledgers.setdefault((objects.url if objects is not None else root.folder, uid), Ledger(store, uid))


class _Readings:
    """What is known of other shards beside the ledger: here, or in the mirror."""

    def __init__(self, root: RunLocation, uid: str, spec: Spec, objects: StoredObjects | None, own: str) -> None:
        """`uid`: of the run. `own`: the shard of this process, which has not written a lease yet."""
        self._root = root
        self._uid = uid
        self._spec = spec
        self._objects = objects
        self._before = {own: (False, self._read_sign_of_life(own)[1])}

    def begun(self) -> list[str]:
        found = {each.shard for each in begun_shards(self._root)}
        if self._objects is not None:
            found |= {str(parse_shard(name)) for name in self._objects.folders(SHARDS)}
        return list(found)

    def spent(self, shard: str) -> Amount:
        place = self._places.get(shard)
        if place is not None:
            return spent_in(Fold().read(Reader(place.journal).read(live=True)).story, self._spec)
        if self._objects is not None and self._objects.below(_path(shard)).folders(PIECES):
            raise StoreError(f"what shard {shard} has spent cannot be read from {self._objects.url}")
        return Amount()  # it was claimed, and has recorded nothing

    def final(self, shard: str, epoch: int) -> Amount | None:
        """The lease says that the worker has recorded its end; the journal that is read must have this record."""
        lease, _ = self._read_lease(shard)
        if lease is None or lease.scoring or (lease.epoch, lease.end) != (epoch, "run.completed"):
            return None
        for place in fetch_shards(self._root, self._uid, self._url, parse_shard(shard)):
            last_n = 0

            def entries(place: RunLocation = place) -> Iterator[Entry | Damage]:
                nonlocal last_n
                for each in Reader(place.journal).read(live=True):
                    if isinstance(each, Entry):
                        last_n = each.line.n
                    yield each

            fold = Fold().read(entries())
            if not fold.damage and 0 < lease.last_n <= last_n:
                return spent_in(fold.story, self._spec)
        return None

    @property
    def _url(self) -> str:
        return self._spec.mirror.url if self._objects is not None and self._spec.mirror is not None else ""

    @functools.cached_property
    def _places(self) -> dict[str, RunLocation]:
        """Where the journals of shards are read, by shard."""
        return {each.shard: each for each in fetch_shards(self._root, self._uid, self._url)}

    def sign_of_life(self, shard: str) -> tuple[bool, float]:
        """Whether the shard has a live worker, and when its lease was last renewed."""
        return self._before.get(shard) or self._read_sign_of_life(shard)

    def _read_sign_of_life(self, shard: str) -> tuple[bool, float]:
        lease, is_live = self._read_lease(shard)
        return is_live, lease.at if lease is not None else 0.0

    def _read_lease(self, shard: str) -> tuple[Lease | None, bool]:
        """The last lease of a shard, here or in the mirror, and whether its worker is live."""
        place = shard_location(self._root, parse_shard(shard))
        lease, is_live = read_lease(place.folder), is_term_held(place.folder)
        if self._objects is not None:
            beat = last_beat(self._objects.below(_path(shard)))[1]
            if beat is not None and beat.lease is not None and (lease is None or beat.lease.at > lease.at):
                lease = beat.lease
                is_live = not beat.ended and time.time() - lease.at < beat.expiry_seconds
        return lease, is_live


def _path(shard: str) -> str:
    """Of a shard below its run in a mirror."""
    return f"{SHARDS}/{parse_shard(shard).folder}"


def _known(limits: RunLimits, spent: Amount) -> Allowance:
    """Nothing more than was spent; None where this worker has no limit."""
    return Allowance(*(None if getattr(limits, name) is None else getattr(spent, name) for name in _NAMES))


def _exactly(spent: Amount) -> Allowance:
    return Allowance(*msgspec.structs.astuple(spent))


def _amount(allowed: Allowance, unlimited: float) -> Amount:
    return Amount(*(unlimited if each is None else each for each in msgspec.structs.astuple(allowed)))
