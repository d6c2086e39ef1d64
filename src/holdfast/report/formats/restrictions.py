"""What may be published. A task with `share: no-text`, whose terms forbid publishing its questions, keeps its numbers
and loses the texts of rows, answers, reasons, and messages of failures, which may quote them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.records import Failure
from holdfast.report.cells import CellReport, Example
from holdfast.report.examples import AnswerSurvey, ExampleAnswer
from holdfast.report.lines import ExportLine

WITHHELD = "Withheld: the terms of this data set forbid publishing its text."


def restricted_tasks(spec: Mapping[str, Any]) -> frozenset[str]:
    """The tasks of a stored spec whose text must not be published."""
    return frozenset(str(task.get("name")) for task in spec.get("tasks", ()) if task.get("share") == "no-text")


def withhold(line: ExportLine) -> ExportLine:
    """The line without texts of the row and the answer."""
    return msgspec.structs.replace(
        line,
        output=None if line.output is None else WITHHELD,
        error=None if line.error is None else Failure(line.error.kind, WITHHELD),
        scores={**line.scores, **{name: {"failure": {"message": WITHHELD}} for name in line.broken}},
        anomalies=dict.fromkeys(line.anomalies, WITHHELD),
        tool_calls=[],
        reasons={},
        scores_edited={},
        input=WITHHELD,
        target=None,
        prompt=None,
        row=None if line.row is None else {},
    )


def withhold_messages(cells: Iterable[CellReport], tasks: Collection[str]) -> Iterator[CellReport]:
    """The cells, those of these tasks without the messages of failures and the evidence of anomalies."""
    for cell in cells:
        if cell.task not in tasks:
            yield cell
            continue
        scorers = tuple(msgspec.structs.replace(each, example=_without_message(each.example)) for each in cell.scorers)
        made: dict[str, Any] = {"scorers": scorers}
        for field in msgspec.structs.fields(cell):
            value = getattr(cell, field.name)
            if field.name not in _OWN_WORDS and isinstance(value, dict):
                made[field.name] = {name: _without_message(each) for name, each in value.items()}
        yield msgspec.structs.replace(cell, **made)


_OWN_WORDS = ("marked",)
"""Examples whose messages quote nothing."""


def _without_message(value: Any) -> Any:
    """An example without its message; anything else as it is."""
    return Example(value.key, WITHHELD) if isinstance(value, Example) else value


def withhold_examples(survey: AnswerSurvey, tasks: Collection[str]) -> AnswerSurvey:
    """The examples without the texts of these tasks."""
    groups = tuple(
        msgspec.structs.replace(
            group, answers=tuple(_without_text(each) if each.key.task in tasks else each for each in group.answers)
        )
        for group in survey.groups
    )
    return msgspec.structs.replace(survey, groups=groups)


def _without_text(answer: ExampleAnswer) -> ExampleAnswer:
    scores = tuple(msgspec.structs.replace(score, reason="", failure="") for score in answer.scores)
    return msgspec.structs.replace(answer, text=WITHHELD, characters=len(WITHHELD), scores=scores)
