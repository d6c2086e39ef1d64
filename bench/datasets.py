"""What does it take to load a million rows of the Hugging Face Hub? A Parquet file of 1,000,000 questions on a fake
Hub, read by `holdfast check`: it downloads the file, reads every row, compares all ids and renders every prompt.
`python -m bench.datasets 100000` for another size.

Beside it, in the same run: pyarrow alone, which reads the same file in batches into Python rows. Three ways of ours:
the rows as they are in the file; shuffled and interleaved by subject, as most benchmarks are; a tenth of them, selected
by `where`. Targets: 400 MB; at most 12 times the CPU of pyarrow alone.
"""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from bench.measure import Spread, scratch
from bench.outcome import Verdict, at_most, print_table, save
from bench.processes import Taken, taken_by
from holdfast.testing import FakeHub

ROWS = 1_000_000
ROUNDS = 3
_HUB = "bench/questions"
_SELECTIONS: dict[str, dict[str, Any]] = {
    "in the order of the file": {},
    "shuffled by subject": {"shuffle": {"seed": 1, "by": "subject"}},
    "selected by where": {"where": "level >= 9"},
}
_PYARROW = """
import sys
import pyarrow.parquet
count = 0
with pyarrow.parquet.ParquetFile(sys.argv[1]) as file:
    for batch in file.iter_batches(batch_size=1024):
        for row in batch.to_pylist():
            count += 1
print(count)
"""
_ALONE = "pyarrow alone"


def main(rows: int = ROWS) -> list[Verdict]:
    data = _make_parquet(rows)
    found: dict[str, list[Taken]] = {}
    with scratch("datasets") as folder, FakeHub() as hub:
        hub.add(_HUB, {"data/test.parquet": data})
        Path(folder, "rows.parquet").write_bytes(data)
        for name, selection in _SELECTIONS.items():
            Path(folder, f"{name}.json").write_text(json.dumps(_spec(selection)))
        for number in range(ROUNDS):
            names = [_ALONE, *_SELECTIONS]
            for name in reversed(names) if number % 2 else names:
                home = Path(folder, f"home-{number}-{names.index(name)}")  # empty: every round downloads
                found.setdefault(name, []).append(_measure(name, folder, home, hub))
    alone = Spread.of([each.cpu_seconds for each in found[_ALONE]]).median
    table = [
        [
            name,
            Spread.of([each.cpu_seconds for each in every]).show(1),
            f"{Spread.of([each.cpu_seconds for each in every]).median / alone:.1f}",
            Spread.of([each.wall_seconds for each in every]).show(1),
            f"{max(each.peak_mb for each in every):,.0f}",
        ]
        for name, every in found.items()
    ]
    title = f"{rows:,} rows of a Parquet file of {len(data) / 1e6:,.0f} MB on the Hub"
    print_table(title, ["reader", "CPU s", "to pyarrow", "wall s", "peak MB"], table)
    ours = {name: every for name, every in found.items() if name != _ALONE}
    cpu = {name: Spread.of([each.cpu_seconds for each in every]).median for name, every in ours.items()}
    verdicts = [
        at_most(f"datasets: {name}, peak MB", max(each.peak_mb for each in every), 400) for name, every in ours.items()
    ]
    verdicts += [at_most(f"datasets: {name}, CPU to pyarrow", cpu[name] / alone, 12) for name in ours]
    save("datasets", {"rows": rows, "bytes": len(data), "readers": found}, verdicts)
    return verdicts


def _make_parquet(rows: int) -> bytes:
    """Questions as in MMLU. One row group, as pyarrow writes by default: the largest that readers have to expect."""
    import pyarrow  # type: ignore[import-untyped]  # it has no types
    import pyarrow.parquet  # type: ignore[import-untyped]

    words = ("harbour", "lantern", "quarry", "meadow", "copper", "ledger", "violin", "glacier")
    table = pyarrow.table(
        {
            "id": [f"q{index}" for index in range(rows)],
            "question": [f"{index}: how many {words[index % 8]}s and {words[index % 7]}s?" for index in range(rows)],
            "subject": [f"subject {index % 57}" for index in range(rows)],
            "choices": [[str(index), str(index + 1), str(index + 2), str(index + 3)] for index in range(rows)],
            "answer": [index % 4 for index in range(rows)],
            "level": [index % 10 for index in range(rows)],
        }
    )
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, row_group_size=rows)
    return file.getvalue()


def _spec(selection: dict[str, Any]) -> dict[str, Any]:
    dataset = {"hub": _HUB, "split": "test", "id": "id", "input": "question", "target": "answer", **selection}
    task = {"name": "questions", "dataset": dataset, "prompt": "{question}", "scorers": ["includes"]}
    return {"tasks": [task], "models": [{"name": "mock", "provider": "mock"}]}


def _measure(name: str, folder: str, home: Path, hub: FakeHub) -> Taken:
    home.mkdir()
    environment = {**os.environ, **hub.environment(home / "hf"), "HOLDFAST_CACHE": str(home / "cache")}
    command = [sys.executable, "-m", "holdfast", "check", f"{name}.json"]
    if name == _ALONE:
        command = [sys.executable, "-c", _PYARROW, "rows.parquet"]
    return taken_by(command, environment, folder)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
