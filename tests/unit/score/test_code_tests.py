"""code_tests: an answer's code against tests, in a process that can do no harm."""

import asyncio
import os
import signal
import socket
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ScorerError
from holdfast.sandbox.confinement import PLAIN, SandboxFailedError, why_no_namespaces
from holdfast.score import ScoringFailed, resolve, score_answer
from holdfast.score.scorers.code_tests import _find_code
from tests.unit.score.answers import answer, sample, score

ROW = {
    "tests": "assert add(1, 2) == 3",
    "many": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
    "main": "if __name__ == '__main__':\n    assert add(1, 2) == 4",
    "prompt": "def add(a, b):\n",
}
ADD = "def add(a, b): return a + b\n"
RIGHT = "Here:\n```python\ndef add(a, b):\n    return a + b\n```\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if why_no_namespaces():
        monkeypatch.setenv(PLAIN, "1")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "args", "wanted", "reason"),
    [
        (RIGHT, {}, True, ""),
        (RIGHT, {"tests": "many"}, True, ""),
        (f"{RIGHT}It prints:\n```\n3\n```\n", {}, True, ""),
        ("    return a + b", {"before": "prompt"}, True, ""),
        ("def add(a, b):\n    return a - b", {}, False, "AssertionError"),
        ("def add(a, b:", {}, False, "SyntaxError"),
        ("import sys; sys.exit(0)", {}, False, "it left before the tests were through"),
        ("import os; os._exit(0)", {}, False, "it left before the tests were through"),
        ("print('passed')", {}, False, "NameError"),
        ("while True: pass", {"seconds": 0.3}, False, "ended at its limit: time"),
        ("x = 'a' * 10**9", {"memory_mb": 100}, False, "MemoryError"),
        ("", {}, False, "no code in the answer"),
        (" \n", {"before": "prompt"}, False, "no code in the answer"),
        ("\x00\ud800", {}, False, "Error"),
        (f"{ADD}print('no line end', end='')", {}, True, ""),
        (f"{ADD}import sys; sys.stdout = None", {}, True, ""),
        (f"{ADD}print = len", {}, True, ""),
        (f"{ADD}import os; os.close(1)", {}, True, ""),
        (f"{ADD}import atexit; atexit.register(print, 'bye')", {}, True, ""),
        (f"{ADD}import os; os.fork()", {}, True, ""),
        (f"{ADD}if __name__ == '__main__': print(add(input(), input()))", {}, True, ""),
        ("import sys; add = lambda a, b: sys.exit(0)", {}, False, "it left before the tests were through"),
        ("print(*open('program.py')); import os; os._exit(0)", {}, False, "it left before the tests were through"),
        (f"{ADD}import dataclasses\n@dataclasses.dataclass\nclass C:\n    x: 'int'", {}, True, ""),
        (RIGHT, {"tests": "main"}, False, "AssertionError"),
    ],
)
def test_code_passes_its_tests_or_the_reason_says_why_not(text: str, args: Any, wanted: bool, reason: str) -> None:
    said = score({"code_tests": args}, None, text, ROW)
    assert said.value is wanted
    assert reason in said.reason


HUMAN_EVAL = {
    "prompt": 'from typing import List\n\ndef total(xs: List[int]) -> int:\n    """Add.\n    >>> total([1])\n    """\n',
    "test": "META = {}\n\ndef check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
    "entry_point": "total",
    "head": "from typing import List\ndef total(xs: List[int]):",
}
CALLED = "{test}\ncheck({entry_point})"
BODY = "    result = 0\n    for x in xs:\n        result += x\n    return result\n"
WHOLE = f"def total(xs: List[int]) -> int:\n{BODY}"


@pytest.mark.parametrize("before", ["prompt", "head"])
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (BODY, True),
        (f"```python\n{BODY}```", True),
        (f"Sure:\n```python\n{BODY}```\nIt adds.", True),
        (BODY.lstrip(), True),  # a server or an extractor took the spaces away
        (textwrap.dedent(BODY), True),
        ("return sum(xs)", True),
        ("    return sum(xs)", True),
        (WHOLE, True),
        (f"```python\n{WHOLE}```", True),
        (f"```\n{HUMAN_EVAL['prompt']}{BODY}```", True),
        ("def total(xs): return sum(xs)", True),
        ("    return len(xs)", False),
        ("return len(xs)", False),
        ("def total(xs):\n    return sum(xs", False),
        ("    pass", False),
        ("", False),
    ],
)
def test_human_eval_answers_are_a_body_or_a_function(text: str, wanted: bool, before: str) -> None:
    entry = {"code_tests": {"tests": CALLED, "before": before}}
    assert score(entry, None, text, HUMAN_EVAL).value is wanted


