"""How long does looking at a run take, and does it grow with the run? Every reading command on complete runs of 10,000
and 100,000 samples; `python -m bench.looking 1000000` for others.

The first call catches up the index; the later ones find it up to date. Beside them, over the same rows: counting a
plain SQLite table in a Python process, and an aggregate of DuckDB, if it is installed. Targets: 0.5 CPU s and 100 MB
for `ls`, `show`, `report`, `show KEY` and `run` of the finished run; 5 CPU s for `leaderboard` and `compare`; 50,000
export lines a CPU second.
"""

import importlib.util
import os
import sqlite3
import subprocess
import sys

import msgspec

from bench.measure import Spread, scratch
from bench.outcome import Verdict, at_least, at_most, print_table, save

SIZES = (10_000, 100_000)
_ROUNDS = {10_000: 3}
"""Later calls, by size; larger runs are looked at once more."""
_KEY = "sums/mock/500/1"
_COMMANDS = {
    "ls": ["ls"],
    "show": ["show", "r"],
    "report": ["report", "r"],
    "show KEY": ["show", "r", _KEY],
    "run (finished)": ["run", "spec.json", "--id", "r"],
    "leaderboard": ["leaderboard", "r"],
    "compare": ["compare", "r"],
    "export": ["export", "r", "--output", os.devnull],
    "verify": ["verify", "r"],
}
_COUNT = """
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT status, count(*), avg(score) FROM rows GROUP BY status").fetchall())
"""
_AGGREGATE = """
import duckdb, sys
rows = "SELECT status, count(*), avg(score) FROM s.rows GROUP BY status"
print(duckdb.sql("ATTACH '%s' AS s (TYPE sqlite)" % sys.argv[1]), duckdb.sql(rows).fetchall())
"""


class Look(msgspec.Struct, frozen=True):
    """What one call of a command used."""

    cpu_seconds: float
    peak_mb: float


def main(sizes: tuple[int, ...] = SIZES) -> list[Verdict]:
    found: dict[int, dict[str, list[Look]]] = {}
    for size in sizes:
        with scratch("looking") as folder:
            make_run(folder, size)
            found[size] = _look(folder, size)
    names = [*found[sizes[0]]]
    rows = [[name, *(cell for size in sizes for cell in _cells(found[size].get(name, [])))] for name in names]
    heads = [f"{size:,}: {what}" for size in sizes for what in ("first CPU s", "CPU s", "peak MB")]
    print_table("Looking at a complete run", ["command", *heads], rows)
    verdicts = list(_judge(found[sizes[-1]], sizes[-1]))
    save("looking", found, verdicts)
    return verdicts


def make_run(folder: str, size: int, *, run: bool = True) -> None:
    """Write and run a spec: half of the samples for each of two models, so that there is something to compare."""
    rows = [{"id": i, "question": f"{i} + 1", "target": str(i + 1)} for i in range(1, size // 2 + 1)]
    spec = {
        "experiment": "default",
        "tasks": [{"name": "sums", "dataset": {"path": "rows.jsonl"}, "prompt": "{question}", "scorers": ["includes"]}],
        "models": [{"name": name, "provider": "mock", "max_connections": 256} for name in ("mock", "other")],
        "concurrency": {"samples": 256},
    }
    with open(os.path.join(folder, "rows.jsonl"), "wb") as file:
        file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
    with open(os.path.join(folder, "spec.json"), "wb") as file:
        file.write(msgspec.json.encode(spec))
    if run:
        command = [sys.executable, "-m", "holdfast", "run", "spec.json", "--id", "r"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _look(folder: str, size: int) -> dict[str, list[Look]]:
    environment = {**os.environ, "HOLDFAST_CACHE": os.path.join(folder, "cache")}
    looks: dict[str, list[Look]] = {}
    rounds = 1 + _ROUNDS.get(size, 1)
    for name, command in _COMMANDS.items():
        looks[name] = [
            measure([sys.executable, "-m", "holdfast", *command], folder, environment) for _ in range(rounds)
        ]
    plain = os.path.join(folder, "plain.db")
    with sqlite3.connect(plain) as database:
        database.execute("CREATE TABLE rows (o INTEGER PRIMARY KEY, key TEXT, status TEXT, score REAL)")
        made = ((o, f"sums/mock/{o}/1", "finished", o % 2) for o in range(size))
        database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", made)
    limits = {"plain sqlite3": _COUNT}
    if importlib.util.find_spec("duckdb") is not None:
        limits["DuckDB"] = _AGGREGATE
    for name, code in limits.items():
        command = [sys.executable, "-c", code, plain]
        looks[name] = [measure(command, folder, environment) for _ in range(rounds)]
    return looks


def measure(command: list[str], folder: str, environment: dict[str, str]) -> Look:
    """In a process between, because the peak memory of children is kept only as the largest of all of them."""
    code = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "assert done.returncode in (0, 1), done.stderr.decode()\n"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE
    )
    cpu, peak = done.stdout.split()
    return Look(float(cpu), float(peak))


def _cells(looks: list[Look]) -> list[str]:
    if not looks:
        return ["", "", ""]
    first, later = looks[0], looks[1:]
    cpu, peak = Spread.of([each.cpu_seconds for each in later]), max(each.peak_mb for each in looks)
    return [f"{first.cpu_seconds:.2f}", cpu.show(2), f"{peak:,.0f}"]


def _judge(looks: dict[str, list[Look]], size: int) -> list[Verdict]:
    cpu = {name: Spread.of([each.cpu_seconds for each in every[1:]]).median for name, every in looks.items()}
    peak = {name: max(each.peak_mb for each in every[1:]) for name, every in looks.items()}
    quick = ("ls", "show", "report", "show KEY", "run (finished)")
    verdicts = [at_most(f"looking: {name} at {size:,}, CPU s", cpu[name], 0.5) for name in quick]
    verdicts += [at_most(f"looking: {name} at {size:,}, peak MB", peak[name], 100) for name in quick]
    verdicts += [at_most(f"looking: {name} at {size:,}, CPU s", cpu[name], 5) for name in ("leaderboard", "compare")]
    verdicts.append(at_least(f"looking: export at {size:,}, lines per CPU s", size / cpu["export"], 50_000))
    return verdicts


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or SIZES)
