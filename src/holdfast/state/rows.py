"""The rows that the index returns: answers, scores, scores set by hand, and counts."""

from typing import Any

import msgspec

from holdfast.journal import Position
from holdfast.records import Usage

_used = msgspec.json.Decoder(dict[str, Usage])
_found = msgspec.json.Decoder(dict[str, str])
_NOTHING = len(b"{}")


class AnswerRow(msgspec.Struct, frozen=True):
    """One key with its newest end, or its first answer."""

    o: int
    key: str
    status: str
    n: int
    segment: int
    at_byte: int
    attempt: int
    input_tokens: int
    output_tokens: int
    seconds: float
    kind: str
    message: str
    used: bytes
    """Usage by role of the attempt that counts, replayed steps included; JSON, because few callers decode it."""
    marks: str
    """What is wrong with the answer, separated by spaces: see `Answer.marks`."""
    looked: int
    """The version of the anomaly checks that last saw the answer; 0 if none did."""
    anomalies: bytes
    """What those checks found, by kind; JSON, because most answers have none."""
    said: int
    """A digest: the same for equal answers to the same sample of a task, in every repeat and of every model."""
    characters: int
    """Of the answer's text."""

    def found(self) -> dict[str, str]:
        return _found.decode(self.anomalies) if len(self.anomalies) > _NOTHING else {}

    def used_by_role(self) -> dict[str, Usage]:
        return _used.decode(self.used)


class ScoreRow(msgspec.Struct, frozen=True):
    """The score that counts: the scorer's, or the one set by hand that replaces it."""

    o: int
    scorer: str
    value: object
    reason: str
    failure: str
    author: str = ""
    """Who set it by hand."""


class EditRow(msgspec.Struct, frozen=True):
    """A score that was set by hand. For an answer and a scorer the last one counts."""

    o: int
    scorer: str
    value: object
    reason: str
    author: str
    at: str
    position: Position
    """Of its record."""


class MadeRow(msgspec.Struct, frozen=True):
    """The score that a scorer itself gave. `last`: it completes the scores of this answer."""

    scorer: str
    value: object
    reason: str
    failure: str
    metadata: dict[str, Any]
    last: bool
    position: Position
    """Of its record. `n` is 0 if the scorer gave no score and a person set one."""


class EvaluationCounts(msgspec.Struct, frozen=True):
    """Counts over one evaluation: answers with all scores, and scores by outcome."""

    answers: int = 0
    scored: int = 0
    no_score: int = 0
    failures: int = 0
    edited: int = 0
    """How many of the scores were set by hand."""
    taken: int = 0
    """How many of the scores were copied from earlier evaluations."""
