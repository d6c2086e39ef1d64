"""A fork requests nothing that its parent has recorded, says so beforehand, and then needs its parent no more."""

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine import replay
from holdfast.errors import HoldfastError, UsageError
from holdfast.journal import verify
from holdfast.journal.blobs import check_blob_files
from holdfast.records.samples import Sample, Usage
from holdfast.runs import Run, execute, find_run, list_runs, new_run_location
from holdfast.runs.fork import Forecast, Fork
from holdfast.score import scorer
from holdfast.solve import Context, ToolFailedError, tool
from tests.unit.engine.runs import RUN, Asked, cut_after, folder, given, go, model, records, rows
from tests.unit.runs.advice import FORK, Told, files, forecast, fork, grow, steps_of, summary, told_of


@scorer
def right(sample: Sample, answer: Any) -> bool:
    return bool(answer.text == sample.target)


async def thrice(sample: Sample, ctx: Context, second: str = "two") -> str:
    """Three requests; the third says nothing of the second."""
    texts = [f"{sample.id} one", f"{sample.id} {second}", f"{sample.id} three"]
    return " ".join([(await ctx.generate(text)).text for text in texts])


async def first_changes(sample: Sample, ctx: Context, first: str = "one") -> str:
    """Three requests; the last two say nothing of the first."""
    texts = [f"{sample.id} {first}", f"{sample.id} two", f"{sample.id} three"]
    return " ".join([(await ctx.generate(text)).text for text in texts])


async def talk(sample: Sample, ctx: Context, turns: int = 3) -> str:
    """A conversation: each request holds all that was said."""
    messages = list(ctx.messages)
    for turn in range(turns):
        answer = await ctx.generate(messages)
        messages += [answer.message, {"role": "user", "content": f"{sample.id} turn {turn}"}]
    return str(messages[-1]["content"])


async def branches(sample: Sample, ctx: Context, left: str = "left") -> str:
    """Two chains of two requests at once."""

    async def chain(name: str) -> str:
        first = await ctx.generate(f"{sample.id} {name} 1")
        return (await ctx.generate(f"{first.text} {name} 2")).text

    return " ".join(await asyncio.gather(chain(left), chain("right")))


async def drawn(sample: Sample, ctx: Context) -> str:
    return (await ctx.generate(f"{sample.id} {ctx.random.random()} {ctx.seed}")).text


async def same_twice(sample: Sample, ctx: Context) -> str:
    first, second = await ctx.generate(f"{sample.id} again"), await ctx.generate(f"{sample.id} again")
    return f"{first.text} {second.text}"


SCHEMAS = [{"type": "function", "function": {"name": "look", "description": "Looks for something. " * 9}}]


async def talk_with_tools(sample: Sample, ctx: Context) -> str:
    """Every request but the first finds its tools and parameters in the first's record."""
    messages = list(ctx.messages)
    for turn in range(3):
        answer = await ctx.generate(messages, tools=SCHEMAS, stop=["a long word to stop at, and another one"])
        messages += [answer.message, {"role": "user", "content": f"{sample.id} turn {turn}"}]
    return str(messages[-1]["content"])


def one_task(told: Told, solver: Any = None, count: int = 3, **fields: Any) -> Any:
    task = Asked(rows=rows(count), scorers=[right], solver=solver, fields=fields.pop("task", {}))
    return given([task], [model("m", told, **fields.pop("model", {}))], **fields)


@pytest.mark.parametrize("solver", [None, thrice, talk, branches, drawn, same_twice])
def test_a_fork_with_nothing_changed_sends_no_request_and_says_so(tmp_path: Path, solver: Any) -> None:
    told = Told()
    go(tmp_path, one_task(told, solver))
    asked = len(told.asked)
    forked = fork(tmp_path, one_task(told, solver))
    assert told.since(asked) == []
    said = forked.forecast
    assert (said.keys, said.reused, said.complete, said.requests, said.tokens) == (3, asked, 3, 0, 0)
    assert told_of(tmp_path, FORK) == told_of(tmp_path)
    found = summary(tmp_path, FORK)
    assert steps_of(tmp_path, FORK) == (0, asked, 0)
    assert (found.usage, found.saved) == (Usage(), summary(tmp_path).usage)
    assert found.status == "completed"


