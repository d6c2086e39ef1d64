"""Commands that are suggested to continue a run work when they are copied."""

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.commands.show import print_run
from holdfast.errors import SpecError
from holdfast.runs import Given, execute, new_run_location
from holdfast.runs.store.lookup import (
    RunLocation,
    needed_changes,
    newest_runs,
    run_location,
    suggest_resume_command,
)
from holdfast.spec import RunLimits
from holdfast.testing import Behaviour, Fault, ModelServer
from tests.unit.engine.runs import Asked, given, go, rows
from tests.unit.runs.stores import ROWS, completed, findings


@pytest.mark.parametrize(
    ("reason", "limits", "options"),
    [
        ("", RunLimits(), ""),
        ("the process was killed", RunLimits(tokens=5), ""),
        ("budget: limits.run.tokens is 1e+06, and 1000003 is used", RunLimits(tokens=1_000_000), "tokens=2000000"),
        ("budget: limits.run.cost_usd is 0.5, and $0.5001 is used", RunLimits(cost_usd=0.5, tokens=9), "cost_usd=1"),
        ("budget: limits.run.seconds is 90, and 91 is used", RunLimits(seconds=90.0), "seconds=180"),
        ("budget: limits.run.tokens is 10, and 12 is used", RunLimits(), ""),
    ],
)
def test_a_budget_that_is_used_up_is_raised(
    reason: str, limits: RunLimits, options: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path))
    told = suggest_resume_command(run_location(str(tmp_path), "e", "r"), reason, limits)
    assert told == f"holdfast resume r{f' --set limits.run.{options}' if options else ''}"


HINT = "did you mean 'm-1'? The server lists m-1, 'm 2'"
UNKNOWN = "unknown_model: HTTP 404 from http://h/v1/chat: {'error': 'models.x'}"


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        (f"models.a: {UNKNOWN}; {HINT}; check the model's name", {"models.a.model": "m-1"}),
        (f"models.a-1.5: {UNKNOWN}; check the model's name and base_url", {"models.a-1.5.model": "NAME"}),
        (f"models.a: {UNKNOWN}; models.b: {UNKNOWN}; {HINT}", {"models.a.model": "NAME", "models.b.model": "m-1"}),
        (f"models.a: auth: HTTP 401; roles.judge: {UNKNOWN}; {HINT}", {"roles.judge.model": "m-1"}),
        (f"models.a: auth: HTTP 401; {HINT}", {}),
    ],
)
def test_a_wrong_name_is_replaced_by_the_most_similar_one(reason: str, changes: dict[str, str]) -> None:
    assert needed_changes(reason, RunLimits()) == changes


def test_a_program_is_told_how_a_run_ended_that_is_not_completed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "k")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
    dead = {"name": "m", "provider": "openai", "model": "m", "base_url": url, "api_key_env": "KEY"}
    task = holdfast.Task("t", [{"q": "1"}, {"q": "2"}], "{q}")
    models, store = [{**dead, "first_contact_seconds": 0.2}], str(tmp_path)
    with caplog.at_level("WARNING", logger="holdfast"):
        holdfast.run(task, models=models, id="quiet", store=store, quiet=True)
        before = len(caplog.messages)
        run = holdfast.run(task, models=models, id="r", store=store)
        run.resume()
    said = [each for each in caplog.messages[before:] if each.startswith("r: failed: ")]
    assert len(said) == 2, caplog.messages
    assert "first_contact_seconds" in said[0]
    assert said[0].endswith("; 0 of 2 answers are saved; continue with run.resume()")
    assert not any(each.startswith("quiet: failed") for each in caplog.messages[:before])
    caplog.clear()
    run = holdfast.run(task, models=["mock"], id="few", store=store, limits={"run": {"requests": 1}})
    assert caplog.messages[-1].endswith("continue with run.resume(changes={'limits.run.requests': 2})")
    caplog.clear()
    assert run.resume(changes={"limits.run.requests": 2}).status()[0] == "completed"
    assert caplog.messages == []


def test_show_and_doctor_advise_what_does_not_stop_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = given([Asked(rows=rows(ROWS))], limits={"run": {"requests": 1}})
    assert go(tmp_path, wanted, run_id="r").budget
    advised = f"holdfast resume r --set limits.run.requests=2 --store {tmp_path}"
    assert [each.command for each in findings(tmp_path)] == [advised]
    print_run("r", str(tmp_path), as_json=False)
    assert f"Continue with: {advised}" in capsys.readouterr().out


def test_the_newest_runs_of_an_experiment_are_found_whatever_they_and_others_are_called(tmp_path: Path) -> None:
    mine = [completed(tmp_path, run, "a") for run in ("z", "y", "x")]
    completed(tmp_path, "w", "b")
    for seconds, place in enumerate(mine):
        os.utime(place.journal, (seconds, seconds))
    assert names(newest_runs(str(tmp_path), "a", 2)) == ["x", "y"]
    assert newest_runs(str(tmp_path), "none", 2) == []


@pytest.mark.parametrize(("fault", "is_refused"), [((), False), ((Fault("500"),), True)])
def test_a_key_is_missed_before_there_is_a_run_and_later_only_if_something_is_left_to_ask(
    fault: tuple[Fault, ...], is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def wanted(**own: str) -> Given:
        task = Asked(rows=rows(ROWS), fields={"sample_retries": 0})
        return given([task], [{"name": "m", "provider": "openai", "request_retries": 0, **own}])

    place = new_run_location(wanted(), str(tmp_path), "r")

    async def begin() -> None:
        async with ModelServer(Behaviour(faults=list(fault))) as server:
            await execute(wanted(base_url=server.base_url), place)

    with pytest.raises(SpecError, match="OPENAI_API_KEY is not set"):
        asyncio.run(execute(wanted(), place))
    assert list(tmp_path.iterdir()) == []
    asyncio.run(begin())
    with pytest.raises(SpecError, match="is not set") if is_refused else contextlib.nullcontext():
        assert asyncio.run(execute(wanted(), place)).finished == ROWS


def names(places: list[RunLocation]) -> list[str]:
    return [place.run_id for place in places]
