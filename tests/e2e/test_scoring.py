"""`holdfast score`: answers at hand under other scorers, recorded or only watched; no model is ever asked."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import Entry, Reader
from holdfast.runs import Run
from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import call, environment, exported, finish, run, shown, start, write_spec

SCORERS = """
import holdfast

@holdfast.scorer
def long(sample, answer):
    return len(answer.text) > {limit}

@holdfast.scorer
def length(sample, answer):
    return holdfast.Score(len(answer.text), "counted")
"""
HELD = """
import asyncio, os
import holdfast

done = []

@holdfast.scorer
async def held(sample, answer):
    if len(done) > 100 and os.path.exists("hold"):
        open("holding", "w").close()
        await asyncio.sleep(3600)
    done.append(1)
    return 1
"""
SLOW = """
import time
import holdfast

@holdfast.scorer
async def slow(sample, answer):
    import asyncio
    await asyncio.sleep(0.05)
    return 1
"""
STUBBORN = """
import asyncio
import pathlib
import holdfast

@holdfast.scorer
async def stubborn(sample, answer):
    pathlib.Path("scoring").touch()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


def completed(folder: Path, rows: int = 6) -> Path:
    """A store with one completed run, `r`."""
    write_spec(folder, rows)
    store = folder / "runs"
    assert call("run", "eval.yaml", "--id", "r", "--store", store, cwd=folder).code == 0
    return store


def scores(store: Path, evaluation: str) -> Counter[tuple[str, str]]:
    """How often each key was given each score in an evaluation."""
    (journal,) = store.rglob("journal")
    found: Counter[tuple[str, str]] = Counter()
    for entry in Reader(str(journal)).read():
        if isinstance(entry, Entry) and entry.line.t == "score":
            data = json.loads(bytes(entry.line.d))
            if data["evaluation"] == evaluation:
                found[entry.line.k or "", data["scorer"]] += 1
    return found


def test_scoring_again_adds_an_evaluation_and_sends_no_request(tmp_path: Path) -> None:
    with start_server_process(Behaviour()) as server:
        write_spec(tmp_path, 6, server.base_url)
        store = tmp_path / "runs"
        assert call("run", "eval.yaml", "--id", "r", "--store", store, cwd=tmp_path).code == 0
        asked = server.stats().requests
        before = shown("r", store)
        (tmp_path / "mine.py").write_text(SCORERS.format(limit=0))
        done = call("score", "r", "--scorers", "mine.py", "--name", "lengths", "--store", store, cwd=tmp_path)
        assert (done.code, "6 answers scored" in done.err) == (0, True), done.said
        again = call("score", "r", "--scorers", "mine.py", "--store", store, cwd=tmp_path)
        assert "0 answers scored" in again.err
        assert server.stats().requests == asked
    after = shown("r", store)
    assert [after[name] for name in ("status", "finished", "usage")] == [
        before[name] for name in ("status", "finished", "usage")
    ]
    assert after["evaluations"][:-1] == before["evaluations"]
    assert after["evaluation_names"][after["evaluations"][-1]] == "lengths"
    assert {line["scorer"] for line in after["scores"]} == {"long", "length"}
    old = call("report", "r", "--evaluation", before["evaluations"][0], "--json", "--store", store, cwd=tmp_path).json()
    assert {each["scorer"] for cell in old["cells"] for each in cell["scorers"]} == {
        line["scorer"] for line in before["scores"]
    }
    assert set(scores(store, after["evaluations"][-1]).values()) == {1}
    named = call("report", "r", "--evaluation", "lengths", "--store", store, cwd=tmp_path)
    assert "length" in named.out


def test_every_kind_of_report_and_a_comparison_show_the_evaluation_that_is_named(tmp_path: Path) -> None:
    """Of the mock's answers, all "8", the run's own scorer finds few right; the second calls all of them long."""
    store = completed(tmp_path)
    call("run", "eval.yaml", "--id", "other", "--store", store, cwd=tmp_path)
    first = shown("r", store)["evaluations"][0]
    assert "evaluation" not in call("report", "r", "--store", store, cwd=tmp_path).out, "there is only one"
    (tmp_path / "mine.py").write_text(SCORERS.format(limit=0))
    for name in ("r", "other"):
        call("score", name, "--scorers", "mine.py", "--name", "lengths", "--store", store, cwd=tmp_path)

    def said(*words: str) -> str:
        return call(*words, "--store", store, cwd=tmp_path).out

    assert 'failures="0"' in said("report", "r", "--format", "junit", "--evaluation", "lengths")
    assert 'failures="0"' not in said("report", "r", "--format", "junit", "--evaluation", first)
    for kind in ("table", "markdown"):
        told = said("report", "r", "--format", kind, "--evaluation", first).replace("\\", "")
        assert f"the evaluation {first} (numeric), one of 2" in told
    assert "(lengths), one of 2" in said("report", "r")
    assert "length" in said("compare", "r", "other")
    compared = said("compare", "r", "other", "--evaluation", first)
    assert ("numeric" in compared, "length" in compared) == (True, False)
    with Run.find(str(store), "r") as found:
        assert {line.scorer for line in found.scores(first)} == {"numeric"}
        assert {name for line in found.lines("lengths") for name in line.scores} == {"long", "length"}


def test_the_same_run_command_after_scoring_sends_no_request_and_shows_its_own_scores(tmp_path: Path) -> None:
    store = completed(tmp_path)
    (tmp_path / "mine.py").write_text(SCORERS.format(limit=0))
    assert call("score", "r", "--scorers", "mine.py", "--store", store, cwd=tmp_path).code == 0
    before = shown("r", store)
    done = call("run", "eval.yaml", "--id", "r", "--store", store, cwd=tmp_path)
    assert (done.code, "numeric" in done.out) == (0, True)
    after = shown("r", store)
    assert (after["steps"], after["status"]) == (before["steps"], "completed")
    assert [len(scores(store, each)) for each in after["evaluations"]] == [6, 12]


