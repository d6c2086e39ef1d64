"""What commands that run or list samples say about them."""

import logging
import sys

import pytest

from holdfast.cli.commands.run import _WarningHandler
from holdfast.cli.commands.show import _value
from holdfast.cli.progress import describe_start
from holdfast.engine import Progress


def test_failed_samples_that_are_not_retried_are_no_saved_answers() -> None:
    resumed = Progress(planned=12, finished=8, failed=2, before=10, failed_before=2)
    assert describe_start(resumed) == "continuing: 8 of 12 answers are saved, 2 failed samples not retried, 2 to do"
    assert describe_start(Progress(planned=12, before=10)) == "continuing: 10 of 12 answers are saved, 2 to do"


def test_a_failed_scorer_is_shown_in_words() -> None:
    assert _value({"failure": {"message": "KeyError: 'Paris or so'"}}) == "failed (KeyError: 'Paris or so')"
    assert [_value(0.5), _value(None)] == ["0.5", "None"]


def test_warnings_of_a_run_are_wrapped_at_words_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("holdfast.cli.output.terminal_width", lambda: 40)
    record = logging.makeLogRecord({"msg": "model.waiting: " + "first_contact_seconds " * 5, "event": "model.waiting"})
    _WarningHandler().emit(record)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert {line.strip() for line in lines} == {"first_contact_seconds"}
