"""Races inside a sample come out as they did: first-completed, time-outs, and calls that the solver cancelled."""

import asyncio
from collections.abc import Awaitable

import pytest

from holdfast.records.facts import Step
from holdfast.records.samples import Answer, Usage
from holdfast.solve import Context, RecordedStep
from tests.unit.solve.stage import Latency, World, answers_in, play, prefixes, say


async def first_of(*calls: Awaitable[str]) -> str:
    """The first that completes, in the order in which they were given if several have; the others are cancelled."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return next(task for task in tasks if task in done).result()


async def three_races(ctx: Context) -> list[str]:
    return [await first_of(say(ctx, f"left {turn}"), say(ctx, f"right {turn}")) for turn in range(3)]


def alternating(question: str, nth: int) -> float:
    side, turn = question.split()
    return 1.0 if (side == "left") == (int(turn) % 2 == 0) else 5.0


def reversed_on_every_call() -> Latency:
    """A branch that was quick is slow the next time, in any process."""
    calls: dict[str, int] = {}

    def latency(question: str, nth: int) -> float:
        calls[question] = calls.get(question, 0) + 1
        quick = (question.startswith("left")) == (calls[question] % 2 == 1)
        return 1.0 if quick else 5.0

    return latency


def test_a_race_has_one_winner_and_its_loser_is_recorded_as_cancelled() -> None:
    played = play(three_races, World(alternating))
    assert played.result == ["left 0#1", "right 1#4", "left 2#5"]
    kinds = ["cancelled" if each.step.cancelled else "answer" for each in played.recorded]
    assert kinds == ["answer", "cancelled"] * 3


def test_races_come_out_as_they_did_after_every_kill_even_if_the_model_has_changed_its_pace() -> None:
    world = World(reversed_on_every_call())
    first = play(three_races, world)
    for left in prefixes(first.recorded):
        again = play(three_races, world, left)
        decided = len(answers_in(left))
        assert again.result[:decided] == first.result[:decided]
        assert not set(again.asked) & {text.split("#")[0] for text in answers_in(left)}


def test_a_loser_that_was_recorded_as_cancelled_is_never_asked_again() -> None:
    world = World(reversed_on_every_call())
    first = play(three_races, world)
    for left in prefixes(first.recorded):
        again = play(three_races, world, left)
        cancelled = {(each.step.q, each.step.c) for each in left if each.step.cancelled}
        assert cancelled.isdisjoint((each.step.q, each.step.c) for each in again.new)
    complete = play(three_races, world, first.recorded)
    assert (complete.asked, complete.new, complete.spent.orphaned) == ([], [], 0)


def test_a_race_decided_in_a_replay_is_decided_the_same_way_in_the_next_one() -> None:
    world = World(reversed_on_every_call())
    first = play(three_races, world)
    for left in prefixes(first.recorded):
        second = play(three_races, world, left)
        for further in prefixes(second.recorded):
            third = play(three_races, world, further)
            decided = len(answers_in(further))
            assert third.result[:decided] == second.result[:decided]


async def patient(ctx: Context) -> list[str]:
    """Gives each question two seconds."""
    told = []
    for turn in range(4):
        try:
            told.append(await asyncio.wait_for(say(ctx, f"question {turn}"), 2.0))
        except TimeoutError:
            told.append(f"timeout {turn}")
    return told


def test_time_outs_come_out_as_time_outs_and_answers_as_answers_after_every_kill() -> None:
    world = World(lambda question, nth: [1.0, 3.0, 1.9, 60.0][int(question[-1])])
    first = play(patient, world)
    assert first.result == ["question 0#1", "timeout 1", "question 2#3", "timeout 3"]
    for left in prefixes(first.recorded):
        again = play(patient, world, left)
        assert again.result[: len(left)] == first.result[: len(left)]
        assert len(again.asked) == 4 - len(left)


def test_a_time_out_stays_one_though_the_model_would_now_be_quick_enough() -> None:
    first = play(patient, World(lambda question, nth: 60.0))
    quick = World(lambda question, nth: 0.0)
    again = play(patient, quick, first.recorded)
    assert (again.result, quick.asked) == ([f"timeout {turn}" for turn in range(4)], [])


def test_an_answer_that_came_in_time_stays_one_though_the_model_would_now_be_too_slow() -> None:
    first = play(patient, World(lambda question, nth: 0.0))
    slow = World(lambda question, nth: 60.0)
    again = play(patient, slow, first.recorded)
    assert (again.result, slow.asked) == (first.result, [])


async def impatient(ctx: Context) -> list[str]:
    """Gives up after ten seconds: the answer has come by then, but it is still being saved."""
    try:
        return [await asyncio.wait_for(say(ctx, "saved too late"), 10.0)]
    except TimeoutError:
        return ["timeout", await say(ctx, "next")]


def test_a_call_cancelled_while_its_answer_is_being_saved_counts_as_cancelled() -> None:
    world = World(lambda question, nth: 9.0)
    first = play(impatient, world, commit_seconds=5.0)
    assert first.result == ["timeout", "next#2"]
    assert [(each.step.answer is not None, each.step.cancelled) for each in first.recorded] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    for left in list(prefixes(first.recorded))[2:]:
        again = play(impatient, world, left)
        assert again.result[0] == "timeout"
        assert "saved too late" not in again.asked
        assert len(again.asked) == 3 - len(left)


def test_an_answer_whose_cancellation_was_lost_is_used_and_not_bought_again() -> None:
    world = World(lambda question, nth: 9.0)
    first = play(impatient, world, commit_seconds=5.0)
    again = play(impatient, world, first.recorded[:1])
    assert (again.result, again.asked) == (["saved too late#1"], [])


def test_a_cancelled_call_that_the_solver_now_waits_for_is_asked_after_all() -> None:
    async def waits(ctx: Context) -> str:
        return await say(ctx, "saved too late")

    world = World(lambda question, nth: 9.0)
    first = play(impatient, world, commit_seconds=5.0)
    again = play(waits, world, first.recorded[:2])
    assert (again.result, again.asked) == ("saved too late#3", ["saved too late"])


def test_the_answer_to_a_call_once_cancelled_and_asked_after_all_is_replayed() -> None:
    """Of one request the later record counts, whichever it is."""

    async def waits(ctx: Context) -> str:
        return await say(ctx, "saved too late")

    world = World(lambda question, nth: 9.0)
    first = play(impatient, world, commit_seconds=5.0)
    second = play(waits, world, first.recorded[:2])
    third = play(waits, world, second.recorded)
    assert (third.result, third.asked) == (second.result, [])


def test_of_two_answers_saved_in_one_batch_the_first_wins_live_and_replayed() -> None:
    """`right` is recorded first. A solver that prefers `left` when both are there must see the same twice."""

    async def one_race(ctx: Context) -> str:
        return await first_of(say(ctx, "left"), say(ctx, "right"))

    world = World(lambda question, nth: 2.0 if question == "left" else 1.0)
    first = play(one_race, world, commit_seconds=10.0)
    again = play(one_race, world, first.recorded)
    assert (again.result, again.asked) == (first.result, [])


def test_a_race_among_many_saved_in_one_batch_comes_out_the_same() -> None:
    async def one_race(ctx: Context) -> str:
        winner = await first_of(*(say(ctx, f"racer {number}") for number in range(6)))
        return f"{winner}, then {await say(ctx, winner)}"

    world = World(lambda question, nth: 10.0 - int(question[6]) if question.startswith("racer") else 1.0)
    first = play(one_race, world, commit_seconds=30.0)
    for left in list(prefixes(first.recorded))[-2:]:
        again = play(one_race, world, left)
        assert again.result.split(",")[0] == first.result.split(",")[0]


def test_a_race_between_whole_branches_comes_out_as_it_did() -> None:
    """The branch of two quick steps beats that of one slow step; then the model's pace is turned round."""

    async def branch(ctx: Context, *questions: str) -> str:
        return " ".join([await say(ctx, question) for question in questions])

    async def race(ctx: Context) -> str:
        return await first_of(branch(ctx, "a 1", "a 2"), branch(ctx, "b 1"))

    first = play(race, World(lambda question, nth: 1.0 if question.startswith("a") else 9.0))
    assert first.result == "a 1#1 a 2#3"
    other = World(lambda question, nth: 9.0 if question.startswith("a") else 1.0)
    again = play(race, other, first.recorded)
    assert (again.result, other.asked) == (first.result, [])


