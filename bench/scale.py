"""What do 1,000 workers and 10,000 shards ask of an object store, and is every shard completed exactly once?

A simulation: the store is in memory and every request takes some milliseconds of a simulated clock, but the code that
chooses, claims, watches and takes over shards is the real one (`ShardSearch`, `observe_claim`,
`take_epoch`, `write_beat`). Each worker is a thread; one thread runs at a time, the one whose next moment comes first,
so every interleaving of requests can happen. Workers die and freeze at random; a dead one is replaced after a minute.

Then the real merger joins 10,000 journals, and a real worker with a mirror is counted, for what the simulation leaves
out: the requests that records and files need.

`python -m bench.scale 100 1000` for other numbers of workers and shards.
"""

import array
import collections
import functools
import heapq
import itertools
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from bench.looking import make_run
from bench.measure import SEED, scratch
from bench.outcome import Verdict, at_most, print_table, print_verdicts, save
from holdfast.errors import HeldError
from holdfast.journal import (
    BEATS,
    EXPIRY_SECONDS,
    Beat,
    CopyWriter,
    Entry,
    Reader,
    TakeoverTiming,
    epochs_in,
    list_leases,
    observe_claim,
    take_epoch,
    write_beat,
)
from holdfast.journal.object_store import ObjectInfo
from holdfast.journal.ownership.lease import Holder, Lease
from holdfast.records import Shard
from holdfast.runs.shards.merger import Merger, MergeSource, NumberFile
from holdfast.runs.shards.search import ShardLook, ShardSearch

WORKERS = 1_000
SHARDS = 10_000
_SHARD_SECONDS = 120.0
"""How long a shard takes, on average. Longer ones need more beats, and no more claims."""
_LATENCY_SECONDS = {"get": 0.02, "put": 0.03, "list": 0.04, "delete": 0.02}
_DIES = 0.02
_FREEZES = 0.01
"""The chance of each shard that its worker dies, or stops for a while and continues (a partition, a paused machine)."""
_REPLACED_SECONDS = 60.0
_PAGE = 1_000
"""So many names are in the answer to one list request."""
_JOURNALS = 20
_MERGED_SAMPLES = 10
_HOLDER = Holder(1, "simulated")
_FEW_SHARDS, _MORE_SHARDS = 2, 22
_COUNTED_RUN = """
import collections, json, sys
from holdfast.journal.object_store import StoredObjects

counts = collections.Counter()

def count(name, kind):
    send = getattr(StoredObjects, name)
    def counted(self, *arguments):
        counts[kind] += 1
        return send(self, *arguments)
    setattr(StoredObjects, name, counted)

kinds = {"get": "get", "pieces": "get", "put": "put", "put_file": "put", "create": "put", "delete": "delete"}
for name, kind in {**kinds, "listed": "list", "folders": "list"}.items():
    count(name, kind)
from holdfast.cli.main import main
path = sys.argv.pop(1)
try:
    main()
finally:
    with open(path, "w") as file:
        json.dump(counts, file)
"""
"""Counts the requests of a worker that ends within one heartbeat."""


