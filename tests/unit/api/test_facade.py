"""Holdfast from Python: `run`, also inside a running loop, and what it gives back."""

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import SpecError, UsageError
from holdfast.records.exchange import Answer, Sample


@holdfast.scorer
def close(sample: Sample, answer: Answer) -> bool:
    return bool(answer.text == sample.target)


def task() -> holdfast.Task:
    data = [{"q": "2+2", "target": "2+2"}, {"q": "3+3", "target": "7"}]
    return holdfast.Task("sums", data=data, prompt="{q}", scorers=[close])


def test_a_script_runs_a_task_and_looks_at_it(tmp_path: Path) -> None:
    with holdfast.run(task(), models=["mock/m"], store=str(tmp_path)) as run:
        assert [(line.output, line.scores) for line in run.samples()] == [
            ("2+2", {"close": True}),
            ("3+3", {"close": False}),
        ]
        summary = run.summary()
        assert (summary.status, summary.planned, summary.finished) == ("completed", 2, 2)
        assert summary.steps == {"live": 2, "replayed": 0, "orphaned": 0, "taken_over": 0}


def test_it_works_inside_a_running_event_loop(tmp_path: Path) -> None:
    async def notebook() -> int:
        with holdfast.run(task(), models=["mock/m"], store=str(tmp_path)) as run:
            return run.summary().finished

    assert asyncio.run(notebook()) == 2


def test_it_can_be_awaited(tmp_path: Path) -> None:
    async def script() -> int:
        with await holdfast.run_async(task(), models=["mock/m"], store=str(tmp_path)) as run:
            return run.summary().finished

    assert asyncio.run(script()) == 2


def test_errors_come_to_the_caller_also_from_inside_a_loop(tmp_path: Path) -> None:
    async def notebook() -> None:
        holdfast.run(task(), models=["no_such_provider/m"], store=str(tmp_path))

    with pytest.raises(holdfast.HoldfastError, match="no_such_provider"):
        asyncio.run(notebook())


def test_a_limit_and_an_id_are_fields_of_the_run(tmp_path: Path) -> None:
    with holdfast.run(task(), models=["mock/m"], store=str(tmp_path), id="mine", limit=1) as run:
        assert (run.place.run_id, run.summary().planned) == ("mine", 1)


def test_runs_are_found_by_id_prefix_and_latest(tmp_path: Path) -> None:
    for name in ("alpha-1", "alpha-2"):
        holdfast.run(task(), models=["mock/m"], store=str(tmp_path), id=name).close()
    for wanted in ("alpha-2", "default/alpha-2", "latest"):
        with holdfast.Run.find(str(tmp_path), wanted) as run:
            assert run.place.run_id == "alpha-2"
    for wanted in ("alpha", "beta"):
        with pytest.raises(UsageError, match=wanted):
            holdfast.Run.find(str(tmp_path), wanted)


def test_everything_that_the_journal_holds_of_a_key_is_shown_in_order(tmp_path: Path) -> None:
    with holdfast.run(task(), models=["mock/m"], store=str(tmp_path)) as run:
        key = run.samples()[0].key
        assert [kind for kind, _, _ in run.story_of(key)] == ["step", "sample.finished", "score"]
        with pytest.raises(UsageError, match="no key 'sums/m/99/1'; did you mean 'sums/m/2/1'"):
            run.story_of("sums/m/99/1")


def test_a_file_names_its_own_models() -> None:
    with pytest.raises(SpecError, match="models"):
        holdfast.run("spec.yaml", models=["mock/m"])
