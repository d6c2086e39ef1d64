"""Run budgets with the real command and a real server: where a run stops, how far beyond, and how it continues."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import call, exported, kill_when, shown, write_spec

PRICE = {"input": 1000.0, "output": 2000.0}
A_REQUEST = 4 * 1000.0 / 1e6 + 1 * 2000.0 / 1e6
"""`Compute: 1 + 7` is four words in, one out: so the test server counts."""
SOLVER = """
async def checked(sample, ctx):
    answer = await ctx.generate()
    await ctx.generate([*ctx.messages, answer.message, {"role": "user", "content": "Sure?"}], role="judge")
    return answer
"""
SCORER = """
import holdfast

@holdfast.scorer
async def asked(sample, answer, ctx):
    return (await ctx.generate(f"Is it {answer.text} for {sample.id}?", role="judge")).text.startswith("Is it")
"""


def spec_of(folder: Path, base_url: str, rows: int = 60, **changes: Any) -> Path:
    model = {"price": PRICE, "max_connections": 8, **changes.pop("model", {})}
    return write_spec(folder, rows, base_url, model=model, **changes)


def test_it_stops_with_exit_6_at_what_it_may_cost_and_continues_when_that_is_raised(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.01)) as server:
        spec = spec_of(tmp_path, server.base_url, limits={"run": {"cost_usd": 20 * A_REQUEST}})
        done = call("run", spec, "--id", "r", cwd=tmp_path)
        assert done.code == 6
        assert "the run will probably stop there, with exit 6" in done.err
        assert "Raise it to continue: holdfast resume r --set limits.run.cost_usd=0.24" in done.err
        assert server.stats().requests in (20, 21)
        stopped = shown("r", tmp_path / "runs")
        assert stopped["status"] == "interrupted"
        assert stopped["reason"].startswith("budget: limits.run.cost_usd is 0.12")
        again = call("resume", "r", cwd=tmp_path)
        assert (again.code, server.stats().requests) == (6, stopped["finished"])
        more = call("resume", "r", "--set", f"limits.run.cost_usd={40 * A_REQUEST}", cwd=tmp_path)
        assert more.code == 6
        assert server.stats().requests in (40, 41)
        assert call("resume", "r", "--set", "limits.run.cost_usd=100", cwd=tmp_path).code == 0
        stats = server.stats()
    assert (stats.requests, stats.repeats) == (60, 0)
    total = call("cost", "r", "--json", cwd=tmp_path).json()
    assert (total["requests"], total["usage"]["input_tokens"], total["usage"]["output_tokens"]) == (60, 240, 60)
    assert total["cost"]["dollars"] == pytest.approx(60 * A_REQUEST)
    costs = [line["cost_usd"] for line in exported("r", tmp_path / "runs")]
    assert sum(costs) == pytest.approx(60 * A_REQUEST)


@pytest.mark.parametrize("limit", [1, 17])
def test_not_one_request_more_is_sent_than_it_may_send(tmp_path: Path, limit: int) -> None:
    with start_server_process(Behaviour(latency_seconds=0.01)) as server:
        spec = spec_of(tmp_path, server.base_url, limits={"run": {"requests": limit}})
        assert call("run", spec, "--id", "r", cwd=tmp_path).code == 6
        assert server.stats().requests == limit
    assert shown("r", tmp_path / "runs")["finished"] == limit


def test_what_is_under_way_when_it_is_reached_is_let_end_and_kept(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.2)) as server:
        limits, model = {"run": {"tokens": 12}}, {"params": {"max_tokens": 2}}
        spec = spec_of(tmp_path, server.base_url, 30, model=model, limits=limits, grace_seconds=0)
        assert call("run", spec, "--id", "r", cwd=tmp_path).code == 6
        stats = server.stats()
    state = shown("r", tmp_path / "runs")
    assert (stats.answered, stats.requests) == (state["finished"], state["finished"])
    assert 12 <= state["usage"]["input_tokens"] + state["usage"]["output_tokens"] <= 12 + 5


def test_killed_in_the_middle_it_counts_on_from_what_is_recorded(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.02)) as server:
        spec = spec_of(tmp_path, server.base_url, limits={"run": {"cost_usd": 30 * A_REQUEST}})
        assert kill_when(lambda: server.stats().requests >= 14, "run", spec, "--id", "r", cwd=tmp_path)
        before = shown("r", tmp_path / "runs")["usage"].get("requests", 0)
        sent = server.stats().requests
        assert call("resume", "r", cwd=tmp_path).code == 6
        lost = sent - before  # were in flight: nobody knows what they came to
        assert 0 <= lost <= 8
        assert server.stats().requests in (30 + lost, 31 + lost)
    total = call("cost", "r", "--json", cwd=tmp_path).json()
    assert total["cost"]["dollars"] == pytest.approx(total["requests"] * A_REQUEST)
    assert total["requests"] in (30, 31)


def test_other_roles_count_too_and_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOLVER)
    with start_server_process() as server:
        judge = {"provider": "openai", "model": "judge-1", "base_url": server.base_url, "price": PRICE}
        task = {"solver": "mine:checked"}
        limits = {"run": {"requests": 10}}
        spec = spec_of(tmp_path, server.base_url, 20, task=task, roles={"judge": judge}, limits=limits)
        assert call("run", spec, "--id", "r", cwd=tmp_path).code == 6
        assert server.stats().requests == 10
    lines = call("cost", "r", "--json", cwd=tmp_path).json()["lines"]
    assert {line["role"] for line in lines} == {"", "judge"}
    assert sum(line["requests"] for line in lines) == 10
    assert all(line["cost"]["dollars"] > 0 for line in lines)


def test_judges_count_too_and_what_they_have_not_judged_is_judged_when_it_is_raised(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCORER)
    with start_server_process() as server:
        judge = {"provider": "openai", "model": "judge-1", "base_url": server.base_url, "price": PRICE}
        limits = {"run": {"requests": 9}}
        task = {"scorers": ["mine:asked"]}
        spec = spec_of(tmp_path, server.base_url, 10, task=task, roles={"judge": judge}, limits=limits)
        assert call("run", spec, "--id", "r", cwd=tmp_path).code == 6
        assert server.stats().requests == 9
        assert call("resume", "r", "--set", "limits.run.requests=20", cwd=tmp_path).code == 0
        assert (server.stats().requests, server.stats().repeats) == (20, 0)
    lines = call("cost", "r", "--json", cwd=tmp_path).json()["lines"]
    assert {line["role"]: line["requests"] for line in lines} == {"": 10, "judge": 10}
    assert [line["scores"]["asked"] for line in exported("r", tmp_path / "runs")] == [True] * 10


def test_a_limit_of_money_is_refused_where_nobody_knows_what_a_model_costs(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, limits={"run": {"cost_usd": 1.0}})
    for command in ("check", "run", "cost"):
        done = call(command, spec, cwd=tmp_path)
        assert done.code == 2
        assert done.err.count("\n") == 1
        assert "limits.run.cost_usd: no price known for 'arith': give it price: {input: …, output: …}" in done.err
    assert not (tmp_path / "runs").exists()


def test_time_is_counted_over_resumes(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.3)) as server:
        limits = {"run": {"seconds": 0.5}}
        spec = spec_of(tmp_path, server.base_url, 40, model={"max_connections": 1}, limits=limits, grace_seconds=0)
        assert call("run", spec, "--id", "r", cwd=tmp_path).code == 6
        asked = server.stats().requests
        again = call("resume", "r", cwd=tmp_path)
        assert again.code == 6
        assert "limits.run.seconds is 0.5" in again.err
        assert server.stats().requests - asked < 5  # it looks at the clock once a second, and at once
    assert shown("r", tmp_path / "runs")["reason"].startswith("budget: limits.run.seconds is 0.5")


def test_a_budget_that_is_not_reached_changes_nothing(tmp_path: Path) -> None:
    with start_server_process() as server:
        limits = {"run": {"cost_usd": 60 * A_REQUEST, "tokens": 300, "requests": 60}}
        spec = spec_of(tmp_path, server.base_url, limits=limits)
        assert call("run", spec, "--id", "r", cwd=tmp_path).code == 0
        assert (server.stats().requests, server.stats().repeats) == (60, 0)


def test_scoring_that_stops_at_a_budget_exits_with_6_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCORER)
    with start_server_process(Behaviour(latency_seconds=0.01)) as server:
        judge = {"provider": "openai", "model": "judge", "base_url": server.base_url}
        spec = spec_of(tmp_path, server.base_url, 10, roles={"judge": judge}, limits={"run": {"requests": 14}})
        assert call("run", spec, "--id", "r", cwd=tmp_path).code == 0
        scoring = ("score", "r", "--scorers", "mine.py")
        done = call(*scoring, cwd=tmp_path)
        assert done.code == 6, done.said
        assert "stopped at a budget: limits.run.requests is 14" in done.err
        assert "holdfast resume r --set limits.run.requests=28" in done.err
        assert server.stats().requests == 14
        assert call("resume", "r", "--set", "limits.run.requests=28", cwd=tmp_path).code == 0
        assert call(*scoring, cwd=tmp_path).code == 0
        assert (server.stats().requests, server.stats().repeats) == (20, 0)
