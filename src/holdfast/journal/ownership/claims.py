"""Claims: ownership of a run among machines that share only its mirror, by epochs in the object store.

Protocol (`terms` does the same in a folder):

- A process takes the run by creating `lease/<epoch>`, create-only, with a random nonce. If the object exists already,
  or the result of the request is unknown, it reads the object back and owns the run if the nonce is its own.
- The holder overwrites `lease/<epoch>.beat` several times per expiry.
- A holder is dead if its beat is marked `ended`, if its process is known to be dead on this machine, or if the beat did
  not change for one expiry in which the observer watched it (`watch`).
- A holder that finds a greater epoch has lost the run. The journal's fence voids what it writes after that.

Why no acknowledged record is lost: the holder writes its beat, then checks for a greater epoch, and only then counts
its uploads as durable. The new owner claims first, then reads the beat once more. So at least one of them sees the
other, and everything that the holder counted is in the store when the new owner reads it.

A store that ignores create-if-absent is detected with a probe and refused. A crash leaves a claim without a living
holder; the next owner takes the next epoch.
"""

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterable

import msgspec

from holdfast.errors import HeldError, StoreError, UsageError
from holdfast.journal.object_store import Objects, create_own
from holdfast.journal.ownership.lease import Holder, Lease, is_gone, this_process
from holdfast.journal.ownership.watch import Watch

FOLDER = "lease"
EXPIRY_SECONDS = 30.0
_PAUSE_SECONDS = 1.0
_EPOCH = re.compile(rf"{FOLDER}/(\d{{6,12}})")


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    nonce: str
    holder: Holder
    expiry_seconds: float = EXPIRY_SECONDS
    """The holder beats several times in this period. A process that wants to take over waits at least so long."""


class Beat(msgspec.Struct, frozen=True, omit_defaults=True):
    """One heartbeat, with the holder's last lease."""

    count: int
    ended: bool = False
    mirrored: int = 0
    """The number of the last record that is durable in the store."""
    lease: Lease | None = None
    expiry_seconds: float = EXPIRY_SECONDS
    """The holder beats several times in this period."""


class TakeoverTiming(msgspec.Struct, frozen=True):
    """The expiry that this process promises to others, and the clock with which it waits for them."""

    expiry_seconds: float = EXPIRY_SECONDS
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def take_epoch(objects: Objects, at_least: int, patience: TakeoverTiming | None = None) -> int:
    """Take the run for this process. Returns an epoch that is greater than every other and at least `at_least`.

    HeldError if a live process owns the run; UsageError if the store ignores create-if-absent.
    """
    timing = patience or TakeoverTiming()
    last = greatest_epoch(objects)
    before = _look(objects, last, timing.clock) if last else None
    if before is not None and not before.watch.wait_until_over(timing.sleep, _PAUSE_SECONDS):
        claim, expiry = before.claim, before.watch.expiry_seconds
        holder = f" (process {claim.holder.pid} on {claim.holder.host})" if claim else ""
        raise HeldError(
            f"{objects.url} is being written by another live process{holder}; wait for it, or stop it first (one that "
            f"died is recognised after {expiry:g} s)"
        )
    _require_create_only(objects)
    epoch = max(last + 1, at_least)
    # Two processes can create two different epochs at the same time (`at_least` differs). Each lists the epochs after
    # its own create, so at least one sees the other and gives up; both may, but never do both continue.
    if not _claim(objects, epoch, timing.expiry_seconds) or any(last < each != epoch for each in epochs(objects)):
        raise HeldError(f"{objects.url} was taken over by another process a moment ago; wait for it, or stop it first")
    if before is not None:
        before.watch.wait_until_noticed(timing.sleep, _PAUSE_SECONDS)
    return epoch


def greatest_epoch(objects: Objects) -> int:
    return max(epochs(objects), default=0)


def epochs(objects: Objects) -> list[int]:
    """All claimed epochs, from one list request."""
    return epochs_in(list_leases(objects))


def list_leases(objects: Objects) -> list[str]:
    """The names of claims, heartbeats and tombstones: one request."""
    return [each.name for each in objects.listed(FOLDER)]


def epochs_in(names: Iterable[str]) -> list[int]:
    """The claimed epochs among these object names."""
    return [int(match[1]) for match in map(_EPOCH.fullmatch, names) if match]


class _Seen(msgspec.Struct, frozen=True):
    """A claim of another process."""

    epoch: int
    claim: Claim | None
    watch: Watch[Beat | None]


_seen: dict[str, _Seen] = {}
"""By URL: those that `observe_claim` has looked at."""


