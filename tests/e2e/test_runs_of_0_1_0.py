"""Runs that version 0.1.0 made: they are read, resumed, recovered, compared and gated as that version did."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.runs import Run
from holdfast.runs.store.lookup import run_location
from holdfast.score import scales_of
from holdfast.stats import BOOL, UNIT, Scale
from holdfast.testing import ModelServer
from tests.e2e.agents import serving
from tests.e2e.commands import call, exported, run, shown
from tests.old_runs import EXPERIMENT, FIXTURE, SAMPLES, digests, reply, verification_facts, write_spec

EXPECTED: dict[str, Any] = json.loads((FIXTURE / "expected.json").read_text())
LEFT = sorted({*EXPECTED["asked"]} - {*EXPECTED["answered_before_the_kill"]})
KEY = {"OPENAI_API_KEY": "none"}
SAME = (
    *("run_id", "experiment", "status", "created", "planned", "finished", "failed", "unfinished"),
    *("steps", "usage", "scores", "evaluations", "evaluation_names", "extensions", "anomalies", "damage"),
)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving(reply, kept=10_000) as started:
        yield started


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The store and the mirror of these runs, copied."""
    shutil.copytree(FIXTURE / "mirror", tmp_path / "mirror")
    shutil.copytree(FIXTURE / "store", tmp_path / "runs")
    return tmp_path / "runs"


def as_in_0_1_0(found: Any, expected: Any) -> Any:
    """Only the fields that this version had. It gave no interval where nothing varies, and adjusted
    the p-values of sides without any difference. Sums in another order differ in their last digit.
    """
    if isinstance(found, dict) and isinstance(expected, dict):
        was_open = {"low", "high"} <= expected.keys() and expected["low"] is expected["high"] is None
        left = {"low", "high"} if was_open and found["low"] is not None else set[str]()
        if expected.get("adjusted_p") == 1.0 and found["adjusted_p"] is None and found["p"] == 1.0:
            left = {"adjusted_p"}
        return {name: expected[name] if name in left else as_in_0_1_0(found[name], expected[name]) for name in expected}
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return [as_in_0_1_0(*each) for each in zip(found, expected, strict=True)]
    is_rounded = (
        isinstance(found, float) and isinstance(expected, float) and math.isclose(found, expected, rel_tol=1e-12)
    )
    return expected if is_rounded else found


def continued(folder: Path, server: ModelServer, run_id: str) -> None:
    """The run's own spec again, with its server at another address."""
    spec = write_spec(folder, server.base_url)
    at_once = ("--set", "mirror.exclusive=false")  # it would wait until the killed process counts as dead
    done = run("run", spec, "--id", run_id, *at_once, cwd=folder, env=KEY)
    assert done.code == 0, done.said


def fresh(folder: Path, server: ModelServer) -> None:
    """The same spec from the beginning, with the code of today."""
    continued(folder, server, "fresh")
    assert sorted(digests(server.requests())) == EXPECTED["asked"]


@pytest.mark.parametrize("name", ["whole", "cut"])
def test_they_are_shown_and_exported_with_the_same_numbers(store: Path, name: str) -> None:
    expected = {field: EXPECTED[name]["show"][field] for field in SAME}
    assert as_in_0_1_0(shown(name, store), expected) == expected
    lines = exported(name, store)
    assert as_in_0_1_0(lines, EXPECTED[name]["export"]) == EXPECTED[name]["export"]
    assert all(line["input"] and line["target"] and line["prompt"] for line in lines)
    assert call("report", name, cwd=store.parent).code == 0
    assert call("leaderboard", name, cwd=store.parent).code == 0


@pytest.mark.parametrize("name", ["whole", "cut"])
def test_their_bytes_and_scores_are_verified(store: Path, name: str) -> None:
    done = call("verify", name, "--scores", "--json", cwd=store.parent)
    assert done.code == 0, done.said
    assert done.json()["scores"]["numbers"] > 0
    assert verification_facts(done.json()) == EXPECTED[name]["verify"]


@pytest.mark.parametrize("name", ["whole", "cut"])
def test_their_scores_have_the_scales_of_built_in_scorers(store: Path, name: str) -> None:
    with Run(run_location(str(store), EXPERIMENT, name)) as found:
        sums, agent = (scales_of(found.scorer_identities(), task) for task in ("sums", "agent"))
    assert [sums.of(each) for each in ("exact_match", "checked", "short")] == [BOOL] * 3
    assert (sums.of("right"), sums.of("includes")) == (Scale("range", 1.0, 5.0), None)
    assert (agent.of("includes"), agent.of("pairwise")) == (BOOL, UNIT)


def test_a_finished_run_is_asked_nothing(store: Path, server: ModelServer) -> None:
    continued(store.parent, server, "whole")
    assert server.requests() == []
    assert shown("whole", store)["evaluations"] == EXPECTED["whole"]["show"]["evaluations"]


def test_a_killed_run_requests_only_what_has_no_answer(store: Path, server: ModelServer) -> None:
    continued(store.parent, server, "cut")
    assert sorted(digests(server.requests())) == LEFT
    assert [(each["output"], each["scores"]) for each in exported("cut", store)] == [
        (each["output"], each["scores"]) for each in EXPECTED["whole"]["export"]
    ]
    assert shown("cut", store)["evaluations"] == EXPECTED["cut"]["show"]["evaluations"]


def test_a_killed_run_is_recovered_from_its_mirror_and_continued(store: Path, server: ModelServer) -> None:
    shutil.rmtree(store)
    done = call("recover", f"file://{store.parent}/mirror/{EXPERIMENT}/cut", cwd=store.parent)
    assert done.code == 0, done.said
    continued(store.parent, server, "cut")
    assert sorted(digests(server.requests())) == LEFT
    assert shown("cut", store)["finished"] == 2 * SAMPLES


def test_more_scorers_take_over_the_scores_that_are_there(store: Path, server: ModelServer) -> None:
    folder = store.parent
    spec = write_spec(folder, server.base_url)
    spec.write_text(spec.read_text().replace("  - includes\n", "  - includes\n  - length\n"))
    assert "length" in spec.read_text()
    done = run("run", spec, "--id", "whole", cwd=folder, env=KEY)
    assert (done.code, server.requests()) == (0, []), done.said
    assert {"length", "pairwise"} <= exported("whole", store)[-1]["scores"].keys()


def test_a_new_run_is_compared_and_gated_as_before(store: Path, server: ModelServer) -> None:
    folder = store.parent
    fresh(folder, server)
    compared = call("compare", "whole", "fresh", "--json", cwd=folder)
    assert (compared.code, compared.err) == (0, "")
    expected = json.dumps(EXPECTED["compare"]).replace('"again"', '"fresh"').replace("old/again", "old/fresh")
    assert as_in_0_1_0(compared.json(), json.loads(expected)) == json.loads(expected)
    gated = call("gate", "fresh", "--baseline", "whole", "--margin", "0.1", "--identical-passes", "--json", cwd=folder)
    assert (gated.code, gated.err) == (0, "")
    assert as_in_0_1_0(gated.json(), EXPECTED["gate"]) == EXPECTED["gate"]
    ranked = call("leaderboard", "whole", "fresh", cwd=folder)
    assert (ranked.code, ranked.err) == (0, "")
