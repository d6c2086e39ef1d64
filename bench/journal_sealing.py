"""How fast is a segment sealed, how small does it get, and how fast is it read, plain and sealed?

A 64 MiB segment of about 20 KB chat records (pseudo-English). Sealing packs, writes, syncs, reads back and compares;
its limit is zstd at the same level over the same bytes in memory. One record by its place is compared with a lookup by
primary key in SQLite; reading everything (verified, in order) with splitting the file into lines and parsing them.
"""

import asyncio
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import zstandard

from bench.content import RUN_UID, Payload, key, payloads
from bench.measure import SEED, Quantiles, Spread, scratch, take_turns
from bench.outcome import Verdict, at_least, at_most, print_table, print_verdicts, save
from holdfast.journal import OS_DISK, SEGMENT_BYTES, OpenRequest, Position, Reader, journal_folder, open_writer, seal
from holdfast.records import Line, draft

RECORD_BYTES = 20_000
DISTINCT = 1_000  # 20 MB of text: more than zstd's window and than a frame, so that repeats save nothing
ROUNDS = 5
LOOKUPS = 400
MANY_SEGMENTS = 64
LEVEL = 3
_line = msgspec.json.Decoder(Line)


class Pass(msgspec.Struct, frozen=True):
    """One pass over all the bytes of the segment."""

    seconds: float
    cpu_seconds: float
    bytes_out: int = 0


class Figures(msgspec.Struct, frozen=True):
    segment_bytes: int
    records: int
    sealing: dict[str, list[Pass]]
    lookups: dict[str, list[Quantiles]]
    reading: dict[str, list[Pass]]


class PreparedFiles(msgspec.Struct, frozen=True):
    """The same records: in one plain segment, in one sealed one, in many sealed ones and a plain one, in SQLite."""

    hot: str
    sealed: str
    many: str
    database: str
    positions: list[Position]
    positions_many: list[Position]


# Making the journals.


async def fill(run: str, data: list[Payload], segment_bytes: int) -> list[Position]:
    os.mkdir(run)
    writer = await open_writer(run, OpenRequest(RUN_UID, segment_bytes=segment_bytes))
    records = SEGMENT_BYTES // RECORD_BYTES
    drafts = [draft("step", data[n % DISTINCT], key(n)) for n in range(records)]
    positions = await asyncio.gather(*map(writer.append, drafts))
    await writer.close()
    return list(positions)


def prepare(folder: str) -> PreparedFiles:
    data = payloads(SEED, DISTINCT, RECORD_BYTES)
    hot, sealed, many = (os.path.join(folder, name) for name in ("hot", "sealed", "many"))
    positions = asyncio.run(fill(hot, data, 2 * SEGMENT_BYTES))
    positions_many = asyncio.run(fill(many, data, 1 << 20))
    shutil.copytree(hot, sealed, copy_function=os.link)
    seal(OS_DISK, journal_folder(sealed), 1)
    database = os.path.join(folder, "records.db")
    with sqlite3.connect(database) as connection:
        connection.execute("create table record (n integer primary key, line blob not null)")
        lines = _segment(hot).read_bytes().splitlines()[1:]
        rows = ((position.n, line) for position, line in zip(positions, lines, strict=True))
        connection.executemany("insert into record values (?, ?)", rows)
    connection.close()
    return PreparedFiles(hot, sealed, many, database, positions, positions_many)


def _segment(run: str) -> Path:
    return Path(journal_folder(run)) / "000001.jsonl"


# Sealing.


def seal_copy(run: str) -> Pass:
    copy = f"{run}.copy"
    shutil.copytree(run, copy, copy_function=os.link)
    cpu, wall = time.process_time(), time.perf_counter()
    seal(OS_DISK, journal_folder(copy), 1)
    taken = time.perf_counter() - wall, time.process_time() - cpu
    size = _segment(copy).with_suffix(".jsonl.zst").stat().st_size
    shutil.rmtree(copy)
    return Pass(*taken, size)


def compress_in_memory(content: bytes) -> Pass:
    cpu, wall = time.process_time(), time.perf_counter()
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(content)
    return Pass(time.perf_counter() - wall, time.process_time() - cpu, len(packed))


# One record.


def time_each(look_up: Callable[[int], object], count: int) -> Quantiles:
    chance = random.Random(SEED)
    waits = []
    for _ in range(LOOKUPS):
        index = chance.randrange(count)
        began = time.perf_counter()
        found = look_up(index)
        waits.append(time.perf_counter() - began)
        if found is None:
            raise RuntimeError(f"record {index} was not found")
    return Quantiles.of(waits)


def look_up_in_journal(run: str, positions: list[Position]) -> Quantiles:
    reader = Reader(journal_folder(run), RUN_UID)
    return time_each(lambda index: reader.record_at(positions[index].segment, positions[index].offset), len(positions))


