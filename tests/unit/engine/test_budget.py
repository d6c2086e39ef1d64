"""What is admitted under a budget: how many at once, how far beyond, and what counts."""

import asyncio
import math
from typing import Any

import pytest

from holdfast.engine.budget import Amount, Budget, Grant, output_limit
from holdfast.errors import StoreError
from holdfast.models.call import ModelCall, current_call
from holdfast.models.provider import AskFailedError
from holdfast.records.facts import Bill, Failure
from holdfast.records.samples import Answer, Usage
from holdfast.solve import ModelHandle
from holdfast.spec import Price, RunLimits
from holdfast.state import Story

PRICE = Price(input=1e6, output=1e6)  # a dollar a token
ASKED = [{"role": "user", "content": "a"}]


class Model:
    """Answers when it is told to, with as many tokens as it is told."""

    def __init__(self, budget: Budget, name: tuple[str, str] = ("m", "")) -> None:
        self.under_way: list[asyncio.Future[int | AskFailedError]] = []
        self._limited = budget.limit(name, ModelHandle({}, {}, self._send, PRICE), "m")

    async def _send(self, call: ModelCall) -> Answer:
        answer: asyncio.Future[int | AskFailedError] = asyncio.get_running_loop().create_future()
        self.under_way.append(answer)
        said = await answer
        if isinstance(said, AskFailedError):
            raise said
        return Answer("x", usage=Usage(0, said))

    def ask(self, **params: Any) -> "asyncio.Task[Any]":
        return asyncio.ensure_future(self._limited.send(ModelCall(list(ASKED), params, [])))

    async def answer(self, said: int | AskFailedError) -> None:
        """The oldest."""
        self.under_way.pop(0).set_result(said)
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def budget_of(story: Story | None = None, **limits: Any) -> tuple[Budget, list[tuple[str, float | None]]]:
    stopped: list[tuple[str, float | None]] = []
    prices = {("m", ""): PRICE, ("", "judge"): PRICE}
    return Budget(RunLimits(**limits), story or Story(), prices, lambda *why: stopped.append(why)), stopped


