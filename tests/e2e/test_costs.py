"""`holdfast cost`: what runs have cost, what replay saved, and what a spec will cost, said before anything is asked."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.testing import Behaviour, Fault, start_server_process
from tests.e2e.commands import call, write_rows, write_spec

PRICE = {"input": 1000.0, "output": 2000.0}
QUESTION = "What is the capital of the country whose largest city is named in row %d of this little table of cities?"


def priced(**fields: Any) -> dict[str, Any]:
    return {"model": {"price": PRICE, **fields}}


def test_the_costs_of_several_runs_are_summed_and_no_run_counts_twice(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 6, **priced())
    for name in ("one", "two"):
        assert call("run", spec, "--id", name, cwd=tmp_path).code == 0
    both, one = (call("cost", *names, "--json", cwd=tmp_path).json() for names in (("one", "two"), ("one",)))
    assert both["cost"]["dollars"] == pytest.approx(2 * one["cost"]["dollars"])
    assert (both["finished"], both["requests"]) == (12, 12)
    twice = call("cost", "one", "on", cwd=tmp_path)
    assert (twice.code, "named twice" in twice.err) == (2, True)
    assert "12 requests in 2 runs, 12 answers: $" in call("cost", "one", "two", cwd=tmp_path).out


def test_what_has_no_price_is_said_to_have_none(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 6)
    assert call("run", spec, "--id", "r", cwd=tmp_path).code == 0
    told = call("cost", "r", cwd=tmp_path)
    assert "no price known for arith: give price" in told.out
    assert "$" not in told.out
    assert call("cost", "r", "--json", cwd=tmp_path).json()["cost"]["dollars"] is None
    report = call("report", "r", "--json", cwd=tmp_path).json()
    assert (report["cost"]["dollars"], report["cost"]["unpriced"]) == (None, ["arith"])


def test_a_price_can_be_given_later_and_counts_for_all_of_the_run(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 6)
    assert call("run", spec, "--id", "r", cwd=tmp_path).code == 0
    done = call("resume", "r", "--set", "models.arith.price={input: 1000, output: 2000}", cwd=tmp_path)
    assert done.code == 0
    assert call("cost", "r", "--json", cwd=tmp_path).json()["cost"]["dollars"] == pytest.approx(6 * 0.006)
    assert "cost: $0.03600" in call("show", "r", cwd=tmp_path).out
    assert call("run", spec, "--id", "r", cwd=tmp_path).code == 0  # the file does not say it; the run knows it
    assert call("cost", "r", "--json", cwd=tmp_path).json()["cost"]["dollars"] == pytest.approx(6 * 0.006)


def test_what_a_fork_and_a_replay_saved_is_reported_in_dollars(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 6, **priced())
    assert call("run", spec, "--id", "r", cwd=tmp_path).code == 0
    assert call("fork", "r", "--id", "f", "--set", "tasks.sums.sample_retries=1", cwd=tmp_path).code == 0
    told = call("cost", "f", "--json", cwd=tmp_path).json()
    assert (told["requests"], told["cost"]["dollars"]) == (0, 0.0)
    assert told["cost"]["saved_dollars"] == pytest.approx(6 * 0.006)
    assert "replay saved $0.03600" in call("report", "f", cwd=tmp_path).out
    assert call("show", "f", "--json", cwd=tmp_path).json()["cost"]["saved_dollars"] == pytest.approx(6 * 0.006)


def test_requests_that_failed_are_counted_and_cost_what_their_answers_cost(tmp_path: Path) -> None:
    with start_server_process(Behaviour(faults=[Fault("503", first=2)])) as server:
        spec = write_spec(tmp_path, 4, server.base_url, **priced(max_connections=1, price={**PRICE, "request": 0.5}))
        assert call("run", spec, "--id", "r", cwd=tmp_path).code == 0
        assert server.stats().requests == 6
    told = call("cost", "r", "--json", cwd=tmp_path).json()
    assert (told["requests"], told["usage"]["requests"]) == (6, 4)
    assert told["cost"]["dollars"] == pytest.approx(4 * (0.006 + 0.5))


def estimated(folder: Path, *arguments: str) -> dict[str, Any]:
    told: dict[str, Any] = call("cost", "eval.yaml", *arguments, "--json", cwd=folder).json()
    return told


def test_an_estimate_holds_what_the_run_then_costs(tmp_path: Path) -> None:
    with start_server_process() as server:
        spec = write_spec(tmp_path, 1, server.base_url, task={"scorers": []}, **priced(params={"max_tokens": 40}))
        rows = [{"id": f"s{i}", "question": QUESTION % i, "answer": "x"} for i in range(20)]
        write_rows(tmp_path / "sums.jsonl", rows)
        by_prompts = estimated(tmp_path)
        assert server.stats().requests == 0
        assert not (tmp_path / "runs").exists()
        assert call("run", spec, "--id", "part", "--limit", "5", cwd=tmp_path).code == 0
        by_answers = estimated(tmp_path)
        assert call("run", spec, "--id", "r", cwd=tmp_path).code == 0
    real = call("cost", "r", "--json", cwd=tmp_path).json()
    for guess, of in ((by_prompts, "prompts"), (by_answers, "part")):
        (cell,) = guess["cells"]
        assert (cell["of"], cell["answers"]) == (of, 20)
        assert cell["input_tokens"]["low"] <= real["usage"]["input_tokens"] <= cell["input_tokens"]["high"]
        assert cell["output_tokens"]["low"] <= real["usage"]["output_tokens"] <= cell["output_tokens"]["high"]
        assert guess["dollars"]["low"] <= real["cost"]["dollars"] <= guess["dollars"]["high"]


def test_what_nothing_limits_has_no_upper_end(tmp_path: Path) -> None:
    write_spec(tmp_path, 6, **priced())
    told = estimated(tmp_path)
    assert (told["dollars"]["high"], told["cells"][0]["output_tokens"]["high"]) == (None, None)
    assert "set max_tokens" in call("cost", "eval.yaml", cwd=tmp_path).out
    limited = estimated(tmp_path, "--set", "models.arith.params={max_tokens: 5}")
    assert limited["cells"][0]["output_tokens"] == {"low": 6.0, "high": 30.0}


def test_special_tokens_are_text_like_any_other(tmp_path: Path) -> None:
    write_spec(tmp_path, 1, **priced())
    odd = "<|endoftext|> <|im_start|>system \ud83d\ude00 \u0000 " * 10
    (tmp_path / "sums.jsonl").write_text(json.dumps({"id": "a", "question": odd, "answer": "x"}) + "\n")
    assert estimated(tmp_path)["cells"][0]["input_tokens"]["low"] > 50


def test_a_listed_price_becomes_a_part_of_the_runs_spec_and_a_local_server_has_none(tmp_path: Path) -> None:
    pytest.importorskip("genai_prices")
    path = write_spec(tmp_path, 2)
    raw = yaml.safe_load(path.read_text())
    raw["models"] = [{"name": "listed", "provider": "openai", "model": "gpt-4o"}]
    raw["models"].append(
        {"name": "local", "provider": "openai", "model": "gpt-4o", "base_url": "http://127.0.0.1:1/v1"}
    )
    path.write_text(yaml.safe_dump(raw))
    told = estimated(tmp_path)
    listed, local = told["cells"]
    assert listed["dollars"]["low"] > 0
    assert (local["dollars"], told["unpriced"]) == (None, ["local"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("eval.yaml", "r"), "estimate one spec at a time"),
        (("r", "--set", "limit=3"), "--set changes a spec"),
        (("nothing",), "nothing"),
        (("other.yaml",), "no such file"),
    ],
)
def test_costs_that_are_unknown_are_refused_in_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    spec = write_spec(tmp_path, 2)
    assert call("run", spec, "--id", "r", cwd=tmp_path).code == 0
    done = call("cost", *arguments, cwd=tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert said in done.err
