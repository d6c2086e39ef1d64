"""A run of many mock samples in a process of its own. Prints the process's peak memory in bytes.

usage: child_many.py STORE ROWS.jsonl
"""

import asyncio
import resource
import sys
from pathlib import Path

from holdfast.runs import Given, execute, new_run_location
from holdfast.spec import build_spec


def main() -> None:
    store, path = sys.argv[1:]
    raw = {
        "models": [{"name": "mock", "provider": "mock"}],
        "tasks": [{"name": "many", "dataset": {"path": path}, "scorers": ["exact_match"]}],
    }
    given = Given(build_spec(raw))
    ended = asyncio.run(execute(given, new_run_location(given, store, "many")))
    print(ended.finished, peak_bytes())


def peak_bytes() -> int:
    """Of this program alone: getrusage would also count the process that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
