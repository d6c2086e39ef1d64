"""The same from Python: tasks, models, scorers and solvers as objects."""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.api import Task
from holdfast.records.samples import Answer, Sample, Score
from holdfast.report import ExportLine
from holdfast.solve.context import Context
from tests.e2e.commands import call

ROWS = [{"id": "a", "q": "2+2", "target": "4"}, {"id": "b", "q": "3+3", "target": "6"}]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)


def answered(task: Task, **fields: Any) -> Sequence[ExportLine]:
    """Run a task on the mock, which repeats its prompt; the export."""
    with holdfast.run(task, models=["mock"], id="x", **fields) as run:
        return run.samples()


def scored(scorer: Any) -> list[Any]:
    return [line.scores for line in answered(Task("t", ROWS, "{q}", scorers=[scorer]))]


@holdfast.scorer
def repeats(sample: Sample, answer: Answer) -> bool:
    return bool(answer.text == sample.row["q"])


def test_a_task_runs_on_a_model_named_in_short(tmp_path: Path) -> None:
    with holdfast.run(Task("sums", data=ROWS, prompt="{q}", scorers=[repeats]), models=["mock"]) as run:
        lines = run.samples()
        report = run.report()
    assert [(line.key, line.output, line.scores) for line in lines] == [
        ("sums/mock/a/1", "2+2", {"repeats": True}),
        ("sums/mock/b/1", "3+3", {"repeats": True}),
    ]
    assert report.status == "completed"
    assert report.cells[0].scorers[0].summary.mean == 1.0
    assert (tmp_path / "runs" / "default").is_dir()


def test_a_run_works_inside_a_running_event_loop() -> None:
    async def notebook() -> Sequence[ExportLine]:
        return answered(Task("t", ROWS, "{q}"))

    assert [line.output for line in asyncio.run(notebook())] == ["2+2", "3+3"]


def test_an_error_inside_a_running_event_loop_reaches_its_caller() -> None:
    async def notebook() -> None:
        holdfast.run(Task("t", ROWS, "{nope}"), models=["mock"])

    with pytest.raises(holdfast.SpecError, match="nope"):
        asyncio.run(notebook())


def test_a_run_can_be_awaited() -> None:
    async def script() -> Sequence[ExportLine]:
        with await holdfast.run_async(Task("t", ROWS, "{q}"), ["mock"], id="x", store="elsewhere") as run:
            return run.samples()

    assert [line.output for line in asyncio.run(script())] == ["2+2", "3+3"]
    assert Path("elsewhere/default/x").is_dir()


