"""`check` finds what is missing before a run does; servers are asked only if that is wanted."""

import asyncio
import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast.runs import Given, execute, new_run_location
from holdfast.spec import load_spec
from holdfast.testing import start_server_process
from tests.e2e.commands import call, run, write_spec


@contextmanager
def answering(status: int, body: bytes = b"{}") -> Iterator[str]:
    """A server that says the same to everything."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_is_there_is_said_to_be_there_and_no_model_is_asked(tmp_path: Path) -> None:
    with start_server_process() as server:
        spec = write_spec(tmp_path, base_url=server.base_url, model={"model": "test-model"})
        done = run("check", spec, "--servers", cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        assert "models[0]: the server responds" in done.out
        assert server.stats().requests == 0


def test_a_server_that_is_not_there_exits_2_only_if_it_was_to_be_asked(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, base_url=f"http://127.0.0.1:{closed_port()}/v1")
    assert call("check", spec, cwd=tmp_path).code == 0
    done = run("check", spec, "--servers", cwd=tmp_path)
    assert done.code == 2
    assert "models[0]: the connection failed" in done.err
    assert "check base_url, and that the server is up" in done.err
    assert "cannot be run now" in done.out
    told = call("check", spec, "--servers", "--json", cwd=tmp_path)
    assert (told.code, len(told.json()["errors"])) == (2, 1)
    assert sorted(os.listdir(tmp_path)) == ["eval.yaml", "sums.jsonl"]


def test_a_model_that_the_server_does_not_list_is_a_warning_with_the_nearest(tmp_path: Path) -> None:
    with answering(200, b'{"data": [{"id": "arith-2"}, {"id": "other"}]}') as url:
        done = call("check", write_spec(tmp_path, base_url=url), "--servers", cwd=tmp_path)
    assert done.code == 0
    assert "models[0].model: the server does not list 'arith-1'; did you mean 'arith-2'?" in done.err


def test_impossible_parameters_exit_2_before_anything_is_created(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, model={"params": {"temperature": "warm", "max_tokens": -5}})
    for command in ("check", "run"):
        done = call(command, spec, cwd=tmp_path)
        assert done.code == 2, done.said
        assert 'models[0].params.temperature: expected a number of at least 0, got "warm"' in done.err
        assert "models[0].params.max_tokens: expected a whole number of at least 1, got -5" in done.err
    spec = write_spec(tmp_path, model={"params": {"my_switch": 1}})
    done = call("run", spec, "--id", "x", "--set", "models.0.params.temperature=warm", cwd=tmp_path)
    assert (done.code, "models[0].params.temperature: expected" in done.err) == (2, True)
    done = call("run", "--model", "mock", "--data", "sums.jsonl", "--param", "top_p=2", cwd=tmp_path)
    assert (done.code, "--param top_p: expected a number from 0 to 1, got 2" in done.err) == (2, True)
    assert sorted(os.listdir(tmp_path)) == ["eval.yaml", "sums.jsonl"]
    done = call("check", spec, cwd=tmp_path)
    assert (done.code, "models[0].params: 'my_switch' is not a known parameter" in done.err) == (0, True)


def test_a_run_whose_stored_parameters_are_refused_today_stays_readable_and_resumable(tmp_path: Path) -> None:
    """Older versions accepted every value; a spec that was made in Python is not checked, and serves as one of them."""
    loaded = load_spec(str(write_spec(tmp_path)))
    model = msgspec.structs.replace(loaded.models[0], params={"temperature": "warm"})
    given = Given(msgspec.structs.replace(loaded, models=[model]))
    asyncio.run(execute(given, new_run_location(given, str(tmp_path / "runs"), "old")))
    for command in (("show", "old"), ("report", "old"), ("resume", "old"), ("export", "old")):
        done = call(*command, cwd=tmp_path)
        assert done.code == 0, done.said
    done = call("resume", "old", "--set", "models.arith.max_connections=3", cwd=tmp_path)
    assert done.code == 0, done.said
    done = call("fork", "old", "--id", "new", "--set", "models.arith.params.temperature=hot", cwd=tmp_path)
    assert (done.code, 'got "hot"' in done.err) == (2, True)


@pytest.mark.parametrize(("status", "code"), [(404, 0), (200, 0), (401, 2), (503, 2), (302, 2)])
def test_what_a_server_answers_decides(tmp_path: Path, status: int, code: int) -> None:
    with answering(status) as url:
        done = call("check", write_spec(tmp_path, base_url=url), "--servers", cwd=tmp_path)
    assert done.code == code, done.said
    assert (f"HTTP {status}" in done.err) is (code == 2)


def test_models_without_a_server_are_not_asked(tmp_path: Path) -> None:
    done = call("check", write_spec(tmp_path), "--servers", "--json", cwd=tmp_path)
    assert (done.code, done.json()["servers"]) == (0, [])


def test_the_key_of_the_default_server_is_missed(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, model={"provider": "openai", "model": "gpt-x", "options": {}})
    for command in ("check", "run"):
        refused = call(command, spec, cwd=tmp_path)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "OPENAI_API_KEY is not set" in refused.err
    assert not (tmp_path / "runs").exists()
    assert call("check", spec, cwd=tmp_path, env={"OPENAI_API_KEY": "k"}).err == ""


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ({"dataset": {"path": "sums.jsonl", "input": "qestion"}}, "no column 'qestion'"),
        ({"prompt": "{qestion}"}, "did you mean 'question'?"),
        ({"solver": "chatt"}, "did you mean 'chat'?"),
        ({"scorers": ["numerc"]}, "did you mean 'numeric'?"),
        ({"dataset": {"path": "sms.jsonl"}}, "did you mean sums.jsonl?"),
    ],
    ids=str,
)
def test_check_finds_what_is_not_there(tmp_path: Path, task: dict[str, object], named: str) -> None:
    done = call("check", write_spec(tmp_path, task=task), cwd=tmp_path)
    assert done.code == 2
    assert named in done.err


@pytest.mark.parametrize(
    ("reduce", "warning"),
    [
        ("pass@2", "pass@2 of rubric is always 1: a score of 1 or more is right, and its scale is 1 to 5"),
        ("pass^2", "pass^2 of rubric is always 1"),
        ("at_least_1", "at_least_1 of rubric is always 1"),
        ({"pass_at_k": {"k": 2, "threshold": 4}}, ""),
        ("mean", ""),
    ],
)
def test_a_reducer_that_can_have_only_one_value_is_warned_of(tmp_path: Path, reduce: object, warning: str) -> None:
    scorers = ["numeric", {"rubric": {"criteria": "It is right."}}]
    spec = write_spec(
        tmp_path, roles={"judge": {"provider": "mock"}}, task={"scorers": scorers, "repeats": 2, "reduce": reduce}
    )
    done = call("check", spec, cwd=tmp_path)
    assert done.code == 0
    if not warning:
        assert done.err == ""
        return
    lines = [line for line in done.err.splitlines() if "rubric" in line]
    assert len(lines) == 1
    assert f"tasks[0].reduce: {warning}" in lines[0]
    assert "threshold: 5}}" in lines[0], "and what to write"
    assert any(warning in each for each in call("check", spec, "--json", cwd=tmp_path).json()["warnings"])


def test_a_misspelt_field_hides_no_other_problem(tmp_path: Path) -> None:
    task = {"name": "t", "dataset": {"path": "gone.jsonl"}, "prompt": "{q}", "scorers": ["exact_mach"]}
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"experimnt": "e", "models": [{"name": "m", "provider": "mock"}], "tasks": [task]}))
    done = call("check", path, cwd=tmp_path)
    assert done.code == 2
    for problem in ("'experimnt'", "gone.jsonl", "'exact_mach'"):
        assert problem in done.err, done.err


def test_a_file_of_another_kind_is_not_written(tmp_path: Path) -> None:
    assert call("init", "e", cwd=tmp_path).code == 0
    assert call("run", "e/eval.yaml", "--id", "x", cwd=tmp_path).code == 0
    done = call("export", "x", "--output", "x.xlsx", cwd=tmp_path)
    assert (done.code, "--format" in done.err, (tmp_path / "x.xlsx").exists()) == (2, True, False), done.said