async def end(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_without_limits_everything_is_admitted_and_counted() -> None:
    async def main() -> None:
        budget, stopped = budget_of()
        model = Model(budget)
        tasks = [model.ask() for _ in range(50)]
        await settled()
        assert len(model.under_way) == 50
        for _ in range(50):
            await model.answer(2)
        assert (budget.spent, stopped) == (Amount(100.0, 100, 50), [])
        await end(tasks)

    asyncio.run(main())


def test_the_first_of_a_model_goes_alone_and_then_as_many_as_the_dearest_so_far_allows() -> None:
    async def main() -> None:
        budget, stopped = budget_of(cost_usd=100.0)
        model = Model(budget)
        tasks = [model.ask() for _ in range(50)]
        await settled()
        assert len(model.under_way) == 1
        await model.answer(10)
        assert len(model.under_way) == 9  # nine of ten dollars each are what is left
        await model.answer(20)
        assert len(model.under_way) == 8  # 30 are spent and 80 set aside: nothing is added
        for _ in range(8):
            await model.answer(5)
        assert stopped == []
        assert budget.spent.cost_usd == 70.0
        await model.answer(20)
        assert [budget.spent.cost_usd, len(model.under_way), stopped] == [90.0, 1, []]  # alone, it may go
        await end(tasks)

    asyncio.run(main())


def test_max_tokens_lets_the_first_go_together() -> None:
    async def main() -> None:
        budget, _ = budget_of(tokens=100)
        model = Model(budget)
        tasks = [model.ask(max_tokens=15) for _ in range(50)]
        await settled()
        assert len(model.under_way) == 5  # each is 5 in and at most 15 out
        await end(tasks)

    asyncio.run(main())


@pytest.mark.parametrize(("params", "at_once"), [({"max_completion_tokens": 395}, 5), ({}, 1)])
def test_what_goes_into_a_job_is_set_aside_at_its_price_and_a_guess_only_where_nothing_tells(
    params: dict[str, Any], at_once: int
) -> None:
    async def main() -> None:
        budget, _ = budget_of(cost_usd=1000.0)
        in_jobs: list[ModelCall] = []

        async def never(call: ModelCall) -> Answer:
            in_jobs.append(call)
            await asyncio.get_running_loop().create_future()
            raise AssertionError("unreachable")

        model = budget.limit(("m", ""), ModelHandle({}, {}, never, PRICE, batched=True), "m")
        tasks = [asyncio.ensure_future(model.send(ModelCall(list(ASKED), params, []))) for _ in range(9)]
        await settled()
        assert len(in_jobs) == at_once  # each is 5 in and at most 395 out, or 1,000; for half the price
        await end(tasks)

    asyncio.run(main())


def test_it_is_used_up_and_no_more_than_one_answer_beyond_it() -> None:
    async def main() -> None:
        budget, stopped = budget_of(cost_usd=25.0)
        model = Model(budget)
        tasks = [model.ask() for _ in range(5)]
        await settled()
        for _ in range(3):
            await model.answer(10)
        assert budget.spent.cost_usd == 30.0
        assert model.under_way == []
        assert stopped == [("budget: limits.run.cost_usd is 25, and $30.0000 is used", math.inf)]
        await end(tasks)

    asyncio.run(main())


def test_a_failed_request_counts_with_its_tries_and_costs_nothing_that_is_known() -> None:
    async def main() -> None:
        budget, stopped = budget_of(requests=4)
        model = Model(budget)
        tasks = [model.ask() for _ in range(4)]
        await settled()
        assert len(model.under_way) == 4
        await model.answer(AskFailedError(Failure("server", "no"), 3))
        await end(tasks)
        assert budget.spent == Amount(0.0, 0, 3)
        last = [model.ask(), model.ask()]
        await settled()
        assert len(model.under_way) == 3 + 1  # the cancelled ones are nobody's
        assert stopped == []
        await end(last)

    asyncio.run(main())


def test_what_earlier_processes_spent_counts_and_what_was_taken_over_or_replayed_does_not() -> None:
    mine = Bill(requests=3, usage=Usage(0, 6, requests=2), taken=Usage(0, 99, requests=9), saved=Usage(0, 99))
    mine.note(Usage(0, 2))
    mine.note(Usage(0, 4))
    mine.note(Usage(0, 3))
    story = Story(bills={"task/m": {"": mine, "judge": Bill(requests=1, usage=Usage(0, 4, requests=1))}})
    budget, _ = budget_of(story, cost_usd=20.0)
    assert budget.spent == Amount(10.0, 10, 4)

    async def main() -> None:
        model = Model(budget)
        tasks = [model.ask() for _ in range(9)]
        await settled()
        assert len(model.under_way) == 2  # of four dollars each, as the dearest before
        await end(tasks)

    asyncio.run(main())


def test_who_waits_goes_on_when_the_limit_is_raised() -> None:
    async def main() -> None:
        budget, _ = budget_of(requests=1)
        model = Model(budget)
        tasks = [model.ask() for _ in range(3)]
        await settled()
        assert len(model.under_way) == 1
        budget.change(RunLimits(requests=3))
        await settled()
        assert len(model.under_way) == 3
        await end(tasks)

    asyncio.run(main())


def test_who_waits_for_what_is_left_is_not_under_way() -> None:
    async def main() -> None:
        budget, _ = budget_of(requests=2)
        model, calls = Model(budget), list[ModelCall]()

        async def timed() -> None:
            calls.append(ModelCall([], {}, []))
            current_call.set(calls[-1])
            await model.ask()

        tasks = [asyncio.ensure_future(timed()) for _ in range(3)]
        await settled()
        assert len(model.under_way) == 2
        budget.change(RunLimits(requests=3))
        await settled()
        assert [call.queue > 0 for call in calls] == [False, False, True]
        await end(tasks)

    asyncio.run(main())


def test_time_of_earlier_processes_counts() -> None:
    budget, stopped = budget_of(Story(worked_seconds=8.0), seconds=10.0)
    budget.look_at_clock(1.9)
    assert stopped == []
    budget.look_at_clock(2.0)
    assert stopped == [("budget: limits.run.seconds is 10, and the run has worked for 10 s", None)]


@pytest.mark.parametrize(
    ("params", "most"),
    [({}, None), ({"max_tokens": 5}, 5), ({"max_completion_tokens": 7}, 7), ({"max_tokens": True}, None)],
)
def test_how_long_an_answer_may_be_is_in_the_parameters(params: dict[str, Any], most: int | None) -> None:
    assert output_limit(params) == most


class Shared:
    """Grants of a run with several workers: this one gets what `left` says, in parts of at most `part`."""

    def __init__(self, left: float, part: float = 2.0) -> None:
        self.left, self.part, self.allowed, self.asked = left, part, 0.0, 0
        self.error: Exception | None = None
        self.closing_fails: list[Exception] = []
        self.closed: Amount | None = None

    def open(self, limits: RunLimits, spent: Amount) -> float:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.allowed = spent.requests
        return 90.0

    def ask(self, limits: RunLimits, spent: Amount, wanted: Amount) -> Grant:
        self.asked += 1
        if self.error is not None:
            raise self.error
        more = min(self.left, max(self.part, wanted.requests - self.allowed))
        self.left, self.allowed = self.left - more, self.allowed + more
        return Grant(Amount(math.inf, math.inf, self.allowed), Amount(requests=100.0 - self.left))

    def close(self, spent: Amount) -> None:
        if self.closing_fails:
            raise self.closing_fails.pop()
        self.closed = spent

    def count_workers(self) -> int:
        return 2


async def shared_budget(shared: Shared, **limits: Any) -> tuple[Budget, list[tuple[str, float | None]]]:
    stopped: list[tuple[str, float | None]] = []
    budget = Budget(RunLimits(**limits), Story(), {("m", ""): PRICE}, lambda *why: stopped.append(why), shared)
    await budget.open()
    return budget, stopped


async def asked(model: Model, count: int) -> None:
    """Wait for threads that ask for grants, until so many requests are under way."""
    for _ in range(1000):
        if len(model.under_way) >= count:
            break
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert len(model.under_way) == count


def test_more_is_asked_for_before_a_run_ends_and_one_question_serves_all() -> None:
    async def main() -> None:
        shared = Shared(left=6.0)
        budget, stopped = await shared_budget(shared, requests=100)
        model = Model(budget)
        tasks = [model.ask() for _ in range(9)]
        await asked(model, 6)
        assert shared.asked == 4  # three grants of two, and a refusal
        await model.answer(1)
        await asked(model, 5)
        assert shared.asked == 5  # another worker might have returned something
        for _ in range(5):
            await model.answer(1)
        for _ in range(1000):
            if stopped:
                break
            await asyncio.sleep(0.005)
        assert stopped == [
            ("budget: limits.run.requests is 100, and 100 is used by all workers, or granted to them", math.inf)
        ]
        assert budget.spent.requests == 6
        await budget.close()
        assert shared.closed == budget.spent
        await end(tasks)

    asyncio.run(main())


def test_what_another_worker_returns_is_used() -> None:
    async def main() -> None:
        shared = Shared(left=2.0)
        budget, stopped = await shared_budget(shared, requests=100)
        model = Model(budget)
        tasks = [model.ask() for _ in range(3)]
        await asked(model, 2)
        shared.left = 1.0
        await model.answer(1)
        await asked(model, 2)
        assert stopped == []
        await end(tasks)

    asyncio.run(main())


def test_a_ledger_that_cannot_be_reached_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.budget._RETRY_SECONDS", 0.01)

    async def main() -> None:
        shared = Shared(left=5.0)
        shared.error = StoreError("the store is down")
        budget, stopped = await shared_budget(shared, requests=100)
        shared.error = StoreError("the store is down")
        model = Model(budget)
        tasks = [model.ask()]
        for _ in range(1000):
            if shared.asked >= 3:
                break
            await asyncio.sleep(0.005)
        assert "the store is down" in budget.waits_for
        assert (model.under_way, stopped) == ([], [])
        shared.error = None
        await asked(model, 1)
        assert budget.waits_for == ""
        await end(tasks)

    asyncio.run(main())


def test_limits_that_are_tuned_are_asked_for_again() -> None:
    async def main() -> None:
        shared = Shared(left=1.0)
        budget, _ = await shared_budget(shared)
        model = Model(budget)
        tasks = [model.ask()]
        await asked(model, 1)
        assert shared.asked == 0
        budget.change(RunLimits(requests=5))
        tasks += [model.ask() for _ in range(2)]
        await asked(model, 2)
        shared.left = 1.0
        budget.change(RunLimits(requests=6))
        await asked(model, 3)
        await end(tasks)

    asyncio.run(main())


def test_time_is_that_of_the_whole_run() -> None:
    async def main() -> None:
        budget, stopped = await shared_budget(Shared(left=1.0), seconds=100.0)
        budget.look_at_clock(9.0)
        assert stopped == []
        budget.look_at_clock(10.0)
        assert stopped == [("budget: limits.run.seconds is 100, and the run has worked for 100 s", None)]

    asyncio.run(main())


@pytest.mark.parametrize("fails", [2, 3])
def test_grants_are_returned_to_a_ledger_that_cannot_be_reached_at_once(
    monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """If it cannot be reached at all, the end of the work does not wait for it."""
    monkeypatch.setattr("holdfast.engine.budget._RETRY_SECONDS", 0.0)

    async def main() -> None:
        shared = Shared(left=2.0)
        shared.closing_fails = [OSError("stale"), StoreError("away"), StoreError("away")][-fails:]
        budget, _ = await shared_budget(shared, requests=100)
        await budget.close()
        assert (shared.closed == budget.spent) == (fails < 3)

    asyncio.run(main())
