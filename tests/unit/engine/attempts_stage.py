"""One sample and everything that its attempts need, on the stage of the solvers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.engine.sample import KeyHistory, Outcome, Sampler, TaskSetup
from holdfast.engine.schedule import Ticket
from holdfast.engine.scoring import ScoringSetup
from holdfast.models.pacing.queue import Slots
from holdfast.plan import PreparedTask
from holdfast.records.facts import Cell, SampleFailed, SampleFinished, ScoreGiven, StepStarted
from holdfast.records.samples import Answer, Sample
from holdfast.score import Scorer, scorer
from holdfast.solve import (
    AttemptLimits,
    AttemptResources,
    Context,
    Prompt,
    RecordedStep,
    Renderer,
    Solver,
    UnconfirmedCall,
)
from holdfast.spec import Task
from tests.unit.solve.stage import MemoryJournal, World, run, type_of

KEY = "task/model/1/1"
Solve = Callable[[Sample, Context], Awaitable[str | Answer]]


class Setting(NamedTuple):
    """How a sample is answered."""

    retries: int = 2
    seconds: float | None = None
    allowance: AttemptLimits = AttemptLimits()
    scorers: tuple[Callable[..., Any], ...] = ()


class Story(NamedTuple):
    """What became of a sample in one process."""

    outcome: Outcome | None
    asked: list[str]
    journal: MemoryJournal

    @property
    def failures(self) -> list[SampleFailed]:
        return [msgspec.json.decode(each, type=SampleFailed) for each in self.journal.of("sample.failed")]

    @property
    def finished(self) -> list[SampleFinished]:
        return [msgspec.json.decode(each, type=SampleFinished) for each in self.journal.of("sample.finished")]

    @property
    def scores(self) -> list[ScoreGiven]:
        return [msgspec.json.decode(each, type=ScoreGiven) for each in self.journal.of("score")]

    @property
    def text(self) -> str:
        return self.finished[0].answer.text

    @property
    def kinds(self) -> list[str]:
        return [each.failure.kind for each in self.failures]

    @property
    def scopes(self) -> list[str]:
        return [each.step.scope for each in self.journal.steps()]


def kit(solve: Solve, world: World, setting: Setting) -> TaskSetup:
    task = Task(name="task", sample_retries=setting.retries)
    work = PreparedTask(task, Solver("solve", solve, {}, {}), Prompt(), Renderer(Prompt()))
    scorers: Sequence[Scorer] = [scorer(each) for each in setting.scorers]
    return TaskSetup(
        work=work,
        resources={"model": AttemptResources({"": world.asking()}, setting.allowance)},
        scoring=ScoringSetup(
            scorers, "evaluation" if scorers else "", Slots(1), {"model": AttemptResources({"judge": world.asking()})}
        ),
        seconds=setting.seconds,
        seed=0,
    )


def ticket(input: Any = "question") -> Ticket:
    return Ticket(0, KEY, Sample("1", input, "target", {"input": input}), Cell("task", "model", 0, 1, 0, 0))


def answer(
    solve: Solve, world: World, setting: Setting | None = None, past: KeyHistory | None = None, first: int = 1
) -> Story:
    """Answer one sample, as one process does, with what earlier ones have left."""

    async def process() -> Story:
        journal = MemoryJournal(first)
        before = len(world.asked)
        ends: list[Outcome] = []
        sampler = Sampler(journal, lambda _, outcome: ends.append(outcome))
        await sampler.answer(ticket(), kit(solve, world, setting or Setting()), past or KeyHistory())
        (outcome,) = ends
        return Story(outcome, world.asked[before:], journal)

    return run(process())


def past_of(*stories: Story, records: int | None = None) -> KeyHistory:
    """What a journal with these stories, or their first so many records, tells the next process."""
    lines = [line for story in stories for line in story.journal.records][:records]
    steps: list[RecordedStep] = []
    failures: dict[int, str] = {}
    begun: list[UnconfirmedCall] = []
    for n, record in lines:
        if type_of(record) == "step":
            steps += [each for story in stories for each in story.journal.steps() if each.n == n]
        elif type_of(record) == "step.started":
            begun.append(UnconfirmedCall(n, msgspec.json.decode(record.d, type=StepStarted)))
        elif type_of(record) == "sample.failed":
            failed = msgspec.json.decode(record.d, type=SampleFailed)
            failures[failed.attempt] = failed.failure.kind
    return KeyHistory(tuple(steps), failures, tuple(begun))


def failing_until(world: World, question: str, kind: str, times: int) -> Mapping[str, int]:
    """Let a question fail so many times."""
    counts = {question: 0}
    plain = world.failing

    class Until(dict[str, str]):
        def __contains__(self, asked: object) -> bool:
            if asked == question:
                counts[question] += 1
                return counts[question] <= times
            return asked in plain

        def __getitem__(self, asked: str) -> str:
            return kind

    world.failing = Until()
    return counts
