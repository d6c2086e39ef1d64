"""A store in which every text that a stranger controls carries terminal escapes: model output, data, names, errors."""

import contextlib
import json
import os
import pty
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import xxhash
import yaml

from holdfast import printable
from holdfast.cli import output
from holdfast.cli.main import main
from holdfast.records.line import seed_of
from tests.e2e.commands import Done, call, environment, write_rows
from tests.journals import snapshot

ALIEN_STYLE = "\x1b[38;5;201m"
"""A style that Holdfast never uses: if it comes through, a text has set the colour."""
FORGED = "FORGED: all is well"
POISON = (
    "\x1b[2J\x1b]8;;http://evil.example\x07link\x1b]8;;\x07\x1b]52;c;aGk=\x07"  # clear, hyperlink, clipboard
    f"\x9b31m\x9d0;title\x9c{ALIEN_STYLE}\x1b[8m"  # the same in C1, and styles
    "\u202eevil\u202c\u2066\u2069\u2028\u2029\u200b\ufeff\x85\x7f\x08\x0b\x0c\x00"  # order, line ends, invisible
    f"\rover\n{FORGED}"  # over this line, and on the next one
)
ARGUMENT = POISON.replace("\x00", "").replace("/", "").replace("\n", "")
"""For the command line, which cannot hold every character."""
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u2069\ufeff]")
_OURS = re.compile(r"\x1b\[[0-9;]*m|\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*|\r+\n")
EXPERIMENT, RUN, OTHER = "poisoned", "r", "r2"

PARTS = f"""\
import holdfast
POISON = {POISON!r}

async def break_down(sample, ctx):
    await ctx.generate()
    raise ValueError(POISON)

async def use_a_tool(sample, ctx):
    answer = await ctx.generate()
    await ctx.call(look_up, {{"text": POISON}})
    print("printed by a solver", POISON.replace("\\n", ""))
    return answer

@holdfast.tool
def look_up(text: str) -> str:
    "Look it up."
    return text + POISON

def label(answer, sample):
    return holdfast.Score("label" + POISON, "because" + POISON, {{"found" + POISON: POISON}})

def fail(answer, sample):
    raise ValueError(POISON)
"""


def harmful_in(text: str) -> list[str]:
    """What must not be in the output of a command, each with what is around it. Styles of ours are allowed."""
    found = [ALIEN_STYLE] if ALIEN_STYLE in text else []
    rest = _OURS.sub("", text)
    return [*found, *(rest[max(each.start() - 40, 0) : each.end() + 20] for each in HARMFUL.finditer(rest))]


