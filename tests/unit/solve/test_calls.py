"""Tools as durable steps: done once, delivered again after a crash, and never blindly done twice."""

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.sample import KeyHistory
from holdfast.records.samples import Sample
from holdfast.solve import AttemptLimits, Context, LimitError, ToolFailedError, UnconfirmedCall, tool
from holdfast.solve.tools.tool import Tool
from tests.unit.engine.attempts_stage import Setting, answer, past_of
from tests.unit.solve.stage import World, play, prefixes, say


class Bell:
    """A tool that counts how often it was rung."""

    def __init__(self, *, repeatable: bool = True, failing: bool = False, recover: Any = None) -> None:
        self.rung: list[int] = []

        @tool(repeatable=repeatable, recover=recover)
        async def ring(times: int = 1) -> dict[str, Any]:
            """Ring a bell."""
            self.rung.append(times)
            await asyncio.sleep(1)
            if failing:
                raise ValueError("it is cracked")
            return {"rung": len(self.rung)}

        self.tool: Tool = ring


def test_a_call_is_made_once_whatever_a_kill_leaves() -> None:
    bell = Bell()

    async def solve(ctx: Context) -> list[Any]:
        first = await ctx.call(bell.tool, {"times": 2})
        said = await say(ctx, "and now?")
        return [first, said, await ctx.call(bell.tool, {"times": 2}), await ctx.call(bell.tool)]

    world = World()
    whole = play(solve, world)
    assert whole.result == [{"rung": 1}, "and now?#1", {"rung": 2}, {"rung": 3}]
    for left in prefixes(whole.recorded):
        before = len(bell.rung)
        again = play(solve, World(), left)
        calls = sum(each.step.kind == "call" for each in left)
        assert len(bell.rung) - before == 3 - calls
        assert again.result[:calls] == whole.result[:calls] or not calls


def test_what_a_tool_raises_is_seen_by_the_solver_live_and_replayed() -> None:
    bell = Bell(failing=True)

    async def solve(ctx: Context) -> str:
        try:
            await ctx.call(bell.tool)
        except ToolFailedError as error:
            return error.failure.message
        return "no"

    whole = play(solve, World())
    assert whole.result == "ValueError: it is cracked"
    assert play(solve, World(), whole.recorded).result == whole.result
    assert bell.rung == [1]


def test_a_tool_that_takes_too_long_has_failed() -> None:
    @tool(seconds=2)
    async def sleep() -> None:
        """Sleep."""
        await asyncio.sleep(1_000)

    async def solve(ctx: Context) -> Any:
        return await ctx.call(sleep)

    result = play(solve, World()).result
    assert isinstance(result, ToolFailedError)
    assert str(result) == "tool: sleep took longer than 2 s"


def test_what_is_handed_on_is_what_json_makes_of_it_and_the_solvers_own() -> None:
    async def pair(value: int) -> Any:
        return {"value": (value, [])}

    async def solve(ctx: Context) -> Any:
        found = await ctx.call(pair, {"value": 4})
        found["value"].append("mine")
        return [found, await ctx.call(pair, {"value": 4})]

    whole = play(solve, World())
    assert whole.result == [{"value": [4, [], "mine"]}, {"value": [4, []]}]
    assert play(solve, World(), whole.recorded).result == whole.result


def test_arguments_that_do_not_fit_are_a_failure_of_the_call() -> None:
    bell = Bell()

    async def solve(ctx: Context) -> Any:
        return await ctx.call(bell.tool, {"times": "often"})

    result = play(solve, World()).result
    assert isinstance(result, ToolFailedError)
    assert "Expected `int`" in str(result)
    assert bell.rung == []


def test_the_time_is_the_same_at_every_replay() -> None:
    async def solve(ctx: Context) -> list[datetime]:
        return [await ctx.now(), await ctx.now()]

    before = datetime.now(UTC)
    whole = play(solve, World())
    assert before <= whole.result[0] <= whole.result[1] <= datetime.now(UTC)
    assert play(solve, World(), whole.recorded).result == whole.result


def test_calls_count_as_steps() -> None:
    bell = Bell()

    async def solve(ctx: Context) -> Any:
        for _ in range(3):
            await ctx.call(bell.tool)

    assert isinstance(play(solve, World(), allowance=AttemptLimits(steps=2)).result, LimitError)


