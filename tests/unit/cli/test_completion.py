"""Tab offers what is there, and never disturbs who pressed it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.app import complete_status, offer_experiments, offer_runs


def make(store: Path, experiment: str, run: str, at: int) -> None:
    journal = store / experiment / run / "journal"
    journal.mkdir(parents=True)
    os.utime(journal, (at, at))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make(tmp_path, "sums", "alpha", 10)
    make(tmp_path, "sums", "beta", 30)
    make(tmp_path, "a%2Fb", "al%3A1", 20)
    (tmp_path / "sums" / "no-run").mkdir()
    (tmp_path / "sums" / ".fork-1" / "journal").mkdir(parents=True)
    (tmp_path / "catalog.db").write_text("")
    return tmp_path


def test_runs_are_offered_the_newest_first_with_their_experiments(store: Path) -> None:
    assert offer_runs(str(store), "") == [
        ("latest", "the newest run"),
        ("beta", "sums"),
        ("al:1", "a/b"),
        ("alpha", "sums"),
    ]
    assert offer_runs(str(store), "al") == [("al:1", "a/b"), ("alpha", "sums")]
    assert offer_runs(str(store), "zzz") == []


def test_experiments_and_statuses_are_offered(store: Path) -> None:
    assert offer_experiments(str(store), "") == ["a/b", "sums"]
    assert complete_status("c") == ["completed", "cancelled"]


@pytest.mark.parametrize("where", ["nowhere", "catalog.db", "a\0b", ""])
def test_nothing_is_offered_and_nothing_is_raised_where_nothing_is(
    store: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    assert offer_runs(where, "") == []


TAKING_RUNS = ["show", "report", "resume", "gc", "doctor", "export", "verify", "fork", "tag", "view"]


@pytest.mark.parametrize("command", TAKING_RUNS)
def test_every_command_that_takes_a_run_completes_it(store: Path, command: str) -> None:
    words = f"holdfast {command} al"
    asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "2"}
    program = "import sys\nfrom holdfast.cli.main import main\nsys.argv = ['holdfast']\n"
    program += "try:\n    main()\nfinally:\n    print(sorted({'msgspec', 'aiohttp', 'rich'} & set(sys.modules)))\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HOLDFAST_STORE": str(store), **asked},
        cwd=store,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    offered, loaded = done.stdout.split()[:-1], done.stdout.splitlines()[-1]
    assert offered == ["al:1", "alpha"]
    assert loaded == "[]"
