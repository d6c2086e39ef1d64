"""Holdfast from Python: `run`, also inside a running loop, and what it gives back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import SpecError, UsageError
from holdfast.records.samples import Answer, Sample


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
        story = run.show(key)
        (attempt,) = story.attempts
        (score,) = story.scores
        assert (len(attempt.steps), attempt.status, score.current) == (1, "finished", True)
        assert attempt.steps[0].at <= attempt.ended <= score.at
        with pytest.raises(UsageError, match="no key 'sums/m/99/1'; did you mean 'sums/m/2/1'"):
            run.show("sums/m/99/1")


SPEC = """
models: [{name: a, provider: mock}, {name: b, provider: mock}]
tasks: [{name: one, dataset: {path: rows.jsonl}}, {name: two, models: [b], dataset: {path: rows.jsonl}}]
"""


def written(folder: Path) -> str:
    (folder / "rows.jsonl").write_text("".join(f'{{"id": "s{i}", "input": "{i}"}}\n' for i in range(3)))
    (folder / "spec.yaml").write_text(SPEC)
    return str(folder / "spec.yaml")


@pytest.mark.parametrize(
    ("part", "keys"),
    [
        ({"limit": 1, "models": ["a"]}, ["one/a/s0/1"]),
        ({"tasks": ["two"], "samples": ["s2"]}, ["two/b/s2/1"]),
        ({"models": ["b"], "limit": 1}, ["one/b/s0/1", "two/b/s0/1"]),
    ],
    ids=str,
)
def test_a_part_of_the_spec_in_a_file_can_be_run(tmp_path: Path, part: dict[str, Any], keys: list[str]) -> None:
    with holdfast.run(written(tmp_path), store=str(tmp_path / "runs"), **part) as run:
        assert [line.key for line in run.samples()] == keys


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"models": ["aa"]}, "did you mean 'a'"),
        ({"tasks": ["ones"]}, "did you mean 'one'"),
        ({"samples": ["s9"]}, "no task has a sample 's9'"),
        ({"tasks": ["two"], "models": ["a"]}, "no task runs with it"),
        ({"models": [{"name": "c", "provider": "mock"}]}, "a spec file has its own models"),
        ({"limit": 0}, "limit"),
        ({"description": 1j}, "JSON"),
    ],
    ids=str,
)
def test_a_part_that_the_spec_does_not_have_is_refused(tmp_path: Path, part: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        holdfast.run(written(tmp_path), store=str(tmp_path / "runs"), **part)
    assert not (tmp_path / "runs").exists()


def test_tasks_may_be_passed_by_their_keyword_and_chosen_by_name(tmp_path: Path) -> None:
    other = holdfast.Task("other", data=[{"q": "1"}], prompt="{q}")
    with holdfast.run(tasks=[task(), other], models=["mock"], store=str(tmp_path)) as run:
        assert run.summary().planned == 3
    with holdfast.run([task(), other], models=["mock"], tasks=["other"], store=str(tmp_path)) as run:
        assert [line.key for line in run.samples()] == ["other/mock/1/1"]


def test_a_call_without_anything_to_run_is_refused() -> None:
    with pytest.raises(SpecError, match="nothing to run"):
        holdfast.run(models=["mock"])


def test_one_name_is_as_good_as_a_list_of_one(tmp_path: Path) -> None:
    with holdfast.run(task(), models=["mock/m"], store=str(tmp_path), quiet=True) as run:
        assert [line.row for line in run.samples(tasks="sums", columns="target")] == [
            {"target": "2+2"},
            {"target": "7"},
        ]
        run.export(tmp_path / "one.csv", tasks="sums", columns="target")
        assert (tmp_path / "one.csv").read_text().splitlines()[0].endswith(",row.target")
        with pytest.raises(UsageError, match="wrong"):
            run.samples(wrong="yes")  # type: ignore[arg-type]  # as a user may write it


def test_a_run_is_named_by_a_text_or_a_path_and_a_list_of_runs_is_refused(tmp_path: Path) -> None:
    with holdfast.run(task(), models=["mock/m"], store=str(tmp_path), id="mine", quiet=True):
        pass
    with holdfast.open_run(tmp_path / "default" / "mine") as opened:
        assert opened.run_id == "mine"
    with pytest.raises(UsageError, match="found list"):
        holdfast.compare(["mine", "mine"], store=str(tmp_path))  # type: ignore[arg-type]  # as a user may write it


def test_a_profile_prints_as_the_command_does(tmp_path: Path) -> None:
    with holdfast.run(task(), models=["mock/m"], store=str(tmp_path), id="mine", quiet=True) as run:
        lines = str(run.profile()).splitlines()
    assert lines[0].startswith("default/mine  completed, worked for ")
    assert lines[1].split()[:4] == ["model", "phase", "n", "p50"]
    assert "m: 2 requests, 0 retries" in "\n".join(lines)
