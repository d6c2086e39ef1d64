"""Every page of docs with something to run is run: files are written, specs checked and run, commands and scripts run.

A block directly below a line with only a file name in backticks is that file. All files exist from the start; a file
that appears twice is replaced where it appears again. Commands and scripts run in the order of the page. A line of a
shell block begins with `holdfast`, or with `timeout` to kill it; `# exit 3` behind it is its exit code, else 0. A text
block is output of the shell block before it: its lines must appear there in this order, whatever their numbers; `…`
stands for anything. A spec without a file name replaces fields of the first spec of its page and runs in its own store.
A `pyproject.toml` is installed.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.e2e.benchmarks.cases import serve_all
from tests.e2e.commands import Done, call, environment, exported, shown
from tests.hubs import fake_hub

DOCS = Path(__file__).parents[2] / "docs"
FENCED = re.compile(r"(?:^`([^`\s]+)`\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"sh", "python", "yaml", "json", "toml", "text"}
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""With the commands of this environment first."""
KEYS = ("LOCAL_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY")
SET = {"TEAM": "evals", "PATH": PATH} | dict.fromkeys(KEYS, "none")
REAL = {"openai", "anthropic", "google", "openrouter"}
"""Providers that no test sends requests to: specs with them are only checked."""
FOLLOWED = [
    "howto/batches.md",
    "howto/ci.md",
    "howto/compare-two-models.md",
    "howto/costs.md",
    "howto/data-and-prompts.md",
    "howto/evaluate-an-existing-agent.md",
    "howto/export-and-report.md",
    "howto/images-and-files.md",
    "howto/inspect-a-run.md",
    "howto/limits-and-retries.md",
    "howto/manage-runs.md",
    "howto/providers.md",
    "howto/resume-and-change-a-run.md",
    "howto/resume-on-a-preemptible-machine.md",
    "howto/run-a-benchmark.md",
    "howto/run-on-many-machines.md",
    "howto/run-on-ray.md",
    "howto/run-tools-in-a-sandbox.md",
    "howto/score-again.md",
    "howto/score-by-likelihood.md",
    "howto/solvers.md",
    "howto/start-a-run.md",
    "howto/test-offline.md",
    "howto/use-a-judge.md",
    "howto/use-from-python.md",
    "howto/write-a-scorer.md",
    "howto/write-a-solver.md",
    "tutorial.md",
    "viewer.md",
]


class Block(NamedTuple):
    """A fenced block of a page."""

    file: str
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*match.groups("")) for match in FENCED.finditer((DOCS / page).read_text("utf-8"))]


def parts(page: str) -> list[Block]:
    """The specs of a page without a file name: each replaces fields of the first spec."""
    return [block for block in blocks(page) if block.language == "yaml" and not block.file]


def write_files(page: str, folder: Path) -> None:
    for block in reversed(blocks(page)):  # of two with one name the first is there at the start
        if block.file:
            (folder / block.file).parent.mkdir(exist_ok=True)
            (folder / block.file).write_text(block.text)
        if block.file == "pyproject.toml":
            install(tomllib.loads(block.text)["project"], folder)


def install(project: dict[str, Any], folder: Path) -> None:
    """Beside its modules: what `pip install -e` would leave for others to find."""
    about = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = {
        name: [f"{each} = {where}" for each, where in points.items()]
        for name, points in project["entry-points"].items()
    }
    (about / "entry_points.txt").write_text(
        "\n".join(f"[{name}]\n" + "\n".join(lines) + "\n" for name, lines in groups.items())
    )


def test_every_page_with_something_to_run_is_followed() -> None:
    pages = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]
    assert [page for page in pages if {block.language for block in blocks(page)} & {"sh", "python"}] == FOLLOWED
    assert {block.language for page in FOLLOWED for block in blocks(page)} <= LANGUAGES
    assert sum(len(parts(page)) for page in FOLLOWED) > 20


@pytest.fixture
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """The data of benchmarks, for the page about them."""
    if "run-a-benchmark" not in request.node.name:
        yield
        return
    with fake_hub(tmp_path / "hf") as made:
        serve_all(made)
        yield


