"""Which keys a person wants to see: every condition that is set must hold."""

from typing import Any

import pytest

from holdfast.records.facts import Failure
from holdfast.report import ExportLine
from holdfast.report.selection import KeyFilter, choose, is_wrong


def line(name: str, output: str | None = "4", kind: str = "", **scores: Any) -> ExportLine:
    error = Failure(kind, f"{kind} happened") if kind else None
    status = "failed" if kind else "finished" if output is not None else "unfinished"
    return ExportLine(f"t/m/{name}/1", "t", "m", name, 1, status, output, error, scores)


LINES = [
    line("right", "It is 4", numeric=True),
    line("wrong", "It is 5", numeric=False),
    line("partly", "Four", numeric=None, words=0),
    line("broken", "4", numeric={"failure": {"message": "no"}}),
    line("late", None, kind="timeout"),
    line("bad", None, kind="solver"),
    line("open", None),
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (KeyFilter(failed=True), ["late", "bad"]),
        (KeyFilter(wrong=True), ["wrong", "partly"]),
        (KeyFilter(kinds=("timeout",)), ["late"]),
        (KeyFilter(kinds=("timeout", "solver")), ["late", "bad"]),
        (KeyFilter(kinds=("nonsense",)), []),
        (KeyFilter(grep="it is"), ["right", "wrong"]),
        (KeyFilter(grep="solver happened"), ["bad"]),
        (KeyFilter(grep="/open/"), ["open"]),
        (KeyFilter(grep=r"is \d$", wrong=True), ["wrong"]),
        (KeyFilter(status="unfinished"), ["open"]),
    ],
)
def test_every_condition_must_hold(wanted: KeyFilter, found: list[str]) -> None:
    assert [each.sample_id for each in choose(LINES, wanted)] == found


def test_nothing_wanted_is_false() -> None:
    assert not KeyFilter()
    assert KeyFilter(grep="x")


def test_what_is_no_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="not a pattern"):
        list(choose(LINES, KeyFilter(grep="(")))


def test_a_missing_score_and_a_label_are_not_wrong() -> None:
    assert [is_wrong({"s": value}) for value in (None, "bad", 0.0, False, 0.5)] == [False, False, True, True, False]
