"""How a worker finds a shard that it can claim, with few looks at shards: each look costs requests to the object store.

Shards are tried in a random order, so that two workers seldom want the same one. After a look that was in vain, one
listing of marks (`marks`) shows which shards were begun and which are complete. If all were begun, a worker watches a
few of those that are not complete, for as long as it takes to know that their worker is dead; then the next few. It
looks less often the longer it waits: a thousand workers that wait for the last shards must not flood the store. So the
number of looks grows with the shards and with the workers, never with their product.

Marks may be missing or late. Which worker gets a shard is decided when it is claimed.
"""

import itertools
import random
from collections.abc import Callable, Collection, Iterator

import msgspec

from holdfast.records import Shard

PAUSE_SECONDS = 1.0
_PAUSE_GROWTH = 1.3
_PAUSES_PER_EXPIRY = 3
_WATCHED_MAX = 10
_WATCHED_EXPIRIES = 1.5


class ShardLook(msgspec.Struct, frozen=True):
    """What one look at a shard found."""

    is_free: bool
    """Whether it could be claimed now."""
    is_complete: bool
    """Whether nothing is left to do in it."""
    is_crashed: bool = False
    """Whether a worker has begun it and recorded no end: it may hold a part of the budget that it did not spend."""


class ShardSearch:
    """The shards that one worker has to look at: it looks at each of `candidates`, and reports what it found."""

    def __init__(
        self, count: int, expiry_seconds: float, clock: Callable[[], float], chance: random.Random | None = None
    ) -> None:
        """`expiry_seconds`: after so long without a heartbeat a worker counts as dead."""
        self._count = count
        self._expiry_seconds = expiry_seconds
        self._clock = clock
        self._chance = chance or random.Random()
        self.start_over()

    def start_over(self) -> None:
        """Forget what was seen: shards that were complete may have work again."""
        numbers = list(range(1, self._count + 1))
        self._chance.shuffle(numbers)
        self._new = dict.fromkeys(Shard(each, self._count) for each in numbers)
        self._begun: dict[Shard, None] = {}
        """Those of others; the first ones are watched."""
        self._watched_since = self._learnt_at = float("-inf")
        self.pause = PAUSE_SECONDS
        """How long to wait if no candidate was free."""

    @property
    def is_over(self) -> bool:
        """Whether all shards are complete or were left out."""
        return not self._new and not self._begun

    @property
    def should_list_marks(self) -> bool:
        """Whether a listing of marks is worth its cost, after a look that was in vain."""
        is_due = self._clock() - self._learnt_at >= self._expiry_seconds
        return is_due and len(self._new) + len(self._begun) > _WATCHED_MAX

    def learn(self, begun: Collection[Shard], complete: Collection[Shard]) -> None:
        """Remember which shards are marked as begun and as complete."""
        self._learnt_at = self._clock()
        for shard in [each for each in self._new if each in begun or each in complete]:
            del self._new[shard]
            self._begun[shard] = None
        for shard in [each for each in self._begun if each in complete]:
            del self._begun[shard]

    def candidates(self, left_out: Collection[Shard] = ()) -> Iterator[Shard]:
        """The shards to look at now. `left_out`: those that this worker cannot help."""
        for shard in [each for each in left_out if each in self._new or each in self._begun]:
            self._new.pop(shard, None)
            self._begun.pop(shard, None)
        while self._new:
            shard = next(iter(self._new))
            del self._new[shard]
            self._begun[shard] = None
            yield shard
        if self._clock() - self._watched_since > _WATCHED_EXPIRIES * self._expiry_seconds:
            for shard in list(itertools.islice(self._begun, _WATCHED_MAX)):
                del self._begun[shard]
                self._begun[shard] = None
            self._watched_since = self._clock()
        yield from list(itertools.islice(self._begun, _WATCHED_MAX))
        self.pause = min(self.pause * _PAUSE_GROWTH, max(self._expiry_seconds / _PAUSES_PER_EXPIRY, PAUSE_SECONDS))

    def note(self, shard: Shard, found: ShardLook) -> bool:
        """Remember what a look has found. Returns whether the shard can be claimed."""
        if found.is_complete:
            self._begun.pop(shard, None)
            return False
        if found.is_free:
            self.pause = PAUSE_SECONDS
        return found.is_free
