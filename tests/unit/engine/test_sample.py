"""Attempts at one sample: what is tried again, what is replayed, what is asked anew, and how it ends."""

import asyncio
import sys
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.engine.sample import KeyHistory, Outcome, Sampler
from holdfast.errors import StoppedError
from holdfast.records.facts import Step
from holdfast.records.samples import Answer, Sample
from holdfast.score.anomalies import AnswerExpectations
from holdfast.solve import AttemptLimits, Context, RecordedStep, StepFailedError, ToolFailedError, Workplace
from holdfast.solve.agents import best_of, majority
from holdfast.solve.steps import working_seconds
from tests.unit.engine.attempts_stage import (
    Setting,
    Solve,
    answer,
    failing_until,
    kit,
    past_of,
    ticket,
)
from tests.unit.solve.stage import MemoryJournal, World, run, say, type_of


async def three_steps(sample: Sample, ctx: Context) -> str:
    return " ".join([await say(ctx, question) for question in ("a", "b", "c")])


def test_a_sample_that_succeeds_is_answered_in_one_attempt() -> None:
    story = answer(three_steps, World())
    assert (story.text, story.failures, story.finished[0].attempt) == ("a#1 b#2 c#3", [], 1)
    assert story.outcome is not None
    assert story.outcome.failure is None


def test_after_a_failure_of_infrastructure_the_next_attempt_replays_what_succeeded() -> None:
    world = World()
    failing_until(world, "c", "server", 1)
    story = answer(three_steps, world)
    assert (story.text, story.asked) == ("a#1 b#2 c#4", ["a", "b", "c", "c"])
    assert [(each.attempt, each.final) for each in story.failures] == [(1, False)]
    spent = story.finished[0].spent
    assert (story.finished[0].attempt, spent.live, spent.replayed) == (2, 1, 2)


def test_after_an_error_of_the_solver_the_next_attempt_asks_anew() -> None:
    calls = []

    async def clumsy(sample: Sample, ctx: Context) -> str:
        first = await say(ctx, "a")
        calls.append(first)
        if len(calls) == 1:
            raise ValueError("a slip")
        return first

    story = answer(clumsy, World())
    assert (story.text, story.asked, story.kinds) == ("a#2", ["a", "a"], ["solver"])
    assert story.finished[0].spent.replayed == 0


def test_all_attempts_are_used_and_the_last_failure_is_final() -> None:
    story = answer(three_steps, World(failing={"b": "server"}), Setting(retries=3))
    assert [(each.attempt, each.final) for each in story.failures] == [(1, False), (2, False), (3, False), (4, True)]
    assert story.asked == ["a", "b", "b", "b", "b"]
    assert story.outcome is not None
    assert story.outcome.failure is not None
    assert story.outcome.failure.kind == "server"


def test_without_retries_the_first_failure_is_final() -> None:
    story = answer(three_steps, World(failing={"a": "server"}), Setting(retries=0))
    assert [(each.attempt, each.final) for each in story.failures] == [(1, True)]


def raising(kind: type[Exception], *messages: str) -> Solve:
    """A solver that raises one error per attempt, from the same line."""
    left = list(messages)

    async def broken(sample: Sample, ctx: Context) -> str:
        await say(ctx, "a")
        raise kind(left.pop(0))

    return broken


@pytest.mark.parametrize("kind", [KeyError, IndexError, ZeroDivisionError])
def test_the_same_error_of_the_data_twice_in_a_row_is_final(kind: type[Exception]) -> None:
    story = answer(raising(kind, "level", "level", "level"), World(), Setting(retries=5))
    assert [each.final for each in story.failures] == [False, True]
    assert story.asked == ["a", "a"]


def test_another_key_and_an_error_of_a_server_are_retried() -> None:
    story = answer(raising(KeyError, *"abcd"), World(), Setting(retries=3))
    assert [each.final for each in story.failures] == [False, False, False, True]
    story = answer(raising(OSError, *["no route"] * 4), World(), Setting(retries=3))
    assert [each.final for each in story.failures] == [False, False, False, True]


