"""Runs with the command, against servers of every protocol: routing, streams and raw answers as a user has them."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.testing import Behaviour, Fault, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, shown, sums, write_rows, write_spec


def run(folder: Path, *more: str) -> Done:
    return call("run", "eval.yaml", "--id", "r", "--store", folder / "runs", *more, cwd=folder)


@pytest.mark.parametrize("stream", [False, True])
def test_every_protocol_answers_the_same(tmp_path: Path, stream: bool) -> None:
    with start_server_process() as server:
        write_spec(tmp_path)
        spec = yaml.safe_load((tmp_path / "eval.yaml").read_text())
        there: dict[str, Any] = {"base_url": server.base_url, "model": "m", "stream": stream}
        spec["models"] = [
            {"name": "chat", "provider": "openai", **there},
            {"name": "responses", "provider": "openai", "options": {"api": "responses"}, **there},
            {"name": "messages", "provider": "anthropic", **there},
            {"name": "gemini", "provider": "google", **there},
        ]
        (tmp_path / "eval.yaml").write_text(yaml.safe_dump(spec))
        done = run(tmp_path)
    assert done.code == 0, done.said
    lines = exported("r", tmp_path / "runs")
    assert {(line["model"], line["scores"]["numeric"]) for line in lines} == {
        (name, True) for name in ("chat", "responses", "messages", "gemini")
    }
    assert len(lines) == 24


def places_of(servers: list[ServerProcess]) -> list[set[str]]:
    return [{seen.body["messages"][-1]["content"] for seen in server.requests()} for server in servers]


def test_several_urls_share_the_work_and_a_samples_repeats_stay_together(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(start_server_process(Behaviour(kept=100))) for _ in range(2)]
        urls = [server.base_url for server in servers]
        write_spec(tmp_path, 8, urls[0], model={"base_url": urls}, task={"repeats": 3})
        done = run(tmp_path)
        assert done.code == 0, done.said
        first, second = places_of(servers)
        counts = [server.stats().requests for server in servers]
    assert first
    assert second
    assert not first & second
    assert sum(counts) == 24


def test_a_url_that_is_down_rests_and_the_run_says_so(tmp_path: Path) -> None:
    with start_server_process(Behaviour(faults=[Fault("503")])) as tired, start_server_process() as server:
        write_spec(tmp_path, 6, "x", model={"base_url": [tired.base_url, server.base_url]})
        done = run(tmp_path)
        assert done.code == 0, done.said
        assert server.stats().answered == 6
    events = [json.loads(line) for line in (tmp_path / "runs/sums/r/log.jsonl").read_text().splitlines()]
    rests = [event for event in events if event["event"] == "model.rests"]
    assert rests
    assert rests[0]["message"].startswith(
        f"arith: {tired.base_url} is paused for 1 s, 1 other(s) continue: overload: HTTP 503"
    )


def test_urls_may_be_added_when_a_run_continues(tmp_path: Path) -> None:
    with start_server_process() as server:
        write_spec(tmp_path, 2, server.base_url)
        assert run(tmp_path).code == 0
        write_spec(tmp_path, 2, server.base_url, model={"base_url": [server.base_url, "http://127.0.0.1:1/v1"]})
        done = run(tmp_path)
        assert server.stats().requests == 2
    assert done.code == 0, done.said


def test_raw_answers_are_kept_in_steps_and_nowhere_else(tmp_path: Path) -> None:
    with start_server_process() as server:
        write_spec(tmp_path, 1, server.base_url, model={"record_raw": True})
        assert run(tmp_path).code == 0
    store = tmp_path / "runs"
    told = call("show", "r", "sums/arith/s0001/1", "--json", "--store", store, cwd=tmp_path).json()
    (step,) = told["attempts"][0]["steps"]
    assert step["raw"]["object"] == "chat.completion"
    lines = call("export", "r", "--events", "--store", store, cwd=tmp_path).out.splitlines()
    assert json.loads(lines[0])["events"][0]["d"]["answer"]["raw"] == step["raw"]
    assert told["answer"].get("raw") is None
    write_spec(tmp_path, 1, "http://127.0.0.1:1/v1")
    refused = run(tmp_path)
    assert refused.code == 3
    assert "record_raw" in refused.said


def test_short_names_work_in_a_spec_without_one_and_from_python(tmp_path: Path) -> None:
    write_rows(tmp_path / "sums.jsonl", sums(1))
    with start_server_process() as server:
        options = ["--data", "sums.jsonl", "--prompt", "{question}", "--base-url", server.base_url]
        done = call("run", "--model", "vllm/qwen3-8b:my-lora", *options, "--id", "r", cwd=tmp_path)
    assert done.code == 0, done.said
    (line,) = exported("r", tmp_path / "runs")
    assert (line["model"], line["output"]) == ("qwen3-8b:my-lora", "8")
    assert line["key"] == "sums/qwen3-8b:my-lora/s0001/1"
    (tmp_path / "eval.yaml").write_text(
        yaml.safe_dump({"models": ["groq/x", "mock"], "tasks": [{"name": "t", "dataset": {"path": "sums.jsonl"}}]})
    )
    checked = call("check", "eval.yaml", cwd=tmp_path)
    assert checked.code == 2, checked.said
    assert "GROQ_API_KEY is not set, and the server of x needs a key" in checked.err


def test_a_missing_extra_a_removed_provider_and_an_unknown_server_are_reported_in_one_sentence(tmp_path: Path) -> None:
    for provider, told in {"litellm": "pip install 'holdfast[litellm]'", "vllm": "`vllm serve MODEL`"}.items():
        write_spec(tmp_path, model={"provider": provider, "options": {}})
        done = run(tmp_path)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert told in done.err
    write_spec(tmp_path, models=["opnai/gpt-x"])
    done = run(tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "did you mean 'openai'?" in done.err


def test_raw_streams_are_kept_as_events(tmp_path: Path) -> None:
    with start_server_process() as server:
        write_spec(tmp_path, 1, server.base_url, model={"record_raw": True, "stream": True})
        assert run(tmp_path).code == 0
    store = tmp_path / "runs"
    told = call("show", "r", "sums/arith/s0001/1", "--json", "--store", store, cwd=tmp_path).json()
    assert told["attempts"][0]["steps"][0]["raw"][-1] == {"event": "", "data": "[DONE]"}
    assert shown("r", store)["finished"] == 1