SLOW = (
    "howto/evaluate-an-existing-agent.md",
    "howto/export-and-report.md",
    "howto/resume-on-a-preemptible-machine.md",
    "howto/run-a-benchmark.md",
    "howto/run-on-many-machines.md",
    "howto/run-on-ray.md",
    "howto/use-from-python.md",
    "howto/write-a-solver.md",
)
"""Its runs take half a minute, so that they can be killed; test_mirror.py and test_kill_and_resume.py do the same."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.long if page in SLOW else ()) for page in FOLLOWED]
)
def test_everything_on_a_page_does_what_the_page_says(page: str, tmp_path: Path, hub: None) -> None:
    write_files(page, tmp_path)
    done, printed = 0, ""
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        elif block.language == "sh":
            lines = block.text.replace("$BUCKET", bucket(tmp_path)).splitlines()
            printed = "".join(follow(line, tmp_path) for line in lines)
            done += len(lines)
        elif block.language == "python":
            done += run_script(block.text, tmp_path)
        elif block.language == "text":
            assert missing_line(block.text, printed) == "", printed
    assert done > 2


def missing_line(text: str, printed: str) -> str:
    """The first line of a text block that the output does not have behind the lines before it."""
    lines = iter([comparable(line) for line in printed.splitlines()])
    for expected in text.splitlines():
        pattern = re.escape(comparable(expected)).replace("…", ".*")
        if not any(re.fullmatch(pattern, line) for line in lines):
            return expected
    return ""


def comparable(line: str) -> str:
    """Without what differs from run to run: numbers, ids, and the widths of columns."""
    return " ".join(re.sub(r"\b[0-9a-f]{16}\b|\d+(\.\d+)?", "0", line).split())


def test_output_that_a_page_shows_must_be_printed() -> None:
    printed = "sums  four  0.6667\nevaluation d0eb0394dbac5045: 3 scored\n"
    assert missing_line("sums four 0.5\nevaluation …: 2 scored\n", printed) == ""
    assert missing_line("evaluation …\nsums four 0.5\n", printed) == "sums four 0.5"


def test_the_script_in_the_readme_runs(tmp_path: Path) -> None:
    scripts = [block.text for block in blocks("../README.md") if block.language == "python"]
    assert [run_script(text, tmp_path) for text in scripts] == [1]


def bucket(folder: Path) -> str:
    """A folder in place of an object store."""
    return (folder / "bucket").as_uri()


def follow(line: str, folder: Path) -> str:
    words = shlex.split(line, comments=True)
    assert words[0] in {"holdfast", "timeout"}, line
    env = {"BUCKET": bucket(folder)}
    # Only a new process finds a package; and Ray does not always start in a process that has run many tests.
    needs_process = any(folder.glob("*.dist-info")) or "ray" in words
    is_call = words[0] == "holdfast" and not needs_process
    done = call(*words[1:], cwd=folder, env=env) if is_call else in_shell(words, folder)
    assert done.code == int((re.findall(r"# exit (\d+)", line) or ["0"])[0]), f"{line}\n{done.said}"
    return done.said


def in_shell(words: list[str], folder: Path) -> Done:
    """A killed command has the exit code that a shell reports."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment({"PATH": PATH, "BUCKET": bucket(folder), "PYTHONPATH": str(folder)}),
        capture_output=True,
        text=True,
        check=False,
    )
    return Done(done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stdout, done.stderr)


def run_script(text: str, folder: Path) -> int:
    command = [sys.executable, "-c", text]
    env = environment({"BUCKET": bucket(folder)})
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout
    return 1


@pytest.mark.parametrize(("page", "number"), [(page, i) for page in FOLLOWED for i in range(len(parts(page)))])
def test_every_spec_can_be_run_and_does_what_it_is_there_for(page: str, number: int, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    first = next(block for block in blocks(page) if block.language == "yaml")
    spec: dict[str, Any] = {**yaml.safe_load(first.text), **yaml.safe_load(parts(page)[number].text)}
    path = tmp_path / "part.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    env = {**SET, "BUCKET": bucket(tmp_path)}
    checked = call("check", path, cwd=tmp_path, env=env)
    assert (checked.code, checked.err) == (0, "")
    named = [model if isinstance(model, str) else model["provider"] for model in spec["models"]]
    if any(name.partition("/")[0] in REAL for name in named):
        return
    done = call("run", path, "--id", "part", "--store", tmp_path / "runs", cwd=tmp_path, env=env)
    assert done.code == 0, done.said
    assert [each for each in shown("part", tmp_path / "runs")["scores"] if each["failures"]] == []
    if page == "howto/solvers.md":
        assert {line["scores"]["numeric"] for line in exported("part", tmp_path / "runs")} == {True}


def test_the_pytest_example_passes(tmp_path: Path) -> None:
    write_files("howto/ci.md", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_sums.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
