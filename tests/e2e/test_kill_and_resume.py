"""kill -9 of a real run, and the same command again: nothing recorded is bought twice, nothing differs at the end."""

import json
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import call, exported, finish, run, shown, start, wait_until, write_spec
from tests.e2e.live_runs import ASK_TWICE

SAMPLES = 120
TURNS = 2
CONNECTIONS = 8
RUN = "x"
WRONG = 0.2


class Course(NamedTuple):
    """One run against one server of its own."""

    folder: Path
    server: ServerProcess

    @property
    def store(self) -> Path:
        return self.folder / "runs"

    @property
    def command(self) -> tuple[str | Path, ...]:
        return "run", self.folder / "eval.yaml", "--id", RUN, "--store", self.store


def write_course(folder: Path, server: ServerProcess) -> Course:
    (folder / "twice.py").write_text(ASK_TWICE)
    task = {"solver": "twice:ask_twice", "scorers": ["numeric", "exact_match"]}
    write_spec(folder, SAMPLES, server.base_url, model={"max_connections": CONNECTIONS}, task=task)
    return Course(folder, server)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The export of a run that nobody killed."""
    with start_server_process(Behaviour(wrong_rate=WRONG)) as server:
        course = write_course(tmp_path_factory.mktemp("uninterrupted"), server)
        done = run(*course.command, cwd=course.folder)
        assert done.code == 0, done.err
        assert server.stats().repeats == 0
    lines = exported(RUN, course.store)
    assert {line["scores"]["numeric"] for line in lines} == {True, False}, "scores that all agree would prove little"
    return without_times(lines)


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def kill_after(course: Course, requests: int) -> None:
    """Start the run, see that it says so, and kill it when the server has got so many more requests."""
    before = course.server.stats().requests
    with start(*course.command, cwd=course.folder) as process:
        seen = wait_until(lambda: course.server.stats().requests >= before + requests, process)
        assert seen, f"the run ended before it was killed: {finish(process).err}"
        process.send_signal(signal.SIGSTOP)  # however long looking takes, no more is asked meanwhile
        alive = shown(RUN, course.store)
        finish(process, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "the run ended before it was killed"
    assert alive["status"] == "running"
    dead = shown(RUN, course.store)
    assert dead["status"] == "interrupted"
    assert dead["reason"]
    assert dead["finished"] >= alive["finished"]
    assert dead["steps"]["live"] >= alive["steps"]["live"]
    # A killed process has not written the number of its last record to the lease: its end is no loss.
    for command in (("show", RUN), ("report", RUN), ("verify", RUN), ("doctor",)):
        seen_dead = call(*command, "--store", course.store, cwd=course.folder)
        assert seen_dead.code == 0, (command, seen_dead)
    (listed,) = json.loads(call("recover", "--store", course.store, "--json", cwd=course.folder).out)
    assert listed["lost"] == 0


def go_on_and_compare(course: Course, kills: int, uninterrupted: list[dict[str, Any]]) -> None:
    """The same command to the end; then all that is promised."""
    done = run(*course.command, cwd=course.folder)
    assert done.code == 0, done.err
    lines = exported(RUN, course.store)
    assert Counter(line["key"] for line in lines) == Counter(line["key"] for line in uninterrupted)
    assert {line["status"] for line in lines} == {"finished"}
    assert without_times(lines) == uninterrupted
    told = shown(RUN, course.store)
    assert (told["status"], told["finished"], told["failed"]) == ("completed", SAMPLES, 0)
    assert len(told["resumes"]) == kills
    assert (told["steps"]["live"], told["steps"]["orphaned"]) == (SAMPLES * TURNS, 0)
    stats = course.server.stats()
    assert stats.repeats <= kills * CONNECTIONS
    assert stats.requests == SAMPLES * TURNS + stats.repeats
    assert call("verify", RUN, "--store", course.store, cwd=course.folder).code == 0


@pytest.mark.parametrize(
    ("kills", "requests_max"), [(4, 40), pytest.param(20, 11, marks=pytest.mark.long)], ids=["4 kills", "20 kills"]
)
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_never_was(
    tmp_path: Path, uninterrupted: list[dict[str, Any]], kills: int, requests_max: int
) -> None:
    chance = random.Random(kills)
    moments = [chance.randint(2, requests_max) for _ in range(kills)]
    latency = 1.0 if kills > 4 else 0.03  # many kills need a run that is much slower than we are at killing it
    behaviour = Behaviour(latency_seconds=latency, jitter_seconds=latency, wrong_rate=WRONG)
    with start_server_process(behaviour) as server:
        course = write_course(tmp_path, server)
        for moment in moments:
            kill_after(course, moment)
        go_on_and_compare(course, kills, uninterrupted)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 21))], ids="seed {}".format
)
def test_a_fresh_run_that_is_killed_once_ends_as_if_it_never_was(
    tmp_path: Path, uninterrupted: list[dict[str, Any]], seed: int
) -> None:
    moment = random.Random(seed).randint(1, SAMPLES * TURNS - 3 * CONNECTIONS)
    with start_server_process(Behaviour(latency_seconds=0.03, jitter_seconds=0.03, wrong_rate=WRONG)) as server:
        course = write_course(tmp_path, server)
        kill_after(course, moment)
        go_on_and_compare(course, 1, uninterrupted)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 21))], ids="seed {}".format
)
def test_a_run_that_is_killed_while_it_begins_is_begun_again(
    tmp_path: Path, uninterrupted: list[dict[str, Any]], seed: int
) -> None:
    """At any moment between its first folder and its first answer: plan, data, spec.yaml, the journal's first line."""
    chance = random.Random(seed)
    with start_server_process(Behaviour(latency_seconds=0.03, wrong_rate=WRONG)) as server:
        course = write_course(tmp_path, server)
        with start(*course.command, cwd=course.folder) as process:
            wait_until(course.store.exists, process)
            for _ in range(chance.randint(0, 60)):
                course.server.stats()  # time passes
            finish(process, signal.SIGKILL)
        told = call("show", RUN, "--store", course.store, "--json", cwd=tmp_path)
        assert told.code in (0, 2), told.err
        begun = bool(told.code == 0 and told.json()["planned"])
        assert not begun or told.json()["status"] == "interrupted"
        go_on_and_compare(course, int(begun), uninterrupted)
