"""The log of a run: lines that a machine can read, documented events only, and no trouble for the run."""

import asyncio
import json
import logging
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.schedule import Ticket, Tickets
from holdfast.models import Request
from holdfast.runs import RunLocation, extend, new_run_location
from holdfast.runs.control import ControlRequest, send_control_request
from holdfast.runs.execution.log import EVENTS, LOG, EventLog
from tests.unit.engine.runs import Asked, given, go, model, records, rows
from tests.unit.runs.stores import ROWS, completed, interrupted, stopped, while_live, with_failures


def logged(folder: str | Path) -> list[dict[str, Any]]:
    """Every line, each of them whole and documented."""
    lines = [json.loads(line) for line in Path(folder, LOG).read_text().splitlines()]
    for line in lines:
        assert list(line)[:4] == ["at", "level", "event", "run"]
        assert line["level"] == EVENTS[line["event"]][0]
        assert isinstance(line["message"], str)
        assert line["at"].endswith("Z")
    return lines


def events(folder: str | Path) -> list[str]:
    return [line["event"] for line in logged(folder)]


def test_a_run_that_completes_tells_its_beginning_and_its_end(tmp_path: Path) -> None:
    place = completed(tmp_path)
    assert events(place.folder) == ["run.started", "run.completed"]
    assert {line["run"] for line in logged(place.folder)} == {"done"}


def test_a_run_that_continues_says_that_it_is_resumed(tmp_path: Path) -> None:
    place = interrupted(tmp_path)
    before = len(events(place.folder))
    go(tmp_path, given([Asked(rows=rows(ROWS))]), run_id="cut")
    assert events(place.folder)[before:] == ["run.resumed", "run.completed"]


def test_a_run_that_is_extended_says_so(tmp_path: Path) -> None:
    place = completed(tmp_path)
    before = len(events(place.folder))
    wanted = given([Asked(rows=rows(ROWS + 1))])
    asyncio.run(extend(wanted, new_run_location(wanted, str(tmp_path), "done")))
    assert events(place.folder)[before:] == ["run.extended", "run.completed"]


def test_runs_that_are_stopped_or_cancelled_say_so(tmp_path: Path) -> None:
    assert events(stopped(tmp_path, "one").folder)[-1] == "run.interrupted"
    assert events(stopped(tmp_path, "two", cancelled=True).folder)[-1] == "run.cancelled"
    assert logged(tmp_path / "tests" / "two")[-1]["message"].endswith("; by the test")


def test_cancelling_is_reported_before_the_end(tmp_path: Path) -> None:
    async def cancel(place: RunLocation) -> None:
        await asyncio.to_thread(send_control_request, place.folder, ControlRequest("cancel"), 3.0)

    place = while_live(tmp_path, "live", cancel)
    assert events(place.folder) == ["run.started", "run.shutdown_requested", "run.cancelled"]


def test_a_run_that_fails_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("holdfast.engine.engine.Tickets.at_hand", broken)
    with pytest.raises(RuntimeError):
        completed(tmp_path, "bad")
    last = logged(tmp_path / "tests" / "bad")[-1]
    assert (last["event"], last["message"]) == ("run.failed", "RuntimeError: a mistake of ours")


def test_a_run_that_fails_half_way_records_how_far_it_had_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_hand, taken = Tickets.at_hand, 0

    def broken(tickets: Tickets) -> Ticket | None:
        nonlocal taken
        ticket = at_hand(tickets)
        taken += ticket is not None
        if taken > 2:
            raise RuntimeError("a mistake of ours")
        return ticket

    monkeypatch.setattr(Tickets, "at_hand", broken)
    with pytest.raises(RuntimeError):
        completed(tmp_path, "bad", concurrency={"samples": 1})
    (end,) = [data for kind, data in records(tmp_path, "bad") if kind == "run.failed"]
    assert (end["finished"], end["failed"], end["unfinished"]) == (2, 0, ROWS - 2)


def test_each_sample_that_fails_is_reported_with_its_key_and_kind(tmp_path: Path) -> None:
    place = with_failures(tmp_path)
    failed = [line for line in logged(place.folder) if line["event"] == "sample.failed"]
    assert sorted(line["key"] for line in failed) == [f"task/down/s{number}/1" for number in range(ROWS)]
    assert {line["kind"] for line in failed} == {"server"}


