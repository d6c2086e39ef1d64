"""Every benchmark, from its source at a fake Hub to its score, offline."""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.plan import all_benchmarks, prepare, resolve_benchmarks
from holdfast.records import Answer, Message, Sample
from holdfast.score import resolve
from holdfast.score.results import score_answer
from holdfast.spec import Spec, SpecFile
from holdfast.testing import Behaviour, FakeHub
from tests.e2e.benchmarks.cases import CANARY, all_cases
from tests.servers import serve_model

NAMES = sorted(all_benchmarks())
ALL = all_cases()
GOLDEN = Path(__file__).with_name("golden")


class Judge:
    """A judge that reads the grade in the answer."""

    def reply(self, messages: list[Message]) -> str:
        (found,) = re.findall(r"Grade: (\w+)", str(messages))
        return json.dumps({"reason": "as it says", "grade": found})

    async def generate(self, messages: list[Message], *, role: str) -> Answer:
        return Answer(self.reply(messages))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, hub: FakeHub) -> str:
    """A benchmark whose rows the hub serves."""
    assert request.param in ALL, f"add rows of {request.param} to tests/e2e/benchmarks"
    return str(request.param)


def spec_of(name: str, **changes: Any) -> Spec:
    model = {"name": "m", "provider": "mock"}
    judge = {"judge": {"provider": "mock"}}
    tasks = [{"benchmark": name, **changes}]
    return resolve_benchmarks(SpecFile("", {"models": [model], "roles": judge, "tasks": tasks})).spec


def samples_of(name: str) -> list[tuple[Sample, list[dict[str, Any]]]]:
    """The samples of a benchmark, and the messages that are sent first for each."""
    spec = spec_of(name)
    (work,) = prepare(spec, {}, {}).values()
    return [(sample, work.renderer.messages(sample)) for sample in work.samples(spec)]


def find(samples: list[tuple[Sample, list[dict[str, Any]]]], mark: str) -> Sample:
    (found,) = (sample for sample, messages in samples if mark in str(messages[-1]["content"]).rpartition("\n\n\n")[2])
    return found


def test_prompts_are_the_golden_ones(name: str) -> None:
    """Written by HOLDFAST_GOLDEN=1, and read by eye. Canaries reach neither prompts nor rows."""
    samples = samples_of(name)
    assert not any(CANARY in repr((sample.row, messages)) for sample, messages in samples)
    made = "".join(
        f"=== {sample.id} target {sample.target!r}\n"
        + "".join(f"--- {message['role']}\n{message['content']}\n" for message in messages)
        for sample, messages in samples[:2]
    )
    path = GOLDEN / f"{name.replace(':', '-')}.txt"
    if os.environ.get("HOLDFAST_GOLDEN"):
        path.write_text(made)
    assert made == path.read_text()


def test_right_answers_count_and_traps_do_not(name: str) -> None:
    benchmark, samples = all_benchmarks()[name], samples_of(name)
    entries = {each.name: each for each in (resolve(entry, "") for entry in spec_of(name).tasks[0].scorers)}
    assert benchmark.metric in entries
    for case in ALL[name].cases:
        sample = find(samples, case.mark)
        expected = {**dict.fromkeys(case.right, 1.0), **dict.fromkeys(case.wrong, 0.0), **case.partial}
        for text, value in expected.items():
            given = asyncio.run(score_answer(entries[benchmark.metric], sample, Answer(text), Judge()))
            (score,) = given.values()
            found = float(score.value == "correct") if isinstance(score.value, str) else score.value
            assert found == pytest.approx(value), (sample.id, text, score)


def test_it_runs_from_the_hub_to_its_score(name: str, tmp_path: Path) -> None:
    cases, benchmark = ALL[name].cases, all_benchmarks()[name]

    def reply(messages: list[Message]) -> str:
        text = str(messages[-1]["content"])
        if "Answer to grade" in text:
            return Judge().reply(messages)
        return next((case.right[0] for case in cases if case.mark in text), "none")

    with serve_model(Behaviour(reply=reply)) as server:
        model = {"name": "m", "provider": "openai", "model": "m", "base_url": server.base_url}
        given: dict[str, Any] = {
            "models": [model],
            "roles": {"judge": model},
            "store": str(tmp_path / "runs"),
            "quiet": True,
        }
        run = holdfast.run(name, id="x", **given)
        asked = server.stats().requests
        again = holdfast.run(name, id="x", **given)
        assert server.stats().requests == asked
    (cell,) = run.report().cells
    found = {each.scorer: each for each in cell.scorers}[benchmark.metric]
    assert again.status()[0] == run.status()[0] == "completed"
    mean = float(set(found.labels) == {"correct"}) if found.labels else found.summary.mean
    assert mean is not None
    assert mean == 1.0 if cases else 0 <= mean <= 1


@pytest.mark.usefixtures("hub")
def test_ifeval_reports_the_share_of_all_instructions(tmp_path: Path) -> None:
    """One prompt has two instructions, of which the answer follows one; the other prompt has one, and is followed."""
    given: dict[str, Any] = {"store": str(tmp_path), "quiet": True}
    with serve_model(Behaviour(reply=lambda messages: "three plain words")) as server:
        model = {"name": "m", "provider": "openai", "model": "m", "base_url": server.base_url}
        run = holdfast.run("ifeval:no_language", id="x", models=[model], **given)
    found = {each.scorer: each.summary.mean for each in run.report().cells[0].scorers}
    assert found["prompt_strict"] == 0.5
    assert found["instruction_strict"] == pytest.approx(2 / 3)


@pytest.mark.usefixtures("hub")
def test_simpleqa_is_ranked_by_its_correct_answers(tmp_path: Path) -> None:
    """`good` answers one of two questions right, `bad` none."""

    def reply(messages: list[Message]) -> str:
        text = str(messages[-1]["content"])
        if "Answer to grade" in text:
            return Judge().reply(messages)
        return "Ann Example. Grade: correct" if "painted" in text else "In 1977. Grade: incorrect"

    wrong = Behaviour(reply=lambda messages: "I do not know. Grade: not_attempted")
    with serve_model(Behaviour(reply=reply)) as server, serve_model(wrong) as other:
        good, bad = (
            {"name": name, "provider": "openai", "model": "m", "base_url": each.base_url}
            for name, each in (("good", server), ("bad", other))
        )
        run = holdfast.run(
            "simpleqa", id="x", models=[good, bad], roles={"judge": good}, store=str(tmp_path), quiet=True
        )
    cells = {cell.model: {each.scorer: each for each in cell.scorers} for cell in run.report().cells}
    grades = cells["good"]["grade"].grades
    assert grades is not None
    assert (grades.correct, grades.incorrect, grades.f1.mean) == (1, 1, 0.5)
    (board,) = holdfast.leaderboard(run).boards
    assert (board.scorer, [(each.model, each.summary.mean) for each in board.ranked]) == (
        "grade correct",
        [("good", 0.5), ("bad", 0.0)],
    )
    assert board.ranked[0].summary.low is not None
    assert [each.scorer for each in holdfast.gate(run, at_least=0.1).verdicts] == ["grade correct"] * 2
