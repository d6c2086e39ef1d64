"""How much of a bare append+fdatasync does the journal keep, and how does SQLite compare?

256 asyncio producers, each waiting for its acknowledgement before it goes on. The journal serialises every record
(`draft`), then numbers, times and checksums it, and compresses full segments in the background; its peers get the same
bytes ready-made. Two more show where the difference comes from: `raw, serialising` turns the same data into JSON
first, as whoever saves JSON must; `journal, ready-made` gets its drafts ready-made, as raw its lines, and keeps one
segment, so it is the save path alone.

Target: journal >= 0.8 x raw, at records of 1, 20 and 200 KB.

`python -m bench.journal_throughput 0.3` replaces every `fdatasync` by a pause of 0.3 ms: the same question without the
noise of a shared disk.
"""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol
from unittest.mock import patch

import msgspec

from bench.content import RUN_UID, Payload, key, payloads, ready_line
from bench.measure import SEED, Spread, cpu_by_thread, paired_ratio, scratch, take_turns
from bench.outcome import Verdict, at_least, print_table, print_verdicts, save
from bench.peers import GroupCommit, RawFile, SqliteTable
from holdfast.journal import OpenRequest, Writer, open_writer
from holdfast.records import draft

PRODUCERS = 256
ROUNDS = 7
TARGET = 0.8
RECORDS = {1_000: PRODUCERS * 80, 20_000: PRODUCERS * 24, 200_000: PRODUCERS * 4}
CONTESTANTS = ("journal", "raw", "sqlite", "raw, serialising", "journal, ready-made")
_POOL = 64
_ONE_SEGMENT_BYTES = 1 << 40
_encode = msgspec.json.Encoder().encode


class Contestant(Protocol):
    """Something that saves record number `index` of the pool, durably."""

    async def append(self, index: int) -> None: ...

    async def close(self) -> None: ...


class Pool(msgspec.Struct, frozen=True):
    """What is saved, as data for the journal and as ready-made lines for its peers."""

    data: list[Payload]
    lines: list[bytes]
    keys: list[str]

    @classmethod
    def make(cls, size: int) -> "Pool":
        data = payloads(SEED, _POOL, size)
        return cls(data, [ready_line(each, n) for n, each in enumerate(data)], [key(n) for n in range(_POOL)])


class Run(msgspec.Struct, frozen=True):
    """One contestant, once. CPU time until the last acknowledgement: of the whole process, of the event loop's thread
    and of the writing thread. `cpu_seconds_closed` goes on until compression is through.
    """

    records_per_second: float
    cpu_seconds: float
    cpu_seconds_loop: float
    cpu_seconds_writer: float
    cpu_seconds_closed: float


class _Journal:
    def __init__(self, writer: Writer, pool: Pool) -> None:
        self._writer = writer
        self._pool = pool

    async def append(self, index: int) -> None:
        at = index % _POOL
        await self._writer.append(draft("step", self._pool.data[at], self._pool.keys[at]))

    async def close(self) -> None:
        await self._writer.close()


class _ReadyJournal(_Journal):
    def __init__(self, writer: Writer, pool: Pool) -> None:
        super().__init__(writer, pool)
        self._drafts = [draft("step", data, name) for data, name in zip(pool.data, pool.keys, strict=True)]

    async def append(self, index: int) -> None:
        await self._writer.append(self._drafts[index % _POOL])


class _Peer:
    def __init__(self, log: RawFile | SqliteTable, pool: Pool) -> None:
        self._group = GroupCommit(log)
        self._lines = pool.lines

    async def append(self, index: int) -> None:
        await self._group.append(self._lines[index % _POOL])

    async def close(self) -> None:
        await self._group.close()


class _Serialising(_Peer):
    def __init__(self, log: RawFile, pool: Pool) -> None:
        super().__init__(log, pool)
        self._data = pool.data

    async def append(self, index: int) -> None:
        await self._group.append(_encode(self._data[index % _POOL]))


async def start(name: str, folder: str, pool: Pool) -> Contestant:
    if name == "raw":
        return _Peer(RawFile(os.path.join(folder, "raw.jsonl")), pool)
    if name == "raw, serialising":
        return _Serialising(RawFile(os.path.join(folder, "raw.jsonl")), pool)
    if name == "sqlite":
        return _Peer(SqliteTable(os.path.join(folder, "raw.db")), pool)
    if name == "journal":
        return _Journal(await open_writer(folder, OpenRequest(RUN_UID)), pool)
    return _ReadyJournal(await open_writer(folder, OpenRequest(RUN_UID, segment_bytes=_ONE_SEGMENT_BYTES)), pool)


