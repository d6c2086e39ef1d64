"""Batch APIs whose servers send absurd values, in every field of jobs and of results.

Whatever a server says of a job, the caller gets a job that can be recorded, or a ModelError. Whatever a line of results
holds, it is an answer that can be recorded, a failure, or no result.
"""

import json
from typing import Any

import msgspec
import pytest

from holdfast.models import BatchApi, JobMark, ModelError
from holdfast.records.samples import COUNT_MAX, Answer
from holdfast.testing import BatchBehaviour, batch
from tests.absurd import absurd_documents
from tests.unit.models.test_api import TOKEN, at_once, each_style, lines_of, with_api


def check(answer: Answer) -> None:
    msgspec.json.encode(answer)
    assert all(0 <= count <= COUNT_MAX for count in msgspec.structs.astuple(answer.usage) if isinstance(count, int))


class Poison:
    """Rewrites what the server says of jobs, with one case after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, style: str) -> None:
        self.case = -1
        self.cases = 0
        self._as_json = batch.as_json
        monkeypatch.setattr(batch, "as_json", self)

    def __call__(self, content: Any, status: int = 200) -> Any:
        if self.case < 0 or status != 200:
            return self._as_json(content, status)
        every = list(absurd_documents(json.loads(msgspec.json.encode(content))))
        self.cases = max(self.cases, len(every))
        return self._as_json(every[self.case % len(every)], status)


@pytest.mark.long
@each_style
@pytest.mark.parametrize("asked", ["look", "find", "submit"])
def test_whatever_is_said_of_a_job_is_a_job_or_a_failure(
    style: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(api: BatchApi) -> tuple[int, int, int]:
        poison = Poison(monkeypatch, style)
        job = await api.submit(TOKEN, lines_of(api, 2), at_once)
        done = failed = 0
        poison.case = 0
        while poison.case < max(poison.cases, 1):
            try:
                if asked == "look":
                    assert (await api.look(job)).state in ("waiting", "ended")
                elif asked == "find":
                    found = await api.find(JobMark(TOKEN, 2, 0.0))
                    assert not found.id or await api.look(found.id)
                else:
                    name = await api.submit(TOKEN, lines_of(api, 2), at_once)
                    msgspec.json.encode(name)
                    assert 0 < len(name) <= 500
                    await api.look(name)
                done += 1
            except ModelError:
                failed += 1
            poison.case += 1
        return poison.cases, done, failed

    cases, done, failed = with_api(style, BatchBehaviour(polls=1), work)
    assert done + failed == cases > 40
    assert failed > 0
    assert done > 0


@pytest.mark.parametrize(("style", "options"), [("openai", {}), ("openai", {"api": "responses"}), ("anthropic", {})])
def test_whatever_a_line_of_results_holds_it_is_an_answer_a_failure_or_none(
    style: str, options: dict[str, str]
) -> None:
    async def work(api: BatchApi) -> dict[str, int]:
        job = await api.submit(TOKEN, lines_of(api, 1), at_once)
        standing = await api.look(job)
        (line,) = [line async for line in api.results(standing)]
        counts = {"answers": 0, "failures": 0, "not done": 0, "none": 0}
        for absurd in absurd_documents(json.loads(line)):
            result = api.parse(absurd)
            if result is None:
                counts["none"] += 1
            elif result.answer is not None:
                check(result.answer)
                counts["answers"] += 1
            else:
                counts["failures" if result.error is not None else "not done"] += 1
        return counts

    counts = with_api(style, BatchBehaviour(polls=1), work, options=options)
    assert counts["answers"] > sum(counts.values()) / 2, counts


@each_style
def test_half_a_character_in_a_line_costs_no_second_request(style: str) -> None:
    """`max_tokens` cuts an emoji in two; Python's encoder writes the half, and NaN."""

    async def work(api: BatchApi) -> list[str]:
        job = await api.submit(TOKEN, lines_of(api, 1), at_once)
        (line,) = [line async for line in api.results(await api.look(job))]
        assert b'"0"' in line
        found = []
        for absurd in (rb'"0\ud83d"', b'"0", "odd": NaN'):
            result = api.parse(
                line.replace(b'"0"', absurd, 1) if b"odd" not in absurd else line[:-1] + b', "odd": NaN}'
            )
            assert result is not None
            assert result.answer is not None
            found.append(result.answer.text)
        return found

    assert with_api(style, BatchBehaviour(polls=1), work) == ["0\ufffd", "0"]
