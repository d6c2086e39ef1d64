"""`recover --no-events` forgets steps, never what they cost: totals stay equal, and budgets hold."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.runs import find_run
from holdfast.testing import Behaviour, Fault, ServerProcess, start_server_process
from tests.e2e.commands import call, write_spec
from tests.mirrors import finished_so_far
from tests.oracle import check_reports
from tests.unit.engine.runs import cut_after

PRICE = {"input": 1000.0, "output": 2000.0, "request": 0.25}
MINE = """
import holdfast

async def agent(sample, ctx):
    first = await ctx.generate()
    if sample.id == "s0003":
        raise RuntimeError("no answer for this one")
    check = {"role": "user", "content": f"Check it once more: {sample.input}"}
    return await ctx.generate([*ctx.messages, first.message, check])

@holdfast.scorer
async def asked(sample, answer, ctx):
    return (await ctx.generate(f"Is it {answer.text} for {sample.id}?", role="judge")).text.startswith("Is")
"""


def write(folder: Path, server: ServerProcess, **limits: Any) -> Path:
    (folder / "spending_parts.py").write_text(MINE)
    judge = {"provider": "openai", "model": "judge-1", "base_url": server.base_url, "price": PRICE}
    return write_spec(
        folder,
        12,
        server.base_url,
        model={"price": PRICE, "max_connections": 3},
        roles={"judge": judge},
        task={"solver": "spending_parts:agent", "scorers": ["spending_parts:asked"], "sample_retries": 1},
        limits={"run": limits},
    )


def totals(run_id: str, store: Path) -> dict[str, Any]:
    """Every number that reading commands have of a run, by command."""
    found: dict[str, Any] = {}
    for name, arguments in {
        "show": ("show", run_id),
        "profile": ("show", run_id, "--profile"),
        "cost": ("cost", run_id),
        "report": ("report", run_id),
    }.items():
        done = call(*arguments, "--store", store, "--json", cwd=store)
        assert done.code == 0, done.err
        found[name] = done.json()
    for told in found.values():
        told.pop("folder", None)
        told.pop("bytes", None)
    checked = call("verify", run_id, "--scores", "--store", store, "--json", cwd=store)
    assert checked.code == 0, checked.out
    assert check_reports(find_run(str(store), run_id)).differences == []
    return found


def without_events(run_id: str, store: Path, new: Path) -> Path:
    """The run in another store, where its steps are gone and its totals are not."""
    done = call("recover", store / "sums" / run_id, "--no-events", "--output", new, cwd=store)
    assert done.code == 0, done.err
    before, after = totals(run_id, store), totals(run_id, new)
    for command in before:
        for field in before[command]:
            assert after[command][field] == before[command][field], (command, field)
    return new


@pytest.mark.long
def test_totals_and_budgets_are_those_of_the_whole_run(tmp_path: Path) -> None:
    faults = [Fault("500", first=6, every=3), Fault("429", first=6, every=2, retry_after="0")]
    with start_server_process(Behaviour(faults=faults, latency_seconds=0.02)) as server:
        spec, whole = write(tmp_path, server, requests=24), tmp_path / "whole"
        command = ("run", spec, "--id", "r", "--store", whole)
        stopped = call(*command, cwd=tmp_path)
        assert stopped.code == 6, stopped.err
        cut_after(whole, finished_so_far(2), "r")  # as a kill leaves it, with samples that are half done
        (whole / "sums" / "r" / "lease.json").unlink()
        assert call(*command, "--set", "limits.run.requests=26", cwd=tmp_path).code == 6
        before = totals("r", whole)
        assert before["show"]["steps"]["replayed"] > 0
        assert before["cost"]["requests"] > before["cost"]["usage"]["requests"], "there were retries"
        assert {line["role"] for line in before["cost"]["lines"]} == {"", "judge"}

        first = without_events("r", whole, tmp_path / "first")
        asked = server.stats().requests
        stopped = call("resume", "r", "--store", first, cwd=tmp_path)
        assert (stopped.code, server.stats().requests) == (6, asked), "the budget is used up"
        more = before["cost"]["requests"] + 6
        resumed = call("resume", "r", "--store", first, "--set", f"limits.run.requests={more}", cwd=tmp_path)
        assert (resumed.code, server.stats().requests) == (6, asked + 6)

        second = without_events("r", first, tmp_path / "second")
        assert call("resume", "r", "--store", second, "--set", "limits.run.requests=500", cwd=tmp_path).code == 1
        assert totals("r", second)["cost"]["requests"] == before["cost"]["requests"] + server.stats().requests - asked
        assert totals("r", second)["show"]["failed"] == 1
        third = without_events("r", second, tmp_path / "third")

        extend = ("extend", "r", "--store", third, "--set", "tasks.sums.repeats=2")
        asked, paid = server.stats().requests, totals("r", third)["cost"]["requests"]
        assert call(*extend, cwd=tmp_path).code == 1
        assert totals("r", third)["cost"]["requests"] == paid + server.stats().requests - asked
        without_events("r", third, tmp_path / "fourth")

        fork = ("fork", "r", "--id", "f", "--store", whole, "--set", "limits.run.requests=500")
        assert call(*fork, cwd=tmp_path).code == 1
        assert totals("f", whole)["show"]["steps"]["taken_over"] > 0
        without_events("f", whole, tmp_path / "forked")