def look_up_in_sqlite(database: str, positions: list[Position]) -> Quantiles:
    connection = sqlite3.connect(database)

    def look_up(index: int) -> object:
        return connection.execute("select line from record where n = ?", (positions[index].n,)).fetchone()

    try:
        return time_each(look_up, len(positions))
    finally:
        connection.close()


# Everything.


def read_journal(run: str, records: int) -> Pass:
    cpu, wall = time.process_time(), time.perf_counter()
    count = sum(1 for _ in Reader(journal_folder(run), RUN_UID).read())
    taken = Pass(time.perf_counter() - wall, time.process_time() - cpu)
    if count < records:
        raise RuntimeError(f"{run}: {count} records read of {records}")
    return taken


def read_lines(path: Path) -> Pass:
    cpu, wall = time.process_time(), time.perf_counter()
    with path.open("rb", buffering=1 << 20) as file:
        for line in file:
            _line.decode(line)
    return Pass(time.perf_counter() - wall, time.process_time() - cpu)


def measure() -> Figures:
    with scratch("sealing") as folder:
        places = prepare(folder)
        records = len(places.positions)
        content = _segment(places.hot).read_bytes()
        sealing = take_turns(
            ROUNDS, {"seal": partial(seal_copy, places.hot), "zstd in memory": partial(compress_in_memory, content)}
        )
        lookups = take_turns(
            ROUNDS,
            {
                "hot segment": partial(look_up_in_journal, places.hot, places.positions),
                "sealed segment": partial(look_up_in_journal, places.sealed, places.positions),
                f"one of {MANY_SEGMENTS} segments": partial(look_up_in_journal, places.many, places.positions_many),
                "sqlite": partial(look_up_in_sqlite, places.database, places.positions),
            },
        )
        reading = take_turns(
            ROUNDS,
            {
                "hot segment": partial(read_journal, places.hot, records),
                "sealed segment": partial(read_journal, places.sealed, records),
                "lines and JSON only": partial(read_lines, _segment(places.hot)),
            },
        )
        return Figures(len(content), records, sealing, lookups, reading)


def _speed(size: int, passes: list[Pass]) -> Spread:
    return Spread.of([size / each.seconds / 1e6 for each in passes])


def _print_sealing(figures: Figures) -> None:
    limit = _speed(figures.segment_bytes, figures.sealing["zstd in memory"]).median
    rows = []
    for name, passes in figures.sealing.items():
        speed = _speed(figures.segment_bytes, passes)
        cpu = Spread.of([each.cpu_seconds for each in passes])
        smaller = figures.segment_bytes / passes[0].bytes_out
        rows.append([name, speed.show(), cpu.show(2), f"{smaller:.2f}", f"{speed.median / limit:.2f}"])
    title = f"Sealing {figures.segment_bytes / 2**20:.0f} MiB, {figures.records:,} records, level {LEVEL}"
    print_table(title, ["", "MB/s", "CPU s", "times smaller", "x limit"], rows)


def _print_lookups(figures: Figures) -> None:
    limit = Quantiles.median_of(figures.lookups["sqlite"])
    rows = []
    for name, rounds in figures.lookups.items():
        middle = Quantiles.median_of(rounds)
        shown = [f"{value * 1e6:,.0f}" for value in (middle.p50, middle.p99, middle.highest)]
        rows.append([name, *shown, f"{middle.p50 / limit.p50:.1f}"])
    print_table("One record by its place, us", ["from", "p50", "p99", "highest", "x sqlite"], rows)


def _print_reading(figures: Figures) -> None:
    limit = _speed(figures.segment_bytes, figures.reading["lines and JSON only"]).median
    rows = []
    for name, passes in figures.reading.items():
        speed = _speed(figures.segment_bytes, passes)
        rate = Spread.of([figures.records / each.seconds for each in passes])
        cpu = Spread.of([each.cpu_seconds for each in passes])
        rows.append([name, rate.show(), speed.show(), cpu.show(3), f"{speed.median / limit:.2f}"])
    print_table("Reading everything, verified", ["from", "records/s", "MB/s", "CPU s", "x limit"], rows)


def main() -> list[Verdict]:
    figures = measure()
    _print_sealing(figures)
    _print_lookups(figures)
    _print_reading(figures)
    sealing = {name: _speed(figures.segment_bytes, passes).median for name, passes in figures.sealing.items()}
    sizes = {name: passes[0].bytes_out for name, passes in figures.sealing.items()}
    hot = Quantiles.median_of(figures.lookups["hot segment"]).p50 * 1e6
    verdicts = [
        at_least("sealing: speed / zstd in memory", sealing["seal"] / sealing["zstd in memory"], 0.5),
        at_most("sealing: size / zstd without frames", sizes["seal"] / sizes["zstd in memory"], 1.1),
        at_most("sealing: one record from a hot segment, us", hot, 1000),
    ]
    print_verdicts(verdicts)
    save("journal_sealing", figures, verdicts)
    return verdicts


if __name__ == "__main__":
    main()
