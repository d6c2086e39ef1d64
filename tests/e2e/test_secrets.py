"""A secret from the environment reaches the model's server and nothing else: no file, no output, no error text."""

import contextlib
import http.server
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import zstandard

from holdfast.testing import Behaviour, Fault, start_server_process
from tests.e2e.commands import call, files_in, run, write_spec
from tests.servers import serve

SECRET = "sk-verysecret-0123456789abcdef"
LATER = ("show x --json", "show x", "show x sums/arith/s0001/1", "report x", "report x --json", "export x", "ls --json")


def content_of(path: Path) -> bytes:
    """A file as a reader of it would see it: what is packed is unpacked."""
    content = path.read_bytes()
    if path.suffix != ".zst":
        return content
    with zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True) as stream:
        return stream.read()


def files_with(folder: Path, text: str) -> list[str]:
    found = text.encode()
    return [path.name for path in files_in(folder) if found in path.read_bytes() or found in content_of(path)]


def keeps_the_secret(folder: Path, env: dict[str, str], expected: str = "[redacted]") -> None:
    """Run the spec, then look everywhere. `expected` is in the journal: so the search does look inside."""
    done = call("run", "eval.yaml", "--id", "x", cwd=folder, env=env)
    assert done.code == 1, done.err
    said = [done.said, *(call(*command.split(), cwd=folder, env=env).said for command in LATER)]
    assert [text for text in said if SECRET in text] == []
    assert files_with(folder / "runs", SECRET) == []
    assert "000001.jsonl.zst" in files_with(folder / "runs", expected)


class Echo(http.server.BaseHTTPRequestHandler):
    """Repeats in its answer whatever it was sent: a badly written proxy."""

    status = 401
    seen: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        sent = f"{self.path} {dict(self.headers)}"
        self.seen.append(sent)
        body = json.dumps({"error": {"message": f"refused: {sent}"}}).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.status == 302:
            self.send_header("Location", f"/login?{urlencode(dict(self.headers))}")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Not on our standard error."""


@contextlib.contextmanager
def echo(status: int) -> Iterator[tuple[str, list[str]]]:
    """Its address, and what it was sent."""
    seen: list[str] = []
    handler = type("Handler", (Echo,), {"status": status, "seen": seen})
    with serve(handler) as address:
        yield f"{address}/v1", seen


WAYS: dict[str, dict[str, Any]] = {
    "key variable": {"api_key_env": "MY_KEY"},
    "authorization header": {"headers": {"Authorization": "Bearer ${MY_KEY}"}},
    "key header": {"headers": {"X-Api-Key": "${MY_KEY}"}},
    "any header": {"headers": {"X-Custom": "${MY_KEY}"}},
}
STATUSES = (200, 302, 400, 401, 500)
QUICK_ECHOES = {*((way, 200) for way in WAYS), *(("any header", status) for status in STATUSES)}


@pytest.mark.parametrize(
    ("way", "status"),
    [
        pytest.param(way, status, marks=() if (way, status) in QUICK_ECHOES else pytest.mark.long)
        for way in WAYS
        for status in STATUSES
    ],
)
def test_a_key_that_the_server_repeats_is_kept_nowhere(tmp_path: Path, way: str, status: int) -> None:
    model = WAYS[way]
    with echo(status) as (address, seen):
        write_spec(tmp_path, 2, f"http://{address}", model={**model, "request_retries": 0}, task={"sample_retries": 0})
        keeps_the_secret(tmp_path, {"MY_KEY": SECRET})
    assert all(SECRET in sent for sent in seen)
    assert seen


def test_a_key_in_the_url_is_kept_nowhere(tmp_path: Path) -> None:
    """`base_url` is only a place: what it is made of is put in when a request is made."""
    with echo(401) as (address, seen):
        write_spec(tmp_path, 2, f"http://{address}?api_key=${{MY_KEY}}", task={"sample_retries": 0})
        keeps_the_secret(tmp_path, {"MY_KEY": SECRET})
    assert all(SECRET in sent for sent in seen)


def test_a_key_from_a_dotenv_file_is_kept_nowhere(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"MY_KEY={SECRET}\n")
    with start_server_process(Behaviour(faults=[Fault("401")])) as server:
        write_spec(tmp_path, 2, server.base_url, model={"api_key_env": "MY_KEY"})
        keeps_the_secret(tmp_path, {})
        assert server.stats().requests > 0, "the key was found, so requests were sent"


def test_a_key_in_the_defaults_or_in_a_role_is_kept_nowhere(tmp_path: Path) -> None:
    with echo(401) as (address, seen):
        write_spec(
            tmp_path,
            2,
            f"http://{address}",
            defaults={"headers": {"Authorization": "Bearer ${MY_KEY}"}, "sample_retries": 0},
            roles={"judge": {"provider": "openai", "model": "j", "base_url": f"http://{address}"}},
        )
        keeps_the_secret(tmp_path, {"MY_KEY": SECRET})
    assert all(SECRET in sent for sent in seen)


def test_a_key_that_changes_is_no_drift_and_leaves_no_trace(tmp_path: Path) -> None:
    with echo(401) as (address, _):
        write_spec(
            tmp_path,
            2,
            f"http://{address}",
            model={"headers": {"Authorization": "Bearer ${MY_KEY}"}},
            task={"sample_retries": 0},
        )
        keeps_the_secret(tmp_path, {"MY_KEY": SECRET})
        again = call("run", "eval.yaml", "--id", "x", cwd=tmp_path, env={"MY_KEY": f"{SECRET}-new"})
    assert again.code == 1
    assert SECRET not in again.said
    assert files_with(tmp_path / "runs", SECRET) == []


def test_the_real_command_says_nothing_of_a_key(tmp_path: Path) -> None:
    with start_server_process(Behaviour(faults=[Fault("401")])) as server:
        write_spec(tmp_path, 2, server.base_url, model={"api_key_env": "MY_KEY"})
        done = run("run", "eval.yaml", "--id", "x", cwd=tmp_path, env={"MY_KEY": SECRET})
    assert done.code == 1
    assert "auth" in done.out
    assert SECRET not in done.said
    assert files_with(tmp_path / "runs", SECRET) == []


def test_a_spec_that_is_refused_does_not_show_the_values_of_variables(tmp_path: Path) -> None:
    write_spec(tmp_path, model={"headers": {"Authorization": "Bearer ${MY_KEY}"}, "request_retries": "${MY_KEY}"})
    done = call("run", "eval.yaml", "--id", "x", cwd=tmp_path, env={"MY_KEY": SECRET})
    assert done.code == 2
    assert "models[0].request_retries" in done.err
    assert SECRET not in done.said
