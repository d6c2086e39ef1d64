"""docs/guide.md, done as it says: every file written, every spec checked and run, every command and script executed.

A block with a name after its language is a file. A spec without one is laid over the first spec of the page. A line of
a shell block that begins with `holdfast` is a command; `# exit 3` behind it is how it ends, else 0.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.e2e.commands import call, environment, shown

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
FENCED = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SET = {"TEAM": "evals", "LOCAL_KEY": "none"}


class Block(NamedTuple):
    """A fenced block of the page."""

    language: str
    file: str
    text: str


BLOCKS = [Block(*match.groups("")) for match in FENCED.finditer(GUIDE.read_text("utf-8"))]
SPECS = [block for block in BLOCKS if block.language == "yaml"]
SCRIPTS = [block for block in BLOCKS if block.language == "python" and not block.file]
COMMANDS = [line for block in BLOCKS if block.language == "sh" for line in block.text.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("guide")
    for block in BLOCKS:
        if block.file:
            (made / block.file).write_text(block.text)
    return made


def test_the_guide_has_what_is_tested_here() -> None:
    assert {block.language for block in BLOCKS} == {"json", "yaml", "python", "sh"}
    assert SPECS[0].file
    assert SCRIPTS
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("number", range(len(SPECS)))
def test_every_spec_can_be_run_and_does_what_it_is_there_for(number: int, folder: Path) -> None:
    first, part = (yaml.safe_load(SPECS[index].text) for index in (0, number))
    spec: dict[str, Any] = {**first, **part}
    path = folder / f"part{number}.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    checked = call("check", path, cwd=folder, env=SET)
    assert (checked.code, checked.err) == (0, "")
    if any(model["provider"] == "openai" for model in spec["models"]):
        return
    done = call("run", path, "--id", f"part{number}", "--store", folder / "parts", cwd=folder, env=SET)
    assert done.code == 0, done.said
    assert [each for each in shown(f"part{number}", folder / "parts")["scores"] if each["failures"]] == []


def test_every_command_ends_as_the_guide_says(folder: Path) -> None:
    for line in COMMANDS:
        words = shlex.split(line, comments=True)
        assert words[0] == "holdfast"
        done = call(*words[1:], cwd=folder)
        assert done.code == int((re.findall(r"# exit (\d+)", line) or ["0"])[0]), f"{line}\n{done.said}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.text.splitlines()[0])
def test_every_script_runs(script: Block, folder: Path) -> None:
    command = [sys.executable, "-c", script.text]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "['4']"


def test_the_tests_of_the_guide_pass(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_sums.py"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
