"""Built-in solvers with several turns (tools, a user, feedback, a second look), those that combine solvers, and
`command`, which runs an external agent.

None of them handles crashes. Every request and every tool call is a durable step, so a sample that was interrupted in
its fiftieth turn continues there. The prompt texts below are part of recorded requests: changing one makes users pay
again.

Of a combined solver (`chain`, `fork`, `best_of`, `majority`) each part has its own messages and its own count of use.
Its steps belong to the one sample, so a crash in the middle of a part loses nothing that is recorded.

`command` starts a program for each sample, which reaches its model over HTTP. The program and everything that it
started end with the attempt. If the runner itself is killed, the program loses its address: its next request fails.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import HoldfastError, SpecError
from holdfast.records import Answer, Message, Sample
from holdfast.solve.context import Context, ToolFailedError, together
from holdfast.solve.definition import Solver
from holdfast.solve.mcp import ToolSource, offered
from holdfast.solve.prompts import columns_of, compile_fields
from holdfast.solve.resources import AgentBounds, Positive, Role
from holdfast.solve.tools.tool import Function, LimitError, Tool, ToolArgumentsError, decoded, result_text

_NO_TURNS = "There are no turns left. Give your final answer now, without calling a tool."
_CRITIQUE = "Read your answer again. What in it is wrong, missing or unclear? Then give the corrected final answer."
_SUMMARY = (
    "Summarise the conversation so far for yourself: the task, what was tried, what was found, what is left to do."
)
_KEPT_TURNS = 4
_BOUNDS = AgentBounds()
_NO_ROLE = Role()


async def react(
    sample: Sample,
    ctx: Context,
    tools: Sequence[ToolSource] = (),
    bounds: AgentBounds = _BOUNDS,
    compact_tokens: Positive | None = None,
) -> Answer:
    """Let the model call tools until it answers without one. Tool calls of one turn run concurrently.

    When a bound is reached, the model gets one last request without tools, for its answer. When a request had more
    than `compact_tokens` tokens, everything before the last turns is replaced by a summary.
    """
    named = await offered(ctx, tools)
    schemas = [each.schema() for each in named.values()]
    messages = list(ctx.messages)
    for _ in range(bounds.turns):
        answer = await ctx.generate(messages, tools=schemas)
        messages.append(answer.message)
        if not answer.tool_calls:
            return answer
        messages += await together(_tool_message(ctx, named, call) for call in answer.tool_calls)
        if bounds.are_reached(ctx.used):
            break
        if compact_tokens is not None and answer.usage.input_tokens > compact_tokens:
            messages = await _compact(ctx, messages)
    return await ctx.generate([*messages, _user(_NO_TURNS)])


async def conversation(
    sample: Sample,
    ctx: Context,
    user: list[str] | None = None,
    role: Role = _NO_ROLE,
    turns: Positive = 5,
    until: str = "",
) -> Answer:
    """A conversation of several turns. The user's messages are given (`user`), or come from the model of a role, which
    sees the conversation with swapped roles. It ends after `turns` answers, or when the user's message contains
    `until`.
    """
    messages = list(ctx.messages)
    count = len(user) + 1 if user else turns
    for turn in range(count):
        answer = await ctx.generate(messages)
        messages.append(answer.message)
        if turn + 1 == count:
            break
        reply = user[turn] if user else (await ctx.generate(_swap_roles(messages), role=role.name)).text
        if until and until in reply:
            break
        messages.append(_user(reply))
    return answer


def fit_conversation(given: dict[str, Any], place: str) -> dict[str, Any]:
    """Without given messages the role `user` plays the user, unless another role is named."""
    return given if given.get("user") else {"role": Role("user"), **given}


async def feedback(sample: Sample, ctx: Context, check: Function, max_iterations: Positive = 3) -> Answer:
    """Answer, receive what is wrong with it, answer again. `check` takes the text, the target and the row, and returns
    what is wrong, or nothing if the answer is right.
    """
    messages = list(ctx.messages)
    for _ in range(max_iterations - 1):
        answer = await ctx.generate(messages)
        wrong = await ctx.call(check, {"text": answer.text, "target": sample.target, "row": sample.row})
        if not wrong:
            return answer
        messages += [answer.message, _user(result_text(wrong))]
    return await ctx.generate(messages)


async def critique(
    sample: Sample, ctx: Context, rounds: Annotated[int, msgspec.Meta(ge=0)] = 1, prompt: str = _CRITIQUE
) -> Answer:
    """Answer, then review and correct the answer `rounds` times."""
    messages = list(ctx.messages)
    answer = await ctx.generate(messages)
    for _ in range(rounds):
        messages += [answer.message, _user(prompt)]
        answer = await ctx.generate(messages)
    return answer


async def _tool_message(ctx: Context, tools: Mapping[str, Tool], call: dict[str, Any]) -> Message:
    """Make one tool call and return its result as a message. Errors are messages too, so that the model can react."""
    function = call.get("function")
    name, given = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)
    tool = tools.get(str(name))
    if tool is None:
        content = f"error: there is no tool {name!r}; there are: {', '.join(tools) or 'none'}"
    else:
        try:
            content = result_text(await ctx.call(tool, decoded(given)))
        except ToolArgumentsError as error:
            content = f"error: {error}"
        except ToolFailedError as error:
            content = f"error: {error.failure.message}"
    return {"role": "tool", "tool_call_id": str(call.get("id", "")), "content": content}


async def _compact(ctx: Context, messages: list[Message]) -> list[Message]:
    """Return the first messages, a summary, and the last turns unchanged."""
    head = len(ctx.messages)
    turns = [index for index in range(head, len(messages)) if messages[index].get("role") == "assistant"]
    if len(turns) <= _KEPT_TURNS:
        return messages
    cut = turns[-_KEPT_TURNS]
    summary = await ctx.generate([*messages[:cut], _user(_SUMMARY)])
    return [*messages[:head], _user(f"What happened so far:\n{summary.text}"), *messages[cut:]]


def _swap_roles(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation as the user's side sees it: user and assistant swapped, without system messages."""
    other = {"user": "assistant", "assistant": "user"}
    return [
        {"role": other[message["role"]], "content": message.get("content") or ""}
        for message in messages
        if message.get("role") in other
    ]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