USAGE = "Example usage:\n```python\nprint(total([1, 2]))\n```\n"
IMPORTED = "from solution import total\nresult = total([1])"


def fence(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}\n```\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"{fence(WHOLE)}{USAGE}", True),
        (f"1. The function:\n\n{textwrap.indent(fence(WHOLE), '   ')}", True),
        (f"{USAGE}Now the function:\n{fence(WHOLE)}", True),
        (f"{fence(WHOLE, 'py')}{USAGE}", True),
        (f"{fence(WHOLE, 'Python3')}{fence('print(total([]))', 'py')}", True),
        (f"{fence(WHOLE, '')}{USAGE}", True),
        (f"{fence(WHOLE)}{fence('total([1, 2]) == 3', '')}", True),
        (f"{fence(BODY)}{USAGE}", True),
        (f"{fence('return sum(xs)')}{USAGE}", True),
        (f"{fence(WHOLE)}{fence(IMPORTED)}", True),
        (f"{fence('def total(xs): return 0')}Better:\n{fence(WHOLE)}{USAGE}", True),
        (f"{fence('total = lambda xs: sum(xs)')}{USAGE}", True),
        (f"{fence(WHOLE)}Shorter:\n{fence('def total(xs): return len(xs)')}", False),
        (f"{fence('def count(xs): return sum(xs)')}{USAGE}", False),
        (f"{USAGE}{USAGE}", False),
    ],
)
def test_the_block_that_defines_what_the_tests_use_is_run(text: str, wanted: bool) -> None:
    entry = {"code_tests": {"tests": CALLED, "before": "prompt"}}
    assert score(entry, None, text, HUMAN_EVAL).value is wanted


def test_blocks_are_chosen_with_tests_in_a_list_too() -> None:
    usage = fence("assert add(1, 2) == 3\nprint(add(1, 2))", "py")
    assert score({"code_tests": {"tests": "many"}}, None, RIGHT + usage, ROW).value is True
    assert score({"code_tests": {"tests": "many"}}, None, usage + RIGHT, ROW).value is True
    assert score({"code_tests": {"tests": "broken"}}, None, RIGHT, {"broken": "assert ("}).value is False


@pytest.mark.parametrize("piece", ["x", "x ", "x: ", "def ", "\n", " \n", "```python\n", "async def "])
def test_choosing_the_block_of_a_long_answer_takes_linear_time(piece: str) -> None:
    assert "total" in _find_code(f"{piece * 50_000}\n```\n\n```python\n{WHOLE}```", HUMAN_EVAL["head"], "total([])")


def test_a_column_in_braces_that_is_missing_is_a_failure_of_the_data() -> None:
    with pytest.raises(ScoringFailed, match="the row's column 'entry_point' contains no code"):
        score({"code_tests": {"tests": CALLED}}, None, WHOLE, {"test": "x = {}"})


@pytest.mark.parametrize("args", [{"tests": "{test"}, {"before": "{}"}, {"tests": "{a.b}"}, {"tests": "{a:b}"}])
def test_braces_without_a_column_are_refused_when_the_spec_is_read(args: Any) -> None:
    with pytest.raises(ScorerError, match="columns in braces, such as check"):
        resolve({"code_tests": args}, "here")


@pytest.mark.parametrize(
    ("row", "args"),
    [
        ({"test_list": ["assert area(2) == 4 * math.pi"], "test_imports": ["import math"]}, {"before": "test_imports"}),
        ({"test_list": ["assert area(0) == 0"], "test_imports": []}, {"before": "test_imports"}),
        (
            {"test_list": ["assert area(2) == 4 * pi"], "test_setup_code": "from math import pi"},
            {"before": "test_setup_code"},
        ),
        ({"test_list": ["assert area(0) == 0"], "test_setup_code": ""}, {"before": "test_setup_code"}),
    ],
)
def test_mbpp_rows_have_tests_in_a_list_and_code_that_runs_first(row: Any, args: Any) -> None:
    entry = {"code_tests": {"tests": "test_list", **args}}
    assert score(entry, None, "import math\ndef area(r): return r * r * math.pi", row).value is True
    assert score(entry, None, "import math\ndef area(r): return r * math.pi + 1", row).value is False