async def drive(contestant: Contestant, records: int) -> Run:
    """All producers at once, each record acknowledged before the producer's next."""

    async def produce(producer: int) -> None:
        for index in range(producer, records, PRODUCERS):
            await contestant.append(index)

    before, cpu, wall = cpu_by_thread(), time.process_time(), time.perf_counter()
    await asyncio.gather(*(produce(producer) for producer in range(PRODUCERS)))
    wall, used, after = time.perf_counter() - wall, time.process_time() - cpu, cpu_by_thread()
    await contestant.close()
    threads = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    writing = sum(seconds for name, seconds in threads.items() if name.endswith("-writer"))
    return Run(records / wall, used, threads["MainThread"], writing, time.process_time() - cpu)


def _warm_page_cache(folder: str, pool: Pool, records: int) -> None:
    """Write and remove as many bytes as a contestant does. On a virtual machine, pages that were free for a while cost
    ten times more: without this, whoever comes after a slow one pays for it.
    """
    path = os.path.join(folder, "warm")
    with open(path, "wb") as file:
        for index in range(records):
            file.write(pool.lines[index % _POOL])
    os.remove(path)


def run_once(name: str, scratch_folder: str, pool: Pool, records: int) -> Run:
    _warm_page_cache(scratch_folder, pool, records)
    folder = os.path.join(scratch_folder, "run")
    os.mkdir(folder)

    async def whole() -> Run:
        return await drive(await start(name, folder, pool), records)

    try:
        return asyncio.run(whole())
    finally:
        shutil.rmtree(folder)
        os.sync()  # what removing costs is not the next contestant's


def measure(size: int, rounds: int = ROUNDS) -> dict[str, list[Run]]:
    pool = Pool.make(size)
    with scratch("throughput") as folder:
        run_once("raw", folder, pool, RECORDS[size] // 4)  # warms up the disk and the interpreter
        return take_turns(rounds, {name: partial(run_once, name, folder, pool, RECORDS[size]) for name in CONTESTANTS})


def _rates(runs: Sequence[Run]) -> list[float]:
    return [run.records_per_second for run in runs]


def _rows(size: int, results: dict[str, list[Run]]) -> list[list[str]]:
    rows = []
    per_record = 1e6 / RECORDS[size]
    raw = Spread.of(_rates(results["raw"]))
    for name, runs in results.items():
        rate = Spread.of(_rates(runs))
        rows.append(
            [
                f"{size // 1000} KB  {name}",
                rate.show(),
                f"{rate.median * size / 1e6:,.0f}",
                Spread.of([run.cpu_seconds for run in runs]).show(1, per_record),
                f"{Spread.of([run.cpu_seconds_loop for run in runs]).median * per_record:,.1f}",
                f"{Spread.of([run.cpu_seconds_writer for run in runs]).median * per_record:,.1f}",
                f"{Spread.of([run.cpu_seconds_closed for run in runs]).median * per_record:,.1f}",
                f"{rate.median / raw.median:.2f}",
                paired_ratio(_rates(runs), _rates(results["raw"])).show(2),
            ]
        )
    return rows


def _judge(size: int, results: dict[str, list[Run]]) -> list[Verdict]:
    """The target, and the same question with serialisation on both sides and on neither."""

    def ratio(ours: str, theirs: str) -> float:
        return Spread.of(_rates(results[ours])).median / Spread.of(_rates(results[theirs])).median

    pairs = (("journal", "raw"), ("journal", "raw, serialising"), ("journal, ready-made", "raw"))
    return [
        at_least(f"throughput, {size // 1000} KB: {ours} / {theirs}", ratio(ours, theirs), TARGET)
        for ours, theirs in pairs
    ]


def main() -> list[Verdict]:
    rows: list[list[str]] = []
    verdicts: list[Verdict] = []
    figures: dict[str, dict[str, list[Run]]] = {}
    for size in RECORDS:
        results = measure(size)
        figures[f"{size // 1000} KB"] = results
        rows += _rows(size, results)
        verdicts += _judge(size, results)
    header = ["records", "records/s", "MB/s", "CPU us/record", "loop", "writer", "closed", "x raw", "round by round"]
    print_table(f"Durable appends, {PRODUCERS} producers, {ROUNDS} rounds: median (low..high)", header, rows)
    print_verdicts(verdicts)
    save("journal_throughput", figures, verdicts)
    return verdicts


if __name__ == "__main__":
    if sys.argv[1:]:
        pause = float(sys.argv[1]) / 1000
        with patch.object(os, "fdatasync", lambda handle: time.sleep(pause)):
            main()
    else:
        main()
