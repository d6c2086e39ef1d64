"""The story of one key: attempts that failed and what the next one was given again, in words and as structs."""

import re
from pathlib import Path

import holdfast
from holdfast.report import KeyStory

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
FAILURES = [{"kind": "server", "every": 1, "times": 1}]


@holdfast.solver
async def asks_twice(sample: holdfast.Sample, ctx: holdfast.Context) -> holdfast.Answer:
    first = await ctx.generate("one", temperature=0.5)
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "[1]"}}
    said: list[holdfast.Message] = [
        {"role": "user", "content": "one\x1b[31m\ntwo"},
        {**first.message, "tool_calls": [call]},
        {"role": "tool", "content": ["a part"], "tool_call_id": "1"},
    ]
    return await ctx.generate(said, tools=TOOLS, role="adviser")


def story(folder: Path, retries: int) -> KeyStory:
    """Of a sample whose every request to a role fails once, with so many attempts."""
    adviser = {"provider": "mock", "options": {"reply": "done", "failures": FAILURES}, "request_retries": 0}
    task = holdfast.Task("t", [{"id": "a", "q": "?"}], "{q}", solver=asks_twice, sample_retries=retries)
    evaluated = {"name": "m", "provider": "mock", "price": {"input": 0.001, "output": 0.001}}
    with holdfast.run(task, models=[evaluated], roles={"adviser": adviser}, store=str(folder)) as run:
        return run.show("t/m/a/1")


def test_an_attempt_that_failed_stands_before_the_one_that_was_given_its_steps_again(tmp_path: Path) -> None:
    told = story(tmp_path, 1)
    first = told.attempts[0]
    assert (first.attempt, first.status, len(first.steps)) == (1, "failed", 2)
    assert first.failure is not None
    assert (first.failure.kind, first.final) == ("server", False)
    assert "role=" in first.failure.detail
    last = told.attempts[-1]
    assert last.spent is not None
    assert (last.attempt, last.spent.replayed) == (2, 1)


def test_the_words_tell_parameters_tools_calls_roles_and_failures(tmp_path: Path) -> None:
    said = str(story(tmp_path, 0))
    for text in (
        "t/m/a/1  failed",
        'params {"temperature":0.5}',
        "turn 2  live of role adviser",
        "tools add",
        "[tool call] add([1])",
        "[tool] a part",
        "    server: ",
        "failed: server: ",
        "return await ctx.generate(said, tools=TOOLS",
    ):
        assert text in said, said
    assert "\x1b" not in said
    assert re.search(r"in, \d+ out, \$0\.0{7,9}[1-9]\d{3},", said), said