def test_only_the_task_whose_prompt_changed_is_asked(tmp_path: Path) -> None:
    told = Told()

    def wanted(prompt: str) -> Any:
        tasks = [Asked("kept", rows(4)), Asked("changed", rows(3), fields={"prompt": prompt})]
        return given(tasks, [model("m", told)])

    go(tmp_path, wanted("first: {input}"))
    asked = len(told.asked)
    forked = fork(tmp_path, wanted("second: {input}"))
    assert told.since(asked) == [f"second: question {i}" for i in range(3)]
    said = forked.forecast
    assert (said.keys, said.reused, said.complete, said.requests, said.tokens) == (7, 4, 4, 3, 33)
    assert steps_of(tmp_path, FORK) == (3, 4, 0)
    assert summary(tmp_path, FORK).usage == Usage(30, 3, requests=3)


PRICE = {"input": 1000.0, "output": 2000.0}
"""In dollars for a million tokens. A request of `Told` has 10 in and 1 out: 1.2 cents."""


def asks_again(told: Told, count: int = 3, prompt: str = "", **fields: Any) -> Any:
    return one_task(told, count=count, task={"prompt": prompt} if prompt else {}, model=fields)


def test_what_will_be_asked_is_priced_by_what_the_parent_used(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, asks_again(told))
    assert forecast(tmp_path, asks_again(told, price=PRICE)).dollars == 0.0
    changed = forecast(tmp_path, asks_again(told, prompt="new: {input}", price=PRICE))
    assert (changed.requests, changed.tokens, changed.unpriced) == (3, 33, 0)
    assert changed.dollars == pytest.approx(3 * 0.012)
    grown = forecast(tmp_path, asks_again(told, count=5, price=PRICE))
    assert (grown.reused, grown.requests) == (3, 2)
    assert grown.dollars == pytest.approx(2 * 0.012)


def test_without_a_price_nothing_is_said_of_dollars(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, asks_again(told))
    said = forecast(tmp_path, asks_again(told, prompt="new: {input}"))
    assert (said.requests, said.dollars, said.unpriced) == (3, None, 0)


def test_answers_of_models_without_a_price_are_counted_apart(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, asks_again(told))
    models = [model("m", told, price=PRICE), model("free", told)]
    said = forecast(tmp_path, given([Asked(rows=rows(3), scorers=[right], fields={"prompt": "new: {input}"})], models))
    assert (said.requests, said.unpriced) == (6, 3)
    assert said.dollars == pytest.approx(3 * 0.012)


def test_steps_that_are_reused_and_those_of_a_role_have_their_own_price(tmp_path: Path) -> None:
    async def with_judge(sample: Sample, ctx: Context, question: str = "good?") -> str:
        first = await ctx.generate(f"{sample.id} say")
        return (await ctx.generate(f"{first.text} {question}", role="judge")).text

    told = Told()
    judge = {"judge": model("judge", told, price={"input": 0.0, "output": 5000.0})}

    def wanted(**fields: Any) -> Any:
        return one_task(told, with_judge, model=fields, roles=judge)

    go(tmp_path, wanted(price=PRICE))
    assert forecast(tmp_path, wanted(price=PRICE)).dollars == 0.0
    said = forecast(tmp_path, wanted(price=PRICE, params={"temperature": 1.0}))  # only the judge is asked as before
    assert said.reused == 0
    assert said.dollars == pytest.approx(3 * (0.012 + 0.005))


def test_another_temperature_reuses_nothing(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told, model={"params": {"temperature": 0.0}}))
    forked = fork(tmp_path, one_task(told, model={"params": {"temperature": 1.0}}))
    assert len(told.asked) == 6
    said = forked.forecast
    assert (said.keys, said.reused, said.complete, said.requests) == (3, 0, 0, 3)
    assert [kind for kind, data in records(tmp_path, FORK) if kind == "step" and data.get("origin")] == []
    assert steps_of(tmp_path, FORK) == (3, 0, 0)


