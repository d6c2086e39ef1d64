"""Runs all benchmarks one after the other and sums up which targets were met: `python -m bench [name …]`."""

import sys
import time

from bench import (
    agent_size,
    clients,
    growth,
    journal_growth,
    journal_latency,
    journal_sealing,
    journal_syscalls,
    journal_throughput,
    large_answers,
    looking,
    mirror_requests,
    mirror_slowdown,
    overhead,
    pacing,
    recover,
    sandbox,
    scoring,
    sealed_size,
    startup,
    steps,
    viewer,
)
from bench.outcome import Verdict, print_verdicts

BENCHMARKS = {
    "journal_throughput": journal_throughput.main,
    "journal_growth": journal_growth.main,
    "journal_latency": journal_latency.main,
    "journal_sealing": journal_sealing.main,
    "sealed_size": sealed_size.main,
    "journal_syscalls": journal_syscalls.main,
    "mirror_requests": mirror_requests.main,
    "mirror_slowdown": mirror_slowdown.main,
    "recover": recover.main,
    "scoring": scoring.main,
    "overhead": overhead.main,
    "agent_size": agent_size.main,
    "steps": steps.main,
    "clients": clients.main,
    "pacing": pacing.main,
    "sandbox": sandbox.main,
    "large_answers": large_answers.main,
    "startup": startup.main,
    "looking": looking.main,
    "viewer": viewer.main,
    "growth": growth.main,
}


def main(names: list[str]) -> None:
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        sys.exit(f"no benchmark is called {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    verdicts: list[Verdict] = []
    began = time.perf_counter()
    for name in names or BENCHMARKS:
        print(f"\n=== {name} ===", flush=True)
        verdicts += BENCHMARKS[name]()
    print(f"\n=== summary, after {time.perf_counter() - began:.0f} s ===")
    print_verdicts(verdicts)


if __name__ == "__main__":
    main(sys.argv[1:])
