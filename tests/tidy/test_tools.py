"""What `make check` runs, run as a test as well: a failing layer or type is a failing suite, in CI too."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["lint-imports"],
        pytest.param(["mypy"], marks=pytest.mark.long),  # most of a minute: `make check` runs it
        ["ruff", "check", "src", "tests", "bench", "tools"],
        ["ruff", "format", "--check", "src", "tests", "bench", "tools"],
    ],
    ids=" ".join,
)
def test_the_source_passes(command: list[str]) -> None:
    program = shutil.which(command[0], path=str(BIN))
    assert program, f"{command[0]} is not installed beside {sys.executable}"
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
