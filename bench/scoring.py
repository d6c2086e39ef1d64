"""What does it cost to score the answers of a run again?

Runs of 10,000 and 100,000 one-turn answers of a mock, without scorers. `holdfast score` in a process of its own, three
times over: with one pure scorer; with another beside it, which takes the scores of the first over instead of calling
it; and the same again, which has nothing to do. Each ends with the report of the run. Target: under 250 MB, whatever
the run's size.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import yaml

from bench.measure import scratch
from bench.outcome import Verdict, at_most, print_table, print_verdicts, save
from bench.processes import Taken, taken_by

FEW = 10_000
MANY = 100_000
_RUN = "x"
_FIRST = ("--scorers", "includes")
_BOTH = (*_FIRST, "--scorers", "exact_match")
_CASES = {"one scorer": _FIRST, "a second, the first taken over": _BOTH, "the same again": _BOTH}


def main() -> list[Verdict]:
    found: dict[str, dict[str, Taken]] = {}
    for samples in (FEW, MANY):
        with scratch("scoring") as folder:
            make_run(Path(folder), samples)
            command = [sys.executable, "-m", "holdfast", "score", _RUN]
            taken = {name: taken_by([*command, *options], dict(os.environ), folder) for name, options in _CASES.items()}
        found[f"{samples:,}"] = taken
        _print(samples, taken)
    peaks = [(size, name, each.peak_mb) for size, taken in found.items() for name, each in taken.items()]
    verdicts = [at_most(f"scoring: peak MB of {size}, {name}", peak, 250) for size, name, peak in peaks]
    save("scoring", found, verdicts)
    return verdicts


def make_run(folder: Path, samples: int) -> None:
    """A run of a mock whose answers no scorer has seen."""
    with (folder / "rows.jsonl").open("wb") as file:
        for number in range(1, samples + 1):
            row = {"id": str(number), "input": f"Say hello, number {number}.", "target": "hello"}
            file.write(msgspec.json.encode(row) + b"\n")
    spec = {
        "experiment": "bench",
        "models": [{"name": "m", "provider": "mock", "max_connections": 256}],
        "tasks": [{"name": "trivial", "dataset": {"path": "rows.jsonl"}}],
        "concurrency": {"samples": 256},
    }
    (folder / "eval.yaml").write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "holdfast", "run", "eval.yaml", "--id", _RUN]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def _print(samples: int, taken: dict[str, Taken]) -> None:
    rows = [
        [
            name,
            f"{each.cpu_seconds:.1f}",
            f"{each.wall_seconds:.1f}",
            f"{samples / each.wall_seconds:,.0f}",
            f"{each.peak_mb:.0f}",
        ]
        for name, each in taken.items()
    ]
    print_table(f"scoring {samples:,} answers", ["", "CPU s", "wall s", "answers/s", "peak MB"], rows)


if __name__ == "__main__":
    print_verdicts(main())
