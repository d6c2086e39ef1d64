"""Built-in solvers that combine solvers or several answers: one after another, or concurrently with one final answer.

Each part has its own messages and its own count of use. Its steps belong to the one sample, so a crash in the middle of
a part loses nothing that is recorded. The prompt texts below are part of recorded requests: changing one makes users
pay again.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.errors import HoldfastError, SpecError
from holdfast.records.samples import Answer, Message, Sample
from holdfast.solve.context import Context
from holdfast.solve.definition import Solver
from holdfast.solve.gather import together
from holdfast.solve.resources import Positive, Role
from holdfast.solve.tools.tool import Function

_CONTINUE = "Go on from here, and give your answer."
_ANSWER = "{answer}"
_NO_ROLE = Role()
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
        messages += [{"role": "assistant", "content": answer.text}, _user(prompt.replace(_ANSWER, answer.text))]
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


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
