"""Scores that people set: of the kind that the scorer gives, or refused."""

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.errors import UsageError
from holdfast.runs import Run
from holdfast.runs.scoring import Edit, edited


@holdfast.scorer
def right(sample: holdfast.Sample, answer: holdfast.Answer) -> bool:
    return True


@holdfast.scorer
def length(sample: holdfast.Sample, answer: holdfast.Answer) -> float:
    return 2.5


@holdfast.scorer
def tone(sample: holdfast.Sample, answer: holdfast.Answer) -> str:
    return "kind"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One of two answers is empty: of it no scorer is asked, and false is said in its place."""
    data = [{"id": "a", "q": " "}, {"id": "b", "q": "?"}]
    task = holdfast.Task("t", data, "{q}", scorers=[right, length, tone], counts={"empty": "wrong"})
    with holdfast.run(task, models=["mock/m"], store=str(tmp_path_factory.mktemp("runs"))) as made:
        yield made


@pytest.mark.parametrize(
    ("scorer", "typed", "value"),
    [
        ("right", "False", False),
        ("right", "1", True),
        ("right", "0.0", False),
        ("right", "null", None),
        ("length", "3", 3),
        ("length", "0.5", 0.5),
        ("tone", "true", "true"),
    ],
)
@pytest.mark.parametrize("sample", ["a", "b"])
def test_a_value_of_the_scorers_kind_is_taken(run: Run, sample: str, scorer: str, typed: str, value: Any) -> None:
    found = edited(run, Edit(f"t/m/{sample}/1", scorer, typed, "why", "ann")).value
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("scorer", "typed", "said"),
    [
        ("right", "0.5", "right=0.5: right gives right or wrong; write true, false, or null for no score"),
        ("right", "2", "right gives right or wrong"),
        ("right", "yes", "right gives right or wrong"),
        ("right", "nan", "a score must be finite"),
        ("length", "true", "length gives numbers; write a number, or null for no score"),
        ("length", "", "length gives numbers"),
    ],
)
@pytest.mark.parametrize("sample", ["a", "b"])
def test_a_value_of_another_kind_is_refused(run: Run, sample: str, scorer: str, typed: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        edited(run, Edit(f"t/m/{sample}/1", scorer, typed, "why", "ann"))
