"""A recorded request holds only what is new, and with the steps before it all of it can be read again."""

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
import xxhash

from holdfast.records.facts import Step, StoredRequest
from holdfast.records.samples import Answer, Message
from holdfast.solve import Context, RecordedStep, StepFailedError
from holdfast.solve.conversations import Conversations, request_head
from tests.unit.solve.stage import World, play


def messages_of(step: RecordedStep, earlier: Mapping[int, RecordedStep]) -> list[Message]:
    """The messages of a recorded request, as `StoredRequest` says how to find them."""
    asked = step.step.asked
    assert asked is not None
    if not asked.after:
        return asked.new
    before = earlier[asked.after]
    assert before.step.answer is not None
    return [*messages_of(before, earlier), before.step.answer.message][: asked.keep] + asked.new


def read_back(recorded: Sequence[RecordedStep]) -> list[list[Message]]:
    by_number = {each.n: each for each in recorded}
    return [messages_of(each, by_number) for each in recorded if each.step.answer is not None]


async def converse(ctx: Context, name: str, turns: int) -> None:
    """After each answer the speaker works for a while, as with a tool; meanwhile the others receive theirs."""
    messages: list[Message] = [{"role": "system", "content": f"you are {name}"}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{name} turn {turn} " + "long " * 40})
        messages.append((await ctx.generate(messages)).message)
        await asyncio.sleep(0.1)


def sizes(recorded: Sequence[RecordedStep]) -> list[int]:
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


def test_a_conversation_that_continues_after_a_replay_still_stores_only_what_is_new() -> None:
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


def test_an_answer_that_the_solver_changes_in_place_is_recorded_as_it_was_delivered() -> None:
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


LONG_TOOLS = [{"name": "search", "description": "Looks for something. " * 10}]
LONG_PARAMS: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "found", "schema": {}}}
}


async def talk_with_tools(ctx: Context, turns: int = 4, tools: list[dict[str, Any]] = LONG_TOOLS) -> None:
    messages: list[Message] = [{"role": "user", "content": "go"}]
    for turn in range(turns):
        messages.append((await ctx.generate(messages, tools=tools, **LONG_PARAMS)).message)
        messages.append({"role": "user", "content": f"turn {turn}"})


def asked_in(recorded: Sequence[RecordedStep]) -> dict[int, StoredRequest]:
    return {each.n: each.step.asked for each in recorded if each.step.asked is not None}


def test_tools_and_parameters_are_held_once_and_later_requests_refer_to_the_step_that_holds_them() -> None:
    asked = asked_in(play(talk_with_tools, World()).recorded)
    first, *later = asked.values()
    assert (first.tools, first.params, first.needs) == (LONG_TOOLS, LONG_PARAMS, set())
    assert [(each.tools, each.tools_of, each.params, each.params_of) for each in later] == [([], 1, {}, 1)] * 3
    assert [each.filled(asked).tools for each in asked.values()] == [LONG_TOOLS] * 4
    assert [each.filled(asked).params for each in asked.values()] == [LONG_PARAMS] * 4


def test_other_tools_are_held_by_the_first_step_that_has_them() -> None:
    other = [{"name": "write", "description": "Writes something. " * 10}]

    async def solve(ctx: Context) -> None:
        for tools in (LONG_TOOLS, other, LONG_TOOLS, other, []):
            await ctx.generate("q", tools=tools)

    asked = asked_in(play(solve, World()).recorded)
    assert [each.tools_of for each in asked.values()] == [0, 0, 1, 2, 0]
    assert [each.filled(asked).tools for each in asked.values()] == [LONG_TOOLS, other, LONG_TOOLS, other, []]


def test_tools_are_referred_to_after_a_replay_and_never_those_of_a_request_that_failed() -> None:
    world = World()
    first = play(lambda ctx: talk_with_tools(ctx, 2), world)
    again = play(lambda ctx: talk_with_tools(ctx, 5), world, first.recorded)
    assert [each.tools_of for each in asked_in(again.new).values()] == [1, 1, 1]
    world.failing["go"] = "server"

    async def fails_first(ctx: Context) -> None:
        for question in ("go", "on", "on"):
            with contextlib.suppress(StepFailedError):
                await ctx.generate(question, tools=LONG_TOOLS)

    asked = asked_in(play(fails_first, world).recorded)
    assert [each.tools_of for each in asked.values()] == [0, 0, 2]


def changed(chance: random.Random, messages: list[Any]) -> list[Any]:
    """As a solver continues: more at the end, something in place, something taken away, or nothing."""
    new = {"role": "user", "content": chance.choice(["a", "b", 1, 1.0, True, None, ["a"], "ä"])}
    what = chance.randrange(6)
    if what < 3 or not messages:
        messages.append(new)
    elif what == 3:
        messages[chance.randrange(len(messages))]["content"] = new["content"]
    elif what == 4:
        del messages[chance.randrange(len(messages)) :]
    return messages


@pytest.mark.parametrize("seed", range(30))
def test_a_request_is_digested_and_read_back_as_if_it_were_looked_at_alone(seed: int) -> None:
    chance = random.Random(seed)
    conversations = Conversations()
    talks: list[list[Any]] = [[], [], []]
    held: dict[int, list[Any]] = {}
    for n in range(1, 60):
        messages = changed(chance, chance.choice(talks))
        params, tools = {"seed": chance.randrange(2)}, chance.choice([[], LONG_TOOLS])
        said = conversations.take(messages, request_head({"model": "m"}, params))
        whole = msgspec.json.encode([{"model": "m"}, params, messages, tools], order="deterministic")
        assert said.digest(tools) == xxhash.xxh3_128_hexdigest(whole)
        asked = conversations.asked(said, "", params, tools)
        read = held.get(asked.after, [])[: asked.keep] + asked.new
        assert msgspec.json.encode(read) == msgspec.json.encode(messages)
        if chance.random() < 0.8:
            answer = Answer("", {"role": "assistant", "content": str(chance.randrange(3))})
            conversations.answered(n, Step(0, "", "", asked=asked, answer=answer), said)
            held[n] = [*msgspec.json.decode(msgspec.json.encode(messages)), answer.message]
            if chance.random() < 0.7:
                messages.append(dict(answer.message))
