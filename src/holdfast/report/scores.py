"""One line for each score of an evaluation, in plan order, with its reason."""

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.records.keys import parse_key
from holdfast.report.wording import own_words
from holdfast.state import Index


class ScoreLine(msgspec.Struct, frozen=True):
    """What one scorer says of one answer. `value` None is no score; `failure` says how the scorer broke, if it did."""

    key: str
    task: str
    model: str
    sample_id: str
    repeat: int
    scorer: str
    value: Any
    reason: str = ""
    failure: str = ""
    author: str = ""
    """Who set it by hand, if somebody did."""
    evaluation: str = ""


def score_lines(index: Index, evaluation: str = "") -> Iterator[ScoreLine]:
    """`evaluation` empty means the newest. Answers and scores are walked side by side."""
    answers = index.answers("finished")
    answer = next(answers, None)
    evaluation = evaluation or index.story.evaluation
    for row in index.scores(evaluation):
        while answer is not None and answer.o < row.o:
            answer = next(answers, None)
        assert answer is not None
        key = parse_key(answer.key)
        failure = own_words(row.scorer, row.failure)
        yield ScoreLine(answer.key, *key, row.scorer, row.value, row.reason, failure, row.author, evaluation)
