"""Agents that are programs of their own: a command, run for each sample, that asks its model over HTTP.

Invariant: the command and what it started end with the attempt, however that ends. If the runner itself is killed, the
command loses its address with it: its next request fails.
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
from holdfast.records.samples import Answer, Message, Sample
from holdfast.solve.context import Context
from holdfast.solve.prompts import columns_of, compile_fields
from holdfast.solve.tools.tool import LimitError

_TOLD_MAX = 2000
_ENDING_SECONDS = 1.0
"""What a command that was told to end may take for it."""
_KEY = "holdfast"
"""Clients want one; the address itself is the secret."""
_PASSED = {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


async def command(
    sample: Sample, ctx: Context, run: Sequence[str], seconds: float | None = None, env: Sequence[str] = ()
) -> Answer:
    """Run a program that is an agent. What it writes to standard output is the answer; an exit code other than 0 is a
    failure.

    In its environment OPENAI_BASE_URL (and OPENAI_API_BASE, the older name) lead to the evaluated model, or, if it asks
    for a model with the name of a role, to that role's. Of this process's environment it gets the locale, the paths and
    the user, and the variables that `env` names, so that it never sees the keys of models.

    `{prompt}` in an argument is the task's prompt, `{input}` the sample's input, `{id}` its id, any other `{name}` a
    column of its row; without any of them the prompt is its standard input. After `seconds` it is ended.

    The command is not a step, its requests are: after a crash it runs again from the start, gets the recorded answers,
    and goes on. What else it does, it does again.
    """
    prompt = prompt_of(ctx.messages)
    filled = [_filled(part, sample, prompt) for part in run]
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
        told = err.decode(errors="replace").strip()[-_TOLD_MAX:]
        raise HoldfastError(f"{filled[0]} ended with the exit code {process.returncode}: {told or 'it said nothing'}")
    return Answer(out.decode(errors="replace").strip())


def fit_command(given: dict[str, Any], place: str) -> dict[str, Any]:
    """SpecError, in one sentence, for what cannot be run."""
    if not given["run"]:
        raise SpecError(f'{place}.run: give the command as a list of texts: [python, agent.py, "{{prompt}}"]')
    for name in given.get("env", ()):
        if not _VARIABLE.fullmatch(name):
            raise SpecError(f"{place}.env: list the names of environment variables, without values: [MY_VARIABLE]")
    return given


def environment_for(
    base_url: str, named: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """What a command may know of this process's environment, with what leads a client to an attempt and past all
    proxies. `python` is the one of the virtual environment that Holdfast runs in, activated or not.
    """
    passed = {name: value for name, value in environ.items() if name in _PASSED or name.startswith("LC_")}
    passed |= {name: environ[name] for name in named if name in environ}
    unproxied = ",".join(filter(None, (environ.get("NO_PROXY") or environ.get("no_proxy"), "127.0.0.1")))
    own = {"OPENAI_BASE_URL": base_url, "OPENAI_API_BASE": base_url, "OPENAI_API_KEY": _KEY}
    if sys.prefix != sys.base_prefix:
        own["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), environ.get("PATH", os.defpath)))
    return {**passed, **own, "NO_PROXY": unproxied, "no_proxy": unproxied}


def prompt_of(messages: Sequence[Message]) -> str:
    """The text of what the user says last."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content or ""}]
            return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return ""


def _filled(part: str, sample: Sample, prompt: str) -> str:
    named = {**sample.row, "id": sample.id, "input": sample.input, "prompt": prompt}
    try:
        return compile_fields(part)(named)
    except KeyError as error:
        name = error.args[0]
        raise HoldfastError(f"run: {{{name}}} is neither prompt, input, id nor a column of the row") from None


async def _start(run: Sequence[str], environ: Mapping[str, str]) -> asyncio.subprocess.Process:
    """In a group of its own, so that what it starts ends with it."""
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
    """What is left of its group goes, also if it is through itself."""
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
