"""What is held back is not under way: neither a limit nor a profile counts it, and nothing else is left out for it."""

import asyncio

from holdfast.models import ModelCall
from holdfast.models.call import Held
from holdfast.models.pacing.stopwatch import Stopwatch
from holdfast.records.samples import Answer, Sample
from holdfast.solve import AttemptResources, Context, ModelHandle, Scope, Steps
from tests.unit.solve.stage import MemoryJournal, run

HELD_SECONDS = {"first": 0.0, "second": 8.0, "third": 2.0}


async def send(call: ModelCall) -> Answer:
    """Each is answered 10 s after it was sent."""
    question = call.messages[0]["content"]
    with Held(asyncio.get_running_loop().time):
        await asyncio.sleep(HELD_SECONDS[question])
    await asyncio.sleep(10.0)
    return Answer(question)


def test_a_request_takes_as_long_as_it_is_under_way_whatever_others_of_its_sample_wait_for() -> None:
    async def process() -> list[tuple[float, float]]:
        journal = MemoryJournal()
        steps = Steps(Scope(0, "t/m/s/1", "solve/1"), journal)
        ctx = Context(Sample("s", "", None, {}), [], steps, "0/k/1", AttemptResources({"": ModelHandle({}, {}, send)}))
        await asyncio.gather(*map(ctx.generate, HELD_SECONDS))
        taken = sorted(
            (each.step for each in journal.steps()), key=lambda step: step.answer.text if step.answer else ""
        )
        return [(step.seconds, step.timing.queue if step.timing else 0.0) for step in taken]

    assert run(process()) == [(10.0, seconds) for seconds in HELD_SECONDS.values()]


def test_a_samples_clock_stops_only_while_all_its_requests_are_held_back() -> None:
    now = [0.0]
    watch = Stopwatch(lambda: now[0])

    def later(seconds: float) -> float:
        now[0] += seconds
        return watch.held_seconds()

    watch.asked += 1
    watch.hold()
    assert later(1.0) == 1.0
    watch.asked += 1
    watch.update()
    assert later(10.0) == 1.0, "another is under way"
    watch.hold()
    assert later(2.0) == 3.0
    watch.let_go()
    watch.asked -= 1
    watch.update()
    assert later(4.0) == 7.0
    watch.let_go()
    assert later(100.0) == 7.0
