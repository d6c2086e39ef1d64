"""Work in a process that can be ended, and patterns, which are looked for there."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.score import ScoringFailed, resolve, score_answer, worker_process
from holdfast.score.worker_process import run_in_worker, run_in_worker_async
from tests.unit.score.answers import answer, sample, score, value

CATASTROPHE = "(a+)+$"
LONG = "a" * 60 + "b"


def pid() -> int:
    found: int = run_in_worker(5, "os:getpid")
    return found


def test_it_is_another_process_and_the_same_one_again() -> None:
    assert pid() == pid() != os.getpid()


def test_what_takes_too_long_is_ended_and_the_next_is_done() -> None:
    before = pid()
    with pytest.raises(TimeoutError, match=r"it took longer than 0\.2 s and was stopped"):
        run_in_worker(0.2, "time:sleep", 60)
    assert pid() != before
    assert not os.path.exists(f"/proc/{before}")


def test_an_error_comes_with_its_words() -> None:
    with pytest.raises(ValueError, match=r"^invalid literal for int"):
        run_in_worker(5, "builtins:int", "x")
    with pytest.raises(ValueError, match=r"^TypeError: "):
        run_in_worker(5, "builtins:int", [])
    assert run_in_worker(5, "builtins:int", "4") == 4


def test_a_child_that_dies_is_told_of_and_replaced() -> None:
    with pytest.raises(ValueError, match="the worker process died"):
        run_in_worker(5, "os:_exit", 1)
    assert run_in_worker(5, "builtins:int", "4") == 4


def test_what_eats_memory_is_told_of() -> None:
    with pytest.raises(ValueError, match="MemoryError"):
        run_in_worker(5, "builtins:bytearray", worker_process.MEMORY_BYTES_MAX + 1)


def test_what_a_function_prints_is_no_answer() -> None:
    assert run_in_worker(5, "builtins:print", "noise") is None
    assert run_in_worker(5, "builtins:int", "4") == 4


async def _both() -> tuple[int, int]:
    found: int = await run_in_worker_async(5, "os:getpid")
    return found, pid()


def test_what_is_awaited_has_a_child_of_its_own() -> None:
    one, other = asyncio.run(_both())
    assert one != other


def test_the_child_ends_with_a_process_that_is_killed() -> None:
    program = (
        "from holdfast.score.worker_process import run_in_worker; "
        "print(run_in_worker(5, 'os:getpid'), flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    until = time.monotonic() + 20
    while _is_running(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _is_running(child)


@pytest.mark.parametrize("name", ["regex", "extract"])
def test_a_pattern_that_never_ends_is_a_failure_never_a_zero(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looking: Any = {"regex": {"pattern": CATASTROPHE}}
    entry = looking if name == "regex" else {"exact_match": {"extract": looking}}
    monkeypatch.setattr(worker_process, "SECONDS_MAX", 0.2)
    with pytest.raises(ScoringFailed, match="it took longer than"):
        score(entry, "4", LONG)


@pytest.mark.parametrize(
    "pattern", [r"\d+", r"a?b", r"(\w)\1", r"(ab|cd)", r"(?:x+)y*z", r"^a{2,}$", r"(a|b)*c", "(?x)(a|aa) *b", "é"]
)
@settings(max_examples=30, deadline=None)
@given(text=st.text("abcdxyz12é \n", max_size=30))
def test_here_and_there_a_pattern_finds_the_same(pattern: str, text: str) -> None:
    wanted = re.search(pattern, text) is not None
    assert worker_process.is_match(text, pattern) is wanted
    assert value({"regex": {"pattern": pattern}}, None, text) is wanted
    there = run_in_worker(5, "holdfast.score.worker_process:match_pattern", "last", text, pattern, False, 0)
    assert there == worker_process.last_group(text, pattern, 0)


def _is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


LOOKING = [
    ({"regex": {"pattern": CATASTROPHE}}, None),
    ({"exact_match": {"extract": {"regex": {"pattern": CATASTROPHE}}}}, "4"),
    ({"exact_match": {"extract_target": {"regex": {"pattern": CATASTROPHE}}}}, LONG),
]


@pytest.mark.parametrize(("entry", "target"), LOOKING)
def test_while_a_pattern_is_match_pattern_the_event_loop_goes_on(
    entry: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "SECONDS_MAX", 0.2)
    made = resolve(entry, "here")

    async def turns() -> int:
        looking = asyncio.ensure_future(score_answer(made, sample(target), answer(LONG)))
        count = 0
        while not looking.done():
            await asyncio.sleep(0.001)
            count += 1
        with pytest.raises(ScoringFailed, match="it took longer than"):
            await looking
        return count

    assert asyncio.run(turns()) > 5