def test_what_is_logged_is_not_also_printed_on_standard_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a handler of the user's, Python prints warnings of loggers: a line for each of a million failures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", [])
        with_failures(tmp_path)
    assert capfd.readouterr().err == ""


def test_importing_touches_no_logger_and_many_logbooks_leave_one_mark(tmp_path: Path) -> None:
    code = f"""
import logging
import holdfast.runs.execution.log
assert logging.getLogger("holdfast").handlers == []
for number in range(3):
    holdfast.runs.execution.log.EventLog({str(tmp_path)!r}, "x").close()
assert [type(each).__name__ for each in logging.getLogger("holdfast").handlers] == ["NullHandler"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_log_is_rotated_and_so_many_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runs.execution.log._BYTES_MAX", 1000)
    logbook = EventLog(str(tmp_path), "x")
    for number in range(100):
        logbook.tell("run.tuned", f"number {number}")
    logbook.close()
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == [LOG, f"{LOG}.1", f"{LOG}.2", f"{LOG}.3"]
    assert max(path.stat().st_size for path in files) <= 1000
    newest = [json.loads(line)["message"] for path in reversed(files) for line in path.read_text().splitlines()]
    assert newest == [f"number {number}" for number in range(100 - len(newest), 100)]


def test_a_log_that_cannot_be_written_costs_one_warning_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = with_failures(tmp_path)
    Path(place.folder, LOG).unlink()
    Path(place.folder, LOG).mkdir()
    capsys.readouterr()
    task = Asked(rows=rows(ROWS), fields={"sample_retries": 0})

    async def fine(request: Request) -> str:
        return "yes"

    assert go(tmp_path, given([task], [model("down", fine)]), run_id="hurt").finished == ROWS
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_log_whose_folder_is_gone_costs_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logbook = EventLog(str(tmp_path / "gone"), "x")
    for _ in range(3):
        logbook.tell("run.started", "here")
    logbook.close()
    assert capsys.readouterr().err.count("\n") == 1


def test_threads_tell_at_once_and_every_line_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runs.execution.log._KEPT", 200)
    monkeypatch.setattr("holdfast.runs.execution.log._BYTES_MAX", 20_000)
    logbook = EventLog(str(tmp_path), "x")

    def tell(name: int) -> None:
        for number in range(100):
            logbook.tell("journal.commit_slow", f"{name} {number} {'x' * 100}", key="a")

    threads = [threading.Thread(target=tell, args=[name]) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logbook.close()
    told = [json.loads(line)["message"] for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert sorted(told) == sorted(f"{name} {number} {'x' * 100}" for name in range(8) for number in range(100))


@pytest.mark.parametrize(
    "message", ["", "100 % of {these} %s", "two\nlines", "\x00\x1b[31m", "ä€😀", "lone \ud800"], ids=ascii
)
def test_any_message_is_one_line_of_json(
    tmp_path: Path, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("holdfast"), "disabled", True)  # pytest cannot send a lone surrogate
    logbook = EventLog(str(tmp_path), "x")
    logbook.tell("sample.failed", message, key="a/b/c/1", kind="solver", when=object())
    logbook.close()
    (line,) = logged(tmp_path)
    assert line["message"] == message or "\ud800" in message
    assert (line["key"], capsys.readouterr().err) == ("a/b/c/1", "")


def test_an_event_that_is_not_documented_cannot_be_logged(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        EventLog(str(tmp_path), "x").tell("run.danced", "tango")


def test_every_event_that_the_source_logs_is_documented_and_every_documented_one_is_logged() -> None:
    source = "".join(path.read_text() for path in Path(holdfast.__file__).parent.rglob("*.py"))
    source = source.replace((Path(holdfast.__file__).parent / "runs" / "execution" / "log.py").read_text(), "")
    told = set(re.findall(r'"((?:run|cell|model|sample|sandbox|journal|mirror|lease|batch)\.[a-z_]+)"', source))
    assert sorted(set(EVENTS) - told) == []
