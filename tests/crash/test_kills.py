"""A real process, killed at its every write, sync, open, rename, truncate and unlink: nothing acknowledged is lost."""

from pathlib import Path

import pytest

from tests.crash.children import Work, check_left_behind, run_child, why_no_strace

pytestmark = pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())

CALLS = {
    "write": "writev",
    "sync": "fdatasync",
    "folder sync": "fsync",
    "open": "openat",
    "rename": "?rename,?renameat,?renameat2",
    "link": "?link,?linkat",
    "unlink": "?unlink,?unlinkat",
    "truncate": "ftruncate",
    "make folder": "?mkdir,?mkdirat",
}
LIMIT = 400


def kill_at(run: Path, calls: str, number: int, work: Work, *, fresh: bool = False) -> bool:
    """Kill a process at one of its calls, in a fresh folder or after a crash, then check.

    False if it made fewer calls than that.
    """
    before: list[str] = []
    if not fresh:
        before = run_child(run, Work(rounds=1, records=3)).acknowledged
        _tear(run)
    outcome = run_child(run, work, f"{calls}:signal=KILL:when={number}")
    check_left_behind(run, before + outcome.acknowledged)
    assert outcome.killed or "done" in outcome.said, outcome
    return outcome.killed


def _tear(run: Path) -> None:
    """What a crash before would have left, so that the second process has something to cut."""
    hot = max((run / "journal").glob("*.jsonl"))
    with hot.open("ab") as file:
        file.write(b'{"n":99,"at":"2026-')


@pytest.mark.parametrize("name", CALLS)
def test_a_process_killed_at_a_sample_of_its_calls_loses_nothing(name: str, tmp_path: Path) -> None:
    works = {1: Work(alone=True), 6: Work(), 17: Work(alone=True)}
    killed = [number for number, work in works.items() if kill_at(tmp_path / f"run{number}", CALLS[name], number, work)]
    assert killed, "no kill took place: the calls have other names here"


@pytest.mark.long
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "truncate"])
def test_a_process_killed_at_every_call_loses_nothing(name: str, alone: bool, fresh: bool, tmp_path: Path) -> None:
    number = 1
    while kill_at(tmp_path / f"run{number}", CALLS[name], number, Work(alone=alone), fresh=fresh):
        number += 1
        assert number < LIMIT
    assert number > 1


@pytest.mark.long
def test_a_process_killed_while_it_cuts_a_torn_tail_loses_nothing(tmp_path: Path) -> None:
    assert kill_at(tmp_path / "run", CALLS["truncate"], 1, Work(alone=True))
