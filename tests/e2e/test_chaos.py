"""Evaluations through storms, with kill -9: totals are right, nothing recorded is bought twice, and no failure is
scored as an answer. The result of each key is computed from the server's own rules, without a request.
"""

import json
import random
import signal
import time
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import Entry, Reader
from holdfast.records.samples import MARKS, Answer, Message
from holdfast.testing import Behaviour, Fault, Stats, Storm, foretell, start_server_process
from holdfast.testing.protocols import compute
from tests.e2e.commands import call, exported, run, shown, start, sums, write_spec
from tests.servers import serve_model

_PATIENCE_SECONDS = 1800
CONNECTIONS = 16
TIMES = 3
KINDS = {"context-too-long": "context_too_long", "content-filter": "content_filter", "filtered": "content_filter"}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "chat": {"provider": "openai"},
    "responses": {"provider": "openai", "options": {"api": "responses"}},
    "messages": {"provider": "anthropic"},
    "gemini": {"provider": "google"},
}
ONE = {"arith": PROTOCOLS["chat"]}
FIXED = {"arith": {**PROTOCOLS["chat"], "adaptive": False}}
"""Not slowed down by refusals: more is under way in a storm."""
PATIENT = {"timeout_seconds": 60, "request_retries": 8, "max_connections": CONNECTIONS}
"""A response that is late because the machine is busy was bought and is not recorded: it would seem repeated."""
IMPATIENT = {**PATIENT, "timeout_seconds": 8}
"""Where servers fall silent, and a test waits for each time-out."""


def passing(kind: str, rate: float, **more: Any) -> Fault:
    """A failure that a request meets a few times at most."""
    return Fault(kind, rate=rate, times=TIMES, **more)


def lasting(kind: str, rate: float, **more: Any) -> Fault:
    return Fault(kind, rate=rate, sticky=True, **more)


BROKEN = ("reset", "cut", "empty", "malformed", "html", "wrong-type")


