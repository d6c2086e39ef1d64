"""Repeats of a sample that are scored together: when, with which answers, and again after whatever happened."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.models import Request
from holdfast.records.samples import Answer, Sample
from holdfast.runs import extend, find_run
from holdfast.runs.scoring import score
from holdfast.score import scorer
from holdfast.solve import Context
from tests.unit.engine.runs import RUN, Asked, cut_after, given, go, lines, model, records, rows

REPEATS = 4
SEEN: list[tuple[str, list[str]]] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


@scorer(group=True)
def rank(sample: Sample, answers: list[Answer]) -> list[int]:
    """Which place each answer has among its siblings, by its text."""
    texts = [answer.text for answer in answers]
    SEEN.append((sample.id, texts))
    return [sorted(texts).index(text) for text in texts]


@scorer(group=True)
def agreement(sample: Sample, answers: list[Answer]) -> dict[str, float]:
    [(_, most)] = Counter(answer.text for answer in answers).most_common(1)
    return {"most": most / len(answers), "of": len(answers)}


@scorer
def length(sample: Sample, answer: Answer) -> int:
    return len(answer.text)


async def solve(sample: Sample, ctx: Context) -> str:
    return f"{sample.id} {ctx.random.randrange(10**6):06d}"


def wanted(count: int = 6, scorers: Any = (rank, agreement, length), solver: Any = solve, **fields: Any) -> Any:
    fields = {"repeats": REPEATS, "sample_retries": 0, **fields}
    return given([Asked(rows=rows(count), solver=solver, scorers=scorers, fields=fields)])


def scores(store: Path) -> dict[str, dict[str, Any]]:
    return {line.key: dict(line.scores) for line in lines(store)}


def check(store: Path, of: int = REPEATS) -> None:
    """Every answer has the place that it has among all answers of its sample."""
    texts: dict[str, list[str]] = {}
    for line in lines(store):
        if line.output is not None:
            texts.setdefault(line.sample_id, []).append(line.output)
    for line in lines(store):
        siblings = texts[line.sample_id]
        if line.output is not None:
            assert line.scores["rank"] == sorted(siblings).index(line.output)
            assert line.scores["agreement.of"] == len(siblings) == of
            assert line.scores["length"] == len(line.output)


def test_a_group_is_scored_once_with_all_its_answers_in_the_order_of_the_repeats(tmp_path: Path) -> None:
    go(tmp_path, wanted())
    assert sorted(name for name, _ in SEEN) == [f"s{number}" for number in range(6)]
    by_sample = {name: [line.output for line in lines(tmp_path) if line.sample_id == name] for name, _ in SEEN}
    assert dict(SEEN) == by_sample
    check(tmp_path)


def test_a_failed_repeat_does_not_keep_its_siblings_from_being_scored(tmp_path: Path) -> None:
    async def sometimes(sample: Sample, ctx: Context) -> str:
        text = await solve(sample, ctx)
        if sample.id == "s1" and len([1 for line in failures if line == sample.id]) < 2:
            failures.append(sample.id)
            raise ValueError("no")
        return text

    failures: list[str] = []
    go(tmp_path, wanted(solver=sometimes))
    found = {name: len(texts) for name, texts in SEEN}
    assert found == {**{f"s{number}": REPEATS for number in range(6)}, "s1": REPEATS - 2}
    SEEN.clear()
    go(tmp_path, wanted(solver=sometimes))  # the failed ones are tried again, and succeed
    assert [(name, len(texts)) for name, texts in SEEN] == [("s1", REPEATS)]
    check(tmp_path)


def test_where_every_repeat_failed_there_is_nothing_to_score(tmp_path: Path) -> None:
    async def never(sample: Sample, ctx: Context) -> str:
        raise ValueError("no")

    assert go(tmp_path, wanted(2, solver=never)).failed == 2 * REPEATS
    assert SEEN == []


@pytest.mark.parametrize("seed", range(12))
def test_after_a_kill_at_any_record_every_group_is_scored_as_if_nothing_had_happened(tmp_path: Path, seed: int) -> None:
    go(tmp_path, wanted())
    whole = scores(tmp_path)
    every = len(records(tmp_path))
    left = random.Random(seed).randrange(every // 4, every)
    count = iter(range(every))
    cut_after(tmp_path, lambda kind, data: kind in ("segment", "run.started") or next(count) < left)
    go(tmp_path, wanted())
    assert scores(tmp_path) == whole
    check(tmp_path)


def test_a_group_that_was_half_answered_before_the_kill_is_scored_once_with_all_of_it(tmp_path: Path) -> None:
    go(tmp_path, wanted(1))
    cut_after(tmp_path, lambda kind, data: not (kind == "sample.finished" and data["o"] == 2) and kind != "score")
    SEEN.clear()
    go(tmp_path, wanted(1))
    assert [len(texts) for _, texts in SEEN] == [REPEATS]
    check(tmp_path)


def test_answers_of_complete_groups_that_were_never_scored_are_scored_at_the_resume(tmp_path: Path) -> None:
    go(tmp_path, wanted())
    cut_after(tmp_path, lambda kind, data: kind not in ("score", "run.completed"))
    SEEN.clear()
    go(tmp_path, wanted())
    assert len(SEEN) == len({name for name, _ in SEEN})
    check(tmp_path)


def test_other_scorers_later_open_an_evaluation_with_groups(tmp_path: Path) -> None:
    go(tmp_path, wanted(scorers=[length]))
    assert SEEN == []
    go(tmp_path, wanted())
    assert sorted(name for name, _ in SEEN) == [f"s{number}" for number in range(6)]
    check(tmp_path)


def test_more_repeats_by_an_extension_bring_the_whole_group_to_be_scored_again(tmp_path: Path) -> None:
    go(tmp_path, wanted())
    SEEN.clear()
    asyncio.run(extend(wanted(repeats=6), find_run(str(tmp_path), RUN)))
    assert sorted((name, len(texts)) for name, texts in SEEN) == [(f"s{number}", 6) for number in range(6)]
    check(tmp_path, of=6)


def test_a_group_scorer_that_fails_or_miscounts_fails_for_each_answer_and_hurts_no_other_scorer(tmp_path: Path) -> None:
    @scorer(group=True)
    def short(sample: Sample, answers: list[Answer]) -> list[int]:
        return [1]

    @scorer(group=True)
    def broken(sample: Sample, answers: list[Answer]) -> list[int]:
        raise KeyError("x")

    go(tmp_path, wanted(1, scorers=[short, broken, length]))
    told = [data for kind, data in records(tmp_path) if kind == "score"]
    assert Counter(data["scorer"] for data in told) == {"short": 4, "broken": 4, "length": 4}
    failed = {data["scorer"]: data["failure"]["message"] for data in told if "failure" in data}
    assert "returned 1 results for 4 answers" in failed["short"]
    assert "KeyError" in failed["broken"]
    assert [data["scorer"] for data in told if data.get("last")] == ["length"] * 4


def test_scoring_alone_knows_which_repeats_have_failed_and_will_not_come(tmp_path: Path) -> None:
    async def sometimes(sample: Sample, ctx: Context) -> str:
        if ctx.random.randrange(10) < 4:
            raise ValueError("no")
        return await solve(sample, ctx)

    ended = go(tmp_path, wanted(scorers=[length], solver=sometimes))
    assert ended.failed
    scored = asyncio.run(score(wanted(solver=sometimes), find_run(str(tmp_path), RUN)))
    assert (scored.scored, scored.left) == (ended.finished, 0)
    assert sum(len(texts) for _, texts in SEEN) == ended.finished


async def reply(request: Request) -> str:
    return str(request.messages[-1]["content"])


def test_groups_of_several_models_are_kept_apart(tmp_path: Path) -> None:
    task = Asked(rows=rows(3), scorers=[rank], fields={"repeats": 2, "prompt": "{input}"})
    go(tmp_path, given([task], [model("a", reply), model("b", reply)]))
    assert sorted(Counter(name for name, _ in SEEN).items()) == [("s0", 2), ("s1", 2), ("s2", 2)]
    assert all(len(texts) == 2 for _, texts in SEEN)
