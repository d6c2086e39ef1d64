"""A script without a terminal is silent while samples finish, and says what it waits for when none does."""

import logging

import pytest

from holdfast.engine import Progress
from holdfast.runs.execution.progress import WaitLog


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watched(caplog: pytest.LogCaptureFixture, states: "list[tuple[float, Progress]]") -> list[str]:
    clock = Clock()
    log = WaitLog("x", clock)
    with caplog.at_level(logging.INFO, logger="holdfast"):
        for clock.now, progress in states:
            log.show(progress)
        log.end()
    return [record.getMessage() for record in caplog.records]


def test_nothing_is_said_while_samples_finish(caplog: pytest.LogCaptureFixture) -> None:
    states = [(2.0 * i, Progress(9, finished=i, retried=i, last_retry="429", held="a rate limit")) for i in range(9)]
    assert watched(caplog, states) == []


def test_nothing_is_said_of_a_slow_answer(caplog: pytest.LogCaptureFixture) -> None:
    assert watched(caplog, [(float(i), Progress(9, retried=2)) for i in range(60)]) == []


def test_what_it_waits_for_is_said_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    down = Progress(9, finished=2, held="m: waiting for the server")
    said = watched(caplog, [*((float(i), down) for i in range(30)), (30.0, Progress(9, finished=3))])
    waits = [f"x: 2/9 done, none finished for {s}.0 s: m: waiting for the server" for s in (3, 6, 12, 24)]
    assert said == [*waits, "x: samples finish again"]


def test_requests_that_are_tried_again_and_batch_jobs_are_reasons(caplog: pytest.LogCaptureFixture) -> None:
    tried = [(0.0, Progress(2)), (5.0, Progress(2, retried=3, last_retry="connection: refused"))]
    assert watched(caplog, tried) == [
        "x: 0/2 done, none finished for 5.0 s: 3 requests tried again (connection: refused)"
    ]
    caplog.clear()
    jobs = Progress(2, batch_jobs=1, batch_requests=2)
    assert watched(caplog, [(0.0, jobs), (5.0, jobs)]) == [
        "x: 0/2 done, none finished for 5.0 s: 1 job, 2 requests waiting, oldest 5.0 s"
    ]


def test_a_program_without_handlers_gets_it_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("holdfast")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
    clock = Clock()
    log = WaitLog("x", clock)
    for clock.now, held in ((0.0, ""), (4.0, "m:\x1b[2J down")):
        log.show(Progress(1, held=held))
    log.show(Progress(1, finished=1))
    assert capsys.readouterr().err == "holdfast: x: 0/1 done, none finished for 4.0 s: m:\\u001b[2J down\n"
