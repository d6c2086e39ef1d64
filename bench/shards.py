"""What do shards gain, and what do they cost? Three questions about runs of one machine:

1. How much faster are two workers than one, if scoring computes (5 ms of CPU a sample) and the machine has two cores?
2. What does a sharded run cost beside the same run of one process, in CPU time a sample? It includes the copy of all
   records that the report at the end needs.
3. What do readers pay for many shards: `show` of a complete run of 20,000 samples in 1, 10, 100 and 1,000 shards, for
   the first time (all records are copied) and later (nothing is new), and `merge` of its shards into one run?
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from bench.looking import make_run
from bench.measure import Spread, paired_ratio, scratch, take_turns
from bench.outcome import Verdict, at_least, at_most, print_table, print_verdicts, save
from bench.processes import Taken, taken_by

ROUNDS = 3
SCORED = 2_000
SAMPLES = 10_000
READ = 20_000
READ_SHARDS = (1, 10, 100, 1_000)
_LATER = 3
_SCORER = """
import time


def burn(sample, answer):
    end = time.thread_time() + 0.005
    while time.thread_time() < end:
        pass
    return True
"""


class Read(msgspec.Struct, frozen=True):
    """What a run with so many shards costs: to run it with one worker, to read it, and to merge it."""

    shards: int
    run: Taken
    first: Taken
    later: list[Taken]
    merge: Taken


def main() -> list[Verdict]:
    speeds = _measure_workers()
    costs = _measure_overhead()
    reads = [_measure_reading(shards) for shards in READ_SHARDS]
    gain = paired_ratio(speeds["2 workers"], speeds["1 worker"])
    rows = [[name, Spread.of(found).show()] for name, found in speeds.items()]
    print_table(
        f"{SCORED:,} samples with 5 ms of scoring each, 8 shards", ["", "samples / s"], [*rows, ["gain", gain.show(2)]]
    )
    plain = costs["no shards"]
    begin = Spread.of([(eight - one) / 7 for eight, one in zip(costs["8 shards"], costs["1 shard"], strict=True)])
    rows = [
        [name, Spread.of(found).show(0, 1e6 / SAMPLES), paired_ratio(found, plain).show(2)]
        for name, found in costs.items()
    ]
    print_table(f"{SAMPLES:,} samples, one worker", ["", "CPU us / sample", "to no shards"], rows)
    print(f"  each further shard: {begin.show(0, 1e3)} ms CPU")
    rows = [
        [
            f"{each.shards:,}",
            f"{each.run.cpu_seconds:.1f}",
            f"{each.first.cpu_seconds:.2f}",
            _later(each).show(2),
            f"{each.merge.cpu_seconds:.2f}",
            f"{max(look.peak_mb for look in (each.first, *each.later)):,.0f}",
        ]
        for each in reads
    ]
    heads = ["shards", "run, CPU s", "first show", "later show", "merge", "peak MB of show"]
    print_table(f"a complete run of {READ:,} samples, CPU seconds", heads, rows)
    verdicts = [
        at_least("shards: speed of two workers on two cores, to one", gain.median, 1.6),
        at_most("shards: CPU a sample in 8 shards, to no shards", paired_ratio(costs["8 shards"], plain).median, 1.2),
        at_most("shards: CPU ms of each further shard", begin.median * 1e3, 100),
        at_most(f"shards: later show of {READ_SHARDS[-1]:,} shards, CPU s", _later(reads[-1]).median, 2),
        at_most(
            f"shards: first show of {READ_SHARDS[-1]:,} shards, to 1",
            reads[-1].first.cpu_seconds / reads[0].first.cpu_seconds,
            3,
        ),
    ]
    save("shards", {"workers": speeds, "overhead": costs, "reading": reads}, verdicts)
    return verdicts


def _later(read: Read) -> Spread:
    return Spread.of([each.cpu_seconds for each in read.later])


def _run(shards: int, run_id: str) -> list[str]:
    command = [sys.executable, "-m", "holdfast", "run", "spec.json", "--id", run_id]
    return [*command, "--shards", str(shards), "--this-host"] if shards else command


def _measure_workers() -> dict[str, list[float]]:
    """Samples per second, from the start of the first process to the end of the last."""
    with scratch("workers") as folder:
        make_run(folder, SCORED, run=False)
        Path(folder, "burn.py").write_text(_SCORER)
        path = Path(folder, "spec.json")
        path.write_bytes(path.read_bytes().replace(b'"scorers":["includes"]', b'"scorers":["burn:burn"]'))
        number = iter(range(1_000))

        def speed(workers: int) -> float:
            command = _run(8, f"r{next(number)}")
            began = time.perf_counter()
            processes = [
                subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for _ in range(workers)
            ]
            codes = [process.wait() for process in processes]
            if any(codes):
                raise RuntimeError(f"a worker failed: {' '.join(command)}")
            return SCORED / (time.perf_counter() - began)

        return take_turns(ROUNDS, {"1 worker": partial(speed, 1), "2 workers": partial(speed, 2)})


def _measure_overhead() -> dict[str, list[float]]:
    """CPU seconds of one process."""
    with scratch("overhead") as folder:
        make_run(folder, SAMPLES, run=False)
        number = iter(range(1_000))

        def cost(shards: int) -> float:
            return taken_by(_run(shards, f"r{next(number)}"), os.environ, folder).cpu_seconds

        contestants: dict[str, Callable[[], float]] = {
            "no shards": partial(cost, 0),
            "1 shard": partial(cost, 1),
            "8 shards": partial(cost, 8),
        }
        return take_turns(ROUNDS, contestants)


def _measure_reading(shards: int) -> Read:
    with scratch("reading") as folder:
        make_run(folder, READ, run=False)
        run = taken_by(_run(shards, "r"), _with_cache(folder, "of-the-run"), folder)
        env = _with_cache(folder, "of-a-reader")
        show = [sys.executable, "-m", "holdfast", "show", "r"]
        first, *later = (taken_by(show, env, folder) for _ in range(1 + _LATER))
        # A merge needs two runs: the other one has a hundredth of the same samples.
        taken_by([*_run(0, "part"), "--shard", "1/100"], env, folder)
        merge = [sys.executable, "-m", "holdfast", "merge", "r", "part", "--id", "merged"]
        return Read(shards, run, first, later, taken_by(merge, env, folder))


def _with_cache(folder: str, name: str) -> dict[str, str]:
    return {**os.environ, "HOLDFAST_CACHE": os.path.join(folder, name)}


if __name__ == "__main__":
    print_verdicts(main())
