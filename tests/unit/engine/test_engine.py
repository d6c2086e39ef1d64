"""Whole runs: totals, bad neighbours, limits of concurrency, stopping, and what a resume still has to do."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine import Engine
from holdfast.errors import StoppedError
from holdfast.journal.appender import Appender
from holdfast.models import Request
from holdfast.records.samples import Answer, Sample, Score
from holdfast.runs import RunLocation
from holdfast.solve import Context
from tests.unit.engine.runs import Asked, cut_after, echo, given, go, lines, mock, model, records, rows


def right(sample: Sample, answer: Answer) -> bool:
    return bool(answer.text == sample.target)


def totals(store: Path) -> Counter[str]:
    return Counter(line.status for line in lines(store))


def test_a_run_answers_and_scores_every_key(tmp_path: Path) -> None:
    ended = go(tmp_path, given([Asked(rows=rows(20), scorers=[right], fields={"repeats": 2})]))
    assert (ended.finished, ended.failed, ended.unfinished) == (40, 0, 0)
    assert [(line.status, line.output, line.scores) for line in lines(tmp_path)] == [
        ("finished", f"question {number}", {"right": True}) for number in range(20) for _ in range(2)
    ]


def test_an_answer_and_its_quick_scores_are_saved_together(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(30), scorers=["includes", "exact_match"])]))
    saved = list(enumerate(records(tmp_path), start=1))
    answers = [n for n, (kind, _) in saved if kind == "sample.finished"]
    assert len(answers) == 30
    for n in answers:
        (_, first), (_, second) = saved[n : n + 2]
        assert [first[0], second[0]] == ["score", "score"]
        assert [(each["of"], each.get("last", False)) for _, each in (first, second)] == [(n, False), (n, True)]


@pytest.mark.parametrize("kept", [1, 2])
def test_scores_that_were_cut_off_from_their_answer_are_computed_again(tmp_path: Path, kept: int) -> None:
    """The answer is not requested again."""
    asked: list[Request] = []

    async def reply(request: Request) -> str:
        asked.append(request)
        return await echo(request)

    what = given([Asked(rows=rows(1), scorers=["includes", "exact_match"])], [model("m", reply)])
    go(tmp_path, what)
    cut_after(tmp_path, lambda kind, data: kind != "score" or (kept == 2 and not data.get("last", False)))
    go(tmp_path, what)
    assert [line.scores for line in lines(tmp_path)] == [{"includes": True, "exact_match": True}]
    assert len(asked) == 1


def test_a_quick_score_that_cannot_be_saved_is_a_failure_of_its_scorer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of the sample: its answer is kept."""
    unwritable = {"includes": Score(True, "\ud800")}
    monkeypatch.setattr("holdfast.engine.scoring.score_at_once", lambda *_: unwritable)
    ended = go(tmp_path, given([Asked(rows=rows(1), scorers=["includes"])]))
    assert (ended.finished, ended.failed) == (1, 0)
    failures = [data["failure"]["kind"] for kind, data in records(tmp_path) if kind == "score"]
    assert failures == ["record"]


