"""A server that repeats a credential, in whatever encoding, gets it into no file and no output of ours."""

import base64
import contextlib
import html
import http.server
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from holdfast.models import opening
from holdfast.records import redaction
from holdfast.records.redaction import Redactor, redact
from tests.e2e.agents import serving, write
from tests.e2e.commands import call, exported, write_spec
from tests.e2e.test_mcp import calling, react
from tests.e2e.test_secrets import files_with
from tests.servers import serve

KEY = "sk-very/secret+0123456789&abcdef"
LATER = ("show x --json", "show x sums/arith/s0001/1", "report x", "export x --events")


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


ENCODINGS = {
    "plain": KEY,
    "base64": base64_of(KEY),
    "base64 for URLs": base64.urlsafe_b64encode(KEY.encode()).decode(),
    "base64 of user and password": base64_of(f"user:{KEY}"),
    "base64 of a header": base64_of(f"Bearer {KEY}"),
    "base64 of a body": base64_of(json.dumps({"a": 1, "key": KEY, "b": 2})),
    "percent-encoded": quote(KEY, safe=""),
    "percent-encoded in lower case": quote(KEY, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "a path": quote(KEY),
    "a form": quote_plus(KEY),
    "percent-encoded twice": quote(quote(KEY, safe=""), safe=""),
    "JSON": json.dumps(KEY).replace("/", "\\/"),
    "JSON of Go": KEY.replace("&", "\\u0026").replace("+", "\\u002b"),
    "HTML": html.escape(KEY),
    "hexadecimal": KEY.encode().hex(),
}
CORES = {name: text[8:-8] for name, text in ENCODINGS.items()}
"""Without the edges: of base64 they depend on the neighbours too."""
ECHO = " | ".join(ENCODINGS.values())


class Repeating(http.server.BaseHTTPRequestHandler):
    """A chat server whose answer, or refusal, repeats the credential that it was sent."""

    status = 200
    seen: list[str]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(f"{self.path} {dict(self.headers)} {asked}")
        message = {"role": "assistant", "content": f"8 {ECHO}", "reasoning_content": f"they sent {ECHO}"}
        body = {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "debug": ECHO}
        if self.status != 200:
            self.reply(json.dumps({"error": {"message": f"refused: {ECHO}", "code": KEY}}).encode(), "application/json")
        elif asked.get("stream"):
            pieces = [ECHO[at : at + 5] for at in range(0, len(ECHO), 5)]  # no piece holds a whole key
            chunks = [{"id": "1", "choices": [{"index": 0, "delta": {"content": piece}}]} for piece in ["8 ", *pieces]]
            chunks.append({"id": "1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            lines = [*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks), "data: [DONE]\n\n"]
            self.reply("".join(lines).encode(), "text/event-stream")
        else:
            self.reply(json.dumps(body).encode(), "application/json")

    def reply(self, body: bytes, kind: str) -> None:
        self.send_response(self.status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Debug", KEY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Not on our standard error."""


@contextlib.contextmanager
def repeating(status: int = 200) -> Iterator[tuple[str, list[str]]]:
    seen: list[str] = []
    handler = type("Handler", (Repeating,), {"status": status, "seen": seen})
    with serve(handler) as address:
        yield f"{address}/v1", seen


def leaks(folder: Path, base_url: str, **model: Any) -> list[str]:
    """Run a spec and look everywhere: the encodings in which the key was found in a file or an output."""
    model = {"request_retries": 0, **model}
    write_spec(folder, 1, base_url, model=model, task={"sample_retries": 0})
    env = {"MY_KEY": KEY, "MY_KEY_QUOTED": quote(KEY, safe="")}
    said = call("run", "eval.yaml", "--id", "x", cwd=folder, env=env).said
    said += "".join(call(*command.split(), cwd=folder, env=env).said for command in LATER)
    assert files_with(folder / "runs", "[redacted]")  # so the search looks at what the server said
    return [name for name, core in CORES.items() if core in said or files_with(folder / "runs", core)]


MODELS: dict[str, dict[str, Any]] = {
    "key variable": {"api_key_env": "MY_KEY"},
    "header": {"headers": {"X-Custom": "Bearer ${MY_KEY}"}},
    "parameter": {"params": {"extra_body": {"password": "${MY_KEY}"}}},
    "streamed": {"api_key_env": "MY_KEY", "stream": True, "record_raw": True},
    "raw": {"api_key_env": "MY_KEY", "record_raw": True},
}


@pytest.mark.parametrize("status", [200, 401, 500])
@pytest.mark.parametrize("name", MODELS)
def test_a_repeated_key_is_kept_nowhere_in_any_encoding(tmp_path: Path, name: str, status: int) -> None:
    with repeating(status) as (address, seen):
        assert leaks(tmp_path, f"http://{address}", **MODELS[name]) == []
    assert all(KEY in each for each in seen)
    assert seen


def test_a_repeated_password_of_a_url_is_kept_nowhere(tmp_path: Path) -> None:
    with repeating(401) as (address, seen):
        assert leaks(tmp_path, f"http://user:${{MY_KEY_QUOTED}}@{address}") == []
    assert base64_of(f"user:{KEY}") in seen[0]


MCP_SERVER = """\
import base64, os
from mcp.server.mcpserver import MCPServer

server = MCPServer("repeating", instructions="")

@server.tool(description="The key is " + os.environ["SERVER_KEY"])
def repeat(n: int) -> str:
    key = os.environ["SERVER_KEY"]
    return key + " " + base64.b64encode(key.encode()).decode()

server.run()
"""


def test_a_key_that_an_mcp_server_repeats_is_kept_nowhere(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(MCP_SERVER)
    offer = {"mcp": {"command": [sys.executable, "server.py"], "env": {"SERVER_KEY": "${MY_KEY}"}}}
    with serving(calling("repeat")) as server:
        spec = write(tmp_path, server.base_url, react(offer))
        done = call("run", spec, "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path, env={"MY_KEY": KEY})
    assert done.code == 0, done.said
    assert exported("r", tmp_path / "runs")[0]["output"] == json.dumps(["[redacted] [redacted]"])
    assert files_with(tmp_path / "runs", KEY) == []
    assert files_with(tmp_path / "runs", base64_of(KEY)) == []


def test_without_the_guard_an_answer_holds_every_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "is_unmistakable", lambda secret: secret == "[redacted]")
    with repeating() as (address, _):
        write_spec(tmp_path, 1, f"http://{address}", model={"api_key_env": "MY_KEY"})
        assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path, env={"MY_KEY": KEY}).code == 0
    assert all(files_with(tmp_path / "runs", core.replace("\\", "\\\\")) for core in CORES.values())


def test_without_the_encodings_an_error_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [name for name, core in CORES.items() if core in redact(ECHO, [KEY])] == []
    monkeypatch.setattr(redaction, "encodings_of", lambda secret: (secret,))
    assert {name for name, core in CORES.items() if core in redact(ECHO, [KEY])} >= set(CORES) - {"plain"}


def test_words_that_serve_as_keys_stay_in_answers(tmp_path: Path) -> None:
    """Many servers accept any key: an answer may hold such a word by chance."""
    write_spec(tmp_path, 1, model={"options": {"reply": "EMPTY 8"}, "api_key_env": "MY_KEY"})
    assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path, env={"MY_KEY": "EMPTY"}).code == 0
    assert files_with(tmp_path / "runs", "EMPTY 8")


def test_values_without_secrets_are_returned_as_they_are() -> None:
    value = {"a": ["text", 1, None, {"b": "c"}]}
    redactor = Redactor([KEY])
    assert redactor.value(value) is value
    assert redactor.value({"a": [KEY], KEY: 1}) == {"a": ["[redacted]"], "[redacted]": 1}
