"""The source itself keeps the house's rules: sizes, names, docstrings, a small public face, no traces of machines."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from tests.conftest import SLOWEST

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PROGRAMS = [*SOURCES, *sorted((ROOT / "bench").glob("*.py"))]  # below it peers may be installed
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "core", "base", "misc", "manager"}
ASSERTING = ("assert", "raises", "expect(")

PUBLIC = [
    "Answer",
    "Context",
    "DriftError",
    "HoldfastError",
    "Message",
    "Run",
    "Sample",
    "Score",
    "SpecError",
    "Task",
    "ToolFailedError",
    "__version__",
    "benchmark",
    "compare",
    "compare_async",
    "gate",
    "gate_async",
    "leaderboard",
    "leaderboard_async",
    "list_runs",
    "list_runs_async",
    "open_run",
    "recover",
    "recover_async",
    "recoverable",
    "recoverable_async",
    "run",
    "run_async",
    "scorer",
    "solver",
    "tool",
]

LONG_FUNCTIONS: frozenset[str] = frozenset()
"""Exceptions to the limit of 70 lines. The list may only shrink."""


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


class Function(NamedTuple):
    """A function of the source, by its path and name."""

    place: str
    lines: int
    parameters: int
    is_command: bool
    """The parameters of a command are its options."""


class Programs(NamedTuple):
    """What several tests want to know of the source, which takes seconds to parse."""

    functions: list[Function]
    without_docstring: list[Path]


@functools.cache
def programs() -> Programs:
    found = Programs([], [])
    for path in PROGRAMS:
        tree = ast.parse(path.read_text())
        if tree.body and not ast.get_docstring(tree):
            found.without_docstring.append(path)
        is_command = path.name == "main.py" or path.parent.name == "groups"
        for function in functions(tree):
            own = [each for each in function.args.args if each.arg not in {"self", "cls"}] + function.args.kwonlyargs
            lines = (function.end_lineno or 0) - function.lineno + 1
            place = f"{path.relative_to(ROOT)}:{function.name}"
            found.functions.append(Function(place, lines, len(own), is_command))
    return found


def test_no_function_is_longer_than_70_lines() -> None:
    assert {each.place for each in programs().functions if each.lines > 70} == LONG_FUNCTIONS


def test_no_file_is_longer_than_600_lines() -> None:
    assert [path.name for path in PROGRAMS if len(path.read_text().splitlines()) > 600] == []


def test_no_function_takes_more_than_six_parameters() -> None:
    assert [each.place for each in programs().functions if each.parameters > 6 and not each.is_command] == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [
        path for path in [*PROGRAMS, *TESTS] if path.stem in FORBIDDEN_NAMES or path.parent.name in FORBIDDEN_NAMES
    ] == []


def test_every_module_says_what_it_owns() -> None:
    assert programs().without_docstring == []


def test_the_public_face_is_small_and_pinned() -> None:
    assert sorted(holdfast.__all__) == PUBLIC
    assert all(hasattr(holdfast, name) for name in PUBLIC)
    assert len(PUBLIC) <= 31


def test_every_test_can_fail() -> None:
    """A test asserts by itself, or through a function of the test suite that does."""
    idle: dict[str, list[set[str]]] = {}  # by name, what each function calls that asserts nothing by itself
    tests: list[str] = []
    asserting: set[str] = set()
    for path in TESTS:
        text = path.read_text()
        lines = text.splitlines()
        for function in functions(ast.parse(text)):
            body = "\n".join(lines[function.lineno - 1 : function.end_lineno])
            if any(word in body for word in ASSERTING):
                asserting.add(function.name)
            else:
                idle.setdefault(function.name, []).append(called_in(function))
                tests += [function.name] if function.name.startswith("test_") else []
    while found := {
        name for name, every in idle.items() if name not in asserting and any(map(asserting.__and__, every))
    }:
        asserting |= found
    assert [name for name in tests if not all(map(asserting.__and__, idle[name]))] == []


def test_the_slowest_tests_that_start_first_exist() -> None:
    names = {name.partition("[")[0] for name in SLOWEST}
    assert len(names) > 5
    for name in names:
        path, _, function = name.partition("::")
        tree = ast.parse((ROOT / "tests" / path).read_text())
        assert function in {each.name for each in functions(tree)}, name


def called_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {called.id for called in calls if isinstance(called, ast.Name)}


@pytest.mark.parametrize("pattern", [r"time\.perf_counter\(\)[^\n]*<", r"elapsed\s*<", r"assert .*duration\s*<"])
def test_no_test_asserts_a_duration(pattern: str) -> None:
    assert [path for path in TESTS if path != Path(__file__) and re.search(pattern, path.read_text())] == []


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    trace = re.compile("/" + "root/|/" + "work/|/" + "home/")
    found = [
        name
        for name in listed.stdout.split()
        if (ROOT / name).is_file() and trace.search((ROOT / name).read_text(errors="replace"))
    ]
    assert found == []


def test_importing_the_package_brings_in_nothing_heavy() -> None:
    heavy = {"numpy", "scipy", "aiohttp", "sqlite3", "zstandard", "asyncio"}
    program = f"import sys, holdfast; print(sorted({heavy!r} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert printed.stdout == "[]\n"
