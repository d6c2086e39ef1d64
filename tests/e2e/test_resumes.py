"""Resumes, again and again, with the real command: what is requested, kept and reported, and who may write."""

import itertools
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.testing import Behaviour, Fault, ServerProcess, start_server_process
from tests.e2e.commands import (
    call,
    environment,
    exported,
    finish,
    kill_when,
    run,
    shown,
    snapshot,
    start,
    wait_until,
    write_spec,
)

RUN = "x"
WRONG = 0.2
_RESUMED = re.compile(r"^# Resumed by holdfast \S+ at \S+: (.*)$", re.MULTILINE)

_TWICE = '''\
async def ask_twice(sample, ctx):
    """Two turns, the second one says what the first one answered."""
    first = await ctx.generate()
    check = {"role": "user", "content": f"Check it once more: {sample.input}"}
    return await ctx.generate([*ctx.messages, first.message, check])
'''

_DRAWN = '''\
import asyncio


async def ask_drawn(sample, ctx):
    """What is asked is drawn, in two branches at once, and what is returned is drawn of what was answered."""
    first = ctx.random.randrange(1000)
    asked = [f"{sample.input} + {first}", f"{sample.input} + {ctx.random.randrange(1000)}"]
    answers = await asyncio.gather(*map(ctx.generate, asked))
    return f"{ctx.random.choice(answers).text} of {first} {ctx.random.random()}"


async def ask_drawn_in_turn(sample, ctx):
    """The same without a race: which request fails first does not depend on how many are made at once."""
    told = [(await ctx.generate(f"{sample.input} + {ctx.random.randrange(1000)}")).text for _ in range(2)]
    return f"{ctx.random.choice(told)} {ctx.random.random()}"
'''

_GATED = '''\
import asyncio
import os


async def answer(request):
    """Says nothing until the gate is open; every request leaves a line."""
    with open("asked", "a") as file:
        file.write(f"{os.getpid()}\\n")
    while not os.path.exists("gate"):
        await asyncio.sleep(0.01)
    return "8"
'''


class Widths(NamedTuple):
    """How wide a process works: the fields that each resume changes."""

    samples: int
    generate: int
    connections: int

    @property
    def fields(self) -> dict[str, int]:
        return {
            "concurrency.samples": self.samples,
            "concurrency.generate": self.generate,
            "models.arith.max_connections": self.connections,
        }

    @property
    def options(self) -> list[str]:
        return [word for name, value in self.fields.items() for word in ("--set", f"{name}={value}")]

    def changes_to(self, other: "Widths") -> list[tuple[str, int, int]]:
        """As a resume has to tell them: in the order of the spec's fields."""
        order = ("models.arith.max_connections", "concurrency.samples", "concurrency.generate")
        pairs = [(name, self.fields[name], other.fields[name]) for name in order]
        return [(name, old, new) for name, old, new in pairs if old != new]


def draw_widths(chance: random.Random) -> Widths:
    return Widths(*(chance.choice([1, 2, 3, 5, 8, 13]) for _ in Widths._fields))


def spec_for(folder: Path, rows: int, base_url: str, **task: Any) -> Path:
    """Sums asked twice, and scored twice."""
    (folder / "twice.py").write_text(_TWICE)
    changes = {"solver": "twice:ask_twice", "scorers": ["numeric", "exact_match"], **task}
    return write_spec(folder, rows, base_url, model={"request_retries": 0}, task=changes)


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def lineage(store: Path) -> list[str]:
    return _RESUMED.findall((store / "sums" / RUN / "spec.yaml").read_text())


def uninterrupted(folder: Path, rows: int) -> list[dict[str, Any]]:
    """The export of the same spec, run at one go."""
    with start_server_process(Behaviour(wrong_rate=WRONG)) as server:
        spec = spec_for(folder, rows, server.base_url)
        done = call("run", spec, "--id", RUN, "--store", folder / "runs", cwd=folder)
        assert done.code == 0, done.err
        assert server.stats().repeats == 0
    lines = exported(RUN, folder / "runs")
    assert {line["scores"]["numeric"] for line in lines} == {True, False}, "scores that all agree would prove little"
    return without_times(lines)