class Clock:
    """Simulated time for many threads, of which one runs at a time: the one whose next moment comes first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, threading.Semaphore]] = []
        self._numbers = itertools.count()
        self._mine = threading.local()
        self._over = threading.Event()
        self.failed: list[BaseException] = []

    def __call__(self) -> float:
        return self.now

    def start(self, work: Callable[[], None], delay: float = 0.0) -> None:
        baton = threading.Semaphore(0)

        def live() -> None:
            baton.acquire()
            self._mine.baton = baton
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again by `run`
                self.failed.append(error)
            self._pass_on()

        self._push(delay, baton)
        threading.Thread(target=live, daemon=True).start()

    def sleep(self, seconds: float) -> None:
        baton = self._mine.baton
        self._push(seconds, baton)
        if self._pop() is not baton:
            baton.acquire()

    def run(self) -> None:
        """Until every thread has ended. Raises what one of them has raised."""
        self._pass_on()
        self._over.wait()
        if self.failed:
            raise self.failed[0]

    def _push(self, delay: float, baton: threading.Semaphore) -> None:
        heapq.heappush(self._waiting, (self.now + delay, next(self._numbers), baton))

    def _pop(self) -> threading.Semaphore:
        """The next one to run. It is woken, unless it is the caller."""
        self.now, _, baton = heapq.heappop(self._waiting)
        if baton is not getattr(self._mine, "baton", None):
            baton.release()
        return baton

    def _pass_on(self) -> None:
        self._mine.baton = None
        if self._waiting and not self.failed:
            self._pop()
        else:
            self._over.set()


class Store:
    """All objects, by the folder of a shard and their name in it, and how often each kind of request was made."""

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self.clock = clock
        self.requests: collections.Counter[str] = collections.Counter()
        self.folders: dict[str, dict[str, bytes]] = collections.defaultdict(dict)
        self.begun: set[Shard] = set()
        self.complete: set[Shard] = set()
        self._chance = chance

    def wait(self, kind: str) -> None:
        """A request is on its way: others may be answered before it."""
        self.requests[kind] += 1
        self.clock.sleep(_LATENCY_SECONDS[kind] * self._chance.uniform(0.5, 2.0))


class ShardObjects:
    """The objects of one shard, as one worker reaches them. What it does takes effect when the request arrives."""

    def __init__(self, store: Store, folder: str, worker: str) -> None:
        self._store = store
        self._held = store.folders[folder]
        self.url = f"simulated://{worker}/{folder}"  # what a worker has seen is remembered by URL

    def put(self, name: str, data: bytes) -> None:
        self._store.wait("put")
        self._held[name] = data

    def put_file(self, name: str, path: str) -> None:
        self.put(name, Path(path).read_bytes())

    def create(self, name: str, data: bytes) -> bool:
        self._store.wait("put")
        return self._held.setdefault(name, data) is data

    def get(self, name: str, first: int = 0, last: int | None = None) -> bytes | None:
        self._store.wait("get")
        data = self._held.get(name)
        return None if data is None else data[first:last]

    def pieces(self, name: str) -> Iterator[bytes]:
        yield self.get(name) or b""

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        """Everything is below `lease/` here."""
        self._store.wait("list")
        return map(_object_info, list(self._held))

    def folders(self, prefix: str) -> list[str]:
        return sorted({each.name.split("/")[1] for each in self.listed(prefix)})

    def delete(self, name: str) -> None:
        self._store.wait("delete")
        self._held.pop(name, None)


@functools.cache
def _object_info(name: str) -> ObjectInfo:
    """Nothing here depends on sizes."""
    return ObjectInfo(name, 0)


class Marks:
    """As `ShardMarks`: the same requests, but a thousand workers share one set of names that are already parsed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add_begun(self, shard: Shard) -> None:
        self._store.wait("put")
        self._store.begun.add(shard)

    def add_complete(self, shard: Shard) -> None:
        self._store.wait("put")
        self._store.complete.add(shard)

    def read(self) -> tuple[set[Shard], set[Shard]]:
        for _ in range(0, len(self._store.begun) + len(self._store.complete) + 1, _PAGE):
            self._store.wait("list")
        return self._store.begun, self._store.complete


class Story(msgspec.Struct):
    """What has happened."""

    completed: collections.Counter[int] = msgspec.field(default_factory=collections.Counter)
    looks: int = 0
    claims: int = 0
    lost_races: int = 0
    deaths: int = 0
    fenced: int = 0
    died_at: dict[int, float] = msgspec.field(default_factory=dict)
    takeovers: list[float] = msgspec.field(default_factory=list)
    begun: set[int] = msgspec.field(default_factory=set)
    all_begun_at: float = 0.0
    """From then on, workers have nothing to do but to take over."""
    beats: int = 0


class Worker:
    """One worker: the loop of `holdfast run --shards`, without samples."""

    def __init__(self, store: Store, story: Story, count: int, number: int) -> None:
        self._store, self._story, self._count = store, story, count
        self._name = f"worker-{number}"
        self._chance = random.Random(SEED + number)
        self._clock = store.clock
        self._search = ShardSearch(count, EXPIRY_SECONDS, self._clock, self._chance)
        self._marks = Marks(store)

    def work(self) -> None:
        while not self._search.is_over:
            if not self._work_once():
                self._clock.sleep(self._search.pause)

    def _work_once(self) -> bool:
        """Look for a shard and work on it. False if there is none to claim now."""
        for shard in self._search.candidates():
            if self._search.note(shard, self._look(shard)):
                self._marks.add_begun(shard)
                self._claim(shard)
                return True
            if self._search.should_list_marks:
                self._search.learn(*self._marks.read())
        return False

    def _objects(self, shard: Shard) -> ShardObjects:
        return ShardObjects(self._store, shard.folder, self._name)

    def _look(self, shard: Shard) -> ShardLook:
        self._story.looks += 1
        is_free, beat = observe_claim(self._objects(shard), self._clock)
        end = beat.lease.end if beat is not None and beat.lease is not None else ""
        if end == "run.completed":
            self._marks.add_complete(shard)
        return ShardLook(is_free, end == "run.completed")

    def _claim(self, shard: Shard) -> None:
        objects, story = self._objects(shard), self._story
        try:
            epoch = take_epoch(objects, 1, TakeoverTiming(EXPIRY_SECONDS, self._clock, self._clock.sleep))
        except HeldError:
            story.lost_races += 1
            return
        story.claims += 1
        if shard.number not in story.begun:
            story.begun.add(shard.number)
            story.all_begun_at = self._clock.now
        elif shard.number in story.died_at:
            story.takeovers.append(self._clock.now - max(story.died_at.pop(shard.number), story.all_begun_at))
        self._answer(shard, objects, epoch)

    def _answer(self, shard: Shard, objects: ShardObjects, epoch: int) -> None:
        seconds = self._chance.gammavariate(2, _SHARD_SECONDS / 2)
        fate = self._chance.random()
        bad_moment = self._chance.uniform(0, seconds) if fate < _DIES + _FREEZES else seconds + 1
        began = self._clock.now
        for count in itertools.count(1):
            left = began + seconds - self._clock.now
            if self._clock.now - began >= bad_moment:
                if fate < _DIES:
                    self._story.deaths += 1
                    self._story.died_at[shard.number] = self._clock.now
                    raise _DeathError
                bad_moment = seconds + 1e9
                self._clock.sleep(self._chance.uniform(0.5, 3) * EXPIRY_SECONDS)
            end = "run.completed" if left <= 0 else ""
            lease = Lease(_HOLDER, epoch, count, self._clock.now, began, 60.0, end=end)
            self._story.beats += 1
            write_beat(objects, epoch, Beat(count, bool(end), lease=lease))
            if max(epochs_in(list_leases(objects))) > epoch:
                self._story.fenced += 1
                return
            if end:
                self._story.completed[shard.number] += 1
                self._marks.add_complete(shard)
                return
            self._clock.sleep(min(EXPIRY_SECONDS / BEATS, max(left, 0.1)))