def test_a_spec_in_a_file_runs_from_python_too(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    spec = {
        "models": [{"name": "mock", "provider": "mock"}],
        "tasks": [{"name": "t", "dataset": {"path": "rows.jsonl"}, "prompt": "{q}"}],
    }
    (tmp_path / "eval.yaml").write_text(json.dumps(spec))
    with holdfast.run(str(tmp_path / "eval.yaml"), id="x", limit=1) as run:
        assert [line.key for line in run.samples()] == ["t/mock/a/1"]


def test_a_path_is_data_too(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,q,target\na,2+2,4\n")
    assert [line.output for line in answered(Task("t", "rows.csv", "{q}"))] == ["2+2"]


@pytest.mark.parametrize(
    ("result", "scores"),
    [
        (True, {"given": True}),
        (False, {"given": False}),
        (3, {"given": 3}),
        (0.25, {"given": 0.25}),
        ("good", {"given": "good"}),
        ({"style": 2, "facts": True}, {"given.style": 2, "given.facts": True}),
        (Score(0.5, "half right", {"by": "me"}), {"given": 0.5}),
        (Score({"a": 1, "b": 0}), {"given.a": 1, "given.b": 0}),
        (None, {"given": None}),
        (math.nan, {"given": None}),
        (Score(None, "cannot tell"), {"given": None}),
    ],
    ids=repr,
)
def test_a_scorer_may_return_any_kind_of_score(result: Any, scores: dict[str, Any]) -> None:
    def given(sample: Sample, answer: Answer) -> Any:
        return result

    assert scored(given) == [scores, scores]


def test_a_scorer_may_be_async_and_have_another_name() -> None:
    @holdfast.scorer(name="close")
    async def judge(sample: Sample, answer: Answer) -> float:
        await asyncio.sleep(0)
        return 0.5

    assert scored(judge) == [{"close": 0.5}] * 2


@pytest.mark.parametrize("nothing", [None, math.nan], ids=["None", "NaN"])
def test_no_score_is_counted_and_not_averaged_in(nothing: float | None) -> None:
    def some(sample: Sample, answer: Answer) -> float | None:
        return 1.0 if sample.id == "a" else nothing

    with holdfast.run(Task("t", ROWS, "{q}", scorers=[some]), models=["mock"]) as run:
        (scorer,) = run.report().cells[0].scorers
    assert (scorer.summary.n, scorer.summary.mean, scorer.no_score, scorer.failures) == (1, 1.0, 1, 0)


def test_labels_are_counted() -> None:
    def label(sample: Sample, answer: Answer) -> str:
        return "good" if sample.id == "a" else "bad"

    with holdfast.run(Task("t", ROWS, "{q}", scorers=[label]), models=["mock"]) as run:
        (scorer,) = run.report().cells[0].scorers
    assert (scorer.labels, scorer.summary.mean, scorer.no_score) == ({"good": 1, "bad": 1}, None, 0)


def test_a_scorer_that_raises_is_a_failure_and_not_a_zero() -> None:
    def fragile(sample: Sample, answer: Answer) -> float:
        return 1.0 if sample.id == "a" else float("not a number")

    with holdfast.run(Task("t", ROWS, "{q}", scorers=[fragile, repeats]), models=["mock"]) as run:
        report = run.report()
        story = run.show("t/mock/b/1")
        lines = run.samples()
    by_name = {each.scorer: each for each in report.cells[0].scorers}
    failed, other = by_name["fragile"], by_name["repeats"]
    assert (failed.summary.n, failed.summary.mean, failed.no_score, failed.failures) == (1, 1.0, 0, 1)
    assert (other.summary.n, other.summary.mean, other.failures) == (2, 1.0, 0)
    assert [line.status for line in lines] == ["finished", "finished"]
    assert "not a number" in lines[1].scores["fragile"]["failure"]["message"]
    assert lines[1].scores["repeats"] is True
    (failure,) = (each.failure for each in story.scores if each.failure)
    assert failure.kind == "scorer"
    assert "not a number" in failure.message
    assert "in fragile" in failure.detail


@pytest.mark.parametrize(
    "result",
    [object(), {}, math.inf, [1, 2], {"a": object()}, {1: 2}],
    ids=["an object", "an empty dict", "infinity", "a list", "an object in a dict", "a number as key"],
)
def test_what_is_no_score_is_a_failure_and_not_a_zero(result: Any) -> None:
    def odd(sample: Sample, answer: Answer) -> Any:
        return result

    with holdfast.run(Task("t", ROWS, "{q}", scorers=[odd]), models=["mock"]) as run:
        (scorer,) = run.report().cells[0].scorers
    assert (scorer.summary.n, scorer.summary.mean, scorer.failures) == (0, None, 2)


def test_repeats_are_answers_of_their_own_and_one_group() -> None:
    def third(sample: Sample, answer: Answer) -> bool:
        return answer.text == "1"

    async def count(sample: Sample, ctx: Context) -> str:
        return str(ctx.random.randrange(3))

    with holdfast.run(Task("t", ROWS, "{q}", solver=count, scorers=[third], repeats=8), models=["mock"]) as run:
        lines = run.samples()
        (scorer,) = run.report().cells[0].scorers
    assert [line.key for line in lines] == [f"t/mock/{name}/{i}" for name in "ab" for i in range(1, 9)]
    assert len({line.output for line in lines}) > 1
    assert scorer.summary.n == 16


def test_randomness_is_the_keys_own() -> None:
    async def draw(sample: Sample, ctx: Context) -> str:
        return str(ctx.random.random())

    task = Task("t", ROWS, "{q}", solver=draw, repeats=2)
    drawn = []
    for name, fields in (("one", {}), ("two", {"concurrency": {"samples": 1}}), ("other", {"seed": 1})):
        with holdfast.run(task, models=["mock"], id=name, **fields) as run:
            drawn.append([line.output for line in run.samples()])
    assert drawn[0] == drawn[1]
    assert len({*drawn[0], *drawn[2]}) == 8


def test_a_solver_may_be_a_function_of_several_turns() -> None:
    async def twice(sample: Sample, ctx: Context) -> Answer:
        first = await ctx.generate()
        return await ctx.generate([*ctx.messages, first.message, {"role": "user", "content": f"again {first.text}"}])

    lines = answered(Task("t", ROWS, "{q}", solver=twice))
    assert [line.output for line in lines] == ["again 2+2", "again 3+3"]


async def raise_(sample: Sample, ctx: Context) -> str:
    raise LookupError("nothing to be found")


async def return_number(sample: Sample, ctx: Context) -> Any:
    return 42


async def return_nothing(sample: Sample, ctx: Context) -> Any:
    return None


async def cancel_itself(sample: Sample, ctx: Context) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return "unreachable"


async def raise_cancelled(sample: Sample, ctx: Context) -> str:
    raise asyncio.CancelledError


async def time_out_by_itself(sample: Sample, ctx: Context) -> str:
    raise TimeoutError("of a tool")


async def ask_an_unknown_role(sample: Sample, ctx: Context) -> Answer:
    return await ctx.generate(role="jugde")


async def send_what_is_no_json(sample: Sample, ctx: Context) -> Answer:
    return await ctx.generate([{"role": "user", "content": object()}])


async def return_what_is_no_json(sample: Sample, ctx: Context) -> Answer:
    return Answer("x", {"role": "assistant", "content": object()})


async def return_half_a_character(sample: Sample, ctx: Context) -> str:
    return "\ud800"


async def exit_(sample: Sample, ctx: Context) -> str:
    raise SystemExit(3)


async def gather_failures(sample: Sample, ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        group.create_task(raise_(sample, ctx))
        group.create_task(ctx.generate())
    return "unreachable"


@pytest.mark.parametrize(
    ("bad", "kinds"),
    [
        (raise_, {"solver"}),
        (return_number, {"solver"}),
        (return_nothing, {"solver"}),
        (cancel_itself, {"cancelled"}),
        (raise_cancelled, {"cancelled"}),
        (time_out_by_itself, {"solver"}),
        (ask_an_unknown_role, {"solver"}),
        (send_what_is_no_json, {"solver", "record", "bad_request"}),
        (return_what_is_no_json, {"record", "solver"}),
        (return_half_a_character, {"record", "solver"}),
        (exit_, {"solver"}),
        (gather_failures, {"solver"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_solver_that_fails_hurts_only_its_own_sample(bad: Callable[..., Any], kinds: set[str]) -> None:
    async def solve(sample: Sample, ctx: Context) -> Any:
        return await bad(sample, ctx) if sample.id == "b" else await ctx.generate()

    rows = [{"id": name, "q": f"{name}?"} for name in "abcdef"]
    lines = answered(Task("t", rows, "{q}", solver=solve, sample_retries=1, scorers=["includes"]))
    by_id = {line.sample_id: line for line in lines}
    failed = by_id.pop("b")
    assert {line.status for line in by_id.values()} == {"finished"}
    assert [line.output for line in by_id.values()] == [f"{name}?" for name in "acdef"]
    assert (failed.status, failed.output, failed.scores) == ("failed", None, {})
    assert failed.error is not None
    assert failed.error.kind in kinds
    assert failed.error.message
    assert failed.attempt in (1, 2)


def test_the_users_own_lines_are_in_the_error() -> None:
    (line,) = answered(Task("t", ROWS[:1], "{q}", solver=raise_, sample_retries=0))
    assert line.error is not None
    assert line.error.message == "LookupError: nothing to be found"
    assert "in raise_" in line.error.detail


def test_a_sample_that_takes_too_long_fails_as_a_timeout_and_its_siblings_continue() -> None:
    async def slow(sample: Sample, ctx: Context) -> Answer:
        if sample.id == "a":
            await asyncio.Event().wait()
        return await ctx.generate()

    lines = answered(Task("t", ROWS, "{q}", solver=slow, sample_retries=0), limits={"sample": {"seconds": 0.2}})
    assert [(line.status, line.error and line.error.kind) for line in lines] == [
        ("failed", "timeout"),
        ("finished", None),
    ]


def test_a_sample_may_not_ask_more_often_than_its_limit() -> None:
    async def endless(sample: Sample, ctx: Context) -> str:
        while True:
            await ctx.generate()

    lines = answered(Task("t", ROWS, "{q}", solver=endless), limits={"sample": {"steps": 3}})
    assert [(line.status, line.error and line.error.kind, line.input_tokens) for line in lines] == [
        ("failed", "limit", 3)
    ] * 2


def test_failed_samples_are_tried_again_by_the_next_run_and_the_others_are_not() -> None:
    calls: list[str] = []

    async def mended(sample: Sample, ctx: Context) -> Answer:
        calls.append(sample.id)
        if sample.id == "b" and calls.count("b") == 1:
            raise RuntimeError("not yet")
        return await ctx.generate()

    task = Task("t", ROWS, "{q}", solver=mended, sample_retries=0)
    assert [line.status for line in answered(task)] == ["finished", "failed"]
    assert [line.status for line in answered(task)] == ["finished", "finished"]
    assert sorted(calls) == ["a", "b", "b"]


def test_a_run_that_exists_is_refused_if_it_would_mix_two_experiments() -> None:
    answered(Task("t", ROWS, "{q}"))
    with pytest.raises(holdfast.DriftError) as refused:
        answered(Task("t", ROWS, "Compute {q}"))
    (change,) = refused.value.changes
    assert "tasks.t.prompt" in str(change)


def test_another_scorer_on_the_same_answers_repeats_no_request() -> None:
    calls: list[str] = []

    async def counted(sample: Sample, ctx: Context) -> Answer:
        calls.append(sample.id)
        return await ctx.generate()

    def length(sample: Sample, answer: Answer) -> int:
        return len(answer.text)

    first = answered(Task("t", ROWS, "{q}", solver=counted, scorers=[repeats]))
    second = answered(Task("t", ROWS, "{q}", solver=counted, scorers=[length]))
    assert [line.scores for line in first] == [{"repeats": True}] * 2
    assert [line.scores for line in second] == [{"length": 3}] * 2
    assert sorted(calls) == ["a", "b"]


def not_async(sample: Sample, ctx: Context) -> Any:
    return "x"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: holdfast.run(Task("t", ROWS, "{q}"), models=[]), "models"),
        (lambda: holdfast.run([], models=["mock"]), "tasks"),
        (lambda: holdfast.run(Task("t", [], "{q}"), models=["mock"]), "empty"),
        (lambda: holdfast.run(Task("t", ROWS, "{q}", promt="x"), models=["mock"]), "promt"),
        (lambda: holdfast.run(Task("t", ROWS, "{q}"), models=["mok"]), "'mock'"),
        (lambda: holdfast.run(Task("t", ROWS, "{q}", scorers=["numerc"]), models=["mock"]), "'numeric'"),
        (lambda: holdfast.run([Task("t", ROWS), Task("t", ROWS)], models=["mock"]), "'t'"),
        (lambda: holdfast.run(Task("t", ROWS, "{q}", solver=not_async), models=["mock"]), "async"),
        (lambda: holdfast.run(Task("t", [{"id": "a", "q": object()}], "{q}"), models=["mock"]), "JSON"),
    ],
)
def test_a_mistake_is_refused_before_anything_exists(make: Callable[[], Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(holdfast.HoldfastError, match=named):
        make()
    assert list(tmp_path.iterdir()) == []


def test_scoring_again_without_stored_scorers_is_refused(tmp_path: Path) -> None:
    scored(lambda sample, answer: True)
    done = call("score", "x", cwd=tmp_path)
    assert done.code == 2
    assert done.err == "holdfast: x stores no scorers; name some: holdfast score x --scorers FILE|NAME\n"


def test_scoring_again_skips_tasks_without_stored_scorers(tmp_path: Path) -> None:
    tasks = [Task("own", ROWS, "{q}", scorers=[repeats]), Task("named", ROWS, "{q}", scorers=["includes"])]
    holdfast.run(tasks, models=["mock"], id="x").close()
    done = call("score", "x", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "left" not in done.err
