"""Answers that are none, or not all of one: marked, counted, scored as the spec says. Failures are never answers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.models import ModelError, Request
from holdfast.records.samples import Answer, Sample
from holdfast.runs import Run, find_run
from holdfast.runs.scoring import score
from holdfast.score import scorer
from holdfast.solve import Context
from tests.unit.engine.runs import RUN, Asked, echo, given, go, lines, model, rows

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
SHOWN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_shown() -> None:
    SHOWN.clear()


@scorer
def polite(sample: Sample, answer: Answer) -> bool:
    """A scorer that is content with nothing at all: what an empty answer must not profit from."""
    SHOWN.append(answer.text)
    return "damn" not in answer.text


@scorer(group=True)
def agree(sample: Sample, answers: list[Answer]) -> list[int]:
    SHOWN.extend(answer.text for answer in answers)
    return [len(answers) for _ in answers]


def said(text: str, why: str = "stop", *calls: dict[str, Any]) -> Answer:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return Answer(text, {**message, "tool_calls": list(calls)} if calls else message, list(calls), why)


REPLIES = {
    "question 0": said("fine"),
    "question 1": said(" \n"),
    "question 2": said("as I was say", "length"),
    "question 3": said("half of", "content_filter"),
    "question 4": said("", "length"),
    "question 5": said("", "tool_calls", CALL),
}


async def reply(request: Request) -> Answer:
    return REPLIES[str(request.messages[-1]["content"])]


def evaluate(store: Path, scorers: Any = (polite,), **fields: Any) -> list[Any]:
    asked = Asked(rows=rows(len(REPLIES)), scorers=scorers, fields={"sample_retries": 0, **fields})
    go(store, given([asked], [model("odd", reply)]))
    return lines(store)


@pytest.mark.parametrize(
    ("answer", "marks"),
    [
        (said("fine"), ()),
        (said(""), ("empty",)),
        (said("  \n\t"), ("empty",)),
        (said("", "tool_calls", CALL), ()),
        (Answer("", {"tool_calls": [CALL]}), ()),
        (said("cut", "length"), ("truncated",)),
        (said("cut", "max_tokens"), ("truncated",)),
        (said("", "length"), ("empty", "truncated")),
        (said("half", "content_filter"), ("filtered",)),
        (said("half", "SAFETY"), ("filtered",)),
        (said("", "content_filter"), ("filtered", "empty")),
        (Answer("a solver's own text"), ()),
    ],
)
def test_what_is_wrong_with_an_answer_follows_from_its_text_and_its_end(answer: Answer, marks: tuple[str, ...]) -> None:
    assert answer.marks == marks


def test_by_default_no_scorer_sees_an_empty_or_filtered_answer_and_a_cut_off_one_is_scored(tmp_path: Path) -> None:
    found = evaluate(tmp_path)
    assert [line.status for line in found] == ["finished"] * 6
    assert [line.marks for line in found] == [(), ("empty",), ("truncated",), ("filtered",), ("empty", "truncated"), ()]
    assert [line.scores["polite"] for line in found] == [True, None, True, None, None, True]
    assert sorted(SHOWN) == ["", "as I was say", "fine"]
    assert found[1].reasons["polite"] == "the answer is empty, and counts.empty is no_score"


@pytest.mark.parametrize(
    ("counts", "value"), [("as_is", True), ("no_score", None), ("wrong", False), ("failed", {"failure"})]
)
def test_how_an_empty_answer_counts_is_the_specs_to_say(tmp_path: Path, counts: str, value: Any) -> None:
    line = evaluate(tmp_path, counts={"empty": counts})[1]
    found = line.scores["polite"]
    assert (set(found) if isinstance(found, dict) else found) == value
    assert line.output == " \n"


def test_among_labels_an_answer_that_counts_as_wrong_has_a_label_too(tmp_path: Path) -> None:
    found = evaluate(tmp_path, scorers=("taxonomy",), counts={"empty": "wrong", "filtered": "wrong"})
    assert [line.scores["taxonomy"] for line in found if "empty" in line.marks or "filtered" in line.marks] == [
        "wrong"
    ] * 3
    with Run(find_run(str(tmp_path), RUN)) as run:
        (cell,) = run.report().cells
    assert (cell.scorers[0].summary.n, cell.scorers[0].missing) == (0, {})
    assert sum(cell.scorers[0].labels.values()) == len(found)


def test_an_answer_that_counts_as_failed_is_not_scored_again_and_again(tmp_path: Path) -> None:
    """It is no judge that could not be asked: it would fail in the same way."""
    asked = Asked(rows=rows(len(REPLIES)), scorers=(polite,), fields={"counts": {"empty": "failed"}})
    wanted = given([asked], [model("odd", reply)])
    go(tmp_path, wanted)
    assert asyncio.run(score(wanted, find_run(str(tmp_path), RUN))).scored == 0


def test_the_report_counts_them_by_cell_and_the_mean_is_of_the_others(tmp_path: Path) -> None:
    evaluate(tmp_path, counts={"truncated": "wrong"})
    with Run(find_run(str(tmp_path), RUN)) as run:
        report, summary = run.report(), run.summary()
    (cell,) = report.cells
    assert cell.marks == {"empty": 2, "truncated": 2, "filtered": 1}
    (scored,) = cell.scorers
    assert (scored.summary.n, scored.no_score) == (3, 3)
    assert scored.summary.mean == pytest.approx(2 / 3)
    assert "task/odd: 2 answers are empty (counts.empty is no_score), e.g. task/odd/s1/1" in str(report)
    assert {"task": "task", "model": "odd", "mark": "filtered", "count": 1} in summary.marks


def test_a_scorer_of_groups_is_shown_only_those_that_are_answers(tmp_path: Path) -> None:
    found = evaluate(tmp_path, scorers=(agree,), repeats=2)
    assert [line.scores["agree"] for line in found if line.sample_id == "s1"] == [None, None]
    assert [line.scores["agree"] for line in found if line.sample_id == "s0"] == [2, 2]
    assert " \n" not in SHOWN


def test_another_way_to_count_is_another_evaluation_and_nothing_is_blended(tmp_path: Path) -> None:
    evaluate(tmp_path)
    found = evaluate(tmp_path, counts={"empty": "wrong"})
    assert [line.scores["polite"] for line in found] == [True, False, True, None, False, True]
    with Run(find_run(str(tmp_path), RUN)) as run:
        assert len(run.summary().evaluations) == 2


@pytest.mark.parametrize("solver", ["chat", {"majority": {"n": 3}}, {"best_of": {"n": 3}}, {"critique": {"rounds": 1}}])
def test_no_solver_that_comes_with_it_makes_an_answer_of_a_failure(tmp_path: Path, solver: Any) -> None:
    failing = {"left": 1}

    async def sometimes(request: Request) -> str:
        failing["left"] -= 1
        if failing["left"] < 0:
            raise ModelError("malformed", "the body is not JSON: <html>")
        return await echo(request)

    asked = Asked(rows=rows(1), scorers=(polite,), fields={"sample_retries": 0, "solver": solver})
    failing["left"] = 0 if solver == "chat" else 1
    go(tmp_path, given([asked], [model("odd", sometimes)]))
    (line,) = lines(tmp_path)
    assert (line.status, line.output, line.scores) == ("failed", None, {})
    assert line.error is not None
    assert line.error.kind == "malformed"
    assert SHOWN == []


def test_a_majority_that_finds_nothing_is_an_empty_answer_and_marked(tmp_path: Path) -> None:
    solver = {"majority": {"n": 3, "pattern": "answer: (.*)"}}
    asked = Asked(rows=rows(1), scorers=(polite,), fields={"solver": solver})
    go(tmp_path, given([asked], [model("odd", echo)]))
    (line,) = lines(tmp_path)
    assert (line.output, line.marks, line.scores) == ("", ("empty",), {"polite": None})


def test_a_failed_request_of_another_role_fails_the_sample_too(tmp_path: Path) -> None:
    async def broken(request: Request) -> str:
        raise ModelError("content_filter", "no")

    async def solve(sample: Sample, ctx: Context) -> str:
        first = await ctx.generate()
        return (await ctx.generate([first.message], role="judge")).text

    asked = Asked(rows=rows(1), solver=solve, scorers=(polite,), fields={"sample_retries": 0})
    go(tmp_path, given([asked], [model("odd", echo)], roles={"judge": model("judge", broken)}))
    (line,) = lines(tmp_path)
    assert (line.status, line.scores) == ("failed", {})
