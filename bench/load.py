"""Does the event loop stay free under load? Thousands of samples in flight, answers of 1 KB to megabytes, several runs
in one store, readers that poll them all the while: how late the loop is, and whether anything is lost.

Beside it, in the same run: the loop's own lag with as many tasks that only sleep (the physical limit here).
"""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from bench.measure import Spread, scratch
from bench.outcome import Verdict, at_most, print_table, save
from holdfast.api import Task, run_async
from holdfast.models import Request
from holdfast.runs import Run, find_run

RUNS = 4
SAMPLES = 2_500
READERS = 10
_SIZES = [1_000] * 900 + [20_000] * 90 + [1_000_000] * 9 + [20_000_000]
_TICK_SECONDS = 0.01


async def answer(request: Request) -> str:
    """Half a second, and an answer whose size follows from the question."""
    number = int(str(request.messages[-1]["content"]))
    await asyncio.sleep(0.5)
    return "x" * _SIZES[number % len(_SIZES)]


class Lag(msgspec.Struct, frozen=True):
    """Milliseconds by which a tick came late."""

    p50: float
    p99: float
    worst: float


async def _ticks(late: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _TICK_SECONDS
        await asyncio.sleep(_TICK_SECONDS)
        late.append((loop.time() - due) * 1000)


def _lag(late: list[float]) -> Lag:
    ordered = sorted(late)
    return Lag(ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1])


async def _sleepers() -> Lag:
    late: list[float] = []
    ticking = asyncio.ensure_future(_ticks(late))
    await asyncio.gather(*(asyncio.sleep(0.5 + number % 100 / 100) for number in range(RUNS * SAMPLES)))
    ticking.cancel()
    return _lag(late)


async def _load(store: str) -> Lag:
    late: list[float] = []
    ticking = asyncio.ensure_future(_ticks(late))
    model = {"name": "m", "provider": "bench.load:answer", "max_connections": SAMPLES}
    rows = [{"id": number, "q": str(number)} for number in range(SAMPLES)]
    runs = (
        run_async(Task("t", rows, "{q}"), [model], id=f"r{number}", store=store, concurrency={"samples": SAMPLES})
        for number in range(RUNS)
    )
    await asyncio.gather(*runs)
    ticking.cancel()
    return _lag(late)


def _polled(store: str, seconds: float) -> None:
    """A reader: looks at every run, again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number in range(RUNS):
            if os.path.isdir(os.path.join(store, "default", f"r{number}", "journal")):
                with Run(find_run(store, f"r{number}")) as run:
                    run.status()
        time.sleep(0.2)


def main() -> list[Verdict]:
    idle = asyncio.run(_sleepers())
    with scratch("load") as store:
        readers = [
            subprocess.Popen([sys.executable, "-m", "bench.load", store], cwd=Path(__file__).parents[1])
            for _ in range(READERS)
        ]
        began = time.perf_counter()
        busy = asyncio.run(_load(store))
        took = time.perf_counter() - began
        for reader in readers:
            reader.terminate()
            reader.wait()
        lost = sum(1 for number in range(RUNS) for each in _lines(store, number) if not each)
        mb = sum(Run(find_run(store, f"r{number}")).summary().bytes for number in range(RUNS)) / 1e6
    rows = [
        ["tasks that only sleep", f"{idle.p50:.1f}", f"{idle.p99:.1f}", f"{idle.worst:.1f}"],
        ["four runs, saved", f"{busy.p50:.1f}", f"{busy.p99:.1f}", f"{busy.worst:.1f}"],
    ]
    print_table(f"{RUNS * SAMPLES:,} samples in flight, {READERS} readers", ["who", "lag p50 ms", "p99", "worst"], rows)
    print(f"  {took:.1f} s, {mb:,.0f} MB on disk, {lost} answers lost or wrong")
    verdicts = [at_most("load: answers lost or wrong", lost, 0)]
    save("load", {"idle": [idle], "busy": [busy], "seconds": [Spread.of([took])]}, verdicts)
    return verdicts


def _lines(store: str, number: int) -> list[bool]:
    """For each planned key, whether its answer is there and of the right size."""
    with Run(find_run(store, f"r{number}")) as run:
        return [
            line.status == "finished" and len(line.output or "") == _SIZES[int(line.sample_id) % len(_SIZES)]
            for line in run.lines()
        ]


if __name__ == "__main__":
    if sys.argv[1:]:
        _polled(sys.argv[1], 600)
    else:
        main()
