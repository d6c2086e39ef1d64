"""Does a sample cost the same in a large run as in a small one? `holdfast run` with a model that answers at once, for
1,000, 10,000 and 100,000 samples; `python -m bench.growth 1000000` for others.

CPU per sample beyond a run of two samples, the time until the first request, a resume of the finished run, and peak
memory. Targets: no growth of the CPU per sample; the first request within 10 s, and 200 MB.
"""

import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path

import msgspec

from bench.looking import Look, make_run, measure
from bench.measure import Spread, scratch
from bench.outcome import Verdict, at_most, print_table, save

SIZES = (1_000, 10_000, 100_000)
_ROUNDS = {1_000: 5, 10_000: 3}
"""By size; larger ones are measured once."""


class Growth(msgspec.Struct, frozen=True):
    """One run."""

    run: Look
    again: Look
    first_seconds: float
    """From the start of the process until it began to send requests (`run.started` in its log)."""


def main(sizes: tuple[int, ...] = SIZES) -> list[Verdict]:
    found = {size: [_measure(size) for _ in range(_ROUNDS.get(size, 1))] for size in sizes}
    empty = Spread.of([_measure(2).run.cpu_seconds for _ in range(5)])
    per_sample = {
        size: Spread.of([(each.run.cpu_seconds - empty.median) / size for each in every])
        for size, every in found.items()
    }
    rows = [
        [
            f"{size:,}",
            per_sample[size].show(1, 1e6),
            Spread.of([each.first_seconds for each in every]).show(1),
            Spread.of([each.again.cpu_seconds for each in every]).show(2),
            f"{max(each.run.peak_mb for each in every):,.0f}",
        ]
        for size, every in found.items()
    ]
    head = ["samples", "CPU us a sample", "first request s", "run again, CPU s", "peak MB"]
    print_table(f"Growth (a run of two samples: {empty.median:.2f} CPU s)", head, rows)
    small, large = per_sample[sizes[min(1, len(sizes) - 1)]].median, per_sample[sizes[-1]].median
    last = found[sizes[-1]]
    verdicts = [
        at_most(f"growth: CPU per sample at {sizes[-1]:,} to that of a smaller run", large / small, 1.1),
        at_most("growth: seconds to the first request", max(each.first_seconds for each in last), 10),
        at_most("growth: peak MB", max(each.run.peak_mb for each in last), 200),
    ]
    save("growth", found, verdicts)
    return verdicts


def _measure(size: int) -> Growth:
    command = [sys.executable, "-m", "holdfast", "run", "spec.json", "--id", "r"]
    with scratch("growth") as folder:
        make_run(folder, size, run=False)
        environment = {**os.environ, "HOLDFAST_CACHE": os.path.join(folder, "cache")}
        began = time.time()
        run = measure(command, folder, environment)
        lines = next(Path(folder, "runs").rglob("log.jsonl")).read_text().splitlines()
        started = next(json.loads(line) for line in lines if "started" in json.loads(line)["event"])
        return Growth(
            run, measure(command, folder, environment), datetime.fromisoformat(started["at"]).timestamp() - began
        )


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or SIZES)
