"""Multiple choice by likelihood, with the real command against a completion server: scores, steps, kills, refusals."""

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.testing import Behaviour, CompletionBehaviour, Load, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, finish, run, shown, start, wait_until, write_rows

CHOICES = 4
RUN = ("run", "eval.yaml", "--id", "x", "--store", "runs")
SCORERS = ["acc", "acc_norm", "acc_bytes", "mc2"]
SHORT = {"id": "short", "question": "red or blue", "choices": ["red", "red blue or", "green", "blau"], "answer": "A"}
"""Sums -0.5, -1.5, -2.25, -2.0; for each character -0.167, -0.136, -0.45, -0.5: acc is right, acc_norm is not."""


OWN_SOLVER = """
async def likelihood(sample, ctx):
    return str((await ctx.likelihood(sample.input, " red")).logprob)
"""


def write(folder: Path, server: ServerProcess, rows: list[dict[str, Any]], **model: Any) -> None:
    write_rows(folder / "rows.jsonl", rows)
    spec = {
        "models": [{"name": "base", "provider": "openai", "model": "test-model", "base_url": server.base_url, **model}],
        "tasks": [
            {
                "name": "colours",
                "dataset": {"path": "rows.jsonl", "id": "id", "input": "question", "target": "answer"},
                "prompt": "{question}?",
                "solver": "choice_likelihood",
                "scorers": SCORERS,
            }
        ],
    }
    (folder / "eval.yaml").write_text(yaml.safe_dump(spec))


def many(count: int) -> list[dict[str, Any]]:
    """Rows of which no two ask the same."""
    return [{**SHORT, "id": str(number), "question": f"red or blue {number}"} for number in range(count)]


def go(folder: Path) -> Done:
    return run(*RUN, cwd=folder)


@pytest.mark.parametrize(
    "completions", [CompletionBehaviour(), CompletionBehaviour(bos=1), CompletionBehaviour(echo="refused", bos=1)]
)
def test_all_scores_come_from_one_request_for_each_choice(tmp_path: Path, completions: CompletionBehaviour) -> None:
    with start_server_process(Behaviour(completions=completions, kept=20)) as server:
        write(tmp_path, server, [SHORT], price={"input": 1e6, "output": 1e6})
        done = go(tmp_path)
        assert done.code == 0, done.err
        (line,) = exported("x", tmp_path / "runs")
        assert (line["output"], line["scores"]["acc"], line["scores"]["acc_norm"]) == ("A", True, False)
        assert line["scores"]["acc_bytes"] is False
        # e**-0.5 of e**-0.5 + e**-1.5 + e**-2.25 + e**-2.0
        assert line["scores"]["mc2"] == pytest.approx(0.60653 / (0.60653 + 0.22313 + 0.10540 + 0.13534), abs=1e-4)
        assert server.stats().repeats == 0
        found = shown("x", tmp_path / "runs")
        assert found["steps"]["live"] == CHOICES
        # Four words and signs of the context, and those of each choice: 5 + 7 + 5 + 5; and a generated one for each.
        assert found["usage"]["output_tokens"] == CHOICES
    story = run("show", "x", "colours/base/short/1", "--store", "runs", cwd=tmp_path)
    assert story.code == 0
    for text in ("red or blue?", " red blue or", "-1.5000"):
        assert text in story.out, story.out
    assert "$" in run("cost", "x", "--store", "runs", cwd=tmp_path).said


def test_a_run_that_is_killed_between_the_choices_of_a_sample_asks_for_none_twice(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.05, load=Load(lanes=1))) as server:
        write(tmp_path, server, many(10), max_connections=1)
        killed_at, unsaved = [], 0
        for requests in (2, 3, 5, 10):
            before = server.stats().requests
            with start(*RUN, cwd=tmp_path) as process:
                assert wait_until(lambda: server.stats().requests >= before + requests, process)  # noqa: B023 - now
                finish(process, signal.SIGKILL)
            killed_at.append(shown("x", tmp_path / "runs")["steps"]["live"])
            unsaved += len(server.stats().by_digest) - killed_at[-1]
        assert any(count % CHOICES for count in killed_at), "no kill fell between the choices of a sample"
        done = go(tmp_path)
        assert done.code == 0, done.err
        stats = server.stats()
        # What is not saved at a kill is requested again: one request in flight, and responses that are being saved. A
        # response gives its connection back before it is saved. Everything that was recorded is delivered again.
        assert stats.repeats <= unsaved
        assert len(stats.by_digest) == 10 * CHOICES
    lines = exported("x", tmp_path / "runs")
    assert [line["scores"]["acc"] for line in lines] == [True] * 10
    steps = shown("x", tmp_path / "runs")["steps"]
    assert (steps["live"], steps["orphaned"]) == (10 * CHOICES, 0)
    assert steps["replayed"] > 0


