"""A part of a spec is a spec; names that it does not have are refused with the nearest that it has."""

import pytest

from holdfast.errors import SpecError
from holdfast.spec import Spec, build_spec
from holdfast.spec.drift import changes_beyond_extension, find_differences
from holdfast.spec.source.loader import Selection, select


def spec() -> Spec:
    models = [{"name": name, "provider": "mock"} for name in ("small", "large")]
    tasks = [{"name": "sums"}, {"name": "words", "models": ["large"]}, {"name": "both", "models": ["small", "large"]}]
    return build_spec({"models": models, "tasks": tasks})


def test_nothing_selected_is_the_spec_itself() -> None:
    assert select(spec(), Selection()) == spec()


@pytest.mark.parametrize(
    ("wanted", "tasks", "models"),
    [
        (Selection(models=["small"]), {"sums": None, "both": ["small"]}, ["small"]),
        (Selection(tasks=["words"]), {"words": ["large"]}, ["small", "large"]),
        (
            Selection(models=["large", "large"]),
            {"sums": None, "words": ["large"], "both": ["large"]},
            ["large"],
        ),
    ],
)
def test_what_is_left_names_only_what_is_left(
    wanted: Selection, tasks: dict[str, list[str] | None], models: list[str]
) -> None:
    part = select(spec(), wanted)
    assert {task.name: task.models for task in part.tasks} == tasks
    assert [model.name for model in part.models] == models


def test_limit_and_samples_are_fields_of_the_part() -> None:
    part = select(spec(), Selection(limit=2, samples=["b", "a", "b"]))
    assert (part.limit, part.samples) == (2, ["b", "a"])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Selection(tasks=["summs"]), "did you mean 'sums'"),
        (Selection(models=["larg"]), "did you mean 'large'"),
        (Selection(models=["x"]), "valid are large, small"),
        (Selection(limit=0), "at least 1"),
        (Selection(tasks=["words"], models=["small"]), "no task runs with it"),
    ],
)
def test_what_selects_nothing_is_refused(wanted: Selection, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        select(spec(), wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        Selection(limit=1),
        Selection(samples=["a"]),
        Selection(tasks=["both"]),
        Selection(models=["small"]),
        Selection(1, ["a"], ["both"], ["large"]),
    ],
)
def test_the_whole_is_an_extension_of_every_part(wanted: Selection) -> None:
    assert changes_beyond_extension(find_differences(select(spec(), wanted), spec())) == []