class _DeathError(Exception):
    """The process is gone: it writes nothing more."""


class Simulated(msgspec.Struct, frozen=True):
    """Figures of one simulation."""

    workers: int
    shards: int
    hours: float
    requests: dict[str, int]
    looks: int
    claims: int
    lost_races: int
    deaths: int
    fenced: int
    takeover_median: float
    takeover_worst: float
    cpu_seconds: float

    beats: int

    @property
    def search_requests(self) -> float:
        """Requests per shard to find, claim and take over shards: all but those of heartbeats, a put and a list."""
        return (sum(self.requests.values()) - 2 * self.beats) / self.shards


def simulate(workers: int, shards: int) -> Simulated:
    """RuntimeError if a shard was not completed exactly once."""
    threading.stack_size(256 * 1024)
    clock, story = Clock(), Story()
    store = Store(clock, random.Random(SEED))
    numbers = itertools.count(1)

    def live() -> None:
        """A worker, and after its death its successor."""
        try:
            Worker(store, story, shards, next(numbers)).work()
        except _DeathError:
            clock.start(live, _REPLACED_SECONDS)

    began = time.process_time()
    for number in range(workers):
        clock.start(live, number * 0.05)
    clock.run()
    wrong = [number for number in range(1, shards + 1) if story.completed[number] != 1]
    if wrong:
        raise RuntimeError(f"{len(wrong)} shards were not completed exactly once, such as {wrong[:5]}")
    times = story.takeovers or [0.0]
    return Simulated(
        workers,
        shards,
        clock.now / 3600,
        dict(store.requests),
        story.looks,
        story.claims,
        story.lost_races,
        story.deaths,
        story.fenced,
        statistics.median(times),
        max(times),
        time.process_time() - began,
        story.beats,
    )


def count_requests(folder: str) -> dict[str, float]:
    """Requests per shard of a real worker with a mirror: claim, plan, data, records, end. Heartbeats come on top."""
    found: list[dict[str, int]] = []
    for shards in (_FEW_SHARDS, _MORE_SHARDS):
        place = Path(folder, str(shards))
        place.mkdir()
        make_run(str(place), _JOURNALS * _MERGED_SAMPLES, run=False)
        run = ["run", "spec.json", "--id", "r", "--shards", str(shards)]
        mirror = ["--set", f"mirror={{url: '{(place / 'mirror').as_uri()}'}}"]
        command = [sys.executable, "-c", _COUNTED_RUN, "counts.json", *run, *mirror]
        subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found.append(msgspec.json.decode((place / "counts.json").read_bytes()))
    few, more = found
    return {kind: (more[kind] - few.get(kind, 0)) / (_MORE_SHARDS - _FEW_SHARDS) for kind in more}


class Joined(msgspec.Struct, frozen=True):
    """What it cost to merge many journals."""

    shards: int
    records: int
    cpu_seconds: float


