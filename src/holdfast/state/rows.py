"""What the index says of keys and scores."""

from typing import Any

import msgspec

from holdfast.journal.positions import Position
from holdfast.records.samples import Usage

_used = msgspec.json.Decoder(dict[str, Usage])
_found = msgspec.json.Decoder(dict[str, str])
_NOTHING = len(b"{}")


class AnswerRow(msgspec.Struct, frozen=True):
    """A key as the index knows it."""

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
    """What the attempt that counts took, replayed steps included, by role; as JSON, because few ask for it."""
    marks: str
    """What is wrong with its answer, if anything is: see `Answer.marks`."""
    looked: int
    """The version of the list of anomalies that it was looked at with last; 0 if it was not."""
    anomalies: bytes
    """What that list found, by kind; as JSON, because most have none."""
    said: int
    """A digest: the same for equal answers to the same sample of a task, in every repeat and of every model."""
    characters: int
    """Of the answer's text."""

    def found(self) -> dict[str, str]:
        return _found.decode(self.anomalies) if len(self.anomalies) > _NOTHING else {}

    def used_by_role(self) -> dict[str, Usage]:
        return _used.decode(self.used)


class ScoreRow(msgspec.Struct, frozen=True):
    """A score of an answer that counts: the scorer's, or what was set by hand in its place."""

    o: int
    scorer: str
    value: object
    reason: str
    failure: str
    author: str = ""
    """Who set it by hand."""


class EditRow(msgspec.Struct, frozen=True):
    """A score that was set by hand; of an answer and a scorer the last one counts."""

    o: int
    scorer: str
    value: object
    reason: str
    author: str
    at: str
    position: Position
    """Of its record."""


class MadeRow(msgspec.Struct, frozen=True):
    """What a scorer itself said of an answer. `last`: nothing more was to come of this answer."""

    scorer: str
    value: object
    reason: str
    failure: str
    metadata: dict[str, Any]
    last: bool
    position: Position
    """Of its record; its number is 0 if the scorer said nothing, and a person set the score."""


class EvaluationCounts(msgspec.Struct, frozen=True):
    """Of one evaluation, over answers that count: how many have all scores, and what their scores are."""

    answers: int = 0
    scored: int = 0
    no_score: int = 0
    failures: int = 0
    edited: int = 0
    """Of these scores, those set by hand."""
    taken: int = 0
    """Of these scores, those taken over from earlier evaluations."""
