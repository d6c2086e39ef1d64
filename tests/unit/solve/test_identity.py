"""Which recorded answer belongs to which request: the request, and how often it was made before."""

import asyncio
import itertools
from typing import Any

import pytest

from holdfast.records.samples import Usage
from holdfast.solve import Context
from tests.unit.solve.stage import Played, World, answers_in, play, prefixes, say


async def twice(ctx: Context) -> list[str]:
    return [await say(ctx, "same"), await say(ctx, "same")]


def test_a_request_made_twice_on_purpose_gets_two_answers() -> None:
    played = play(twice, World())
    assert played.result == ["same#1", "same#2"]
    assert [(each.step.q, each.step.c) for each in played.recorded] == [
        (played.recorded[0].step.q, 0),
        (played.recorded[0].step.q, 1),
    ]


def test_a_request_made_twice_gets_its_two_answers_again() -> None:
    world = World()
    first = play(twice, world)
    again = play(twice, world, first.recorded)
    assert (again.result, again.asked, again.new) == (first.result, [], [])


def test_only_the_second_of_two_equal_requests_is_asked_if_only_the_first_was_recorded() -> None:
    world = World()
    first = play(twice, world)
    again = play(twice, world, first.recorded[:1])
    assert (again.result, again.asked) == (["same#1", "same#3"], ["same"])


@pytest.mark.parametrize(
    ("changed", "asked_again"),
    [({}, 0), ({"temperature": 0.0}, 0), ({"temperature": 0.5}, 1), ({"max_tokens": 5}, 1)],
)
def test_parameters_belong_to_the_identity_by_their_effective_value(changed: dict[str, Any], asked_again: int) -> None:
    async def plain(ctx: Context) -> str:
        return (await ctx.generate("q")).text

    async def with_parameters(ctx: Context) -> str:
        return (await ctx.generate("q", **changed)).text

    world = World()
    first = play(plain, world)
    assert len(play(with_parameters, world, first.recorded).asked) == asked_again


def test_tools_and_earlier_messages_belong_to_the_identity() -> None:
    def asking(tools: list[dict[str, str]], system: str) -> Played:
        async def solve(ctx: Context) -> str:
            messages = [{"role": "system", "content": system}, {"role": "user", "content": "q"}]
            return (await ctx.generate(messages, tools=tools)).text

        return play(solve, World())

    identities = [
        asking(tools, system).recorded[0].step.q
        for tools, system in [([], "a"), ([{"name": "t"}], "a"), ([], "b"), ([], "a")]
    ]
    assert len(set(identities)) == 3
    assert identities[0] == identities[3]


def branches(count: int, turns: int) -> "list[list[str]]":
    return [[f"turn {turn}" for turn in range(turns)] for _ in range(count)]


async def in_parallel(ctx: Context) -> list[list[str]]:
    """Branches that all ask the very same questions."""

    async def branch(questions: list[str]) -> list[str]:
        return [await say(ctx, question) for question in questions]

    return list(await asyncio.gather(*(branch(questions) for questions in branches(2, 3))))


LATENCIES = list(itertools.product([1.0, 2.5, 7.0], repeat=3))


@pytest.mark.parametrize("seconds", LATENCIES)
def test_branches_with_equal_requests_get_the_same_answers_after_every_kill(seconds: tuple[float, ...]) -> None:
    """The first asker of each question waits for `seconds`, the second for 2: every order of completion occurs."""

    def latency(question: str, nth: int) -> float:
        return seconds[int(question[-1])] if nth % 2 else 2.0

    world = World(latency)
    first = play(in_parallel, world)
    assert len(first.recorded) == 6
    for left in prefixes(first.recorded):
        again = play(in_parallel, world, left)
        kept = answers_in(left)
        for branch, before in zip(again.result, first.result, strict=True):
            assert [text if text in kept else None for text in branch] == [
                text if text in kept else None for text in before
            ]
        assert len(again.asked) == 6 - len(left)
        assert again.spent.replayed == len(left)
        assert again.spent.live == 6 - len(left)


@pytest.mark.parametrize("commit_seconds", [0.0, 0.5, 5.0])
def test_answers_that_become_durable_together_go_to_the_same_branches_again(commit_seconds: float) -> None:
    world = World(lambda question, nth: 3.0 / nth)
    first = play(in_parallel, world, commit_seconds=commit_seconds)
    for left in prefixes(first.recorded):
        again = play(in_parallel, world, left, commit_seconds=commit_seconds)
        kept = answers_in(left)
        for branch, before in zip(again.result, first.result, strict=True):
            assert [text for text in branch if text in kept] == [text for text in before if text in kept]
        assert len(again.asked) == 6 - len(left)


def test_a_story_of_three_kills_buys_every_answer_once() -> None:
    world = World(lambda question, nth: float(nth))
    recorded = play(in_parallel, world).recorded[:2]
    bought = len(world.asked)
    recorded = play(in_parallel, world, recorded).recorded[:4]
    recorded = play(in_parallel, world, recorded).recorded[:5]
    last = play(in_parallel, world, recorded)
    assert last.asked == ["turn 2"]
    assert bought == 6
    again = play(in_parallel, world, last.recorded)
    assert (again.result, again.asked) == (last.result, [])


def test_what_a_replay_saved_and_what_it_cost_are_distinguished() -> None:
    world = World()
    first = play(twice, world)
    assert (first.spent.usage, first.spent.saved) == (Usage(4, 2, requests=2), Usage())
    again = play(twice, world, first.recorded[:1])
    assert (again.spent.usage, again.spent.saved) == (Usage(2, 1, requests=1), Usage(2, 1, requests=1))
    assert again.spent.seconds == 2.0