@pytest.mark.parametrize("kind", ["auth", "bad_request", "unknown_model", "context_too_long", "content_filter"])
def test_what_trying_again_cannot_mend_is_not_tried_again(kind: str) -> None:
    story = answer(three_steps, World(failing={"b": kind}), Setting(retries=5))
    assert (story.asked, story.kinds) == (["a", "b"], [kind])
    assert story.failures[0].final


def test_a_limit_is_not_tried_again() -> None:
    story = answer(three_steps, World(), Setting(allowance=AttemptLimits(steps=2)))
    assert (story.asked, story.kinds) == (["a", "b"], ["limit"])
    assert story.failures[0].final


async def grouped(sample: Sample, ctx: Context) -> str:
    """The way in which Python's own documentation writes branches side by side."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(say(ctx, question)) for question in ("a", "b", "c")]
    return " ".join(task.result() for task in tasks)


def test_a_failure_of_infrastructure_inside_a_task_group_is_one_too() -> None:
    world = World(lambda question, nth: 5.0 if question == "c" else 1.0)
    failing_until(world, "c", "server", 1)
    story = answer(grouped, world)
    assert story.kinds == ["server"]
    assert story.asked == ["a", "b", "c", "c"]


def test_a_final_kind_inside_a_task_group_is_not_tried_again() -> None:
    story = answer(grouped, World(failing={"a": "auth"}))
    assert story.kinds == ["auth"]
    assert story.failures[0].final


def test_a_limit_inside_a_task_group_is_a_limit() -> None:
    story = answer(grouped, World(), Setting(allowance=AttemptLimits(steps=2)))
    assert story.kinds == ["limit"]


def test_a_cut_off_attempt_goes_on_under_its_own_number() -> None:
    world = World()
    first = answer(three_steps, world)
    again = answer(three_steps, world, past=past_of(first, records=2), first=3)
    assert (again.text, again.asked, again.scopes) == ("a#1 b#2 c#4", ["c"], ["solve/1"])
    assert again.finished[0].attempt == 1


def test_an_attempt_cut_off_after_a_failure_replays_both_its_own_and_what_succeeded_before() -> None:
    world = World()
    failing_until(world, "b", "server", 1)
    first = answer(three_steps, world)
    kinds = [type_of(record) for _, record in first.journal.records]
    assert kinds == ["step", "step", "sample.failed", "step", "step", "sample.finished"]
    for left in range(6):
        again = answer(three_steps, world, past=past_of(first, records=left), first=left + 1)
        assert again.asked == (["a", "b", "c"], ["b", "c"], ["b", "c"], ["b", "c"], ["c"], [])[left]
        assert again.finished[0].attempt == (1 if left < 2 else 2)


def test_each_resume_gives_a_failed_sample_a_fresh_allowance_and_numbers_grow() -> None:
    world = World(failing={"c": "server"})
    first = answer(three_steps, world)
    assert [each.attempt for each in first.failures] == [1, 2, 3]
    second = answer(three_steps, world, past=past_of(first), first=100)
    assert [(each.attempt, each.final) for each in second.failures] == [(4, False), (5, False), (6, True)]
    assert second.asked == ["c", "c", "c"]
    world.failing = {}
    third = answer(three_steps, world, past=past_of(first, second), first=200)
    assert (third.finished[0].attempt, third.asked) == (7, ["c"])
    assert third.text.startswith("a#1 b#2 ")


def test_a_resume_after_a_solver_error_asks_anew() -> None:
    async def broken(sample: Sample, ctx: Context) -> str:
        raise ValueError(await say(ctx, "a"))

    world = World()
    first = answer(broken, world, Setting(retries=0))
    again = answer(three_steps, world, Setting(retries=0), past_of(first), first=10)
    assert (again.text, again.finished[0].attempt) == ("a#2 b#3 c#4", 2)


def test_an_answer_that_the_solver_changed_in_place_is_replayed_as_it_was_recorded() -> None:
    async def rude(sample: Sample, ctx: Context) -> str:
        answered = await ctx.generate("a")
        answered.message["content"] += "!"
        return await say(ctx, str(answered.message["content"]))

    world = World()
    failing_until(world, "a#1!", "server", 1)
    story = answer(rude, world)
    assert story.asked == ["a", "a#1!", "a#1!"]


def test_a_branch_left_behind_by_a_failed_attempt_asks_for_nothing_more() -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        async def long() -> str:
            return " ".join([await say(ctx, f"long {number}") for number in range(5)])

        return " ".join(await asyncio.gather(long(), say(ctx, "short")))

    world = World(failing={"short": "auth"})
    before = len(world.asked)

    async def process() -> list[str]:
        journal = MemoryJournal()
        await Sampler(journal, lambda *_: None).answer(ticket(), kit(solve, world, Setting()), KeyHistory())
        await asyncio.sleep(100.0)
        return world.asked[before:]

    assert run(process()) in (["long 0", "short"], ["long 0", "short", "long 1"])


def bad(result: Any = None, error: BaseException | None = None) -> Solve:
    async def solve(sample: Sample, ctx: Context) -> str:
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # a solver may return anything

    return solve


def made(**fields: Any) -> Answer:
    """An answer as a careless solver makes it: types are not checked when it is built."""
    return Answer(**fields)


MISBEHAVIOUR: dict[str, tuple[Solve, str]] = {
    "raises": (bad(error=ValueError("no")), "solver"),
    "raises a key": (bad(error=KeyError("no")), "solver"),
    "recurses": (bad(error=RecursionError("no")), "solver"),
    "times out by itself": (bad(error=TimeoutError("no")), "solver"),
    "raises a cancellation": (bad(error=asyncio.CancelledError()), "cancelled"),
    "stops an iteration": (bad(error=StopIteration()), "solver"),
    "exits": (bad(error=SystemExit(3)), "solver"),
    "returns nothing": (bad(result=None), "solver"),
    "returns a number": (bad(result=5), "solver"),
    "returns a list": (bad(result=["a"]), "solver"),
    "an object in its message": (bad(result=Answer("a", {"content": object()})), "record"),
    "half a character": (bad(result="\ud800"), "record"),
    "no text": (bad(result=made(text=None)), "record"),
    "a number as text": (bad(result=made(text=5)), "record"),
    "no finish reason": (bad(result=made(text="a", finish_reason=None)), "record"),
    "no tool calls": (bad(result=made(text="a", tool_calls=None)), "record"),
    "too large": (bad(result="x" * (65 << 20)), "too_large"),
}


@pytest.mark.parametrize("name", MISBEHAVIOUR)
def test_whatever_a_solver_does_its_sample_ends_as_failed_with_a_kind(name: str) -> None:
    solve, kind = MISBEHAVIOUR[name]
    story = answer(solve, World(), Setting(retries=0))
    assert story.kinds == [kind]
    assert story.finished == []
    assert story.outcome is not None
    assert story.outcome.failure is not None


def test_a_solver_that_cancels_its_own_task_fails_alone() -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "too early"

    story = answer(solve, World(), Setting(retries=0))
    assert len(story.finished) + len(story.failures) == 1
    assert story.outcome is not None


def test_the_failure_of_a_solver_shows_where_it_comes_from() -> None:
    story = answer(bad(error=ValueError("a slip")), World(), Setting(retries=0))
    failure = story.failures[0].failure
    assert failure.message == "ValueError: a slip"
    assert "test_sample.py" in failure.detail


def test_a_sample_that_takes_too_long_fails_as_a_time_out_and_is_tried_again() -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        return f"{await say(ctx, 'a')} {await say(ctx, 'slow')}"

    world = World(lambda question, nth: 1.0 if question == "a" or nth == 2 else 100.0)
    story = answer(solve, world, Setting(seconds=10.0))
    assert (story.kinds, story.text) == (["timeout"], "a#1 slow#3")
    assert story.asked == ["a", "slow", "slow"]


def test_a_time_out_of_the_solvers_own_is_the_solvers() -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        return await asyncio.wait_for(say(ctx, "a"), 2.0)

    story = answer(solve, World(lambda question, nth: 5.0), Setting(retries=0, seconds=10.0))
    assert story.kinds == ["solver"]


def test_working_time_that_is_recorded_counts_against_the_time_limit_after_a_replay() -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        return " ".join([await say(ctx, f"q{number}") for number in range(4)])

    world = World(lambda question, nth: 4.0)
    first = answer(solve, world, Setting(retries=0, seconds=10.0))
    assert first.kinds == ["timeout"]
    again = answer(solve, world, Setting(retries=0, seconds=10.0), past_of(first, records=2), first=3)
    assert again.kinds == ["timeout"]
    assert again.asked == ["q2"]


def test_a_journal_that_has_stopped_stops_the_sample_with_its_error() -> None:
    async def process() -> None:
        journal = MemoryJournal()
        journal.stopped = True
        await Sampler(journal, lambda *_: None).answer(ticket(), kit(three_steps, World(), Setting()), KeyHistory())

    with pytest.raises(StoppedError):
        run(process())


def test_a_solver_that_hides_the_journals_error_still_stops() -> None:
    async def deaf(sample: Sample, ctx: Context) -> str:
        try:
            return await say(ctx, "a")
        except Exception:  # noqa: BLE001 - as some solvers are written
            return "fine"

    async def process() -> None:
        journal = MemoryJournal()
        journal.stopped = True
        await Sampler(journal, lambda *_: None).answer(ticket(), kit(deaf, World(), Setting()), KeyHistory())

    with pytest.raises(StoppedError):
        run(process())


def test_closing_leaves_the_sample_unfinished_and_records_no_cancellation() -> None:
    async def process() -> tuple[bool, list[str]]:
        journal, world = MemoryJournal(), World()
        sampler = Sampler(journal, lambda *_: None)
        task = asyncio.ensure_future(sampler.answer(ticket(), kit(three_steps, world, Setting()), KeyHistory()))
        await asyncio.sleep(1.5)
        sampler.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled(), [type_of(record) for _, record in journal.records]

    assert run(process()) == (True, ["step"])


def test_a_solver_that_swallows_the_cancellation_of_a_shutdown_leaves_nothing_wrong_behind() -> None:
    async def stubborn(sample: Sample, ctx: Context) -> str:
        try:
            return await say(ctx, "a")
        except asyncio.CancelledError:
            return "cut short"

    async def process() -> list[str]:
        journal = MemoryJournal()
        sampler = Sampler(journal, lambda *_: None)
        task = asyncio.ensure_future(sampler.answer(ticket(), kit(stubborn, World(), Setting()), KeyHistory()))
        await asyncio.sleep(0.5)
        sampler.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return [type_of(record) for _, record in journal.records]

    assert run(process()) == []


def test_a_solver_may_go_on_after_a_failed_step() -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        try:
            return await say(ctx, "a")
        except StepFailedError:
            return await say(ctx, "b")

    story = answer(solve, World(failing={"a": "server"}))
    assert (story.text, story.kinds) == ("b#2", [])


def test_scores_name_the_answer_they_judge_and_the_last_one_says_so() -> None:
    def right(sample: Sample, answer: Answer) -> bool:
        return True

    def length(sample: Sample, answer: Answer) -> dict[str, int]:
        return {"characters": 3, "words": 1}

    story = answer(three_steps, World(), Setting(scorers=(right, length)))
    finished = story.journal.records[3][0]
    assert [(each.of, each.scorer, each.last) for each in story.scores] == [
        (finished, "right", False),
        (finished, "length.characters", False),
        (finished, "length.words", True),
    ]


def test_a_scorer_that_fails_is_a_failure_and_the_others_go_on() -> None:
    def broken(sample: Sample, answer: Answer) -> bool:
        raise ValueError("cannot say")

    def odd(sample: Sample, answer: Answer) -> object:
        return object()

    def leaving(sample: Sample, answer: Answer) -> bool:
        sys.exit(3)

    def right(sample: Sample, answer: Answer) -> bool:
        return True

    story = answer(three_steps, World(), Setting(scorers=(broken, odd, leaving, right)))
    assert [each.failure is not None for each in story.scores] == [True, True, True, False]
    assert [each.value for each in story.scores] == [None, None, None, True]
    assert story.scores[-1].last


def test_what_a_tool_failed_with_is_told_again_after_a_failure_of_infrastructure() -> None:
    """It is what the model was told: called again, it would say something else, and all that follows be bought anew."""
    made: list[int] = []

    async def charge(n: int) -> str:
        made.append(n)
        raise ValueError(f"no. {len(made)}")

    async def solve(sample: Sample, ctx: Context) -> str:
        await say(ctx, "a")
        try:
            await ctx.call(charge, {"n": 1})
        except ToolFailedError as error:
            await say(ctx, f"b after {error.failure.message}")
        return await say(ctx, "c")

    world = World()
    failing_until(world, "c", "server", 1)
    story = answer(solve, world)
    assert (made, story.asked) == ([1], ["a", "b after ValueError: no. 1", "c", "c"])


@pytest.mark.parametrize("solve", [partial(best_of, n=5), partial(majority, n=5)])
def test_answers_that_were_on_their_way_when_another_failed_are_kept(solve: Any) -> None:
    world = World(latency=lambda question, number: {1: 1.0}.get(number, 5.0))
    failing_until(world, "question", "server", 1)

    async def several(sample: Sample, ctx: Context) -> Answer:
        found: Answer = await solve(sample, ctx)
        return found

    story = answer(several, world)
    assert story.asked.count("question") == 6


@pytest.mark.parametrize("late", [False, True])
def test_what_a_solver_of_ones_own_asked_at_the_same_time_is_kept_too(late: bool) -> None:
    """`gather` raises with the first failure: the others are paid for, and the next attempt gets them."""

    async def solve(sample: Sample, ctx: Context) -> str:
        return " ".join(await asyncio.gather(say(ctx, "long"), say(ctx, "short")))

    world = World(latency=lambda question, number: 5.0 if question == "long" else 1.0)
    failing_until(world, "short", "server", 1)
    if not late:
        story = answer(solve, world)
        assert sorted(story.asked) == ["long", "short", "short"]
        assert story.finished[0].spent.replayed == 1
        return
    first = answer(solve, world, Setting(retries=0))
    assert first.kinds == ["server"]
    again = answer(solve, world, past=past_of(first), first=100)
    assert again.asked == ["short"]
    assert again.text.startswith("long#1 ")


def test_what_is_under_way_when_another_failed_has_no_longer_than_the_sample() -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        return " ".join(await asyncio.gather(say(ctx, "long"), say(ctx, "short")))

    world = World(latency=lambda question, number: 1000.0 if question == "long" else 1.0)
    failing_until(world, "short", "server", 9)
    story = answer(solve, world, Setting(retries=0, seconds=10.0))
    assert story.kinds == ["server"]
    assert [each.step.failure is not None for each in story.journal.steps()] == [True]


def test_who_asks_in_the_background_has_ended_before_what_belongs_to_the_attempt_is_closed() -> None:
    told: list[str] = []

    async def slow(ctx: Workplace) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            told.append("ended")
        return ""

    class Closing:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None:
            told.append("closed")

    async def solve(sample: Sample, ctx: Context) -> str:
        await ctx.workplace.keep("thing", Closing)
        background = asyncio.ensure_future(ctx.call(slow))
        await asyncio.sleep(0.1)
        assert not background.done()
        return "done"

    story = answer(solve, World())
    assert (story.text, told) == ("done", ["ended", "closed"])


def test_what_went_on_at_the_same_time_counts_once_against_the_time_limit() -> None:
    def at(end: float, seconds: float) -> RecordedStep:
        return RecordedStep(1, Step(0, "solve/1", "q", seconds=seconds), end)

    assert working_seconds([at(10.0, 4.0), at(10.0, 4.0), at(11.0, 2.0)]) == pytest.approx(5.0)
    assert working_seconds([at(10.0, 4.0), at(20.0, 4.0)]) == pytest.approx(8.0)
    assert working_seconds([at(0.0, 4.0), at(0.0, 4.0)]) == pytest.approx(8.0)


@pytest.mark.parametrize(("text", "looks", "odd"), [("", True, 1), ("8", True, 0), ("", False, 0)])
def test_an_empty_answer_is_counted_as_an_anomaly_where_somebody_looks(text: str, looks: bool, odd: int) -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        return text

    ends: list[Outcome] = []
    plain = kit(solve, World(), Setting())
    looking = msgspec.structs.replace(plain, expected={"model": AnswerExpectations()} if looks else None)
    sampler = Sampler(MemoryJournal(1), lambda _, outcome: ends.append(outcome))
    run(sampler.answer(ticket(), looking, KeyHistory()))
    assert [each.anomalies for each in ends] == [odd]
