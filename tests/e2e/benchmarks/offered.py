"""A benchmark of our own, which tests offer, change and run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from holdfast.plan.benchmarks import Benchmark
from holdfast.testing import ModelServer
from tests.e2e.commands import Done, call

ROWS = [{"question": f"{number} + {7 * number}", "answer": str(8 * number)} for number in range(1, 7)]
SHOTS = [{"question": f"{number} + 0", "answer": str(number)} for number in range(100, 130)]
MINE = Benchmark(
    name="mine",
    title="Sums of our own",
    source="these tests",
    licence="MIT",
    samples=len(ROWS),
    metric="numeric",
    columns=("question", "answer"),
    task={
        "dataset": {"hub": "o/mine", "split": "test", "shuffle": {"seed": 1}},
        "prompt": "Compute: {question}",
        "scorers": ["numeric"],
    },
    first_row=xxhash.xxh3_128_hexdigest(msgspec.json.encode(ROWS[0], order="deterministic")),
)
Offer = Callable[..., None]
"""Adds benchmarks, or replaces those of the same name."""


def changed(version: int = 1, **fields: Any) -> Benchmark:
    return msgspec.structs.replace(MINE, version=version, task={**MINE.task, **fields})


def run(folder: Path, server: ModelServer, *arguments: str) -> Done:
    options = ("--model", "openai/m", "--base-url", server.base_url, "--store", "runs")
    return call("run", *arguments, *options, cwd=folder, env={"OPENAI_API_KEY": "k"})
