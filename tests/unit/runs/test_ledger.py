"""The ledger of a sharded run: entries are decided one after another, and nobody is granted what another has."""

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.engine import Amount
from holdfast.errors import DamagedError, FencedError, StoreError
from holdfast.journal.object_store import open_objects
from holdfast.runs.shards.ledger import (
    Allowance,
    EntryStore,
    FolderEntries,
    Ledger,
    LedgerEntry,
    LedgerOptions,
    ObjectEntries,
    ShardGrants,
)
from holdfast.spec import RunLimits
from tests.e2e.commands import call, write_spec
from tests.stores import Broken, Bucket, MemoryObjects, failing_every

DAY = 86400.0


class Run:
    """A sharded run: its ledger, what the journals of its shards say, and the time."""

    def __init__(self, store: EntryStore) -> None:
        self.store = store
        self.spent: dict[str, Amount] = {}
        self.signs: dict[str, tuple[bool, float]] = {}
        self.now = 1000.0
        self.is_owner = True
        self.final: dict[tuple[str, int], Amount] = {}
        """By shard and epoch: of complete shards."""

    def worker(self, shard: str, epoch: int = 1, uid: str = "u") -> ShardGrants:
        before = {shard: self.signs.get(shard, (True, 0.0))}
        options = LedgerOptions(
            shard,
            epoch,
            is_owner=lambda: self.is_owner,
            read_spent=lambda each: self.spent.get(each, Amount()),
            read_sign=lambda each: before.get(each) or self.signs.get(each, (True, self.now)),
            begun=lambda: list(self.spent),
            read_final=lambda each, epoch: self.final.get((each, epoch)),
            clock=lambda: self.now,
        )
        return ShardGrants(Ledger(self.store, uid), options)

    def entries(self) -> list[LedgerEntry]:
        return [msgspec.json.decode(data, type=LedgerEntry) for data in self.store.read_from(1)]


def requests(count: float) -> Amount:
    return Amount(requests=count)


def grants_until_refused(worker: ShardGrants, limits: RunLimits, spent: float = 0.0) -> Iterator[float]:
    """What a worker may have spent after each grant, if it uses up all of them."""
    while True:
        allowed = worker.ask(limits, requests(spent), requests(spent + 1)).allowed.requests
        if allowed <= spent:
            return
        yield allowed
        spent = allowed


