"""Commands that are killed with SIGKILL and typed again: the second call finishes what the first one began."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.testing import Behaviour, Fault, ServerProcess, start_server_process
from tests.e2e.commands import call, environment, exported, kill_when, shown, write_spec
from tests.mirrors import SAMPLES, Kept, finished_so_far, run_and_mirror

RUN = "x"
FORK = "y"
ROWS = 12
CONNECTIONS = 2
SLOW = Behaviour(latency_seconds=0.05)

Happened = Callable[["Scene"], bool]


class Scene(NamedTuple):
    """A finished run in a folder, and the server that answered it."""

    folder: Path
    server: ServerProcess
    asked: int
    """Requests until now."""

    @property
    def runs(self) -> Path:
        return self.folder / "runs" / "sums"

    def answers(self, run_id: str) -> dict[str, tuple[object, ...]]:
        lines = exported(run_id, self.folder / "runs")
        return {line["key"]: (line["status"], line["output"], line["scores"]) for line in lines}


def set_up(folder: Path, server: ServerProcess) -> Scene:
    spec = write_spec(folder, ROWS, server.base_url, model={"max_connections": CONNECTIONS})
    done = call("run", spec, "--id", RUN, "--limit", "4", cwd=folder)
    assert done.code == 0, done.err
    return Scene(folder, server, server.stats().requests)


def after_requests(count: int) -> Happened:
    return lambda scene: scene.server.stats().requests >= scene.asked + count


def after_file(pattern: str) -> Happened:
    """A file or folder that only the command makes."""
    return lambda scene: any(path.parts[-2] != RUN or "-2" in path.name for path in scene.runs.glob(pattern))


def never(_: Scene) -> bool:
    return False


EXTEND = ("extend", RUN, "--limit", str(ROWS))
EXTEND_MOMENTS: dict[str, Happened] = {
    "the data file is written": after_file(f"{RUN}/data-2.jsonl.zst"),
    "the plan file is written": after_file(f"{RUN}/plan-2.jsonl.zst"),
    "it has begun to ask": after_requests(1),
    "it has asked half": after_requests(4),
    "it has asked for the last": after_requests(ROWS - 4),
    "it has ended": never,
}
FORK_MOMENTS: dict[str, Happened] = {
    "its plan is written": after_file(".fork-*/plan.jsonl.zst"),
    "its journal is being written": after_file(".fork-*/journal"),
    "it has its name": after_file(f"{FORK}/journal"),
    "it has begun to ask": after_requests(1),
    "it has asked half": after_requests(2),
    "it has ended": never,
}


def some(moments: dict[str, Happened], *quick: str) -> list[object]:
    """The quick ones, and all in the long suite."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.long) for name in moments]


def kill_and_repeat(scene: Scene, moment: Happened, *command: str) -> None:
    """Kill it, repeat it until it is done, and repeat it once more: that sends no request."""
    reached = kill_when(lambda: moment(scene), *command, cwd=scene.folder)
    assert reached or moment is never, "the command ended before it was killed"
    done = call(*command, cwd=scene.folder)
    assert done.code == 0, done.err
    asked = scene.server.stats().requests
    again = call(*command, cwd=scene.folder)
    assert again.code == 0, again.err
    if command == ("retry", RUN):
        assert again.out == f"{RUN} has no failed samples: nothing was retried.\n"
    else:
        assert "no request was sent" in again.err
        assert again.out == done.out, "it prints the report"
    assert scene.server.stats().requests == asked


@pytest.mark.parametrize("moment", some(EXTEND_MOMENTS, "the plan file is written", "it has asked half"))
def test_an_extension_that_is_killed_is_finished_by_the_same_command(tmp_path: Path, moment: str) -> None:
    with start_server_process(SLOW) as server:
        scene = set_up(tmp_path, server)
        kill_and_repeat(scene, EXTEND_MOMENTS[moment], *EXTEND)
        stats = server.stats()
        assert stats.requests == ROWS + stats.repeats
        assert stats.repeats <= CONNECTIONS
        told = shown(RUN, tmp_path / "runs")
        assert (told["status"], told["planned"], told["finished"]) == ("completed", ROWS, ROWS)
        assert len(told["extensions"]) == 1
        assert told["steps"]["live"] == ROWS
        assert call("verify", RUN, cwd=tmp_path).code == 0
        (tmp_path / "whole").mkdir()
        whole = write_spec(tmp_path / "whole", ROWS, server.base_url)
        assert call("run", whole, "--id", "w", cwd=tmp_path).code == 0
    assert scene.answers(RUN) == scene.answers("w")


