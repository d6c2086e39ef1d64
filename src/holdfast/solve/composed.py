"""Solvers made of solvers, and of several answers: one after another, or at once with one answer made of all.

Each part works with messages of its own and counts by itself what it uses; its steps are those of the one sample, so a
crash in the middle of any part costs nothing that is recorded.
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

_GO_ON = "Go on from here, and give your answer."
_ANSWER = "{answer}"
_NO_ROLE = Role()
Pattern = re.Pattern[str] | None
Join = Literal["best", "majority"] | Function


async def chain(sample: Sample, ctx: Context, solvers: Sequence[Solver], prompts: list[str] | None = None) -> Answer:
    """One solver after another: each is given the talk so far, the answer of the one before it, and what its prompt
    says, with that answer where `{answer}` stands. `prompts` are those of the second solver, the third, and so on.
    """
    messages = list(ctx.messages)
    answer = await solvers[0].solve_part(sample, ctx, list(messages))
    said = prompts or []
    for index, solver in enumerate(solvers[1:]):
        prompt = said[index] if index < len(said) else _GO_ON
        messages += [{"role": "assistant", "content": answer.text}, _user(prompt.replace(_ANSWER, answer.text))]
        answer = await solver.solve_part(sample, ctx, list(messages))
    return answer


def fit_chain(given: dict[str, Any], place: str) -> dict[str, Any]:
    """A prompt that no solver would be given is a mistake."""
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
    """Several solvers at once, from the same messages, and one answer of all: the `best`, as the model, or that of
    `role`, says; what the `majority` says; or what a function makes of their texts and the row: the index of one, or a
    text of its own.
    """
    answers = await together(each.solve_part(sample, ctx, list(ctx.messages)) for each in solvers)
    if join == "majority":
        return _most(answers, pattern)
    return await _chosen(sample, ctx, answers, None if isinstance(join, str) else join, role)


async def best_of(
    sample: Sample, ctx: Context, n: Positive = 5, choose: Function | None = None, role: Role = _NO_ROLE
) -> Answer:
    """The best of `n` answers: `choose` takes their texts and the row and returns the index of one, or a text that it
    makes of all; without it, the model, or that of `role`, is asked.
    """
    answers = await together(ctx.generate() for _ in range(n))
    return await _chosen(sample, ctx, answers, choose, role)


async def majority(sample: Sample, ctx: Context, n: Positive = 5, pattern: Pattern = None) -> Answer:
    """What most of `n` answers say; of several, what was said first. With `pattern`, what its first group, or all of
    it, finds last in each.
    """
    return _most(await together(ctx.generate() for _ in range(n)), pattern)


async def _chosen(
    sample: Sample, ctx: Context, answers: Sequence[Answer], choose: Function | None, role: Role
) -> Answer:
    texts = [answer.text for answer in answers]
    if choose is not None:
        return _picked(await ctx.call(choose, {"texts": texts, "row": sample.row}), answers)
    listed = "\n\n".join(f"Answer {number}:\n{text}" for number, text in enumerate(texts, 1))
    question = f"{listed}\n\nWhich of these {len(texts)} answers is best? Say only its number."
    said = await ctx.generate([*ctx.messages, _user(question)], role=role.name)
    numbers = [int(each) for each in re.findall(r"\d+", said.text) if 1 <= int(each) <= len(texts)]
    return answers[numbers[-1] - 1 if numbers else 0]


def _picked(found: object, answers: Sequence[Answer]) -> Answer:
    """What a function chose, or made."""
    if isinstance(found, str):
        return Answer(found, {"role": "assistant", "content": found})
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < len(answers):
        return answers[found]
    raise HoldfastError(
        f"the function that chooses returned {found!r}; of {len(answers)} answers it must return the index of one, "
        "counted from 0, or a text"
    )


def _most(answers: Sequence[Answer], pattern: Pattern) -> Answer:
    said = [_extracted(answer.text, pattern) for answer in answers]
    most, _ = Counter(each for each in said if each).most_common(1)[0] if any(said) else (said[0], 0)
    return msgspec.structs.replace(answers[said.index(most)], text=most)


def _extracted(text: str, pattern: Pattern) -> str:
    if pattern is None:
        return text.strip()
    found = list(pattern.finditer(text))
    return "" if not found else (found[-1].group(1) if pattern.groups else found[-1].group()).strip()


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
