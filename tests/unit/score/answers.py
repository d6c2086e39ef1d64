"""Short ways to make the samples and answers of these tests."""

from typing import Any

from holdfast.records.exchange import Answer, Row, Sample


def sample(target: Any, row: Row | None = None) -> Sample:
    return Sample("1", "question", target, row or {})


def answer(text: str) -> Answer:
    return Answer(text)