class Meter:
    """Counts how much happens at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    async def reply(self, request: Request) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(5):
            await asyncio.sleep(0)
        self.now -= 1
        return "answer"

    async def solve(self, sample: Sample, ctx: Context) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(5):
            await asyncio.sleep(0)
        self.now -= 1
        return "answer"

    async def score(self, sample: Sample, answer: Answer) -> bool:
        return bool(await self.solve(sample, None))  # type: ignore[arg-type]  # the context is not looked at


def test_no_more_samples_than_allowed_are_at_work_at_once(tmp_path: Path) -> None:
    meter = Meter()
    tasks = [Asked(name=name, rows=rows(20), solver=meter.solve) for name in ("one", "two")]
    go(tmp_path, given(tasks, concurrency={"samples": 7}))
    assert meter.most == 7


def test_no_more_samples_of_a_task_than_it_allows_are_at_work_at_once(tmp_path: Path) -> None:
    limited, free = Meter(), Meter()
    tasks = [
        Asked(name="limited", rows=rows(20), solver=limited.solve, fields={"max_samples": 3}),
        Asked(name="free", rows=rows(20), solver=free.solve),
    ]
    go(tmp_path, given(tasks, [mock(), mock(name="other")]))
    assert limited.most == 3
    assert free.most > 3


def test_no_more_requests_than_a_model_allows_are_in_flight_at_once(tmp_path: Path) -> None:
    async def several(sample: Sample, ctx: Context) -> str:
        answers = await asyncio.gather(*(ctx.generate(f"{sample.id} {number}") for number in range(4)))
        return answers[0].text

    narrow, wide = Meter(), Meter()
    models = [model("narrow", narrow.reply, max_connections=3), model("wide", wide.reply, max_connections=16)]
    go(tmp_path, given([Asked(rows=rows(20), solver=several)], models))
    assert (narrow.most, wide.most) == (3, 16)


def test_no_more_requests_than_the_stage_allows_are_in_flight_at_once(tmp_path: Path) -> None:
    meter = Meter()
    models = [model("one", meter.reply), model("two", meter.reply)]
    go(tmp_path, given([Asked(rows=rows(20))], models, concurrency={"generate": 5}))
    assert meter.most == 5


def test_no_more_answers_than_the_stage_allows_are_scored_at_once(tmp_path: Path) -> None:
    meter = Meter()
    tasks = [Asked(name=name, rows=rows(20), scorers=[meter.score]) for name in ("one", "two")]
    go(tmp_path, given(tasks, concurrency={"score": 4}))
    assert meter.most == 4


def test_a_task_at_its_own_limit_takes_no_places_from_the_others(tmp_path: Path) -> None:
    """The one sample of `narrow` waits for all of `wide`: that ends only if its siblings in line hold no places."""
    done: list[str] = []
    everyone = asyncio.Event()

    async def wide(sample: Sample, ctx: Context) -> str:
        done.append(sample.id)
        if len(done) == 10:
            everyone.set()
        return "wide"

    async def narrow(sample: Sample, ctx: Context) -> str:
        await asyncio.wait_for(everyone.wait(), 60)
        return "narrow"

    tasks = [
        Asked(name="narrow", rows=rows(6), solver=narrow, fields={"max_samples": 1, "sample_retries": 0}),
        Asked(name="wide", rows=rows(10), solver=wide),
    ]
    ended = go(tmp_path, given(tasks, concurrency={"samples": 3}))
    assert (ended.finished, ended.failed) == (16, 0)


def test_a_model_at_its_own_limit_takes_no_places_from_the_others(tmp_path: Path) -> None:
    done: list[str] = []
    everyone = asyncio.Event()

    async def several(sample: Sample, ctx: Context) -> str:
        await asyncio.gather(*(ctx.generate(f"{sample.id} {number}") for number in range(4)))
        return "answered"

    async def wide(request: Request) -> str:
        done.append("wide")
        if len(done) == 8:
            everyone.set()
        return "wide"

    async def narrow(request: Request) -> str:
        await asyncio.wait_for(everyone.wait(), 60)
        return "narrow"

    models = [model("narrow", narrow, max_connections=1), model("wide", wide)]
    wanted = given(
        [Asked(rows=rows(2), solver=several, fields={"sample_retries": 0})], models, concurrency={"generate": 3}
    )
    ended = go(tmp_path, wanted)
    assert (ended.finished, ended.failed) == (4, 0)


def test_cells_are_served_in_turn(tmp_path: Path) -> None:
    served: list[str] = []

    async def solve(sample: Sample, ctx: Context) -> str:
        served.append(str(ctx.messages[0]["content"]).split()[0])
        await asyncio.sleep(0)
        return "answer"

    tasks = [
        Asked(name=name, rows=rows(40), solver=solve, fields={"prompt": f"{name} {{input}}"})
        for name in ("a", "b", "c")
    ]
    go(tmp_path, given(tasks, concurrency={"samples": 6}))
    assert set(served[:30]) == {"a", "b", "c"}
    halves = Counter(served[: len(served) // 2])
    assert min(halves.values()) >= 10


def cancel_oneself(sample: Sample, ctx: Context) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "cancelled too early"


def empty_everything(sample: Sample, ctx: Context) -> str:
    ctx.messages.clear()
    sample.row.clear()
    return "emptied"


def raising(error: BaseException) -> Callable[[Sample, Context], str]:
    def misbehave(sample: Sample, ctx: Context) -> str:
        raise error

    return misbehave


def returning(result: Any) -> Callable[[Sample, Context], Any]:
    return lambda sample, ctx: result


def made(**fields: Any) -> Answer:
    """An answer as a careless solver makes it: types are not checked when it is built."""
    return Answer(**fields)


MISBEHAVIOUR: dict[str, Callable[[Sample, Context], Any]] = {
    "raises": raising(ValueError("no")),
    "exits": raising(SystemExit(3)),
    "raises a cancellation": raising(asyncio.CancelledError()),
    "cancels itself": cancel_oneself,
    "returns a number": returning(5),
    "an object in its message": returning(Answer("a", {"content": object()})),
    "a number as text": returning(made(text=5)),
    "no usage": returning(made(text="a", usage=None)),
    "too large": returning("x" * (65 << 20)),
    "empties everything": empty_everything,
}


@pytest.mark.parametrize("name", MISBEHAVIOUR)
@pytest.mark.parametrize("concurrency", [1, 64])
def test_one_bad_sample_never_hurts_another(tmp_path: Path, name: str, concurrency: int) -> None:
    async def solve(sample: Sample, ctx: Context) -> Any:
        return MISBEHAVIOUR[name](sample, ctx) if sample.id == "s1" else await ctx.generate()

    wanted = given(
        [Asked(rows=rows(5), solver=solve, scorers=[right], fields={"sample_retries": 0, "repeats": 2})],
        concurrency={"samples": concurrency},
    )
    ended = go(tmp_path, wanted)
    assert ended.finished + ended.failed == 10
    assert [(line.status, line.output, line.scores) for line in lines(tmp_path) if line.sample_id != "s1"] == [
        ("finished", f"question {number}", {"right": True}) for number in (0, 2, 3, 4) for _ in range(2)
    ]
    assert totals(tmp_path) == Counter(finished=ended.finished, failed=ended.failed)
    assert go(tmp_path, wanted).finished == ended.finished


@pytest.mark.parametrize("text", [None, 5])
def test_a_model_whose_answer_has_the_wrong_types_fails_its_sample_and_the_run_stays_readable(
    tmp_path: Path, text: Any
) -> None:
    async def odd(request: Request) -> Answer:
        return Answer(text, finish_reason=None)  # type: ignore[arg-type]  # what a careless provider makes

    wanted = given([Asked(rows=rows(2), fields={"sample_retries": 0})], [model("odd", odd), model("echo", echo)])
    ended = go(tmp_path, wanted)
    assert (ended.finished, ended.failed) == (2, 2)
    assert totals(tmp_path) == {"finished": 2, "failed": 2}
    assert go(tmp_path, wanted).finished == 2


def test_a_score_whose_metadata_is_no_mapping_is_a_failure_and_the_run_stays_readable(tmp_path: Path) -> None:
    def odd(sample: Sample, answer: Answer) -> Score:
        return Score(1.0, "because", [1, 2])  # type: ignore[arg-type]  # what a careless scorer makes

    wanted = given([Asked(rows=rows(2), scorers=[odd, right])])
    go(tmp_path, wanted)
    assert totals(tmp_path) == {"finished": 2}
    assert [line.scores["right"] for line in lines(tmp_path)] == [True, True]


def test_a_solver_that_changes_its_row_and_messages_changes_them_for_nobody_else(tmp_path: Path) -> None:
    seen: list[tuple[dict[str, Any], Any]] = []

    async def greedy(sample: Sample, ctx: Context) -> str:
        seen.append((dict(sample.row), [dict(message) for message in ctx.messages]))
        sample.row["input"] = "spoilt"
        for message in ctx.messages:
            message["content"] = "spoilt"
        return "done"

    conversation = [{"role": "user", "content": "question"}]
    messages = [{"role": "system", "content": [{"type": "text", "text": "be brief"}]}]
    data = [{"id": str(number), "input": conversation} for number in range(2)]
    go(tmp_path, given([Asked(rows=data, solver=greedy, fields={"repeats": 3, "messages": messages})]))
    assert len(seen) == 6
    assert all(row["input"] == conversation for row, _ in seen)
    assert "spoilt" not in str(seen)


def test_the_time_limit_of_a_sample_is_its_own(tmp_path: Path) -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        if sample.id == "s1":
            await asyncio.Event().wait()
        return "done"

    wanted = given(
        [Asked(rows=rows(4), solver=solve, fields={"sample_retries": 0})], limits={"sample": {"seconds": 0.05}}
    )
    ended = go(tmp_path, wanted)
    assert (ended.finished, ended.failed) == (3, 1)
    failed = next(line for line in lines(tmp_path) if line.status == "failed")
    assert failed.error is not None
    assert (failed.sample_id, failed.error.kind) == ("s1", "timeout")


def test_totals_add_up_at_every_moment(tmp_path: Path) -> None:
    wrong: list[tuple[int, ...]] = []

    async def observe(engine: Engine, place: RunLocation) -> None:
        while True:
            progress = engine.progress
            left = progress.planned - progress.finished - progress.failed
            if left < 0 or progress.in_flight > left or progress.planned != 60:
                wrong.append((progress.planned, progress.finished, progress.failed, progress.in_flight))
            await asyncio.sleep(0)

    options = {"failures": [{"kind": "server", "every": 3}]}
    wanted = given([Asked(rows=rows(60), fields={"sample_retries": 0})], [mock(options=options)])
    ended = go(tmp_path, wanted, observe)
    assert wrong == []
    assert ended.failed > 0
    assert (ended.finished + ended.failed, ended.unfinished) == (60, 0)
    assert totals(tmp_path) == {"finished": ended.finished, "failed": ended.failed}


def stop_at(finished: int) -> Any:
    async def observe(engine: Engine, place: RunLocation) -> None:
        while engine.progress.finished < finished:  # noqa: ASYNC110 - progress has no event to wait for
            await asyncio.sleep(0)
        engine.stop()

    return observe


def test_a_stopped_run_keeps_what_it_has_and_goes_on_from_there(tmp_path: Path) -> None:
    asked: list[str] = []

    async def reply(request: Request) -> str:
        asked.append(str(request.messages[-1]["content"]))
        await asyncio.sleep(0.001)
        return asked[-1]

    wanted = given([Asked(rows=rows(50), scorers=[right])], [model("m", reply)], concurrency={"samples": 5})
    ended = go(tmp_path, wanted, stop_at(10))
    assert ended.interrupted
    assert ended.unfinished > 0
    assert ended.finished + ended.failed + ended.unfinished == 50
    assert not [data for kind, data in records(tmp_path) if kind == "step" and data.get("cancelled")]
    in_flight = len(asked) - sum(kind == "step" for kind, _ in records(tmp_path))
    again = go(tmp_path, wanted)
    assert (again.finished, again.unfinished) == (50, 0)
    assert len(asked) == 50 + in_flight
    assert in_flight <= 5


def test_a_run_that_is_stopped_before_it_begins_asks_for_nothing(tmp_path: Path) -> None:
    asked: list[Request] = []

    async def reply(request: Request) -> str:
        asked.append(request)
        return "answer"

    async def observe(engine: Engine, place: RunLocation) -> None:
        engine.stop()

    wanted = given([Asked(rows=rows(50))], [model("m", reply)])
    wanted_run = Engine.run

    async def run_later(engine: Engine) -> None:
        await asyncio.sleep(0)  # the observer comes first, as a signal may
        await wanted_run(engine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "run", run_later)
        ended = go(tmp_path, wanted, observe)
    assert (ended.interrupted, ended.unfinished, asked) == (True, 50, [])


def test_a_journal_that_stops_ends_the_run_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Appender.commit
    count = 0

    def failing(self: Appender, drafts: Any) -> Any:
        nonlocal count
        count += 1
        if count > 20:
            raise StoppedError("the disk is gone")
        return commit(self, drafts)

    wanted = given([Asked(rows=rows(200), scorers=[right])], concurrency={"samples": 4})
    with monkeypatch.context() as patch:
        patch.setattr(Appender, "commit", failing)
        with pytest.raises(StoppedError, match="the disk is gone"):
            go(tmp_path, wanted)
    done = totals(tmp_path)
    assert sum(done.values()) == 200
    assert done["unfinished"] > 0
    assert go(tmp_path, wanted).finished == 200


def test_answers_recorded_but_not_scored_are_scored_at_the_resume_and_not_asked_again(tmp_path: Path) -> None:
    asked: list[str] = []

    async def reply(request: Request) -> str:
        asked.append(str(request.messages[-1]["content"]))
        return asked[-1]

    wanted = given([Asked(rows=rows(10), scorers=[right])], [model("m", reply)])
    go(tmp_path, wanted)
    cut_after(tmp_path, lambda kind, data: kind != "score")
    finished = totals(tmp_path)["finished"]
    assert finished > 0
    assert [line.scores for line in lines(tmp_path)] == [{}] * 10
    asked.clear()
    ended = go(tmp_path, wanted)
    assert len(asked) <= 10 - finished
    assert (ended.finished, [line.scores for line in lines(tmp_path)]) == (10, [{"right": True}] * 10)


def test_an_answer_with_only_some_of_its_scores_is_scored_again_as_a_whole(tmp_path: Path) -> None:
    def first(sample: Sample, answer: Answer) -> bool:
        return True

    def second(sample: Sample, answer: Answer) -> bool:
        return False

    wanted = given([Asked(rows=rows(1), scorers=[first, second])])
    go(tmp_path, wanted)
    cut_after(tmp_path, lambda kind, data: data.get("scorer") != "second" and kind != "run.completed")
    assert lines(tmp_path)[0].scores == {"first": True}
    go(tmp_path, wanted)
    assert lines(tmp_path)[0].scores == {"first": True, "second": False}


def test_what_is_recorded_of_an_unfinished_key_is_replayed_at_the_resume(tmp_path: Path) -> None:
    asked: list[str] = []

    async def reply(request: Request) -> str:
        asked.append(str(request.messages[-1]["content"]))
        return f"{asked[-1]} #{len(asked)}"

    async def solve(sample: Sample, ctx: Context) -> str:
        return " | ".join([(await ctx.generate(f"{sample.id} turn {turn}")).text for turn in range(4)])

    wanted = given([Asked(rows=rows(6), solver=solve)], [model("m", reply)])
    go(tmp_path, wanted)
    before = {line.key: line.output or "" for line in lines(tmp_path)}
    cut_after(tmp_path, lambda kind, data: not kind.startswith("sample.") and kind != "run.completed")
    kept = sum(kind == "step" for kind, _ in records(tmp_path))
    asked.clear()
    ended = go(tmp_path, wanted)
    assert (ended.finished, len(asked)) == (6, 24 - kept)
    steps = [data["answer"]["text"] for kind, data in records(tmp_path) if kind == "step"][:kept]
    after = {line.key: line.output or "" for line in lines(tmp_path)}
    for key, text in after.items():
        mine = [part for part in before[key].split(" | ") if part in steps]
        assert text.split(" | ")[: len(mine)] == mine


def test_a_failed_sample_gets_a_fresh_allowance_from_each_resume(tmp_path: Path) -> None:
    async def failing(sample: Sample, ctx: Context) -> str:
        raise ValueError("no")

    wanted = given([Asked(rows=rows(2), solver=failing, fields={"sample_retries": 1})])
    for _ in range(3):
        ended = go(tmp_path, wanted)
        assert (ended.finished, ended.failed, ended.unfinished) == (0, 2, 0)
    attempts = [data["attempt"] for kind, data in records(tmp_path) if kind == "sample.failed" and data["o"] == 0]
    assert attempts == [1, 2, 3, 4, 5, 6]


def test_while_a_request_waits_for_its_turn_neither_limit_nor_duration_runs(tmp_path: Path) -> None:
    """Six requests, a fifth of a second between them: the last one waits longer than a sample may take."""
    spec = given([Asked(rows=rows(6))], [mock(requests_per_minute=300)], limits={"sample": {"seconds": 0.5}})
    go(tmp_path, spec)
    found = lines(tmp_path)
    assert [line.status for line in found] == ["finished"] * 6
    assert sum(line.seconds for line in found) < 0.5
