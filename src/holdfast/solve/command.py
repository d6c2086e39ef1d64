"""The solver `command`: runs an external program for each sample, which reaches its model over HTTP.

Invariant: the program and everything that it started end with the attempt. If the runner itself is killed, the program
loses its address: its next request fails.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import HoldfastError, SpecError
from holdfast.records import Answer, Message, Sample
from holdfast.solve.context import Context
from holdfast.solve.prompts import columns_of, compile_fields
from holdfast.solve.tools.tool import LimitError

_STDERR_MAX = 2000
_ENDING_SECONDS = 1.0
"""How long a program may take to end after SIGTERM, before SIGKILL."""
_KEY = "holdfast"
"""Clients require a key; the address itself is the secret."""
_PASSED = {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


async def command(
    sample: Sample, ctx: Context, run: Sequence[str], seconds: float | None = None, env: Sequence[str] = ()
) -> Answer:
    """Run a program that is an agent. Its standard output is the answer; an exit code other than 0 is a failure.

    OPENAI_BASE_URL (and OPENAI_API_BASE, the older name) in its environment lead to the evaluated model, or to a role's
    model if a request names that role. Of this process's environment it gets the locale, the paths and the user, and
    the variables that `env` names, so that it never sees the keys of models.

    `{prompt}` in an argument is the task's prompt, `{input}` the sample's input, `{id}` its id, any other `{name}` a
    column of its row; without any of them the prompt is its standard input. After `seconds` it is killed.

    The program is not a step, but its requests are: after a crash it runs again from the start and receives the
    recorded answers. Its other effects happen again.
    """
    prompt = prompt_of(ctx.messages)
    filled = [_fill(part, sample, prompt) for part in run]
    given = prompt if not any(columns_of(part) for part in run) else ""
    environ = environment_for(ctx.openai_base_url, env)
    process = await _start(filled, environ)
    try:
        with ctx.outside():
            async with asyncio.timeout(seconds):
                out, err = await process.communicate(given.encode())
    except TimeoutError:
        raise LimitError(f"{filled[0]} took longer than {seconds:g} s", "timeout") from None
    finally:
        await _end(process)
    if process.returncode:
        text = err.decode(errors="replace").strip()[-_STDERR_MAX:]
        raise HoldfastError(
            f"{filled[0]} ended with the exit code {process.returncode}: {text or 'nothing on standard error'}"
        )
    return Answer(out.decode(errors="replace").strip())


def fit_command(given: dict[str, Any], place: str) -> dict[str, Any]:
    """Check the arguments. SpecError if the command cannot be run."""
    if not given["run"]:
        raise SpecError(f'{place}.run: give the command as a list of texts: [python, agent.py, "{{prompt}}"]')
    for name in given.get("env", ()):
        if not _VARIABLE.fullmatch(name):
            raise SpecError(f"{place}.env: list the names of environment variables, without values: [MY_VARIABLE]")
    return given


def environment_for(
    base_url: str, named: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of a command: a few variables of this process, the address of the attempt, and no proxy
    for it. `python` is that of Holdfast's virtual environment, even if it is not activated.
    """
    passed = {name: value for name, value in environ.items() if name in _PASSED or name.startswith("LC_")}
    passed |= {name: environ[name] for name in named if name in environ}
    unproxied = ",".join(filter(None, (environ.get("NO_PROXY") or environ.get("no_proxy"), "127.0.0.1")))
    own = {"OPENAI_BASE_URL": base_url, "OPENAI_API_BASE": base_url, "OPENAI_API_KEY": _KEY}
    if sys.prefix != sys.base_prefix:
        own["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), environ.get("PATH", os.defpath)))
    return {**passed, **own, "NO_PROXY": unproxied, "no_proxy": unproxied}


def prompt_of(messages: Sequence[Message]) -> str:
    """Return the text of the last user message."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content or ""}]
            return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return ""


def _fill(part: str, sample: Sample, prompt: str) -> str:
    named = {**sample.row, "id": sample.id, "input": sample.input, "prompt": prompt}
    try:
        return compile_fields(part)(named)
    except KeyError as error:
        name = error.args[0]
        raise HoldfastError(f"run: {{{name}}} is neither prompt, input, id nor a column of the row") from None


async def _start(run: Sequence[str], environ: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start it in its own process group, so that what it starts can be killed with it."""
    try:
        return await asyncio.create_subprocess_exec(
            *run,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise HoldfastError(f"run: {run[0]} cannot be started: {error}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """End everything in its process group, even if the program itself has ended."""
    try:
        _signal(process, signal.SIGTERM)
        if process.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _ENDING_SECONDS)
    finally:
        _signal(process, signal.SIGKILL)
    if process.returncode is None:
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
        os.killpg(process.pid, number)
