"""What a solver is given: randomness of its own, its first messages, answers as they were recorded."""

from holdfast.records.samples import Message
from holdfast.solve import AttemptResources, Context, Scope, Steps
from tests.unit.solve.stage import KEY, SAMPLE, MemoryJournal, World, play, run


def draws(seed: str) -> list[float]:
    async def made() -> list[float]:
        steps = Steps(Scope(0, KEY, "solve/1"), MemoryJournal())
        ctx = Context(SAMPLE, [], steps, seed, AttemptResources({}))
        return [ctx.random.random() for _ in range(5)]

    return run(made())


def test_randomness_is_the_same_for_the_same_seed_key_and_attempt() -> None:
    assert draws("0/task/model/1/1/1") == draws("0/task/model/1/1/1")


def test_randomness_differs_between_seeds_keys_and_attempts() -> None:
    seeds = ["0/task/model/1/1/1", "1/task/model/1/1/1", "0/task/model/2/1/1", "0/task/model/1/1/2"]
    assert len({tuple(draws(seed)) for seed in seeds}) == 4


def test_without_messages_the_first_messages_of_the_sample_are_asked() -> None:
    async def solve(ctx: Context) -> str:
        return (await ctx.generate()).text

    world = World()
    play(solve, world)
    assert world.requests == [[{"role": "user", "content": "question"}]]


def test_a_string_is_asked_as_a_users_message() -> None:
    async def solve(ctx: Context) -> str:
        return (await ctx.generate("why?")).text

    world = World()
    play(solve, world)
    assert world.requests == [[{"role": "user", "content": "why?"}]]


def test_a_solver_may_continue_appending_to_the_list_that_it_sent() -> None:
    async def solve(ctx: Context) -> None:
        messages: list[Message] = [{"role": "user", "content": "a"}]
        answer = await ctx.generate(messages)
        messages.append(answer.message)
        messages.append({"role": "user", "content": "b"})
        await ctx.generate(messages)

    world = World()
    played = play(solve, world)
    assert [len(request) for request in world.requests] == [1, 3]
    assert play(solve, world, played.recorded).asked == []


def test_a_replayed_answer_is_equal_to_the_one_first_delivered() -> None:
    async def solve(ctx: Context) -> object:
        return await ctx.generate("q")

    world = World()
    first = play(solve, world)
    assert play(solve, world, first.recorded).result == first.result