@pytest.fixture(params=["folder", "objects", "file mirror"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    if request.param == "folder":
        (tmp_path / "run").mkdir()
        return Run(FolderEntries(str(tmp_path / "run" / "grants")))
    is_mirror = request.param == "file mirror"
    return Run(ObjectEntries(open_objects((tmp_path / "mirror").as_uri()) if is_mirror else MemoryObjects()))


LIMITS = RunLimits(requests=100)


def test_one_worker_gets_all_of_a_budget_in_few_grants(run: Run) -> None:
    worker = run.worker("1/2")
    worker.open(LIMITS, requests(0))
    granted = list(grants_until_refused(worker, LIMITS))
    assert granted[0] == 25
    assert granted[-1] == 100
    assert len(run.entries()) == len(granted) + 1 < 20


def test_what_others_were_granted_is_not_granted_again_until_it_is_returned(run: Run) -> None:
    one, two = run.worker("1/2"), run.worker("2/2")
    one.open(LIMITS, requests(0))
    two.open(LIMITS, requests(0))
    first = one.ask(LIMITS, requests(0), requests(60))
    assert first.allowed.requests == 60
    assert list(grants_until_refused(two, LIMITS))[-1] == 40
    refused = two.ask(LIMITS, requests(40), requests(41))
    assert (refused.allowed.requests, refused.total.requests) == (40, 100)
    one.close(requests(50))
    assert list(grants_until_refused(two, LIMITS, 40))[-1] == 50


def test_a_takeover_returns_what_a_dead_worker_did_not_spend(run: Run) -> None:
    dead, other = run.worker("1/2"), run.worker("2/2")
    dead.open(LIMITS, requests(0))
    dead.ask(LIMITS, requests(0), requests(90))
    other.open(LIMITS, requests(0))
    assert list(grants_until_refused(other, LIMITS))[-1] == 10
    heir = run.worker("1/2", epoch=2)
    heir.open(LIMITS, requests(30))
    assert list(grants_until_refused(other, LIMITS, 10))[-1] == 70
    with pytest.raises(FencedError):  # it was only paused, and has lost its shard
        dead.ask(LIMITS, requests(31), requests(95))
    with pytest.raises(FencedError):
        dead.close(requests(31))


def test_a_worker_that_does_not_certainly_own_its_shard_gets_nothing(run: Run) -> None:
    worker = run.worker("1/2")
    worker.open(LIMITS, requests(0))
    run.is_owner = False
    with pytest.raises(FencedError):
        worker.ask(LIMITS, requests(0), requests(1))
    assert len(run.entries()) == 1


def test_what_exceeds_a_grant_counts(run: Run) -> None:
    one, two = run.worker("1/2"), run.worker("2/2")
    one.open(LIMITS, requests(0))
    one.ask(LIMITS, requests(0), requests(95))
    one.close(requests(98))
    two.open(LIMITS, requests(0))
    assert list(grants_until_refused(two, LIMITS)) == [1, 2]


def test_a_raised_limit_is_granted_and_a_lowered_one_takes_back_what_is_not_spent(run: Run) -> None:
    worker = run.worker("1/2")
    worker.open(LIMITS, requests(0))
    assert worker.ask(LIMITS, requests(0), requests(100)).allowed.requests == 100
    assert worker.ask(RunLimits(requests=300), requests(100), requests(300)).allowed.requests == 300
    assert worker.ask(RunLimits(requests=150), requests(120), requests(121)).allowed.requests == 150
    assert worker.ask(RunLimits(requests=110), requests(120), requests(121)).allowed.requests == 120


def test_every_limit_is_granted_and_what_is_not_limited_is_infinite(run: Run) -> None:
    worker, limits = run.worker("1/2"), RunLimits(requests=40, cost_usd=1.0)
    worker.open(limits, Amount())
    grant = worker.ask(limits, Amount(), Amount(0.5, 1000, 1))
    assert grant.allowed == Amount(0.5, math.inf, 10)
    assert grant.total == Amount(0.5, 0.0, 10)


def test_rests_of_rounding_are_not_granted(run: Run) -> None:
    one, two, limits = run.worker("1/2"), run.worker("2/2"), RunLimits(cost_usd=0.3)
    one.open(limits, Amount())
    one.close(Amount(0.1 + 0.2 - 1e-16))
    two.open(limits, Amount())
    assert two.ask(limits, Amount(), Amount(0.1)).allowed.cost_usd == 0.0


def test_shards_without_an_entry_count_with_their_journals(run: Run) -> None:
    run.spent = {"3/3": requests(70)}
    run.worker("2/3").open(RunLimits(), requests(0))  # without limits, so the ledger does not know what it spends
    run.spent["2/3"] = requests(20)
    worker = run.worker("1/3")
    worker.open(LIMITS, requests(0))
    assert list(grants_until_refused(worker, LIMITS))[-1] == 10


def test_entries_of_another_run_at_the_same_place_do_not_count(run: Run) -> None:
    before = run.worker("1/2", epoch=9, uid="removed")
    before.open(LIMITS, requests(0))
    before.ask(LIMITS, requests(0), requests(100))
    worker = run.worker("1/2")
    worker.open(LIMITS, requests(0))
    assert list(grants_until_refused(worker, LIMITS))[-1] == 100


def test_live_workers_are_counted_and_dead_ones_are_not(run: Run) -> None:
    workers = [run.worker(f"{number}/4") for number in (1, 2, 3)]
    for worker in workers:
        worker.open(RunLimits(), Amount())
    assert workers[0].count_workers() == 3
    run.signs["2/4"] = (False, run.now)
    assert workers[0].count_workers() == 2
    workers[2].close(Amount())
    assert workers[0].count_workers() == 1


def test_a_count_of_many_workers_looks_at_few_of_them_in_turn(run: Run) -> None:
    count = 36
    workers = [run.worker(f"{number}/{count}") for number in range(1, count + 1)]
    for worker in workers:
        worker.open(RunLimits(), Amount())
    run.signs = {f"{number}/{count}": (False, run.now) for number in range(2, count + 1)}
    assert [workers[0].count_workers() for _ in range(5)] == [26, 16, 6, 1, 1]
    run.signs = {}
    assert [workers[0].count_workers() for _ in range(4)] == [11, 21, 31, 36]


def test_time_counts_while_any_worker_works_and_pauses_do_not(run: Run) -> None:
    one, two = run.worker("1/2"), run.worker("2/2")
    assert one.open(RunLimits(), Amount()) == 0.0
    run.now += 500
    assert two.open(RunLimits(), Amount()) == 500.0  # the first is live
    run.now += 100
    one.close(Amount())
    run.now += 100
    two.ask(LIMITS, requests(0), requests(1))  # the first entry for a long time, but it has worked all the time
    run.now += 100
    two.close(Amount())
    run.now += DAY
    assert run.worker("1/2", epoch=2).open(RunLimits(), Amount()) == 800.0
    run.now += 50
    run.signs["1/2"] = (False, run.now)  # it dies now
    run.now += DAY
    assert run.worker("1/2", epoch=3).open(RunLimits(), Amount()) == 850.0
    run.now += 10
    assert run.worker("2/2", epoch=2).open(RunLimits(), Amount()) == 860.0


def test_of_two_writers_of_one_number_one_wins_and_the_other_knows_it(run: Run) -> None:
    ledgers, begin, won = [Ledger(run.store, "u") for _ in range(2)], threading.Barrier(2), [False, False]

    def write(which: int, number: int) -> None:
        begin.wait()
        won[which] = ledgers[which].append(
            LedgerEntry("", "", f"{which}/2", number, 0.0, Allowance(requests=which), open=True)
        )

    for number in range(1, 201):
        threads = [threading.Thread(target=write, args=(which, number)) for which in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(won) == [False, True]
        ledgers[won.index(False)].read()
        assert ledgers[0].last == ledgers[1].last
        assert ledgers[0].last is not None
        assert (ledgers[0].last.epoch, ledgers[0].last.allowed.requests) == (number, won.index(True))
    assert len(run.entries()) == 200


def test_an_entry_that_cannot_be_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runs.shards.ledger._TRY_SECONDS", 0.001)
    run = Run(FolderEntries(str(tmp_path)))
    (tmp_path / "000001").write_bytes(b'{"nonce"')
    with pytest.raises(DamagedError, match="remove the folder grants"):
        run.worker("1/2").open(LIMITS, requests(0))


def test_a_file_system_without_links_has_a_ledger_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(old: str, new: str) -> None:
        raise PermissionError(1, "no links")

    monkeypatch.setattr("holdfast.files.link", refuse)
    run = Run(FolderEntries(str(tmp_path)))
    worker = run.worker("1/2")
    worker.open(LIMITS, requests(0))
    assert list(grants_until_refused(worker, LIMITS))[-1] == 100
    assert not run.store.create(1, b"another")
    assert not list(tmp_path.glob(".*"))


def test_workers_that_ask_at_once_share_a_budget_in_a_real_store(bucket: Bucket) -> None:
    """Each with connections of its own, as on machines of their own."""
    got: dict[str, float] = {}

    def work(shard: str) -> None:
        worker = Run(ObjectEntries(open_objects(f"{bucket.url}/run"))).worker(shard)
        worker.open(LIMITS, requests(0))
        got[shard] = max(grants_until_refused(worker, LIMITS), default=0.0)

    threads = [threading.Thread(target=work, args=(f"{number}/3",)) for number in (1, 2, 3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sum(got.values()) == 100
    late = Run(ObjectEntries(open_objects(f"{bucket.url}/run")))
    names = [each.name for each in open_objects(f"{bucket.url}/run").listed("grants")]
    assert sorted(names) == [f"grants/{number:06}" for number in range(1, len(late.entries()) + 1)]
    heir = late.worker("1/3", epoch=2)
    heir.open(LIMITS, requests(got["1/3"]))
    assert list(grants_until_refused(heir, LIMITS, got["1/3"])) == []


def test_an_entry_whose_creation_was_reported_as_failed_counts_once() -> None:
    objects = MemoryObjects()
    run = Run(ObjectEntries(Broken(objects, failing_every(2, ("create",), "mumble"))))
    worker = run.worker("1/2")
    worker.open(LIMITS, requests(0))
    granted = list(grants_until_refused(worker, LIMITS))
    assert granted[-1] == 100
    assert len(objects.held) == len(granted) + 1


def test_a_worker_that_has_ended_gets_no_grant_that_arrives_late(run: Run) -> None:
    worker = run.worker("1/2")
    worker.open(LIMITS, requests(0))
    worker.close(requests(0))
    with pytest.raises(StoreError):
        worker.ask(LIMITS, requests(0), requests(1))
    assert [entry.open for entry in run.entries()] == [True, False]


def test_a_worker_whose_heartbeat_is_late_at_the_end_returns_its_grant(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beat(seconds: float) -> None:
        run.is_owner = True

    worker = run.worker("1/2")
    worker.open(LIMITS, requests(0))
    worker.ask(LIMITS, requests(0), requests(60))
    monkeypatch.setattr("holdfast.runs.shards.ledger.time.sleep", beat)
    run.is_owner = False
    worker.close(requests(3))
    assert [(entry.open, entry.allowed.requests) for entry in run.entries()][-1] == (False, 3)


def test_a_grant_that_could_not_be_returned_is_returned_by_another_try(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int, data: bytes) -> bool:
        raise StoreError("away")

    worker = run.worker("1/2")
    worker.open(LIMITS, requests(0))
    worker.ask(LIMITS, requests(0), requests(60))
    with monkeypatch.context() as away:
        away.setattr(run.store, "create", fail)
        with pytest.raises(StoreError):
            worker.close(requests(3))
    worker.close(requests(3))
    assert [entry.open for entry in run.entries()] == [True, True, False]


def test_what_a_complete_shard_did_not_spend_is_returned_by_another_worker(run: Run) -> None:
    """Its worker was cut off from the store when it ended. Nobody claims the shard again."""
    run.worker("1/3").open(LIMITS, requests(0))
    ended, cut_off, other = (run.worker(f"{number}/3") for number in (1, 2, 3))
    for worker in (cut_off, other):
        worker.open(LIMITS, requests(0))
    ended.ask(LIMITS, requests(0), requests(40))
    cut_off.ask(LIMITS, requests(0), requests(30))
    assert list(grants_until_refused(other, LIMITS))[-1] == 30
    run.final["1/3", 1] = requests(10)
    assert list(grants_until_refused(other, LIMITS, 30))[-1] == 60
    assert {entry.shard: entry.open for entry in run.entries()} == {"1/3": False, "2/3": True, "3/3": True}
    before = len(run.entries())
    ended.close(requests(10))
    assert len(run.entries()) == before


def test_a_shard_that_has_another_worker_now_is_not_settled(run: Run) -> None:
    """It was completed, and a round for failed samples has begun."""
    ended, other = run.worker("1/2"), run.worker("2/2")
    ended.open(LIMITS, requests(0))
    other.open(LIMITS, requests(0))
    ended.ask(LIMITS, requests(0), requests(80))
    run.final["1/2", 1] = requests(80)
    heir = run.worker("1/2", epoch=2)
    heir.open(LIMITS, requests(80))
    heir.ask(LIMITS, requests(80), requests(90))
    assert list(grants_until_refused(other, LIMITS))[-1] == 10
    assert run.entries()[-1].shard == "2/2"


@pytest.mark.parametrize("has_mirror", [False, True], ids=["one store", "mirror"])
def test_a_run_uses_all_of_its_budget_although_a_grant_was_not_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_mirror: bool
) -> None:
    samples, model = 24, {"name": "m", "provider": "mock", "options": {"reply": "8"}}
    mirror: dict[str, Any] = {"mirror": {"url": (tmp_path / "mirror").as_uri(), "seconds": 0.1}} if has_mirror else {}
    write_spec(tmp_path, samples, models=[model], limits={"run": {"requests": samples}}, **mirror)

    def work(shard: str, store: str) -> int:
        place = ("--this-host",) if not has_mirror else ()
        command = ("run", tmp_path / "eval.yaml", "--id", "x", "--shard", shard, "--store", tmp_path / store, *place)
        return call(*command, cwd=tmp_path).code

    with monkeypatch.context() as cut_off:
        cut_off.setattr(ShardGrants, "close", lambda self, spent: None)
        assert work("1/2", "one") == 0
    grants = (tmp_path / "mirror" / "sums" / "x" if has_mirror else tmp_path / "one" / "sums" / "x") / "grants"
    assert [entry.open for entry in Run(FolderEntries(str(grants))).entries()][-1]
    assert work("2/2", "two" if has_mirror else "one") == 0