def changed_argument(name: str, old: str, new: str) -> tuple[dict[str, Any], dict[str, Any]]:
    solver = f"{__name__}:{name}"
    word = {"thrice": "second", "first_changes": "first", "branches": "left"}[name]
    return {"solver": {solver: {word: old}}}, {"solver": {solver: {word: new}}}


@pytest.mark.parametrize(("name", "old"), [("thrice", "two"), ("first_changes", "one")])
def test_of_three_requests_only_the_changed_one_is_asked(tmp_path: Path, name: str, old: str) -> None:
    told = Told()
    before, after = changed_argument(name, old, "other")
    go(tmp_path, one_task(told, task=before))
    asked = len(told.asked)
    fork(tmp_path, one_task(told, task=after))
    assert told.since(asked) == ["s0 other", "s1 other", "s2 other"]
    assert steps_of(tmp_path, FORK) == (3, 6, 0)


def test_the_branch_that_did_not_change_is_reused(tmp_path: Path) -> None:
    told = Told()
    before, after = changed_argument("branches", "left", "top")
    go(tmp_path, one_task(told, task=before, count=2))
    asked = len(told.asked)
    forked = fork(tmp_path, one_task(told, task=after, count=2))
    assert told.since(asked) == ["s0 top 1", "s0 top 1 top 2", "s1 top 1", "s1 top 1 top 2"]
    assert (forked.forecast.reused, forked.forecast.requests) == (4, 4)
    assert steps_of(tmp_path, FORK) == (4, 4, 0)


def test_the_half_done_samples_of_a_killed_parent_are_continued(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told, talk, concurrency={"samples": 1}))
    steps = iter(range(100))
    cut_after(tmp_path, lambda kind, data: kind != "step" or next(steps) < 5)
    assert summary(tmp_path).finished == 1
    asked = len(told.asked)
    fork(tmp_path, one_task(told, talk))
    assert len(told.asked) - asked == 4
    assert steps_of(tmp_path, FORK) == (4, 5, 0)
    whole = tmp_path / "whole"
    go(whole, one_task(Told(), talk))
    assert told_of(tmp_path, FORK) == told_of(whole)


def test_what_a_fork_takes_over_refers_to_its_own_records(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told, talk_with_tools))
    steps = iter(range(100))
    cut_after(tmp_path, lambda kind, data: kind != "step" or next(steps) < 8)
    fork(tmp_path, one_task(told, talk_with_tools))
    assert steps_of(tmp_path, FORK) == (1, 8, 0)
    with Run.find(str(tmp_path), FORK) as run:
        for sample in ("s0", "s1", "s2"):
            (attempt,) = run.show(f"task/m/{sample}/1").attempts
            numbers = {step.n for step in attempt.steps}
            assert [step.tools for step in attempt.steps] == [["look"]] * 3
            assert [list(step.params) for step in attempt.steps] == [["stop"]] * 3
            assert all(not step.after or step.after in numbers for step in attempt.steps)


def test_a_parent_of_which_nothing_is_recorded_is_simply_run(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told))
    cut_after(tmp_path, lambda kind, data: kind not in {"step", "sample.finished"})
    forked = fork(tmp_path, one_task(told))
    assert (forked.forecast.reused, forked.forecast.requests, forked.ended.finished) == (0, 3, 3)
    assert len(told.asked) == 6


def test_failed_samples_of_the_parent_are_asked_again_from_where_they_failed(tmp_path: Path) -> None:
    told = Told(lambda text: text == "s1 two")
    go(tmp_path, one_task(told, thrice, task={"sample_retries": 0}))
    assert summary(tmp_path).failed == 1
    asked = len(told.asked)
    told.fails = lambda text: False
    forked = fork(tmp_path, one_task(told, thrice, task={"sample_retries": 0}))
    assert told.since(asked) == ["s1 three", "s1 two"]
    assert (forked.forecast.reused, forked.forecast.complete, forked.ended.failed) == (7, 2, 0)
    assert (forked.forecast.requests, forked.forecast.tokens) == (2, 22)
    assert steps_of(tmp_path, FORK) == (2, 7, 0)


