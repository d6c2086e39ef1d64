"""Workers of a sharded run that would plan, answer or score differently are refused before they ask for anything."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, run, write_spec

SOLVER = '''\
async def solve(sample, ctx):
    """Ask once."""
    return await ctx.generate()
'''
SCORER = """\
import holdfast

@holdfast.scorer
def same(sample, answer):
    return answer.text.strip() == str(sample.target)
"""
TASK = {"solver": "mine:solve", "scorers": ["own:same"]}


class Begun(NamedTuple):
    """A sharded run with one complete shard, and a second server for workers that come later."""

    folder: Path
    spare: ServerProcess
    before: int

    @property
    def requests(self) -> int:
        """How many requests later workers have sent."""
        return self.spare.stats().requests - self.before

    def join(self, *options: str) -> Done:
        """A worker in a process of its own: it imports the modules as they are now."""
        part = ("--id", "x", "--shards", "5", "--this-host", "--store", self.folder / "runs")
        elsewhere = ("--set", f"models.arith.base_url={self.spare.base_url}")
        return run("run", self.folder / "eval.yaml", *part, *elsewhere, *options, cwd=self.folder)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ServerProcess]]:
    folder = tmp_path_factory.mktemp("original")
    (folder / "mine.py").write_text(SOLVER)
    (folder / "own.py").write_text(SCORER)
    with start_server_process(Behaviour()) as server, start_server_process(Behaviour()) as spare:
        spec = write_spec(folder, 30, server.base_url, task=TASK)
        done = run("run", spec, "--id", "x", "--shard", "1/5", "--store", folder / "runs", cwd=folder)
        assert done.code == 0, done.said
        yield folder, spare


@pytest.fixture
def begun(tmp_path: Path, original: tuple[Path, ServerProcess]) -> Begun:
    """A copy of its own for each test."""
    folder, spare = original
    shutil.copytree(folder, tmp_path / "copy")
    return Begun(tmp_path / "copy", spare, spare.stats().requests)


def change_text(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


def add_row(folder: Path) -> None:
    with (folder / "sums.jsonl").open("a") as file:
        file.write(json.dumps({"id": "s9999", "question": "1 + 1", "answer": "2"}) + "\n")


def change_repeats(folder: Path) -> None:
    spec = yaml.safe_load((folder / "eval.yaml").read_text())
    spec["tasks"][0]["repeats"] = 2
    (folder / "eval.yaml").write_text(yaml.safe_dump(spec))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (change_text("eval.yaml", "Compute: {question}", "Calculate: {question}"), "prompt"),
        (change_text("eval.yaml", "arith-1", "arith-2"), "models.arith.model"),
        (change_repeats, "repeats"),
        (change_text("sums.jsonl", '"8"', '"9"'), "sums"),
        (add_row, "sums"),
        (change_text("mine.py", "return await", "await ctx.generate()\n    return await"), "solver"),
        (change_text("own.py", "answer.text.strip()", "answer.text"), "scorers"),
        (change_text("eval.yaml", "own:same", "numeric"), "scorers"),
    ],
    ids=["prompt", "model", "repeats", "row", "new row", "solver code", "scorer code", "scorer"],
)
def test_a_worker_that_differs_asks_for_nothing(begun: Begun, change: Callable[[Path], None], named: str) -> None:
    change(begun.folder)
    refused = begun.join()
    assert (refused.code, named in refused.err) == (3, True), refused.said
    assert "Traceback" not in refused.said
    assert begun.requests == 0
    (root,) = (begun.folder / "runs" / "sums").glob("x")
    assert [each.name for each in (root / "shards").iterdir()] == ["1-of-5"]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--set", "models.arith.max_connections=2", "--set", "models.arith.timeout_seconds=99"),
        ("--set", "concurrency.samples=3", "--set", "grace_seconds=3"),
    ],
)
def test_speed_and_place_may_differ(begun: Begun, options: tuple[str, ...]) -> None:
    done = begun.join(*options)
    assert done.code == 0, done.said
    here = sum(line["status"] == "finished" for line in exported("x", begun.folder / "runs"))
    assert here == 30
    assert 0 < begun.requests < 30
    assert call("verify", "x", "--store", begun.folder / "runs", cwd=begun.folder).code == 0
