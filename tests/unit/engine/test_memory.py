"""Memory does not grow with the run: ten times the samples need about the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("child_many.py")


def peak_bytes(folder: Path, count: int) -> int:
    path = folder / f"{count}.jsonl"
    with path.open("w") as file:
        for number in range(count):
            file.write(json.dumps({"id": str(number), "input": f"question {number}", "target": "x" * 200}) + "\n")
    printed = subprocess.run(
        [sys.executable, CHILD, folder / f"store-{count}", path], capture_output=True, text=True, check=True
    )
    finished, peak = map(int, printed.stdout.split())
    assert finished == count
    return peak


@pytest.mark.long
def test_two_hundred_thousand_samples_need_hardly_more_memory_than_twenty_thousand(tmp_path: Path) -> None:
    few = peak_bytes(tmp_path, 20_000)
    many = peak_bytes(tmp_path, 200_000)
    assert many < 250 << 20
    assert many - few < 40 << 20
