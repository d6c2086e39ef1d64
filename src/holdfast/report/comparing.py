"""What changed between two runs, or between the variants of one: on the keys that both have, scorer by scorer.

Pairs are (sample, repeat) of one task. A side without a score there has no part in the numbers; how many that are is
told. Repeats of a sample are one group, as in a report.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.report.export import ExportLine
from holdfast.score import as_number
from holdfast.stats import Summary, paired_difference

_EXCERPT = 500
Pair = tuple[str, int]
"""A sample and a repeat of it."""


class Side(msgspec.Struct, frozen=True):
    """One task with one model in one run."""

    run: str
    task: str
    model: str

    @property
    def family(self) -> str:
        """The task that this one is, or is a variant of."""
        return self.task.partition("+")[0]

    def label(self, other: "Side") -> str:
        """What tells it apart from the other one."""
        parts = [(self.run, other.run), (self.task, other.task), (self.model, other.model)]
        return " ".join(mine for mine, theirs in parts if mine != theirs) or self.run


class Shift(msgspec.Struct, frozen=True):
    """A key that is scored otherwise, with both answers."""

    sample_id: str
    repeat: int
    before: Any
    after: Any
    output_before: str
    output_after: str


class Comparison(msgspec.Struct, frozen=True):
    """One scorer on one pair of sides. `difference` is second minus first; None for labels."""

    first: Side
    second: Side
    scorer: str
    common: int
    only_first: int
    only_second: int
    mean_first: float | None
    mean_second: float | None
    difference: Summary | None
    higher: int
    lower: int
    equal: int
    changed: list[Shift]


class Answers:
    """The finished answers of one side, as far as a comparison needs them."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.scores: dict[Pair, dict[str, Any]] = {}
        self.outputs: dict[Pair, str] = {}

    def add(self, line: ExportLine) -> None:
        pair = (line.sample_id, line.repeat)
        self.scores[pair] = line.values
        self.outputs[pair] = (line.output or "")[:_EXCERPT]


def sides_of(run: str, lines: Iterable[ExportLine]) -> dict[tuple[str, str], Answers]:
    """By task and model, in plan order."""
    found: dict[tuple[str, str], Answers] = {}
    for line in lines:
        side = found.setdefault((line.task, line.model), Answers(Side(run, line.task, line.model)))
        if line.status == "finished":
            side.add(line)
    return found


def pairs_between(
    first: Mapping[tuple[str, str], Answers], second: Mapping[tuple[str, str], Answers]
) -> Iterator[tuple[Answers, Answers]]:
    """What two runs have in common; where their models differ, and each has one for a task, those are compared."""
    for key, answers in first.items():
        if key in second:
            yield answers, second[key]
            continue
        mine = [each for task, each in first if task == key[0]]
        theirs = [each for task, each in second if task == key[0]]
        if len(mine) == len(theirs) == 1:
            yield answers, second[key[0], theirs[0]]


def pairs_within(answers: Mapping[tuple[str, str], Answers]) -> Iterator[tuple[Answers, Answers]]:
    """The first model of a task with each other one, and the first variant of a task with each other one."""
    tasks = dict.fromkeys(task for task, _ in answers)
    for task in tasks:
        models = [model for each, model in answers if each == task]
        yield from ((answers[task, models[0]], answers[task, other]) for other in models[1:])
    for model in dict.fromkeys(model for _, model in answers):
        families: dict[str, list[str]] = {}
        for task in (task for task in tasks if (task, model) in answers):
            families.setdefault(answers[task, model].side.family, []).append(task)
        for names in families.values():
            yield from ((answers[names[0], model], answers[other, model]) for other in names[1:])


def compare(first: Answers, second: Answers) -> Iterator[Comparison]:
    """Scorer by scorer, in the order of the first side's names."""
    names = dict.fromkeys(name for scores in first.scores.values() for name in scores)
    for name in names:
        if any(name in scores for scores in second.scores.values()):
            yield _compare(first, second, name)


def _compare(first: Answers, second: Answers, name: str) -> Comparison:
    mine, theirs = _values(first, name), _values(second, name)
    common = [pair for pair in mine if pair in theirs]
    numbers = [(pair, as_number(mine[pair]), as_number(theirs[pair])) for pair in common]
    paired = [(pair, before, after) for pair, before, after in numbers if before is not None and after is not None]
    steps = [after - before for _, before, after in paired]
    is_number = bool(paired) and len(paired) == len(common)
    return Comparison(
        first=first.side,
        second=second.side,
        scorer=name,
        common=len(common),
        only_first=len(mine) - len(common),
        only_second=len(theirs) - len(common),
        mean_first=_mean([before for _, before, _ in paired]) if is_number else None,
        mean_second=_mean([after for _, _, after in paired]) if is_number else None,
        difference=paired_difference(steps, [pair[0] for pair, _, _ in paired]) if is_number else None,
        higher=sum(step > 0 for step in steps) if is_number else 0,
        lower=sum(step < 0 for step in steps) if is_number else 0,
        equal=sum(mine[pair] == theirs[pair] for pair in common),
        changed=[
            Shift(*pair, mine[pair], theirs[pair], first.outputs[pair], second.outputs[pair])
            for pair in common
            if mine[pair] != theirs[pair]
        ],
    )


def _values(answers: Answers, name: str) -> dict[Pair, Any]:
    return {pair: scores[name] for pair, scores in answers.scores.items() if scores.get(name) is not None}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def unlike_scorers(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of scorers that are not the same thing in two evaluations: other code or other arguments."""
    mine, theirs = _identities(first), _identities(second)
    return sorted(name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name])


def _identities(scorers: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in scorers:
        told = msgspec.json.encode([each.get("source"), each.get("args")], order="deterministic").decode()
        found.setdefault(str(each.get("name", "")), set()).add(told)
    return found
