"""What the engine counts for displays is what the report says in the end: for each model, also after resumes."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.engine import Engine, Progress
from holdfast.records.samples import Answer, Sample, Usage
from holdfast.report import ProgressTracker
from holdfast.runs import AnswerSelection, Given, Run, RunLocation, ScoreRequest, find_run, given_to_score
from holdfast.runs.scoring import score
from tests.unit.engine.runs import RUN, Asked, cut_after, given, go, model, rows

PRICE = {"input": 1000.0, "output": 2000.0}


async def right(request: Any) -> Answer:
    text = str(request.messages[-1]["content"])
    return Answer(text, {"role": "assistant", "content": text}, usage=Usage(10, 5))


async def wrong(request: Any) -> Answer:
    return Answer("no", {"role": "assistant", "content": "no"}, usage=Usage(10, 5))


def exact(sample: Sample, answer: Answer) -> bool:
    return bool(answer.text == sample.target)


async def judged(sample: Sample, answer: Answer, ctx: Any) -> dict[str, float]:
    await ctx.generate("Is it right?", role="judge")
    return {"quality": 0.5 if answer.text == "no" else 1.0}


def asked(**fields: Any) -> Given:
    tasks = [
        Asked("one", rows(6), scorers=[exact]),
        Asked("two", rows(4), scorers=[exact, judged], fields={"repeats": 2}),
    ]
    models = [model("a", right, price=PRICE), model("b", wrong, price=PRICE), model("free", wrong)]
    return given(tasks, models, **{"roles": {"judge": model("judge", right, price=PRICE)}, **fields})


class Last:
    """Remembers the last progress of a run; stops it after some samples if asked to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.progress = Progress(0)
        self.first = Progress(0)
        self._stop_after = stop_after

    async def __call__(self, engine: Engine, place: RunLocation) -> None:
        self.first = copied(engine)
        try:
            while True:
                await asyncio.sleep(0)
                if self._stop_after is not None and engine.progress.finished >= self._stop_after:
                    engine.stop()
        finally:
            self.progress = copied(engine)


def copied(engine: Engine) -> Progress:
    return msgspec.convert(msgspec.to_builtins(engine.progress_by_model()), Progress)


def compare(progress: Progress, store: Path) -> None:
    """With the report and the costs of the same run, which come from the index."""
    with Run.find(str(store), RUN) as run:
        report, costs = run.report(), run.cost_lines()
    for name, its in progress.models.items():
        cells = [cell for cell in report.cells if cell.model == name]
        assert (its.planned, its.finished) == (sum(c.planned for c in cells), sum(c.finished for c in cells))
        known = [line.cost.dollars for line in costs if line.model == name and line.cost.dollars is not None]
        assert its.dollars == pytest.approx(sum(known))
        assert its.has_unpriced == any(line.cost.unpriced for line in costs if line.model == name)
        scorers = [each for cell in cells for each in cell.scorers]
        for scorer, mean in its.scores.items():
            found = [each for each in scorers if each.scorer == scorer]
            counts = [each.summary.samples or each.summary.n for each in found]
            totals = [count * (each.summary.mean or 0.0) for count, each in zip(counts, found, strict=True)]
            assert mean.samples == sum(counts)
            assert mean.total == pytest.approx(sum(totals))


def test_each_model_has_its_counts_scores_and_dollars_with_judges(tmp_path: Path) -> None:
    last = Last()
    go(tmp_path, asked(), last)
    progress = last.progress
    assert {name: (each.finished, each.before) for name, each in progress.models.items()} == {
        "a": (14, 0),
        "b": (14, 0),
        "free": (14, 0),
    }
    assert progress.scorers == ["exact", "judged.quality"]
    means = {name: {k: m.value for k, m in each.scores.items()} for name, each in progress.models.items()}
    assert means["a"] == {"exact": 1.0, "judged.quality": 1.0}
    assert means["b"] == {"exact": 0.0, "judged.quality": 0.5}
    assert progress.models["a"].dollars == pytest.approx((14 + 8) * 0.02), "answers, and the judge's replies"
    assert progress.models["free"].dollars == pytest.approx(8 * 0.02)
    assert progress.models["free"].has_unpriced
    assert progress.usage == Usage(3 * 14 * 10, 3 * 14 * 5, requests=3 * 14), "of answers, without those of judges"
    compare(progress, tmp_path)


