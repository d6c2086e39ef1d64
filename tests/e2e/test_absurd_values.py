"""Servers that send absurd values: every field of every protocol, in plain and streamed responses.

One run uses eight models (four protocols, plain and streamed). Each sample gets a correct response in which one field
was replaced. Whatever the value is, the sample finishes or fails with a kind, and every command can read the run.
The quick test takes every few cases of the list, the long one takes all, with texts of 10 MB.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from holdfast.models.http import bodies
from holdfast.records import samples as samples_module
from holdfast.records.samples import Answer, Message, Usage
from holdfast.runs.run import Run
from holdfast.testing import batch
from tests.absurd import HUGE_TEXT, LONG, absurd_documents, absurd_values, paths_in, rewritten
from tests.e2e.agents import serving
from tests.e2e.commands import Done, call, exported, shown, write_rows, write_spec
from tests.journals import unpacked

TOOLS = '''
import holdfast

@holdfast.tool
async def note(n: int) -> str:
    """Write a number down."""
    return f"noted {n}"
'''
PROTOCOLS: dict[str, dict[str, Any]] = {
    "chat": {"provider": "openai"},
    "responses": {"provider": "openai", "options": {"api": "responses"}},
    "messages": {"provider": "anthropic"},
    "gemini": {"provider": "google"},
}


def answer(messages: list[Message]) -> Answer:
    """Text, a tool call and log probabilities, with every count that a protocol has."""
    usage = Usage(1000, 100, 20, 30, 40)
    if any(message["role"] == "tool" for message in messages):
        return Answer("8", {"role": "assistant", "content": "8"}, [], "stop", usage)
    calls = [{"id": "call-1", "type": "function", "function": {"name": "note", "arguments": '{"n": 1}'}}]
    message = {"role": "assistant", "content": "8", "tool_calls": calls}
    tops = [{"token": "8", "logprob": -0.25}]
    return Answer("8", message, calls, "tool_calls", usage, [{"token": "8", "logprob": -0.25, "top_logprobs": tops}])


def documents_in(content: bytes) -> list[Any]:
    """The JSON documents of a body, or of the events of a stream."""
    if content.startswith((b"data:", b"event:")):
        found = re.findall(rb"^data: (\{.*\})$", content, re.MULTILINE)
        return [json.loads(each) for each in found]
    return [json.loads(content)]


def cases_of(content: bytes) -> Iterator[tuple[int, tuple[Any, ...], str]]:
    """Every place of a response with every absurd value for it. In streams each place is tried in its first event."""
    seen = set()
    for number, document in enumerate(documents_in(content)):
        for path, value in paths_in(document):
            if path not in seen:
                seen.add(path)
                yield from ((number, path, absurd) for absurd in absurd_values(path, value))
            if path[-1] in LONG and path[-1] not in seen:
                seen.add(path[-1])
                yield number, path, HUGE_TEXT


class Rewriting:
    """Rewrites the response to sample `i` of `samples` with one of the cases, spread evenly over all of them."""

    def __init__(self, samples: int, characters: int) -> None:
        self._samples = samples
        self._characters = characters

    def __call__(self, messages: list[Message], content: bytes) -> bytes:
        if any(message["role"] == "tool" for message in messages):
            return content
        sample = int(re.findall(r"case (\d+)", json.dumps(messages))[0])
        cases = list(cases_of(content))
        return self._rewritten(content, *cases[sample * len(cases) // self._samples % len(cases)])

    def _rewritten(self, content: bytes, number: int, path: tuple[Any, ...], absurd: str) -> bytes:
        document = documents_in(content)[number]
        new = rewritten(document, path, absurd, self._characters)
        if not content.startswith((b"data:", b"event:")):
            return new
        lines = content.split(b"\n")
        places = [place for place, line in enumerate(lines) if line.startswith(b"data: {")]
        lines[places[number]] = b"data: " + new
        return b"\n".join(lines)


def write_absurd_spec(folder: Path, base_url: str, samples: int) -> None:
    write_rows(folder / "rows.jsonl", [{"id": f"s{i}", "q": f"case {i}", "a": "8"} for i in range(samples)])
    (folder / "mine.py").write_text(TOOLS)
    there = {"model": "m", "base_url": base_url, "request_retries": 0, "price": {"input": 1.0, "output": 2.0}}
    models = [
        {"name": f"{name}{'-stream' * stream}", **protocol, **there, "stream": stream}
        for name, protocol in PROTOCOLS.items()
        for stream in (False, True)
    ]
    solver = {"react": {"tools": ["mine:note"], "turns": 2}}
    dataset = {"path": "rows.jsonl", "id": "id", "target": "a"}
    task: dict[str, Any] = {
        "name": "t",
        "dataset": dataset,
        "prompt": "{q}",
        "solver": solver,
        "scorers": ["exact_match"],
    }
    task["sample_retries"] = 0
    (folder / "eval.yaml").write_text(yaml.safe_dump({"experiment": "e", "models": models, "tasks": [task]}))


def no_traceback(done: Done, *codes: int) -> Done:
    assert "Traceback" not in done.said
    assert "Overflow" not in done.said
    assert done.code in codes, done.said[-2000:]
    return done


@pytest.mark.parametrize(
    ("samples", "characters"), [(30, 1_000_000), pytest.param(972, 10_000_000, marks=pytest.mark.long)]
)
def test_no_absurd_value_of_any_field_poisons_a_run(tmp_path: Path, samples: int, characters: int) -> None:
    with serving(answer, rewrite=Rewriting(samples, characters)) as server:
        write_absurd_spec(tmp_path, server.base_url, samples)
        no_traceback(call("run", "eval.yaml", "--id", "r", cwd=tmp_path), 0, 1)
    store = tmp_path / "runs"
    run = shown("r", store)
    assert (run["planned"], run["unfinished"]) == (8 * samples, 0)
    assert run["finished"] > run["failed"]
    lines = exported("r", store)
    kinds = {line["error"]["kind"] for line in lines if line["status"] == "failed"}
    assert kinds <= {"malformed", "bad_request", "content_filter", "connection", "server"}
    assert 0 < run["usage"]["input_tokens"] <= 2 * 2000 * len(lines)
    for command in (["show", "r"], ["ls"], ["cost", "r"], ["report", "r"], ["report", "r", "--format", "html"]):
        no_traceback(call(*command, cwd=tmp_path), 0, 1)
    no_traceback(call("doctor", cwd=tmp_path), 0)
    listed = call("ls", "--json", cwd=tmp_path).json()
    assert [each["status"] for each in listed] == ["completed"]


@pytest.mark.parametrize("style", ["openai", "anthropic"])
@pytest.mark.parametrize("samples", [120, pytest.param(2000, marks=pytest.mark.long)])
def test_no_absurd_line_of_a_batch_poisons_a_run(tmp_path: Path, style: str, samples: int) -> None:
    """Each line of the results has one absurd value. A line that is no result is asked for alone."""
    sent = batch.send_lines

    async def send_absurd(request: Any, jobs: Any, lines: list[bytes]) -> Any:
        every = [list(absurd_documents(json.loads(line))) for line in lines]
        spread = [cases[number * 7919 % len(cases)] for number, cases in enumerate(every)]
        return await sent(request, jobs, spread)

    plain = Answer("8", {"role": "assistant", "content": "8"}, [], "stop", Usage(1000, 100, 20, 30, 40))
    with serving(lambda messages: plain) as server, patch.object(batch, "send_lines", send_absurd):
        settings = {"quiet_seconds": 0.2, "poll_seconds": 0.05, "settle_seconds": 0.3}
        model = {"provider": style, "batch": settings, "request_retries": 0, "price": {"input": 1.0, "output": 2.0}}
        write_spec(tmp_path, samples, server.base_url, model=model, task={"sample_retries": 0})
        no_traceback(call("run", "eval.yaml", "--id", "r", cwd=tmp_path), 0, 1)
    run = shown("r", tmp_path / "runs")
    assert (run["planned"], run["unfinished"]) == (samples, 0)
    assert run["finished"] > run["failed"]
    kinds = {line["error"]["kind"] for line in exported("r", tmp_path / "runs") if line["status"] == "failed"}
    assert kinds <= {"malformed", "bad_request", "content_filter", "server"}
    assert 0 < run["usage"]["input_tokens"] <= 2000 * samples
    for command in (["show", "r"], ["ls"], ["cost", "r"], ["report", "r"], ["doctor"], ["verify", "r"]):
        no_traceback(call(*command, cwd=tmp_path), 0, 1)


def test_a_dropped_count_is_an_anomaly_of_its_answer(tmp_path: Path) -> None:
    def poison(messages: list[Message], content: bytes) -> bytes:
        return content.replace(b'"prompt_tokens":1000', b'"prompt_tokens":%d' % 2**63)

    plain = Answer("8", {"role": "assistant", "content": "8"}, [], "stop", Usage(1000, 100))
    with serving(lambda messages: plain, rewrite=poison) as server:
        write_spec(tmp_path, 3, server.base_url)
        said = no_traceback(call("run", "eval.yaml", "--id", "r", cwd=tmp_path), 0).out
    assert "anomaly invalid_values in 3 answers" in said
    assert [list(line["anomalies"]) for line in exported("r", tmp_path / "runs")] == [["invalid_values"]] * 3
    one = call("show", "r", "sums/arith/s0001/1", cwd=tmp_path).out
    assert "prompt_tokens: 9223372036854775808" in one
    assert shown("r", tmp_path / "runs")["usage"].get("input_tokens", 0) == 0


def test_runs_of_older_versions_with_impossible_counts_can_be_read_and_continued(tmp_path: Path) -> None:
    """Older versions recorded whatever the server said. Such a run was unreadable, and so was its whole store."""
    unchecked = patch.object(bodies.Values, "count", lambda self, counts, name: 2**63)
    with serving(lambda messages: "8") as server:
        write_spec(tmp_path, 4, server.base_url)
        with unchecked, patch.object(samples_module, "COUNT_MAX", 2**80), contextlib.suppress(OverflowError):
            call("run", "eval.yaml", "--id", "r", "--set", "limits.run.requests=2", cwd=tmp_path)
        folder = tmp_path / "runs/sums/r"
        assert b"9223372036854775808" in b"".join(map(unpacked, map(str, (folder / "journal").iterdir())))
        for command in (["ls"], ["show", "r"], ["cost", "r"], ["report", "r"], ["export", "r"], ["doctor"]):
            no_traceback(call(*command, cwd=tmp_path), 0, 1)
        assert shown("r", tmp_path / "runs")["usage"].get("input_tokens", 0) == 0
        no_traceback(call("run", "eval.yaml", "--id", "r", cwd=tmp_path), 0)
    run = shown("r", tmp_path / "runs")
    assert (run["finished"], run["status"]) == (4, "completed")
    assert 0 < run["usage"]["input_tokens"] < 1000
    assert no_traceback(call("verify", "r", cwd=tmp_path), 0)


def test_one_unreadable_run_never_breaks_a_listing(tmp_path: Path) -> None:
    write_spec(tmp_path, 2)
    for name in ("a", "b"):
        assert call("run", "eval.yaml", "--id", name, cwd=tmp_path).code == 0
    (tmp_path / "runs/catalog.db").unlink(missing_ok=True)
    failing = patch.object(Run, "summary", autospec=True, side_effect=_fail_for_b)
    with failing:
        listed = call("ls", "--json", "--store", "runs", cwd=tmp_path).json()
    assert [(each["run_id"], each["status"]) for each in sorted(listed, key=lambda each: each["run_id"])] == [
        ("a", "completed"),
        ("b", "unreadable"),
    ]


_summary = Run.summary


def _fail_for_b(run: Run) -> Any:
    if run.place.run_id == "b":
        raise OverflowError("Python int too large to convert to SQLite INTEGER")
    return _summary(run)