def join(folder: str, shards: int) -> Joined:
    """Merge `shards` journals: real ones of a small run, each of them many times, with ordinals of its own each time.
    RuntimeError if an answer is missing or two have the same ordinal.
    """
    make_run(folder, _JOURNALS * _MERGED_SAMPLES, run=False)
    command = [sys.executable, "-m", "holdfast", "run", "spec.json", "--id", "r", "--shards", str(_JOURNALS)]
    subprocess.run(
        [*command, "--this-host"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    found = sorted(Path(folder, "runs", "default", "r", "shards").glob("*/journal"))
    answers = [
        sum(isinstance(each, Entry) and each.line.t == "sample.finished" for each in Reader(str(path)).read())
        for path in found
    ]
    os.mkdir(os.path.join(folder, "merged"))
    began, planned, records = time.process_time(), 0, 0
    writer = CopyWriter(os.path.join(folder, "merged"), "f" * 32)
    merger = Merger(writer, {})
    for number in range(shards):
        which = number % len(found)
        numbers = NumberFile(os.path.join(folder, "numbers"), 0)
        ordinals = NumberFile(os.path.join(folder, "ordinals"), 0)
        ordinals.extend(array.array("Q", range(planned, planned + answers[which])))
        planned += answers[which]
        source = MergeSource(f"shard {number}", numbers, ordinals)
        for each in Reader(str(found[which])).read():
            if isinstance(each, Entry):
                merger.add(source, each)
                records += 1
        numbers.close()
        ordinals.close()
    writer.close(sealed=True)
    used = time.process_time() - began
    _check(os.path.join(folder, "merged"), planned)
    return Joined(shards, records, used)


class _Answer(msgspec.Struct):
    o: int


def _check(journal: str, planned: int) -> None:
    decoder = msgspec.json.Decoder(_Answer)
    seen = bytearray(planned)
    for each in Reader(journal).read():
        if isinstance(each, Entry) and each.line.t == "sample.finished":
            seen[decoder.decode(each.line.d).o] += 1
    if seen.count(1) != planned:
        raise RuntimeError(f"{planned - seen.count(1)} of {planned} answers are missing or there twice")


def main(workers: int = WORKERS, shards: int = SHARDS) -> list[Verdict]:
    sizes = sorted({(max(workers // 100, 2), max(shards // 100, 10)), (workers // 10, shards // 10), (workers, shards)})
    found = [simulate(*size) for size in sizes]
    with scratch("scale") as folder:
        counted = count_requests(folder)
        joined = join(folder, shards)
    _print(found, joined)
    kinds = ", ".join(f"{counted[kind]:.1f} {kind}" for kind in sorted(counted))
    print(f"  a real worker with a mirror, requests per shard without heartbeats: {kinds}")
    largest = found[-1]
    grown = largest.search_requests / found[0].search_requests
    verdicts = [
        at_most(f"scale: requests to find and claim a shard of {shards:,}", largest.search_requests, 150),
        at_most(f"scale: their growth from {sizes[0][1]:,} to {shards:,} shards", grown, 10),
        at_most("scale: median seconds until a dead worker's shard is taken over", largest.takeover_median, 90),
        at_most("scale: merge, CPU ms per record", joined.cpu_seconds / joined.records * 1e3, 0.1),
    ]
    save("scale", {"simulated": found, "real_worker": counted, "merged": joined}, verdicts)
    return verdicts


def _print(found: list[Simulated], joined: Joined) -> None:
    def row(name: str, value: Callable[[Simulated], float], digits: int = 0) -> list[str]:
        return [name, *(f"{value(each):,.{digits}f}" for each in found)]

    def per_hour(kind: str) -> Callable[[Simulated], float]:
        return lambda each: each.requests.get(kind, 0) / each.workers / each.hours

    rows = [
        row("simulated hours", lambda each: each.hours, 2),
        row("looks per shard", lambda each: each.looks / each.shards, 1),
        row("requests per shard, without heartbeats", lambda each: each.search_requests, 1),
        row("requests per second, all workers", lambda each: sum(each.requests.values()) / each.hours / 3600, 1),
        *(row(f"{kind} per worker and hour", per_hour(kind)) for kind in _LATENCY_SECONDS),
        row("claims lost to another worker", lambda each: each.lost_races),
        row("deaths", lambda each: each.deaths),
        row("workers that froze and had lost their shard", lambda each: each.fenced),
        row("takeover after a death, median s", lambda each: each.takeover_median),
        row("takeover after a death, worst s", lambda each: each.takeover_worst),
        row("CPU s of the simulation", lambda each: each.cpu_seconds, 1),
    ]
    sizes = [f"{each.workers:,} workers, {each.shards:,} shards" for each in found]
    print_table("simulated workers, real claims; every shard was completed exactly once", ["", *sizes], rows)
    per_shard, per_record = joined.cpu_seconds / joined.shards * 1e3, joined.cpu_seconds / joined.records * 1e6
    print(
        f"\n  merging {joined.shards:,} journals with {joined.records:,} records: {joined.cpu_seconds:.1f} CPU s, "
        f"{per_shard:.2f} ms per shard, {per_record:.0f} us per record"
    )


if __name__ == "__main__":
    print_verdicts(main(*map(int, sys.argv[1:])))
