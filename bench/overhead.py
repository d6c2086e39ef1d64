"""What does Holdfast itself cost? 10,000 one-turn samples against a model that answers at once: samples per CPU
second, Python calls a sample (of all threads, planning and start included), and peak memory.

Beside it, in the same run: the journal alone with the same three records a sample (what durability costs at least),
and inspect-ai, if HOLDFAST_INSPECT names its `inspect` command (TIKTOKEN_CACHE_DIR must be set for it to work
offline). Targets: 10,000 samples per CPU second, 180 calls, 64 MB.
"""

import asyncio
import itertools
import resource
import subprocess
import sys
import threading
import time
from types import FrameType

import msgspec

from bench.inspect_peer import environment, evaluation, inspect_command
from bench.measure import Spread, scratch
from bench.outcome import Verdict, at_least, at_most, print_table, save
from holdfast.api import Task, run_async
from holdfast.journal import OpenRequest, Writer, open_writer
from holdfast.records import draft

SAMPLES = 10_000
ROUNDS = 5
_CONNECTIONS = 256


class Cost(msgspec.Struct, frozen=True):
    """What one process used."""

    samples: int
    cpu_seconds: float
    wall_seconds: float
    peak_mb: float

    @property
    def per_cpu_second(self) -> float:
        return self.samples / self.cpu_seconds


def main() -> list[Verdict]:
    contestants = {"holdfast": _child("holdfast"), "journal alone": _child("journal")}
    costs: dict[str, list[Cost]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, command in contestants.items():
            costs[name].append(_measure(command))
    inspect = inspect_command()
    if inspect:
        costs["inspect-ai"] = [_measure_inspect(inspect)]
    rows = [_row(name, found) for name, found in costs.items()]
    print_table(f"{SAMPLES:,} samples", ["who", "samples / CPU s", "CPU s", "wall s", "peak MB"], rows)
    if not inspect:
        print("  inspect-ai was not measured: set HOLDFAST_INSPECT to its command")
    rate = Spread.of([each.per_cpu_second for each in costs["holdfast"]]).median
    peak = max(each.peak_mb for each in costs["holdfast"])
    calls = int(subprocess.run(_child("calls"), stdout=subprocess.PIPE, check=True).stdout)
    print(f"  holdfast: {calls / SAMPLES:.1f} Python calls a sample")
    verdicts = [
        at_least("overhead: samples per CPU second", rate, 10_000),
        at_most("overhead: Python calls a sample", calls / SAMPLES, 180),
        at_most("overhead: peak MB", peak, 64),
    ]
    if inspect:
        ratio = rate / costs["inspect-ai"][0].per_cpu_second
        verdicts.append(at_least("overhead: times inspect-ai, per CPU second", ratio, 1))
    save("overhead", costs, verdicts)
    return verdicts


def _row(name: str, costs: list[Cost]) -> list[str]:
    return [
        name,
        Spread.of([each.per_cpu_second for each in costs]).show(),
        Spread.of([each.cpu_seconds for each in costs]).show(2),
        Spread.of([each.wall_seconds for each in costs]).show(2),
        Spread.of([each.peak_mb for each in costs]).show(),
    ]


def _child(what: str) -> list[str]:
    return [sys.executable, "-m", "bench.overhead", what]


def _measure(command: list[str]) -> Cost:
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Cost)


def _measure_inspect(command: str) -> Cost:
    """Its own mock model, its own log with the buffer that it recovers from."""
    with scratch("inspect") as folder:
        arguments = evaluation(command, folder, SAMPLES)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        subprocess.run(arguments, cwd=folder, env=environment(folder), check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(SAMPLES, cpu, wall, after.ru_maxrss / 1024)


async def _run_holdfast(folder: str) -> None:
    rows = [{"id": i, "question": f"Say hello, number {i}.", "target": "hello"} for i in range(1, SAMPLES + 1)]
    task = Task("trivial", rows, "{question}", scorers=["includes"])
    model = {"name": "mock", "provider": "mock", "max_connections": _CONNECTIONS}
    await run_async(task, [model], id="r", store=folder, concurrency={"samples": _CONNECTIONS})


async def _run_journal(folder: str) -> None:
    """Three records a sample, each waiting for its acknowledgement, from as many producers."""
    writer = await open_writer(folder, OpenRequest("run"))
    asked = {"o": 1, "scope": "solve/1", "q": "0" * 32, "asked": {"new": [{"role": "user", "content": "Say hello."}]}}
    records = [
        ("step", asked),
        ("sample.finished", {"o": 1, "answer": {"text": "hello"}}),
        ("score", {"o": 1, "of": 7}),
    ]

    async def produce(samples: int) -> None:
        for number in range(samples):
            for kind, data in records:
                await writer.append(draft(kind, data, f"trivial/mock/{number}/1"))

    await asyncio.gather(*(produce(SAMPLES // _CONNECTIONS) for _ in range(_CONNECTIONS)))
    await _close(writer)


async def _close(writer: Writer) -> None:
    await writer.close(seal_last=True)


def _count_calls(folder: str) -> int:
    """Of Python functions, in all threads. Coroutines and generators count each time that they continue."""
    calls = itertools.count()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            next(calls)

    threading.setprofile(count)
    sys.setprofile(count)
    asyncio.run(_run_holdfast(folder))
    sys.setprofile(None)
    return next(calls)


def _be_child(what: str) -> None:
    with scratch("overhead") as folder:
        if what == "calls":
            print(_count_calls(folder))
            return
        began, cpu = time.perf_counter(), time.process_time()
        asyncio.run(_run_holdfast(folder) if what == "holdfast" else _run_journal(folder))
        used = time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(msgspec.json.encode(Cost(SAMPLES, used, time.perf_counter() - began, peak)).decode())


if __name__ == "__main__":
    if sys.argv[1:]:
        _be_child(sys.argv[1])
    else:
        main()
