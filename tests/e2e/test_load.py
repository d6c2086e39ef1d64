"""Ten thousand in flight, records of 1 KB to 20 MB, four runs in one store, readers all the time: nothing is lost."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import call, environment, finish, shown, start
from tests.e2e.live_runs import mock, stage

RUNS = ("a", "b", "c", "d")
ROWS = 2_500
LARGE_EVERY = 300
LARGE_BYTES = 20_000_000
READERS = 10
PATIENCE_SECONDS = 3600
"""Only a failing test waits so long."""

_SOLVER = f"""\
async def solve(sample, ctx):
    answer = await ctx.generate()
    number = int(sample.id[1:])
    size = {LARGE_BYTES} if number % {LARGE_EVERY} == 0 else 1000 + number
    return f"{{number}} " + "x" * size
"""
_READER = """\
import subprocess, sys
while True:
    for name in "abcd":
        done = subprocess.run([sys.executable, "-m", "holdfast", "show", name, "--store", sys.argv[1], "--json"],
                              capture_output=True, text=True)
        if "Traceback" in done.stderr:
            print(done.stderr, flush=True)
"""


@pytest.mark.long
def test_ten_thousand_in_flight_in_four_runs_under_ten_readers_lose_nothing(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"concurrency": {"samples": ROWS}, "task": {"solver": "large:solve", "scorers": []}}
    course = stage(tmp_path, ROWS, model=mock(3.0) | {"max_connections": ROWS}, stall_seconds=30, **limits)
    (tmp_path / "large.py").write_text(_SOLVER)
    specs = [("run", tmp_path / "eval.yaml", "--id", name, "--store", course.store) for name in RUNS]
    running = [start(*spec, cwd=tmp_path) for spec in specs]
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", _READER, course.store], env=environment(), stdout=subprocess.PIPE, text=True
        )
        for _ in range(READERS)
    ]
    end = time.monotonic() + PATIENCE_SECONDS
    try:
        while any(process.poll() is None for process in running) and time.monotonic() < end:
            time.sleep(0.5)
    finally:
        for reader in readers:
            reader.kill()
        told = [reader.communicate()[0] for reader in readers]
    done = [finish(process) for process in running]
    assert [each.code for each in done] == [0] * len(RUNS), [each.err for each in done]
    assert told == [""] * READERS
    for name in RUNS:
        found = shown(name, course.store)
        assert (found["status"], found["finished"], found["failed"]) == ("completed", ROWS, 0)
        assert found["anomalies"] == []
        assert call("verify", name, "--store", course.store, cwd=tmp_path).code == 0
