"""One writer among several machines: epochs claimed in the mirror's store.

Taking a run over is the create-only making of `lease/<epoch>` with a nonce; on "exists", or when nobody knows what
came of it, it is read back: my nonce is mine. The holder overwrites `lease/<epoch>.beat`. It has gone when it said so,
when its process is known to be dead on this machine, or when its beat has not changed for so long on the judge's own
monotonic clock: no two clocks are compared. Whoever finds a greater epoch has lost the run; what it wrote since is
fenced off by the journal itself. A holder beats before it looks for a greater epoch, and counts on nothing that it has
put there until it has looked; a taker claims before it looks at the beat for the last time. So one of them sees the
other, and what the holder counted on is there when the taker reads it. A store that ignores the create-only condition
is found by a probe, and refused.
"""

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterable

import msgspec

from holdfast.errors import HeldError, StoreError, UsageError
from holdfast.journal.object_store import Objects
from holdfast.journal.ownership.lease import Holder, Lease, is_gone, this_process

FOLDER = "lease"
EXPIRY_SECONDS = 30.0
_PAUSE_SECONDS = 1.0
_TRIES = 5
_EPOCH = re.compile(rf"{FOLDER}/(\d{{6,12}})")


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    nonce: str
    holder: Holder
    expiry_seconds: float = EXPIRY_SECONDS
    """What the holder promises: it beats several times in so long. Whoever would take over waits for no less."""


class Beat(msgspec.Struct, frozen=True, omit_defaults=True):
    """One beat, with what the holder last said of itself."""

    count: int
    ended: bool = False
    mirrored: int = 0
    """The number of the last record that is durable in the store."""
    lease: Lease | None = None
    expiry_seconds: float = EXPIRY_SECONDS
    """The holder beats several times in so long."""


class Patience(msgspec.Struct, frozen=True):
    """How long others wait for us when we are silent, and the clock by which we wait for them."""

    expiry_seconds: float = EXPIRY_SECONDS
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def take_epoch(objects: Objects, at_least: int, patience: Patience | None = None) -> int:
    """The run, for this process, under an epoch that is greater than every other and not below `at_least`. HeldError if
    a living process holds it; UsageError if the store cannot tell one taker from two.
    """
    chosen = patience or Patience()
    last = greatest_epoch(objects)
    held = _read_claim(objects, last) if last else None
    seen = read_beat(objects, last) if last else None
    if last and not _is_over(objects, last, held, seen, chosen):
        raise HeldError(
            f"{objects.url} is being written by another live process{_named(held)}; wait for it, or stop it "
            f"first (one that died is recognised after {_expiry(held):g} s)"
        )
    _probe(objects)
    epoch = max(last + 1, at_least)
    if not _claim(objects, epoch, chosen.expiry_seconds) or any(last < each != epoch for each in epochs(objects)):
        raise HeldError(f"{objects.url} was taken over by another process a moment ago; wait for it, or stop it first")
    if last:
        _let_it_notice(objects, last, held, seen, chosen)
    return epoch


def greatest_epoch(objects: Objects) -> int:
    return max(epochs(objects), default=0)


def epochs(objects: Objects) -> list[int]:
    """Every one that was claimed."""
    return epochs_in(list_leases(objects))


def list_leases(objects: Objects) -> list[str]:
    """The names of claims, heartbeats and tombstones: one request."""
    return [each.name for each in objects.listed(FOLDER)]


def epochs_in(names: Iterable[str]) -> list[int]:
    """The epochs that were claimed, from the names of objects."""
    return [int(match[1]) for match in map(_EPOCH.fullmatch, names) if match]


def is_silent(objects: Objects, epoch: int, patience: Patience) -> bool:
    """Whether no live process writes a heartbeat for this epoch. Takes up to one expiry."""
    beat = read_beat(objects, epoch)
    if beat is None:
        return True
    holder = beat.lease.holder if beat.lease is not None else None
    claim = Claim("", holder, beat.expiry_seconds) if holder is not None else None
    return _is_over(objects, epoch, claim, beat, patience)


def write_beat(objects: Objects, epoch: int, beat: Beat) -> None:
    objects.put(_beat_name(epoch), msgspec.json.encode(beat))


def delete_beat(objects: Objects, epoch: int) -> None:
    objects.delete(_beat_name(epoch))


def read_beat(objects: Objects, epoch: int) -> Beat | None:
    """None if there is none, or none that can be read."""
    data = objects.get(_beat_name(epoch))
    try:
        return None if data is None else msgspec.json.decode(data, type=Beat)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_over(objects: Objects, epoch: int, claim: Claim | None, first: Beat | None, patience: Patience) -> bool:
    """Watch the beat: ended, of a process that is dead, or unchanged for the whole of the expiry."""
    if (first is not None and first.ended) or (claim is not None and is_gone(claim.holder)):
        return True
    end = patience.clock() + _expiry(claim)
    while patience.clock() < end:
        patience.sleep(min(_PAUSE_SECONDS, _expiry(claim) / 10))
        now = read_beat(objects, epoch)
        if now is not None and now.ended:
            return True
        if now != first:
            return False
    return True


def _let_it_notice(objects: Objects, epoch: int, claim: Claim | None, seen: Beat | None, patience: Patience) -> None:
    """A holder that woke up after our last look at it, and looked before our claim, counts on what it puts there until
    its next look, which is sooner than its expiry. Only then is what we read all that it counts on.
    """
    end = patience.clock() + _expiry(claim)
    while patience.clock() < end and not (claim is not None and is_gone(claim.holder)):
        now = read_beat(objects, epoch)
        if now == seen or (now is not None and now.ended):
            return
        patience.sleep(min(_PAUSE_SECONDS, _expiry(claim) / 10))


def _claim(objects: Objects, epoch: int, expiry_seconds: float) -> bool:
    """An answer that was lost may have been a yes: reading back tells."""
    claim = Claim(uuid.uuid4().hex, this_process(), expiry_seconds)
    name = f"{FOLDER}/{epoch:06d}"
    problem: StoreError | None = None
    for _ in range(_TRIES):
        try:
            if objects.create(name, msgspec.json.encode(claim)):
                return True
        except StoreError as error:
            problem = error
        with contextlib.suppress(StoreError):
            if objects.get(name) is not None:
                found = _read_claim(objects, epoch)
                return found is not None and found.nonce == claim.nonce
    raise problem or StoreError(f"{objects.url}: {name!r} is refused as if it were there, and is not there")


def _probe(objects: Objects) -> None:
    """Whether a second making of the same object is refused."""
    name = f"{FOLDER}/probe-{uuid.uuid4().hex}"
    objects.create(name, b"1")
    try:
        if objects.create(name, b"2"):
            raise UsageError(
                f"{objects.url}: this store makes an object twice that may only be made once, so it cannot tell two "
                "writers apart; use another store, or, if only one machine will ever write this run, say "
                "mirror.exclusive: false"
            )
    finally:
        with contextlib.suppress(StoreError):  # a probe that stays is in nobody's way
            objects.delete(name)


def _read_claim(objects: Objects, epoch: int) -> Claim | None:
    data = objects.get(f"{FOLDER}/{epoch:06d}")
    try:
        return None if data is None else msgspec.json.decode(data, type=Claim)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _expiry(claim: Claim | None) -> float:
    return claim.expiry_seconds if claim else EXPIRY_SECONDS


def _named(claim: Claim | None) -> str:
    return f" (process {claim.holder.pid} on {claim.holder.host})" if claim else ""


def _beat_name(epoch: int) -> str:
    return f"{FOLDER}/{epoch:06d}.beat"