class _Handler(BaseHTTPRequestHandler):
    """An OpenAI-compatible server that answers with escapes in every text; a model called `refused` gets an error."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["model"] == "refused":
            self._send(400, {"error": {"message": POISON, "type": POISON, "code": POISON, "param": POISON}})
            return
        calls = [{"id": POISON, "type": "function", "function": {"name": POISON, "arguments": POISON}}]
        message = {"role": "assistant", "content": f"8{POISON}", "reasoning_content": POISON, "tool_calls": calls}
        usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
        choice = {"index": 0, "finish_reason": POISON, "message": message, "logprobs": None}
        self._send(
            200, {"id": POISON, "model": POISON, "system_fingerprint": POISON, "choices": [choice], "usage": usage}
        )

    def _send(self, status: int, body: Any) -> None:
        data = json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def poisoned_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()


def write_spec(folder: Path, base_url: str) -> Path:
    """Names, prompts, columns, ids and values with escapes in them."""
    (folder / "poison_parts.py").write_text(PARTS)
    column = f"column{POISON}"
    rows = [
        {"id": f"s{i}{POISON}", "question": f"{i} + {i}{POISON}", "answer": f"8{POISON}", column: POISON}
        for i in (1, 2)
    ]
    write_rows(folder / "rows.jsonl", rows)
    dataset = {"path": "rows.jsonl", "id": "id", "input": "question", "target": "answer"}
    task = {"dataset": dataset, "prompt": "Compute: {question}", "solver": "poison_parts:use_a_tool"}
    scorers = ["exact_match", "poison_parts:label", "poison_parts:fail"]
    model = {"provider": "openai", "base_url": base_url, "api_key_env": ""}
    spec = {
        "experiment": EXPERIMENT,
        "models": [{"name": f"{name}{POISON}", "model": name, **model} for name in ("answering", "refused")],
        "tasks": [
            {"name": f"task{POISON}", "scorers": scorers, **task},
            {**task, "name": f"broken{POISON}", "solver": "poison_parts:break_down"},
        ],
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def make_store(folder: Path) -> None:
    """Two runs of the poisoned spec, made by the real engine, with tags, notes and scores set by hand."""
    with poisoned_server() as base_url:
        spec = write_spec(folder, base_url)
        for run_id in (RUN, OTHER):
            _expect(1, call("run", spec, "--id", run_id, cwd=folder))
    _expect(0, call("note", RUN, f"note{POISON}", cwd=folder))
    reason = ("--reason", f"why{POISON}", "--by", f"somebody{POISON}")
    _expect(0, call("score", RUN, "--set", finished_key(folder), "exact_match=false", *reason, cwd=folder))
    _expect(0, call("score", RUN, "--scorers", "poison_parts:label", "--name", f"second{POISON}", cwd=folder))


def _expect(code: int, done: Done) -> None:
    assert done.code == code, done.said


def finished_key(folder: Path) -> str:
    lines = [json.loads(line) for line in call("export", RUN, cwd=folder).out.split("\n") if line]
    return next(str(line["key"]) for line in lines if line["status"] == "finished")


def call_on_terminal(*arguments: str | Path, cwd: Path) -> Done:
    """The command in this process, with standard output and standard error on a pseudo-terminal."""
    leader, follower = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while piece := os.read(leader, 65536):
                seen.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    streams = [os.fdopen(os.dup(follower), "w", encoding="utf-8") for _ in range(2)]
    os.close(follower)
    code: object = 0
    variables = {**environment(), "TERM": "xterm-256color", "COLUMNS": "200"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(patch.dict(os.environ, variables, clear=True))
        stack.enter_context(patch.object(sys, "argv", ["holdfast", *map(str, arguments)]))
        stack.enter_context(patch.object(sys, "path", list(sys.path)))
        stack.enter_context(contextlib.redirect_stdout(streams[0]))
        stack.enter_context(contextlib.redirect_stderr(streams[1]))
        stack.enter_context(patch.object(output, "console", output.CleanConsole()))
        try:
            main()
        except SystemExit as error:
            code = error.code
        except Exception:  # noqa: BLE001 - whatever it is, Python prints it
            traceback.print_exc()  # as Python does at the end of a process
            code = 1
    for each in streams:
        each.close()
    reader.join()
    os.close(leader)
    return Done(code if isinstance(code, int) else 1, b"".join(seen).decode(), "")


def remove_cleaner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: every text is taken for clean."""
    monkeypatch.setattr(printable, "_is_clean", lambda text: True)
    monkeypatch.setattr(printable, "_OR_RETURN", re.compile("(?!)"))


def rewrite_journal(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the records of a journal with one segment, and give them checksums that are right."""
    journal = run / "journal"
    content = snapshot(str(journal)).contents
    (name,) = content
    lines = [json.loads(line) for line in content[name].split(b"\n") if line]
    seed = seed_of(lines[0]["d"]["run"])
    made = []
    for line in lines:
        change(line)
        key = b"" if line.get("k") is None else b'"k":%b,' % _encoded(line["k"])
        head = b'{"n":%d,"at":%b,"t":%b,%b"d":' % (line["n"], _encoded(line["at"]), _encoded(line["t"]), key)
        body = head + _encoded(line["d"])
        made.append(b'%b,"x":"%b"}\n' % (body, xxhash.xxh3_64_hexdigest(body, seed).encode()))
    (journal / name).unlink()
    (journal / "000001.jsonl").write_bytes(b"".join(made))


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)