@pytest.mark.parametrize("solver", [thrice, talk])
def test_a_forecast_counts_the_requests_after_the_one_that_failed(tmp_path: Path, solver: Any) -> None:
    told = Told(lambda text: text in ("s1 two", "s1 turn 0", "s2 three", "s2 turn 1"))
    go(tmp_path, one_task(told, solver, task={"sample_retries": 0}))
    asked = len(told.asked)
    told.fails = lambda text: False
    forked = fork(tmp_path, one_task(told, solver, task={"sample_retries": 0}))
    assert forked.forecast.requests == len(told.since(asked)) == 3
    assert forked.ended.finished == 3


async def fails_at_the_end(sample: Sample, ctx: Context) -> str:
    text = await thrice(sample, ctx)
    if sample.id == "s1":
        raise ValueError("by chance")
    return text


def test_a_forecast_counts_the_new_attempt_of_code_that_fails_on_recorded_steps(tmp_path: Path) -> None:
    told = Told()
    wanted = one_task(told, fails_at_the_end, task={"sample_retries": 0})
    go(tmp_path, wanted)
    asked = len(told.asked)
    forked = fork(tmp_path, wanted)
    assert (forked.forecast.complete, forked.forecast.reused, forked.forecast.requests) == (2, 9, 3)
    assert len(told.since(asked)) == 3, "an attempt that only replays uses up no retry"


def test_the_steps_of_an_attempt_that_was_cut_off_after_another_had_failed_are_taken_over(tmp_path: Path) -> None:
    """As a resume would: its own, and those that it had from the attempt that failed."""
    told = Told(lambda text: text == "s0 two" and told.asked.count(text) == 1)
    go(tmp_path, one_task(told, thrice, count=1))
    assert told.asked == ["s0 one", "s0 two", "s0 two", "s0 three"]
    cut_after(tmp_path, lambda kind, data: kind != "sample.finished")
    forked = fork(tmp_path, one_task(told, thrice, count=1))
    assert told.since(4) == []
    assert (forked.forecast.reused, forked.forecast.complete) == (3, 1)
    assert steps_of(tmp_path, FORK) == (0, 3, 0)


def test_a_sample_that_succeeded_at_its_second_attempt_is_reused_whatever_it_drew(tmp_path: Path) -> None:
    """What is drawn depends on the attempt; the answer that counts is the second one's."""
    failing = {"s1"}

    async def fails_once(sample: Sample, ctx: Context) -> str:
        answer = await ctx.generate(f"{sample.id} {ctx.random.random()}")
        if sample.id in failing:
            failing.discard(sample.id)
            raise ValueError("once")
        return answer.text

    told = Told()
    go(tmp_path, one_task(told, fails_once))
    asked = len(told.asked)
    assert asked == 4
    fork(tmp_path, one_task(told, fails_once))
    assert told.since(asked) == []
    assert told_of(tmp_path, FORK) == told_of(tmp_path)


def test_a_solver_that_ends_the_process_fails_in_the_fork_as_it_did_in_the_parent(tmp_path: Path) -> None:
    async def quits(sample: Sample, ctx: Context) -> str:
        if sample.id == "s1":
            raise SystemExit(7)
        return (await ctx.generate()).text

    told = Told()
    go(tmp_path, one_task(told, quits))
    assert summary(tmp_path).failed == 1
    try:
        forked = fork(tmp_path, one_task(told, quits))
    except SystemExit:
        raise AssertionError("the solver has ended the fork") from None
    assert (forked.ended.finished, forked.ended.failed) == (2, 1)
    assert len(told.asked) == 2