def chaos(seed: int, every: int, *, silent: float = 0.004, huge: float = 0.004) -> Behaviour:
    """Every failure there is, in storms and between them, and answers of every unusual shape."""
    refusals = [passing(kind, 0.1) for kind in ("429", "503", "529", "500", "502")]
    broken = [passing(kind, 0.05) for kind in BROKEN]
    more = [passing(kind, 0.03) for kind in ("other-json", "no-choices", "408")]
    slow = [passing(kind, silent) for kind in ("hang", "stall", "trickle")]
    told = [passing("429-retry-after", 0.02, retry_after="0.1"), passing("429-retry-date", silent)]
    refused = [lasting(kind, 0.05) for kind in KINDS]
    marked = [lasting(kind, 0.05) for kind in ("half-filtered", "empty-answer", "truncated")]
    odd = [lasting("huge", huge), *(lasting(kind, 0.05) for kind in ("same-id", "null-tool-calls", "no-usage"))]
    return Behaviour(
        latency_seconds=0.005,
        jitter_seconds=0.01,
        wrong_rate=0.2,
        storms=[Storm(every, every // 3, [*refusals, *broken, *more])],
        faults=[*slow, *told, passing("500", 0.02), passing("malformed", 0.01), *refused, *marked, *odd],
        seed=seed,
    )


def write_course(folder: Path, samples: int, **changes: Any) -> list[str | Path]:
    task = {"sample_retries": 2 * TIMES, **changes.pop("task", {})}
    write_spec(folder, samples, task=task, stall_seconds=60, **changes)
    return ["run", folder / "eval.yaml", "--id", "x", "--store", folder / "runs"]


def run_with_kills(command: list[str | Path], folder: Path, server: Any, thresholds: list[int]) -> int:
    """Kill it each time that the server has answered so many, then let it end. How often it was killed."""
    kills = 0
    for threshold in thresholds:
        with start(*command, cwd=folder) as process:
            while process.poll() is None and server.stats().answered < threshold:
                time.sleep(0.02)
            process.kill()
            process.communicate()
            kills += process.returncode == -signal.SIGKILL
    with start(*command, cwd=folder) as process:
        out, err = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 1, out + err  # some of the samples cannot but fail
    return kills


def check(store: Path, behaviour: Behaviour, samples: int, models: Iterable[str]) -> None:
    """Each key against what was foretold of it, and the totals against each other."""
    lines = exported("x", store)
    rows = {row["id"]: row for row in sums(samples)}
    foretold = {
        f"sums/{model}/{id_}/1": foretell(behaviour, f"{model}-1", asked(row["question"]))
        for model in models
        for id_, row in rows.items()
    }
    assert [line["key"] for line in lines] == list(foretold)
    for model in models:
        its = [told for key, told in foretold.items() if key.startswith(f"sums/{model}/")]
        assert {told for told in its if isinstance(told, str)} == set(KINDS), "each of them must be met"
        assert {mark for told in its if isinstance(told, Answer) for mark in told.marks} == set(MARKS)
    wrong = [
        (line["key"], line["status"], line["output"], line["error"], line["scores"], line["marks"])
        for line in lines
        if not is_as_foretold(line, foretold[line["key"]], rows[line["sample_id"]]["answer"])
    ]
    assert not wrong, f"{len(wrong)} of {len(lines)} are not what the server said, as {wrong[:3]}"
    found = shown("x", store)
    failed = sum(isinstance(each, str) for each in foretold.values())
    assert (found["planned"], found["finished"], found["failed"]) == (len(lines), len(lines) - failed, failed)
    assert (found["unfinished"], found["anomalies"]) == (0, [])
    assert call("verify", "x", "--store", store, cwd=store).code == 0


def check_once(store: Path, stats: Stats, kills: int, connections: int) -> None:
    """What the server answered oftener than the journal records it was in flight at a kill."""
    recorded = sum("answer" in step for step in steps(store))
    bought = sum(stats.answers.values())
    assert recorded <= bought <= recorded + kills * connections
    assert max(stats.answers.values()) <= 1 + kills


def is_as_foretold(line: dict[str, Any], told: Answer | str, target: str) -> bool:
    if isinstance(told, str):
        return (line["status"], (line["error"] or {}).get("kind"), line["scores"]) == ("failed", KINDS[told], {})
    marks = list(told.marks)
    counts = not {"filtered", "empty"} & set(marks)  # what the spec's default does not score
    score = Fraction(told.text) == Fraction(target) if counts else None
    said = (line["status"], line["output"], line["error"], line["marks"], line["scores"])
    return said == ("finished", told.text, None, marks, {"numeric": score})


def asked(question: str) -> list[Message]:
    return [{"role": "user", "content": f"Compute: {question}"}]


def steps(store: Path) -> list[dict[str, Any]]:
    (journal,) = store.rglob("journal")
    return [
        json.loads(bytes(each.line.d))
        for each in Reader(str(journal)).read()
        if isinstance(each, Entry) and each.line.t == "step"
    ]


def go_through(
    folder: Path, samples: int, behaviour: Behaviour, kills: int, models: Mapping[str, Mapping[str, Any]] = ONE
) -> None:
    planned = samples * len(models)
    thresholds = sorted(random.Random(behaviour.seed).sample(range(planned // 10, planned // 2), kills))
    silent = any(fault.kind == "hang" and fault.rate for fault in behaviour.faults)
    with start_server_process(behaviour) as server:
        there = {"base_url": server.base_url, **(IMPATIENT if silent else PATIENT)}
        named = [{"name": name, "model": f"{name}-1", **model, **there} for name, model in models.items()]
        killed = run_with_kills(write_course(folder, samples, models=named), folder, server, thresholds)
        stats = server.stats()
    assert killed == kills, "it ended before it was killed"
    # Which kinds occur depends on the order of requests, and a small run meets few of the rarer ones.
    assert {"429", "503", "500"} <= set(stats.faults), "fair weather proves little"
    assert len(set(BROKEN) & set(stats.faults)) > 1, "nor do refusals alone"
    check(folder / "runs", behaviour, samples, models)
    check_once(folder / "runs", stats, kills, CONNECTIONS * len(models))


def test_a_run_through_storms_and_kills_comes_to_what_was_foretold(tmp_path: Path) -> None:
    go_through(tmp_path, 160, chaos(1, 90), 2, FIXED)


def test_every_protocol_comes_through_storms(tmp_path: Path) -> None:
    go_through(tmp_path, 40, chaos(22, 60, silent=0.0, huge=0.0), 1, PROTOCOLS)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "models"), [(11, FIXED), (12, ONE)])
def test_five_thousand_samples_come_through_storms_and_kills(tmp_path: Path, seed: int, models: Any) -> None:
    go_through(tmp_path, 5000, chaos(seed, 400, silent=0.001, huge=0.002), 12, models)


@pytest.mark.long
@pytest.mark.parametrize("stream", [False, True])
def test_every_protocol_comes_through_long_storms(tmp_path: Path, stream: bool) -> None:
    streaming = {name: {**model, "stream": stream} for name, model in PROTOCOLS.items()}
    go_through(tmp_path, 300, chaos(5, 90, silent=0.002), 4, streaming)


def judged(messages: list[Message]) -> str:
    """A verdict where one is asked for, else the sum."""
    text = str(messages[-1]["content"])
    if "It is right." in str(messages):
        return json.dumps({"criterion": {"reason": "as far as I can see", "score": 4}})
    return str(compute(text))


def test_judges_in_storms_give_verdicts_or_fail_and_never_a_zero(tmp_path: Path) -> None:
    refusals = [passing(kind, 0.1) for kind in ("429", "503", "500", "reset", "cut", "malformed", "wrong-type")]
    pieces = [lasting(kind, 0.15) for kind in ("truncated", "half-filtered", "empty-answer", "filtered")]
    behaviour = Behaviour(faults=[*refusals, *pieces], reply=judged, seed=3)
    samples = 40
    with serve_model(behaviour) as server:
        role = {"provider": "openai", "model": "judge-1", "base_url": server.base_url, **PATIENT}
        task = {"scorers": [{"rubric": {"criteria": "It is right.", "ask_again": 10}}]}
        command = write_course(tmp_path, samples, roles={"judge": role}, task=task)
        done = run(*command, cwd=tmp_path)
        assert done.code == 1, done.said  # the filter takes some verdicts whole, however often they are asked for
        assert {"truncated", "half-filtered", "empty-answer", "filtered", "malformed"} <= set(server.stats().faults)
    scores = [line["scores"]["rubric"] for line in exported("x", tmp_path / "runs")]
    failed = [each for each in scores if each != 4.0]
    for each in failed:
        why = each["failure"]["message"]
        assert "content filter removed the whole answer" in why or why.startswith(
            "the judge 'judge' was asked 11 times"
        ), why
    assert 0 < len(failed) < samples / 2