def test_a_call_cancelled_before_it_was_asked_leaves_nothing_behind() -> None:
    async def solve(ctx: Context) -> str:
        task = asyncio.ensure_future(say(ctx, "never"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await say(ctx, "asked")

    world = World()
    played = play(solve, world)
    assert (played.asked, len(played.recorded)) == (["asked"], 1)


@pytest.mark.parametrize("waits", [0.0, 0.5, 40.0])
def test_a_cancelled_call_is_held_until_the_solver_cancels_it_again(waits: float) -> None:
    async def solve(ctx: Context) -> str:
        slow = asyncio.ensure_future(say(ctx, "slow"))
        quick = await say(ctx, "quick")
        await asyncio.sleep(waits)
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        return quick

    world = World(lambda question, nth: 100.0 if question == "slow" else 1.0)
    first = play(solve, world)
    assert [each.step.cancelled for each in first.recorded] == [False, True]
    again = play(solve, world, first.recorded)
    assert (again.result, again.asked, again.new) == (first.result, [], [])


def test_an_old_record_of_an_answer_and_its_cancellation_counts_as_cancelled() -> None:
    """As a journal holds it: the answer first, the cancellation behind it."""

    async def solve(ctx: Context) -> str:
        try:
            return await asyncio.wait_for(say(ctx, "q"), 1.0)
        except TimeoutError:
            return "timeout"

    world = World()
    played = play(solve, World(lambda question, nth: 5.0))
    step = played.recorded[0].step
    answer = Answer("q#0", {"role": "assistant", "content": "q#0"}, usage=Usage(1, 1))
    recorded = [RecordedStep(7, Step(0, "solve/1", step.q, answer=answer)), RecordedStep(8, step)]
    again = play(solve, world, recorded)
    assert (again.result, again.asked) == ("timeout", [])