def test_a_forecast_alone_leaves_no_trace(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told))
    before = files(tmp_path)
    assert forecast(tmp_path, one_task(told)).reused == 3
    assert forecast(tmp_path, one_task(told, experiment="another")).reused == 3
    assert files(tmp_path) == before
    assert [each.run_id for each in list_runs(str(tmp_path))] == [RUN]
    assert len(told.asked) == 3


def test_a_fork_needs_its_parent_no_more(tmp_path: Path) -> None:
    told = Told(lambda text: text.startswith("s2"))
    go(tmp_path, one_task(told, talk, task={"sample_retries": 0}))
    fork(tmp_path, one_task(told, talk, task={"sample_retries": 0}))
    shutil.rmtree(folder(tmp_path))
    told.fails = lambda text: False
    ended = go(tmp_path, one_task(told, talk, task={"sample_retries": 0}), run_id=FORK)
    assert (ended.finished, ended.failed) == (3, 0)
    assert verify(os.path.join(folder(tmp_path, FORK), "journal")).ok
    assert {status for status, _, _ in told_of(tmp_path, FORK).values()} == {"finished"}
    with Run.find(str(tmp_path), FORK) as run:
        assert [len(attempt.steps) for attempt in run.show("task/m/s0/1").attempts] == [3]


def test_a_fork_of_a_fork_sends_no_request_either(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told, talk))
    fork(tmp_path, one_task(told, talk))
    shutil.rmtree(folder(tmp_path))
    forked = fork(tmp_path, one_task(told, talk), "second", FORK)
    assert len(told.asked) == 9
    assert forked.forecast.reused == 9
    assert told_of(tmp_path, "second") == told_of(tmp_path, FORK)
    assert summary(tmp_path, "second").usage == Usage()
    assert steps_of(tmp_path, "second") == (0, 9, 0)


def test_the_fork_tells_where_it_comes_from_and_how_many_steps_it_took_over(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told, talk))
    fork(tmp_path, one_task(told, talk))
    started = next(data for kind, data in records(tmp_path, FORK) if kind == "run.started")
    taken = [data for kind, data in records(tmp_path, FORK) if kind == "step" and data.get("origin")]
    parent = started["parent"]
    assert (parent["run_id"], parent["experiment"], parent["steps"]) == (RUN, "tests", len(taken))
    assert "# Forked from tests/run-1\n" in Path(folder(tmp_path, FORK), "spec.yaml").read_text()


def test_an_id_that_is_taken_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told))
    before = files(tmp_path)
    with pytest.raises(UsageError, match=RUN):
        fork(tmp_path, one_task(told), RUN)
    assert files(tmp_path) == before


@pytest.mark.parametrize("died_in", ["write_plan", "open_writer", "make_started_record", "_copy_steps", "_publish"])
def test_a_fork_that_died_while_it_was_made_is_no_run_and_is_made_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died_in: str
) -> None:
    """Not even `drop` comes to run: as after a kill."""
    import holdfast.runs.fork as forking

    class Killed(BaseException):
        pass

    def die(*arguments: Any, **named: Any) -> None:
        raise Killed

    async def ignore(self: Fork) -> None: ...

    told = Told()
    go(tmp_path, one_task(told, talk))
    with monkeypatch.context() as patch:
        owner: Any = Fork if died_in.startswith("_") else forking
        patch.setattr(owner, died_in, die)
        patch.setattr(Fork, "drop", ignore)
        with pytest.raises(Killed):
            fork(tmp_path, one_task(told, talk))
    assert [each.run_id for each in list_runs(str(tmp_path))] == [RUN]
    assert find_run(str(tmp_path), "latest").run_id == RUN
    monkeypatch.setattr(forking, "is_alive", lambda holder: False)  # the process that made it
    assert fork(tmp_path, one_task(told, talk)).ended.finished == 3
    assert len(told.asked) == 9
    assert sorted(os.listdir(tmp_path / "tests")) == [FORK, RUN]