_CONTINUE = "Go on from here, and give your answer."
_ANSWER = "{answer}"
Pattern = re.Pattern[str] | None
Join = Literal["best", "majority"] | Function


async def chain(sample: Sample, ctx: Context, solvers: Sequence[Solver], prompts: list[str] | None = None) -> Answer:
    """Run solvers one after another. Each gets the conversation so far, the previous answer, and its prompt, in which
    `{answer}` is replaced by that answer. `prompts` begins with the prompt of the second solver.
    """
    messages = list(ctx.messages)
    answer = await solvers[0].solve_part(sample, ctx, list(messages))
    given = prompts or []
    for index, solver in enumerate(solvers[1:]):
        prompt = given[index] if index < len(given) else _CONTINUE
        messages += [
            {"role": "assistant", "content": answer.text},
            _user(prompt.replace(_ANSWER, answer.text)),
        ]
        answer = await solver.solve_part(sample, ctx, list(messages))
    return answer


def fit_chain(given: dict[str, Any], place: str) -> dict[str, Any]:
    """Reject prompts that no solver would get."""
    prompts, later = len(given.get("prompts") or ()), len(given["solvers"]) - 1
    if prompts > later:
        raise SpecError(f"{place}.prompts: there are {prompts}, and {later} solvers after the first, which has none")
    return given


