"""Runs on the real journal, cut off after every record: the same answers go to the same branches, nothing is bought
twice, races come out as they did.

The model numbers its answers over all processes of a story, so one that is bought again shows in the result.
"""

import asyncio
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.models import Request
from holdfast.records.samples import Answer, Sample, Usage
from holdfast.runs import Given
from holdfast.solve import Context, StepFailedError
from tests.unit.engine.runs import Asked, cut_after, given, go, lines, model, records, rows

SAMPLES = 3


class Numbered:
    """A model whose every answer has a number of its own, and whose pace is turned round with each process."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.process = 0
        self._numbers = itertools.count(1)

    async def reply(self, request: Request) -> Answer:
        question = str(request.messages[-1]["content"])
        self.asked.append(question)
        quick = question.startswith("left") == (self.process % 2 == 0)
        for _ in range(1 if quick else 400):
            await asyncio.sleep(0)
        text = f"{question}#{next(self._numbers)}"
        return Answer(text, {"role": "assistant", "content": text}, usage=Usage(1, 1))


async def side_by_side(sample: Sample, ctx: Context) -> str:
    """Two branches that ask the very same questions."""

    async def branch() -> list[str]:
        return [(await ctx.generate(f"{sample.id} turn {turn}")).text for turn in range(3)]

    return " | ".join(" ".join(texts) for texts in await asyncio.gather(branch(), branch()))


async def races(sample: Sample, ctx: Context) -> str:
    """Two races, one after the other; the losers are cancelled."""
    won = []
    for turn in range(2):
        tasks = [asyncio.ensure_future(ctx.generate(f"{side} {sample.id} {turn}")) for side in ("left", "right")]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        won.append(next(task for task in tasks if task in done).result().text)
    return " | ".join(won)


async def conversation(sample: Sample, ctx: Context) -> str:
    messages: list[dict[str, Any]] = []
    for turn in range(4):
        messages.append({"role": "user", "content": f"{sample.id} turn {turn}"})
        try:
            messages.append((await ctx.generate(messages)).message)
        except StepFailedError:
            messages.pop()
    return " | ".join(message["content"] for message in messages if message["role"] == "assistant")


def story(solver: Callable[..., Any], numbered: Numbered) -> Given:
    return given([Asked(rows=rows(SAMPLES), solver=solver)], [model("numbered", numbered.reply)])


def steps_of(store: Path) -> list[dict[str, Any]]:
    return [data for kind, data in records(store) if kind == "step"]


def answers_in(store: Path) -> dict[str, str]:
    return {line.key: line.output or "" for line in lines(store)}


def cut_at(store: Path, count: int) -> None:
    """Leave the first `count` records."""
    numbers = itertools.count(1)
    cut_after(store, lambda kind, data: next(numbers) <= count)


def identities(steps: list[dict[str, Any]]) -> set[tuple[int, str, int]]:
    return {(step["o"], step["q"], step.get("c", 0)) for step in steps}


def live(steps: list[dict[str, Any]]) -> set[str]:
    """Answers that were recorded and not taken back."""
    gone = identities([step for step in steps if step.get("cancelled")])
    return {
        step["answer"]["text"]
        for step in steps
        if "answer" in step and (step["o"], step["q"], step.get("c", 0)) not in gone
    }


def check_every_cut(tmp_path: Path, solver: Callable[..., Any], cuts: Callable[[int], range]) -> None:
    numbered = Numbered()
    wanted = story(solver, numbered)
    whole = tmp_path / "whole"
    go(whole, wanted)
    before = answers_in(whole)
    count = len(records(whole))
    for cut in cuts(count):
        store = tmp_path / f"cut-{cut}"
        shutil.copytree(whole, store)
        cut_at(store, cut)
        left = steps_of(store)
        numbered.process += 1
        numbered.asked.clear()
        ended = go(store, wanted)
        assert (ended.finished, ended.unfinished) == (SAMPLES, 0)
        new = steps_of(store)[len(left) :]
        assert not identities(left) & identities(new), f"cut at {cut}: asked again"
        kept = live(left)
        for key, text in answers_in(store).items():
            old = [part if part in kept else None for part in before[key].split(" | ")]
            now = [part if part in kept else None for part in text.split(" | ")]
            assert now == old, f"cut at {cut}: {key}"
        shutil.rmtree(store)


@pytest.mark.parametrize("solver", [races, conversation])
def test_a_run_cut_off_after_any_record_continues_with_what_it_has(tmp_path: Path, solver: Callable[..., Any]) -> None:
    check_every_cut(tmp_path, solver, lambda count: range(3, count + 1, 3))


@pytest.mark.long
@pytest.mark.parametrize("solver", [races, conversation])
def test_a_run_cut_off_after_every_record_continues_with_what_it_has(
    tmp_path: Path, solver: Callable[..., Any]
) -> None:
    check_every_cut(tmp_path, solver, lambda count: range(2, count + 1))


def branches_of(text: str) -> list[list[str]]:
    """Each branch's answers: `s0 turn 0#1 s0 turn 1#3 …`."""
    return [[f"s{part}".strip() for part in branch.split("s")[1:]] for branch in text.split(" | ")]


