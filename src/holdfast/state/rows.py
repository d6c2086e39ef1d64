"""The rows of the index: answers, scores, scores set by hand, and counts. Pages store them as arrays."""

from typing import Any

import msgspec

from holdfast.journal import Position
from holdfast.records import Usage

_used = msgspec.json.Decoder(dict[str, Usage])
_found = msgspec.json.Decoder(dict[str, str])
_NOTHING = len(b"{}")


class AnswerRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
    kind: str = ""
    message: str = ""
    used: bytes = b"{}"
    """Usage by role of the attempt that counts, replayed steps included; JSON, because few callers decode it."""
    marks: str = ""
    """What is wrong with the answer, separated by spaces: see `Answer.marks`."""
    looked: int = 0
    """The version of the anomaly checks that last saw the answer; 0 if none did."""
    anomalies: bytes = b"{}"
    """What those checks found, by kind; JSON, because most answers have none."""
    said: int = 0
    """A digest: the same for equal answers to the same sample of a task, in every repeat and of every model."""
    characters: int = 0
    """Of the answer's text."""

    @property
    def sample(self) -> str:
        """Identifies the sample within its cell: the key without its repeat."""
        return self.key.rpartition("/")[0]

    def found(self) -> dict[str, str]:
        return _found.decode(self.anomalies) if len(self.anomalies) > _NOTHING else {}

    def used_by_role(self) -> dict[str, Usage]:
        return _used.decode(self.used)


class AnswerGist(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first fields of an `AnswerRow`: decoding skips the rest, which a comparison does not need."""

    o: int
    key: str
    status: str
    n: int


class ScoreRow(msgspec.Struct, frozen=True):
    """The score that counts: the scorer's, or the one set by hand that replaces it."""

    o: int
    scorer: str
    value: Any
    reason: str
    failure: str
    author: str = ""
    """Who set it by hand."""
    last: bool = False
    """It completes the scores of its answer."""
    taken: bool = False
    """It was copied from an earlier evaluation."""
    unreadable: bool = False
    """It counts as wrong because the scorer could not read the answer."""


class RecordedScore(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What scores of scorers and of people have in common."""

    o: int
    of: int
    """The number of the record with the answer."""
    scorer: str
    encoded: bytes
    """The value as JSON."""
    reason: str
    n: int
    segment: int
    at_byte: int

    @property
    def position(self) -> Position:
        """Of its record. Its number is 0 if the scorer gave no score and a person set one."""
        return Position(self.n, self.segment, self.at_byte)

    @property
    def value(self) -> Any:
        return decode_value(self.encoded)


class EditRow(RecordedScore, frozen=True, array_like=True, gc=False):
    """A score that was set by hand. For an answer and a scorer the last one counts."""

    author: str
    at: str


class MadeRow(RecordedScore, frozen=True, array_like=True, gc=False):
    """The score that a scorer itself gave. `last`: it completes the scores of this answer."""

    failure: str
    taken: bool
    last: bool
    unreadable: bool


class MadeGist(RecordedScore, frozen=True, array_like=True, gc=False):
    """The first fields of a `MadeRow`."""

    failure: str


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


_FREQUENT: dict[bytes, Any] = {b"true": True, b"false": False, b"null": None}


def decode_value(encoded: bytes) -> Any:
    """A score's value from its JSON."""
    return _FREQUENT[encoded] if encoded in _FREQUENT else msgspec.json.decode(encoded)