def test_sync_functions_are_called_in_a_thread(tmp_path: Path) -> None:
    def where() -> str:
        return threading.current_thread().name

    async def solve(sample: Sample, ctx: Context) -> str:
        return str(await ctx.call(where))

    task = holdfast.Task("t", [{"q": 1}], "{q}", solver=solve)
    with holdfast.run(task, ["mock"], id="r", store=str(tmp_path)) as run:
        (line,) = run.samples()
    assert line.output is not None
    assert "MainThread" not in line.output


# Tools that must not be repeated.


def once(bell: Bell) -> Any:
    async def solve(sample: Sample, ctx: Context) -> str:
        first = await say(ctx, "may I?")
        done = await ctx.call(bell.tool)
        return f"{first} {done}"

    return solve


def test_it_is_announced_before_it_is_done() -> None:
    bell = Bell(repeatable=False)
    story = answer(once(bell), World())
    assert [record.t for _, record in story.journal.records] == [
        b'"step"',
        b'"step.started"',
        b'"step"',
        b'"sample.finished"',
    ]


def test_cut_off_after_the_announcement_it_is_not_done_again_and_the_sample_fails_with_that_reason() -> None:
    bell = Bell(repeatable=False)
    world = World()
    first = answer(once(bell), world)
    cut_off = past_of(first, records=2)
    again = answer(once(bell), world, past=cut_off, first=3)
    assert (bell.rung, again.kinds) == ([1], ["unrepeatable"])
    assert "ring must not be repeated" in again.failures[0].failure.message
    assert again.asked == []
    failed = KeyHistory(cut_off.steps, {1: "unrepeatable"}, cut_off.begun)
    later = answer(once(bell), world, past=failed, first=10)
    assert (bell.rung, later.kinds) == ([1], ["unrepeatable"]), "nor by a resume that tries failed samples again"


def test_cut_off_before_the_announcement_it_is_done() -> None:
    bell = Bell(repeatable=False)
    first = answer(once(bell), World())
    again = answer(once(bell), World(), past=past_of(first, records=1), first=2)
    assert (len(bell.rung), again.kinds) == (2, [])


def test_its_own_recover_decides() -> None:
    async def look(times: int = 1) -> dict[str, Any]:
        return {"rung": "I have looked"}

    bell = Bell(repeatable=False, recover=look)
    world = World()
    first = answer(once(bell), world)
    again = answer(once(bell), world, past=past_of(first, records=2), first=3)
    assert (bell.rung, again.text) == ([1], "may I?#1 {'rung': 'I have looked'}")


@pytest.mark.parametrize("failing", [False, True])
def test_a_later_attempt_gets_what_it_came_to_even_after_an_error_of_the_solver(failing: bool) -> None:
    bell = Bell(repeatable=False, failing=failing)
    tries = 0

    async def solve(sample: Sample, ctx: Context) -> str:
        nonlocal tries
        tries += 1
        try:
            done = str(await ctx.call(bell.tool))
        except ToolFailedError as error:
            done = error.failure.message
        if tries < 3:
            raise ValueError("of the solver")
        return done

    story = answer(solve, World(), Setting(retries=2))
    assert bell.rung == [1]
    assert story.kinds == ["solver", "solver"]
    assert story.text == ("ValueError: it is cracked" if failing else "{'rung': 1}")


def test_cancelled_while_it_was_being_done_it_is_not_done_again() -> None:
    bell = Bell(repeatable=False)

    async def solve(sample: Sample, ctx: Context) -> str:
        async with asyncio.timeout(0.5):
            await ctx.call(bell.tool)
        return "done"

    story = answer(solve, World(), Setting(retries=2))
    assert bell.rung == [1]
    assert story.kinds == ["solver", "unrepeatable"]


def test_unsure_calls_are_known_by_their_records() -> None:
    bell = Bell(repeatable=False)
    past = past_of(answer(once(bell), World()), records=2)
    (left,) = past.unsure()
    assert isinstance(left, UnconfirmedCall)
    assert left.started.called is not None
    assert (left.started.called.tool, left.started.called.arguments) == ("ring", {})
