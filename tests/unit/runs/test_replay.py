"""One sample's code, run again on what was recorded: it gets the same answers, and nothing is sent or written."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.records.samples import Sample
from holdfast.runs import Given, find_run
from holdfast.runs.replay import Replay, open_replay, play
from holdfast.solve import Context
from tests.unit.engine.runs import RUN, Asked, folder, given, go, model, rows
from tests.unit.runs.advice import Told, files

KEY = "task/m/s1/1"


async def twice(sample: Sample, ctx: Context) -> str:
    return " ".join([(await ctx.generate(f"{sample.id} {word}")).text for word in ("one", "two")])


async def twice_otherwise(sample: Sample, ctx: Context) -> str:
    return " ".join([(await ctx.generate(f"{sample.id} {word}")).text for word in ("one", "new")])


def wanted(told: Told, solver: Any = twice) -> Given:
    return given([Asked(rows=rows(3), solver=solver, fields={"sample_retries": 1})], [model("m", told)])


def replayed(store: Path, asked: Given, key: str = KEY) -> Replay:
    async def work() -> Replay:
        return await play(open_replay(find_run(str(store), RUN), key, asked))

    return asyncio.run(work())


def test_a_finished_sample_comes_out_as_it_did(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, wanted(told))
    asked, before = len(told.asked), files(Path(folder(tmp_path)))
    found = replayed(tmp_path, wanted(told))
    assert found.answer is not None
    assert (found.answer.text, found.replayed, found.orphaned, found.asked) == ("s1 one s1 two", 2, 0, None)
    assert len(told.asked) == asked
    assert files(Path(folder(tmp_path))) == before


def test_different_code_stops_where_it_requests_what_is_not_recorded(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, wanted(told))
    asked = len(told.asked)
    found = replayed(tmp_path, wanted(told, twice_otherwise))
    assert found.asked == [{"role": "user", "content": "s1 new"}]
    assert (found.answer, found.replayed, found.orphaned) == (None, 1, 1)
    assert found.failure is not None
    assert "not recorded" in found.failure.message
    assert len(told.asked) == asked


def test_a_failed_sample_replays_its_last_attempt_with_what_was_carried_into_it(tmp_path: Path) -> None:
    told = Told(fails=lambda text: text == "s1 two")
    go(tmp_path, wanted(told))
    asked = len(told.asked)
    found = replayed(tmp_path, wanted(told))
    assert found.failure is not None
    assert "no answer to s1 two" in found.failure.message
    assert (found.replayed, found.asked) == (2, None)
    assert len(told.asked) == asked


def test_a_key_that_is_not_planned_is_refused(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, wanted(told))
    for key in ("task/m/s9/1", "nonsense"):
        with pytest.raises(UsageError, match="key"):
            replayed(tmp_path, wanted(told), key)
