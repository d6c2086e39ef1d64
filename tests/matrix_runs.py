"""The runs that the damage matrix damages: one complete, one killed half-way, and a second of each to swap files with.

A killed run promises the records up to the one that its lease acknowledged at the last heartbeat. What was written
behind that can be cut off without a trace: nobody can tell it from a process that died earlier.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from holdfast.journal import Reader
from holdfast.state.cache import identify
from tests import matrix_model
from tests.e2e.commands import environment, write_rows

ROOT = Path(__file__).resolve().parent.parent
CHILD = ROOT / "tests" / "e2e" / "child_matrix_runs.py"
EXPERIMENT = "sums"
SAMPLES = 30
MODELS = ("small", "larger")
KEY = "sums/small/s0003/1"
DONE, KILLED = "done", "killed"
KILL_AT = 41


class Made(NamedTuple):
    """A prepared run, and another one of the same kind whose files can take the place of its own."""

    name: str
    spec: Path
    folder: Path
    other: Path

    def copy(self, place: Path) -> "Copy":
        """A copy of its own for one case, with a cache of its own."""
        folder = place / "runs" / EXPERIMENT / self.name
        shutil.copytree(self.folder, folder, symlinks=True)
        return Copy(self, place, folder)

    def counterpart(self) -> "Made":
        return Made(self.other.name, self.spec, self.other, self.folder)

    @property
    def hot(self) -> str:
        """The segment that was being written when the process was killed; empty if there is none."""
        last = sorted((self.folder / "journal").glob("*.jsonl*"))[-1]
        return f"journal/{last.name}" if last.suffix == ".jsonl" else ""

    def promised(self) -> int:
        """So many bytes of the hot segment hold acknowledged records."""
        acknowledged = json.loads((self.folder / "lease.json").read_bytes()).get("acknowledged", 0)
        return max((end for n, end in self.ends() if n <= acknowledged), default=0)

    def ends(self) -> list[tuple[int, int]]:
        """The records of the hot segment: the number of each, and the byte where it ends."""
        found, at = [], 0
        for line in (self.folder / self.hot).read_bytes().splitlines(keepends=True):
            at += len(line)
            found.append((json.loads(line)["n"], at))
        return found


class Copy(NamedTuple):
    """One copy of a run, which may be damaged."""

    of: Made
    place: Path
    folder: Path

    @property
    def store(self) -> Path:
        return self.place / "runs"

    @property
    def cache(self) -> Path:
        return self.place / "cache"

    @property
    def environment(self) -> dict[str, str]:
        return {"XDG_CACHE_HOME": str(self.cache), "HOLDFAST_CACHE": str(self.cache)}

    def path(self, file: str) -> Path:
        """Where a file of the run is, or, of a name that begins with a colon, a derived file: `:index`, `:catalog`."""
        if not file.startswith(":"):
            return self.folder / file
        if file == ":index":
            derived = identify("runs", str(self.folder), Reader(str(self.folder / "journal")).uid)
        else:
            derived = identify("stores", str(self.store))
        assert derived is not None
        path = self.cache / derived.kind / f"{derived.name}.db"
        assert path.is_file(), path
        return path


def make_runs(folder: Path) -> dict[str, Made]:
    """Each run is written by a process of its own; that of a killed one kills itself."""
    store = folder / "runs"
    for name in (DONE, KILLED):
        for run_id, first in ((name, 1), (f"other-{name}", 1001)):
            _make_run(folder, store, run_id, _write_spec(folder, run_id, first))
    place = store / EXPERIMENT
    return {name: Made(name, folder / f"{name}.yaml", place / name, place / f"other-{name}") for name in (DONE, KILLED)}


def _make_run(folder: Path, store: Path, run_id: str, spec: Path) -> None:
    is_killed = run_id.endswith(KILLED)
    lease = store / EXPERIMENT / run_id / "lease.json"
    changes = {
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HOLDFAST_CACHE": str(folder / "cache"),
    }
    if is_killed:
        changes |= {matrix_model.KILL_AT: str(KILL_AT), matrix_model.LEASE: str(lease)}
    command = [sys.executable, str(CHILD), "run", str(spec), "--id", run_id, "--store", str(store)]
    done = subprocess.run(command, cwd=folder, env=environment(changes), capture_output=True, text=True, check=False)
    assert done.returncode == (-9 if is_killed else 1), (run_id, done.returncode, done.stdout, done.stderr)


def _write_spec(folder: Path, run_id: str, first: int) -> Path:
    rows = []
    for number in range(first, first + SAMPLES):
        question = f"{number} + {7 * number}"
        sample_id = f"s{number:04d}"
        picture = _write_picture(folder, number) if has_picture(sample_id) else None
        rows.append({"id": sample_id, "question": question, "answer": str(8 * number), "picture": picture})
    write_rows(folder / f"{run_id}.jsonl", rows)
    dataset = {"path": f"{run_id}.jsonl", "id": "id", "input": "question", "target": "answer", "files": ["picture"]}
    task = {"name": "sums", "dataset": dataset, "prompt": "Compute: {question}", "scorers": ["numeric", "exact_match"]}
    spec: dict[str, Any] = {
        "experiment": EXPERIMENT,
        "models": [
            {"name": model, "provider": matrix_model.PROVIDER, "model": model, "price": {"input": 1.0, "output": 3.0}}
            for model in MODELS
        ],
        "tasks": [task],
        "concurrency": {"samples": 4},
    }
    path = folder / f"{run_id}.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def has_picture(sample_id: str) -> bool:
    return sample_id.endswith("0")


def _write_picture(folder: Path, number: int) -> str:
    name = f"pictures/{number}.png"
    (folder / "pictures").mkdir(exist_ok=True)
    (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n" + bytes([number % 251]) * 300)
    return name
