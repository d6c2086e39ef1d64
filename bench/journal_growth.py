"""Does saving get dearer as a run grows, and how long does it take to open a journal after a crash?

A child process appends 1 KB records, measures the CPU time of an append after 1,000 and after 1,000,000 records, and
dies without closing; a bare file is measured beside it. Then the journal it left is opened again, many times, from
hard-linked copies: with 1,000 records, with one full segment, with 1,000,000 records; with the files in memory and
dropped from it. The limit of opening is reading the last segment once and hashing it.

Targets: an append costs the same after 1,000,000 records; opening costs one segment, however long the run.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import xxhash

from bench.content import RUN_UID, key, payloads
from bench.measure import SEED, Spread, cpu_by_thread, forget_cached, paired_ratio, scratch
from bench.outcome import Verdict, at_most, print_table, print_verdicts, save
from bench.peers import GroupCommit, RawFile
from holdfast.journal import OS_DISK, SEGMENT_BYTES, OpenRequest, Writer, journal_folder, open_writer, seal
from holdfast.records import Draft, draft

PRODUCERS = 256
FEW, MANY = 1_000, 1_000_000
WINDOW = PRODUCERS * 16
WINDOWS = 11
OPENINGS = 5
RECORD_BYTES = 1_000
_CRASHED = 9
_PIECE_BYTES = 1 << 20
_POOL = 4096  # more than a compressed frame holds: no text comes twice in one


class Log(Protocol):
    """Saves record number `index` of a pool, durably."""

    async def append(self, index: int) -> None: ...

    async def close(self) -> None: ...


Append = Callable[[int], Awaitable[None]]
OpenLog = Callable[[str], Awaitable[Log]]


class Cost(msgspec.Struct, frozen=True):
    """CPU microseconds of one append, by thread: the mean of one window of appends."""

    loop: float
    writer: float

    @property
    def total(self) -> float:
        return self.loop + self.writer


class Costs(msgspec.Struct, frozen=True):
    """Window by window, in a short log and in a long one."""

    few: list[Cost]
    many: list[Cost]


class Opening(msgspec.Struct, frozen=True):
    """What it takes to open one journal. `limit` reads and hashes its last segment."""

    records: int
    last_segment_bytes: int
    warm_seconds: list[float]
    cold_seconds: list[float]
    cpu_seconds: list[float]
    limit_seconds: list[float]


class Figures(msgspec.Struct, frozen=True):
    journal: Costs
    raw: Costs
    openings: dict[str, Opening]
    seal_seconds: list[float]


# What a child process does: fill, measure, die.


def make_drafts() -> list[Draft]:
    return [draft("step", data, key(n)) for n, data in enumerate(payloads(SEED, _POOL, RECORD_BYTES))]


async def append_many(append: Append, records: int) -> None:
    async def produce(producer: int) -> None:
        for index in range(producer, records, PRODUCERS):
            await append(index)

    await asyncio.gather(*(produce(producer) for producer in range(PRODUCERS)))


async def measure_cost(append: Append) -> Cost:
    before = cpu_by_thread()
    await append_many(append, WINDOW)
    after = cpu_by_thread()
    used = {name: (after[name] - before[name]) / WINDOW * 1e6 for name in before}
    return Cost(used["MainThread"], sum(value for name, value in used.items() if name.endswith("-writer")))


async def measure_costs(open_log: OpenLog, settle: Callable[[], Awaitable[None]]) -> Costs:
    """A log of 1,000,000 records, and ever new ones of 1,000, take turns."""
    few, many = [], []
    long = await open_log("long")
    await append_many(long.append, MANY)
    await settle()
    for window in range(WINDOWS):
        short = await open_log(f"short{window}")
        await append_many(short.append, FEW)
        few.append(await measure_cost(short.append))
        await short.close()
        many.append(await measure_cost(long.append))
    return Costs(few, many)


async def settle_sealing(run: str) -> None:
    """Wait until compression has caught up, so that only appending is measured."""
    journal = journal_folder(run)
    while sum(name.endswith(".jsonl") for name in os.listdir(journal)) > 1:  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0.05)


class _Journal:
    def __init__(self, writer: Writer, drafts: Sequence[Draft]) -> None:
        self._writer = writer
        self._drafts = drafts

    async def append(self, index: int) -> None:
        await self._writer.append(self._drafts[index % _POOL])

    async def close(self) -> None:
        await self._writer.close()


class _Raw:
    def __init__(self, path: str, drafts: Sequence[Draft]) -> None:
        self._group = GroupCommit(RawFile(path))
        self._lines = [record.d for record in drafts]

    async def append(self, index: int) -> None:
        await self._group.append(self._lines[index % _POOL])

    async def close(self) -> None:
        await self._group.close()


async def fill(folder: str, records: int) -> Costs | None:
    """Leave a journal, folder/long, open with so many records; with MANY of them, measure as well."""
    drafts = make_drafts()

    async def open_log(name: str) -> Log:
        run = os.path.join(folder, name)
        os.mkdir(run)
        return _Journal(await open_writer(run, OpenRequest(RUN_UID)), drafts)

    if records < MANY:
        await append_many((await open_log("long")).append, records)
        return None
    return await measure_costs(open_log, lambda: settle_sealing(os.path.join(folder, "long")))


async def fill_raw(folder: str) -> Costs:
    drafts = make_drafts()

    async def open_log(name: str) -> Log:
        return _Raw(os.path.join(folder, name), drafts)

    async def settle() -> None:
        await asyncio.sleep(0)

    return await measure_costs(open_log, settle)


async def run_and_die(what: str, folder: str, records: int) -> None:
    """End as a crash does: nothing is closed, no thread is asked to finish."""
    costs = await (fill_raw(folder) if what == "raw" else fill(folder, records))
    sys.stdout.buffer.write(msgspec.json.encode(costs))
    sys.stdout.buffer.flush()
    os._exit(_CRASHED)


def run_child(what: str, place: str, records: int) -> bytes:
    command = [sys.executable, "-m", "bench.journal_growth", what, place, str(records)]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=Path(__file__).resolve().parents[1], check=False)
    if done.returncode != _CRASHED:
        raise RuntimeError(f"the child that fills {place} ended with {done.returncode} and not as planned")
    return done.stdout


# What the parent does with the journal that was left.


def measure_openings(run: str, records: int) -> Opening:
    last = sorted(Path(journal_folder(run)).glob("*.jsonl"))[-1]
    warm, cold, cpu, limit = [], [], [], []
    for _ in range(OPENINGS):
        seconds, used = open_copy(run, cold=False)
        warm.append(seconds)
        cpu.append(used)
        limit.append(_read_and_hash(last))
        cold.append(open_copy(run, cold=True)[0])
    return Opening(records, last.stat().st_size, warm, cold, cpu, limit)


def open_copy(run: str, *, cold: bool) -> tuple[float, float]:
    """Open a copy of the journal and throw it away. Returns wall and CPU seconds."""
    copy = f"{run}.copy"
    shutil.copytree(run, copy, copy_function=os.link)
    if cold:
        forget_cached(copy)
    else:
        _read_and_hash(sorted(Path(journal_folder(copy)).glob("*.jsonl"))[-1])
    try:
        return asyncio.run(_open(copy))
    finally:
        shutil.rmtree(copy)


async def _open(run: str) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    writer = await open_writer(run, OpenRequest(RUN_UID))
    taken = time.perf_counter() - wall, time.process_time() - cpu
    if writer.damage:
        raise RuntimeError(f"the journal in {run} is damaged: {writer.damage}")
    await writer.close()
    return taken


def _read_and_hash(path: Path) -> float:
    began = time.perf_counter()
    digest = xxhash.xxh3_64()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return time.perf_counter() - began


def measure_seal(run: str) -> list[float]:
    """What sealing the last segment before going on would add to an opening."""
    seconds = []
    for _ in range(OPENINGS):
        copy = f"{run}.copy"
        shutil.copytree(run, copy, copy_function=os.link)
        began = time.perf_counter()
        seal(OS_DISK, journal_folder(copy), 1)
        seconds.append(time.perf_counter() - began)
        shutil.rmtree(copy)
    return seconds


def measure() -> Figures:
    with scratch("growth") as folder:
        runs = {"few": FEW, "one full segment": SEGMENT_BYTES // (RECORD_BYTES + 130), "many": MANY}
        openings: dict[str, Opening] = {}
        output = b""
        for name, records in runs.items():
            place = os.path.join(folder, name)
            os.mkdir(place)
            output = run_child("journal", place, records)
            openings[name] = measure_openings(os.path.join(place, "long"), records)
        sealing = measure_seal(os.path.join(folder, "one full segment", "long"))
        os.mkdir(os.path.join(folder, "raw"))
        raw = run_child("raw", os.path.join(folder, "raw"), MANY)
        return Figures(msgspec.json.decode(output, type=Costs), msgspec.json.decode(raw, type=Costs), openings, sealing)


def _totals(costs: Sequence[Cost]) -> list[float]:
    return [cost.total for cost in costs]


def _cost_row(name: str, costs: Costs) -> list[str]:
    return [
        name,
        Spread.of(_totals(costs.few)).show(2),
        Spread.of(_totals(costs.many)).show(2),
        f"{Spread.of([cost.writer for cost in costs.few]).median:.2f}",
        f"{Spread.of([cost.writer for cost in costs.many]).median:.2f}",
        paired_ratio(_totals(costs.many), _totals(costs.few)).show(2),
        f"{_growth(costs):.2f}",
    ]


def _growth(costs: Costs) -> float:
    """Least disturbed window to least disturbed window: other work on the machine only ever adds CPU time."""
    return min(_totals(costs.many)) / min(_totals(costs.few))


def _opening_row(name: str, opening: Opening) -> list[str]:
    warm, limit = Spread.of(opening.warm_seconds), Spread.of(opening.limit_seconds)
    return [
        f"{name} ({opening.records:,})",
        f"{opening.last_segment_bytes / 2**20:.1f}",
        warm.show(1, 1e3),
        Spread.of(opening.cpu_seconds).show(1, 1e3),
        Spread.of(opening.cold_seconds).show(1, 1e3),
        limit.show(1, 1e3),
        f"{warm.median / limit.median:.1f}",
    ]


def _print(figures: Figures) -> None:
    header = [
        "log",
        f"after {FEW:,}",
        f"after {MANY:,}",
        f"writer, {FEW:,}",
        f"writer, {MANY:,}",
        "ratio",
        "of the lowest",
    ]
    rows = [_cost_row("journal", figures.journal), _cost_row("raw", figures.raw)]
    print_table(f"CPU us of one append of {RECORD_BYTES:,} bytes, ready-made: median (low..high)", header, rows)
    header = ["journal", "last MiB", "open ms", "CPU ms", "open ms, cold", "read+hash ms", "x limit"]
    rows = [_opening_row(name, each) for name, each in figures.openings.items()]
    print_table("Opening after a crash", header, rows)
    sealing, full = Spread.of(figures.seal_seconds), Spread.of(figures.openings["one full segment"].warm_seconds)
    print(f"\n  Sealing a full segment before going on would add {sealing.show(0, 1e3)} ms to {full.show(0, 1e3)} ms.")


def main() -> list[Verdict]:
    figures = measure()
    _print(figures)
    many, full = (Spread.of(figures.openings[name].warm_seconds).median for name in ("many", "one full segment"))
    verdicts = [
        at_most(f"growth: append after {MANY:,} / after {FEW:,} records", _growth(figures.journal), 1.2),
        at_most(f"growth: opening {MANY:,} records / one full segment", many / full, 1.2),
    ]
    print_verdicts(verdicts)
    save("journal_growth", figures, verdicts)
    return verdicts


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(run_and_die(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    else:
        main()