def kill_after(server: ServerProcess, requests: int, command: Callable[[], "subprocess.Popen[str]"]) -> None:
    """kill -9 when the server has got so many more requests."""
    before = server.stats().requests
    with command() as process:
        seen = wait_until(lambda: server.stats().requests >= before + requests, process)
        assert seen, f"the run ended before it was killed: {finish(process).err}"
        finish(process, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "the run ended before it was killed"


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12)], ids="seed {}".format
)
def test_ten_resumes_of_changing_width_end_like_one_run_that_was_never_killed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rows = 110
    widths = [Widths(8, 8, 8), *(draw_widths(chance) for _ in range(9)), Widths(34, 21, 34)]
    moments = [chance.randint(1, 19) for _ in range(10)]
    told = f"seed {seed}: killed after {moments} requests with {widths}"
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    wanted = uninterrupted(tmp_path / "whole", rows)
    folder, store = tmp_path / "killed", tmp_path / "killed" / "runs"
    with start_server_process(Behaviour(latency_seconds=0.01, jitter_seconds=0.02, wrong_rate=WRONG)) as server:
        spec = spec_for(folder, rows, server.base_url)
        first: tuple[str | Path, ...] = ("run", spec, "--id", RUN, "--store", store)
        commands = [(*first, *each.options) for each in widths]
        for moment, command in zip(moments, commands, strict=False):
            kill_after(server, moment, lambda command=command: start(*command, cwd=folder))  # type: ignore[misc] # binds the loop's value
        done = run(*commands[-1], cwd=folder)
        assert done.code == 0, (told, done.err)
        stats = server.stats()
    assert without_times(exported(RUN, store)) == wanted, told
    # `generate` does not bound what a kill costs: its place is free for the next request while an answer is saved.
    # Samples at work do: each of them waits until its answer is on disk.
    assert stats.repeats <= sum(min(each.samples, each.connections) for each in widths[:-1]), told
    assert stats.requests == 2 * rows + stats.repeats, told
    expected = [one.changes_to(other) for one, other in itertools.pairwise(widths)]
    summary = shown(RUN, store)
    changes = [[(each["field"], each["old"], each["new"]) for each in one["changes"]] for one in summary["resumes"]]
    assert changes == expected, told
    assert lineage(store) == [f"{field}: {old} -> {new}" for each in expected for field, old, new in each], told
    assert summary["steps"]["live"] == 2 * rows, told
    assert call("verify", RUN, "--store", store, cwd=folder).code == 0, told


def test_a_kill_while_the_disk_is_stuck_costs_one_request_for_each_sample_at_work(tmp_path: Path) -> None:
    """As many of these work as there are connections. `concurrency.generate` bounds requests at the server, not what is
    lost: its place is free for the next sample while an answer is being saved.
    """
    samples, rows = 5, 12
    apart = Behaviour(latency_seconds=0.1)  # else several answers are written before the first sync
    with start_server_process(apart) as server:
        model = {"max_connections": samples}
        spec = write_spec(tmp_path, rows, server.base_url, model=model, concurrency={"generate": 1})
        command = ("run", spec, "--id", RUN, "--store", tmp_path / "runs")
        child = [sys.executable, Path(__file__).with_name("child_slow_disk.py"), *command]
        with subprocess.Popen(list(map(str, child)), cwd=tmp_path, env=environment(), text=True) as process:
            assert wait_until(lambda: server.stats().answered == samples, process)
            process.kill()
        kept = shown(RUN, tmp_path / "runs")["steps"]["live"]  # one was written, and waited to be synced
        assert call(*command, cwd=tmp_path).code == 0
        stats = server.stats()
    assert (stats.max_in_flight, stats.repeats, stats.requests) == (1, samples - kept, rows + samples - kept)
    assert stats.repeats > stats.max_in_flight, "else this shows nothing"


def test_resuming_a_complete_run_sends_no_request_whatever_only_changes_speed_or_place(tmp_path: Path) -> None:
    with start_server_process() as server, start_server_process() as elsewhere:
        spec = spec_for(tmp_path, 5, server.base_url)
        assert run("run", spec, "--id", RUN, cwd=tmp_path).code == 0
        before = exported(RUN, tmp_path / "runs")
        files = snapshot(tmp_path / "runs")
        asked = server.stats().requests
        for command in (("resume", RUN), ("resume", RUN, spec), ("run", spec, "--id", RUN), ("resume", "latest")):
            again = run(*command, cwd=tmp_path)
            assert again.code == 0, again.err
            assert snapshot(tmp_path / "runs") == files
        for change in ("models.arith.max_connections=3", f"models.arith.base_url={elsewhere.base_url}"):
            assert run("resume", RUN, "--set", change, cwd=tmp_path).code == 0
        assert (asked, server.stats().requests, elsewhere.stats().requests) == (10, 10, 0)
    assert exported(RUN, tmp_path / "runs") == before
    assert len(shown(RUN, tmp_path / "runs")["resumes"]) == 2


