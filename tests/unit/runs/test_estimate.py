"""Estimates: what is reported about a budget before the first request, and what jobs cost."""

from typing import Any

import pytest

from holdfast.records.samples import Usage
from holdfast.runs import check
from holdfast.runs.estimate import Estimate, Range, estimate, read_prompts
from holdfast.runs.summary import Observed
from tests.unit.engine.runs import Asked, given, rows

_NONE = Range(0, 0)


def over(name: str, limit: float, needed: Range | None) -> list[str]:
    tokens, dollars = (needed or _NONE, None) if name == "tokens" else (_NONE, needed)
    return list(Estimate((), _NONE, tokens, dollars, (), {name: limit}).over())


def test_a_limit_below_the_estimate_is_reported_with_its_unit_and_no_more_certainly_than_it_is_known() -> None:
    (told,) = over("tokens", 1000, Range(5280, None))
    assert told.startswith(
        "about 5,280 tokens or more are needed, and limits.run.tokens is 1,000: the run will probably"
    )
    (told,) = over("tokens", 100_000, Range(5280, 200_000))
    assert told.startswith("5,280 to 200,000 tokens are needed, and limits.run.tokens is 100,000: the run may stop")
    (told,) = over("cost_usd", 0.5, Range(0.25, 2.0))
    assert told.startswith("$0.2500 to $2.00 are needed, and limits.run.cost_usd is 0.5: the run may stop")


def test_where_the_need_is_unknown_nothing_is_reported_about_the_limit() -> None:
    assert over("cost_usd", 0.5, Range(0.25, None)) == []
    assert over("cost_usd", 0.5, Range(0.25, 0.4)) == []
    assert over("cost_usd", 0.5, None) == []


def test_scored_continuations_are_counted_as_requests() -> None:
    own = [{"id": "1", "input": "Grass is", "choices": ["red", "green", "as green as grass"]}]
    own.append({"id": "2", "input": "Milk is", "choices": ["white", "black"]})
    own.append({"id": "3", "input": "This row fails", "choices": ["alone"]})
    fields = {"prompt": "{input}", "solver": "choice_likelihood"}
    mock = {"name": "m", "provider": "mock"}
    prepared, _ = check(given([Asked("t", own, solver=None, fields=fields)], [mock]))
    (cell,) = estimate(prepared.spec, prepared.works, {}).cells
    assert (cell.answers, cell.requests, cell.output_tokens) == (3, Range(6, 6), Range(6, 6))
    (work,) = prepared.works.values()
    prompts = read_prompts(work, prepared.spec, shown=3)
    assert list(prompts.first) == ["1", "2", "3"]
    assert list(prompts.continuations) == ["1", "2"]
    assert prompts.continuations["2"][0].continuation == " white"


@pytest.mark.parametrize("seen", [{}, {("t", "m"): Observed("r", 5, {"": Usage(50, 10, requests=5)})}])
def test_what_is_asked_in_jobs_is_estimated_at_half_the_price(seen: dict[tuple[str, str], Observed]) -> None:
    found = []
    for batch in (False, True):
        model: dict[str, Any] = {"name": "m", "provider": "openai", "base_url": "http://127.0.0.1:1/v1"}
        model |= {"batch": {}} if batch else {}
        model |= {"price": {"input": 1.0, "output": 2.0}, "params": {"max_tokens": 9}}
        prepared, _ = check(given([Asked("t", rows(5), fields={"prompt": "{input}"})], [model]))
        dollars = estimate(prepared.spec, prepared.works, seen).dollars
        assert dollars is not None
        assert dollars.high is not None
        found.append((dollars.low, dollars.high))
    (low, high), (batched_low, batched_high) = found
    assert batched_low == pytest.approx(low / 2)
    assert batched_high == pytest.approx(high / 2)
    assert 0 < low < high
