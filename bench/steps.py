"""What does a durable step cost? Microseconds of one `ctx.call` against the same function awaited without Holdfast,
wall and CPU, with 1 and with 64 samples in flight; and one-step samples a second against DBOS's one-step workflows.

A sample is durable as a workflow is: what it was asked, its step, its answer. DBOS runs on its SQLite system database,
as many workflows in flight, in a virtual environment of its own: HOLDFAST_DBOS names a Python that has it; else one is
made here, and if that fails the comparison is left out and the reason told. Target: 10 times DBOS.
"""

import asyncio
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.measure import RESULTS, Spread, paired_ratio, scratch, take_turns
from bench.outcome import Verdict, at_least, print_table, print_verdicts, save
from holdfast.api import Task, run_async
from holdfast.records.samples import Sample
from holdfast.solve import Context, solver

ROUNDS = 5
IN_FLIGHT = (1, 64)
STEPS = {1: 2_000, 64: 200}
WORKFLOWS = 2_000
_DBOS_VERSION = "3.3.0"
_DBOS_PROGRAM = """
import asyncio, json, sys, time
from dbos import DBOS

COUNT, IN_FLIGHT, FOLDER = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

@DBOS.step()
async def look(number: int) -> dict:
    return {"number": number, "found": "a value"}

@DBOS.workflow()
async def one_step(number: int) -> str:
    return (await look(number))["found"]

async def main() -> None:
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{FOLDER}/dbos.sqlite", "log_level": "ERROR"})
    DBOS.launch()
    await one_step(-1)
    numbers = iter(range(COUNT))

    async def work() -> None:
        for number in numbers:
            await one_step(number)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    told = {"count": COUNT, "wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    DBOS.destroy()
    print(json.dumps(told))

asyncio.run(main())
"""


class Cost(msgspec.Struct, frozen=True):
    """Of so many steps, or samples, together."""

    count: int
    wall_seconds: float
    cpu_seconds: float


