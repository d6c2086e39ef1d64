"""An answer that came from a job of a batch API: which step asked for it, what it cost, and what is recorded."""

import asyncio

from holdfast.models import ModelCall
from holdfast.records.facts import StepId
from holdfast.records.samples import Answer, Message, Sample, Usage
from holdfast.solve import AttemptResources, Context, ModelHandle, Scope, Steps
from holdfast.spec import Price
from tests.unit.solve.stage import MemoryJournal

QUESTION: list[Message] = [{"role": "user", "content": "q"}]


def test_a_batched_answer_names_its_job_and_costs_half_also_when_it_is_replayed() -> None:
    asked: list[StepId] = []

    async def send(call: ModelCall) -> Answer:
        assert call.step is not None
        asked.append(call.step)
        call.job = "" if call.step.c else "job"
        return Answer("batched", usage=Usage(100, 100))

    price = Price(input=1e6, output=1e6)

    async def run() -> None:
        journal = MemoryJournal()
        steps = Steps(Scope(7, "t/m/s/1", "solve/2"), journal)
        asking = ModelHandle({}, {}, send, price, batched=True)
        ctx = Context(Sample("s", "q", None, {}), QUESTION, steps, "0/k/1", AttemptResources({"": asking}))
        costs = [ctx.used.cost_usd]
        for _ in range(2):
            assert (await ctx.generate()).text == "batched"
            costs.append(ctx.used.cost_usd)
        recorded = [each.step for each in journal.steps()]
        assert costs == [0.0, 100.0, 300.0], "the second one was asked alone after all"
        assert [step.batch for step in recorded] == ["job", ""]
        assert asked == [StepId(step.o, step.scope, step.q, step.c) for step in recorded]
        again = Steps(Scope(7, "t/m/s/1", "solve/2"), journal, journal.steps())
        ctx = Context(Sample("s", "q", None, {}), QUESTION, again, "0/k/1", AttemptResources({"": asking}))
        await ctx.generate()
        spent = again.spent()
        assert price.dollars(steps.spent().usage) == 300.0
        assert (price.dollars(spent.saved), price.dollars(spent.orphaned_usage)) == (100.0, 200.0)

    asyncio.run(run())