def _look(objects: Objects, epoch: int, clock: Callable[[], float]) -> _Seen:
    """Look at a claim. Continues what `observe_claim` has watched."""
    seen = _seen.get(objects.url)
    if seen is not None and seen.epoch == epoch:
        seen.watch.look()
        return seen
    claim = _read_claim(objects, epoch)
    return _Seen(epoch, claim, _watch(objects, epoch, claim, read_beat(objects, epoch), clock))


def _watch(
    objects: Objects, epoch: int, claim: Claim | None, beat: Beat | None, clock: Callable[[], float]
) -> Watch[Beat | None]:
    def is_ended(beat: Beat | None) -> bool:
        return (beat is not None and beat.ended) or (claim is not None and is_gone(claim.holder))

    expiry_seconds = claim.expiry_seconds if claim is not None else EXPIRY_SECONDS
    return Watch(lambda: read_beat(objects, epoch), is_ended, expiry_seconds, clock, beat)


def observe_claim(objects: Objects, clock: Callable[[], float] = time.monotonic) -> tuple[bool, Beat | None]:
    """Look once whether a run could be taken over now, as `terms.observe_term` does; also returns its last beat.

    A worker may look at thousands of runs, so a look costs one request if the run was never claimed, three if it is
    held, and after that again one until its holder ends it or does not beat for an expiry.
    """
    seen = _seen.get(objects.url)
    if seen is not None:
        is_same = seen.watch.look()
        if not seen.watch.is_over and (is_same or seen.watch.beat is not None):
            return False, seen.watch.beat
    last = greatest_epoch(objects)
    if not last:
        return True, None
    if seen is None or seen.epoch != last:
        beat = read_beat(objects, last)
        if beat is not None and beat.ended:
            _seen.pop(objects.url, None)
            return True, beat
        claim = _read_claim(objects, last)
        seen = _seen[objects.url] = _Seen(last, claim, _watch(objects, last, claim, beat, clock))
    return seen.watch.is_over, seen.watch.beat


def is_silent(objects: Objects, epoch: int, patience: TakeoverTiming) -> bool:
    """Whether no live process writes a heartbeat for this epoch. Blocks for up to one expiry."""
    beat = read_beat(objects, epoch)
    if beat is None:
        return True
    holder = beat.lease.holder if beat.lease is not None else None
    claim = Claim("", holder, beat.expiry_seconds) if holder is not None else None
    watch = _watch(objects, epoch, claim, beat, patience.clock)
    return watch.wait_until_over(patience.sleep, _PAUSE_SECONDS)


def write_beat(objects: Objects, epoch: int, beat: Beat) -> None:
    objects.put(_beat_name(epoch), msgspec.json.encode(_without_missing_end(beat)))


def delete_beat(objects: Objects, epoch: int) -> None:
    objects.delete(_beat_name(epoch))


def read_beat(objects: Objects, epoch: int) -> Beat | None:
    """The last heartbeat; None if it is missing or unreadable."""
    data = objects.get(_beat_name(epoch))
    try:
        return None if data is None else _without_missing_end(msgspec.json.decode(data, type=Beat))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _without_missing_end(beat: Beat) -> Beat:
    """A run has ended for other machines only when the store has its last record: its holder may die before it uploads
    the rest, and others must then continue the run. Versions up to 0.2.0 wrote such ends, so readers check it too.
    """
    lease = beat.lease
    if lease is None or not lease.end or beat.mirrored >= lease.durable_n:
        return beat
    lease = msgspec.structs.replace(lease, end="", last_n=0, acknowledged=lease.durable_n)
    return msgspec.structs.replace(beat, lease=lease)


def _claim(objects: Objects, epoch: int, expiry_seconds: float) -> bool:
    """Create the claim of this epoch. True if it is ours."""
    claim = Claim(uuid.uuid4().hex, this_process(), expiry_seconds)
    return create_own(objects, f"{FOLDER}/{epoch:06d}", msgspec.json.encode(claim))


def _require_create_only(objects: Objects) -> None:
    """UsageError if the store lets the same object be created twice: then it cannot separate two writers."""
    name = f"{FOLDER}/probe-{uuid.uuid4().hex}"
    objects.create(name, b"1")
    try:
        if objects.create(name, b"2"):
            raise UsageError(
                f"{objects.url}: this store ignores create-if-absent, so it cannot keep two writers apart; use another "
                "store, or, if only one machine will ever write this run, set mirror.exclusive: false"
            )
    finally:
        with contextlib.suppress(StoreError):  # a leftover probe is harmless: its name is no epoch
            objects.delete(name)


def _read_claim(objects: Objects, epoch: int) -> Claim | None:
    data = objects.get(f"{FOLDER}/{epoch:06d}")
    try:
        return None if data is None else msgspec.json.decode(data, type=Claim)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _beat_name(epoch: int) -> str:
    return f"{FOLDER}/{epoch:06d}.beat"
