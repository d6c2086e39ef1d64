"""Workers that begin, spend, die and are replaced in any order never spend more than the budget of their run."""

import contextlib
from collections.abc import Callable, Iterator

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.engine import Amount
from holdfast.errors import FencedError
from holdfast.runs.shards.ledger import Ledger, LedgerEntry, LedgerOptions, ShardGrants
from holdfast.spec import RunLimits

LIMIT = 60
DEAREST = 5
WORKERS = 3
SHARDS = 5
RACES = 30


class RacingStore:
    """Entries in memory. Before one is created, another worker may act: then its writer loses the race."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.interrupt: Callable[[], None] = lambda: None

    def read_from(self, number: int) -> Iterator[bytes]:
        yield from self.entries[number - 1 :]

    def create(self, number: int, data: bytes) -> bool:
        self.interrupt()
        if len(self.entries) >= number:
            return False
        assert len(self.entries) == number - 1, "no gaps"
        self.entries.append(data)
        return True


class World:
    """A run with one limit, that of dollars. Journals survive their workers."""

    def __init__(self, chance: st.DataObject) -> None:
        self.chance = chance
        self.store = RacingStore()
        self.journals = [0.0] * SHARDS
        self.epochs = [0] * SHARDS
        self.workers: dict[int, ShardGrants] = {}
        """By shard."""
        self.allowed: dict[int, float] = {}
        self.complete: dict[str, int] = {}
        """Shards that nobody begins again, by name: the epochs of their last workers."""
        self.limits = RunLimits(cost_usd=LIMIT)
        self.busy: list[int] = []
        """Shards whose workers are writing an entry."""
        self.races = 0
        self.last: dict[str, LedgerEntry] = {}
        self.checked = 0
        self.store.interrupt = self._interrupt

    def _interrupt(self) -> None:
        self.races += 1
        if len(self.busy) < 3 and self.races < RACES and self.chance.draw(st.booleans(), label="race"):
            self.act()

    def act(self) -> None:
        actions = [self.begin] if len(self.workers) < WORKERS and self.free() else []
        actions += [self.die] if self.workers else []
        actions += [self.spend, self.spend, self.spend, self.end, self.complete_one] if self._idle() else []
        if not actions:
            return
        self.chance.draw(st.sampled_from(actions), label="action")()
        self.check()

    def _idle(self) -> list[int]:
        return sorted(self.workers.keys() - set(self.busy))

    @contextlib.contextmanager
    def _writing(self, shard: int) -> Iterator[None]:
        self.busy.append(shard)
        try:
            yield
        finally:
            self.busy.pop()

    def begin(self) -> None:
        """Also a take-over: the journal of the shard says what was spent."""
        shard = self.chance.draw(st.sampled_from(self.free()), label="shard")
        worker = self.take(shard)
        with self._writing(shard), contextlib.suppress(FencedError):  # it died, and was replaced, meanwhile
            worker.open(self.limits, Amount(self.journals[shard]))

    def free(self) -> list[int]:
        return [each for each in range(SHARDS) if each not in self.workers and _name(each) not in self.complete]

    def take(self, shard: int) -> ShardGrants:
        self.epochs[shard] += 1
        options = LedgerOptions(
            _name(shard), self.epochs[shard], lambda: True, _unknown, _dead, read_final=self._read_final
        )
        self.workers[shard] = worker = ShardGrants(Ledger(self.store, "u"), options)
        self.allowed[shard] = self.journals[shard]
        return worker

    def _read_final(self, name: str, epoch: int) -> Amount | None:
        shard = int(name.partition("/")[0]) - 1
        return Amount(self.journals[shard]) if self.complete.get(name) == epoch else None

    def spend(self) -> None:
        """One request, alone, as `Budget` sends it: while anything is left, after it has asked for more."""
        shard = self._choose()
        worker, used = self.workers[shard], self.journals[shard]
        if used + DEAREST > self.allowed[shard]:
            with self._writing(shard):
                try:
                    grant = worker.ask(self.limits, Amount(used), Amount(used + DEAREST))
                except FencedError:
                    return  # it died, and was replaced, while it asked
            if self.workers.get(shard) is not worker or self.journals[shard] != used:
                return
            self.allowed[shard] = grant.allowed.cost_usd
        if used < self.allowed[shard]:
            self.journals[shard] += self.chance.draw(st.integers(1, DEAREST), label="cost")

    def end(self) -> None:
        shard = self._choose()
        with self._writing(shard), contextlib.suppress(FencedError):
            self.workers[shard].close(Amount(self.journals[shard]))
        self.workers.pop(shard, None)

    def complete_one(self) -> None:
        """The worker ends, and cannot write that it did."""
        shard = self._choose()
        del self.workers[shard]
        self.complete[_name(shard)] = self.epochs[shard]

    def die(self) -> None:
        """Also while it writes an entry, which may arrive later."""
        self.workers.pop(self.chance.draw(st.sampled_from(sorted(self.workers)), label="dead"))

    def _choose(self) -> int:
        return self.chance.draw(st.sampled_from(self._idle()), label="worker")

    def check(self) -> None:
        """An entry that exceeds the limit says what was spent, no more."""
        assert sum(self.journals) <= LIMIT + WORKERS * DEAREST, self.journals
        for data in self.store.entries[self.checked :]:
            self.checked += 1
            entry = msgspec.json.decode(data, type=LedgerEntry)
            before = self.last.get(entry.shard)
            self.last[entry.shard] = entry
            allowed = entry.allowed.cost_usd or 0.0
            raised = allowed - (0.0 if before is None else before.allowed.cost_usd or 0.0)
            total = sum(each.allowed.cost_usd or 0.0 for each in self.last.values())
            spent = self.journals[int(entry.shard.partition("/")[0]) - 1]
            assert raised <= 0 or total <= LIMIT or allowed <= spent


def _name(shard: int) -> str:
    return f"{shard + 1}/{SHARDS}"


def _unknown(shard: str) -> Amount:
    raise AssertionError("every shard has an entry")


def _dead(shard: str) -> tuple[bool, float]:
    return False, 0.0


@given(st.data(), st.integers(10, 60))
def test_workers_in_any_order_spend_no_more_than_the_budget_and_one_answer_each(
    chance: st.DataObject, actions: int
) -> None:
    world = World(chance)
    for _ in range(actions):
        world.act()
    assert sum(world.journals) <= LIMIT + WORKERS * DEAREST


@given(st.data(), st.integers(1, 20))
def test_after_any_deaths_one_worker_can_spend_all_that_is_left(chance: st.DataObject, actions: int) -> None:
    world = World(chance)
    for _ in range(actions):
        world.act()
    world.store.interrupt = lambda: None
    world.workers.clear()  # all die
    assume(world.free())
    for shard in world.free():  # each is taken over, which returns what was not spent
        world.workers.clear()
        world.take(shard).open(world.limits, Amount(world.journals[shard]))
    for _ in range(LIMIT + DEAREST):
        world.spend()
    assert sum(world.journals) >= LIMIT
