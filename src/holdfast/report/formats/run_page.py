"""What the HTML report shows of a run, and which keys it needs the questions of."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.report.cells import Example, RunReport
from holdfast.report.costs import CostLine
from holdfast.report.examples import AnswerSurvey
from holdfast.report.questions import Question


class RunOrigin(msgspec.Struct, frozen=True):
    """Where a run comes from: facts as names and values, and the spec as text."""

    facts: tuple[tuple[str, str], ...]
    spec: str = ""


class RunPage(msgspec.Struct, frozen=True):
    """One run on the page."""

    report: RunReport
    costs: tuple[CostLine, ...]
    origin: RunOrigin
    answers: AnswerSurvey = AnswerSurvey()
    questions: Mapping[str, Question] = {}
    """What the samples of examples and failures were asked, by key."""
    holds_data: bool = True
    """Whether the run records its data."""


class FailureCause(msgspec.Struct, frozen=True):
    """Failures of one kind, or of one scorer, in all cells."""

    title: str
    noun: str
    """What failed: samples, or answers that a scorer could not score."""
    counts: dict[str, int]
    """By task and model."""
    example: Example

    @property
    def count(self) -> int:
        return sum(self.counts.values())


def failure_causes(report: RunReport) -> list[FailureCause]:
    """The causes of failures, the most frequent first, each with its first example."""
    found: dict[tuple[str, str], FailureCause] = {}
    for cell in report.cells:
        place = f"{cell.task}/{cell.model}"
        for kind, count in cell.failures.items():
            if kind in cell.examples:
                cause = FailureCause(kind, "sample", {}, cell.examples[kind])
                found.setdefault(("sample", kind), cause).counts[place] = count
        for each in cell.scorers:
            if each.failures and each.example is not None:
                cause = FailureCause(f"scorer {each.scorer} failed", "answer", {}, each.example)
                found.setdefault(("scorer", each.scorer), cause).counts[place] = each.failures
    return sorted(found.values(), key=lambda cause: -cause.count)


def run_names(reports: Sequence[RunReport]) -> list[str]:
    """What each run is called on the page: its id, with the experiment if another run has the same id. Empty for a
    single run, which needs no name.
    """
    ids = [report.run_id for report in reports]
    if len(ids) == 1:
        return [""]
    return [f"{each.experiment}/{each.run_id}" if ids.count(each.run_id) > 1 else each.run_id for each in reports]


def shown_keys(report: RunReport, answers: AnswerSurvey) -> Iterator[str]:
    """The keys whose questions the page shows."""
    yield from (cause.example.key for cause in failure_causes(report))
    yield from (answer.name for group in answers.groups for answer in group.answers)