def test_an_extension_that_adds_nothing_is_refused_unless_it_is_a_repetition(tmp_path: Path) -> None:
    with start_server_process() as server:
        set_up(tmp_path, server)
        same = call("extend", RUN, "--limit", "4", cwd=tmp_path)
        assert (same.code, "already" in same.err) == (2, True), same.err
        assert call(*EXTEND, cwd=tmp_path).code == 0
        more = call("extend", RUN, "--limit", "99", cwd=tmp_path)
        assert (more.code, "already" in more.err) == (2, True), "the data has no more rows"
        assert server.stats().requests == ROWS


@pytest.mark.parametrize("moment", some(FORK_MOMENTS, "its journal is being written", "it has ended"))
def test_a_fork_that_is_killed_is_finished_by_the_same_command(tmp_path: Path, moment: str) -> None:
    """`latest` means the parent in each call, although the fork is the younger run in the second."""
    with start_server_process(SLOW) as server:
        scene = set_up(tmp_path, server)
        command = ("fork", "latest", "--id", FORK, "--set", "tasks.sums.prompt=How much is {question}?")
        kill_and_repeat(scene, FORK_MOMENTS[moment], *command)
        stats = server.stats()
        assert stats.requests == 8 + stats.repeats
        assert stats.repeats <= CONNECTIONS
    told = shown(FORK, tmp_path / "runs")
    assert (told["status"], told["finished"], told["steps"]["live"]) == ("completed", 4, 4)
    assert sorted(path.name for path in scene.runs.iterdir()) == [RUN, FORK]
    assert call("verify", FORK, cwd=tmp_path).code == 0


def test_a_fork_is_not_mixed_with_another_run_of_that_id(tmp_path: Path) -> None:
    with start_server_process() as server:
        scene = set_up(tmp_path, server)
        assert call("fork", RUN, "--id", FORK, "--set", "seed=1", cwd=tmp_path).code == 0
        other_spec = call("fork", RUN, "--id", FORK, "--set", "seed=2", cwd=tmp_path)
        assert (other_spec.code, "seed" in other_spec.err) == (3, True), other_spec.err
        assert call("run", "eval.yaml", "--id", "z", cwd=tmp_path).code == 0
        asked = server.stats().requests
        other_parent = call("fork", "z", "--id", FORK, "--set", "seed=1", cwd=tmp_path)
        assert (other_parent.code, "not a fork of z" in other_parent.err) == (2, True), other_parent.err
        no_fork = call("fork", RUN, "--id", "z", cwd=tmp_path)
        assert (no_fork.code, f"not a fork of {RUN}" in no_fork.err) == (2, True), no_fork.err
        assert server.stats().requests == asked
    assert sorted(path.name for path in scene.runs.iterdir()) == [RUN, FORK, "z"]


def test_a_fork_without_an_id_says_how_to_resume_it(tmp_path: Path) -> None:
    with start_server_process(SLOW) as server:
        scene = set_up(tmp_path, server)
        done = call("fork", RUN, "--set", "seed=1", cwd=tmp_path)
        assert done.code == 0, done.err
        name = next(path.name for path in scene.runs.iterdir() if path.name != RUN)
        assert f"holdfast resume {name}" in done.err


RETRIES = {"a key": ("sums/arith/s0002/1",), "a kind": ("--kind", "server"), "all": ()}


