"""How long processes were at work on a run, for its budget of seconds."""

import msgspec
import pytest

from holdfast.journal import Entry
from holdfast.records import Line, Segment
from holdfast.records.facts import RunEnded, RunResumed
from holdfast.state import Fold

Told = tuple[str, object, int]


def worked(*told: Told) -> float:
    """By a fold that is told of records, each so many seconds after midnight."""
    fold = Fold()
    for n, (kind, data, second) in enumerate(told, 1):
        at = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.000Z"
        fold.apply(Entry(Line(n, at, kind, msgspec.Raw(msgspec.json.encode(data)), "", None), 1, 0, 0))
    return fold.story.worked_seconds


def opened(epoch: int, second: int) -> Told:
    return "segment", Segment(1, "uid", epoch, epoch, 1), second


def test_a_killed_process_worked_until_its_last_record_whatever_was_added_before_the_resume() -> None:
    goes_on: Told = ("run.resumed", RunResumed(), 610)
    added: tuple[Told, ...] = (opened(2, 300), ("x-note", {}, 301))
    ended: Told = ("run.completed", RunEnded(0, 0, 0, ""), 620)
    killed: tuple[Told, ...] = (
        opened(1, 0),
        ("run.resumed", RunResumed(), 0),
        ("x-step", {}, 7),
        opened(1, 8),
        ("x-step", {}, 9),
    )
    assert worked(*killed, opened(3, 600), goes_on, ended) == pytest.approx(19.0)
    assert worked(*killed, *added, opened(3, 600), goes_on, ended) == pytest.approx(19.0)