def test_nothing_is_left_of_it(place: Path) -> None:
    assert score("code_tests", None, RIGHT, ROW).value is True
    assert os.listdir(place) == []


@pytest.mark.skipif(bool(why_no_namespaces()), reason="commands have no namespaces here")
def test_code_sees_neither_our_files_nor_the_network(place: Path) -> None:
    secret = place / "secret"
    secret.write_text("key")
    reading = f"print(open({str(secret)!r}).read())"
    assert "FileNotFoundError" in score("code_tests", None, reading, ROW).reason
    with socket.create_server(("127.0.0.1", 0)) as server:
        asking = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)"
        assert "ConnectionRefusedError" in score("code_tests", None, asking, ROW).reason


def test_a_folder_that_the_code_has_locked_is_removed_too(place: Path) -> None:
    locking = f"{ADD}import os; os.makedirs('a/b'); os.chmod('a/b', 0); os.chmod('a', 0)"
    assert score("code_tests", None, locking, ROW).value is True
    assert os.listdir(place) == []


def test_code_that_something_else_has_ended_is_a_failure_of_the_machine_never_a_zero(place: Path) -> None:
    made = resolve({"code_tests": {"seconds": 60}}, "here")
    hanging = "open('begun', 'w').close(); import time; time.sleep(50)"

    async def killed() -> None:
        scoring = asyncio.ensure_future(score_answer(made, sample(None, ROW), answer(hanging)))
        await asyncio.to_thread(_wait_for, place, "holdfast-code-*/files/sandbox/begun")
        (launcher,) = _launchers()
        os.kill(launcher, signal.SIGKILL)
        await scoring

    with pytest.raises(SandboxFailedError, match="killed from outside"):
        asyncio.run(killed())


def _launchers() -> list[int]:
    """The launchers that this process has started."""
    started = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    return [int(pid) for pid in started if "launcher.main()" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_a_row_without_tests_is_a_failure_of_the_data() -> None:
    with pytest.raises(ScoringFailed, match="the row's column 'tests' contains no code; it has the columns other"):
        score("code_tests", None, RIGHT, {"other": 1})


def test_without_namespaces_it_is_refused_when_the_spec_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLAIN, raising=False)
    monkeypatch.setattr("holdfast.score.scorers.code_tests.why_no_namespaces", lambda: "this system has none")
    with pytest.raises(ScorerError, match=r"this machine has no namespaces .* by setting HOLDFAST_NO_NAMESPACES=1"):
        resolve("code_tests", "here")
    monkeypatch.setenv(PLAIN, "1")
    assert resolve("code_tests", "here").name == "code_tests"


@pytest.mark.parametrize("args", [{"seconds": 0}, {"seconds": 1e9}, {"memory_mb": 0}])
def test_limits_that_are_none_are_refused(args: Any) -> None:
    with pytest.raises(ScorerError, match="seconds must be above 0"):
        resolve({"code_tests": args}, "here")


def test_a_cancelled_score_ends_its_code_and_removes_its_folder(place: Path) -> None:
    made = resolve({"code_tests": {"seconds": 60}}, "here")

    hanging = "open('begun', 'w').close(); import time; time.sleep(50)"

    async def cancelled() -> None:
        scoring = asyncio.ensure_future(score_answer(made, sample(None, ROW), answer(hanging)))
        await asyncio.to_thread(_wait_for, place, "holdfast-code-*/files/sandbox/begun")
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring

    asyncio.run(cancelled())
    assert os.listdir(place) == []


def _wait_for(place: Path, pattern: str) -> None:
    until = time.monotonic() + 30
    while not list(place.glob(pattern)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_folders_that_killed_processes_left_are_removed_a_day_later(place: Path) -> None:
    old, new = place / "holdfast-code-old", place / "holdfast-code-new"
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    assert score("code_tests", None, RIGHT, ROW).value is True
    assert os.listdir(place) == ["holdfast-code-new"]
