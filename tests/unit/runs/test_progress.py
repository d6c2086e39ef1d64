"""Progress of a Python program: what it says without a terminal, and how live lines and its own prints share one."""

import io
import logging
import sys
from pathlib import Path

import pytest

from holdfast.engine import Progress
from holdfast.runs import RunLocation
from holdfast.runs.execution.progress import PlainDisplay, ScriptDisplay, WaitLog, _Terminal
from holdfast.runs.store.lookup import run_location
from tests.screens import Screen


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


def said_in_a_log(states: "list[tuple[float, Progress, bool]]", *, always: bool = False) -> list[tuple[float, str]]:
    clock, said = Clock(), list[tuple[float, str]]()
    display = PlainDisplay(lambda line: said.append((clock.now, line)), always=always, clock=clock)
    for clock.now, progress, ended in states:
        display.show(progress, ended=ended)
    return said


def test_a_log_gets_a_line_for_each_tenth_but_at_most_one_in_ten_seconds() -> None:
    fast = [(float(second), Progress(100, finished=second), False) for second in range(101)]
    said = said_in_a_log([*fast, (100.0, Progress(100, finished=100), True)])
    assert [line.split()[0] for _, line in said] == [*(f"{number}/100" for number in range(10, 101, 10)), "100/100"]
    faster = [(second / 2, Progress(100, finished=second), False) for second in range(101)]
    assert [when for when, _ in said_in_a_log(faster)] == [10.0, 20.0, 30.0, 40.0, 50.0]


def test_a_log_gets_at_least_a_line_a_minute() -> None:
    slow = [(float(second), Progress(1000, finished=second // 60), False) for second in range(301)]
    assert [when for when, _ in said_in_a_log(slow)] == [10.0, 70.0, 130.0, 190.0, 250.0]


def test_a_log_says_soon_that_a_run_waits_and_repeats_no_note() -> None:
    free, held = Progress(1000), Progress(1000, held="m: waiting", retried=2)
    states = [(float(second), held if second >= 30 else free, False) for second in range(160)]
    assert [(when, line) for when, line in said_in_a_log(states) if line.startswith("  ")] == [
        (30.0, "  2 retries · m: waiting")
    ]


def test_a_short_run_of_a_script_says_nothing_and_of_a_command_its_end() -> None:
    states = [(0.0, Progress(2), False), (1.0, Progress(2, finished=2), True)]
    assert said_in_a_log(states) == []
    assert [line.split()[0] for _, line in said_in_a_log(states, always=True)] == ["2/2"]


def test_a_script_without_handlers_says_it_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("holdfast")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
    display = ScriptDisplay("x")
    display.show(Progress(100, finished=50, started=-1000.0))
    assert capsys.readouterr().err.startswith("holdfast: x: 50/100  50%  ")


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Tty:
    """A terminal for standard output and standard error, of 60 columns. Not a fixture: pytest sets both again."""
    stream = Tty()
    for name, value in {"TERM": "xterm", "COLUMNS": "60", "LINES": "24", "NO_COLOR": "1", "CI": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def place(tmp_path: Path, name: str = "x") -> RunLocation:
    return run_location(str(tmp_path), "experiment", name)


def test_what_a_program_prints_and_logs_goes_above_the_live_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tty = use_terminal(monkeypatch)
    terminal, root = _Terminal(), logging.getLogger()
    handler = logging.StreamHandler(sys.stderr)
    root.addHandler(handler)
    try:
        with terminal.showing(place(tmp_path)) as display:
            display.show(Progress(9, finished=1, retried=1))
            sys.stdout.write("printed\n")
            display.show(Progress(9, finished=2, retried=1))
            root.warning("logged")
            display.show(Progress(9, finished=3, retried=1))
            sys.stdout.write("no line end")
            sys.stderr.writelines(["on ", "stderr\n"])
            display.show(Progress(9, finished=9, retried=1), ended=True)
        sys.stdout.write("after\n")
    finally:
        root.removeHandler(handler)
    assert (sys.stdout, sys.stderr, handler.stream) == (tty, tty, tty)
    lines = Screen(60).show(tty.getvalue())
    assert lines[:3] == ["printed", "logged", "no line endon stderr"]
    assert "9/9" in lines[3]
    assert lines[4:] == ["1 retry", "after"]


def test_two_runs_of_a_program_have_a_block_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tty = use_terminal(monkeypatch)
    terminal = _Terminal()
    with (
        terminal.showing(place(tmp_path, "a")) as first,
        terminal.showing(place(tmp_path, "b")) as second,
    ):
        first.show(Progress(9, finished=1))
        second.show(Progress(5, finished=1))
        first.show(Progress(9, finished=2))
        both = Screen(60).show(tty.getvalue())
        second.show(Progress(5, finished=5), ended=True)
        first.show(Progress(9, finished=9), ended=True)
    assert [line.split("  ")[1].strip() for line in both if "%" in line] == ["2/9", "1/5"]
    lines = [line for line in Screen(60).show(tty.getvalue()) if "%" in line]
    assert [line.split("  ")[1].strip() for line in lines] == ["5/5", "9/9"]
