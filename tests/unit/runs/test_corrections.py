"""Corrections of models without answers: at every point of a crash, over extensions, and without stored data."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import DriftError
from holdfast.records import Draft, draft
from holdfast.records.facts import BatchJob, Change, Failure, SampleFailed, Step, StepId, StepStarted
from holdfast.records.samples import Answer
from holdfast.runs import Given, Retry, Run
from holdfast.runs.execution.drift import corrected_models, find_renames, model_in
from holdfast.state import Fold
from tests.unit.engine.runs import RUN, Asked, given, go, mock, records, rows
from tests.unit.runs.advice import grow, retry, summary
from tests.unit.state.stories import fold_of, key, new_run, started

REFUSED = {"failures": [{"kind": "bad_request"}]}


class KilledError(BaseException):
    """As if the process had been killed here."""


def wanted(options: dict[str, Any], count: int = 3, name: str = "a", **fields: Any) -> Given:
    models = [mock(name=name, options=options), mock(name="b")]
    return given([Asked(rows=rows(count), fields=fields.pop("task", {}))], models, **fields)


def counts(store: Path) -> tuple[int, int]:
    found = summary(store)
    assert found.finished + found.failed + found.unfinished == found.planned
    with Run.find(str(store), RUN) as run:
        assert sum(cell.planned for cell in run.cells()) == found.planned == len(list(run.lines()))
    return found.planned, found.finished


@pytest.mark.parametrize("record_data", [True, False])
def test_cells_of_several_blocks_are_corrected_and_extended_afterwards(tmp_path: Path, record_data: bool) -> None:
    go(tmp_path, wanted(REFUSED, record_data=record_data))
    grow(tmp_path, wanted(REFUSED, 5, record_data=record_data))
    assert counts(tmp_path) == (10, 5)
    go(tmp_path, wanted({}, 5, record_data=record_data))
    assert counts(tmp_path) == (10, 10)
    grow(tmp_path, wanted({}, 6, record_data=record_data, task={"repeats": 2}))
    assert counts(tmp_path) == (24, 24)
    go(tmp_path, wanted({}, 6, record_data=record_data, task={"repeats": 2}))
    with pytest.raises(DriftError, match="; task with a has recorded answers or calls"):
        go(tmp_path, wanted({"seed": 1}, 6, record_data=record_data, task={"repeats": 2}))


@pytest.mark.parametrize("record_data", [True, False])
def test_a_model_is_renamed_again_and_back_over_several_blocks(tmp_path: Path, record_data: bool) -> None:
    go(tmp_path, wanted(REFUSED, record_data=record_data))
    grow(tmp_path, wanted(REFUSED, 5, record_data=record_data))
    for name in ("c", "d", "a", "c"):
        go(tmp_path, wanted(REFUSED, 5, name, record_data=record_data))
        assert counts(tmp_path) == (10, 5)
        with Run.find(str(tmp_path), RUN) as run:
            assert {cell.model for cell in run.cells()} == {name, "b"}
            assert {line.key.split("/")[1] for line in run.lines()} == {name, "b"}
    go(tmp_path, wanted({}, 5, "e", record_data=record_data))
    assert counts(tmp_path) == (10, 10)
    with pytest.raises(DriftError, match="; task with e has recorded answers or calls"):
        go(tmp_path, wanted({}, 5, "f", record_data=record_data))


def test_failed_samples_that_are_kept_get_their_new_keys(tmp_path: Path) -> None:
    go(tmp_path, wanted(REFUSED))
    retry(tmp_path, wanted({}, name="c"), Retry(keep=True))
    with Run.find(str(tmp_path), RUN) as run:
        lines = [line for line in run.lines() if line.model == "c"]
        assert [(line.status, line.key) for line in lines] == [("failed", f"task/c/s{n}/1") for n in range(3)]
        assert run.show("task/c/s1/1").status == "failed"


def test_models_that_only_change_places_are_not_renamed() -> None:
    first, second = wanted({}), wanted({}, name="c")
    assert find_renames(first.spec, second.spec) == {"a": "c"}
    assert find_renames(first.spec, wanted({}, name="b-2").spec) == {"a": "b-2"}
    swapped = msgspec.structs.replace(first.spec, models=first.spec.models[::-1])
    fewer = msgspec.structs.replace(second.spec, models=second.spec.models[:1])
    assert find_renames(first.spec, swapped) == find_renames(first.spec, fewer) == {}


def test_a_model_is_corrected_twice_and_the_last_plan_counts(tmp_path: Path) -> None:
    go(tmp_path, wanted(REFUSED))
    go(tmp_path, wanted({**REFUSED, "seed": 1}))
    assert counts(tmp_path) == (6, 3)
    go(tmp_path, wanted({}))
    assert counts(tmp_path) == (6, 6)
    assert [kind for kind, *_ in records(tmp_path)].count("run.replanned") == 2


@pytest.mark.parametrize("name", ["a", "c"])
@pytest.mark.parametrize("place", ["RunReplanned", "RunResumed", "write_spec_file"])
def test_killed_anywhere_the_same_command_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, name: str
) -> None:
    """Before the record, before `run.resumed`, after both."""
    import holdfast.runs.execution.resume as resuming

    def die(*arguments: Any, **more: Any) -> None:
        raise KilledError

    go(tmp_path, wanted(REFUSED))
    with monkeypatch.context() as patch:
        patch.setattr(resuming, place, die)
        with pytest.raises(KilledError):
            go(tmp_path, wanted({}, name=name))
    assert counts(tmp_path) == (6, 3)
    go(tmp_path, wanted({}, name=name))
    assert counts(tmp_path) == (6, 6)
    assert [kind for kind, *_ in records(tmp_path)].count("run.replanned") == 1


FAILED = Failure("bad_request", "no")
PROTECTED = {
    "an answered step": [draft("step", Step(1, "solve/1", "q", answer=Answer("x")), key(1))],
    "an announced call": [draft("step.started", StepStarted(1, "solve/1", "q"), key(1))],
    "a tool that failed": [draft("step", Step(1, "solve/1", "q", kind="call", failure=FAILED), key(1))],
    "an open job": [draft("batch", BatchJob("t", "models.model", (StepId(1, "solve/1", "q"),)))],
}
OPEN = {
    "nothing": [],
    "a refused request": [draft("step", Step(1, "solve/1", "q", failure=FAILED), key(1))],
    "a failed sample": [draft("sample.failed", SampleFailed(1, 1, FAILED), key(1))],
    "a job of another model": [draft("batch", BatchJob("t", "models.o", (StepId(1, "solve/1", "q"),)))],
}


@pytest.mark.parametrize("name", [*PROTECTED, *OPEN])
def test_what_protects_a_model_from_corrections(tmp_path: Path, name: str) -> None:
    found: list[Draft] = {**PROTECTED, **OPEN}[name]
    fold: Fold = fold_of(new_run(tmp_path, [started(3), *found]))
    model = fold.story.cells[0].model
    (obstacle,) = corrected_models([Change(f"models.{model}.model", "a", "b", "result")], fold, {}).values()
    assert bool(obstacle) is (name in PROTECTED)


def test_names_with_dots_are_distinguished() -> None:
    names = ("gpt", "gpt.4")
    assert [model_in(field, names) for field in ("models.gpt.4.model", "models.gpt.model", "models.x.model")] == [
        "gpt.4",
        "gpt",
        "",
    ]
    assert model_in("models.gpt", names) == ""
