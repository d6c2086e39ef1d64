"""Commands that are suggested to continue a run work when they are copied."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from holdfast.cli.commands.show import print_run
from holdfast.errors import SpecError
from holdfast.runs import Given, execute, new_run_location
from holdfast.runs.store.lookup import RunLocation, newest_runs, run_location, suggest_resume_command
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