def check_branches(tmp_path: Path, cuts: Callable[[int], range]) -> None:
    numbered = Numbered()
    wanted = story(side_by_side, numbered)
    whole = tmp_path / "whole"
    go(whole, wanted)
    before = {key: branches_of(text) for key, text in answers_in(whole).items()}
    count = len(records(whole))
    for cut in cuts(count):
        store = tmp_path / f"cut-{cut}"
        shutil.copytree(whole, store)
        cut_at(store, cut)
        kept = live(steps_of(store))
        numbered.process += 1
        numbered.asked.clear()
        go(store, wanted)
        assert len(numbered.asked) == 6 * SAMPLES - len(kept), f"cut at {cut}"
        for key, text in answers_in(store).items():
            old = [[part for part in branch if part in kept] for branch in before[key]]
            now = [[part for part in branch if part in kept] for branch in branches_of(text)]
            assert now == old, f"cut at {cut}: {key}"
        shutil.rmtree(store)


def test_equal_requests_of_two_branches_get_the_same_answers_after_a_kill(tmp_path: Path) -> None:
    check_branches(tmp_path, lambda count: range(3, count + 1, 3))


@pytest.mark.long
def test_equal_requests_of_two_branches_get_the_same_answers_after_every_kill(tmp_path: Path) -> None:
    check_branches(tmp_path, lambda count: range(2, count + 1))


def partly(steps: int) -> Callable[[str, dict[str, Any]], bool]:
    """Whether a record comes before the last word and is no step beyond the first so many."""
    numbers = itertools.count(1)
    return lambda kind, data: kind != "run.completed" and (kind != "step" or next(numbers) <= steps)


def test_a_story_of_many_kills_buys_every_answer_once(tmp_path: Path) -> None:
    """Each process is killed one step further than the one before."""
    numbered = Numbered()
    wanted = story(conversation, numbered)
    go(tmp_path, wanted)
    for kept in range(4 * SAMPLES + 1):
        numbers = itertools.count(1)

        def within(
            kind: str, data: dict[str, Any], kept: int = kept, numbers: "itertools.count[int]" = numbers
        ) -> bool:
            return kind != "run.completed" and (kind != "step" or next(numbers) <= kept)

        cut_after(tmp_path, within)
        before = live(steps_of(tmp_path))
        numbered.asked.clear()
        go(tmp_path, wanted)
        assert (len(before), len(numbered.asked)) == (kept, 4 * SAMPLES - kept)
        assert before <= live(steps_of(tmp_path))
    assert sorted(text for output in answers_in(tmp_path).values() for text in output.split(" | ")) == sorted(before)
