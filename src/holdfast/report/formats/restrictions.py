"""What may be published. A task with `share: no-text`, whose terms forbid publishing its questions, keeps its numbers
and loses the texts of rows, answers and reasons.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

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
        tool_calls=[],
        reasons={},
        scores_edited={},
        input=WITHHELD,
        target=None,
        prompt=None,
        row=None if line.row is None else {},
    )


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
