"""Half the price of what was answered in jobs holds wherever dollars are told."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.records.samples import Usage
from holdfast.runs import find_run
from holdfast.spec import Batch, Model, Price
from tests.oracle import check_reports

ROWS = [{"id": str(number), "q": f"number {number}"} for number in range(3)]
DEAR = {"input": 1e6, "output": 1e6}
"""A dollar a token."""


@holdfast.solver
async def twice(sample: holdfast.Sample, ctx: holdfast.Context) -> str:
    """The judge is asked alone."""
    first = await ctx.generate()
    return first.text + (await ctx.generate("well?", role="judge")).text


def test_sums_and_what_each_key_cost_are_the_same_dollars(tmp_path: Path) -> None:
    quick = {"quiet_seconds": 0.02, "poll_seconds": 0.01}
    batched: dict[str, Any] = {"name": "m", "provider": "mock", "price": DEAR, "batch": quick}
    task = holdfast.Task("t", ROWS, "{q}", solver=twice)
    roles = {"judge": {"provider": "mock", "price": DEAR}}
    with holdfast.run(task, models=[batched], roles=roles, store=str(tmp_path), id="x", quiet=True) as run:
        lines, keys = {line.role: line for line in run.costs()}, list(run.samples())
        told = run.report().cost.dollars
        stories = [run.show(line.key).attempts[-1].dollars for line in keys]
    cells = {role: (line.usage.tokens, line.cost.dollars) for role, line in lines.items()}
    half, whole = cells[""][0] / 2, cells["judge"][0]
    assert half > 0 < whole
    assert {role: dollars for role, (_, dollars) in cells.items()} == {"": half, "judge": whole}
    assert sum(line.cost_usd or 0.0 for line in keys) == pytest.approx(half + whole)
    assert sum(filter(None, stories)) == pytest.approx(half + whole)
    assert told == pytest.approx(half + whole)
    assert check_reports(find_run(str(tmp_path), "x")).differences == []


def test_a_part_of_a_sum_is_for_half_the_price_and_can_be_taken_out_again() -> None:
    alone, in_jobs = Usage(10, 5).of_one(), Usage(100, 50).of_one(batched=True)
    price = Price(input=1e6, output=1e6)
    assert price.dollars(alone + in_jobs + in_jobs) == 15 + 150
    assert alone + in_jobs - in_jobs == alone
    assert in_jobs - in_jobs == Usage()


@pytest.mark.parametrize(("batch", "dollars"), [(None, 30.0), (Batch(), 15.0)])
def test_an_estimate_is_of_the_way_in_which_will_be_asked(batch: Batch | None, dollars: float) -> None:
    model = Model(name="m", provider="mock", price=Price(input=1e6, output=1e6), batch=batch)
    assert model.dollars(Usage(10, 20)) == dollars
    assert model.dollars(Usage(10, 20).as_batched()) == dollars
