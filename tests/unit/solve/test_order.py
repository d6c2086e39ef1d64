"""Steps are delivered in the order of the journal, live and replayed, and nothing is requested too early."""

import asyncio
import itertools

import pytest

from holdfast.solve import Context, RecordedStep
from tests.unit.solve.stage import World, play, prefixes, say


async def all_at_once(ctx: Context, count: int = 5) -> list[str]:
    """The answers in the order in which the branches received them."""
    told: list[str] = []

    async def branch(number: int) -> None:
        told.append(await say(ctx, f"q{number}"))

    await asyncio.gather(*(branch(number) for number in range(count)))
    return told


def texts(recorded: list[RecordedStep]) -> list[str]:
    return [each.step.answer.text for each in recorded if each.step.answer is not None]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("commit_seconds", [0.0, 2.5, 100.0])
def test_answers_are_delivered_in_journal_order_live_and_replayed(
    order: tuple[int, ...], commit_seconds: float
) -> None:
    async def solve(ctx: Context) -> list[str]:
        return await all_at_once(ctx, 4)

    world = World(lambda question, nth: 1.0 + order[int(question[1])])
    first = play(solve, world, commit_seconds=commit_seconds)
    assert first.result == texts(first.recorded)
    again = play(solve, world, first.recorded)
    assert (again.result, again.asked) == (first.result, [])


def test_what_was_recorded_is_delivered_before_any_request() -> None:
    world = World(lambda question, nth: 5.0 - int(question[1]))
    first = play(all_at_once, world)
    for left in prefixes(first.recorded):
        again = play(all_at_once, world, left)
        assert again.result[: len(left)] == texts(left)
        assert again.result == texts(again.recorded)


def test_nothing_is_sent_while_the_sample_still_requests_something_recorded() -> None:
    """`c` was in flight at the kill. It is requested only after the recorded chain a, b, d was delivered."""
    log: list[str] = []

    async def solve(ctx: Context) -> None:
        async def chain() -> None:
            for question in ("a", "b", "d"):
                await say(ctx, question)
                log.append(question)

        await asyncio.gather(say(ctx, "c"), chain())

    def latency(question: str, nth: int) -> float:
        log.append(f"ask {question}")
        return 100.0 if question == "c" else 1.0

    world = World(latency)
    first = play(solve, world)
    assert [each.step.answer.text[0] for each in first.recorded if each.step.answer] == ["a", "b", "d", "c"]
    log.clear()
    play(solve, world, first.recorded[:3])
    assert log == ["a", "b", "d", "ask c"]


@pytest.mark.parametrize("seconds", [0.5, 2.0, 20.0, 600.0])
def test_a_branch_that_sleeps_before_its_request_is_waited_for(seconds: float) -> None:
    """The sleeper's answer was recorded first: with immediate delivery the order would differ."""

    async def solve(ctx: Context) -> list[str]:
        told: list[str] = []

        async def sleeper() -> None:
            await asyncio.sleep(seconds)
            told.append(await say(ctx, "sleeper"))

        async def other() -> None:
            told.append(await say(ctx, "other"))

        await asyncio.gather(sleeper(), other())
        return told

    world = World(lambda question, nth: 1.0 if question == "sleeper" else seconds + 10.0)
    first = play(solve, world)
    assert first.result == ["sleeper#2", "other#1"]
    again = play(solve, world, first.recorded)
    assert (again.result, again.asked) == (first.result, [])


def test_a_race_that_a_sleeping_branch_has_won_is_won_by_it_again() -> None:
    async def solve(ctx: Context) -> str:
        async def hedge() -> str:
            await asyncio.sleep(5.0)
            return await say(ctx, "hedge")

        tasks = [asyncio.ensure_future(say(ctx, "first")), asyncio.ensure_future(hedge())]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return done.pop().result()

    world = World(lambda question, nth: 100.0 if question == "first" else 1.0)
    first = play(solve, world)
    assert first.result == "hedge#2"
    again = play(solve, world, first.recorded)
    assert (again.result, again.asked) == (first.result, [])
    without_the_cancellation = play(solve, world, first.recorded[:1])
    assert (without_the_cancellation.result, without_the_cancellation.asked) == (first.result, ["first"])


def test_a_hedge_that_was_never_sent_is_not_sent_in_the_replay() -> None:
    """The first call answers before the hedge is due; the recorded answer is delivered at once."""

    async def solve(ctx: Context) -> str:
        async def hedge() -> str:
            await asyncio.sleep(5.0)
            return await say(ctx, "hedge")

        tasks = [asyncio.ensure_future(say(ctx, "first")), asyncio.ensure_future(hedge())]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return done.pop().result()

    world = World(lambda question, nth: 1.0)
    first = play(solve, world)
    again = play(solve, world, first.recorded)
    assert (first.result, again.result, again.asked) == ("first#1", "first#1", [])


def test_a_solver_that_thinks_for_many_rounds_between_its_steps_gets_them_in_their_order() -> None:
    """Work of its own, in many small turns, is no sign that it will not ask for what was recorded first."""

    async def solve(ctx: Context) -> list[str]:
        told: list[str] = []

        async def thinker() -> None:
            for _ in range(200):
                await asyncio.sleep(0)
            told.append(await say(ctx, "thinker"))

        async def other() -> None:
            told.append(await say(ctx, "other"))

        await asyncio.gather(thinker(), other())
        return told

    world = World(lambda question, nth: 1.0 if question == "thinker" else 50.0)
    first = play(solve, world)
    assert first.result == ["thinker#2", "other#1"]
    for left in prefixes(first.recorded):
        again = play(solve, world, left)
        assert [text.split("#")[0] for text in again.result] == ["thinker", "other"]
        assert len(again.asked) == 2 - len(left)
