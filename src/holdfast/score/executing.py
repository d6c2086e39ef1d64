"""Running an answer's code against tests: the scorer `code_tests`.

The code of a model never runs in this process: it is a command, confined as those of sandboxed tools are, with a folder
of its own, limits, no network, and an end. Where the machine has no namespaces it is refused, unless who runs it
accepts that, as for tools. Invariant: when a score is given, nothing of the code runs any more and its folder is gone.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import sys
import tempfile
import time
from typing import Any

from holdfast.confine.confining import PLAIN, Folder, Launch, Limits, Ran, make_folders, why_no_namespaces
from holdfast.records.exchange import Answer, Sample, Score
from holdfast.score.definition import scorer, shortened
from holdfast.score.extracting import code

_FOLDER = "holdfast-code-"
_FORGOTTEN_SECONDS = 86_400.0
"""Folders that are older were left by processes that were killed: nothing runs as long."""
_SECONDS_MAX = 3600.0
_PROGRAM = "program.py"


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
    """The answer's Python code (its last fenced block, or all of it) passes the tests: code in the row's column `tests`
    that runs after it, in the same program, and raises if something is wrong. `before`: a column with code that comes
    first, for answers that go on where a prompt ends.
    """
    block = code(answer.text)
    parts = [_column(sample, before) if before else "", answer.text if block is None else block]
    limits = Limits(seconds, memory_mb, files_mb=16, processes=32)
    return await _run([*parts, _column(sample, tests)], limits)


async def _run(parts: list[str], limits: Limits) -> Score:
    """A cancellation ends the command first."""
    path = await asyncio.to_thread(_new_folder)
    call = Launch(Folder(path, "score"), limits, namespaces=not why_no_namespaces())
    through = secrets.token_hex(16)  # said by the last line: code that leaves early has not passed
    program = "\n\n".join([*parts, f"print({through!r}, flush=True)\n"])
    working = asyncio.ensure_future(asyncio.to_thread(_ran, call, path, program))
    try:
        ran = await asyncio.shield(working)
    finally:
        call.stop()
        with contextlib.suppress(Exception):  # what it came to was raised above
            await working
        await asyncio.to_thread(shutil.rmtree, path, True)
    return _score(ran, through)


def _ran(call: Launch, path: str, program: str) -> Ran:
    folder = Folder(path, "score")
    make_folders(folder)
    with open(os.path.join(folder.work, _PROGRAM), "w", encoding="utf-8", errors="replace") as file:
        file.write(program)
    return call.run([sys.executable, "-I", _PROGRAM])


def _score(ran: Ran, through: str) -> Score:
    said = ran.stderr.strip().splitlines()
    if ran.why:
        return Score(False, f"ended at its limit: {ran.why}")
    if ran.code:
        return Score(False, shortened(said[-1]) if said else f"exit code {ran.code}")
    last = ran.stdout.strip().splitlines()[-1:]
    return Score(True) if last == [through] else Score(False, "it left before the tests were through")


def _column(sample: Sample, column: str) -> str:
    found = sample.row.get(column)
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        found = "\n".join(found)
    if not isinstance(found, str):
        raise ValueError(f"the row's column {column!r} holds no code; it has the columns {', '.join(sample.row)}")
    return found


def _new_folder() -> str:
    place = os.path.realpath(tempfile.gettempdir())
    for entry in os.scandir(place):
        with contextlib.suppress(OSError):  # another process was quicker
            if entry.name.startswith(_FOLDER) and time.time() - entry.stat().st_mtime > _FORGOTTEN_SECONDS:
                shutil.rmtree(entry.path)
    return tempfile.mkdtemp(prefix=_FOLDER, dir=place)