@pytest.mark.parametrize(
    ("completions", "said"),
    [
        (CompletionBehaviour(exists=False), "HTTP 404"),
        (CompletionBehaviour(echo="ignored", prompt_logprobs="ignored"), "the server returns no log-probabilities"),
    ],
)
def test_a_server_without_likelihoods_stops_the_cell_with_one_sentence_and_a_better_one_continues(
    tmp_path: Path, completions: CompletionBehaviour, said: str
) -> None:
    with start_server_process(Behaviour(completions=completions)) as server:
        write(tmp_path, server, many(200), max_connections=8)
        refused = go(tmp_path)
        assert refused.code == 1
        assert server.stats().requests <= 2 * 8
        assert said in refused.said
        assert f"test-model at {server.base_url}/completions" in refused.said
        assert "the solver `chat` and the scorer `choice`" in refused.said
        assert refused.said.count("unsupported: ") == 1
        found = shown("x", tmp_path / "runs")
        assert (found["status"], found["failed"], found["unfinished"]) == ("failed", 0, 200)
    with start_server_process() as better:
        write(tmp_path, better, many(200))
        assert go(tmp_path).code == 0
        assert better.stats().repeats == 0


@pytest.mark.parametrize(
    ("completions", "said"),
    [
        (CompletionBehaviour(straddles=True), "holds the end of the context and the beginning of the continuation"),
        (CompletionBehaviour(bos=2), "begins with two BOS tokens ('<s>')"),
    ],
)
def test_tokens_that_cannot_be_separated_stop_the_cell_after_a_few_samples(
    tmp_path: Path, completions: CompletionBehaviour, said: str
) -> None:
    with start_server_process(Behaviour(completions=completions)) as server:
        write(tmp_path, server, many(200), max_connections=4)
        refused = go(tmp_path)
        assert refused.code == 1
        assert said in refused.said
        assert server.stats().requests < 100


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"batch": True}, "a batch job cannot hold likelihood requests; remove `batch`"),
        (
            {"provider": "anthropic"},
            "the provider anthropic has no log-probabilities of a prompt; use a completion ser",
        ),
    ],
)
def test_models_that_certainly_cannot_are_refused_with_the_spec(
    tmp_path: Path, model: dict[str, Any], said: str
) -> None:
    with start_server_process() as server:
        write(tmp_path, server, many(3), **model)
        refused = call("check", "eval.yaml", cwd=tmp_path)
        assert (refused.code, refused.out) == (2, "")
        assert "tasks[0].solver: choice_likelihood cannot use the model 'base': " in refused.err
        assert said in refused.err


def test_a_solver_of_ones_own_is_refused_in_a_batch_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_SOLVER)
    with start_server_process() as server:
        write(tmp_path, server, many(20), batch={"quiet_seconds": 0.1})
        text = (tmp_path / "eval.yaml").read_text().replace("solver: choice_likelihood", "solver: own:likelihood")
        (tmp_path / "eval.yaml").write_text(text)
        refused = go(tmp_path)
        assert refused.code == 1
        assert "a batch job cannot hold likelihood requests: remove `batch` from the model" in refused.said
        assert shown("x", tmp_path / "runs")["failed"] == 0
        assert server.stats().requests == 0


def test_scores_can_be_added_later_without_a_request(tmp_path: Path) -> None:
    with start_server_process() as server:
        write(tmp_path, server, many(3))
        text = (tmp_path / "eval.yaml").read_text()
        (tmp_path / "eval.yaml").write_text(text.replace("- acc_norm", "- choice").replace("- mc2", "- exact_match"))
        assert go(tmp_path).code == 0
        before = server.stats().requests
        (tmp_path / "eval.yaml").write_text(text)
        assert go(tmp_path).code == 0
        assert server.stats().requests == before
    assert {"acc_norm", "mc2"} <= exported("x", tmp_path / "runs")[0]["scores"].keys()
