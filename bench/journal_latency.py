"""How long does a producer wait for its acknowledgement, and how late does saving make the event loop?

Three questions, each beside its limit in the same run:
- acknowledgements at 50 and 500 records/s of 5 KB (arrivals do not wait for each other), beside the same through a raw
  thread writer, and beside a bare write+fdatasync;
- lateness of a 1 ms ticker while 256 producers save 20 KB records as fast as they can, beside an idle loop and beside
  a raw thread writer that gets its bytes ready-made, or serialises them first as the journal must;
- a file system on which every call takes 50 ms: lateness of the loop, and how many empty tasks it still dispatches.

Target: the event loop never waits for a save.
"""

import asyncio
import os
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from bench.content import RUN_UID, Payload, key, payloads
from bench.measure import SEED, Quantiles, Spread, scratch, take_turns
from bench.outcome import Verdict, at_least, at_most, print_table, print_verdicts, save
from bench.peers import GroupCommit, RawFile
from bench.slow_disk import SlowDisk
from holdfast.journal import OS_DISK, Disk, OpenRequest, WriterOptions, open_writer
from holdfast.records import draft

ARRIVAL_SECONDS = {50: 3.0, 500: 1.5}
"""How long records come, by their number per second."""
ROUNDS = 5
LOAD_SECONDS = 1.0
PRODUCERS = 256
TICK_SECONDS = 0.001
SLOW_CALL_SECONDS = 0.05
SLOW_RECORDS_PER_SECOND = 100
SMALL_BYTES, LARGE_BYTES = 5_000, 20_000
LOADS = ("idle", "raw", "raw, serialising", "journal")
_POOL = 64
_encode = msgspec.json.Encoder().encode

Append = Callable[[int], Awaitable[object]]
Close = Callable[[], Awaitable[None]]


class Dispatching(msgspec.Struct, frozen=True):
    """What the event loop still does beside a disk."""

    dispatches_per_second: float
    saved_per_second: float
    lag: Quantiles


class Figures(msgspec.Struct, frozen=True):
    acknowledgements: dict[str, list[Quantiles]]
    lag: dict[str, list[Quantiles]]
    beside_disk: dict[str, list[Dispatching]]


# The contestants: each gives a function that saves record `index`, and one that closes.


async def start(name: str, folder: str, data: list[Payload], disk: Disk = OS_DISK) -> tuple[Append, Close]:
    if name == "journal":
        writer = await open_writer(folder, OpenRequest(RUN_UID), WriterOptions(disk=disk))
        return lambda index: writer.append(draft("step", data[index % _POOL], key(index))), writer.close
    if name == "idle":
        return lambda index: asyncio.sleep(LOAD_SECONDS), _nothing
    group = GroupCommit(RawFile(os.path.join(folder, "raw.jsonl")))
    if name == "raw":
        lines = [_encode(each) for each in data]
        return lambda index: group.append(lines[index % _POOL]), group.close
    return lambda index: group.append(_encode(data[index % _POOL])), group.close


async def _nothing() -> None:
    return None


def in_fresh_folder(scratch_folder: str, work: Callable[[str], Awaitable[object]]) -> None:
    folder = os.path.join(scratch_folder, "run")
    os.mkdir(folder)

    async def whole() -> None:
        await work(folder)

    try:
        asyncio.run(whole())
    finally:
        shutil.rmtree(folder)


# Acknowledgements.


async def arrive(append: Append, rate: int, seconds: float) -> list[float]:
    """Records come at random moments, whether or not the ones before are saved. Returns how long each waited."""
    chance = random.Random(SEED)
    waits: list[float] = []
    tasks: list[asyncio.Task[None]] = []

    async def save_one(index: int) -> None:
        began = time.perf_counter()
        await append(index)
        waits.append(time.perf_counter() - began)

    due = time.perf_counter()
    end = due + seconds
    while (due := due + chance.expovariate(rate)) < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(save_one(len(tasks))))
    await asyncio.gather(*tasks)
    return waits