def test_of_two_forks_of_one_name_at_once_one_is_whole_and_the_other_is_refused(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told, count=3))
    place = new_run_location(one_task(told), str(tmp_path), FORK)

    async def both() -> list[BaseException | None]:
        one = Fork(find_run(str(tmp_path), RUN), place, one_task(told, count=3))
        other = Fork(find_run(str(tmp_path), RUN), place, one_task(told, count=2))
        made = []
        for step in (one.forecast, other.forecast, one.make, other.make):
            (result,) = await asyncio.gather(step(), return_exceptions=True)
            made.append(result if isinstance(result, BaseException) else None)
        return made

    refused = [each for each in asyncio.run(both()) if each is not None]
    assert refused, "both were made"
    assert all(isinstance(each, HoldfastError) for each in refused), refused
    count = summary(tmp_path, FORK).planned
    ended = asyncio.run(execute(one_task(told, count=count), place))
    assert ended.finished == count
    assert len(told.asked) == 3


def test_a_fork_of_an_extended_run_takes_over_every_block(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told, count=2))
    grow(tmp_path, one_task(told, count=3, task={"repeats": 2}))
    assert len(told.asked) == 6
    forked = fork(tmp_path, one_task(told, count=3, task={"repeats": 2}))
    assert (len(told.asked), forked.forecast.reused) == (6, 6)
    assert told_of(tmp_path, FORK) == told_of(tmp_path)


def test_a_fork_may_have_fewer_and_more_keys_than_its_parent(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told, count=3))
    forked = fork(tmp_path, one_task(told, count=5, samples=["s1", "s4"]))
    assert told.since(3) == ["question 4"]
    assert (forked.forecast.keys, forked.forecast.reused, forked.forecast.requests) == (2, 1, 1)
    assert list(told_of(tmp_path, FORK)) == ["task/m/s1/1", "task/m/s4/1"]


def test_answers_of_the_fork_are_scored_with_its_own_scorers(tmp_path: Path) -> None:
    @scorer
    def wrong(sample: Sample, answer: Any) -> bool:
        return False

    told = Told()
    go(tmp_path, one_task(told))
    changed = given([Asked(rows=rows(3), scorers=[wrong])], [model("m", told)])
    fork(tmp_path, changed)
    assert [scores for _, _, scores in told_of(tmp_path, FORK).values()] == [{"wrong": False}] * 3
    assert [scores for _, _, scores in told_of(tmp_path).values()] == [{"right": True}] * 3
    assert len(told.asked) == 3


async def broken(sample: Sample, ctx: Context) -> str:
    await thrice(sample, ctx)
    return ctx.nothing_of_the_kind  # type: ignore[attr-defined,no-any-return] # the bug


def test_a_fork_with_fixed_code_gets_the_steps_of_samples_that_failed_in_it(tmp_path: Path) -> None:
    """That is what it is for: a bug in the last line must not cost the whole evaluation again."""
    told = Told()
    go(tmp_path, one_task(told, broken))
    assert len(told.asked) == 9, "a wrong name is wrong at every attempt: it is tried once"
    forked = fork(tmp_path, one_task(told, thrice))
    assert (forked.forecast.reused, forked.forecast.requests, len(told.asked)) == (9, 0, 9)
    assert summary(tmp_path, FORK).finished == 3


CALLED: list[str] = []


async def look(what: str) -> str:
    CALLED.append(what)
    if what.endswith("2"):
        raise ValueError("nothing there")
    return f"found {what}"


async def calling(sample: Sample, ctx: Context, last: str = "end") -> str:
    """A request, then calls, one of which fails, and files; then a request that holds what came of them."""
    told = [(await ctx.generate(f"{sample.id} begin")).text]
    for number in (1, 2):
        try:
            told.append(await ctx.call(look, {"what": f"{sample.id} {number}"}))
        except ToolFailedError as error:
            told.append(str(error))
    told.append(await ctx.call("bash", {"command": f"echo {sample.id} > note; ls note"}))
    text = (await ctx.generate(" ".join(told))).text
    told.append(await ctx.call("bash", {"command": f"cat note; echo {last}"}))
    return f"{text} {told[-1]}"


