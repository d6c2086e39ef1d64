"""A recorded request holds only what is new, and with the steps before it all of it can be read again."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from holdfast.records.exchange import Message
from holdfast.solve import Context, Recorded
from tests.unit.solve.stage import World, play


def messages_of(step: Recorded, earlier: Mapping[int, Recorded]) -> list[Message]:
    """The messages of a recorded request, as `Asked` says how to find them."""
    asked = step.step.asked
    assert asked is not None
    if not asked.after:
        return asked.new
    before = earlier[asked.after]
    assert before.step.answer is not None
    return [*messages_of(before, earlier), before.step.answer.message][: asked.keep] + asked.new


def read_back(recorded: Sequence[Recorded]) -> list[list[Message]]:
    by_number = {each.n: each for each in recorded}
    return [messages_of(each, by_number) for each in recorded if each.step.answer is not None]


async def converse(ctx: Context, name: str, turns: int) -> None:
    """After each answer the speaker works for a while, as with a tool; meanwhile the others are told theirs."""
    messages: list[Message] = [{"role": "system", "content": f"you are {name}"}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{name} turn {turn} " + "long " * 40})
        messages.append((await ctx.generate(messages)).message)
        await asyncio.sleep(0.1)


def sizes(recorded: Sequence[Recorded]) -> list[int]:
    return [len(msgspec.json.encode(each.step)) for each in recorded]


def test_a_long_conversation_grows_with_its_content_not_with_its_turns_squared() -> None:
    played = play(lambda ctx: converse(ctx, "one", 60), World(words=40))
    grown = sizes(played.recorded)
    assert len(grown) == 60
    assert max(grown[1:]) <= 1.1 * min(grown[1:])


def test_every_request_of_a_long_conversation_can_be_read_back() -> None:
    world = World()
    played = play(lambda ctx: converse(ctx, "one", 60), world)
    assert read_back(played.recorded) == world.requests


@pytest.mark.parametrize("count", [2, 8, 12, 24])
def test_conversations_side_by_side_in_one_sample_do_not_grow_with_their_turns_squared(count: int) -> None:
    async def solve(ctx: Context) -> None:
        await asyncio.gather(*(converse(ctx, f"speaker {number}", 20) for number in range(count)))

    world = World(words=40)
    played = play(solve, world)
    assert sorted(map(str, read_back(played.recorded))) == sorted(map(str, world.requests))
    grown = sizes(played.recorded)
    assert max(grown) <= 2 * min(grown)


def test_a_conversation_that_goes_on_after_a_replay_still_stores_only_what_is_new() -> None:
    world = World(words=40)
    first = play(lambda ctx: converse(ctx, "one", 30), world)
    again = play(lambda ctx: converse(ctx, "one", 60), world, first.recorded)
    assert len(again.asked) == 30
    assert max(sizes(again.new)) <= 1.1 * max(sizes(first.recorded[1:]))
    assert read_back(again.recorded) == world.requests[:30] + world.requests[30:]


def test_a_message_that_the_solver_changes_in_place_is_recorded_as_it_was_asked() -> None:
    async def solve(ctx: Context) -> None:
        messages: list[Message] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "first"}]
        await ctx.generate(messages)
        messages[1]["content"] = "second"
        await ctx.generate(messages)

    world = World()
    played = play(solve, world)
    assert read_back(played.recorded) == world.requests
    assert [each[1]["content"] for each in world.requests] == ["first", "second"]


def test_an_answer_that_the_solver_changes_in_place_is_recorded_as_it_was_told() -> None:
    async def solve(ctx: Context) -> None:
        messages: list[Message] = [{"role": "user", "content": "first"}]
        answer = await ctx.generate(messages)
        answer.message["content"] = "shortened"
        await ctx.generate([*messages, answer.message, {"role": "user", "content": "second"}])

    world = World()
    played = play(solve, world)
    assert read_back(played.recorded) == world.requests


def test_a_nested_message_that_the_solver_changes_in_place_is_recorded_as_it_was_asked() -> None:
    async def solve(ctx: Context) -> None:
        parts = [{"type": "text", "text": "a"}]
        messages: list[Message] = [{"role": "system", "content": parts}, {"role": "user", "content": "q"}]
        await ctx.generate(messages)
        parts.append({"type": "text", "text": "b"})
        await ctx.generate(messages)

    world = World()
    played = play(solve, world)
    assert read_back(played.recorded) == world.requests


def test_a_conversation_that_branches_off_refers_to_the_step_it_shares_most_with() -> None:
    async def solve(ctx: Context) -> None:
        trunk: list[Message] = [{"role": "user", "content": "trunk"}]
        trunk.append((await ctx.generate(trunk)).message)
        for name in ("a", "b"):
            await ctx.generate([*trunk, {"role": "user", "content": name}])

    world = World()
    played = play(solve, world)
    asked = [each.step.asked for each in played.recorded]
    assert [(each.keep, len(each.new)) for each in asked if each is not None] == [(0, 1), (2, 1), (2, 1)]
    assert read_back(played.recorded) == world.requests


def test_parameters_and_tools_of_a_request_are_recorded() -> None:
    async def solve(ctx: Context) -> None:
        await ctx.generate("q", tools=[{"name": "t"}], max_tokens=5)

    asked = play(solve, World()).recorded[0].step.asked
    assert asked is not None
    assert (asked.params, asked.tools, asked.new) == (
        {"max_tokens": 5},
        [{"name": "t"}],
        [{"role": "user", "content": "q"}],
    )