def gated(folder: Path) -> Path:
    """A spec whose model answers when the file `gate` is there."""
    (folder / "gated.py").write_text(_GATED)
    return write_spec(folder, 4, model={"provider": "gated:answer", "options": {}, "max_connections": 2})


def asked_by(folder: Path) -> list[int]:
    """The process of each request that the gated model has got."""
    path = folder / "asked"
    return list(map(int, path.read_text().split())) if path.exists() else []


def end_of_first(processes: "list[subprocess.Popen[str]]") -> "subprocess.Popen[str]":
    """Whichever ends first."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for process in processes:
            if process.poll() is not None:
                return process
        time.sleep(0.01)
    raise AssertionError("neither has ended")


def test_of_two_resumes_at_once_one_wins_and_the_other_exits_4(tmp_path: Path) -> None:
    spec = gated(tmp_path)
    assert kill_when(lambda: len(asked_by(tmp_path)) == 2, "run", spec, "--id", RUN, cwd=tmp_path)
    with start("resume", RUN, cwd=tmp_path) as one, start("run", spec, "--id", RUN, cwd=tmp_path) as other:
        loser = end_of_first([one, other])  # the winner cannot end: its model waits for the gate
        winner = other if loser is one else one
        lost = finish(loser)
        assert winner.poll() is None
        assert shown(RUN, tmp_path / "runs")["status"] == "running"
        (tmp_path / "gate").touch()
        won = finish(winner)
    assert (lost.code, won.code) == (4, 0), (lost.said, won.said)
    assert "another live process" in lost.err
    asked = asked_by(tmp_path)
    assert asked[2:] == [winner.pid] * 4, "the loser has asked something"
    told = shown(RUN, tmp_path / "runs")
    assert (told["status"], told["finished"], len(told["resumes"])) == ("completed", 4, 1)


def test_failed_samples_get_a_fresh_allowance_at_each_resume(tmp_path: Path) -> None:
    rows, attempts = 3, 3
    with start_server_process(Behaviour(faults=[Fault("500")])) as broken, start_server_process() as sound:
        spec = spec_for(tmp_path, rows, broken.base_url, sample_retries=attempts - 1)
        for time_of_asking in (1, 2, 3):
            done = run("run", spec, "--id", RUN, cwd=tmp_path)
            assert done.code == 1, done.said
            assert broken.stats().requests == rows * attempts * time_of_asking
            lines = exported(RUN, tmp_path / "runs")
            assert [(line["status"], line["error"]["kind"]) for line in lines] == [("failed", "server")] * rows
            assert {line["attempt"] for line in lines} == {attempts * time_of_asking}
        mended = run("resume", RUN, "--set", f"models.arith.base_url={sound.base_url}", cwd=tmp_path)
        assert mended.code == 0, mended.err
        assert sound.stats().requests == 2 * rows
    lines = exported(RUN, tmp_path / "runs")
    assert {(line["status"], line["attempt"]) for line in lines} == {("finished", 3 * attempts + 1)}
    assert {line["scores"]["numeric"] for line in lines} == {True}


def test_steps_that_succeeded_before_the_server_failed_are_not_asked_again_by_a_resume(tmp_path: Path) -> None:
    """One at a time, and every second request fails: each sample has its first answer and lacks its second."""
    rows = 6
    with start_server_process(Behaviour(faults=[Fault("500", every=2)])) as broken, start_server_process() as sound:
        spec = spec_for(tmp_path, rows, broken.base_url, sample_retries=0)
        done = run("run", spec, "--id", RUN, "--set", "concurrency.samples=1", cwd=tmp_path)
        assert done.code == 1, done.said
        assert (broken.stats().answered, broken.stats().faults) == (rows, {"500": rows})
        mended = run("resume", RUN, "--set", f"models.arith.base_url={sound.base_url}", cwd=tmp_path)
        assert mended.code == 0, mended.err
        firsts, seconds = set(broken.stats().by_digest), set(sound.stats().by_digest)
        assert sound.stats().requests == len(seconds) == rows
    assert len(firsts - seconds) == rows, "a first step was asked again"
    told = shown(RUN, tmp_path / "runs")
    assert (told["finished"], told["steps"]["replayed"], told["steps"]["orphaned"]) == (rows, rows, 0)
    assert [line["output"] for line in exported(RUN, tmp_path / "runs")] == [str(8 * i) for i in range(1, rows + 1)]


def test_steps_that_succeeded_before_the_server_failed_are_not_asked_again_by_the_next_attempt(tmp_path: Path) -> None:
    rows = 9
    with start_server_process(Behaviour(faults=[Fault("500", every=3)])) as server:
        spec = spec_for(tmp_path, rows, server.base_url, sample_retries=30)
        done = run("run", spec, "--id", RUN, cwd=tmp_path)
        assert done.code == 0, done.said
        stats = server.stats()
    assert stats.faults["500"] >= rows - 1
    assert stats.answered == 2 * rows, "an answer was bought twice"
    assert {line["status"] for line in exported(RUN, tmp_path / "runs")} == {"finished"}


WIDE = Widths(64, 64, 64)
NARROW = Widths(1, 1, 1)


def results(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("key", "status", "output", "attempt", "scores")
    return [{name: line[name] for name in names} for line in lines]


@pytest.mark.parametrize(
    "solver", ["drawn:ask_drawn", *(pytest.param(each, marks=pytest.mark.long) for each in ("chat", "twice:ask_twice"))]
)
def test_one_at_a_time_and_64_at_once_give_the_same_results(tmp_path: Path, solver: str) -> None:
    (tmp_path / "drawn.py").write_text(_DRAWN)
    with start_server_process(Behaviour(jitter_seconds=0.005, wrong_rate=WRONG)) as server:
        spec = spec_for(tmp_path, 40, server.base_url, solver=solver, repeats=2)
        found = {}
        for name, widths in (("narrow", NARROW), ("wide", WIDE)):
            done = run("run", spec, "--id", name, *widths.options, cwd=tmp_path)
            assert done.code == 0, done.err
            found[name] = results(exported(name, tmp_path / "runs"))
        assert server.stats().max_in_flight > 8, "nothing was asked at once"
    assert found["narrow"] == found["wide"]
    assert len({line["output"] for line in found["wide"]}) > 20


def test_one_at_a_time_and_64_at_once_fail_and_try_again_alike(tmp_path: Path) -> None:
    """A failure shifts the attempt, and with it what is drawn: but for every width in the same way."""
    (tmp_path / "drawn.py").write_text(_DRAWN)
    failures = [{"kind": "server", "every": 3, "times": 1}, {"kind": "bad_request", "every": 11}]
    model = {"options": {"failures": failures, "latency_jitter": 0.01}, "request_retries": 0}
    spec = write_spec(tmp_path, 60, model=model, task={"solver": "drawn:ask_drawn_in_turn"})
    found = {}
    for name, widths in (("narrow", NARROW), ("wide", WIDE)):
        assert run("run", spec, "--id", name, *widths.options, cwd=tmp_path).code == 1
        found[name] = results(exported(name, tmp_path / "runs"))
    assert found["narrow"] == found["wide"]
    assert {line["status"] for line in found["wide"]} == {"finished", "failed"}
    assert {line["attempt"] for line in found["wide"]} >= {1, 2}


@pytest.mark.parametrize("moment", [17, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 5, 9, 30, 44, 52))])
def test_a_drawn_sample_that_is_killed_continues_with_what_it_had_drawn(tmp_path: Path, moment: int) -> None:
    """The resume uses another server, so that each counts its own requests: those of the killed process that arrive
    late are not counted as repetitions.
    """
    (tmp_path / "drawn.py").write_text(_DRAWN)
    slow = Behaviour(latency_seconds=0.03, jitter_seconds=0.05)
    with start_server_process(slow) as first, start_server_process(slow) as second:
        spec = spec_for(tmp_path, 30, first.base_url, solver="drawn:ask_drawn")
        assert run("run", spec, "--id", "whole", cwd=tmp_path).code == 0
        before = first.stats().requests
        assert before == 60
        kill_after(first, moment, lambda: start("run", spec, "--id", RUN, *Widths(5, 5, 5).options, cwd=tmp_path))
        saved = shown(RUN, tmp_path / "runs")["steps"]["live"]
        moved = ("--set", f"models.arith.base_url={second.base_url}")
        done = run("run", spec, "--id", RUN, *WIDE.options, *moved, cwd=tmp_path)
        assert done.code == 0, done.err
        asked = second.stats()
        assert (asked.requests, asked.repeats) == (60 - saved, 0), "a request is made if and only if it has no answer"
        # A sample that is at work has at most 2 requests without a saved answer, and 5 samples are at work.
        assert first.stats().requests - before - saved <= 2 * 5
    assert results(exported(RUN, tmp_path / "runs")) == results(exported("whole", tmp_path / "runs"))
