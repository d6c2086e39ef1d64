"""Hand-made rows in the layout of each benchmark's source, with answers that are right and answers that are wrong.

The rows are ours: no row of a benchmark is in this repository. Each family has a module `cases_FAMILY` with `CASES`.
"""

import csv
import importlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from holdfast.plan import all_benchmarks
from holdfast.testing import FakeHub

FAMILIES = (
    "arithmetic",
    "commonsense",
    "competition",
    "exams",
    "factuality",
    "instructions",
    "medicine",
    "programs",
    "puzzles",
    "reading",
    "science",
)

CANARY = "BENCHMARK DATA SHOULD NEVER APPEAR IN TRAINING (made up)"
"""In the column `canary` of sources that have one."""


class Case(NamedTuple):
    """A sample: how its prompt is recognised, answers that count as right, and traps that must not."""

    mark: str
    """A text that only the prompt of this sample contains, at its end."""
    right: Sequence[str]
    wrong: Sequence[str]
    partial: Mapping[str, float] = {}
    """Answers that are partly right, with their score."""


Files = Mapping[str, Sequence[Mapping[str, Any]]]
"""Raw rows by path; the suffix decides the format."""


class BenchmarkCases(NamedTuple):
    """The files of a benchmark's source, and its samples."""

    files: Files
    cases: Sequence[Case]


def all_cases() -> dict[str, BenchmarkCases]:
    found: dict[str, BenchmarkCases] = {}
    for family in FAMILIES:
        found |= importlib.import_module(f"tests.e2e.benchmarks.cases_{family}").CASES
    return found


def serve_all(hub: FakeHub) -> None:
    """Add the source of every benchmark to the hub, at the revision that its card names."""
    files: dict[tuple[str, str], dict[str, bytes]] = {}
    for name, cases in all_cases().items():
        dataset = all_benchmarks()[name].task["dataset"]
        if "hub" in dataset:
            known = files.setdefault((dataset["hub"], dataset.get("revision", "")), {})
            known |= {path: encode(path, rows) for path, rows in cases.files.items()}
    for (repository, revision), content in files.items():
        is_commit = len(revision) == 40
        branch = "main" if is_commit or not revision else revision
        hub.add(repository, content, branch, revision if is_commit else "")


def encode(path: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    if path.endswith(".parquet"):
        made = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(map(dict, rows))), made)
        return made.getvalue()
    if path.endswith(".csv"):
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()
    return "".join(json.dumps(row) + "\n" for row in rows).encode()
