"""Solvers of several turns: with tools, with a user, with a second look, with several tries.

None of them knows about crashes. Every request and every tool call is a durable step, so a sample that was cut off in
its fiftieth turn goes on with its fifty-first. They take only what a spec can say; a solver of your own is as short.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.records.exchange import Answer, Message, Sample
from holdfast.solve.context import Context, ToolFailedError
from holdfast.solve.finding import find_function, find_tools
from holdfast.solve.tools import Tool, result_text

_NO_TURNS = "There are no turns left. Give your final answer now, without calling a tool."
_CRITIQUE = "Read your answer again. What in it is wrong, missing or unclear? Then give the corrected final answer."
_SUMMARY = (
    "Summarise the conversation so far for yourself: the task, what was tried, what was found, what is left to do."
)
_KEPT_TURNS = 4


async def react(
    sample: Sample,
    ctx: Context,
    tools: Sequence[str] = (),
    turns: int = 20,
    tokens: int | None = None,
    compact_tokens: int | None = None,
) -> Answer:
    """Let the model call tools until it answers without one. Tool calls of one turn are made at once.

    After `turns` turns, or when `tokens` tokens are used, it is asked once more, without tools; limits of the sample
    end it. When a request had more than `compact_tokens` tokens, what came before the last turns becomes a summary.
    """
    named = {each.name: each for each in find_tools(tools)}
    schemas = [each.schema() for each in named.values()]
    messages = list(ctx.messages)
    for _ in range(turns):
        answer = await ctx.generate(messages, tools=schemas)
        messages.append(answer.message)
        if not answer.tool_calls:
            return answer
        messages += await asyncio.gather(*(_tool_message(ctx, named, call) for call in answer.tool_calls))
        if tokens is not None and ctx.used.tokens >= tokens:
            break
        if compact_tokens is not None and answer.usage.input_tokens > compact_tokens:
            messages = await _compacted(ctx, messages)
    return await ctx.generate([*messages, _user(_NO_TURNS)])


async def conversation(
    sample: Sample,
    ctx: Context,
    user: Sequence[str] = (),
    role: str = "user",
    turns: int = 5,
    until: str = "",
) -> Answer:
    """A talk of several turns. What the user says is written down (`user`), or comes from the model of a role, which
    sees the talk from the other side; it ends after `turns` answers, or when the user says `until`.
    """
    messages = list(ctx.messages)
    count = len(user) + 1 if user else turns
    for turn in range(count):
        answer = await ctx.generate(messages)
        messages.append(answer.message)
        if turn + 1 == count:
            break
        said = user[turn] if user else (await ctx.generate(_from_the_other_side(messages), role=role)).text
        if until and until in said:
            break
        messages.append(_user(said))
    return answer


async def feedback(sample: Sample, ctx: Context, check: str, iterations: int = 3) -> Answer:
    """Answer, be told what is wrong with it, answer again. `check` is `module:function`: it takes the text, the target
    and the row, and returns what is wrong, or nothing if it is right.
    """
    function = find_function(check)
    messages = list(ctx.messages)
    for iteration in range(max(iterations, 1)):
        answer = await ctx.generate(messages)
        if iteration + 1 == iterations:
            break
        wrong = await ctx.call(function, {"text": answer.text, "target": sample.target, "row": sample.row})
        if not wrong:
            break
        messages += [answer.message, _user(result_text(wrong))]
    return answer


async def critique(sample: Sample, ctx: Context, rounds: int = 1, prompt: str = _CRITIQUE) -> Answer:
    """Answer, then look at the answer again, `rounds` times."""
    messages = list(ctx.messages)
    answer = await ctx.generate(messages)
    for _ in range(rounds):
        messages += [answer.message, _user(prompt)]
        answer = await ctx.generate(messages)
    return answer


async def best_of(sample: Sample, ctx: Context, n: int = 5, choose: str = "", role: str = "") -> Answer:
    """The best of `n` answers: `choose` (`module:function`) takes their texts and the row and returns the index of one;
    without it, the model, or that of `role`, is asked.
    """
    answers = await asyncio.gather(*(ctx.generate() for _ in range(n)))
    texts = [answer.text for answer in answers]
    if choose:
        found = await ctx.call(find_function(choose), {"texts": texts, "row": sample.row})
        return answers[int(found)]
    listed = "\n\n".join(f"Answer {number}:\n{text}" for number, text in enumerate(texts, 1))
    question = f"{listed}\n\nWhich of these {n} answers is best? Say only its number."
    said = await ctx.generate([*ctx.messages, _user(question)], role=role)
    numbers = [int(each) for each in re.findall(r"\d+", said.text) if 1 <= int(each) <= n]
    return answers[numbers[-1] - 1 if numbers else 0]


async def majority(sample: Sample, ctx: Context, n: int = 5, pattern: str = "") -> Answer:
    """What most of `n` answers say; of several, what was said first. With `pattern`, what its first group, or all of
    it, finds last in each.
    """
    answers = await asyncio.gather(*(ctx.generate() for _ in range(n)))
    said = [_extracted(answer.text, pattern) for answer in answers]
    most, _ = Counter(each for each in said if each).most_common(1)[0] if any(said) else (said[0], 0)
    return msgspec.structs.replace(answers[said.index(most)], text=most)


async def _tool_message(ctx: Context, tools: Mapping[str, Tool], call: dict[str, Any]) -> Message:
    """What comes of one call, as a message: also what is wrong with it, so that the model can do better."""
    function = call.get("function")
    name, given = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)
    tool = tools.get(str(name))
    if tool is None:
        content = f"error: there is no tool {name!r}; there are: {', '.join(tools) or 'none'}"
    else:
        try:
            content = result_text(await ctx.call(tool, _decoded(given)))
        except ValueError as error:
            content = f"error: the arguments are not a JSON object: {error}"
        except ToolFailedError as error:
            content = f"error: {error.failure.message}"
    return {"role": "tool", "tool_call_id": str(call.get("id", "")), "content": content}


def _decoded(given: Any) -> dict[str, Any]:
    decoded = json.loads(given or "{}") if isinstance(given, str) or given is None else given
    if not isinstance(decoded, dict):
        raise ValueError(f"it is a {type(decoded).__name__}")
    return decoded


async def _compacted(ctx: Context, messages: list[Message]) -> list[Message]:
    """The first messages, a summary, and the last turns whole."""
    head = len(ctx.messages)
    turns = [index for index in range(head, len(messages)) if messages[index].get("role") == "assistant"]
    if len(turns) <= _KEPT_TURNS:
        return messages
    cut = turns[-_KEPT_TURNS]
    summary = await ctx.generate([*messages[:cut], _user(_SUMMARY)])
    return [*messages[:head], _user(f"What happened so far:\n{summary.text}"), *messages[cut:]]


def _from_the_other_side(messages: Sequence[Message]) -> list[Message]:
    """The same talk as its user hears it: who answers is who asked. What the system said is not for the user."""
    other = {"user": "assistant", "assistant": "user"}
    return [
        {"role": other[message["role"]], "content": message.get("content") or ""}
        for message in messages
        if message.get("role") in other
    ]


def _extracted(text: str, pattern: str) -> str:
    if not pattern:
        return text.strip()
    found = list(re.finditer(pattern, text))
    return "" if not found else (found[-1].group(1) if found[-1].re.groups else found[-1].group()).strip()


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
