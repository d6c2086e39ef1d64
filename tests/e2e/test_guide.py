"""Every page of docs that can be followed is followed: files written, specs checked and run, commands and scripts run.

A block with a name after its language is a file; all are there from the start, and one that stands twice is replaced
where it stands again. Commands and scripts are done in the order of the page. A line of a shell block begins with
`holdfast`, or with `timeout` to kill it; `# exit 3` behind it is how it ends, else 0. A spec without a name is laid
over the first spec of its page and run in a store of its own. A `pyproject.toml` is installed, as pip would, in place.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.e2e.commands import Done, call, environment, exported, shown

DOCS = Path(__file__).parents[2] / "docs"
FENCED = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUNNABLE = {"sh", "python", "yaml", "json", "toml"}
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""With the commands of this environment first."""
KEYS = ("LOCAL_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY")
SET = {"TEAM": "evals", "PATH": PATH} | dict.fromkeys(KEYS, "none")
REAL = {"openai", "anthropic", "google", "openrouter"}
"""Whom no test asks: specs with them are only checked."""
FOLLOWED = [
    "guide.md",
    "howto/batches.md",
    "howto/compare-two-models.md",
    "howto/costs.md",
    "howto/evaluate-an-existing-agent.md",
    "howto/export-and-report.md",
    "howto/providers.md",
    "howto/resume-on-a-preemptible-machine.md",
    "howto/run-tools-in-a-sandbox.md",
    "howto/score-again.md",
    "howto/solvers.md",
    "howto/write-a-scorer.md",
    "howto/write-a-solver.md",
    "tutorial.md",
]


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    file: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*match.groups("")) for match in FENCED.finditer((DOCS / page).read_text("utf-8"))]


def parts(page: str) -> list[Block]:
    """The specs of a page that are no files: each stands for the first one, with these fields instead."""
    return [block for block in blocks(page) if block.language == "yaml" and not block.file]


def write_files(page: str, folder: Path) -> None:
    for block in reversed(blocks(page)):  # of two with one name the first is there at the start
        if block.file:
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
    assert {block.language for page in FOLLOWED for block in blocks(page)} <= RUNNABLE
    assert len(parts("guide.md")) > 5


@pytest.mark.parametrize("page", FOLLOWED)
def test_everything_on_a_page_does_what_the_page_says(page: str, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    done = 0
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        elif block.language == "sh":
            done += sum(follow(line.replace("$BUCKET", bucket(tmp_path)), tmp_path) for line in block.text.splitlines())
        elif block.language == "python":
            done += run_script(block.text, tmp_path)
    assert done > 2


def test_the_script_in_the_readme_runs(tmp_path: Path) -> None:
    scripts = [block.text for block in blocks("../README.md") if block.language == "python"]
    assert [run_script(text, tmp_path) for text in scripts] == [1]


def bucket(folder: Path) -> str:
    """What stands for an object store."""
    return (folder / "bucket").as_uri()


def follow(line: str, folder: Path) -> int:
    words = shlex.split(line, comments=True)
    assert words[0] in {"holdfast", "timeout"}, line
    env = {"BUCKET": bucket(folder)}
    done = call(*words[1:], cwd=folder, env=env) if words[0] == "holdfast" else in_shell(words, folder)
    assert done.code == int((re.findall(r"# exit (\d+)", line) or ["0"])[0]), f"{line}\n{done.said}"
    return 1


def in_shell(words: list[str], folder: Path) -> Done:
    """Who is killed by its own hand ends as a shell says."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment({"PATH": PATH, "BUCKET": bucket(folder)}),
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
    told = shown("part", tmp_path / "runs")
    assert [each for each in told["scores"] if each["failures"]] == []
    if page == "howto/solvers.md":
        assert {line["scores"]["numeric"] for line in exported("part", tmp_path / "runs")} == {True}


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    write_files("guide.md", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_sums.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
