"""Random small solver programs, cut off anywhere and replayed: nothing recorded is asked again, races stay decided.

A program is a tree: sequences, branches side by side, races and time-outs over questions. How long an answer takes
follows from the question and a seed that changes with each process, so a replay meets a model with another pace. A
kill leaves a prefix of what was recorded: any prefix, also one that ends between an answer and its cancellation.
Answers, commits and time-outs fall on different hundredths of a second: what a timer does in the very moment in which
an answer is delivered is not recorded. A program has at most one timer: a replay does not take the time that the
answers took, so of two timers that began at different answers another may be the first.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.models import ModelCall
from holdfast.models.provider import AskFailedError
from holdfast.records.facts import Failure
from holdfast.records.samples import Answer, Usage
from holdfast.solve import AttemptResources, Context, ModelHandle, RecordedStep, Scope, StepFailedError, Steps
from tests.unit.solve.stage import KEY, SAMPLE, MemoryJournal, run


class Node(msgspec.Struct, frozen=True):
    """`ask` one question; `sequence`, `gather` or `race` its parts; give up on its part after `seconds`; `sleep`."""

    kind: str
    parts: tuple["Node", ...] = ()
    question: int = 0
    seconds: float = 0.0


class Decision(msgspec.Struct, frozen=True):
    """A race or time-out, how it came out, and how many records the journal then had."""

    place: str
    outcome: str
    records: int


class Told(msgspec.Struct):
    """One process's part of a story."""

    result: Any
    recorded: list[RecordedStep]
    new: list[RecordedStep]
    decisions: list[Decision]


QUESTIONS = 4  # few, so that equal requests are common

asks = st.builds(Node, st.just("ask"), question=st.integers(0, QUESTIONS - 1))


def grown(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    seconds = st.sampled_from([0.75, 1.65, 3.35])
    several = st.lists(parts, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Node, st.just("sequence"), several),
        st.builds(Node, st.just("gather"), several),
        st.builds(Node, st.just("race"), several),
        st.builds(Node, st.just("timeout"), parts.map(lambda part: (part,)), seconds=seconds),
    )


def timers(node: Node) -> int:
    return (node.kind == "timeout") + sum(map(timers, node.parts))


programs = st.recursive(asks, grown, max_leaves=7).filter(lambda node: timers(node) <= 1)


def plain(node: Node) -> bool:
    return node.kind not in {"race", "timeout"} and all(map(plain, node.parts))


class Model:
    """Answers after a while that follows from the question, how often it was asked, and the pace of this process."""

    def __init__(self, pace: int, failing: bool) -> None:
        self._pace = pace
        self._failing = failing
        self._asked: dict[str, int] = {}

    async def send(self, call: ModelCall) -> Answer:
        question = str(call.messages[-1]["content"])
        nth = self._asked[question] = self._asked.get(question, 0) + 1
        await asyncio.sleep(xxhash.xxh3_64_intdigest(f"{question} {nth} {self._pace}".encode()) % 40 / 10)
        if self._failing and question == "question 0":
            raise AskFailedError(Failure("server", "as ordered"), 1)
        return Answer(f"answer to {question}", {"role": "assistant", "content": "a"}, usage=Usage(1, 1))


class Player:
    """Runs a program as a solver."""

    def __init__(self, ctx: Context, journal: MemoryJournal) -> None:
        self.decisions: list[Decision] = []
        self._ctx = ctx
        self._journal = journal

    async def play(self, node: Node, place: str = "") -> Any:
        if node.kind == "ask":
            try:
                return (await self._ctx.generate(f"question {node.question}")).text
            except StepFailedError as error:
                return str(error)
        parts = [(part, f"{place}/{number}") for number, part in enumerate(node.parts)]
        if node.kind == "sequence":
            return [await self.play(part, where) for part, where in parts]
        if node.kind == "gather":
            return list(await asyncio.gather(*(self.play(part, where) for part, where in parts)))
        if node.kind == "race":
            return await self._race(place, [asyncio.ensure_future(self.play(part, where)) for part, where in parts])
        return await self._timeout(place, *parts[0], node.seconds)

    async def _race(self, place: str, tasks: "list[asyncio.Future[Any]]") -> Any:
        try:
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await stop(tasks)
            raise
        await stop([task for task in tasks if task in pending])
        winner = next(number for number, task in enumerate(tasks) if task in done)
        self._decide(place, f"{winner} of {sorted(tasks.index(task) for task in done)}")
        return [winner, tasks[winner].result()]

    async def _timeout(self, place: str, part: Node, where: str, seconds: float) -> Any:
        try:
            result = await asyncio.wait_for(self.play(part, where), seconds)
        except TimeoutError:
            self._decide(place, "timeout")
            return "timeout"
        self._decide(place, "in time")
        return result

    def _decide(self, place: str, outcome: str) -> None:
        self.decisions.append(Decision(place, outcome, len(self._journal.records)))