def test_scoring_counts_the_answers_that_it_scores_and_what_the_judges_cost(tmp_path: Path) -> None:
    go(tmp_path, asked())

    async def again(sample: Sample, answer: Answer, ctx: Any) -> float:
        await ctx.generate("How good is it?", role="judge")
        return 0.25

    place, last = find_run(str(tmp_path), RUN), Last()
    whole = ScoreRequest([again])
    asyncio.run(score(given_to_score(asked(), place, whole), place, whole, last))
    first, progress = last.first, last.progress
    assert (first.scoring, first.planned, first.finished) == (True, 42, 0)
    assert (progress.planned, progress.finished, progress.failed, progress.in_flight) == (42, 42, 0, 0)
    assert {name: (each.planned, each.finished) for name, each in progress.models.items()} == {
        "a": (14, 14),
        "b": (14, 14),
        "free": (14, 14),
    }
    assert {mean.value for each in progress.models.values() for mean in each.scores.values()} == {0.25}
    assert sum(each.dollars or 0.0 for each in progress.models.values()) == pytest.approx(42 * 0.02), "no answer"


def test_scoring_counts_how_often_a_scorer_failed(tmp_path: Path) -> None:
    go(tmp_path, asked())

    def broken(sample: Sample, answer: Answer) -> bool:
        raise ValueError("no")

    place, last = find_run(str(tmp_path), RUN), Last()
    part = ScoreRequest([broken], selection=AnswerSelection(samples=("s1",)))
    asyncio.run(score(given_to_score(asked(), place, part), place, part, last))
    progress = last.progress
    assert progress.planned == progress.finished == progress.scorer_failures > 0
    view = ProgressTracker().view(progress, progress.started + 1.0, ended=True)
    assert (view.total.done, view.total.failed) == (progress.planned, progress.planned)


def test_scorers_are_named_before_the_first_score(tmp_path: Path) -> None:
    last = Last()
    go(tmp_path, asked(), last)
    assert last.first.scorers == ["exact", "judged"]
    assert [each.dollars for each in last.first.models.values()] == [0.0, 0.0, 0.0], "prices are known"


@pytest.mark.parametrize("kept", [5, 20, 31, 60, 100])
def test_after_a_kill_the_counts_continue_where_the_journal_ends(tmp_path: Path, kept: int) -> None:
    go(tmp_path, asked())
    seen = iter(range(10_000))
    cut_after(tmp_path, lambda kind, data: next(seen) < kept)
    last = Last()
    go(tmp_path, asked(), last)
    assert last.first.finished == last.first.before == sum(each.before for each in last.first.models.values())
    assert sum(each.finished for each in last.progress.models.values()) == last.progress.finished == 42
    compare(last.progress, tmp_path)


def test_after_a_stop_and_a_resume_it_is_the_same(tmp_path: Path) -> None:
    stopped = Last(stop_after=10)
    go(tmp_path, asked(concurrency={"samples": 2}), stopped)
    compare(stopped.progress, tmp_path)
    last = Last()
    go(tmp_path, asked(), last)
    assert {name: each.scores for name, each in last.first.models.items()} == {
        name: each.scores for name, each in stopped.progress.models.items()
    }
    compare(last.progress, tmp_path)


def test_a_model_that_is_given_up_is_stopped(tmp_path: Path) -> None:
    refused = {"name": "m", "provider": "mock", "options": {"failures": [{"kind": "auth"}]}}
    fine = {"name": "n", "provider": "mock"}
    last = Last()
    go(tmp_path, given([Asked(rows=rows(9))], [refused, fine]), last)
    assert {name: (each.finished, each.stopped) for name, each in last.progress.models.items()} == {
        "m": (0, 9),
        "n": (9, 0),
    }


def test_scorers_that_fail_are_counted(tmp_path: Path) -> None:
    def broken(sample: Sample, answer: Answer) -> bool:
        raise ValueError("no")

    last = Last()
    go(tmp_path, given([Asked(rows=rows(3), scorers=[broken, exact])]), last)
    assert (last.progress.scorer_failures, last.progress.scorers) == (3, ["broken", "exact"])
    assert list(last.progress.models["mock"].scores) == ["exact"]