def test_what_tools_came_to_is_taken_over_with_their_files_where_their_code_is_the_same(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told, calling, count=2))
    CALLED.clear()
    before = len(told.asked)
    made = fork(tmp_path, one_task(told, calling, count=3))
    assert (made.forecast.reused, made.ended.finished) == (12, 3)
    assert told.since(before) == ["s2 begin", "s2 begin found s2 1 tool: ValueError: nothing there note"]
    assert CALLED == ["s2 1", "s2 2"]
    outputs = {key: output for key, (_, output, _) in told_of(tmp_path, FORK).items()}
    assert outputs["task/m/s0/1"] == "s0 begin found s0 1 tool: ValueError: nothing there note s0\nend"
    assert verify(find_run(str(tmp_path), FORK).journal).errors == ()


def test_a_fork_that_continues_in_a_sandbox_finds_the_files_that_were_taken_over(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, one_task(told, calling, count=1))
    CALLED.clear()
    cut_after(tmp_path, lambda kind, data: not (kind == "step" and "cat note" in str(data.get("called"))))
    fork(tmp_path, one_task(told, calling, count=1))
    shutil.rmtree(folder(tmp_path))
    assert CALLED == []
    assert (
        told_of(tmp_path, FORK)["task/m/s0/1"][1] == "s0 begin found s0 1 tool: ValueError: nothing there note s0\nend"
    )


async def writing(sample: Sample, ctx: Context) -> str:
    """Every sample leaves the same file, and one of its own."""
    return str(await ctx.call("bash", {"command": f"echo same > same; echo {sample.id} > own; cat same own"}))


@pytest.mark.parametrize("links", [True, False], ids=["linked", "copied"])
def test_samples_that_left_the_same_files_are_taken_over_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def copied(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "no links here")

    told = Told()
    go(tmp_path, one_task(told, writing, count=8))
    if not links:
        monkeypatch.setattr("holdfast.files.link", copied)
    made = fork(tmp_path, one_task(told, writing, count=8))
    assert (made.forecast.reused, made.ended.finished) == (8, 8)
    blobs = [sorted(os.listdir(os.path.join(folder(tmp_path, run), "blobs"))) for run in (RUN, FORK)]
    assert blobs[0] == blobs[1]
    assert len(blobs[0]) == 9


async def bank(n: int) -> str:
    CALLED.append(f"paid {n}")
    return f"paid {n}"


pay = tool(repeatable=False)(bank)


async def look_up(n: int) -> str:
    return f"had paid {n}"


pay_or_look = tool(repeatable=False, recover=look_up)(bank)


async def paying(sample: Sample, ctx: Context, ask: bool = True) -> str:
    begin = (await ctx.generate(f"{sample.id} begin")).text if ask else "without a word"
    return f"{begin} {await ctx.call(pay, {'n': 1})}"


async def paying_first(sample: Sample, ctx: Context) -> str:
    return await paying(sample, ctx, ask=False)


async def paying_or_looking(sample: Sample, ctx: Context) -> str:
    return f"{(await ctx.generate(f'{sample.id} begin')).text} {await ctx.call(pay_or_look, {'n': 1})}"


def killed_while_paying(store: Path, told: Told, solver: Any) -> None:
    CALLED.clear()
    go(store, one_task(told, solver, count=1))
    assert CALLED == ["paid 1"]
    cut_after(store, lambda kind, data: not (kind == "step" and data.get("called")))


@pytest.mark.parametrize("solver", [paying, paying_first])
def test_a_call_that_must_not_be_made_twice_and_was_cut_off_is_not_made_by_a_fork_nor_by_its_own(
    tmp_path: Path, solver: Any
) -> None:
    told = Told()
    killed_while_paying(tmp_path, told, solver)
    asked = len(told.asked)
    for parent, run_id in ((RUN, FORK), (FORK, "second")):
        made = fork(tmp_path, one_task(told, solver, count=1), run_id, parent)
        assert (made.ended.finished, made.ended.failed) == (0, 1)
        (failed,) = [data for kind, data in records(tmp_path, run_id) if kind == "sample.failed"]
        assert failed["failure"]["kind"] == "unrepeatable"
        assert verify(find_run(str(tmp_path), run_id).journal).errors == ()
    assert CALLED == ["paid 1"]
    assert told.since(asked) == []