def measure_arrivals(name: str, rate: int, folder: str, data: list[Payload]) -> Quantiles:
    waits: list[float] = []

    async def work(run: str) -> None:
        append, close = await start(name, run, data)
        waits.extend(await arrive(append, rate, ARRIVAL_SECONDS[rate]))
        await close()

    in_fresh_folder(folder, work)
    return Quantiles.of(waits)


def measure_bare_sync(folder: str, data: list[Payload]) -> Quantiles:
    """One write and fdatasync after the other, without loop or thread: what the disk itself takes."""
    path = os.path.join(folder, "bare.jsonl")
    log = RawFile(path)
    lines = [_encode(each) for each in data]
    waits = []
    for index in range(300):
        began = time.perf_counter()
        log.commit([lines[index % _POOL]])
        waits.append(time.perf_counter() - began)
        time.sleep(0.002)
    log.close()
    os.unlink(path)
    return Quantiles.of(waits)


# Lateness of the event loop.


async def tick(lags: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(TICK_SECONDS)
        lags.append(time.perf_counter() - began - TICK_SECONDS)


async def load(append: Append, end: float) -> None:
    async def produce(producer: int) -> None:
        index = producer
        while time.perf_counter() < end:
            await append(index)
            index += PRODUCERS

    await asyncio.gather(*(produce(producer) for producer in range(PRODUCERS)))


def measure_lag(name: str, folder: str, data: list[Payload]) -> Quantiles:
    lags: list[float] = []

    async def work(run: str) -> None:
        append, close = await start(name, run, data)
        ticker = asyncio.create_task(tick(lags))
        await load(append, time.perf_counter() + LOAD_SECONDS)
        ticker.cancel()
        await close()

    in_fresh_folder(folder, work)
    return Quantiles.of(lags)


# A slow file system.


async def dispatch(end: float) -> int:
    """Start empty tasks one after the other, as an evaluation starts samples."""
    count = 0
    while time.perf_counter() < end:
        await asyncio.create_task(_nothing())
        count += 1
    return count


async def keep_saving(append: Append, end: float) -> int:
    """Records at a steady rate, whether or not the ones before are saved. Returns how many were, by the end."""
    saved = 0
    tasks: list[asyncio.Task[None]] = []

    async def save_one() -> None:
        nonlocal saved
        await append(len(tasks))
        saved += time.perf_counter() < end

    while time.perf_counter() < end:
        tasks.append(asyncio.create_task(save_one()))
        await asyncio.sleep(1 / SLOW_RECORDS_PER_SECOND)
    await asyncio.gather(*tasks)
    return saved


def measure_dispatching(disk: Disk | None, folder: str, data: list[Payload]) -> Dispatching:
    """Dispatch beside a journal on that disk; None: beside no journal."""
    found: list[Dispatching] = []

    async def work(run: str) -> None:
        name = "idle" if disk is None else "journal"
        append, close = await start(name, run, data, disk or OS_DISK)
        lags: list[float] = []
        end = time.perf_counter() + LOAD_SECONDS
        ticker = asyncio.create_task(tick(lags))
        dispatched, saved = await asyncio.gather(dispatch(end), keep_saving(append, end))
        ticker.cancel()
        found.append(Dispatching(dispatched / LOAD_SECONDS, saved / LOAD_SECONDS, Quantiles.of(lags)))
        await close()

    in_fresh_folder(folder, work)
    return found[0]


def measure() -> Figures:
    small, large = payloads(SEED, _POOL, SMALL_BYTES), payloads(SEED, _POOL, LARGE_BYTES)
    with scratch("latency") as folder:
        arrivals = {
            f"{rate}/s  {name}": partial(measure_arrivals, name, rate, folder, small)
            for rate in ARRIVAL_SECONDS
            for name in ("journal", "raw")
        }
        arrivals["bare write+fdatasync"] = partial(measure_bare_sync, folder, small)
        lags = {name: partial(measure_lag, name, folder, large) for name in LOADS}
        disks: dict[str, Disk | None] = {
            "no journal": None,
            "this disk": OS_DISK,
            "50 ms a call": SlowDisk(SLOW_CALL_SECONDS),
        }
        beside = {name: partial(measure_dispatching, disk, folder, small) for name, disk in disks.items()}
        return Figures(take_turns(ROUNDS, arrivals), take_turns(ROUNDS, lags), take_turns(ROUNDS, beside))


def _row(name: str, rounds: Sequence[Quantiles], limit: Sequence[Quantiles]) -> list[str]:
    middle, least = Quantiles.median_of(rounds), Quantiles.median_of(limit)
    shown = [f"{value * 1e3:,.2f}" for value in (middle.p50, middle.p99, middle.highest)]
    return [name, *shown, f"{middle.p50 / least.p50:.2f}", f"{middle.p99 / least.p99:.2f}"]


def _dispatch_row(name: str, rounds: Sequence[Dispatching], limit: Sequence[Dispatching]) -> list[str]:
    lag = Quantiles.median_of([each.lag for each in rounds])
    return [
        name,
        Spread.of([each.dispatches_per_second for each in rounds]).show(),
        f"{Spread.of([each.saved_per_second for each in rounds]).median:,.0f}",
        *(f"{value * 1e3:,.2f}" for value in (lag.p50, lag.p99, lag.highest)),
        f"{_dispatch_ratio(rounds, limit):.2f}",
    ]


def _dispatch_ratio(rounds: Sequence[Dispatching], limit: Sequence[Dispatching]) -> float:
    ours, theirs = ([each.dispatches_per_second for each in side] for side in (rounds, limit))
    return Spread.of(ours).median / Spread.of(theirs).median


def _print(figures: Figures) -> None:
    header = ["acknowledgement, ms", "p50", "p99", "highest", "p50 x raw", "p99 x raw"]
    waits = figures.acknowledgements
    rows = [
        _row(name, rounds, waits[f"{name.split()[0]}  raw"] if "/s" in name else rounds)
        for name, rounds in waits.items()
    ]
    print_table(f"Acknowledgement of {SMALL_BYTES:,}-byte records, medians of {ROUNDS} rounds", header, rows)
    header = ["event-loop lag, ms", "p50", "p99", "highest", "p50 x raw", "p99 x raw"]
    rows = [_row(name, rounds, figures.lag["raw"]) for name, rounds in figures.lag.items()]
    print_table(f"A 1 ms ticker beside {PRODUCERS} producers of {LARGE_BYTES:,}-byte records", header, rows)
    header = ["disk", "dispatches/s", "saved/s", "lag p50 ms", "lag p99 ms", "highest ms", "x no journal"]
    limit = figures.beside_disk["no journal"]
    rows = [_dispatch_row(name, rounds, limit) for name, rounds in figures.beside_disk.items()]
    print_table(f"A loop that dispatches empty tasks, beside {SLOW_RECORDS_PER_SECOND} records/s", header, rows)


def main() -> list[Verdict]:
    figures = measure()
    _print(figures)
    ours, theirs = (Quantiles.median_of(figures.acknowledgements[f"500/s  {name}"]).p50 for name in ("journal", "raw"))
    lag = {name: Quantiles.median_of(rounds).p99 for name, rounds in figures.lag.items()}
    slow = figures.beside_disk["50 ms a call"]
    highest = Quantiles.median_of([each.lag for each in slow]).highest
    dispatching = _dispatch_ratio(slow, figures.beside_disk["no journal"])
    verdicts = [
        at_most("latency: acknowledgement p50 at 500/s, journal / raw", ours / theirs, 1.5),
        at_most("latency: loop lag p99, journal / raw, serialising", lag["journal"] / lag["raw, serialising"], 2),
        at_most("latency: highest loop lag beside a slow disk / one of its calls", highest / SLOW_CALL_SECONDS, 0.5),
        at_least("latency: dispatches beside a slow disk / without a journal", dispatching, 0.8),
    ]
    print_verdicts(verdicts)
    save("journal_latency", figures, verdicts)
    return verdicts


if __name__ == "__main__":
    main()
