"""Failures that a solver saw it sees again; changed code continues live; shutting down is not the solver's doing."""

import asyncio

import msgspec
import pytest

from holdfast.errors import BadRecordError, HoldfastError, StoppedError
from holdfast.models import ModelCall
from holdfast.records.samples import Answer, Message, Usage
from holdfast.solve import (
    AttemptLimits,
    AttemptResources,
    Context,
    LimitError,
    ModelHandle,
    Scope,
    StepFailedError,
    Steps,
)
from tests.unit.solve.stage import KEY, SAMPLE, MemoryJournal, World, play, prefixes, run, say


async def careful(ctx: Context) -> list[str]:
    """Continues with another question when one fails."""
    told = []
    for question in ("good 1", "bad", "good 2"):
        try:
            told.append(await say(ctx, question))
        except StepFailedError as error:
            told.append(f"{error.failure.kind}: {error.failure.message}")
    return told


def test_a_failure_that_the_solver_saw_is_raised_again_and_not_asked_again() -> None:
    world = World(failing={"bad": "server"})
    first = play(careful, world)
    assert first.result == ["good 1#1", "server: bad fails #2", "good 2#3"]
    for left in prefixes(first.recorded):
        again = play(careful, world, left)
        assert again.result[: len(left)] == first.result[: len(left)]
        assert len(again.asked) == 3 - len(left)


def test_a_failure_is_raised_again_though_the_model_has_recovered() -> None:
    first = play(careful, World(failing={"bad": "server"}))
    recovered = World()
    again = play(careful, recovered, first.recorded)
    assert (again.result, recovered.asked) == (first.result, [])


def test_a_failed_step_says_how_often_it_was_tried() -> None:
    played = play(careful, World(failing={"bad": "server"}))
    step = played.recorded[1].step
    assert step.failure is not None
    assert (step.failure.kind, step.tries, step.answer) == ("server", 3, None)


def test_failures_in_parallel_branches_go_to_the_same_branches_again() -> None:
    async def solve(ctx: Context) -> list[str]:
        results = await asyncio.gather(*(say(ctx, f"q{number}") for number in range(4)), return_exceptions=True)
        return [str(each) for each in results]

    world = World(lambda question, nth: 4.0 - int(question[1]), {"q1": "server", "q3": "timeout"})
    first = play(solve, world)
    for left in prefixes(first.recorded):
        again = play(solve, world, left)
        assert len(again.asked) == 4 - len(left)
    assert play(solve, World(), first.recorded).result == first.result


def test_changed_code_continues_live_and_what_it_no_longer_requests_is_orphaned() -> None:
    async def old(ctx: Context) -> list[str]:
        return [await say(ctx, question) for question in ("a", "b", "c")]

    async def new(ctx: Context) -> list[str]:
        return [await say(ctx, question) for question in ("a", "x", "c")]

    world = World()
    first = play(old, world)
    again = play(new, world, first.recorded)
    assert (again.result, again.asked) == (["a#1", "x#4", "c#3"], ["x"])
    assert (again.spent.live, again.spent.replayed, again.spent.orphaned) == (1, 2, 1)


def test_code_that_repeats_none_of_its_requests_orphans_all_of_them() -> None:
    async def old(ctx: Context) -> list[str]:
        return [await say(ctx, question) for question in ("a", "b", "c")]

    async def new(ctx: Context) -> list[str]:
        return [await say(ctx, question) for question in ("x", "y")]

    world = World()
    first = play(old, world)
    again = play(new, world, first.recorded)
    assert (again.result, again.spent.orphaned, again.spent.replayed) == (["x#4", "y#5"], 3, 0)


def test_the_cost_of_orphaned_steps_is_reported() -> None:
    async def old(ctx: Context) -> list[str]:
        return [await say(ctx, question) for question in ("a", "b")]

    async def new(ctx: Context) -> str:
        return await say(ctx, "x")

    world = World()
    again = play(new, world, play(old, world).recorded)
    told = msgspec.to_builtins(again.spent)
    assert again.spent.orphaned == 2
    assert told["orphaned_usage"] == msgspec.to_builtins(Usage(4, 2, requests=2))


def test_a_complete_replay_orphans_nothing() -> None:
    world = World(failing={"bad": "server"})
    first = play(careful, world)
    assert play(careful, world, first.recorded).spent.orphaned == 0


def context(steps: Steps, asking: ModelHandle, allowance: AttemptLimits | None = None) -> Context:
    messages: list[Message] = [{"role": "user", "content": "q"}]
    return Context(SAMPLE, messages, steps, "seed", AttemptResources({"": asking}, allowance or AttemptLimits()))


def test_a_call_cut_off_by_our_own_shutdown_is_not_recorded_as_cancelled() -> None:
    async def story() -> MemoryJournal:
        journal, world = MemoryJournal(), World()
        steps = Steps(Scope(0, KEY, "solve/1"), journal)
        task = asyncio.ensure_future(context(steps, world.asking()).generate())
        await asyncio.sleep(0.5)
        assert world.in_flight == 1
        steps.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return journal

    assert run(story()).records == []