async def fork(
    sample: Sample,
    ctx: Context,
    solvers: Sequence[Solver],
    join: Join = "best",
    role: Role = _NO_ROLE,
    pattern: Pattern = None,
) -> Answer:
    """Run several solvers concurrently from the same messages, and join their answers: the `best`, chosen by the model
    or that of `role`; the `majority`; or a function of their texts and the row that returns an index or a text.
    """
    answers = await together(each.solve_part(sample, ctx, list(ctx.messages)) for each in solvers)
    if join == "majority":
        return _most_common(answers, pattern)
    return await _choose(sample, ctx, answers, None if isinstance(join, str) else join, role)


async def best_of(
    sample: Sample, ctx: Context, n: Positive = 5, choose: Function | None = None, role: Role = _NO_ROLE
) -> Answer:
    """Return the best of `n` answers: `choose` takes their texts and the row and returns an index or a text; without it
    the model, or that of `role`, chooses.
    """
    answers = await together(ctx.generate() for _ in range(n))
    return await _choose(sample, ctx, answers, choose, role)


async def majority(sample: Sample, ctx: Context, n: Positive = 5, pattern: Pattern = None) -> Answer:
    """Return the most common of `n` answers; the first one on a tie. With `pattern`, compare its last match in each
    answer (its first group, if it has one).
    """
    return _most_common(await together(ctx.generate() for _ in range(n)), pattern)


async def _choose(
    sample: Sample, ctx: Context, answers: Sequence[Answer], choose: Function | None, role: Role
) -> Answer:
    texts = [answer.text for answer in answers]
    if choose is not None:
        return _pick(await ctx.call(choose, {"texts": texts, "row": sample.row}), answers)
    listed = "\n\n".join(f"Answer {number}:\n{text}" for number, text in enumerate(texts, 1))
    question = f"{listed}\n\nWhich of these {len(texts)} answers is best? Say only its number."
    reply = await ctx.generate([*ctx.messages, _user(question)], role=role.name)
    numbers = [int(each) for each in re.findall(r"\d+", reply.text) if 1 <= int(each) <= len(texts)]
    return answers[numbers[-1] - 1 if numbers else 0]


def _pick(found: object, answers: Sequence[Answer]) -> Answer:
    """Return the answer that a function chose by index, or the text that it made."""
    if isinstance(found, str):
        return Answer(found, {"role": "assistant", "content": found})
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < len(answers):
        return answers[found]
    raise HoldfastError(
        f"the function that chooses returned {found!r}; of {len(answers)} answers it must return the index of one, "
        "counted from 0, or a text"
    )


def _most_common(answers: Sequence[Answer], pattern: Pattern) -> Answer:
    texts = [_extract(answer.text, pattern) for answer in answers]
    most, _ = Counter(each for each in texts if each).most_common(1)[0] if any(texts) else (texts[0], 0)
    return msgspec.structs.replace(answers[texts.index(most)], text=most)


def _extract(text: str, pattern: Pattern) -> str:
    if pattern is None:
        return text.strip()
    found = list(pattern.finditer(text))
    return "" if not found else (found[-1].group(1) if pattern.groups else found[-1].group()).strip()


