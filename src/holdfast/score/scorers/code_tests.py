"""The scorer `code_tests`: runs the code of an answer against tests.

The code never runs in this process. It runs as a command in the same sandbox as tools, in its own folder, with limits
and without network. On a machine without namespaces it is refused, unless the user accepts that, as for tools.
Invariant: when a score is returned, no process of the code is left and its folder is removed. After a crash, a folder
may remain; a later call removes it.

The runner writes a secret after the last test, so that the code's own output can neither fake nor hide success. Code
that deliberately attacks its tests can still succeed: it runs in the same process as they do.
"""

import ast
import asyncio
import builtins
import contextlib
import os
import re
import secrets
import string
import sys
import tempfile
import textwrap
import time
from typing import Any

from holdfast.records import Answer, Sample, Score
from holdfast.sandbox.confinement import (
    PLAIN,
    CommandLimits,
    CommandResult,
    Folder,
    Launch,
    SandboxFailedError,
    make_folders,
    remove_folder,
    why_no_namespaces,
)
from holdfast.score.definition import scorer, shorten
from holdfast.score.extractors import fenced_blocks
from holdfast.score.fingerprints import parse_source

_FOLDER = "holdfast-code-"
_ABANDONED_SECONDS = 86_400.0
"""Older folders were left by killed processes: no test runs that long."""
_SECONDS_MAX = 3600.0
_PYTHON = ("python", "py", "python3")
"""What a fence of Python code is called."""
_DEFINITION = re.compile(
    r"^(?:async[ \t]++def|def|class)[ \t]++(?P<made>\w++)|^(?P<assigned>\w++)[ \t]*+(?::[^=\n]*+)?=(?!=)", re.MULTILINE
)
"""A pattern and no parser, which answers could crash. Imports do not count: an example imports what it shows."""
_BODY = re.compile(r"\A\s*^[ \t]|^return\b", re.MULTILINE)
_CODE, _TESTS = "program.py", "tests.py"
_BRACES = "tests and before take a column, or code with columns in braces, such as check({entry_point}); {{ is a brace"
_RUNNER = f"""
import os, sys
def run():
    secret, out = os.read(0, 100), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    program = type(sys)("program")
    sys.modules["program"] = sys.modules["__main__"] = program
    def load(path):
        with open(path, "rb") as file:
            return compile(file.read(), path, "exec", dont_inherit=True)
    def is_valid(path):
        try:
            load(path)
        except SyntaxError:
            return False
        return True
    readings = sorted(name for name in os.listdir(".") if name.startswith({_CODE!r}))
    chosen = next(filter(is_valid, readings), {_CODE!r})
    for name, path in (("program", chosen), ("__main__", {_TESTS!r})):
        program.__dict__.update(__name__=name, __file__=path)
        exec(load(path), program.__dict__)
    os.write(out, secret)
    os._exit(0)
run()
"""
"""The answer's code does not run as `__main__`, so that code under `if __name__ == "__main__"` (such as a prompt for
input) does not block the tests. `os._exit` skips handlers that the code registered for its end. Of several readings of
an answer (`program.py`, `program.py.1` ...), the first without a syntax error runs."""


def _check_machine(tests: str = "", before: str = "", seconds: float = 10.0, memory_mb: int = 512, **_: Any) -> str:
    try:
        fields = [field for text in (tests, before) for field in string.Formatter().parse(text)]
    except ValueError:
        return _BRACES
    if any(
        name is not None and (not name.isidentifier() or form or conversion) for _, name, form, conversion in fields
    ):
        return _BRACES
    if not 0 < seconds <= _SECONDS_MAX or memory_mb <= 0:
        return f"seconds must be above 0 and at most {_SECONDS_MAX:g}, memory_mb above 0"
    why = why_no_namespaces()
    if not why or os.environ.get(PLAIN):
        return ""
    return (
        f"code_tests runs code of a model, and this machine has no namespaces ({why}), so the code could read and "
        f"change everything that you can; use another machine, or accept this by setting {PLAIN}=1"
    )