class Times:
    """From when the first solver of a run begins until the last one ends."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        self._ended = (0.0, 0.0)

    def begin(self) -> None:
        self._began = self._began or (time.perf_counter(), time.process_time())

    def end(self) -> None:
        self._ended = (time.perf_counter(), time.process_time())

    def cost(self, count: int) -> Cost:
        assert self._began is not None
        return Cost(count, self._ended[0] - self._began[0], self._ended[1] - self._began[1])


async def look(number: int) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"number": number, "found": "a value"}


async def measure_steps(durable: bool, in_flight: int, folder: str) -> Cost:
    """Both run as samples of a run, so that only the step differs."""
    times, steps = Times(), STEPS[in_flight]

    @solver
    async def many(sample: Sample, ctx: Context) -> str:
        times.begin()
        for number in range(steps):
            await (ctx.call(look, {"number": number}) if durable else look(number))
        times.end()
        return "done"

    await _run(many, in_flight, in_flight, folder)
    return times.cost(steps * in_flight)


async def measure_samples(folder: str) -> Cost:
    @solver
    async def one_step(sample: Sample, ctx: Context) -> str:
        return str((await ctx.call(look, {"number": int(sample.id)}))["found"])

    wall, cpu = time.perf_counter(), time.process_time()
    await _run(one_step, WORKFLOWS, IN_FLIGHT[-1], folder)
    return Cost(WORKFLOWS, time.perf_counter() - wall, time.process_time() - cpu)


async def _run(solve: Any, samples: int, in_flight: int, folder: str) -> None:
    rows = [{"id": str(number), "q": "?"} for number in range(samples)]
    task = Task("steps", rows, "{q}", solver=solve)
    await run_async(task, ["mock/m"], id="r", store=folder, quiet=True, concurrency={"samples": in_flight})


def _child(*what: str) -> Callable[[], Cost]:
    def run() -> Cost:
        command = [sys.executable, "-m", "bench.steps", *what]
        return msgspec.json.decode(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout, type=Cost)

    return run


def _be_child(what: str, in_flight: int) -> None:
    with scratch("steps") as folder:
        measured = measure_samples(folder) if what == "samples" else measure_steps(what == "step", in_flight, folder)
        print(msgspec.json.encode(asyncio.run(measured)).decode())


def _dbos_python() -> str:
    """A Python that has DBOS. OSError or CalledProcessError if there is none and none can be made."""
    named = os.environ.get("HOLDFAST_DBOS")
    if named:
        return named
    folder = RESULTS / f"dbos-{_DBOS_VERSION}"
    python = str(folder / "bin" / "python")
    if not (folder / "ready").exists():
        venv.create(folder, clear=True, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"dbos=={_DBOS_VERSION}"]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        (folder / "ready").touch()
    return python


def _measure_dbos(python: str) -> Cost:
    with scratch("dbos") as folder:
        program = Path(folder, "program.py")
        program.write_text(_DBOS_PROGRAM)
        command = [python, str(program), str(WORKFLOWS), str(IN_FLIGHT[-1]), folder]
        done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Cost)


def _contest() -> tuple[dict[str, list[Cost]], str]:
    """One-step samples and workflows, in turns; and why DBOS is missing, if it is."""
    contestants = {"holdfast": _child("samples", "64")}
    try:
        python = _dbos_python()
        _measure_dbos(python)
        contestants["dbos"] = lambda: _measure_dbos(python)
        missing = ""
    except subprocess.CalledProcessError as error:
        missing = (error.stderr or b"").decode(errors="replace").strip().rpartition("\n")[2] or str(error)
    except OSError as error:
        missing = str(error)
    return take_turns(ROUNDS, contestants), missing


def _overhead(costs: dict[str, list[Cost]], in_flight: int) -> list[list[str]]:
    rows = []
    for clock in ("wall_seconds", "cpu_seconds"):
        each = {
            what: [getattr(cost, clock) / cost.count * 1e6 for cost in costs[f"{what} {in_flight}"]]
            for what in ("step", "bare")
        }
        more = Spread.of([mine - bare for mine, bare in zip(each["step"], each["bare"], strict=True)])
        spreads = [Spread.of(each[what]).show(1) for what in ("bare", "step")]
        rows.append([f"{in_flight} in flight, {clock.partition('_')[0]}", *spreads, more.show(1)])
    return rows


def main() -> list[Verdict]:
    pairs = {f"{what} {many}": _child(what, str(many)) for many in IN_FLIGHT for what in ("bare", "step")}
    costs = take_turns(ROUNDS, pairs)
    rows = [row for many in IN_FLIGHT for row in _overhead(costs, many)]
    print_table("Microseconds of one call: median (low..high)", ["", "bare", "durable step", "overhead"], rows)
    contest, missing = _contest()
    rates = {name: [each.count / each.wall_seconds for each in found] for name, found in contest.items()}
    cpu = {name: Spread.of([each.count / each.cpu_seconds for each in found]) for name, found in contest.items()}
    rows = [[name, Spread.of(found).show(), cpu[name].show()] for name, found in rates.items()]
    print_table(f"{WORKFLOWS:,} of one step, {IN_FLIGHT[-1]} in flight", ["who", "a second", "a CPU second"], rows)
    verdicts = []
    if missing:
        print(f"  DBOS was not measured: {missing}")
    else:
        ratio = paired_ratio(rates["holdfast"], rates["dbos"])
        print(f"  times DBOS: {ratio.show(1)}")
        verdicts = [at_least("steps: one-step samples a second, times DBOS", ratio.median, 10)]
        print_verdicts(verdicts)
    save("steps", {"calls": costs, "one_step": contest}, verdicts)
    return verdicts


if __name__ == "__main__":
    if sys.argv[1:]:
        _be_child(sys.argv[1], int(sys.argv[2]))
    else:
        main()
