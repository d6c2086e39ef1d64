"""The story of one key: attempts that failed and what the next one was given again, in words and as structs."""

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import holdfast
from holdfast.records.facts import ScoreGiven, Step, StoredRequest
from holdfast.report import KeyStory, started_at
from holdfast.report.story import KeyRecords, StepOutline, judgings_of

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
AT = "2026-01-01T00:00:02.000000Z"
FAILURES = [{"kind": "server", "every": 1, "times": 1}]


@holdfast.solver
async def asks_twice(sample: holdfast.Sample, ctx: holdfast.Context) -> holdfast.Answer:
    first = await ctx.generate("one", temperature=0.5)
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "[1]"}}
    said: list[holdfast.Message] = [
        {"role": "user", "content": "one\x1b[31m\ntwo"},
        {**first.message, "tool_calls": [call]},
        {"role": "tool", "content": ["a part"], "tool_call_id": "1"},
    ]
    return await ctx.generate(said, tools=TOOLS, role="adviser")


def story(folder: Path, retries: int) -> KeyStory:
    """Of a sample whose every request to a role fails once, with so many attempts."""
    adviser = {"provider": "mock", "options": {"reply": "done", "failures": FAILURES}, "request_retries": 0}
    task = holdfast.Task("t", [{"id": "a", "q": "?"}], "{q}", solver=asks_twice, sample_retries=retries)
    evaluated = {"name": "m", "provider": "mock", "price": {"input": 0.001, "output": 0.001}}
    with holdfast.run(task, models=[evaluated], roles={"adviser": adviser}, store=str(folder)) as run:
        return run.show("t/m/a/1")


def test_an_attempt_that_failed_stands_before_the_one_that_was_given_its_steps_again(tmp_path: Path) -> None:
    told = story(tmp_path, 1)
    first = told.attempts[0]
    assert (first.attempt, first.status, len(first.steps)) == (1, "failed", 2)
    assert first.failure is not None
    assert (first.failure.kind, first.final) == ("server", False)
    assert "role=" in first.failure.detail
    last = told.attempts[-1]
    assert last.spent is not None
    assert (last.attempt, last.spent.replayed) == (2, 1)


def test_the_words_tell_parameters_tools_calls_roles_and_failures(tmp_path: Path) -> None:
    said = str(story(tmp_path, 0))
    for text in (
        "t/m/a/1  failed",
        'params {"temperature":0.5}',
        "turn 2  live of role adviser",
        "tools add",
        "[tool call] add([1])",
        "[tool] a part",
        "    server: ",
        "failed: server: ",
        "return await ctx.generate(said, tools=TOOLS",
    ):
        assert text in said, said
    assert "\x1b" not in said
    assert re.search(r"in, \d+ out, \$0\.0{7,9}[1-9]\d{3},", said), said


@holdfast.solver
async def waits(sample: holdfast.Sample, ctx: holdfast.Context) -> holdfast.Answer:
    return await ctx.generate("slow")


def test_an_attempt_begins_with_its_first_request_not_with_the_first_response(tmp_path: Path) -> None:
    task = holdfast.Task("t", [{"id": "a", "q": "?"}], "{q}", solver=waits)
    slow = {"name": "m", "provider": "mock", "options": {"latency_seconds": 0.3}}
    with holdfast.run(task, models=[slow], store=str(tmp_path)) as run:
        (attempt,) = run.show("t/m/a/1").attempts
    (step,) = attempt.steps
    began, recorded = map(datetime.fromisoformat, (attempt.began, step.at))
    assert step.seconds >= 0.3
    assert recorded - began >= timedelta(seconds=0.3)


@pytest.mark.parametrize(("seconds", "began"), [(1.5, "2026-01-01T00:00:00.500000Z"), (0.0, AT), (1e12, AT)])
def test_the_start_of_a_step_is_its_record_less_its_duration(seconds: float, began: str) -> None:
    assert started_at(AT, Step(0, "solve/1", "q", seconds=seconds)) == began


def test_the_start_of_a_step_that_a_fork_copied_is_the_copy() -> None:
    assert started_at(AT, Step(0, "solve/1", "q", seconds=1.5, origin=3)) == AT


@holdfast.scorer
async def judged(sample: holdfast.Sample, answer: holdfast.Answer, ctx: holdfast.Context) -> str:
    return (await ctx.generate("Well?", role="judge")).text


def test_what_judges_were_asked_stands_under_their_evaluation_behind_the_attempt_that_they_judge(
    tmp_path: Path,
) -> None:
    task = holdfast.Task("t", [{"id": "a", "q": "why?"}], "{q}", scorers=[judged])
    with holdfast.run(task, models=["mock/m"], roles={"judge": "mock/j"}, store=str(tmp_path)) as run:
        told = run.show("t/m/a/1")
        evaluation = run.report().evaluation
    assert [each.attempt for each in told.attempts] == [1]
    assert told.messages == [{"role": "user", "content": "why?"}]
    (judging,) = told.judgings
    assert (judging.evaluation, judging.name, judging.told.status) == (evaluation, "judged", "finished")
    assert [(step.role, step.turn) for step in judging.told.steps] == [("judge", 1)]
    said = str(told)
    assert said.index("attempt 1  finished") < said.index(f"judges of the evaluation {evaluation} (judged)  finished")
    assert "not ended" not in said


def test_a_judging_that_was_cut_off_is_told_apart_from_those_that_ended() -> None:
    steps: list[tuple[int, str, int, Step | StepOutline]] = [
        (n, "2026-01-01", 1, Step(0, scope, "q", asked=StoredRequest([], role="judge")))
        for n, scope in enumerate(("score/e/1", "score/f/1", "score/e/2"), 1)
    ]
    said = [(9, "2026-01-02", 1, ScoreGiven(0, 9, "e", "s", last=True))]
    told = judgings_of(KeyRecords(steps=steps, scores=said), {}, {"e": "style"})
    assert [(each.evaluation, each.name, each.told.attempt, each.told.status) for each in told] == [
        ("e", "style", 1, "finished"),
        ("f", "", 1, "unfinished"),
        ("e", "style", 2, "unfinished"),
    ]


@pytest.mark.parametrize(("question", "lines"), [(" ", 1), ("why?", 0)])
def test_an_answer_that_is_empty_is_told_to_be(tmp_path: Path, question: str, lines: int) -> None:
    task = holdfast.Task("t", [{"id": "a", "q": question}], "{q}")
    with holdfast.run(task, models=["mock/m"], store=str(tmp_path)) as run:
        said = str(run.show("t/m/a/1"))
    assert said.count("anomaly empty: there is no text and no tool call") == lines