@pytest.mark.parametrize(
    "which", ["all", *(pytest.param(each, marks=pytest.mark.long) for each in ("a key", "a kind"))]
)
def test_a_retry_that_is_killed_is_finished_by_the_same_command(tmp_path: Path, which: str) -> None:
    broken = Behaviour(faults=[Fault("500")])
    with start_server_process(broken) as server, start_server_process(SLOW) as sound:
        model = {"request_retries": 0, "max_connections": 1}
        spec = write_spec(tmp_path, 4, server.base_url, model=model, task={"sample_retries": 0}, fail_on_error=4)
        assert call("run", spec, "--id", RUN, cwd=tmp_path).code == 0
        moved = f"models.arith.base_url={sound.base_url}"
        assert call("resume", RUN, "--keep-failed", "--set", moved, cwd=tmp_path).code == 0
        assert sound.stats().requests == 0
        kill_and_repeat(Scene(tmp_path, sound, 0), after_requests(1), "retry", RUN, *RETRIES[which])
        chosen = 1 if which == "a key" else 4
        assert sound.stats().requests - sound.stats().repeats == chosen
        assert sound.stats().repeats <= 1
    told = shown(RUN, tmp_path / "runs")
    assert (told["finished"], told["failed"], told["unfinished"]) == (chosen, 4 - chosen, 0)


_COUNTING = """\
import time

import holdfast


@holdfast.scorer
def counting(sample, answer):
    with open("scored", "a") as file:
        file.write("1")
    time.sleep(0.05)
    return answer.text == sample.target
"""


def test_scoring_that_is_killed_is_finished_by_the_same_command(tmp_path: Path) -> None:
    with start_server_process() as server:
        set_up(tmp_path, server)
    (tmp_path / "mine.py").write_text(_COUNTING)
    scored = tmp_path / "scored"
    command = ("score", RUN, "--scorers", "mine.py", "--name", "counted")
    kill_when(lambda: scored.exists() and scored.stat().st_size >= 2, *command, cwd=tmp_path)
    for _ in range(2):
        done = call(*command, cwd=tmp_path)
        assert done.code == 0, done.err
    assert 4 <= scored.stat().st_size <= 8
    assert {line["scores"]["counting"] for line in exported(RUN, tmp_path / "runs")} == {True}


KILLER = str(Path(__file__).with_name("child_killed_at.py"))
RECOVERIES = {"a mirror": (), "a copy": (), "a mirror, without events": ("--no-events",)}
RECOVERY_MOMENTS = {
    "before it has its name": ("holdfast.runs.mirror.claim", "forget_removal"),
    "when it has its name": ("holdfast.runs.maintenance.recovery", "Recovered"),
    "when it is done": ("holdfast.cli.commands.maintenance", "print_json"),
}


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return run_and_mirror(tmp_path_factory.mktemp("cut"), keep=finished_so_far(8))


QUICK_RECOVERIES = {
    *(("a mirror", moment) for moment in RECOVERY_MOMENTS),
    *((source, "when it has its name") for source in RECOVERIES),
}


@pytest.mark.parametrize(
    ("source", "moment"),
    [
        pytest.param(source, moment, marks=() if (source, moment) in QUICK_RECOVERIES else pytest.mark.long)
        for source in RECOVERIES
        for moment in RECOVERY_MOMENTS
    ],
)
def test_a_recovery_that_is_killed_is_finished_by_the_same_command(
    cut: Kept, tmp_path: Path, source: str, moment: str
) -> None:
    where = cut.url
    if source == "a copy":
        where = str(shutil.copytree(cut.journal.parent, tmp_path / "copy" / "sums" / RUN))
    command = ("recover", where, "--output", str(tmp_path / "new"), "--json", *RECOVERIES[source])
    killed = subprocess.run(
        [sys.executable, KILLER, *RECOVERY_MOMENTS[moment], *command],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for _ in range(3):
        done = call(*command, cwd=tmp_path)
        assert done.code == 0, done.err
        found = json.loads(done.out)
        assert (found["planned"], found["finished"], found["in_flight"], found["lost"]) == (SAMPLES, 8, SAMPLES - 8, 0)
        assert found["warnings"] == []
        assert found["cleaned"] is (source == "a copy")
    assert not Path(where).exists()
    assert [path.name for path in (tmp_path / "new" / "sums").iterdir() if path.is_dir()] == [RUN]
    assert call("verify", RUN, "--store", tmp_path / "new", cwd=tmp_path).code == 0
    assert call("resume", RUN, "--store", tmp_path / "new", cwd=tmp_path).code == 0
