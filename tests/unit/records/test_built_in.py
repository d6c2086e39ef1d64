"""What comes with Holdfast has a version, and what 0.1.0 recorded of it is version 1."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.records.built_in import (
    EXTRACTOR_VERSIONS,
    JUDGES,
    SCORER_VERSIONS,
    SOLVER_VERSIONS,
    TOOL_VERSIONS,
    comparable,
    normalized,
)
from holdfast.score import SCORERS as SCORER_TABLE
from holdfast.score import Scorer, exact_match, identity, includes, resolve, scorer
from holdfast.score.extractors import EXTRACTORS as EXTRACTOR_TABLE
from holdfast.solve.registry import SOLVERS as SOLVER_TABLE
from holdfast.solve.registry import resolve_solver
from holdfast.solve.tools.built_in import TOOLS as TOOL_TABLE

OLD: dict[str, Any] = json.loads(Path("tests/fixtures/identities_0_1_0.json").read_text())
"""Every identity as 0.1.0 wrote it."""


@pytest.fixture
def _first_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (SCORER_VERSIONS, EXTRACTOR_VERSIONS):
        for name in table:
            monkeypatch.setitem(table, name, 1)


def without_packages(found: Any) -> Any:
    """Their versions are those of the machine."""
    if isinstance(found, list):
        return [without_packages(each) for each in found]
    if not isinstance(found, dict):
        return found
    return {name: without_packages(each) for name, each in found.items() if name != "packages"}


def test_every_built_in_has_a_version() -> None:
    assert SCORER_VERSIONS.keys() == SCORER_TABLE.keys()
    assert EXTRACTOR_VERSIONS.keys() == EXTRACTOR_TABLE.keys()
    assert SOLVER_VERSIONS.keys() == SOLVER_TABLE.keys()
    assert TOOL_VERSIONS.keys() == TOOL_TABLE.keys()
    assert {name for name, each in SCORER_TABLE.items() if each.roles()} == JUDGES


@pytest.mark.parametrize("name", SCORER_TABLE)
def test_a_scorer_is_recorded_by_its_public_name(name: str) -> None:
    found = identity(SCORER_TABLE[name])
    assert (found["function"], found["version"]) == (name, SCORER_VERSIONS[name])
    assert "source" not in found


@pytest.mark.usefixtures("_first_versions")
@pytest.mark.parametrize("name", OLD["scorers"])
def test_a_scorer_of_0_1_0_is_version_1(name: str) -> None:
    old = without_packages(normalized(OLD["scorers"][name]))
    assert old == without_packages(identity(SCORER_TABLE[name]))


@pytest.mark.usefixtures("_first_versions")
@pytest.mark.parametrize("name", OLD["extractors"])
def test_an_extractor_of_0_1_0_is_version_1(name: str) -> None:
    assert normalized(OLD["extractors"][name]) == identity(EXTRACTOR_TABLE[name])


@pytest.mark.usefixtures("_first_versions")
@pytest.mark.parametrize("old", OLD["entries"], ids=lambda old: next(iter(old["entry"])))
def test_parts_and_extractors_of_0_1_0_are_version_1(old: Any) -> None:
    assert comparable(old["identity"]) == comparable(identity(resolve(old["entry"], "here")))


def test_a_current_identity_stays_as_it_is() -> None:
    found = identity(resolve({"all_of": {"of": ["numeric", {"regex": {"pattern": "x", "extract": "boxed"}}]}}, "here"))
    assert normalized(found) == found


def test_scorers_of_the_user_stay_as_they_are_and_their_parts_are_normalized() -> None:
    own = {"name": "f", "function": "mine:f", "args": {"part": OLD["scorers"]["numeric"]}, "source": "abc"}
    part = {"name": "numeric", "function": "numeric", "version": 1, "args": {}}
    assert normalized(own) == {**own, "args": {"part": part}}


@pytest.mark.parametrize("function", [["a"], {"a": 1}, None, 3, "holdfast.score.texts:nothing"])
def test_a_record_of_another_shape_is_left_alone(function: Any) -> None:
    found = {"name": "x", "function": function, "args": [], "source": 1}
    assert normalized(found) == found
    deep: Any = []
    for _ in range(600):
        deep = [deep]
    assert normalized({"name": "x", "function": "f", "args": deep})["name"] == "x"


def test_a_built_in_that_the_user_gave_arguments_to_is_not_the_built_in() -> None:
    given = [Scorer("x", functools.partial(exact_match.function, ignore_case=each), {}) for each in (True, False, True)]
    other = Scorer("x", functools.partial(includes.function, ignore_case=True), {})
    one, two, three, four = [identity(each) for each in [*given, other]]
    assert one == three
    assert len({comparable(each) for each in (one, two, four, identity(Scorer("x", exact_match.function)))}) == 4
    assert one["function"] == "holdfast:exact_match"


def test_the_version_of_a_built_in_in_a_closure_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Scorer:
        inner = exact_match
        return scorer(lambda sample, answer: inner(sample, answer))

    before = identity(made())
    assert identity(made()) == before
    monkeypatch.setitem(SCORER_VERSIONS, "exact_match", 2)
    assert identity(made()) != before


def test_solvers_of_version_1_have_no_digest_and_later_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = resolve_solver({"react": {"tools": ["bash"]}}, "here")
    assert (agent.digest(), agent.is_built_in) == ("", True)
    monkeypatch.setitem(TOOL_VERSIONS, "bash", 2)
    assert (agent.digest(), agent.is_built_in) == ("tool bash 2", True)
    monkeypatch.setitem(SOLVER_VERSIONS, "react", 3)
    assert len(agent.digest()) == 32
    assert resolve_solver("chat", "here").digest() == ""


@pytest.mark.parametrize("name", OLD["tools"])
def test_what_requests_say_of_a_tool_is_what_0_1_0_said(name: str) -> None:
    """It is part of the digest of a request: with other words, a resume of an agent would ask again."""
    assert TOOL_TABLE[name].schema() == OLD["tools"][name]