def test_scoring_that_was_killed_continues_and_never_changes_the_status(tmp_path: Path) -> None:
    store = completed(tmp_path, 400)
    (tmp_path / "mine.py").write_text(HELD)
    (tmp_path / "hold").touch()
    command = ("score", "r", "--scorers", "mine.py", "--store", store)
    for _ in range(2):
        with start(*command, cwd=tmp_path) as process:
            while not (tmp_path / "holding").exists():
                assert process.poll() is None, finish(process).err
                time.sleep(0.05)
            assert shown("r", store)["status"] == "completed"
            process.kill()
        assert shown("r", store)["status"] == "completed"
        (tmp_path / "holding").unlink()
    (tmp_path / "hold").unlink()
    done = run(*command, cwd=tmp_path)
    assert done.code == 0, done.err
    found = scores(store, shown("r", store)["evaluations"][-1])
    assert (len(found), set(found.values())) == (400, {1})


def test_scoring_that_is_interrupted_says_how_to_continue(tmp_path: Path) -> None:
    store = completed(tmp_path, 400)
    (tmp_path / "mine.py").write_text(SLOW.replace("0.05", "0.5"))
    with start("score", "r", "--scorers", "mine.py", "--store", store, cwd=tmp_path) as process:
        before = len(lines(store))
        while len(lines(store)) < before + 5:
            assert process.poll() is None, finish(process).err
            time.sleep(0.05)
        done = finish(process, signal.SIGTERM)
    assert done.code == 130
    assert "left, run the same command to continue" in done.err
    assert shown("r", store)["status"] == "completed"


def test_a_scorer_that_will_not_be_cancelled_does_not_keep_the_process(tmp_path: Path) -> None:
    store = completed(tmp_path)
    (tmp_path / "mine.py").write_text(STUBBORN)
    with start("score", "r", "--scorers", "mine.py", "--store", store, cwd=tmp_path) as process:
        try:
            while not (tmp_path / "scoring").exists():
                assert process.poll() is None, finish(process).err
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            done = finish(process, signal.SIGTERM)
        finally:
            process.kill()
    assert done.code == 130, done.err
    assert "6 left, run the same command to continue" in done.err
    assert shown("r", store)["status"] == "completed"


def lines(store: Path) -> list[bytes]:
    (journal,) = store.rglob("journal")
    return [line for path in sorted(journal.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (None, ("--scorers", "mine.py"), "mine.py: no such file"),
        ("x = (", ("--scorers", "mine.py"), "mine.py: cannot be run (line 1"),
        ("1 / 0", ("--scorers", "mine.py"), "ZeroDivisionError"),
        ("import sys; sys.exit(3)", ("--scorers", "mine.py"), "SystemExit"),
        ("x = 1", ("--scorers", "mine.py"), "defines no scorer"),
        (SLOW, ("--scorers", "mine.py", "--scorers", "mine.py"), "two scorers called 'slow'"),
        (SLOW, ("--scorers", "numerc"), "did you mean 'numeric'"),
        (SLOW, ("--watch",), "--watch needs a file"),
    ],
)
def test_scorers_that_cannot_be_had_are_refused_and_nothing_is_recorded(
    tmp_path: Path, text: str | None, options: tuple[str, ...], said: str
) -> None:
    store = completed(tmp_path)
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    before = shown("r", store)["evaluations"]
    done = call("score", "r", *options, "--store", store, cwd=tmp_path)
    assert (done.code, said in done.err) == (2, True), done.said
    assert shown("r", store)["evaluations"] == before


class Watching:
    """`score --watch`, and what it has said so far."""

    def __init__(self, folder: Path, store: Path) -> None:
        command = [sys.executable, "-u", "-m", "holdfast", "score", "r", "--scorers", "mine.py", "--watch"]
        self.process = subprocess.Popen(
            [*command, "--store", str(store)], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
        )
        self.said = ""
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def end(self) -> None:
        self.process.kill()
        self._listening.join()
        self.process.communicate()

    def hears(self, text: str) -> None:
        end = time.monotonic() + 60
        while text not in self.said:
            assert time.monotonic() < end, f"never said {text!r}: {self.said}"
            time.sleep(0.05)


def save(path: Path, text: str, at: float) -> None:
    """As an editor does; the time tells versions apart even where the clock is coarse."""
    path.write_text(text)
    os.utime(path, (at, at))


def test_watching_shows_what_changes_with_every_save_and_records_nothing(tmp_path: Path) -> None:
    store = completed(tmp_path)
    mine = tmp_path / "mine.py"
    save(mine, SCORERS.format(limit=0), 1_000)
    before = lines(store), exported("r", store)
    watching = Watching(tmp_path, store)
    try:
        watching.hears("length")
        save(mine, "x = (", 2_000)
        watching.hears("cannot be run (line 1")
        save(mine, SCORERS.format(limit=1_000), 3_000)
        watching.hears("long True -> False")
        watching.process.send_signal(signal.SIGINT)
        assert watching.process.wait(30) == 0
        watching.hears("To record it: holdfast score r")
    finally:
        watching.end()
    assert (lines(store), exported("r", store)) == before


def test_the_scorers_of_a_file_can_be_used_from_python(tmp_path: Path) -> None:
    from holdfast.score.resolution import scorers_in

    path = tmp_path / "mine.py"
    path.write_text(SCORERS.format(limit=3))
    found: list[Any] = scorers_in(str(path))
    assert [scorer.name for scorer in found] == ["long", "length"]
