"""Runs all benchmarks one after the other and sums up which targets were met: `python -m bench [name …]`.

Each runs in a process of its own, started from this small one: a process inherits the peak memory of its parent.
"""

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from bench.outcome import Verdict, print_verdicts, run_benchmark

BENCHMARKS = (
    "journal_throughput",
    "journal_growth",
    "journal_latency",
    "journal_sealing",
    "sealed_size",
    "journal_syscalls",
    "mirror_requests",
    "mirror_slowdown",
    "recover",
    "scoring",
    "overhead",
    "agent_size",
    "steps",
    "clients",
    "pacing",
    "sandbox",
    "large_answers",
    "startup",
    "datasets",
    "looking",
    "viewer",
    "shards",
    "scale",
    "growth",
)


def main(names: list[str]) -> None:
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        sys.exit(f"no benchmark is called {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # measure commands with compiled modules, as users have them
    verdicts: list[Verdict] = []
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for name in names or BENCHMARKS:
            print(f"\n=== {name} ===", flush=True)
            verdicts += pool.submit(run_benchmark, name).result()
    print(f"\n=== summary, after {time.perf_counter() - began:.0f} s ===")
    print_verdicts(verdicts)


if __name__ == "__main__":
    main(sys.argv[1:])
