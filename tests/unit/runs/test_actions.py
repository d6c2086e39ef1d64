"""What a program can do with a run: each method with its async twin, and functions that are not stored in the run."""

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.app import STATUSES as OFFERED
from holdfast.records.samples import Answer, Sample
from holdfast.runs.actions import RunActions, naming_parameters
from holdfast.runs.selection import STATUSES
from holdfast.solve import Context

ROWS = [{"id": str(i), "q": str(i), "target": str(i)} for i in range(6)]


@holdfast.scorer
def right(sample: Sample, answer: Answer) -> bool:
    return bool(answer.text == sample.target)


async def solve(sample: Sample, ctx: Context) -> Answer:
    return await ctx.generate()


def started(store: Path, **fields: Any) -> holdfast.Run:
    task = holdfast.Task("t", ROWS, "{q}", solver=solve, scorers=[right])
    return holdfast.run(task, models=["mock/m"], store=str(store), id="x", **fields)


def twins_of(owner: Any, names: list[str]) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    return {name: (getattr(owner, name), getattr(owner, f"{name}_async")) for name in names}


def test_every_call_has_an_async_twin_with_the_same_parameters() -> None:
    every = [name for name, _ in inspect.getmembers(RunActions, inspect.isfunction)]
    methods = [name for name in every if f"{name}_async" in every]
    expected = {"resume", "retry", "extend", "fork", "score", "cancel", "tune", "tag", "note", "export", "plot"}
    assert {*methods} == {*expected, "verify"}
    calls = ["run", "recover", "compare", "gate", "leaderboard", "list_runs", "recoverable"]
    for name, (sync, twin) in (twins_of(RunActions, methods) | twins_of(holdfast, calls)).items():
        assert inspect.iscoroutinefunction(twin), name
        assert not inspect.iscoroutinefunction(sync), name
        assert inspect.signature(sync) == inspect.signature(twin), name
        assert inspect.getdoc(sync), name


def test_the_functions_of_this_process_continue_a_run(tmp_path: Path) -> None:
    with started(tmp_path, limit=2) as run:
        assert [cell.finished for cell in run.extend(limit=4).report().cells] == [4]
        assert [cell.finished for cell in run.extend(changes={"limit": 5}).report().cells] == [5]
        with run.fork("y", changes={"models.m.params.temperature": 0.5}) as fork:
            assert [line.scores for line in fork.samples()] == [{"right": True}] * 5
            assert fork.extend(limit=6).summary().planned == 6
        assert run.resume().status() == ("completed", "")
        assert run.summary().planned == 5


def test_calls_work_inside_a_running_event_loop(tmp_path: Path) -> None:
    async def notebook() -> tuple[str, list[str], bool]:
        with started(tmp_path) as run:
            run.tag("a")
            evaluation = run.score("exact_match").evaluation
            return evaluation, run.summary().tags, run.verify(scores=True).ok

    evaluation, tags, is_whole = asyncio.run(notebook())
    assert (bool(evaluation), tags, is_whole) == (True, ["a"], True)


def test_scorers_are_names_mappings_functions_or_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import holdfast\n@holdfast.scorer\ndef long(sample, answer) -> bool:\n    return len(answer.text) > 9\n"
    )
    entries = ["exact_match", {"regex": {"pattern": "1"}}, right, str(path)]
    with started(tmp_path / "runs") as run:
        for entry in entries:
            assert run.score(entry).cells[0].scorers  # type: ignore[arg-type] # each kind of entry, alone
        (cell,) = run.score(entries, name="all").cells  # type: ignore[arg-type] # a list of all kinds
    assert {each.scorer for each in cell.scorers} == {"exact_match", "regex", "right", "long"}


def test_a_run_without_stored_scorers_needs_some(tmp_path: Path) -> None:
    started(tmp_path).close()
    with (
        holdfast.open_run("x", store=str(tmp_path)) as run,
        pytest.raises(holdfast.HoldfastError, match="stores no scorers"),
    ):
        run.score()


def test_a_field_that_a_spec_cannot_store_is_an_error(tmp_path: Path) -> None:
    with started(tmp_path) as run, pytest.raises(holdfast.SpecError, match="cannot be stored as JSON"):
        run.extend(changes={"limit": object()})


def test_an_export_refuses_an_unknown_argument(tmp_path: Path) -> None:
    with started(tmp_path) as run, pytest.raises(TypeError, match="'wrnog'"):
        run.export(tmp_path / "x.csv", wrnog=True)  # type: ignore[call-arg] # the type checker finds it too


def test_only_options_become_parameters_in_messages() -> None:
    text = "--at-least 2: too high; see: holdfast resume x --set tasks.t.repeats=2, or x--task"
    with pytest.raises(holdfast.HoldfastError) as found, naming_parameters():
        raise holdfast.errors.UsageError(text)
    assert str(found.value) == text.replace("--at-least 2", "at_least=2")


def test_the_command_line_offers_the_statuses_that_are_listed() -> None:
    assert OFFERED == STATUSES
