"""Running an answer's code against tests: the scorer `code_tests`.

The code of a model never runs in this process: it is a command, confined as those of sandboxed tools are, with a folder
of its own, limits, no network, and an end. Where the machine has no namespaces it is refused, unless who runs it
accepts that, as for tools. Invariant: when a score is given, nothing of the code runs any more and its folder is gone.

Whether the tests were gone through is told by a secret that is written when they were: whatever the code prints, or
does to its standard output, neither hides it nor looks like it. Code that sets out to cheat its tests can: it is in the
same process as they are.
"""

import asyncio
import contextlib
import os
import secrets
import sys
import tempfile
import time
from typing import Any

from holdfast.records.samples import Answer, Sample, Score
from holdfast.sandbox.confinement import (
    PLAIN,
    Folder,
    Launch,
    Limits,
    Ran,
    SandboxFailedError,
    make_folders,
    remove_folder,
    why_no_namespaces,
)
from holdfast.score.definition import scorer, shortened
from holdfast.score.extractors import code

_FOLDER = "holdfast-code-"
_FORGOTTEN_SECONDS = 86_400.0
"""Folders that are older were left by processes that were killed: nothing runs as long."""
_SECONDS_MAX = 3600.0
_CODE, _TESTS = "program.py", "tests.py"
_RUNNER = f"""
import os, sys
def run():
    secret, out = os.read(0, 100), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    program = type(sys)("program")
    sys.modules["program"] = sys.modules["__main__"] = program
    for name, path in (("program", {_CODE!r}), ("__main__", {_TESTS!r})):
        program.__dict__.update(__name__=name, __file__=path)
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), program.__dict__)
    os.write(out, secret)
    os._exit(0)
run()
"""
"""The answer's code is no main program, so that what it would do as one (ask for input) does not keep it from its
tests; the tests are. Nothing that the code has put off until its end can spoil the verdict."""


def _problem_here(seconds: float = 10.0, memory_mb: int = 512, **_: Any) -> str:
    if not 0 < seconds <= _SECONDS_MAX or memory_mb <= 0:
        return f"seconds must be above 0 and at most {_SECONDS_MAX:g}, memory_mb above 0"
    why = why_no_namespaces()
    if not why or os.environ.get(PLAIN):
        return ""
    return (
        f"code_tests runs code that a model wrote, and there are no namespaces here ({why}), so it could read and "
        f"change what you can; use another machine, or accept it by setting {PLAIN}=1"
    )


@scorer(check=_problem_here)
async def code_tests(
    sample: Sample,
    answer: Answer,
    tests: str = "tests",
    before: str = "",
    seconds: float = 10.0,
    memory_mb: int = 512,
) -> Score:
    """The answer's Python code (its last fenced block that says python, or its last, or all of it) passes the tests:
    code in the row's column `tests` that runs after it, in the same program, and raises if something is wrong.
    `before`: a column with code that comes first, for answers that go on where a prompt ends.
    """
    block = code(answer.text, "python") or code(answer.text)
    parts = [_column(sample, before) if before else "", answer.text if block is None else block]
    limits = Limits(seconds, memory_mb, files_mb=16, processes=32)
    return await _run({_CODE: "\n\n".join(parts), _TESTS: _column(sample, tests)}, limits)


async def _run(files: dict[str, str], limits: Limits) -> Score:
    """A cancellation ends the command first."""
    path = await asyncio.to_thread(new_folder)
    call = Launch(Folder(path, "score"), limits, namespaces=not why_no_namespaces())
    through = secrets.token_hex(16)
    working = asyncio.ensure_future(asyncio.to_thread(_ran, call, path, files, through))
    try:
        ran = await asyncio.shield(working)
    finally:
        call.stop()
        with contextlib.suppress(Exception):  # what it came to was raised above
            await working
        await asyncio.to_thread(remove_folder, path)
    return _score(ran, through)


def _ran(call: Launch, path: str, files: dict[str, str], through: str) -> Ran:
    folder = Folder(path, "score")
    make_folders(folder)
    for name, source in files.items():
        with open(os.path.join(folder.work, name), "w", encoding="utf-8", errors="replace") as file:
            file.write(source)
    return call.run([sys.executable, "-I", "-c", _RUNNER], through.encode())


def _score(ran: Ran, through: str) -> Score:
    """SandboxFailedError if it was ended from outside, by nobody of us: that says nothing of the code."""
    said = ran.stderr.strip().splitlines()
    if ran.why == "stopped":
        raise SandboxFailedError("the code was ended from outside, as when a machine is short of memory")
    if ran.why:
        return Score(False, f"ended at its limit: {ran.why}")
    if ran.code:
        return Score(False, shortened(said[-1]) if said else f"exit code {ran.code}")
    return Score(True) if through in ran.stdout else Score(False, "it left before the tests were through")


def _column(sample: Sample, column: str) -> str:
    found = sample.row.get(column)
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        found = "\n".join(found)
    if not isinstance(found, str):
        raise ValueError(f"the row's column {column!r} holds no code; it has the columns {', '.join(sample.row)}")
    return found


def new_folder() -> str:
    """A private folder in the temporary folder of the machine. Old ones that killed processes left go first."""
    place = os.path.realpath(tempfile.gettempdir())
    for entry in os.scandir(place):
        with contextlib.suppress(OSError):  # another process was quicker
            age = time.time() - entry.stat(follow_symlinks=False).st_mtime
            if entry.name.startswith(_FOLDER) and age > _FORGOTTEN_SECONDS:
                remove_folder(entry.path)
    return tempfile.mkdtemp(prefix=_FOLDER, dir=place)