_STDERR_MAX = 2000
_ENDING_SECONDS = 1.0
"""How long a program may take to end after SIGTERM, before SIGKILL."""
_KEY = "holdfast"
"""Clients require a key; the address itself is the secret."""
_PASSED = {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


async def command(
    sample: Sample, ctx: Context, run: Sequence[str], seconds: float | None = None, env: Sequence[str] = ()
) -> Answer:
    """Run a program that is an agent. Its standard output is the answer; an exit code other than 0 is a failure.

    OPENAI_BASE_URL (and OPENAI_API_BASE, the older name) in its environment lead to the evaluated model, or to a role's
    model if a request names that role. Of this process's environment it gets the locale, the paths and the user, and
    the variables that `env` names, so that it never sees the keys of models.

    `{prompt}` in an argument is the task's prompt, `{input}` the sample's input, `{id}` its id, any other `{name}` a
    column of its row; without any of them the prompt is its standard input. After `seconds` it is killed.

    The program is not a step, but its requests are: after a crash it runs again from the start and receives the
    recorded answers. Its other effects happen again.
    """
    prompt = prompt_of(ctx.messages)
    filled = [_fill(part, sample, prompt) for part in run]
    given = prompt if not any(columns_of(part) for part in run) else ""
    environ = environment_for(ctx.openai_base_url, env)
    process = await _start(filled, environ)
    try:
        with ctx.outside():
            async with asyncio.timeout(seconds):
                out, err = await _communicate(process, given.encode())
    except TimeoutError:
        raise LimitError(f"{filled[0]} took longer than {seconds:g} s", "timeout") from None
    finally:
        await _end(process)
    if process.returncode:
        text = err.decode(errors="replace").strip()[-_STDERR_MAX:]
        raise HoldfastError(
            f"{filled[0]} ended with the exit code {process.returncode}: {text or 'nothing on standard error'}"
        )
    return Answer(out.decode(errors="replace").strip())


async def _communicate(process: asyncio.subprocess.Process, given: bytes) -> tuple[bytes, bytes]:
    """As `process.communicate`, also if the program ends without reading its input: then uvloop raises RuntimeError."""
    stdin, out, err = process.stdin, process.stdout, process.stderr
    assert stdin is not None
    assert out is not None
    assert err is not None

    async def feed() -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
            stdin.write(given)
            await stdin.drain()
        with contextlib.suppress(RuntimeError):
            stdin.close()

    _, *read = await asyncio.gather(feed(), out.read(), err.read())
    await process.wait()
    return read[0], read[1]


def fit_command(given: dict[str, Any], place: str) -> dict[str, Any]:
    """Check the arguments. SpecError if the command cannot be run."""
    if not given["run"]:
        raise SpecError(f'{place}.run: give the command as a list of texts: [python, agent.py, "{{prompt}}"]')
    for name in given.get("env", ()):
        if not _VARIABLE.fullmatch(name):
            raise SpecError(f"{place}.env: list the names of environment variables, without values: [MY_VARIABLE]")
    return given


def environment_for(
    base_url: str, named: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of a command: a few variables of this process, the address of the attempt, and no proxy
    for it. `python` is that of Holdfast's virtual environment, even if it is not activated.
    """
    passed = {name: value for name, value in environ.items() if name in _PASSED or name.startswith("LC_")}
    passed |= {name: environ[name] for name in named if name in environ}
    unproxied = ",".join(filter(None, (environ.get("NO_PROXY") or environ.get("no_proxy"), "127.0.0.1")))
    own = {"OPENAI_BASE_URL": base_url, "OPENAI_API_BASE": base_url, "OPENAI_API_KEY": _KEY}
    if sys.prefix != sys.base_prefix:
        own["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), environ.get("PATH", os.defpath)))
    return {**passed, **own, "NO_PROXY": unproxied, "no_proxy": unproxied}


def prompt_of(messages: Sequence[Message]) -> str:
    """Return the text of the last user message."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content or ""}]
            return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return ""


def _fill(part: str, sample: Sample, prompt: str) -> str:
    named = {**sample.row, "id": sample.id, "input": sample.input, "prompt": prompt}
    try:
        return compile_fields(part)(named)
    except KeyError as error:
        name = error.args[0]
        raise HoldfastError(f"run: {{{name}}} is neither prompt, input, id nor a column of the row") from None


async def _start(run: Sequence[str], environ: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start it in its own process group, so that what it starts can be killed with it."""
    try:
        return await asyncio.create_subprocess_exec(
            *run,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise HoldfastError(f"run: {run[0]} cannot be started: {error}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """End everything in its process group, even if the program itself has ended."""
    try:
        _signal(process, signal.SIGTERM)
        if process.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _ENDING_SECONDS)
    finally:
        _signal(process, signal.SIGKILL)
    if process.returncode is None:
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
        os.killpg(process.pid, number)
