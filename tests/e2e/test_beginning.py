"""A run that is killed before its first record: every command explains it, and the same command starts it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.commands import call, environment, exported, shown, write_spec

CHILD = Path(__file__).with_name("child_killed_at.py")
RUN = "x"
OTHER = "whole"
KEY = "sums/arith/s0001/1"

EXPLAINED = {
    "show": ("show", RUN),
    "show --json": ("show", RUN, "--json"),
    "show --profile": ("show", RUN, "--profile"),
    "show --failed": ("show", RUN, "--failed"),
    "report": ("report", RUN),
    "report --format html": ("report", RUN, "--format", "html"),
    "export": ("export", RUN),
    "cost": ("cost", RUN),
    "score --list": ("score", RUN, "--list"),
}
"""These print what there is, which is nothing, and say why."""
REFUSED = {
    "show KEY": ("show", RUN, KEY),
    "leaderboard": ("leaderboard", RUN),
    "compare": ("compare", RUN, OTHER),
    "gate": ("gate", RUN, "--at-least", "0.5"),
    "score": ("score", RUN),
    "resume": ("resume", RUN),
    "retry": ("retry", RUN),
    "extend": ("extend", RUN),
    "fork": ("fork", RUN, "--id", "forked"),
    "tag": ("tag", RUN, "nightly"),
    "note": ("note", RUN, "hello"),
    "cancel": ("cancel", RUN),
    "tune": ("tune", RUN, "--set", "concurrency.samples=3"),
}
"""These need a run."""


def kill_at(folder: Path, function: str) -> None:
    """Start the run, and kill it where it would call a function of `holdfast.runs.execution.execute`."""
    words = [
        "holdfast.runs.execution.execute",
        function,
        "run",
        folder / "eval.yaml",
        "--id",
        RUN,
        "--store",
        folder / "runs",
    ]
    done = subprocess.run([sys.executable, CHILD, *map(str, words)], cwd=folder, env=environment(), check=False)
    assert done.returncode == -signal.SIGKILL


def begin(folder: Path, run_id: str = RUN) -> None:
    done = call("run", folder / "eval.yaml", "--id", run_id, "--store", folder / "runs", cwd=folder)
    assert done.code == 0, done.err


@pytest.mark.parametrize("function", ["write_plan", "open_journal", "make_started_record", "write_spec_file"])
def test_a_run_killed_at_any_step_of_its_beginning_is_started_by_the_same_command(
    tmp_path: Path, function: str
) -> None:
    write_spec(tmp_path)
    kill_at(tmp_path, function)
    begin(tmp_path)
    found = shown(RUN, tmp_path / "runs")
    has_begun = function == "write_spec_file"
    assert (found["status"], found["finished"], len(found["resumes"])) == ("completed", 6, int(has_begun))
    assert len(exported(RUN, tmp_path / "runs")) == 6


def test_every_command_explains_a_run_whose_journal_has_a_header_and_no_record(tmp_path: Path) -> None:
    write_spec(tmp_path)
    store = ("--store", tmp_path / "runs")
    begin(tmp_path, OTHER)
    kill_at(tmp_path, "make_started_record")
    assert len((tmp_path / "runs/sums" / RUN / "journal/000001.jsonl").read_bytes().splitlines()) == 1
    found = shown(RUN, tmp_path / "runs")
    assert (found["status"], found["planned"]) == ("interrupted", 0)
    assert "killed before it began" in found["reason"]
    for name, words in EXPLAINED.items():
        done = call(*words, *store, cwd=tmp_path)
        assert done.code == 0, (name, done)
        assert done.said.count("killed before it began") == 1, (name, done)
    for name, words in REFUSED.items():
        done = call(*words, *store, cwd=tmp_path)
        assert done.code == 2, (name, done)
        assert "begun" in done.err or "began" in done.err, (name, done)
    for words in (("ls",), ("verify", RUN), ("doctor",), ("gc", "--keep", "5")):
        assert call(*words, *store, cwd=tmp_path).code == 0, words
    begin(tmp_path)
    assert shown(RUN, tmp_path / "runs")["status"] == "completed"