def test_a_call_that_waits_for_its_replay_at_our_shutdown_is_cancelled_too() -> None:
    async def waits(ctx: Context) -> str:
        return await say(ctx, "q")

    async def gives_up(ctx: Context) -> None:
        task = asyncio.ensure_future(say(ctx, "q"))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    world = World()
    recorded = play(gives_up, world).recorded
    assert recorded[0].step.cancelled

    async def story() -> tuple[bool, list[object]]:
        journal = MemoryJournal()
        steps = Steps(Scope(0, KEY, "solve/1"), journal, recorded)
        task = asyncio.ensure_future(waits(context(steps, world.asking())))
        await asyncio.sleep(0.5)
        steps.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled(), list(journal.records)

    assert run(story()) == (True, [])


def test_an_attempt_that_has_ended_sends_nothing_more() -> None:
    """A branch that the solver left behind must not keep spending in the background."""

    async def story() -> list[str]:
        journal, world = MemoryJournal(), World()
        steps = Steps(Scope(0, KEY, "solve/1"), journal)
        ctx = context(steps, world.asking())

        async def left_behind() -> None:
            for number in range(5):
                await say(ctx, f"q{number}")

        task = asyncio.ensure_future(left_behind())
        await asyncio.sleep(0.5)
        steps.close()
        await asyncio.sleep(20.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return world.asked

    assert run(story()) == ["q0"]


def test_a_journal_that_has_stopped_stops_the_solver_with_its_error() -> None:
    async def story() -> BaseException | None:
        journal = MemoryJournal()
        journal.stopped = True
        steps = Steps(Scope(0, KEY, "solve/1"), journal)
        task = asyncio.ensure_future(context(steps, World().asking()).generate())
        await asyncio.wait([task])
        return task.exception()

    assert isinstance(run(story()), StoppedError)


def test_an_answer_that_cannot_be_saved_is_never_delivered() -> None:
    async def send(call: ModelCall) -> Answer:
        return Answer("told", {"role": "assistant", "content": object()})

    async def story() -> BaseException | None:
        steps = Steps(Scope(0, KEY, "solve/1"), MemoryJournal())
        task = asyncio.ensure_future(context(steps, ModelHandle({}, {}, send)).generate())
        await asyncio.wait([task])
        return task.exception()

    assert isinstance(run(story()), BadRecordError)


def test_limits_count_what_was_replayed() -> None:
    async def solve(ctx: Context) -> list[str]:
        return [await say(ctx, f"q{number}") for number in range(5)]

    world = World()
    limited = AttemptLimits(steps=3)
    first = play(solve, world, allowance=limited)
    assert isinstance(first.result, LimitError)
    assert len(first.recorded) == 3
    for left in prefixes(first.recorded):
        again = play(solve, world, left, allowance=limited)
        assert isinstance(again.result, LimitError)
        assert len(again.asked) == 3 - len(left)


def test_a_limit_of_tokens_counts_what_was_replayed() -> None:
    async def solve(ctx: Context) -> list[str]:
        return [await say(ctx, f"q{number}") for number in range(5)]

    world = World()
    limited = AttemptLimits(tokens=7)  # three tokens a step
    first = play(solve, world, allowance=limited)
    assert isinstance(first.result, LimitError)
    assert len(first.recorded) == 3
    for left in prefixes(first.recorded):
        again = play(solve, world, left, allowance=limited)
        assert isinstance(again.result, LimitError)
        assert len(again.asked) == 3 - len(left)


def test_a_limit_of_steps_cuts_parallel_branches_the_same_way_again() -> None:
    async def solve(ctx: Context) -> list[str]:
        results = await asyncio.gather(*(say(ctx, f"q{number}") for number in range(5)), return_exceptions=True)
        return [each if isinstance(each, str) else type(each).__name__ for each in results]

    world = World()
    limited = AttemptLimits(steps=2)
    first = play(solve, world, allowance=limited)
    assert first.result == ["q0#1", "q1#2", "LimitError", "LimitError", "LimitError"]
    again = play(solve, world, first.recorded, allowance=limited)
    assert (again.result, again.asked) == (first.result, [])


def test_a_cancelled_call_counts_against_the_limit_of_steps_live_and_replayed() -> None:
    async def solve(ctx: Context) -> list[str]:
        told = []
        for number in range(4):
            try:
                told.append(await asyncio.wait_for(say(ctx, f"q{number}"), 2.0))
            except TimeoutError:
                told.append("timeout")
            except LimitError:
                told.append("limit")
        return told

    world = World(lambda question, nth: 9.0 if question == "q1" else 1.0)
    limited = AttemptLimits(steps=3)
    first = play(solve, world, allowance=limited)
    assert first.result == ["q0#1", "timeout", "q2#3", "limit"]
    again = play(solve, world, first.recorded, allowance=limited)
    assert (again.result, again.asked) == (first.result, [])


def test_a_role_that_does_not_exist_is_named_with_those_that_do() -> None:
    async def solve(ctx: Context) -> Answer:
        return await ctx.generate("q", role="jugde")

    played = play(solve, World())
    assert isinstance(played.result, HoldfastError)
    assert "'jugde'" in str(played.result)
    assert played.asked == []


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_failing_first_attempt_hands_its_answers_to_the_next(rounds: int) -> None:
    async def solve(ctx: Context) -> list[str]:
        return [await say(ctx, f"q{number}") for number in range(rounds)]

    async def story() -> list[str]:
        journal, world = MemoryJournal(), World()
        steps = Steps(Scope(0, KEY, "solve/1"), journal)
        await solve(context(steps, world.asking()))
        return [each.step.answer.text for each in steps.succeeded if each.step.answer is not None]

    assert run(story()) == [f"q{number}#{number + 1}" for number in range(rounds)]