def test_a_call_that_was_cut_off_is_recovered_by_a_fork(tmp_path: Path) -> None:
    told = Told()
    killed_while_paying(tmp_path, told, paying_or_looking)
    assert fork(tmp_path, one_task(told, paying_or_looking, count=1)).ended.finished == 1
    assert told_of(tmp_path, FORK)["task/m/s0/1"][1] == "s0 begin had paid 1"
    assert CALLED == ["paid 1"]


def test_a_call_that_must_not_be_made_twice_and_will_be_made_is_foreseen(tmp_path: Path) -> None:
    told = Told()
    CALLED.clear()
    go(tmp_path, one_task(told, paying, count=1))
    said = forecast(tmp_path, one_task(told, paying, count=1))
    assert (said.reused, said.complete) == (2, 1)
    cut_after(tmp_path, lambda kind, data: kind != "step.started")
    said = forecast(tmp_path, one_task(told, paying, count=1))
    assert (said.reused, said.complete, said.requests) == (1, 0, 1)
    assert CALLED == ["paid 1"]


async def paying_and_writing(sample: Sample, ctx: Context) -> str:
    return f"{await paying(sample, ctx)} {await writing(sample, ctx)}"


@pytest.mark.parametrize("damage", [os.unlink, lambda path: Path(path).write_text("s2\n")], ids=["missing", "damaged"])
def test_a_sample_whose_files_are_lost_in_the_parent_calls_its_tools_again_and_the_fork_says_so(
    tmp_path: Path, damage: Any
) -> None:
    """But not those that must not be called twice: they leave no files."""
    told = Told()
    CALLED.clear()
    go(tmp_path, one_task(told, paying_and_writing, count=3))
    asked = len(told.asked)
    content = hashlib.sha256(b"s1\n").hexdigest()
    damage(os.path.join(folder(tmp_path), "blobs", content))
    made = fork(tmp_path, one_task(told, paying_and_writing, count=3))
    assert (made.ended.finished, made.forecast.reused, made.forecast.complete) == (3, 8, 2)
    assert made.doubt.startswith("the tools of 1 sample are called again: 1 file that they left, e.g. ")
    assert f"{RUN}/blobs/{content}" in made.doubt
    assert told.since(asked) == []
    assert CALLED == ["paid 1"] * 3
    assert told_of(tmp_path, FORK) == told_of(tmp_path)
    assert not list(check_blob_files(folder(tmp_path, FORK), [content]))


async def never_ends(sample: Sample, ctx: Context) -> str:
    first = await ctx.generate(f"{sample.id} one")
    await asyncio.Event().wait()
    return first.text


async def will_not_be_cancelled(sample: Sample, ctx: Context) -> str:
    await ctx.generate(f"{sample.id} one")
    over = asyncio.get_running_loop().create_future()
    STUCK.append(over)
    while not over.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(over)
    return "over"


STUCK: list[asyncio.Future[None]] = []


@pytest.mark.parametrize("solver", [never_ends, will_not_be_cancelled])
def test_code_that_does_not_continue_is_not_waited_for_in_a_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solver: Any
) -> None:
    monkeypatch.setattr(replay, "_STILL_SECONDS", 1.0)
    monkeypatch.setattr(replay, "_ENDING_SECONDS", 0.1)
    told = Told()
    go(tmp_path, one_task(told, thrice, count=2))

    async def foresee() -> Forecast:
        wanted = one_task(told, solver, count=2)
        making = Fork(find_run(str(tmp_path), RUN), new_run_location(wanted, str(tmp_path), FORK), wanted)
        try:
            return await asyncio.wait_for(making.forecast(), 60)
        finally:
            while STUCK:
                STUCK.pop().set_result(None)
            await making.drop()

    said = asyncio.run(foresee())
    assert (said.reused, said.complete, said.requests) == (2, 0, 4)
    assert len(told.asked) == 6
