"""Code outside of the event loop, which takes a few milliseconds from an answer to what it does next: its races come
out as they did, and nothing goes live while it is about to ask for something recorded.
"""

import asyncio
from collections.abc import Mapping

from holdfast.solve import Context
from tests.unit.solve.stage import Solve, World, play, prefixes, say

NOTHING: Mapping[str, float] = {}


def race(before: Mapping[str, float] = NOTHING, after: Mapping[str, float] = NOTHING) -> Solve:
    """Two requests at once, and the order in which they were answered: as seen by branches that need so many seconds
    before they ask, and behind the answer.
    """

    async def solve(ctx: Context) -> str:
        assert ctx.openai_base_url
        order: list[str] = []

        async def branch(name: str) -> None:
            await asyncio.sleep(before.get(name, 0.0))
            await say(ctx, name)
            await asyncio.sleep(after.get(name, 0.0))
            order.append(name)

        await asyncio.gather(branch("a"), branch("b"))
        return "".join(order)

    return solve


def slower(question: str, nth: int) -> float:
    return {"a": 1.0, "b": 2.0}[question]


def test_what_is_not_recorded_does_not_go_live_before_a_slow_branch_has_asked_for_what_is() -> None:
    whole = play(race(), World(slower))
    assert whole.result == "ab"
    again = play(race(before={"a": 0.005}), World(lambda question, nth: 0.001), whole.recorded[:1])
    assert (again.result, again.asked) == ("ab", ["b"])


def test_answers_that_came_one_after_the_other_do_so_again() -> None:
    reacting = race(after={"a": 0.005})
    whole = play(reacting, World(slower))
    assert whole.result == "ab"
    for recorded in prefixes(whole.recorded):
        assert play(reacting, World(slower), recorded).result == "ab"


def test_answers_that_came_in_one_batch_are_handed_out_as_slowly_live() -> None:
    reacting = race(after={"a": 0.005})
    whole = play(reacting, World(lambda question, nth: 1.0), commit_seconds=1.0)
    assert whole.result == "ab"
    assert play(reacting, World(slower), whole.recorded).result == "ab"


def test_one_request_at_a_time_waits_for_nobody() -> None:
    async def solve(ctx: Context) -> float:
        assert ctx.openai_base_url
        for turn in range(20):
            await say(ctx, f"turn {turn}")
            await asyncio.sleep(0.003)
        return asyncio.get_running_loop().time()

    whole = play(solve, World())
    assert round(play(solve, World(), whole.recorded).result, 6) == 20 * 0.003