@scorer(check=_check_machine)
async def code_tests(
    sample: Sample,
    answer: Answer,
    tests: str = "tests",
    before: str = "",
    seconds: float = 10.0,
    memory_mb: int = 512,
) -> Score:
    """The answer's Python code passes the tests. The code is the last fenced Python block (`python`, `py`, `python3`)
    that defines a name that the tests use, so an example after the function is passed over. If none does, it is the
    last block of any kind that does, else the last Python block, the last block, or the whole answer. The tests are
    code in the row's column `tests` that runs afterwards in the same program and raises on failure. `before`: a column
    with code that runs first, for answers that continue a prompt's code, with the whole function or only its body. Both
    may be code with columns in braces, such as `check({entry_point})`.
    """
    head, checks = _code(sample, before) if before else "", _code(sample, tests)
    programs = _programs(head, _find_code(answer.text, head, checks))
    files = {
        _TESTS: checks,
        **{f"{_CODE}.{index}" if index else _CODE: each for index, each in enumerate(programs)},
    }
    if not answer.text.strip():
        return Score(False, "no code in the answer", unreadable=True)
    limits = CommandLimits(seconds, memory_mb, files_mb=16, processes=32)
    path = await asyncio.to_thread(new_folder)
    call = Launch(Folder(path, "score"), limits, namespaces=not why_no_namespaces())
    secret = secrets.token_hex(16)
    working = asyncio.ensure_future(asyncio.to_thread(_run_command, call, path, files, secret))
    try:
        ran = await asyncio.shield(working)
    finally:  # a cancellation kills the command and removes the folder before it propagates
        call.stop()
        with contextlib.suppress(Exception):  # its result was raised above
            await working
        await asyncio.to_thread(remove_folder, path)
    errors = ran.stderr.strip().splitlines()
    if ran.why == "stopped":  # another process killed it, which is not the answer's fault
        raise SandboxFailedError("the code was killed from outside, for example because the machine ran out of memory")
    if ran.why:
        return Score(False, f"ended at its limit: {ran.why}")
    if ran.code:
        return Score(False, shorten(errors[-1]) if errors else f"exit code {ran.code}")
    return Score(True) if secret in ran.stdout else Score(False, "it left before the tests were through")


def _find_code(text: str, before: str, tests: str) -> str:
    """Return the code of an answer. A body counts as a definition if the code `before` it ends with the function."""
    blocks = list(fenced_blocks(text))
    python = [block for named, block in blocks if named in _PYTHON]
    every = [block for _, block in blocks]
    names = _used_names(tests)
    is_head = not names.isdisjoint(_defined_names(before))
    for block in (*reversed(python), *reversed(every)):
        if not names.isdisjoint(_defined_names(block)) or (is_head and _BODY.search(block)):
            return block
    return next(filter(None, (*python[-1:], *every[-1:])), text)


def _defined_names(code: str) -> set[str]:
    return {match["made"] or match["assigned"] for match in _DEFINITION.finditer(code)}


def _used_names(tests: str) -> set[str]:
    """Return the names that tests use and do not make themselves."""
    try:
        nodes = list(ast.walk(parse_source(tests)))
    except (SyntaxError, ValueError, RecursionError):
        return set()
    names = [node for node in nodes if isinstance(node, ast.Name)]
    made = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {node.id for node in names} - made - vars(builtins).keys()


def _run_command(call: Launch, path: str, files: dict[str, str], secret: str) -> CommandResult:
    folder = Folder(path, "score")
    make_folders(folder)
    for name, source in files.items():
        with open(os.path.join(folder.work, name), "w", encoding="utf-8", errors="replace") as file:
            file.write(source)
    return call.run([sys.executable, "-I", "-c", _RUNNER], secret.encode())


def _programs(before: str, answer: str) -> list[str]:
    """Return the ways to read an answer, best first: as it is; as a whole function after a head without a body; as a
    body whose first line, or every line, lost its indentation.
    """
    if not before:
        return [answer]
    bodies = (answer, f"    pass\n\n{answer}", f"    {answer.lstrip()}", textwrap.indent(answer, "    "))
    return [f"{before}\n\n{body}" for body in bodies]


def _code(sample: Sample, named: str) -> str:
    """Return the code of a column, or code with columns in braces."""
    if "{" not in named:
        return _column(sample, named)
    columns = {field for _, field, _, _ in string.Formatter().parse(named) if field is not None}
    return named.format(**{column: _column(sample, column) for column in columns})


def _column(sample: Sample, column: str) -> str:
    found = sample.row.get(column)
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        found = "\n".join(found)
    if not isinstance(found, str):
        raise ValueError(f"the row's column {column!r} contains no code; it has the columns {', '.join(sample.row)}")
    return found


def new_folder() -> str:
    """Create a private folder in the system's temporary folder, and remove old ones that killed processes left."""
    place = os.path.realpath(tempfile.gettempdir())
    for entry in os.scandir(place):
        with contextlib.suppress(OSError):  # another process removed it first
            age = time.time() - entry.stat(follow_symlinks=False).st_mtime
            if entry.name.startswith(_FOLDER) and age > _ABANDONED_SECONDS:
                remove_folder(entry.path)
    return tempfile.mkdtemp(prefix=_FOLDER, dir=place)