async def stop(tasks: "Sequence[asyncio.Future[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def live(program: Node, recorded: Sequence[RecordedStep], pace: int, failing: bool, commit_seconds: float) -> Told:
    """One process, from its start to the program's end."""

    async def process() -> Told:
        journal = MemoryJournal(len(recorded) + 1, commit_seconds)
        steps = Steps(Scope(0, KEY, "solve/1"), journal, recorded)
        asking = ModelHandle({}, {}, Model(pace, failing).send)
        player = Player(Context(SAMPLE, [], steps, "", AttemptResources({"": asking})), journal)
        result = await player.play(program)
        steps.close()
        new = journal.steps()
        decisions = [msgspec.structs.replace(each, records=each.records + len(recorded)) for each in player.decisions]
        return Told(result, [*recorded, *new], new, decisions)

    return run(process())


def identities(recorded: Sequence[RecordedStep]) -> list[tuple[str, int]]:
    return [(each.step.q, each.step.c) for each in recorded]


def decided_within(decisions: Sequence[Decision], records: int) -> dict[str, str]:
    return {each.place: each.outcome for each in decisions if each.records <= records}


def check_replay(before: Told, cut: int, after: Told) -> None:
    left = before.recorded[:cut]
    asked_again = set(identities(left)) & set(identities(after.new))
    assert not asked_again, f"recorded, and asked again: {asked_again}"
    if set(identities(left)) & set(identities(before.recorded[cut:])):
        return  # an answer that was never delivered, and the kill has swallowed its cancellation: now it is delivered
    then = decided_within(before.decisions, cut)
    now = {each.place: each.outcome for each in after.decisions}
    assert {place: now.get(place) for place in then} == then


commits = st.sampled_from([0.0, 0.02, 0.32, 2.02])
RACE = Node("race", (Node("ask", question=1), Node("ask", question=2)))


@given(programs, st.data(), st.booleans(), commits)
@settings(max_examples=250)
def test_a_program_cut_off_anywhere_requests_nothing_recorded_and_decides_as_before(
    program: Node, data: st.DataObject, failing: bool, commit_seconds: float
) -> None:
    told = live(program, [], 0, failing, commit_seconds)
    for pace in range(1, 4):
        cut = data.draw(st.integers(0, len(told.recorded)), label=f"records left by kill {pace}")
        again = live(program, told.recorded[:cut], pace, failing, commit_seconds)
        check_replay(told, cut, again)
        told = again


@given(programs, st.booleans(), commits)
@settings(max_examples=150)
@example(RACE, False, 2.0)
def test_a_whole_recording_replays_to_the_same_result_without_a_question(
    program: Node, failing: bool, commit_seconds: float
) -> None:
    told = live(program, [], 0, failing, commit_seconds)
    again = live(program, told.recorded, 1, failing, commit_seconds)
    assert (again.result, again.new) == (told.result, [])


@given(programs.filter(plain), st.data(), st.booleans(), commits)
@settings(max_examples=150)
def test_a_program_without_races_ends_as_if_it_had_never_been_cut_off(
    program: Node, data: st.DataObject, failing: bool, commit_seconds: float
) -> None:
    told = live(program, [], 0, failing, commit_seconds)
    cut = data.draw(st.integers(0, len(told.recorded)), label="records left by the kill")
    again = live(program, told.recorded[:cut], 1, failing, commit_seconds)
    assert again.result == told.result
    assert sorted(identities(again.recorded)) == sorted(identities(told.recorded))
