"""The command as a user starts it, in a process of its own or, where no process is needed, in this one."""

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import yaml

from holdfast.cli.main import main
from tests.parsers import build_parser_once
from tests.zygote import Zygote

build_parser_once()
_PAUSE_SECONDS = 0.005
ZYGOTE = Zygote()
_PATIENCE_SECONDS = 300
_OWN = ("HOLDFAST_STORE", "OPENAI_API_KEY", "FORCE_COLOR", "NO_COLOR", "CI")


class Done(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err

    def json(self) -> Any:
        return json.loads(self.out)


def call(*arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Done:
    """The command's entry point in this process; what it does to the environment is undone. A traceback gets out."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(patch.dict(os.environ, environment(env), clear=True))
        stack.enter_context(patch.object(sys, "argv", ["holdfast", *map(str, arguments)]))
        stack.enter_context(patch.object(sys, "path", list(sys.path)))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            main()
        except SystemExit as error:
            code = error.code
    return Done(code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue())


def run(*arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Done:
    """The command in a process of its own, to its end."""
    with start(*arguments, cwd=cwd, env=env) as process:
        return finish(process)


def start(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None, fresh: bool = False
) -> "subprocess.Popen[str]":
    """The command in a process of its own: a fork of one that has imported it or, with `fresh`, a new interpreter."""
    if not fresh:
        forked: Any = ZYGOTE.start(list(map(str, arguments)), cwd, environment(env))
        if forked is not None:
            return cast("subprocess.Popen[str]", forked)
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", *map(str, arguments)],
        cwd=cwd,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]", number: signal.Signals | None = None) -> Done:
    """Wait for its end, after a signal if one is given."""
    if number is not None:
        process.send_signal(number)
    out, err = process.communicate(timeout=_PATIENCE_SECONDS)
    return Done(process.returncode, out, err)


def kill_when(happened: Callable[[], bool], *arguments: str | Path, cwd: Path) -> bool:
    """Start the command and kill it as soon as something has happened. False if it ended before that."""
    with start(*arguments, cwd=cwd) as process:
        reached = wait_until(happened, process)
        finish(process, signal.SIGKILL)
    return reached


def on_terminal(folder: Path, width: int, *arguments: str, env: Mapping[str, str], code: int = 0) -> str:
    """What a command says to a terminal of that width."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "holdfast", *arguments]
    changes = {"COLUMNS": str(width), "TERM": "xterm", **env}
    with subprocess.Popen(
        command, cwd=folder, env=environment(changes), stdin=follower, stdout=follower, stderr=follower
    ) as process:
        os.close(follower)
        said = b""
        while True:
            try:
                read = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not read:
                break
            said += read
        assert process.wait() == code, said
    os.close(leader)
    return said.decode()


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, without what a developer has set for holdfast; a terminal wide enough for every table."""
    kept = {name: value for name, value in os.environ.items() if name not in _OWN}
    return {**kept, "COLUMNS": "250", **(changes or {})}


def wait_until(happened: Callable[[], bool], process: "subprocess.Popen[str]") -> bool:
    """False if the process ended before it happened."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while not happened():
        if process.poll() is not None:
            return False
        if time.monotonic() > end:
            raise AssertionError(f"it did not happen in {_PATIENCE_SECONDS} s")
        time.sleep(_PAUSE_SECONDS)
    return True


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sums(count: int) -> list[dict[str, Any]]:
    """Sums of which no two are alike, so that a request repeated at the server is a key asked twice."""
    return [{"id": f"s{i:04d}", "question": f"{i} + {7 * i}", "answer": str(8 * i)} for i in range(1, count + 1)]


def write_spec(folder: Path, rows: int = 6, base_url: str = "", **changes: Any) -> Path:
    """A spec and its data: sums for the test server, or, without one, for a mock that says "8"."""
    write_rows(folder / "sums.jsonl", sums(rows))
    model: dict[str, Any] = {"name": "arith", "provider": "mock", "options": {"reply": "8"}}
    if base_url:
        model = {"name": "arith", "provider": "openai", "model": "arith-1", "base_url": base_url}
    spec = {
        "experiment": "sums",
        "models": [{**model, **changes.pop("model", {})}],
        "tasks": [
            {
                "name": "sums",
                "dataset": {"path": "sums.jsonl", "id": "id", "input": "question", "target": "answer"},
                "prompt": "Compute: {question}",
                "scorers": ["numeric"],
                **changes.pop("task", {}),
            }
        ],
        **changes,
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file under a folder, with its content and the moment of its last change."""
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files_in(folder)}


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def exported(run_id: str, store: Path) -> list[dict[str, Any]]:
    """The export, one mapping for each key."""
    done = call("export", run_id, "--store", store, cwd=store)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def shown(run_id: str, store: Path) -> dict[str, Any]:
    """`show --json`, whose counts always add up."""
    done = call("show", run_id, "--store", store, "--json", cwd=store)
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json()
    assert found["finished"] + found["failed"] + found["unfinished"] == found["planned"]
    return found
